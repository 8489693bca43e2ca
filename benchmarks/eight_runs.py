"""Eight tiny runs of `suprank compare`, two at a time, here and in another checkout, in turns: seconds.

    git worktree add /tmp/before bb59572        # before trainings were function calls
    OMP_NUM_THREADS=1 python benchmarks/eight_runs.py --against /tmp/before --turns 5 --out eight-runs.json

Half of the runs are NSM's and half ROADMAP's, four seeds each, of nine steps on 48 drawn pictures. The machine should be idle.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
RECIPE = """[data]
manifest = "manifest.csv"
workers = 0
[images]
size = 32
test_resize = 32
[model]
backbone = "test_resnet"
pretrained = false
dim = 8
[loss]
name = "LOSS"
[batch]
size = 16
images_per_class = 2
[run]
epochs = 3
[engine]
accelerator = "cpu"
[evaluation]
every = 0
at_start = false
[logging]
tensorboard = false
"""


def write_inputs(folder: Path) -> None:
    """Eight classes of nine noisy pictures, three of which are test images, and two recipes."""
    draw, lines = np.random.default_rng(0), ["path,split,label_fine"]
    for number in range(8):
        colors = draw.uniform(0, 255, (3, 3, 3))
        for image in range(9):
            noisy = np.clip(colors + draw.uniform(-40, 40, colors.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).resize((40, 36)).save(folder / f"{number}-{image}.png")
            lines.append(f"{number}-{image}.png,{'test' if image < 3 else 'train'},f{number}")
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")
    for loss in ("nsm", "roadmap"):
        (folder / f"{loss}.toml").write_text(RECIPE.replace("LOSS", loss))


def measure(tree: Path, inputs: Path, jobs: int) -> float:
    """The seconds of the eight runs with the code of a checkout."""
    with tempfile.TemporaryDirectory() as out:
        words = ["compare", "nsm.toml", "roadmap.toml", "data.root=.", "--seeds", "4", "--jobs", str(jobs), "--out", out, "-q"]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "CUDA_VISIBLE_DEVICES": ""}
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-P", "-m", "suprank", *words], cwd=inputs, env=environment, capture_output=True)
        seconds = time.monotonic() - start
        finished = len(list(Path(out).glob("*/result.json")))
    if done.returncode or finished != 8:
        sys.exit(f"{tree}: exit code {done.returncode}, {finished} of 8 runs are finished.\n{done.stderr.decode()}")
    return round(seconds, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout, measured in turns with this one")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a JSON file of all turns")
    options = parser.parse_args()
    trees = {"here": ROOT} | ({} if options.against is None else {"against": options.against.absolute()})
    found: dict[str, list[float]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as inputs:
        write_inputs(Path(inputs))
        for turn in range(options.turns):
            for name, tree in trees.items():
                found[name].append(measure(tree, Path(inputs), options.jobs))
                print(f"turn {turn + 1}, {name}: {found[name][-1]} s", flush=True)
    for name, turns in found.items():
        print(f"{name}: {min(turns)} s at best, {statistics.median(turns)} s in the median")
    if options.out is not None:
        options.out.write_text(json.dumps({"jobs": options.jobs, "cores": os.cpu_count(), "seconds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
