"""Fine-tune networks on a pack of photographs that stays on one GPU, several runs side by side.

    python benchmarks/photographs.py unpack cub.zip --to photos                # images, and a manifest for each set of classes
    python benchmarks/photographs.py add queue < jobs.txt                      # one job a line, see below
    python benchmarks/photographs.py work photos queue results --workers 3     # until the queue is empty, or longer: --minutes
    python benchmarks/photographs.py table results                             # what is there, best first

A job is a line `NAME RECIPE CLASSES [KEY=VALUE ...]`: the name of its results file, a recipe, `validation` or `test`, and
overrides of the recipe. With `validation` the first two thirds of the training classes are trained on and the others ranked;
no test image is read. With `test` all training classes are trained on, and the test classes are ranked at the end. Jobs are
taken in the order of their names, and may be added while others run. What a run measured is written when it ends: metrics, and
for `test` also the values of every query with ids and labels of all levels. A job whose results are there is not run again,
and one that failed leaves its error there.

`SUPRANK_COMMIT` says of which commit the code is, where git cannot.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suprank.evaluation import Report
    from suprank.training.config import TrainConfig

ROOT = Path(__file__).parents[1]
TRAINED_SHARE = 2 / 3  # of the training classes, where the others are for validation
COLUMNS = ("R@1", "mAP@R", "H-AP")
KEPT = ("R@1", "R@2", "R@4", "R@8", "mAP@R", "AP", "H-AP", "NDCG", "ASI")  # of every query; AP at all levels
MANIFESTS = {"validation": "validation.parquet", "test": "all.parquet"}


class Job(NamedTuple):
    name: str
    recipe: str
    classes: str
    overrides: tuple[str, ...]

    @classmethod
    def from_line(cls, line: str) -> Job:
        name, recipe, classes, *overrides = line.split()
        if classes not in MANIFESTS:
            raise ValueError(f"{name}: {classes!r} must be validation or test")
        return cls(name, recipe, classes, tuple(overrides))

    @property
    def line(self) -> str:
        return " ".join((self.name, self.recipe, self.classes, *self.overrides))


def unpack(packs: list[Path], folder: Path) -> None:
    """Extract the packs, and write the manifests; the second of two packs with one table may come later."""
    import csv

    from suprank.data import Manifest

    folder.mkdir(parents=True, exist_ok=True)
    for pack in packs:
        with zipfile.ZipFile(pack) as archive:
            archive.extractall(folder)
    with (folder / "manifest.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (folder / row["path"]).exists()]
    columns = ["path", "split", *[name for name in rows[0] if name.startswith("label_")]]
    _write_table(folder / "all.csv", columns, rows)
    training = [row for row in rows if row["split"] == "train"]
    finest = columns[2]
    classes = sorted({row[finest] for row in training}, key=[row[finest] for row in training].index)
    trained = set(classes[: round(TRAINED_SHARE * len(classes))])
    validation = [{**row, "split": "train" if row[finest] in trained else "test"} for row in training]
    _write_table(folder / "validation.csv", columns, validation)
    for name in ("all", "validation"):
        manifest = Manifest.read(folder / f"{name}.csv", root=folder)
        manifest.save(folder / f"{name}.parquet")
        print(f"{name}: {len(manifest):,} images, {', '.join(manifest.splits)}")


def _write_table(file: Path, columns: list[str], rows: list[dict[str, str]]) -> None:
    import csv

    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def add(queue: Path, lines: list[str]) -> None:
    queue.mkdir(parents=True, exist_ok=True)
    jobs = [Job.from_line(line) for line in lines if line.strip() and not line.startswith("#")]
    for job in jobs:
        (queue / job.name).write_text(job.line + "\n", encoding="utf-8")
    print(f"{len(jobs)} jobs added")


def work(photos: Path, queue: Path, results: Path, workers: int, minutes: float) -> None:
    """Run the jobs of the queue in processes that take one after the other."""
    results.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")  # each initializes CUDA by itself
    until = time.time() + 60 * minutes
    processes = [context.Process(target=_work, args=(photos, queue, results, until, number)) for number in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _work(photos: Path, queue: Path, results: Path, until: float, number: int) -> None:
    import torch

    torch.backends.cudnn.benchmark = True  # all batches have one shape
    time.sleep(3 * number)  # the first decodes the images for all
    while True:
        job = _next_job(queue, results)
        if job is not None:
            _run(job, photos, results)
        elif time.time() > until:
            return
        else:
            time.sleep(0.5)


def _next_job(queue: Path, results: Path) -> Job | None:
    """The first job of the queue, which no other process has then."""
    for file in sorted(queue.glob("[!.]*")):
        claimed = queue / f".{file.name}"
        try:
            file.rename(claimed)
        except FileNotFoundError:
            continue
        job = Job.from_line(claimed.read_text(encoding="utf-8"))
        if not (results / f"{job.name}.json").exists():
            return job
    return None


def _run(job: Job, photos: Path, results: Path) -> None:
    import torch

    start = time.monotonic()
    record: dict[str, Any] = {
        "job": job.line,
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
    }
    try:
        record |= _measure(job, photos, results)
    except Exception as error:  # a bad setting fails its own job only
        record["error"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    record["seconds"] = round(time.monotonic() - start, 1)
    draft = results / f".{job.name}"
    draft.write_text(json.dumps(record, indent=1), encoding="utf-8")
    draft.rename(results / f"{job.name}.json")
    shown = record.get("error", record.get("metrics"))
    print(f"{job.name}: {shown if isinstance(shown, str) else _row(shown)}, {record['seconds']:.0f} s", flush=True)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _measure(job: Job, photos: Path, results: Path) -> dict[str, Any]:
    import suprank
    from suprank.training.recipe import read_recipe

    config: TrainConfig = read_recipe(
        job.recipe,
        [
            f"data.manifest={photos / MANIFESTS[job.classes]}",
            *("data.crop_on_device=true", "data.cache_images=true", f"data.cache_folder={photos / 'decoded'}"),
            *("images.test_resize=0", "logging.tensorboard=false", "checkpoint.minutes=1000"),
            *job.overrides,
        ],
    )
    curve: dict[int, dict[str, float]] = {}
    speed: list[float] = []
    runs = Path(os.environ.get("SUPRANK_RUNS", "/tmp/photograph-runs"))
    result = suprank.train(config, runs / job.name, callbacks=_watch(curve, speed))
    report = next(iter(result.reports.values()))
    if job.classes == "test":
        _save_values(report, results / f"{job.name}.npz")
    return {"metrics": dict(report), "curve": curve, "images a second": round(median(speed))}


def _watch(curve: dict[int, dict[str, float]], speed: list[float]) -> Any:
    from suprank.training.callbacks import Callback, StepValues

    class Watch(Callback):
        """Keeps the metrics of every evaluation, and the speed."""

        def on_step_end(self, step: StepValues) -> None:
            speed.append(step.images_per_second)

        def on_evaluation_end(self, epoch: int, reports: Mapping[str, Report]) -> None:
            values = next(iter(reports.values()))
            curve[epoch] = {name: values[name] for name in COLUMNS if name in values}

    return Watch()


def _save_values(report: Report, file: Path) -> None:
    """The values of every query, float32, with its id, which is its path, and its class at every level."""
    import numpy as np

    kept = {name: column for name, column in (report.per_query or {}).items() if name in KEPT or name.startswith("AP/")}
    columns = {f"value:{name}": column.astype(np.float32) for name, column in kept.items()}
    columns |= {f"class:{level}": column for level, column in (report.classes or {}).items()}
    np.savez_compressed(file, ids=np.asarray(report.query_ids), **columns)


def _commit() -> str:
    known = os.environ.get("SUPRANK_COMMIT")
    return known or subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def _row(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * metrics[name]:.2f}" for name in COLUMNS if name in metrics)


def table(results: Path) -> None:
    """What is there: a row a run, the best R@1 first."""
    records = [(file.stem, json.loads(file.read_text(encoding="utf-8"))) for file in sorted(results.glob("[!.]*.json"))]
    for name, record in sorted(records, key=lambda one: -one[1].get("metrics", {}).get("R@1", 0)):
        if "error" in record:
            print(f"{name:24} {record['error'][:150]}")
            continue
        curve = " ".join(f"{100 * values['R@1']:.1f}" for values in record["curve"].values())
        cost = f"{record['images a second']} images a second, {record['seconds']:.0f} s"
        print(f"{name:24} {_row(record['metrics'])}  [{curve}]  {cost}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("unpack")
    one.add_argument("packs", type=Path, nargs="+")
    one.add_argument("--to", type=Path, required=True)
    verbs.add_parser("add").add_argument("queue", type=Path)
    one = verbs.add_parser("work")
    for name in ("photos", "queue", "results"):
        one.add_argument(name, type=Path)
    one.add_argument("--workers", type=int, default=3)
    one.add_argument("--minutes", type=float, default=0, help="wait so long for further jobs")
    verbs.add_parser("table").add_argument("results", type=Path)
    given = parser.parse_args()
    match given.verb:
        case "unpack":
            unpack(given.packs, given.to)
        case "add":
            add(given.queue, sys.stdin.read().splitlines())
        case "work":
            work(given.photos.absolute(), given.queue, given.results, given.workers, given.minutes)
        case "table":
            table(given.results)


if __name__ == "__main__":
    main()
