"""Tune every loss for a head on frozen embeddings, with equal budgets, and test it once: a third set for docs/tuned-results.md.

    suprank data import csv cub200_s128.zip --out cub112.parquet
    suprank embed tf_efficientnet_lite0 cub112.parquet --weights tf_efficientnet_lite0.in1k.safetensors \\
        --split train --split test --size 192 --resize 192 --out cub-frozen
    OMP_NUM_THREADS=1 python benchmarks/tuned_heads.py cub-frozen --jobs 2     # benchmarks/results/tuned/cub-fine*, cub-tree*

The search is that of `suprank compare --tune` (`suprank.experiments.trials`), on two folds of the training classes: as many
trials, the same sampler, and the ranges of the recipes in the preset cub112, but around the learning rate of `suprank adapt`,
and without two images of a class, for which a fold has too few classes. A trial trains the head of `suprank adapt` from its
usual start. All runs have 300 steps. Results are written in the files of benchmarks/tuned_tables.py. A line of the file
`--work` has all runs of a method; methods that it has are not trained again.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from tuned_tables import METRICS as CLASS_METRICS
from tuned_tables import RESULTS, class_arrays, class_values

from suprank.adaptation.class_splits import BatchShape
from suprank.adaptation.config import AdaptConfig
from suprank.adaptation.head_trainer import HeadTrainer
from suprank.adaptation.principal_start import principal_heads
from suprank.evaluation import Report, RetrievalData, evaluate
from suprank.experiments.trials import Params, Study, Trial, best_trial, default_space, recipe_value
from suprank.models.config import HeadConfig
from suprank.training.recipe import read_recipe
from suprank.training.search_space import Choices, FloatRange, SearchSpace
from suprank.workflows.adaptation import open_training

FINE = (
    *("fast-ap", "softbin-ap", "blackbox-ap", "smooth-ap", "sup-ap", "roadmap-pairs", "roadmap"),
    *("smooth-recall", "sup-recall", "rod-recall-pairs", "rod-recall", "multi-similarity", "triplet-dw"),
)
TREE = (
    *("triplet-sh", "nsm", "proxy-nca", "smooth-ap", "sum-triplet-sh", "sum-nsm", "sum-proxy-nca", "csl"),
    *("rod-ndcg", "happier", "happier-f"),
)
TABLES = {"fine": (FINE, "mAP@R"), "tree": (TREE, "H-AP")}  # methods, and the metric by which they are tuned
METRICS = ("R@1", "mAP@R", "AP", "H-AP", "ASI", "NDCG")
PRESET = "cub112"  # of the recipes, for their losses and rates of proxies
BATCH, STEPS, DIM = 128, 300, 512
TRIALS, FOLDS, SEEDS = 12, 2, 3
LR, PER_CLASS = "optimizer.lr", "batch.images_per_class"


class Task(NamedTuple):
    """All runs of a method: its search by the metric of a table, and the final ones."""

    folder: Path
    table: str
    method: str


@dataclass(frozen=True, eq=False)
class Collection:
    """Frozen embeddings to train on, with labels finest first, and the test set."""

    embeddings: np.ndarray
    labels: np.ndarray
    test: RetrievalData
    levels: tuple[str, ...]

    def fold(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows to train on and those to validate with; classes are divided at random, the same for all methods."""
        classes = np.random.default_rng(0).permutation(np.unique(self.labels[:, 0]))
        validation = np.isin(self.labels[:, 0], classes[number::FOLDS])
        return np.flatnonzero(~validation), np.flatnonzero(validation)


@cache
def read_collection(folder: Path) -> Collection:
    training, test = open_training(folder)
    assert test is not None, f"{folder} needs a part for training and a part for testing"
    return Collection(training.queries.embeddings[:], training.queries.labels, test, training.levels)


