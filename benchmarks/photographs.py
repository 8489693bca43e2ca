"""Fine-tune networks on a pack of photographs that stays on one GPU, several runs side by side.

    python benchmarks/photographs.py unpack cub.zip --to photos                # images, and a manifest for each set of classes
    python benchmarks/photographs.py jobs factors | python benchmarks/photographs.py add queue
    python benchmarks/photographs.py work photos queue results --workers 4 --backbone weights/resnet50_v1.py
    python benchmarks/photographs.py table results                             # what is there, best first
    python benchmarks/photographs.py collect results cub                       # keep it in benchmarks/results/photographs
    python benchmarks/photographs.py page                                      # the tables of docs/results.md; --check compares

A job is a line `NAME RECIPE CLASSES [KEY=VALUE ...]`: the name of its results file, a recipe, `validation` or `test`, and
overrides of the recipe. With `validation` the first two thirds of the training classes are trained on and the others ranked;
no test image is read. With `test` all training classes are trained on, and the test classes are ranked at the end. Jobs are
taken in the order of their names, and may be added while others run. What a run measured is written when it ends: metrics, and
for `test` also the values of every query with ids and labels of all levels. A job whose results are there is not run again,
and one that failed leaves its error there. `jobs` writes the lines of the runs of docs/results.md.

The backbone is a file whose `build()` returns ResNet-50 with Keras's weights; its training is compiled by torch.compile, which
makes a step on an H200 about twice as fast, and takes most of the first minute. `SUPRANK_COMMIT` says of which commit the code
is, where git cannot.
"""

from __future__ import annotations

import argparse
import csv
import gc
import importlib.util
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import traceback
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from suprank.evaluation import Report
    from suprank.training.config import TrainConfig

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "results.md", ROOT / "benchmarks" / "results" / "photographs"
BACKBONE = "SUPRANK_BACKBONE"  # the environment variable that names the file of the backbone
COLORS = ("model.mean=[0.48502,0.45796,0.40760]", "model.std=[0.00392157,0.00392157,0.00392157]")  # Keras's: no division
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


# Jobs


METHODS = (  # of the table of docs/results.md, but for ROADMAP
    *("nsm", "proxy-anchor", "multi-similarity", "supcon", "smooth-ap", "smooth-recall", "fast-ap", "sup-ap", "rod-recall"),
    *("happier", "rod-ndcg", "csl"),
)
CROPS = "images.crop_scale=[0.36,1.0]"
FACTORS = {  # what the second of two values is, and both; rates are in `factor_jobs`
    "maximum in place of GeM": ("model.pooling=gem", "model.pooling=max"),
    "no LayerNorm": ("model.normalization=layer", "model.normalization=none"),
    "a memory of all images": ("", "memory.size=all memory.per_item=true memory.start_epoch=2 memory.weight=0.5"),
    "crops from 36 % of the area, not 16 %": ("images.crop_scale=[0.16,1.0]", CROPS),
    "rate 2e-5, not 1e-5": ("", ""),
    "rate of the head 10 ×, not 2 ×": ("", ""),
    "no weight decay": ("optimizer.weight_decay=4e-4", "optimizer.weight_decay=0.0"),
    "batches of 128 at half the rate": ("batch.size=256", "batch.size=128"),
    "BatchNorm trained": ("model.freeze_batchnorm=true", "model.freeze_batchnorm=false"),
    "one epoch of head and proxies alone first": ("run.frozen_epochs=0", "run.frozen_epochs=1"),
    "λ = 0.3, not 0.1": ("loss.weight=0.1", "loss.weight=0.3"),
}
_PLACKETT_BURMAN = (1, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0)
CHANGES = {  # of ROADMAP in 12 epochs of rate 2e-5: the runs of each
    "as it is": ("11-r2-12", "30-base-s1", "30-base-s2"),
    "crops from 36 % of the area": ("31-crop36", "31-crop36-s1"),
    "rate of the head 10 ×": ("31-head10", "31-head10-s1"),
    "average and maximum": ("31-avgmax",),
    "maximum": ("31-max",),
    "λ = 0.01": ("31-lam0",),
    "no weight decay": ("31-wd0",),
    "AdamW, decay 0.05": ("32-adamw",),
    "batches of 128, rate 1.4e-5": ("31-b128",),
    "rate of the head 4 ×, of proxies 0.01": ("32-r2-12-h4-proxies",),
    "20 epochs of 1.4e-5, head 4 ×": ("32-r1.4-20",),
    "36 epochs of 1e-5": ("10-r1-36",),
    "36 epochs of 3e-5": ("10-r3-36",),
    "rate 4e-5": ("11-r4-12",),
    "rate 8e-5": ("11-r8-12",),
}


def _job(name: str, *overrides: str, recipe: str = "cub/roadmap", classes: str = "validation") -> Job:
    memory = any(one.startswith("memory.") for one in overrides)
    return Job(name, recipe, classes, (*overrides, *(() if memory or recipe != "cub/roadmap" else ("memory=",))))


