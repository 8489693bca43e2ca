"""What the decomposability loss gains as batches get small beside the dataset, and whether the measured gap foretells it.

    python benchmarks/every_letter.py many --characters 12000 --drawings 12 --size 32
    python benchmarks/decomposability.py many/manifest.parquet --study images sizes --images 96000 --seeds 3 --jobs 12 \\
        --out benchmarks/results/h200/decomposability/images.jsonl
    python benchmarks/decomposability.py --plot benchmarks/results/h200/decomposability     # draws gain.png and images.png
    python benchmarks/decomposability.py --table benchmarks/results/h200/decomposability    # prints images.jsonl as Markdown
    python benchmarks/decomposability.py --write     # writes these tables into docs/decomposability.md
    python benchmarks/decomposability.py --check     # exits with 1 if the page has other tables

For a machine that has not the images, `many/manifest.parquet --pack many.zip` writes the decoded images and their split into
one file of 35 MiB, which is then given in place of the manifest. A test of all parts that takes seconds on a GPU:

    python benchmarks/decomposability.py many.zip --study images --images 6400 --seeds 1 --batches 64 512 --out /tmp/test.jsonl

A quarter of the characters is for testing. The studies:

    rates     learning rates, tested on training classes that are held out
    batch     batches of 16 to 1,024, with all training classes
    classes   batches of 128, with a sixteenth of the training classes to all
    large     batches of 2,048 to 8,192, and a memory of all training images
    images    batches of 16 to 1,024 (`--batches`), with a quarter of the training classes, at equal images seen
    sizes     batches of 32, with a sixteenth of the training classes and with all of them, at equal images seen

In the first four, every run of a study has equally many steps, those of large batches a quarter, and `RATES` are the learning
rates. In the last two, every run sees `--images` images, and each method has the learning rate that is best for it at the batch
size: of three, a factor of 3 apart around `RATES`, by mAP@R on a fourth of the classes of `images`, which is held out (rows of
the study `tuning`; one seed, a quarter of the steps, but at least 500, or all if a run has fewer). These two are tested on
1,000 of the test classes, or of those held out. Runs start in this order, so that `--limit` leaves out what comes last:
`images` of Sup-AP and L*_DG, `images` of L_DG, `sizes`; of each the longest first.

A line of the result is a run: what was trained, its metrics on the test classes in percent, and the decomposability gap of its
test embeddings in batches of its size (null for `tuning`). The metrics of a run that hit a NaN are 0. Runs that the file has
already are not repeated. Images are decoded once for all runs, and have to be 32 pixels wide and high.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import shutil
import time
import zipfile
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np
import pages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from suprank.data import Manifest
    from suprank.data.cached_images import InMemoryImages
    from suprank.paper.layout import WelchDifference

METHODS = ("sup-ap", "roadmap-pairs", "roadmap")  # without, with L_DG, with L*_DG
METRICS = ("AP", "mAP@R", "R@1", "H-AP")
GAP_CLASSES = 500  # test classes among which the gap is measured
PER_CLASS = 4
RATES = {"sup-ap": 4e-3, "roadmap-pairs": 4e-3, "roadmap": 2e-3}  # at batches of 64: the best of `rates`, over both batch sizes
TEST_SHARE = 0.25
SIDE = 32  # of the images, in pixels

STEPS_STUDIES = ("rates", "batch", "classes", "large")
IMAGES_STUDIES = ("images", "sizes")
BATCHES = (16, 32, 64, 128, 256, 512, 1024)
IMAGES_SHARE, SIZES_SHARES = 4, (16, 1)  # of the training classes, one in so many is in the studies at equal images
SIZES_BATCH = 32
FACTOR = 3.0  # between two learning rates
TUNING_STEPS = 500  # at least, or all, if a run has fewer
TESTED_CLASSES = 1000  # of the studies at equal images

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "decomposability.md"
FOLDER = ROOT / "benchmarks" / "results" / "h200" / "decomposability"


@dataclass(frozen=True)
class Point:
    """One run."""

    study: str
    method: str
    batch: int
    classes: int
    seed: int
    steps: int
    lr: float
    overrides: tuple[str, ...] = ()


def learning_rate(batch: int, lr: float) -> float:
    """The rate at a batch size: it grows with the root of the batch, from `lr` at 64."""
    return lr * (batch / 64) ** 0.5


def steps_points(study: str, classes: int, arguments: argparse.Namespace) -> list[Point]:
    """The runs of a study at equal steps."""
    seeds, steps = range(arguments.seeds), arguments.steps
    if study == "rates":
        return [
            Point(study, method, batch, classes, 0, steps, one)
            for batch in (64, 512)
            for one in (5e-4, 1e-3, 2e-3, 4e-3)
            for method in METHODS
        ]
    if study == "batch":
        sizes = (1024, 512, 256, 128, 64, 32, 16)
        return [
            Point(study, method, batch, classes, seed, steps, RATES[method])
            for batch in sizes
            for method in METHODS
            for seed in seeds
        ]
    if study == "classes":
        parts = [classes // share for share in (16, 8, 4, 2)]
        return [
            Point(study, method, 128, part, seed, steps, RATES[method])
            for part in parts
            for method in METHODS
            for seed in seeds
        ]
    memory = ("memory.size=all", "memory.per_item=true")
    large = [
        Point(study, method, batch, classes, seed, steps // 4, RATES[method])
        for batch in (8192, 4096, 2048)
        for method in METHODS
        for seed in seeds
    ]
    return large + [Point(study, "sup-ap", 64, classes, seed, steps, RATES["sup-ap"], memory) for seed in seeds]


def tuning_points(studies: Sequence[str], classes: int, arguments: argparse.Namespace) -> list[Point]:
    """The runs that compare three learning rates for every method and batch size."""
    batches = dict.fromkeys(
        (*(arguments.batches if "images" in studies else ()), *([SIZES_BATCH] if "sizes" in studies else []))
    )
    return [
        Point(
            "tuning", method, batch, classes // IMAGES_SHARE, 0, tuning_steps(arguments.images // batch), _rounded(lr * factor)
        )
        for batch in batches
        for method, lr in RATES.items()
        for factor in (1 / FACTOR, 1.0, FACTOR)
    ]


def tuning_steps(steps: int) -> int:
    """The steps of a run with which learning rates are compared: a quarter, but at least 500, or all."""
    return max(steps // 4, min(steps, TUNING_STEPS))


def tested_points(
    studies: Sequence[str], classes: int, arguments: argparse.Namespace, rows: Iterable[dict[str, Any]]
) -> list[Point]:
    """The runs at equal images whose learning rate these rows decide: those for which all three rates have been compared."""
    values = {_point_of(row): row["mAP@R"] for row in rows if row["study"] == "tuning"}
    compared: dict[tuple[str, int], list[Point]] = {}
    for point in tuning_points(studies, classes, arguments):
        compared.setdefault((point.method, point.batch), []).append(point)
    points = []
    for (method, batch), several in compared.items():
        if any(point not in values for point in several):
            continue
        best = max(several, key=lambda point: values[point]).lr
        sizes = {"images": [classes // IMAGES_SHARE]} if "images" in studies and batch in arguments.batches else {}
        if "sizes" in studies and batch == SIZES_BATCH:
            sizes["sizes"] = [classes // share for share in SIZES_SHARES]
        points += [
            Point(study, method, batch, size, seed, arguments.images // batch, best)
            for study, parts in sizes.items()
            for size in parts
            for seed in range(arguments.seeds)
        ]
    return points


def _rounded(lr: float) -> float:
    return float(f"{lr:.3g}")


# A run, in a worker process


def train_point(point: Point, folder: Path) -> dict[str, Any]:
    """Train and measure."""
    import torch
    from pyarrow import parquet

    from suprank.training import NonFiniteLossError, batches, read_recipe, train

    torch.set_num_threads(1)
    run = folder / f"run-{os.getpid()}"
    shutil.rmtree(run, ignore_errors=True)
    lr = learning_rate(point.batch, point.lr)
    overrides = [
        f'data.manifest="{train_manifest(folder, point)}"',
        *("data.crop_on_device=true", "data.cache_images=true", "data.workers=0"),
        *(f"images.size={SIDE}", f"images.test_resize={SIDE}", 'model.backbone="resnet10t"'),
        *(f"batch.size={point.batch}", f"batch.images_per_class={PER_CLASS}", f"batch.batches={point.steps}"),
        *("run.epochs=1", f"run.seed={point.seed}", f"optimizer.lr={lr}", "optimizer.warmup_epochs=0.1"),
        *("logging.tensorboard=false", "logging.every=1000000", "checkpoint.minutes=1000"),
        f"engine.precision={'bf16' if torch.cuda.is_available() else 'fp32'}",
        *point.overrides,
    ]
    start = time.monotonic()
    values, gap = dict.fromkeys(METRICS, 0.0), None
    try:
        with mock.patch.object(batches, "InMemoryImages", lambda dataset, **_: _decoded(dataset, folder)):
            train(read_recipe(f"glyphs/{point.method}", overrides), run)
        trained = time.monotonic()
        values, gap = _test(run / "model", folder, point)
    except NonFiniteLossError as error:
        print(f"{point}: {error}", flush=True)
        trained = time.monotonic()
    shutil.rmtree(run)
    gc.collect()  # the recorded CUDA graphs
    seconds = {"seconds": round(time.monotonic() - start, 1), "training seconds": round(trained - start, 1)}
    images = parquet.read_metadata(train_manifest(folder, point)).num_rows
    return {**asdict(point), **values, "gap": gap, "images": images, **seconds}


def _decoded(dataset: Any, folder: Path) -> InMemoryImages:
    """The images of a dataset in memory, from the pixels that are decoded already."""
    from suprank.data.cached_images import InMemoryImages

    images = InMemoryImages.__new__(InMemoryImages)
    vars(images).update(vars(dataset))
    rows = tuple(dataset.manifest.table["row"].to_pylist())
    images.pixels, images.broken = _training_pixels(folder, rows), {}
    images.shapes = np.full((len(rows), 2), SIDE)
    images._ends = np.cumsum(3 * images.shapes.prod(1))
    return images


@lru_cache(maxsize=4)
def _training_pixels(folder: Path, rows: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(_pixels(folder)[np.array(rows)].reshape(-1))


@lru_cache(maxsize=1)
def _pixels(folder: Path) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = np.load(folder / PIXELS, mmap_mode="r")
    return pixels


def _test(model: Path, folder: Path, point: Point) -> tuple[dict[str, float], dict[str, float] | None]:
    """Metrics of the test images in percent, and the gap on some of their classes; no gap if learning rates are compared."""
    import torch

    from suprank.data.transforms import Normalize
    from suprank.evaluation import evaluate
    from suprank.models import Embedder

    rows, labels, levels = _test_images(folder, *_tested(point))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    embedder = Embedder.load(model, device=device).eval()
    normalize = Normalize(embedder.input.mean, embedder.input.std)
    embeddings = []
    with torch.inference_mode():
        for start in range(0, len(rows), 2048):
            images = torch.from_numpy(_pixels(folder)[rows[start : start + 2048]]).to(device).permute(0, 3, 1, 2)
            embeddings.append(embedder(normalize(images)).float())
    table = torch.cat(embeddings)
    report = evaluate(table, labels, metrics=METRICS, levels=levels, device=device, progress=False)
    gap = None if point.study == "tuning" else _gap(table.cpu().numpy(), labels[:, 0], point.batch, device)
    return {name: 100 * report[name] for name in METRICS}, gap


def _is_held_out(point: Point) -> bool:
    """Whether a run compares learning rates, on a fourth of its training classes that are held out."""
    return point.study in ("rates", "tuning")


def _tested(point: Point) -> tuple[int | None, int | None]:
    """Of how many training classes those that are held out are tested, None for the test classes; and at most how many."""
    return point.classes if _is_held_out(point) else None, None if point.study in STEPS_STUDIES else TESTED_CLASSES


@lru_cache(maxsize=4)
def _test_images(
    folder: Path, held_out_of: int | None, most: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """Rows of the test images among the pixels, their labels, and the levels."""
    from suprank.data import Manifest

    whole = Manifest.read(folder / SPLIT)
    fine = whole.labels[:, 0]
    test_classes = np.unique(whole.split("test").labels[:, 0])
    classes = test_classes if held_out_of is None else _in_random_order(whole)[: held_out_of // 4]
    if most is not None and most < len(classes):
        classes = np.random.default_rng(0).choice(classes, most, replace=False)
    test = whole.take(np.isin(fine, classes))
    return np.array(test.table["row"].to_pylist()), test.labels, test.levels


def _gap(embeddings: NDArray[np.float32], fine: NDArray[np.int64], batch: int, device: str) -> dict[str, float]:
    """AP in batches of the size and composition of training, over all items, and the difference, on some test classes."""
    from suprank.evaluation import decomposability_gap

    generator = np.random.default_rng(0)
    classes = np.unique(fine)
    chosen = generator.choice(classes, min(GAP_CLASSES, len(classes)), replace=False)
    some = np.isin(fine, chosen)
    embeddings, fine = embeddings[some], fine[some]
    groups = [part for one in chosen for part in _in_fours(generator.permutation(np.flatnonzero(fine == one)))]
    order = np.concatenate([groups[place] for place in generator.permutation(len(groups))])
    parts = [order[start : start + batch] for start in range(0, len(order), batch)]
    found = decomposability_gap(embeddings, fine, parts, device=device, progress=False)
    return {"in batches": 100 * found.in_batches, "overall": 100 * found.overall, "gap": 100 * found.value}


def _in_fours(rows: np.ndarray) -> list[np.ndarray]:
    return [rows[start : start + PER_CLASS] for start in range(0, len(rows), PER_CLASS)]


# What the runs share, written before they start

SPLIT, PIXELS = "split.parquet", "pixels.npy"


def prepare(manifest: str, folder: Path, workers: int) -> int:
    """Write split and pixels of the images into the folder, unless they are there; return the number of training classes.

    The split has a quarter of the classes for testing; its column `row` is the place of an image among the pixels.
    """
    from suprank.data import Manifest, holdout_classes

    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / SPLIT).exists() and zipfile.is_zipfile(manifest):
        unpack(Path(manifest), folder)
    elif not (folder / SPLIT).exists():
        whole = holdout_classes(Manifest.read(manifest), TEST_SHARE, shared="script")
        np.save(folder / PIXELS, _decode(whole, workers))
        whole.with_columns(row=np.arange(len(whole))).save(folder / SPLIT)
    return len(np.unique(Manifest.read(folder / SPLIT).split("train").labels[:, 0]))


def pack(folder: Path, path: Path) -> None:
    """Write split and pixels of a prepared folder into one compressed file; the images have to be gray."""
    pixels = np.load(folder / PIXELS, mmap_mode="r")
    gray = np.ascontiguousarray(pixels[..., 0])
    if not all(np.array_equal(gray, pixels[..., channel]) for channel in (1, 2)):
        raise ValueError("only gray images are packed, and some of these have colors.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        file.write(folder / SPLIT, SPLIT)
        with file.open(PIXELS, "w") as member:
            np.save(member, gray)


def unpack(path: Path, folder: Path) -> None:
    """Write split and pixels from a file of `pack`."""
    with zipfile.ZipFile(path) as file:
        with file.open(PIXELS) as member:
            gray = np.load(member)
        np.save(folder / PIXELS, np.repeat(gray[..., None], 3, -1))
        file.extract(SPLIT, folder)


def _decode(manifest: Manifest, workers: int) -> NDArray[np.uint8]:
    """The pixels `[images, 32, 32, 3]`; a file with several images, each in its box, is decoded once."""
    from suprank.data.cached_images import InMemoryImages
    from suprank.data.datasets import ImageDataset

    paths, first, file = np.unique(manifest.paths.to_pylist(), return_index=True, return_inverse=True)
    decoded = InMemoryImages(ImageDataset(manifest.take(first), crop_boxes=False), workers=workers)
    ends = np.cumsum(3 * decoded.shapes.prod(1))
    sheets = [
        part.reshape(height, width, 3)
        for part, (height, width) in zip(np.split(decoded.pixels.numpy(), ends[:-1]), decoded.shapes, strict=True)
    ]
    boxes = manifest.table["box"].to_pylist() if "box" in manifest.table.column_names else [None] * len(manifest)
    pixels = np.empty((len(manifest), SIDE, SIDE, 3), np.uint8)
    for row, (place, box) in enumerate(zip(file, boxes, strict=True)):
        left, top, right, bottom = (0, 0, *sheets[place].shape[1::-1]) if box is None else map(int, box)
        image = sheets[place][top:bottom, left:right]
        if image.shape != pixels.shape[1:]:
            raise ValueError(f"{paths[place]} has an image of {right - left} × {bottom - top} pixels; draw with --size {SIDE}.")
        pixels[row] = image
    return pixels


def _in_random_order(whole: Manifest) -> NDArray[np.int64]:
    """The training classes, of which a run has the first, but without the first fourth of those if they are held out."""
    return np.random.default_rng(0).permutation(np.unique(whole.split("train").labels[:, 0]))


def train_manifest(folder: Path, point: Point) -> Path:
    """The file with the training images of a run: of some of the training classes, or of those that are not held out."""
    return folder / f"train-{point.classes}{'-not-held-out' * _is_held_out(point)}.parquet"


def write_train_manifests(folder: Path, points: Iterable[Point]) -> None:
    """Write the training images of these runs, unless they are there."""
    from suprank.data import Manifest

    for path, point in {train_manifest(folder, point): point for point in points}.items():
        if path.exists():
            continue
        whole = Manifest.read(folder / SPLIT)
        train = whole.split("train")
        order = _in_random_order(whole)
        classes = order[point.classes // 4 if _is_held_out(point) else 0 : point.classes]
        # Labels are numbers of the whole set, and a split has the same ones.
        train.take(np.isin(train.labels[:, 0], classes)).save(path)


# Figures and tables


def gains(rows: list[dict[str, Any]], along: str, method: str, metric: str = "mAP@R") -> dict[int, WelchDifference]:
    """What a method gains over Sup-AP at each batch size or number of classes (`along`), with intervals over seeds."""
    from suprank.experiments.tables import Statistic
    from suprank.paper.layout import welch

    found = {}
    for size in sorted({row[along] for row in rows}):
        with_term, without = (
            Statistic.from_shares([row[metric] / 100 for row in rows if (row[along], row["method"]) == (size, one)])
            for one in (method, "sup-ap")
        )
        assert with_term is not None
        assert without is not None
        found[size] = welch(with_term, without)
    return found


def draw(folder: Path) -> None:
    """The gain of both terms against batch size and number of classes, and below it the measured gap of Sup-AP."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    rows = {
        study: [json.loads(line) for line in (folder / f"{study}.jsonl").read_text().splitlines()]
        for study in ("batch", "classes")
    }
    rows["classes"] += [row for row in rows["batch"] if row["batch"] == 128]
    figure = Figure(figsize=(9.4, 5.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex="col", sharey="row", height_ratios=(3, 2))
    heads = {"batch": "batches of 16 to 1,024, 8,968 classes", "classes": "batches of 128, 560 to 8,968 classes"}
    looks = {"roadmap-pairs": ("L_DG (pairs)", "#0072b2", "o", 0.97), "roadmap": ("L*_DG (proxies)", "#d55e00", "s", 1.03)}
    for (study, head), (top, bottom) in zip(heads.items(), panels.T, strict=True):
        for method, (label, color, marker, shift) in looks.items():
            found = gains(rows[study], study, method)
            places = [shift * size for size in found]
            means = [one.difference for one in found.values()]
            widths = [one.high - one.difference for one in found.values()]
            top.errorbar(places, means, widths, color=color, marker=marker, capsize=3, linewidth=1.3, label=label)
        top.axhline(0, color="#777777", linewidth=0.8)
        top.set_title(head, fontsize=10)
        sizes = sorted({row[study] for row in rows[study]})
        for size in sizes:
            gaps = [row["gap"]["gap"] for row in rows[study] if (row[study], row["method"]) == (size, "sup-ap")]
            bottom.plot([size] * len(gaps), gaps, color="#333333", marker="_", linestyle="")
        means = [
            np.mean([row["gap"]["gap"] for row in rows[study] if (row[study], row["method"]) == (one, "sup-ap")])
            for one in sizes
        ]
        bottom.plot(sizes, means, color="#333333", linewidth=1.3)
        bottom.set_xscale("log", base=2)
        bottom.set_xticks(sizes)
        bottom.xaxis.set_minor_locator(NullLocator())
        bottom.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
        bottom.set_xlabel({"batch": "images in a batch", "classes": "training classes"}[study])
    panels[0, 0].set_ylabel("gain in mAP@R over Sup-AP,\npercent points")
    panels[1, 0].set_ylabel("gap of Sup-AP,\npoints of AP")
    panels[0, 0].legend(frameon=False, loc="upper left")
    title = "2,000 steps each, three seeds; 95 % intervals by Welch's t-test. Below: the measured decomposability gap"
    figure.suptitle(title, fontsize=10)
    figure.savefig(folder / "gain.png", dpi=130)


class Setting(NamedTuple):
    """A batch size and a number of training classes at equal images."""

    batch: int
    classes: int


class RelativeGain(NamedTuple):
    """What a method gains in percent of Sup-AP, and the half width of its 95 % interval; None with one seed."""

    percent: float
    half: float | None


def settings(rows: Sequence[dict[str, Any]]) -> list[Setting]:
    """The settings in which Sup-AP and another method are tested: of `images` and then of `sizes`, ascending."""
    tested = {
        study: {(row["batch"], row["classes"], row["method"]) for row in rows if row["study"] == study}
        for study in IMAGES_STUDIES
    }
    return [
        Setting(batch, classes)
        for several in tested.values()
        for batch, classes in sorted({(batch, classes) for batch, classes, _ in several})
        if {(batch, classes, "sup-ap")} < {one for one in several if one[:2] == (batch, classes)}
    ]


ALONG = ("images in a batch", "training classes")  # what is varied by `images` and by `sizes`


def groups(rows: Sequence[dict[str, Any]]) -> dict[str, list[Setting]]:
    """The settings that differ in the batch size only, and those that differ in the number of classes only, by `ALONG`."""
    all_settings = settings(rows)
    classes = max((row["classes"] for row in rows if row["study"] == "images"), default=0)
    sizes = sorted({one for one in all_settings if one.batch == SIZES_BATCH})
    found = {
        ALONG[0]: [one for one in all_settings if one.classes == classes],
        ALONG[1]: sizes if len(sizes) > 1 else [],
    }
    return {along: several for along, several in found.items() if several}


def values_at(rows: Iterable[dict[str, Any]], setting: Setting, method: str, metric: str = "mAP@R") -> list[Any]:
    """The values of a method's seeds in a setting, those of tuning left out."""
    return [
        row[metric]
        for row in rows
        if row["study"] in IMAGES_STUDIES and (row["batch"], row["classes"], row["method"]) == (*setting, method)
    ]


def relative_gain(with_term: Sequence[float], without: Sequence[float]) -> RelativeGain | None:
    """The increase from the mean of `without` to that of `with_term`; None if one of them has no values, or is 0.

    The interval is Welch's, by the delta method: the ratio of two means has the spread of with_term − ratio · without.
    """
    from suprank.experiments.tables import Statistic
    from suprank.paper.layout import welch

    if not with_term or not without or fmean(without) == 0:
        return None
    base = fmean(without)
    ratio = fmean(with_term) / base
    first = Statistic.from_shares([value / base for value in with_term])
    second = Statistic.from_shares([ratio * value / base for value in without])
    half = None
    if first is not None and second is not None and min(first.seeds, second.seeds) > 1:
        half = welch(first, second).high
    return RelativeGain(100 * (ratio - 1), half)


def mean_gap(rows: Iterable[dict[str, Any]], setting: Setting) -> float | None:
    """The gap of Sup-AP in a setting, over seeds; None if all runs hit a NaN."""
    gaps = [gap["gap"] for gap in values_at(rows, setting, "sup-ap", "gap") if gap is not None]
    return fmean(gaps) if gaps else None


def correlation(rows: Sequence[dict[str, Any]], several: Iterable[Setting], method: str) -> tuple[float, int] | None:
    """Spearman's correlation of the gap of Sup-AP and the relative gain of a method, and the number of settings.

    None with fewer than three.
    """
    from scipy import stats

    pairs = []
    for setting in several:
        gap = mean_gap(rows, setting)
        gain = relative_gain(values_at(rows, setting, method), values_at(rows, setting, "sup-ap"))
        if gap is not None and gain is not None:
            pairs.append((gap, gain.percent))
    return (float(stats.spearmanr(*zip(*pairs, strict=True)).statistic), len(pairs)) if len(pairs) > 2 else None


LOOKS = {"roadmap-pairs": ("L_DG (pairs)", "#0072b2", "o", 0.95), "roadmap": ("L*_DG (proxies)", "#d55e00", "s", 1.05)}


def draw_images(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The relative gain of both terms against batch size and number of classes at equal images, and the gap of Sup-AP."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    found = groups(rows)
    figure = Figure(figsize=(9.4, 6.0), layout="constrained")
    widths = [max(4, len(several)) for several in found.values()]
    panels = figure.subplots(
        2, len(found), squeeze=False, sharex="col", sharey="row", height_ratios=(3, 2), width_ratios=widths
    )
    for (along, several), (top, bottom) in zip(found.items(), panels.T, strict=True):
        by_batch = along == ALONG[0]
        places = {one: one.batch if by_batch else one.classes for one in several}
        for method, (label, color, marker, shift) in LOOKS.items():
            gains_of = {one: relative_gain(values_at(rows, one, method), values_at(rows, one, "sup-ap")) for one in several}
            present = {one: gain for one, gain in gains_of.items() if gain is not None}
            top.errorbar(
                [shift * places[one] for one in present],
                [gain.percent for gain in present.values()],
                [gain.half or 0 for gain in present.values()],
                **{"color": color, "marker": marker, "capsize": 3, "linewidth": 1.3, "label": label},
            )
        top.axhline(0, color="#777777", linewidth=0.8)
        top.set_title(f"{several[0].classes:,} training classes" if by_batch else f"batches of {SIZES_BATCH}", fontsize=10)
        gaps = {one: gap for one in several if (gap := mean_gap(rows, one)) is not None}
        bottom.plot([places[one] for one in gaps], list(gaps.values()), color="#333333", marker="o", linewidth=1.3)
        bottom.set_xscale("log", base=2)
        below = {one: f"{_steps(rows, one):,}" if by_batch else _batches_with_a_class(rows, one) for one in several}
        bottom.set_xticks(list(places.values()), [f"{place:,}\n{below[one]}" for one, place in places.items()])
        bottom.xaxis.set_minor_locator(NullLocator())
        bottom.set_xlabel(f"{along}\n(second line: {'steps' if by_batch else 'batches with a class'})")
        bottom.set_ylim(bottom=0)
        for panel in (top, bottom):
            panel.margins(x=0.1)
    panels[0, 0].set_ylabel("gain in mAP@R over Sup-AP,\npercent of Sup-AP")
    panels[1, 0].set_ylabel("gap of Sup-AP,\npoints of AP")
    panels[0, 0].legend(frameon=False)
    title = f"{about(rows)}; 95 % intervals. Below: the measured decomposability gap"
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)


def about(rows: Sequence[dict[str, Any]]) -> str:
    """How many images a run sees, and the number of seeds of a method in a setting."""
    seen = max(row["steps"] * row["batch"] for row in rows if row["study"] in IMAGES_STUDIES)
    counts = [len(found) for one in settings(rows) for method in METHODS if (found := values_at(rows, one, method))]
    seeds = str(max(counts)) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    return f"{seen:,} images seen by each run, {seeds} seeds"


def _steps(rows: Iterable[dict[str, Any]], setting: Setting) -> int:
    return next(iter(values_at(rows, setting, "sup-ap", "steps")))


def _batches_with_a_class(rows: Iterable[dict[str, Any]], setting: Setting) -> str:
    number = _steps(rows, setting) * setting.batch / PER_CLASS / setting.classes
    return f"{number:.1f}" if number < 10 else f"{number:,.0f}"


def table(rows: Sequence[dict[str, Any]], several: Iterable[Setting]) -> str:
    """mAP@R at equal images in Markdown, in percent, with a row per setting; ± is the half width of a 95 % interval."""
    lines = [
        "| batch | classes | batch / images | steps | batches with a class | Sup-AP | with L_DG | with L*_DG | L_DG adds, % "
        "| L*_DG adds, % | gap of Sup-AP |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in several:
        images = next(iter(values_at(rows, one, "sup-ap", "images")))
        by_method = {method: values_at(rows, one, method) for method in METHODS}
        gap = mean_gap(rows, one)
        cells = [
            f"{one.batch:,}",
            f"{one.classes:,}",
            f"1 / {round(images / one.batch):,}",
            f"{_steps(rows, one):,}",
            _batches_with_a_class(rows, one),
            *(f"{fmean(values):.1f}" if values else "" for values in by_method.values()),
            *(_text(relative_gain(by_method[method], by_method["sup-ap"])) for method in METHODS[1:]),
            "" if gap is None else f"{gap:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _text(gain: RelativeGain | None) -> str:
    if gain is None:
        return ""
    half = "" if gain.half is None else f" ± {gain.half:.1f}"
    return f"{gain.percent:.1f}{half}".replace("-", "−")


def rates_table(rows: Sequence[dict[str, Any]]) -> str:
    """The learning rates in Markdown, if one is the lowest or highest of the three, and its mAP@R on classes held out."""
    lines = [
        "| batch | steps compared | of a run | rate of Sup-AP | of L_DG | of L*_DG | held out: Sup-AP | L_DG | L*_DG |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    tested = [row for row in rows if row["study"] in IMAGES_STUDIES]
    for batch in sorted({row["batch"] for row in tested}):
        compared = [row for row in rows if (row["study"], row["batch"]) == ("tuning", batch)]
        here = [row for row in tested if row["batch"] == batch]
        rates, values = [], []
        for method in METHODS:
            lr = next((row["lr"] for row in here if row["method"] == method), None)
            by_rate = {row["lr"]: row["mAP@R"] for row in compared if row["method"] == method}
            end = {min(by_rate): " (lowest)", max(by_rate): " (highest)"}.get(lr, "") if by_rate else ""
            rates.append("" if lr is None else f"{learning_rate(batch, lr):.2g}{end}")
            values.append(f"{by_rate[lr]:.1f}" if lr in by_rate else "")
        steps = [", ".join(f"{one:,}" for one in sorted({row["steps"] for row in some})) for some in (compared, here)]
        lines.append(f"| {batch:,} | {' | '.join([*steps, *rates, *values])} |")
    return "\n".join(lines) + "\n"


def correlations(rows: Sequence[dict[str, Any]]) -> str:
    """Whether the gap orders the gains: a sentence on the batch sizes, and one on all settings."""
    lines = []
    for name, several in {"batch sizes": groups(rows).get(ALONG[0], []), "settings": settings(rows)}.items():
        found = {
            label: correlation(rows, several, method) for method, label in (("roadmap-pairs", "L_DG"), ("roadmap", "L*_DG"))
        }
        values = {label: one for label, one in found.items() if one is not None}
        if values:
            count = max(number for _, number in values.values())
            text = ", ".join(f"{value:.2f} for {label}".replace("-", "−") for label, (value, _) in values.items())
            lines.append(
                f"Spearman's rank correlation of the gap of Sup-AP and the relative gain, over {count} {name}: {text}.\n"
            )
    return "".join(lines)


def tables(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What stands between the markers of docs/decomposability.md, by the name of the marker."""
    found = groups(rows)
    names = dict(zip(ALONG, IMAGES_STUDIES, strict=True))
    written = {name: table(rows, found[along]) if along in found else "" for along, name in names.items()}
    return {**written, "rates": rates_table(rows), "correlation": correlations(rows)}


# Running


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a results file; none if there is no such file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _point_of(row: dict[str, Any]) -> Point:
    fields = {name: row[name] for name in Point.__dataclass_fields__}
    return Point(**{**fields, "overrides": tuple(fields["overrides"])})


class Schedule:
    """Which run is next: the most important of those that can start, are not done, and would end in time."""

    def __init__(self, arguments: argparse.Namespace, classes: int) -> None:
        self.arguments, self.classes = arguments, classes
        self.rows = read_rows(arguments.out)
        self.begun = {_point_of(row) for row in self.rows}
        self.new: list[dict[str, Any]] = []  # rows of this machine, by which the time of a run is estimated

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.new.append(row)

    def waiting(self) -> list[Point]:
        """The runs that can start and have not."""
        studies = [study for study in self.arguments.study if study in IMAGES_STUDIES]
        points = [
            point
            for study in self.arguments.study
            if study in STEPS_STUDIES
            for point in steps_points(study, self.classes, self.arguments)
        ]
        if studies:
            points += tuning_points(studies, self.classes, self.arguments)
            points += tested_points(studies, self.classes, self.arguments, self.rows)
        return [point for point in points if point not in self.begun]

    def next(self, seconds_left: float) -> Point | None:
        """The run to start now, if there is one that would end in time."""
        chosen = next((point for point in sorted(self.waiting(), key=self._rank) if self.seconds(point) <= seconds_left), None)
        if chosen is not None:
            self.begun.add(chosen)
        return chosen

    def _rank(self, point: Point) -> tuple[int, int, int]:
        """Batch sizes before numbers of classes, L_DG last but for those, then the longest.

        A run that compares learning rates is as long as itself and a run that waits for it.
        """
        only_sizes = point.study == "sizes" or "images" not in self.arguments.study
        path = point.steps + (self.arguments.images // point.batch if point.study == "tuning" else 0)
        return int(only_sizes), int(point.method == "roadmap-pairs"), -path

    def seconds(self, point: Point) -> float:
        """How long a run takes: the shortest so far, and the time of its steps, at this batch size if known; 0 at first."""
        if not self.new:
            return 0.0
        start = min(row["seconds"] for row in self.new)
        alike = [row for row in self.new if row["batch"] == point.batch] or self.new
        return start + point.steps * max((row["seconds"] - start) / row["steps"] for row in alike)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("manifest", nargs="?", help="or a file that --pack wrote")
    parser.add_argument("--study", nargs="+", choices=(*STEPS_STUDIES, *IMAGES_STUDIES))
    parser.add_argument("--steps", type=int, default=2000, help="of the studies at equal steps")
    parser.add_argument("--images", type=int, default=384_000, help="that every run sees, in the studies at equal images")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="of the study images")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=8, help="runs at a time")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds; runs that would end later are not started")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/decomposability"), help="for decoded images and runs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pack", type=Path, metavar="FILE", help="train nothing; write the split and the decoded images")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="train nothing; draw the files in DIR: gain.png, images.png")
    parser.add_argument("--table", type=Path, metavar="DIR", help="train nothing; print DIR/images.jsonl as Markdown tables")
    parser.add_argument("--write", action="store_true", help="train nothing; write the tables of docs/decomposability.md")
    parser.add_argument("--check", action="store_true", help="train nothing; exit with 1 if the page has other tables")
    arguments = parser.parse_args()
    if arguments.write or arguments.check:
        pages.update(PAGE, tables(read_rows(FOLDER / "images.jsonl")), check=arguments.check)
        return
    if arguments.plot or arguments.table:
        if arguments.plot and (arguments.plot / "batch.jsonl").exists():
            draw(arguments.plot)
        rows = read_rows((arguments.plot or arguments.table) / "images.jsonl")
        if groups(rows):
            if arguments.plot:
                draw_images(rows, arguments.plot / "images.png")
            if arguments.table:
                print(f"{about(rows)}.", *tables(rows).values(), sep="\n\n")
        return
    if arguments.pack and arguments.manifest:
        prepare(arguments.manifest, arguments.folder, arguments.jobs)
        pack(arguments.folder, arguments.pack)
        return
    if None in (arguments.manifest, arguments.study, arguments.out):
        parser.error("give a manifest and --pack, or a manifest, --study and --out, or --plot, --table, --write or --check")
    run_all(arguments)


def run_all(arguments: argparse.Namespace) -> None:
    """Train what the results file does not have yet, `--jobs` runs at a time."""
    start = time.monotonic()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers, each of which has a core at most
    classes = prepare(arguments.manifest, arguments.folder, arguments.jobs)
    schedule = Schedule(arguments, classes)
    print(f"{time.monotonic() - start:.0f} s: {len(schedule.waiting())} runs can start, {len(schedule.rows)} done", flush=True)
    context = multiprocessing.get_context("spawn")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool:
        running: set[Future[dict[str, Any]]] = set()
        while True:
            while len(running) < arguments.jobs:
                point = schedule.next(arguments.limit - (time.monotonic() - start))
                if point is None:
                    break
                write_train_manifests(arguments.folder, [point])
                running.add(pool.submit(train_point, point, arguments.folder))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    row = future.result()
                except Exception as error:  # the others go on; a run that failed is repeated by the next call
                    print(f"a run failed: {error!r}", flush=True)
                    continue
                schedule.add(row)
                with arguments.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                gap = "" if row["gap"] is None else f", gap {row['gap']['gap']:.1f}"
                about = " ".join(str(row[name]) for name in ("study", "method", "batch", "classes", "lr"))
                found = f"{row['mAP@R']:.2f} mAP@R{gap}, {row['seconds']} s"
                print(f"{time.monotonic() - start:.0f} s: {about}: {found}", flush=True)
    print(f"{time.monotonic() - start:.0f} s: {len(schedule.waiting())} runs left", flush=True)


if __name__ == "__main__":
    main()