def search_space(method: str, classes: int) -> SearchSpace:
    """The space of the recipe, around the learning rate of `suprank adapt`, with images per class that leave classes enough."""
    space = default_space(read_recipe(f"{PRESET}/{method}"))
    lr = AdaptConfig().lr
    fitting = tuple(one for one in (2, 4, 8) if BATCH // one <= classes)
    return {**space, LR: FloatRange(lr / 10, lr * 10, log=True), PER_CLASS: Choices(fitting)}


def own_values(method: str, space: SearchSpace) -> Params:
    """The setting of the first trial: the recipe's, and the learning rate of `suprank adapt`."""
    config = read_recipe(f"{PRESET}/{method}")
    return {key: AdaptConfig().lr if key == LR else recipe_value(config, key) for key in space}


def train_head(
    collection: Collection, method: str, params: Params, rows: np.ndarray, tested: RetrievalData, seed: int
) -> tuple[Report, float]:
    """Train a head on these rows, and return its report and the seconds of the training. The loss may become NaN."""
    config = read_recipe(f"{PRESET}/{method}")
    loss = {**config.loss.model_dump(exclude_unset=True)}
    loss |= {key.removeprefix("loss."): value for key, value in params.items() if key.startswith("loss.")}
    settings = {"loss": loss, "lr": params[LR], "proxies_lr": params.get("proxies.lr", config.proxies.lr)}
    embeddings = collection.embeddings[rows]
    labels = np.stack([np.unique(column, return_inverse=True)[1] for column in collection.labels[rows].T], axis=1)
    head_config = HeadConfig.model_validate({"in_features": embeddings.shape[1], "out_features": DIM})
    head = principal_heads(embeddings, head_config)["uncentered"]
    start = time.process_time()
    trainer = HeadTrainer(
        head,
        torch.from_numpy(embeddings),
        torch.from_numpy(labels),
        AdaptConfig.model_validate(settings),
        steps=STEPS,
        shape=BatchShape(BATCH, int(params[PER_CLASS])),
        seed=seed,
    )
    for _ in trainer.run(STEPS):
        pass
    seconds = time.process_time() - start
    return evaluate(tested.with_head(head.eval()), metrics=METRICS, per_query=True, progress=False), seconds


def run_trial(collection: Collection, method: str, metric: str, number: int, params: Params) -> Trial:
    """The setting on every fold."""
    values, seconds, failure = [], 0.0, ""
    for fold in range(FOLDS):
        rows, validation = collection.fold(fold)
        tested = RetrievalData.from_arrays(collection.embeddings[validation], collection.labels[validation])
        try:
            report, took = train_head(collection, method, params, rows, tested, 0)
            values.append(report[metric])
            seconds += took
        except ValueError as error:  # embeddings that are NaN
            failure = failure or f"fold {fold}: {error}"
            values.append(None)
    return Trial(number, params, tuple(values), round(seconds, 3), failure)


def run_method(task: Task) -> dict[str, Any]:
    """Search, then train the recipe's own setting and the best one with every seed."""
    torch.set_num_threads(1)
    collection, metric = read_collection(task.folder), TABLES[task.table][1]
    space = search_space(task.method, len(np.unique(collection.labels[collection.fold(0)[0], 0])))
    with TemporaryDirectory() as folder:
        study = Study(Path(folder), task.method, space, own_values(task.method, space), TRIALS)
        while asked := list(study.ask()):
            for number, params in asked:
                study.tell(run_trial(collection, task.method, metric, number, params))
        trials = study.told()
    best = best_trial(trials)
    rows = np.arange(len(collection.labels))
    runs = []
    for tuned, trial in (("no", trials[0]), ("yes", best)):
        for seed in range(SEEDS if trial is not None else 0):
            if tuned == "yes" and trial.number == 0:
                runs += [{**run, "tuned": "yes"} for run in runs if (run["tuned"], run["seed"]) == ("no", seed)]
                continue
            try:
                report, took = train_head(collection, task.method, trial.params, rows, collection.test, seed)
            except ValueError as error:  # embeddings that are NaN: the table has fewer seeds
                print(f"{task.method}, tuned: {tuned}, seed {seed}: {error}", flush=True)
                continue
            values = {metric: report[metric] for metric in METRICS}
            classes = class_values(report, CLASS_METRICS[task.table], collection.test.queries.labels[:, 0]).tolist()
            name = f"{task.method},tuned={tuned},seed={seed}"
            runs.append({"folder": name, "tuned": tuned, "seed": seed, "seconds": took, "values": values, "classes": classes})
    found = [{**one._asdict(), "value": one.value, "best": best is not None and one.number == best.number} for one in trials]
    spaces = {key: str(one) for key, one in space.items()}
    return {"table": task.table, "method": task.method, "trials": found, "runs": runs, "space": spaces}


# Files


def write_table(name: str, table: str, found: list[dict[str, Any]], classes: dict[str, np.ndarray], out: Path) -> None:
    """Write the four files of tuned_tables.py, with methods in the order of the table; `classes` from `class_arrays`."""
    methods, metric = TABLES[table]
    found = sorted(found, key=lambda one: methods.index(one["method"]))
    lines: list[list[Any]] = [["folder", "recipe", "tuned", "run.seed", "finished", "epoch", "step", "seconds", *METRICS]]
    for one in found:
        for run in one["runs"]:
            progress = ["yes", 1, STEPS, round(run["seconds"], 3)]
            lines.append([run["folder"], one["method"], run["tuned"], run["seed"], *progress, *run["values"].values()])
    _write_csv(out / f"{name}.csv", lines)
    keys = list(dict.fromkeys(key for one in found for key in one["space"]))
    folds = [f"fold {number}" for number in range(FOLDS)]
    lines = [["recipe", "trial", *keys, *folds, metric, "best", "seconds", "failure"]]
    for one in found:
        for trial in one["trials"]:
            values = [trial["params"].get(key, "") for key in keys]
            measured = ["" if value is None else value for value in trial["folds"]]
            end = [trial["value"], "yes" if trial["best"] else "no", trial["seconds"], trial["failure"]]
            lines.append([one["method"], trial["number"], *values, *measured, *end])
    _write_csv(out / f"{name}-search.csv", lines)
    arrays: dict[str, Any] = dict(classes)
    for one in found:
        for tuned, title in (("no", "untuned"), ("yes", "tuned")):
            own = [run["classes"] for run in one["runs"] if run["tuned"] == tuned]
            if own:
                arrays[f"{one['method']} {title}"] = np.array(own, np.float32)
    np.savez_compressed(out / f"{name}-classes.npz", **arrays)
    trials = [trial for one in found for trial in one["trials"]]
    final = {run["folder"]: run["seconds"] for one in found for run in one["runs"]}
    budget = {
        "trials": TRIALS,
        "folds": FOLDS,
        "fold level": "species",
        "metric": metric,
        "epochs": math.ceil(STEPS * BATCH / 5864),
        "batch size": BATCH,
        "image size": 192,
        "failed trials": sum(bool(trial["failure"]) for trial in trials),
        "seconds of training steps": round(sum(final.values()) + sum(trial["seconds"] for trial in trials)),
        "spaces": {one["method"]: one["space"] for one in found},
    }
    (out / f"{name}-budget.json").write_text(json.dumps(budget, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_csv(path: Path, lines: list[list[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="embeddings of `suprank embed`, with splits train and test")
    parser.add_argument("--jobs", type=int, default=1, help="methods at the same time")
    parser.add_argument("--methods", nargs="+", help="train only these methods; by default all")
    parser.add_argument(
        "--work", type=Path, default=Path("tuned-heads.jsonl"), help="file with a line for each finished method"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    done = [json.loads(line) for line in options.work.read_text().splitlines()] if options.work.exists() else []
    known = {(one["table"], one["method"]) for one in done}
    tasks = [
        Task(options.folder, table, method)
        for table, (methods, _) in TABLES.items()
        for method in methods
        if (table, method) not in known and (options.methods is None or method in options.methods)
    ]
    start = time.monotonic()
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run_method, task) for task in tasks]):
            one = future.result()
            done.append(one)
            with options.work.open("a", encoding="utf-8") as file:
                file.write(json.dumps(one) + "\n")
            print(f"{time.monotonic() - start:.0f} s: {one['table']} {one['method']}, {len(done)} methods done", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    collection = read_collection(options.folder)
    classes = class_arrays(collection.test.labels, collection.levels)
    for table in TABLES:
        found = [one for one in done if one["table"] == table]
        if found:
            write_table(f"cub-{table}", table, found, classes, options.out)


if __name__ == "__main__":
    main()