def _rates(rate: float, head: float = 2) -> tuple[str, str]:
    return f"optimizer.lr={rate:g}", f"optimizer.head_lr={rate * head:g}"


def rate_jobs() -> Iterator[Job]:
    """Rates and epochs of ROADMAP."""
    for rate in (3, 1):
        yield _job(f"10-r{rate}-36", "run.epochs=36", *_rates(rate * 1e-5))
    for rate in (2, 4, 8):
        yield _job(f"11-r{rate}-12", "run.epochs=12", *_rates(rate * 1e-5))


def factor_jobs() -> Iterator[Job]:
    """Plackett and Burman's design of 12 runs for 11 settings, and its mirror image: no pair of settings disturbs a third."""
    rows = [[_PLACKETT_BURMAN[(column - row) % 11] for column in range(11)] for row in range(11)] + [[0] * 11]
    for number, row in enumerate(rows + [[1 - value for value in row] for row in rows]):
        chosen = " ".join(levels[value] for levels, value in zip(FACTORS.values(), row, strict=True)).split()
        rate = 1e-5 * (2 if row[4] else 1) * (0.5 if row[7] else 1)
        name = f"20-{number:02d}-{''.join(map(str, row))}"
        yield _job(name, "run.epochs=12", *chosen, *_rates(rate, 10 if row[5] else 2))


def change_jobs() -> Iterator[Job]:
    """One change at a time of ROADMAP in 12 epochs."""
    overrides: dict[str, tuple[str, ...]] = {
        "30-base": (),
        "31-head10": _rates(2e-5, 10),
        "31-crop36": (CROPS,),
        "31-avgmax": ("model.pooling=avg+max",),
        "31-max": ("model.pooling=max",),
        "31-b128": ("batch.size=128", *_rates(1.4e-5)),
        "31-lam0": ("loss.weight=0.01",),
        "31-wd0": ("optimizer.weight_decay=0.0",),
        "32-adamw": ("optimizer.name=adamw", "optimizer.weight_decay=0.05"),
        "32-r1.4-20": ("run.epochs=20", *_rates(1.4e-5, 4)),
        "32-r2-12-h4-proxies": (*_rates(2e-5, 4), "proxies.lr=0.01", "proxies.min_lr=0"),
    }
    for name in (name for names in CHANGES.values() for name in names if name[0] == "3"):
        base, _, seed = name.partition("-s")
        seeds = (f"run.seed={seed}",) if seed else ()
        yield _job(name, "run.epochs=12", *_rates(2e-5), *overrides[base], *seeds)


def method_jobs() -> Iterator[Job]:
    """Every method with three rates."""
    for place, rate in enumerate((2, 4, 1)):
        for method in ("roadmap", *METHODS):
            overrides = ("run.epochs=12", CROPS, *_rates(rate * 1e-5))
            yield _job(f"5{place}-{method}-r{rate}", *overrides, recipe=f"cub/{method}")


def final_jobs() -> Iterator[Job]:
    """ROADMAP with what was chosen, on the test classes."""
    for seed in range(3):
        overrides = ("run.epochs=16", CROPS, *_rates(2e-5), f"run.seed={seed}")
        yield _job(f"40-roadmap-s{seed}", *overrides, classes="test")


STAGES = {"rates": rate_jobs, "factors": factor_jobs, "changes": change_jobs, "final": final_jobs, "methods": method_jobs}


# Runs


def compiled_backbone() -> Any:
    """The network of the file in SUPRANK_BACKBONE, whose training on a GPU is compiled."""
    import torch

    spec = importlib.util.spec_from_file_location("backbone", os.environ[BACKBONE])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    network = module.build()
    torch._dynamo.config.recompile_limit = 64
    eager, compiled = network.forward, torch.compile(network.forward, dynamic=False)

    def forward(images: Any) -> Any:
        return compiled(images) if images.is_cuda and torch.is_grad_enabled() else eager(images)

    network.forward = forward
    return network


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
    multiprocessing.set_start_method(None, force=True)  # processes that decode are forked, as in any other program
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
            *((f"model.backbone={__file__}:compiled_backbone", *COLORS) if BACKBONE in os.environ else ()),
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


# What is published


