"""Which values of the golden cases differ between this tree and another commit, to the last bit, on this machine.

python benchmarks/golden.py --against main

Each commit runs its own tests/golden, whose cases call the functions that it has; one that has none yet runs those of this
tree. Both run in this Python, on one thread. Differences that tests/golden/exceptions.toml names, and that of the other
commit does not, are counted; any other is printed, and the exit status is 1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 300  # that is printed of a difference
sys.path.insert(0, str(ROOT))

from tests.golden import values  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", required=True, metavar="REV", help="a commit of this repository")
    rev = parser.parse_args().against
    with tempfile.TemporaryDirectory(prefix="suprank-golden-") as folder:
        tree = Path(folder) / "tree"
        if (ROOT.parent / "shared").is_dir():
            (tree.parent / "shared").symlink_to(ROOT.parent / "shared")
        _git("worktree", "add", "--quiet", "--detach", str(tree), rev)
        try:
            known, _ = values.exceptions(tree / "tests/golden")
            before, now = _bits(tree, Path(folder)), _bits(ROOT, Path(folder))
        finally:
            _git("worktree", "remove", "--force", str(tree))
    changed, renamed = values.exceptions()
    changed = {pattern: why for pattern, why in changed.items() if pattern not in known}
    before = values.under_new_names(before, renamed)
    different = [key for key in before if before[key] != now.get(key)]
    excused = Counter(why for key in different if (why := values.reason(key, changed)) is not None)
    unexpected = [key for key in different if values.reason(key, changed) is None]
    for key in unexpected:
        print(key + (values.compare(key, before[key], now[key])[:WIDTH] if key in now else " is gone"))
    for why, count in excused.items():
        print(f"{count} differ as wanted: {why}")
    added = len(now.keys() - before.keys())
    print(f"{len(before) - len(different)} of {len(before)} values of {rev} are the same to the last bit; {added} are new")
    return 1 if unexpected else 0


def _bits(tree: Path, folder: Path) -> dict[str, Any]:
    """The values of the cases with the source of this tree."""
    file = folder / "bits.json"
    cases = tree if (tree / "tests/golden").is_dir() else ROOT
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree / "src"), str(cases)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.golden.write", "--bits", str(file)]
    done = subprocess.run(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{tree}: {done.stderr}")
    return json.loads(file.read_text())


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
