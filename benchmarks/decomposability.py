"""What the decomposability loss gains as batches get small beside the dataset, and whether the measured gap foretells it.

    suprank data import glyphs --installed-fonts --every-letter --max-characters 12000 --max-drawings 12 --size 32 \\
        --out many.parquet
    python benchmarks/decomposability.py many.parquet --study batch --out benchmarks/results/h200/decomposability/batch.jsonl
    python benchmarks/decomposability.py --plot benchmarks/results/h200/decomposability     # draws gain.png there

A quarter of the characters is for testing. The studies:

    rates     learning rates, tested on training classes that are held out
    batch     batches of 16 to 1,024, with all training classes
    classes   batches of 128, with a sixteenth of the training classes to all
    large     batches of 2,048 to 8,192, and a memory of all training images

Every run of a study has equally many steps, those of large batches a quarter. A line of the result is a run: what was trained,
its metrics on the test classes in percent, and the decomposability gap of its test embeddings in batches of its size. Runs that
the file has already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from suprank.paper.layout import WelchDifference

METHODS = ("sup-ap", "roadmap-pairs", "roadmap")  # without, with L_DG, with L*_DG
METRICS = ("AP", "mAP@R", "R@1", "H-AP")
GAP_CLASSES = 500  # test classes among which the gap is measured
PER_CLASS = 4
RATES = {"sup-ap": 4e-3, "roadmap-pairs": 4e-3, "roadmap": 2e-3}  # at batches of 64: the best of `rates`, over both batch sizes
TEST_SHARE = 0.25


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


def points(study: str, classes: int, arguments: argparse.Namespace) -> list[Point]:
    """The runs of a study, the longest first."""
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


def train_point(point: Point, manifest: str, folder: Path) -> dict[str, Any]:
    """Train and measure; in a process of its own."""
    import torch

    from suprank.training import read_recipe, train

    torch.set_num_threads(1)
    run = folder / f"{abs(hash(point)):016x}"
    shutil.rmtree(run, ignore_errors=True)
    lr = learning_rate(point.batch, point.lr)
    overrides = [
        f'data.manifest="{_classes_manifest(manifest, point, folder)}"',
        *("data.crop_on_device=true", "data.cache_images=true", "data.workers=1"),
        *("images.size=32", "images.test_resize=32", 'model.backbone="resnet10t"', "engine.precision=bf16"),
        *(f"batch.size={point.batch}", f"batch.images_per_class={PER_CLASS}", f"batch.batches={point.steps}"),
        *("run.epochs=1", f"run.seed={point.seed}", f"optimizer.lr={lr}", "optimizer.warmup_epochs=0.1"),
        *("evaluation.at_start=false", f"evaluation.metrics={json.dumps(list(METRICS))}", "evaluation.batch_size=512"),
        *point.overrides,
    ]
    start = time.monotonic()
    result = train(read_recipe(f"glyphs/{point.method}", overrides), run)
    seconds = time.monotonic() - start
    values = {name: 100 * result.reports["test"][name] for name in METRICS}
    row = {**asdict(point), **values, "gap": _gap(run / "model", manifest, point), "seconds": round(seconds, 1)}
    shutil.rmtree(run)
    return row


def _classes_manifest(manifest: str, point: Point, folder: Path) -> str:
    """A manifest with some of the training classes, the same for all runs; for `rates`, with others of them as test classes."""
    from suprank.data import Manifest

    whole = Manifest.read(manifest)
    train = whole.split("train")
    classes = np.unique(train.labels[:, 0])
    if point.study != "rates" and point.classes == len(classes):
        return manifest
    path = folder / f"{point.study == 'rates'}-{point.classes}.parquet"
    if not path.exists():
        order = np.random.default_rng(0).permutation(classes)
        if point.study == "rates":
            held_out = np.isin(train.labels[:, 0], order[: len(classes) // 4])
            chosen = train.with_columns(split=np.where(held_out, "test", "train"))
        else:
            split = np.array(whole.table["split"].to_pylist())
            chosen = whole.take((split == "test") | np.isin(whole.labels[:, 0], order[: point.classes]))
        temporary = path.with_name(f"{time.monotonic_ns()}.parquet")
        chosen.save(temporary)
        temporary.replace(path)
    return str(path)


def _gap(model: Path, manifest: str, point: Point) -> dict[str, float]:
    """AP in batches of the size and composition of training, over all items, and the difference, on some test classes."""
    import torch

    from suprank.data import Manifest
    from suprank.embedding.image_loading import ImageLoaderSettings
    from suprank.evaluation import decomposability_gap
    from suprank.models import Embedder
    from suprank.models.inference import embed

    test = Manifest.read(manifest).split("test")
    generator = np.random.default_rng(0)
    chosen = generator.choice(np.unique(test.labels[:, 0]), GAP_CLASSES, replace=False)
    test = test.take(np.isin(test.labels[:, 0], chosen))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    embedder = Embedder.load(model, device=device)
    loading = ImageLoaderSettings.for_model(embedder, batch_size=512, workers=0)
    batches = loading.batches(test, np.arange(len(test)), pinned=False)
    embeddings = np.concatenate([rows for _, rows in embed(embedder, batches, device=device, forward=loading.before(embedder))])
    fine = test.labels[:, 0]
    groups = [part for one in chosen for part in _in_fours(generator.permutation(np.flatnonzero(fine == one)))]
    order = np.concatenate([groups[place] for place in generator.permutation(len(groups))])
    parts = [order[start : start + point.batch] for start in range(0, len(order), point.batch)]
    found = decomposability_gap(embeddings, fine, parts, device=device, progress=False)
    return {"in batches": 100 * found.in_batches, "overall": 100 * found.overall, "gap": 100 * found.value}


def _in_fours(rows: np.ndarray) -> list[np.ndarray]:
    return [rows[start : start + PER_CLASS] for start in range(0, len(rows), PER_CLASS)]


def _split(manifest: str, path: Path) -> tuple[str, int]:
    """The manifest with a quarter of the classes for testing, saved; and the number of training classes."""
    from suprank.data import Manifest, holdout_classes

    whole = holdout_classes(Manifest.read(manifest), TEST_SHARE, shared="script")
    whole.save(path)
    return str(path), len(np.unique(whole.split("train").labels[:, 0]))


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


def _point_of(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in Point.__dataclass_fields__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("manifest", nargs="?")
    parser.add_argument("--study", choices=("rates", "batch", "classes", "large"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no run is started")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/decomposability"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, metavar="DIR", help="train nothing; draw gain.png of the files in DIR")
    arguments = parser.parse_args()
    if arguments.plot:
        draw(arguments.plot)
        return
    if None in (arguments.manifest, arguments.study, arguments.out):
        parser.error("give a manifest, --study and --out, or --plot")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    manifest, classes = _split(arguments.manifest, arguments.folder / "split.parquet")
    wanted = points(arguments.study, classes, arguments)
    done = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    left = [point for point in wanted if json.loads(json.dumps(asdict(point))) not in [_point_of(row) for row in done]]
    print(f"{len(left)} of {len(wanted)} runs to train", flush=True)
    start = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool:
        futures = []
        for point in left:
            futures.append(pool.submit(train_point, point, manifest, arguments.folder))
        for future in as_completed(futures):
            if future.cancelled():
                continue
            row = future.result()
            with arguments.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            took = f"{row['AP']:.2f} AP, gap {row['gap']['gap']:.1f}, {row['seconds']} s"
            print(
                f"{time.monotonic() - start:.0f} s: {row['method']} {row['batch']} {row['classes']} {row['lr']}: {took}",
                flush=True,
            )
            if time.monotonic() - start > arguments.limit:
                for other in futures:
                    other.cancel()


if __name__ == "__main__":
    main()