def collect(results: Path, name: str) -> None:
    """Keep every result as `NAME-validation.json` or `NAME-test.json`, and the queries of test runs in a folder beside it."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for classes in MANIFESTS:
        file = RESULTS / f"{name}-{classes}.json"
        kept = _read(file) if file.exists() else {}
        for found in sorted(results.glob("[!.]*.json")):
            record = json.loads(found.read_text(encoding="utf-8"))
            if "error" in record or Job.from_line(record["job"]).classes != classes:
                continue
            metrics = record["metrics"].items()
            record["metrics"] = {key: value for key, value in metrics if key.partition("/")[0] in KEPT}
            kept[found.stem] = record
            if (queries := found.with_suffix(".npz")).exists():
                (RESULTS / name).mkdir(exist_ok=True)
                shutil.copy(queries, RESULTS / name)
        lines = ",\n".join(f"{json.dumps(run)}: {json.dumps(kept[run])}" for run in sorted(kept))
        file.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def tables() -> dict[str, str]:
    """What stands between the markers of docs/results.md."""
    validation = {name: record["metrics"] for name, record in _read(RESULTS / "cub-validation.json").items()}
    test = {name: record["metrics"] for name, record in _read(RESULTS / "cub-test.json").items()}
    return {
        "photographs cub": _test_table(test),
        "photographs factors": _factor_table(validation),
        "photographs changes": _change_table(validation),
        "photographs methods": _method_table(validation),
    }


def _test_table(runs: Mapping[str, Mapping[str, float]]) -> str:
    columns = ("R@1", "R@2", "R@4", "R@8", "mAP@R", "AP/species", "AP/genus", "AP/family", "AP/order", "H-AP", "NDCG")
    seeds = [[100 * runs[job.name][name] for name in columns] for job in final_jobs()]
    ours = [f"{mean:.1f} ± {spread:.1f}" for mean, spread in zip(np.mean(seeds, 0), np.std(seeds, 0, ddof=1), strict=True)]
    frozen = _read(RESULTS / "cub-frozen.json")["metrics"]
    untrained = [f"{100 * frozen[name]:.1f}" if name in frozen else "–" for name in columns]
    papers = ["69.4", "79.4", "87.2", "92.1", *["–"] * 7]
    rows = [["frozen, 2,048 dimensions", *untrained], ["ROADMAP, three seeds", *ours], ["ROADMAP in the paper", *papers]]
    return _table(["", *columns], rows)


def _factor_table(runs: Mapping[str, Mapping[str, float]]) -> str:
    """Main effects by least squares, and their standard errors."""
    designed = [job.name for job in factor_jobs()]
    design = np.array([[1, *(2 * int(level) - 1 for level in name[-11:])] for name in designed], float)
    values = np.array([[100 * runs[name][metric] for metric in COLUMNS] for name in designed])
    effects, *_ = np.linalg.lstsq(design, values)
    left = ((values - design @ effects) ** 2).sum(0) / (len(design) - 12)
    errors = 2 * np.sqrt(left / len(design))
    rows = [
        [name, *(f"{2 * value:+.1f} ± {error:.1f}" for value, error in zip(effect, errors, strict=True))]
        for name, effect in zip(FACTORS, effects[1:], strict=True)
    ]
    return _table(["change", *COLUMNS], rows)


def _change_table(runs: Mapping[str, Mapping[str, float]]) -> str:
    rows = []
    for change, names in CHANGES.items():
        means = [100 * np.mean([runs[name][metric] for name in names]) for metric in COLUMNS]
        rows.append([change, str(len(names)), *(f"{mean:.1f}" for mean in means)])
    return _table(["ROADMAP", "runs", *COLUMNS], rows)


def _method_table(runs: Mapping[str, Mapping[str, float]]) -> str:
    rows = []
    for method in ("roadmap", *METHODS):
        tried = {rate: runs.get(f"5{place}-{method}-r{rate}") for place, rate in enumerate((2, 4, 1))}
        found = {rate: values for rate, values in tried.items() if values}
        if method == "roadmap":
            found[2] = {
                metric: np.mean([runs[name][metric] for name in CHANGES["crops from 36 % of the area"]]) for metric in COLUMNS
            }
        if found:
            best = max(found, key=lambda rate: found[rate]["mAP@R"])
            cells = (f"{100 * found[best][metric]:.1f}" for metric in COLUMNS)
            rows.append([method, ", ".join(f"{rate}e-5" for rate in sorted(found)), f"{best}e-5", *cells])
    return _table(["method", "rates tried", "best", *COLUMNS], rows)


def _table(header: list[str], rows: list[list[str]]) -> str:
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return "".join("| " + " | ".join(row) + " |\n" for row in [header, ruler, *rows])


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
    one.add_argument("--workers", type=int, default=4)
    one.add_argument("--backbone", type=Path, help="a file that builds the network, in place of the recipe's")
    one.add_argument("--minutes", type=float, default=0, help="wait so long for further jobs")
    verbs.add_parser("table").add_argument("results", type=Path)
    verbs.add_parser("jobs").add_argument("stage", choices=STAGES)
    one = verbs.add_parser("collect")
    one.add_argument("results", type=Path)
    one.add_argument("name")
    verbs.add_parser("page").add_argument("--check", action="store_true")
    given = parser.parse_args()
    match given.verb:
        case "unpack":
            unpack(given.packs, given.to)
        case "add":
            add(given.queue, sys.stdin.read().splitlines())
        case "jobs":
            print(*(job.line for job in STAGES[given.stage]()), sep="\n")
        case "collect":
            collect(given.results, given.name)
        case "page":
            pages.update(PAGE, tables(), check=given.check)
        case "work":
            if given.backbone:
                os.environ[BACKBONE] = str(given.backbone.absolute())
            work(given.photos.absolute(), given.queue, given.results, given.workers, given.minutes)
        case "table":
            table(given.results)


if __name__ == "__main__":
    main()
