"""Write the values of new cases, and those that exceptions.toml names: `PYTHONPATH=src python -m tests.golden.write`.

`--bits FILE` writes the values of all cases to a file in hexadecimal digits instead, and the error of a case that fails, for
`benchmarks/golden.py`.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from tests.golden import values


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", type=Path, metavar="FILE")
    file = parser.parse_args().bits
    torch.set_num_threads(1)  # more of them add in another order
    if file is not None:
        file.write_text(json.dumps(values.in_bits(values.compute(errors=True))))
        return 0
    found = values.compute()
    changed, renamed = values.exceptions()
    before = values.under_new_names(values.read(), renamed)
    kept = {key: value for key, value in before.items() if key in found and not values.compare(key, value, found[key])}
    kept |= {key: value for key, value in before.items() if key.startswith("shared/") and key not in found}
    moved = [key for key in before if key not in kept]
    refused = [key for key in moved if values.reason(key, changed) is None]
    for key in refused:
        print(f"{key}{values.compare(key, before[key], found[key]) if key in found else ' is gone'}")
    if refused:
        print("Nothing was written. If these changes are wanted, name the keys in tests/golden/exceptions.toml.")
        return 1
    values.write({key: values.rounded(key, value) for key, value in found.items()} | kept)
    print(f"{len(found.keys() - before.keys())} new, {len(moved)} changed or gone, {len(kept)} as before")
    return 0


if __name__ == "__main__":
    sys.exit(main())
