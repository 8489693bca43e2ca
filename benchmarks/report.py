"""Costs of a report: CPU seconds to write it by stage, its size, and how quickly a browser shows it and moves its map.

python benchmarks/report.py                                       60,000 test images, 11,316 classes in 12 groups
python benchmarks/report.py --images 5000 --classes 500 --runs 2  a small pair of runs

Embeddings of 128 dimensions are drawn around class centers that lie around group centers. A few hundred pictures are drawn, and
linked under a path for each image, because a report embeds a picture once for each path. The file is opened from disk in
Chromium at 1280 × 900 pixels (needs playwright); times of the browser are medians of `--repeats` fresh pages. While the map is
panned, each frame moves it by some pixels, and the interval between frames is measured: 17 ms is as fast as the screen.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from suprank.data.manifest import Manifest
from suprank.embedding.query_gallery import combine_parts
from suprank.evaluation import RetrievalData
from suprank.explorer.report import report_page

DIM, PICTURES, SIDE = 128, 300, 160
CHROMIUM = os.environ.get("SUPRANK_CHROMIUM", "/usr/bin/chromium-headless-shell")

PAN = """async () => {
  const map = document.querySelector(".map canvas");
  const frame = () => new Promise(requestAnimationFrame);
  const box = map.getBoundingClientRect();
  const send = (type, x) => map.dispatchEvent(new PointerEvent(type, {
    bubbles: true, cancelable: true, pointerId: 1, isPrimary: true, button: 0, buttons: type === "pointerup" ? 0 : 1,
    clientX: box.left + x, clientY: box.top + box.height / 2,
  }));
  for (let turn = 0; turn < 20; turn++) await frame();
  send("pointerdown", 300);
  const intervals = [];
  let last = await frame();
  for (let turn = 0; turn < 60; turn++) {
    send("pointermove", 300 + 2 * turn);
    const now = await frame();
    intervals.push(now - last);
    last = now;
  }
  send("pointerup", 420);
  return intervals;
}"""


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="report", dir=arguments.folder) as name:
        sources = _draw_sources(Path(name), arguments)
        stages = _Stages()
        options = {"map_images": arguments.map_images}
        if arguments.map_classes is not None:
            options["map_classes"] = arguments.map_classes
        page = report_page(*sources, progress=stages, **options)
        stages("page", 1, 1)
        rows: dict[str, Any] = {f"{stage}, CPU s": round(seconds, 1) for stage, seconds in stages.cpu.items()}
        rows |= {"all, CPU s": round(sum(stages.cpu.values()), 1), "all, s": round(stages.elapsed, 1)}
        file = arguments.page or Path(name) / "report.html"
        file.write_text(page, encoding="utf-8")
        rows["file, MB"] = round(file.stat().st_size / 1e6, 2)
        rows |= _browse(file, arguments.repeats)
    print(f"{arguments.images:,} images, {arguments.classes:,} classes, runs: {arguments.runs}")
    for row, value in rows.items():
        print(f"  {row:42} {value:>8}")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--classes", type=int, default=11_316)
    parser.add_argument("--groups", type=int, default=12)
    parser.add_argument("--runs", type=int, default=1, choices=(1, 2))
    parser.add_argument("--map-classes", type=int, help="classes on the map; 0 for all")
    parser.add_argument("--map-images", type=int, default=0, help="images on the map")
    parser.add_argument("--repeats", type=int, default=5, help="pages that are opened")
    parser.add_argument("--folder", type=Path, help="where the pictures are drawn, and deleted")
    parser.add_argument("--page", type=Path, help="keep the report here")
    parser.add_argument("--out", type=Path, help="a JSON file for all numbers")
    return parser.parse_args()


class _Stages:
    """Adds up the CPU seconds of each stage by the calls of a report's progress; runs are not told apart."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = {}
        self._began, self._last = time.perf_counter(), time.process_time()

    def __call__(self, what: str, done: int, total: int) -> None:
        stage, now = what.rpartition(": ")[2], time.process_time()
        self.cpu[stage] = self.cpu.get(stage, 0) + now - self._last
        self._last = now

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._began


def _draw_sources(folder: Path, arguments: argparse.Namespace) -> list[RetrievalData]:
    draw = np.random.default_rng(0)
    classes = np.sort(np.concatenate([np.arange(arguments.classes), draw.integers(arguments.classes, size=arguments.images)]))
    classes = np.sort(draw.permutation(classes)[: arguments.images])
    groups = np.arange(arguments.classes) % arguments.groups
    paths = _draw_pictures(folder, arguments.images, draw)
    manifest = Manifest.from_columns(
        {
            "path": paths,
            "split": ["test"] * arguments.images,
            "label_class": [f"class {number:05} of some length" for number in classes],
            "label_group": [f"group {groups[number]:02}" for number in classes],
        },
        root=folder,
    )
    of_groups, of_classes = (draw.normal(size=(number, DIM)) for number in (arguments.groups, arguments.classes))
    sources = []
    for run in range(arguments.runs):
        own = np.random.default_rng(run).normal(size=(arguments.images, DIM))
        vectors = 0.5 * of_groups[groups[classes]] + of_classes[classes] + (1.3 + 0.2 * run) * own
        sources.append(combine_parts({"test": (vectors.astype(np.float32), manifest)}, name=f"run {run}"))
    return sources


def _draw_pictures(folder: Path, number: int, draw: np.random.Generator) -> list[str]:
    """Pictures with large and small structure, which compress about as well as photos; the path of each image."""
    for name in range(min(PICTURES, number)):
        parts = [share * _noise(draw, cells) for share, cells in ((0.35, 3), (0.3, 12), (0.2, 40), (0.15, SIDE))]
        pixels = np.sum(parts, axis=0)
        Image.fromarray((255 * pixels).astype(np.uint8)).save(folder / f"{name}.jpg", quality=90)
    paths = []
    for row in range(number):
        path = Path("images") / str(row // 1000) / f"{row}.jpg"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).hardlink_to(folder / f"{row % PICTURES}.jpg")
        paths.append(str(path))
    return paths


def _noise(draw: np.random.Generator, cells: int) -> NDArray[np.float64]:
    """A picture of random colors, `[SIDE, SIDE, 3]` in 0 to 1, that are smooth between `cells` × `cells` points."""
    small = Image.fromarray(draw.integers(0, 256, (cells, cells, 3), np.uint8))
    return np.asarray(small.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) / 255


def _browse(file: Path, repeats: int) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    paints, loads, frames = [], [], []
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as started:
        for _ in range(repeats):
            browser = started.chromium.launch(executable_path=CHROMIUM, args=flags)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(file.as_uri())
            page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
            paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            loads.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
            if page.locator(".map canvas").count():
                page.locator(".map canvas").first.hover()  # a pointer that no mouse ever moved cannot drag
                frames.append(page.evaluate(PAN))
            browser.close()
    rows: dict[str, Any] = {"first contentful paint, ms": round(median(paints)), "loaded, ms": round(median(loads))}
    if frames:
        panned = [interval for one in frames for interval in one]
        rows |= {"frame while panning, ms": round(median(panned), 1), "slowest of 20, ms": round(np.quantile(panned, 0.95), 1)}
    return rows


if __name__ == "__main__":
    main()
