"""Draw illustrations of the paper: `python -m docs.drawings OUT LABEL ...` writes .png and .svg, and prints the numbers."""

import argparse
from pathlib import Path

from suprank.experiments.plots import save_figure

from . import ILLUSTRATIONS

parser = argparse.ArgumentParser(prog="python -m docs.drawings", description=__doc__.partition(":")[0])
parser.add_argument("out", type=Path, help="a folder")
parser.add_argument("labels", nargs="*", metavar="LABEL", help="one of " + ", ".join(ILLUSTRATIONS) + "; by default all")
options = parser.parse_args()
if unknown := [label for label in options.labels if label not in ILLUSTRATIONS]:
    parser.error(f"there is no illustration {unknown[0]}; choose from {', '.join(ILLUSTRATIONS)}.")
options.out.mkdir(parents=True, exist_ok=True)
for label in options.labels or ILLUSTRATIONS:
    drawing = ILLUSTRATIONS[label]()
    stem = options.out / label.replace(":", "-")
    save_figure(drawing.figure, [stem.with_suffix(".png"), stem.with_suffix(".svg")], drawing.alt)
    numbers = ", ".join(f"{name} {number:.3g}" for name, number in drawing.numbers.items())
    print(f"{stem}.png, .svg: {numbers}")
