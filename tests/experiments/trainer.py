"""A stand-in for `suprank train`, which takes no time: R@1 is λ + seed/100. Run by its path; it imports little. λ is that of
the override loss.weight=..., else of the recipe.

It tells in `begun` how often it was started. Files in the working folder are orders: where `stay` is there, it waits for
SIGTERM and saves then, to end unless `stubborn` is there. λ = 0.6 fails until `repaired` is there; λ = 0.7 leaves no result.
Above the number in `too-high` the loss is NaN; where `refuse` is there, the run is refused.
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path


def save(number, frame):
    (folder / "saved").touch()
    if not Path("stubborn").exists():
        sys.exit(1)


def weight_in(recipe):
    return re.search("^weight = (.+)$", recipe.read_text(), flags=re.MULTILINE)[1]


if __name__ == "__main__":
    folder = Path(sys.argv[sys.argv.index("--out") + 1])
    given = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    folder.mkdir(exist_ok=True)
    with (folder / "begun").open("a") as file:
        file.write("x")
    signal.signal(signal.SIGTERM, save)
    shared = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")}
    print("training", json.dumps({**given, **shared}), flush=True)
    stay = Path("stay").exists() and not (folder / "saved").exists()
    if stay:
        (folder / "parent").write_text(str(os.getppid()))
        (folder / "new").write_text(str(os.getpid()))
        (folder / "new").rename(folder / "staying")
    end = time.monotonic() + 150  # a test that fails leaves nobody behind
    while stay and time.monotonic() < end:
        time.sleep(0.02)
    weight = float(given["loss.weight"] if "loss.weight" in given else weight_in(Path(sys.argv[1])))
    if Path("refuse").exists():
        print("there is no file images/7.jpg")
        sys.exit(2)
    if Path("too-high").exists() and weight > float(Path("too-high").read_text()):
        sys.exit("step 7: the loss is nan")
    if weight == 0.6 and not Path("repaired").exists():
        sys.exit("the disk is full")
    if weight != 0.7:
        share = weight + int(given["run.seed"]) / 100
        metrics = {"test": {"R@1": share, "H-AP": share / 2, "AP/group": share / 4, "AP": None}}
        result = {"epoch": 3, "step": 30, "seconds": 1.5, "metrics": metrics, "best": None}
        (folder / "result.json").write_text(json.dumps(result))
