"""Do larger batches, or a memory of the whole collection, replace the decomposability losses? On frozen embeddings.

    suprank data import csv omniglot35.zip --out omniglot35.parquet
    suprank embed tf_efficientnet_lite0 omniglot35.parquet --weights tf_efficientnet_lite0.in1k.safetensors \\
        --split train --split test --size 64 --resize 64 --out omniglot
    OMP_NUM_THREADS=1 python benchmarks/frozen_batches.py omniglot     trains the runs that are not in the results yet
    OMP_NUM_THREADS=1 python benchmarks/frozen_batches.py omniglot --small     those on five images of each class
    python benchmarks/frozen_batches.py omniglot --save-reduced omniglot-256.npz     for a machine with a GPU; there:
    python benchmarks/frozen_batches.py omniglot-256.npz --large --device cuda --jobs 4
    python benchmarks/frozen_batches.py --write      writes the tables of docs/batch-size.md, and draws the figure
    python benchmarks/frozen_batches.py --check      exits with 1 if the page has other tables

A linear head is trained as by `suprank adapt`, on principal components of the embeddings, with Sup-AP, Sup-AP + L_DG (on pairs)
and Sup-AP + L*_DG (on proxies). By one convention all runs see equally many images, by the other all take equally many steps.
For each method and batch size, the learning rate is chosen from the same list by the mAP@R of training classes that are held
out. With it the head is trained on all training classes, once with each seed, and tested after its last step on unseen classes.
With `--large` there are larger batches, the whole collection, and a long run with a memory of it. Settings that take most of
the GPU's time choose from three rates instead of five (`COSTLY`). What these runs are compared with was trained on a CPU.

A line of the results is a run; metrics are in percent. Runs that are in the file are not repeated, so that an interrupted study
goes on. Settings are trained in the order of `MAIN`, `SMALL` or `LARGE`. With `--jobs` several processes share the runs: those
of the next setting begin while the last ones of a setting are trained. A run that fails does not stop the others. After
`--limit` seconds no run is started, and those that are running are finished. `cpu_s` is the CPU time of training; on a GPU
there is `seconds` instead, the wall time, while other processes use the GPU too.

The file of `--save-reduced` holds the principal components of all images in steps of 1/4,096 (10 MB for Omniglot, where the
embeddings have 166 MB). It takes the place of the folder. mAP@R, AP and R@1 before training are the same in all digits of the
results; with float16 (16 MB) R@1 differs by 0.02. Trained on the file, mAP@R of a test of `64x300` differs by 0.09 at most;
between seeds it differs by 0.3.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pages
import torch

from suprank.adaptation import AdaptConfig
from suprank.adaptation.class_splits import BatchShape
from suprank.adaptation.head_trainer import HeadTrainer
from suprank.adaptation.principal_start import principal_heads
from suprank.evaluation import RetrievalData, decomposability_gap, evaluate
from suprank.evaluation.statistics import SeedDifference, holm, seed_difference
from suprank.experiments.tables import Statistic
from suprank.losses import RetrievalLoss, collection_loss, skip_value_checks
from suprank.losses.memory import EmbeddingMemory
from suprank.models.head import Head, HeadConfig
from suprank.paper.layout import welch
from suprank.training.memory_loss import LossWithMemory
from suprank.workflows.adaptation import open_training

ROOT = Path(__file__).parents[1]
PAGE, FOLDER = ROOT / "docs" / "batch-size.md", ROOT / "benchmarks" / "results"
RESULTS, SMALL_RESULTS = FOLDER / "cpu" / "frozen-batches.jsonl", FOLDER / "cpu" / "frozen-batches-5.jsonl"
LARGE_RESULTS = FOLDER / "h200" / "frozen-batches.jsonl"
LOSSES: dict[str, dict[str, Any]] = {
    "Sup-AP": {"name": "sup-ap"},
    "L_DG": {"name": "roadmap", "decomposability": "pairs"},
    "L*_DG": {"name": "roadmap"},
}
METRICS = ("mAP@R", "AP", "R@1")
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
COMPONENTS, DIM = 256, 128  # principal components of the embeddings, and width of the head's output
MAIN_SEEDS, SMALL_SEEDS, WHOLE_SEEDS = 5, 3, 3  # the last is the most of a setting with the whole collection
SMALL_PER_CLASS = 5
IMAGES, STEPS = 76_800, 300  # images that every run of the one convention sees, and steps that all of the other take
LONG = 4_800  # steps of a control: those of the smallest batch of the first convention
PER_CLASS = 4
VALIDATION = 0.25  # share of the training classes that choose the learning rate
TUNING_SEED = 100
CHUNKS = {"cpu": 128, "cuda": 4_096}  # queries at a time of a batch that is larger than four of them
STORED_STEPS = 4_096  # between 0 and 1, in the file of `--save-reduced`
Row = dict[str, Any]
Settings = Mapping[str, Sequence[str]]

# Batch size x steps, and the methods. 76,800 images: 16 x 4,800 to 1,024 x 75. 300 steps: 16 x 300 to 256 x 300.
BOTH, ALL = ("Sup-AP", "L*_DG"), tuple(LOSSES)
MAIN = {
    **dict.fromkeys(("64x1200", "256x300", "16x4800", "1024x75", "16x300", "64x300"), ALL),
    **dict.fromkeys(("16x300+memory", "64x4800", "16x4800+memory"), BOTH),
    **dict.fromkeys(("32x2400", "512x150", "128x600", "32x300", "128x300"), ALL),
}
SMALL = {**dict.fromkeys(("16x4800", "256x300", "wholex16"), BOTH), "16x4800+memory": ("Sup-AP",)}
# The most important first: 300 steps in batches up to the whole collection, then a memory of all images in a long run.
# 256x300 is in MAIN too: it shows whether both machines find the same.
LARGE = dict.fromkeys(("256x300", "2048x300", "8192x300", "wholex300", "64x1200+memory"), BOTH)
ON_BOTH = "256x300"
COSTLY = {"8192x300": RATES[1:4], "wholex300": RATES[1:4]}  # settings with fewer rates to choose from
WHOLE_AT_ONCE = 2  # runs over the whole collection, each of which keeps a GPU busy: side by side they would all end late


@dataclass(frozen=True)
class Setting:
    """What the methods are compared at: a batch size or `whole`, steps, and a memory of the whole collection or none."""

    batch: int | str
    steps: int
    memory: bool = False


@dataclass(frozen=True)
class Run:
    """One head: trained to choose the learning rate (`tune`), or to be tested."""

    part: str
    batch: int | str
    steps: int
    memory: bool
    method: str
    lr: float
    seed: int


class Trainer(HeadTrainer):
    """The trainer of `suprank adapt`, which can have a memory, and computes large batches in chunks of queries.

    The memory has a place for every training image, and begins with the embeddings before the first step.
    """

    loss: RetrievalLoss

    def __init__(self, *arguments: Any, memory: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.with_memory = None
        device = self.embeddings.device
        self.chunk = CHUNKS[device.type]
        if memory:
            images, width = len(self.embeddings), self.head.config.out_features
            stored = EmbeddingMemory(images, width, self.labels.shape[1], per_item=True).to(device)
            stored.add(self.head(self.embeddings), self.labels, torch.arange(images, device=device))
            self.with_memory = LossWithMemory(self.loss, stored, replay=device.type == "cuda")

    def _batch_loss(self, rows: torch.Tensor) -> torch.Tensor:
        outputs, labels = self.head(self.embeddings[rows]), self.labels[rows]
        with skip_value_checks():
            if self.with_memory is not None:
                return self.with_memory(outputs, labels, rows)
            if len(rows) > 4 * self.chunk:
                return collection_loss(self.loss, outputs, labels, chunk=self.chunk)
            return self._compute_loss(outputs, labels)

    def _whole_loss(self) -> torch.Tensor:
        with skip_value_checks():
            return collection_loss(self.loss, self.head(self.embeddings), self.labels, chunk=self.chunk)


@dataclass(frozen=True, eq=False)
class Reduced:
    """Principal components of the embeddings, and labels, of the images to train on and of those to test with."""

    embeddings: np.ndarray
    labels: np.ndarray
    test: RetrievalData

    @classmethod
    def from_folder(cls, folder: Path, level: str, *, components: int, per_class: int | None) -> Reduced:
        """Reduce the embeddings of a folder of `suprank embed`, or of the first images of each class."""
        training, test = open_training(folder, levels=[level])
        assert test is not None, f"{folder} needs a part for training and a part for testing"
        embeddings, labels = training.queries.embeddings[:], training.queries.labels[:, 0]
        if per_class is not None:
            rows = _first_of_each_class(labels, per_class)
            embeddings, labels = embeddings[rows], labels[rows]
        config = HeadConfig.model_validate({"in_features": embeddings.shape[1], "out_features": components})
        reduction = principal_heads(embeddings, config)["centered"]
        tested = RetrievalData.from_arrays(reduction.transform(test.queries.embeddings[:]), test.queries.labels)
        return cls(reduction.transform(embeddings), labels, tested)

    def save(self, path: Path) -> None:
        """Write a file of whole numbers of steps. Their high and low bytes are apart, which compresses better."""
        numbers = np.round(STORED_STEPS * np.concatenate([self.embeddings, self.test.queries.embeddings]).T).astype(np.int16)
        high, low = (numbers >> 8).astype(np.int8), numbers.astype(np.uint8)
        np.savez_compressed(path, high=high, low=low, labels=self.labels, test_labels=self.test.queries.labels)

    @classmethod
    def load(cls, path: Path) -> Reduced:
        """Read what `save` wrote."""
        with np.load(path) as stored:
            numbers = 256 * stored["high"].astype(np.int16) + stored["low"]
            labels, test_labels = stored["labels"], stored["test_labels"]
        values = np.ascontiguousarray(numbers.T, np.float32) / STORED_STEPS
        return cls(values[: len(labels)], labels, RetrievalData.from_arrays(values[len(labels) :], test_labels))


class Collection:
    """A reduced collection, and the head at which every run begins. Heads are trained and tested on `device`."""

    def __init__(self, reduced: Reduced, *, dim: int, device: str = "cpu") -> None:
        self.embeddings, self.labels, self.test = reduced.embeddings, reduced.labels, reduced.test
        classes = np.random.default_rng(0).permutation(np.unique(self.labels))
        self.held_out = np.isin(self.labels, classes[: round(VALIDATION * len(classes))])
        self.head_config = HeadConfig.model_validate({"in_features": self.embeddings.shape[1], "out_features": dim})
        self.device = device

    def start(self, rows: np.ndarray | slice = slice(None)) -> Head:
        """The head before the first step, from the training images or some of them."""
        return principal_heads(self.embeddings[rows], self.head_config)["uncentered"].to(self.device)

    def result(self, run: Run) -> Row:
        """Train and measure the head of a run, and time the training: CPU time or, on a GPU, wall time."""
        on_gpu = self.device != "cpu"
        clock = time.perf_counter if on_gpu else time.process_time
        start = clock()
        head = self.train(run)
        if on_gpu:
            torch.cuda.synchronize()
        trained = round(clock() - start, 2)
        row = {**asdict(run), **self.measure(run, head), "seconds" if on_gpu else "cpu_s": trained}
        if on_gpu:
            torch.cuda.empty_cache()  # other processes use the GPU too
        return row

    def train(self, run: Run) -> Head:
        """Train the head of a run: on all training images, or without those that are held out."""
        rows = ~self.held_out if run.part == "tune" else np.ones(len(self.labels), bool)
        embeddings = self.embeddings[rows]
        labels = np.unique(self.labels[rows], return_inverse=True)[1]
        head = self.start(rows)
        trainer = Trainer(
            head,
            torch.from_numpy(embeddings).to(self.device),
            torch.from_numpy(labels)[:, None].to(self.device),
            AdaptConfig.model_validate({"loss": LOSSES[run.method], "lr": run.lr}),
            steps=run.steps,
            shape=None if run.batch == "whole" else batch_shape(int(run.batch), labels),
            seed=run.seed,
            memory=run.memory,
        )
        for _ in trainer.run(run.steps):
            pass
        return head.eval()

    def measure(self, run: Run, head: Head) -> dict[str, Any]:
        """Metrics in percent; of a test also mAP@R of each class, and of the first seed the gap in batches of its size."""
        if run.part == "tune":
            tested = RetrievalData.from_arrays(self.embeddings[self.held_out], self.labels[self.held_out])
            return _percent(evaluate(tested.with_head(head), metrics=METRICS[:1], device=self.device, progress=False).means)
        report = evaluate(self.test.with_head(head), metrics=METRICS, per_query=True, device=self.device, progress=False)
        found: Row = dict(_percent({name: report[name] for name in METRICS}))
        if run.seed == 0 and run.batch != "whole":
            found["gap"] = self.gap(head, int(run.batch))
        values = report.values_per_query("class means")["mAP@R"]
        places = np.unique(self.test.queries.labels[:, 0], return_inverse=True)[1]
        found["classes"] = np.round(100 * np.bincount(places, values) / np.bincount(places), 2).tolist()
        return found

    def gap(self, head: Head, batch: int) -> dict[str, float]:
        """AP of the test images in batches of the size and composition of training, over all, and the difference."""
        fine, generator = self.test.queries.labels[:, 0], np.random.default_rng(0)
        per_class = batch_shape(batch, fine).images_per_class
        groups = [
            rows[start : start + per_class]
            for rows in (generator.permutation(np.flatnonzero(fine == one)) for one in np.unique(fine))
            for start in range(0, len(rows), per_class)
        ]
        order = np.concatenate([groups[place] for place in generator.permutation(len(groups))])
        parts = [order[start : start + batch] for start in range(0, len(order), batch)]
        found = decomposability_gap(
            head.transform(self.test.queries.embeddings[:]), fine, parts, device=self.device, progress=False
        )
        return _percent({"in batches": found.in_batches, "overall": found.overall, "gap": found.value})


def batch_shape(batch: int, labels: np.ndarray) -> BatchShape:
    """Four images of a class, or twice as many until there are classes enough."""
    per_class = PER_CLASS
    while batch // per_class > len(np.unique(labels)):
        per_class *= 2
    return BatchShape(batch, per_class)


def _first_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    return np.sort(np.concatenate([np.flatnonzero(labels == one)[:count] for one in np.unique(labels)]))


def _percent(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(100 * value, 3) for name, value in values.items()}


# The study


def parse_setting(text: str) -> Setting:
    """The setting that is written as 64x1200, wholex16 or 16x300+memory."""
    found = re.fullmatch(r"(whole|\d+)x(\d+)(\+memory)?", text)
    if found is None:
        raise ValueError(f"{text!r} is not BATCHxSTEPS, such as 64x1200, wholex16 or 16x300+memory.")
    return Setting("whole" if found[1] == "whole" else int(found[1]), int(found[2]), memory=found[3] is not None)


def number_of_tests(setting: Setting, method: str, seeds: int) -> int:
    """Number of test runs of a method. Of a whole collection only proxies are random, so that other losses have one run."""
    if setting.batch != "whole":
        return seeds
    return min(seeds, WHOLE_SEEDS) if method == "L*_DG" else 1


def missing_runs(study: Study, settings: Settings, seeds: int) -> Iterator[Run]:
    """Runs that the file does not have, in order. Tests of a method come once the runs that choose its rate are there."""
    for text, methods in settings.items():
        setting, chosen = parse_setting(text), {}
        for method in methods:
            rates = COSTLY.get(text, RATES)
            trials = [Run("tune", **asdict(setting), method=method, lr=lr, seed=TUNING_SEED) for lr in rates]
            yield from (run for run in trials if run not in study.runs)
            if all(run in study.runs for run in trials):
                chosen[method] = max(trials, key=lambda run: study.runs[run]["mAP@R"]).lr
        for seed in range(seeds):
            for method, lr in chosen.items():
                run = Run("test", **asdict(setting), method=method, lr=lr, seed=seed)
                if seed < number_of_tests(setting, method, seeds) and run not in study.runs:
                    yield run


def train_all(study: Study, collection: Collection, settings: Settings, seeds: int, limit: float = float("inf")) -> None:
    """Train the missing runs one after the other; after `limit` seconds none is started."""
    start = time.monotonic()
    for run in missing_runs(study, settings, seeds):
        if time.monotonic() - start > limit:
            return
        study.append(collection.result(run))


def train_in_processes(
    study: Study, collection: Collection, settings: Settings, seeds: int, jobs: int, limit: float = float("inf")
) -> None:
    """Train the missing runs in several processes. A run that fails is reported at the end, when the others are in the file.

    Its process is replaced, because after an error of CUDA every further run in it would fail too.
    """
    start, begun, failed = time.monotonic(), set[Run](), []
    running: dict[Future[Row], tuple[Run, ProcessPoolExecutor]] = {}
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes, which begin with it

    def next_run() -> Run | None:
        if time.monotonic() - start > limit:
            return None
        whole = sum(run.batch == "whole" for run, _ in running.values())
        missing = (run for run in missing_runs(study, settings, seeds) if run not in begun)
        return next((run for run in missing if run.batch != "whole" or whole < WHOLE_AT_ONCE), None)

    with TemporaryDirectory() as folder:
        file = Path(folder) / "collection.pickle"  # as an argument it would be sent to one process after the other
        file.write_bytes(pickle.dumps(collection))
        free = [_process(file) for _ in range(jobs)]
        while True:
            while free and (run := next_run()) is not None:
                begun.add(run)
                process = free.pop()
                running[process.submit(_result_in_process, run)] = run, process
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                run, process = running.pop(future)
                if (error := future.exception()) is None:
                    study.append(future.result())
                else:
                    failed.append(f"{run}: {error!r}")
                    print(failed[-1], flush=True)
                    process.shutdown(wait=False)
                    process = _process(file)
                free.append(process)
        for process in free:
            process.shutdown()
    if failed:
        sys.exit("\n".join([f"runs that failed: {len(failed)}", *failed]))


def _process(file: Path) -> ProcessPoolExecutor:
    """A process for one run at a time, which is started with its first run."""
    return ProcessPoolExecutor(1, get_context("spawn"), _start_process, (file,))


_collection: Collection  # of a process of `train_in_processes`


def _start_process(file: Path) -> None:
    global _collection
    torch.set_num_threads(1)
    _collection = pickle.loads(file.read_bytes())


def _result_in_process(run: Run) -> Row:
    return _collection.result(run)


class Study:
    """The rows of a file of results, to which runs are appended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists():
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)  # without a last line that a kill cut off
        self.rows = read_rows(path)
        self.runs = {_run(row): row for row in self.rows if row["part"] in ("tune", "test")}

    def start(self, collection: Collection, batch: int | str) -> None:
        """Measure the head before the first step, and its gap in batches of this size."""
        head = collection.start().eval()
        if not any(row["part"] == "start" for row in self.rows):
            report = evaluate(collection.test.with_head(head), metrics=METRICS, device=collection.device, progress=False)
            sizes = {"images": len(collection.labels), "classes": len(np.unique(collection.labels))}
            self.append({"part": "start", **sizes, **_percent({name: report[name] for name in METRICS})})
        if batch != "whole" and not any(row["part"] == "gap" and row["batch"] == batch for row in self.rows):
            self.append({"part": "gap", "batch": batch, **collection.gap(head, int(batch))})

    def append(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if row["part"] in ("tune", "test"):
            self.runs[_run(row)] = row
            print(*asdict(_run(row)).values(), row["mAP@R"], row.get("seconds", row.get("cpu_s")), "s", flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _run(row: Row) -> Run:
    return Run(**{field.name: row[field.name] for field in fields(Run)})


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of results; none if there is no file yet."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _setting(row: Row) -> Setting:
    return Setting(row["batch"], row["steps"], row["memory"])


# The tables and the figure


@dataclass(frozen=True)
class Results:
    """The rows of a file, and what the tables and the figure show of them."""

    rows: list[Row]

    @property
    def start(self) -> Row:
        return next(row for row in self.rows if row["part"] == "start")

    def tests(self, setting: Setting, method: str) -> list[Row]:
        """The test runs of a method, one for each seed."""
        wanted = {"part": "test", **asdict(setting), "method": method}
        return [row for row in self.rows if wanted.items() <= row.items()]

    def best_validation(self, setting: Setting, method: str) -> float:
        """mAP@R of the held-out classes with the best of the learning rates."""
        wanted = {"part": "tune", **asdict(setting), "method": method}
        return max(row["mAP@R"] for row in self.rows if wanted.items() <= row.items())

    def settings(self, *, memory: bool = False) -> list[Setting]:
        """All settings with tests of Sup-AP, by batch size and steps."""
        found = {_setting(row) for row in self.rows if row["part"] == "test"}
        tested = [one for one in found if one.memory == memory and self.tests(one, "Sup-AP")]
        return sorted(tested, key=lambda one: (self.items(one), one.steps))

    def items(self, setting: Setting) -> int:
        """Images in a batch."""
        return self.start["images"] if setting.batch == "whole" else int(setting.batch)

    def equal_images(self, *, memory: bool = False) -> list[Setting]:
        """The settings of the first convention."""
        return [one for one in self.settings(memory=memory) if one.steps == round(IMAGES / self.items(one))]

    def equal_steps(self, steps: int = STEPS) -> list[Setting]:
        """The settings of the second convention, or of other steps."""
        return [one for one in self.settings() if one.steps == steps]

    def gain(
        self,
        setting: Setting,
        method: str,
        metric: str = "mAP@R",
        over: Setting | None = None,
        over_method: str = "Sup-AP",
    ) -> SeedDifference | None:
        """How much a method is above Sup-AP or another method, there or in another setting; None without other runs.

        The interval is for new trainings and new test classes; of other metrics than mAP@R, of which only means were stored,
        over trainings, on these test classes.
        """
        both = self.tests(setting, method), self.tests(over or setting, over_method)
        if not all(both) or both[0] == both[1]:
            return None
        # Where nothing is random, a second training would be the same.
        both = tuple(
            rows * 2 if number_of_tests(where, one, 2) == 1 else rows
            for rows, where, one in zip(both, (setting, over or setting), (method, over_method), strict=True)
        )
        if metric == "mAP@R":  # all characters have 20 drawings, and their 20 alphabets are too few for units
            first, second = (np.array([row["classes"] for row in rows]) for rows in both)
            return seed_difference(first, second, np.arange(first.shape[1]))
        found = welch(*(Statistic.from_shares([row[metric] / 100 for row in rows]) for rows in both))
        return SeedDifference(found.difference, found.low, found.high, np.nan, found.p_value)

    def gap_before(self, setting: Setting) -> float:
        """The gap before the first step, in batches of the size of the setting."""
        if setting.batch == "whole":
            return 0.0
        return next(row["gap"] for row in self.rows if row["part"] == "gap" and row["batch"] == setting.batch)

    def gap_after(self, setting: Setting, method: str) -> float:
        """The gap after training with a method and the first seed."""
        if setting.batch == "whole":
            return 0.0
        return next(row["gap"]["gap"] for row in self.tests(setting, method) if row["seed"] == 0)


def gain_cells(gains: list[SeedDifference | None]) -> list[str]:
    """Gains with their intervals; bold if they are not noise at 5 %, after Holm's correction over the table."""
    p_values = holm(np.array([np.nan if one is None else one.p_value for one in gains]))
    cells = []
    for one, p in zip(gains, p_values, strict=True):
        if one is None:
            cells.append("")
            continue
        difference, low, high = (round(value, 2) + 0.0 for value in one[:3])  # + 0.0 makes 0 of −0
        text, interval = f"{difference:+.2f}", f" [{low:.2f}, {high:.2f}]"
        cells.append((f"**{text}**" if p < 0.05 else text) + interval)
    return [cell.replace("-", "−") for cell in cells]


def mean_of(rows: list[Row], metric: str = "mAP@R") -> str:
    return f"{np.mean([row[metric] for row in rows]):.2f}"


def images_table(results: Results) -> str:
    """Equal images: Sup-AP, the gains of both terms, and the gap before and after training."""
    chosen = results.equal_images()
    gains = gain_cells([results.gain(one, method) for one in chosen for method in ("L_DG", "L*_DG")])
    lines = [
        "| batch | share of the images | steps | Sup-AP | + L_DG | + L*_DG | gap before | after Sup-AP | after L*_DG |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for place, one in enumerate(chosen):
        gaps = [results.gap_before(one), results.gap_after(one, "Sup-AP"), results.gap_after(one, "L*_DG")]
        cells = [
            *(_batch(one), f"{100 * results.items(one) / results.start['images']:.2g} %", f"{one.steps:,}"),
            *(mean_of(results.tests(one, "Sup-AP")), *gains[2 * place : 2 * place + 2]),
            *(f"{gap:.1f}" for gap in gaps),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def gains_table(results: Results, chosen: list[Setting]) -> str:
    """Sup-AP, and the gains of both terms, of a memory, and of a memory with L*_DG; without columns that no setting has."""
    columns: dict[str, list[SeedDifference | None]] = {
        "+ L_DG": [results.gain(one, "L_DG") for one in chosen],
        "+ L*_DG": [results.gain(one, "L*_DG") for one in chosen],
        "+ memory": [results.gain(_with_memory(one), "Sup-AP", over=one) for one in chosen],
        "+ memory + L*_DG": [results.gain(_with_memory(one), "L*_DG", over=one) for one in chosen],
    }
    names = [name for name, gains in columns.items() if any(gains)]
    cells = gain_cells([gain for name in names for gain in columns[name]])
    lines = [
        f"| {' | '.join(['batch', 'steps', 'images seen', 'Sup-AP', *names])} |",
        "|" + "---:|" * (4 + len(names)),
    ]
    for place, one in enumerate(chosen):
        first = [_batch(one), f"{one.steps:,}", f"{one.steps * results.items(one):,}", mean_of(results.tests(one, "Sup-AP"))]
        lines.append(f"| {' | '.join(first + cells[place :: len(chosen)])} |")
    return "\n".join(lines) + "\n"


def _with_memory(setting: Setting) -> Setting:
    return Setting(setting.batch, setting.steps, memory=True)


def memory_table(results: Results, chosen: Sequence[Setting]) -> str:
    """Equal images: what L*_DG and a memory gain, how they compare, and what L*_DG adds to a memory."""
    pairs = [(Setting(one.batch, one.steps), one) for one in chosen]
    columns = {
        "+ L*_DG": [results.gain(without, "L*_DG") for without, _ in pairs],
        "+ memory": [results.gain(one, "Sup-AP", over=without) for without, one in pairs],
        "memory − L*_DG": [results.gain(one, "Sup-AP", over=without, over_method="L*_DG") for without, one in pairs],
        "L*_DG beside the memory": [results.gain(one, "L*_DG") for one in chosen],
    }
    cells = gain_cells([gain for gains in columns.values() for gain in gains])
    lines = [f"| batch | steps | Sup-AP | {' | '.join(columns)} |", "|" + "---:|" * (3 + len(columns))]
    for place, (without, _) in enumerate(pairs):
        first = [_batch(without), f"{without.steps:,}", mean_of(results.tests(without, "Sup-AP"))]
        lines.append(f"| {' | '.join(first + cells[place :: len(chosen)])} |")
    return "\n".join(lines) + "\n"


def replacement_table(results: Results, ours: Sequence[tuple[str, Setting]], others: Sequence[Setting]) -> str:
    """Methods in some settings, one in a row, minus Sup-AP in other settings. Settings are named by their batch sizes."""
    cells = gain_cells([results.gain(one, method, over=other) for method, one in ours for other in others])
    lines = [
        f"| | {' | '.join(f'Sup-AP, {_batch(other)}' for other in others)} |",
        "|---|" + "---:|" * len(others),
    ]
    for place, (method, one) in enumerate(ours):
        own = cells[place * len(others) : (place + 1) * len(others)]
        lines.append(f"| {method}, {_batch(one)}{' + memory' if one.memory else ''} | {' | '.join(own)} |")
    return "\n".join(lines) + "\n"


def metrics_table(results: Results) -> str:
    """Equal images: the gains in AP and R@1."""
    chosen = results.equal_images()
    pairs = [(metric, method) for metric in ("AP", "R@1") for method in ("L_DG", "L*_DG")]
    cells = gain_cells([results.gain(one, method, metric) for one in chosen for metric, method in pairs])
    lines = [
        "| batch | AP of Sup-AP | + L_DG | + L*_DG | R@1 of Sup-AP | + L_DG | + L*_DG |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for place, one in enumerate(chosen):
        own = cells[4 * place : 4 * place + 4]
        means = [mean_of(results.tests(one, "Sup-AP"), metric) for metric in ("AP", "R@1")]
        lines.append(f"| {' | '.join([_batch(one), means[0], *own[:2], means[1], *own[2:]])} |")
    return "\n".join(lines) + "\n"


def rates_table(results: Results, small: Results) -> str:
    """The settings in which the validation classes chose a learning rate."""
    lines = [f"| rate | {' | '.join(LOSSES)} |", "|---:|" + "---|" * len(LOSSES)]
    chosen = [
        (one, some, "" if some is results else " (¼)")
        for some in (results, small)
        for one in [*some.settings(), *some.settings(memory=True)]
    ]
    for rate in RATES:
        cells = [
            "; ".join(
                f"{_batch_and_steps(one)}{mark}"
                for one, some, mark in chosen
                if rate in {row["lr"] for row in some.tests(one, method)}
            )
            for method in LOSSES
        ]
        lines.append(f"| {rate:g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def prediction(results: Results) -> str:
    """Whether the gap before training predicts the gain: Spearman's correlation over batch sizes."""
    chosen = results.equal_images()
    gaps = [results.gap_before(one) for one in chosen]
    found = [f"{_correlation(results, chosen, method, gaps)} for {method}" for method in ("L_DG", "L*_DG")]
    over = f"over {len(chosen)} batch sizes"
    return f"Spearman's rank correlation of the gap before training and the gain, {over}: {', '.join(found)}.\n"


def steps_prediction(results: Results) -> str:
    """The same with equal steps, of the gap after training with Sup-AP, which is known for all batch sizes."""
    chosen = results.equal_steps()
    found = _correlation(results, chosen, "L*_DG", [results.gap_after(one, "Sup-AP") for one in chosen])
    over = f"over these {len(chosen)} batch sizes"
    return f"Spearman's rank correlation of the gap after training with Sup-AP and the gain of L*_DG, {over}: {found}.\n"


def long_runs(results: Results) -> str:
    """What L*_DG gains in larger batches with as many steps as the smallest batch takes for equal images."""
    chosen = [one for one in results.equal_steps(LONG) if one not in results.equal_images()]
    gains = gain_cells([results.gain(one, "L*_DG") for one in chosen])
    means = [mean_of(results.tests(one, "Sup-AP")) for one in chosen]
    texts = [
        f"With {LONG:,} steps in batches of {_batch(one)} Sup-AP has {mean}, and L*_DG adds {gain}."
        for one, mean, gain in zip(chosen, means, gains, strict=True)
    ]
    return " ".join(texts) + "\n"


def validation(results: Results, chosen: Sequence[Setting]) -> str:
    """mAP@R of the validation classes at the best rates, and the gains of L*_DG there."""
    best = [[results.best_validation(one, method) for one in chosen] for method in BOTH]
    levels = _listed([f"{level:.2f}" for level in best[0]])
    gains = _listed([f"{found - level:.2f}".replace("-", "−") for level, found in zip(*best, strict=True)])
    where = "On the validation characters, in the order of the table, with the best rates and one seed,"
    return f"{where} Sup-AP has {levels}; L*_DG adds {gains}.\n"


def memory_validation(results: Results, chosen: Sequence[Setting]) -> str:
    """The last two columns of the table of a memory on the validation classes."""
    best = [results.best_validation(one, "Sup-AP") for one in chosen]
    ahead = [
        value - results.best_validation(Setting(one.batch, one.steps), "L*_DG") for one, value in zip(chosen, best, strict=True)
    ]
    added = [results.best_validation(one, "L*_DG") - value for one, value in zip(chosen, best, strict=True)]
    texts = [_listed([f"{value:.2f}".replace("-", "−") for value in values]) for values in (ahead, added)]
    return f"\nOn the validation characters, with one seed, the last two columns are {texts[0]}, and {texts[1]}.\n"


def _listed(texts: list[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def _correlation(results: Results, chosen: Sequence[Setting], method: str, gaps: list[float]) -> str:
    gains = [gain.difference for one in chosen if (gain := results.gain(one, method)) is not None]
    return f"{spearman(gaps, gains):.2f}".replace("-", "−")


def spearman(first: list[float], second: list[float]) -> float:
    """The correlation of ranks; values are assumed to differ."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def _batch(setting: Setting) -> str:
    return "whole" if setting.batch == "whole" else f"{setting.batch:,}"


def _batch_and_steps(setting: Setting) -> str:
    return f"{_batch(setting)} × {setting.steps:,}{' + memory' if setting.memory else ''}"


def tables(results: Results, small: Results, large: Results) -> dict[str, str]:
    """What stands between the markers of the page: `small` has the runs on a fourth of the images, `large` those on a GPU."""
    both = with_large(results, large)
    equal_images, memory, steps = both.equal_images(), both.equal_images(memory=True), both.equal_steps()
    terms = [*(("L*_DG", one) for one in equal_images[:2]), *(("Sup-AP", one) for one in memory)]
    check = parse_setting(ON_BOTH)
    larger = [one for one in steps if both.items(one) >= int(check.batch)]
    return {
        "images": images_table(both),
        "prediction": prediction(both) + validation(both, equal_images),
        "replacement": replacement_table(both, terms, equal_images),
        "memory": memory_table(both, memory) + memory_validation(both, memory),
        "steps": gains_table(both, steps),
        "steps prediction": steps_prediction(both) + validation(both, steps),
        "steps replacement": replacement_table(
            both, [("L*_DG", larger[0]), ("Sup-AP", larger[1]), ("L*_DG", larger[-1])], larger
        ),
        "long": long_runs(both),
        "small": gains_table(small, small.settings()),
        "metrics": metrics_table(both),
        "machines": machines_table(results, large, check),
        "rates": rates_table(both, small),
    }


def with_large(results: Results, large: Results) -> Results:
    """All runs on a CPU, and those on a GPU in settings that the CPU does not have."""
    own = {*results.settings(), *results.settings(memory=True)}
    return Results([*results.rows, *(row for row in large.rows if _setting(row) not in own)])


def machines_table(results: Results, large: Results, setting: Setting) -> str:
    """Mean, lowest and highest mAP@R over seeds of a setting that was trained on both machines, and the gain of L*_DG."""
    machines = {"CPU": results, "GPU": large}
    gains = gain_cells([some.gain(setting, "L*_DG") for some in machines.values()])
    lines = ["| | Sup-AP | L*_DG | gain of L*_DG |", "|---|---:|---:|---:|"]
    for (name, some), gain in zip(machines.items(), gains, strict=True):
        cells = []
        for method in BOTH:
            values = [row["mAP@R"] for row in some.tests(setting, method)]
            cells.append(f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})")
        lines.append(f"| {name} | {' | '.join(cells)} | {gain} |")
    return "\n".join(lines) + "\n"


STYLES = {"Sup-AP": ("#000000", "o", ""), "L_DG": ("#E69F00", "s", "+ L_DG"), "L*_DG": ("#0072B2", "^", "+ L*_DG")}
MEMORY_STYLES = {"Sup-AP": ("#009E73", "D", "+ memory"), "L*_DG": ("#CC79A7", "v", "+ memory + L*_DG")}


def draw(results: Results, path: Path) -> None:
    """mAP@R and gains against the batch size in both conventions; the gap, and the gains of L*_DG against it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 7.5), layout="constrained")
    panels = figure.subplots(2, 3)
    memory = [one for one in results.settings(memory=True) if one.steps == STEPS]
    _draw_levels(results, panels[:, 0], f"equal images ({IMAGES:,})", results.equal_images(), results.equal_images(memory=True))
    _draw_levels(results, panels[:, 1], f"equal steps ({STEPS})", results.equal_steps(), memory)
    _draw_gap(results, panels[0, 2], panels[1, 2])
    figure.savefig(path, dpi=110)


def _draw_levels(results: Results, panels: Any, title: str, chosen: list[Setting], with_memory: list[Setting]) -> None:
    """mAP@R of all methods in the upper panel, and gains over Sup-AP in the lower one."""
    level, gain = panels
    for style, some, is_memory in ((STYLES, chosen, False), (MEMORY_STYLES, with_memory, True)):
        for method, (color, marker, label) in style.items():
            offset = (-0.5 if method == "L*_DG" else -1.5) + (2 if is_memory else 0)  # so that intervals stand side by side
            own = [one for one in some if results.tests(one, method)]
            if not own:
                continue
            batches = np.array([results.items(one) for one in own])
            means = [np.mean([row["mAP@R"] for row in results.tests(one, method)]) for one in own]
            level.plot(batches, means, color=color, marker=marker, label=label or method)
            if label:
                over = [Setting(one.batch, one.steps) for one in own]
                gains = [results.gain(one, method, over=base) for one, base in zip(own, over, strict=True)]
                points = [(x, g) for x, g in zip(batches, gains, strict=True) if g is not None]
                if not points:
                    continue
                x = np.array([place for place, _ in points]) * (1 + 0.08 * offset)
                y = np.array([g.difference for _, g in points])
                ends = np.abs(np.array([[g.low, g.high] for _, g in points]).T - y)
                gain.errorbar(x, y, ends, color=color, marker=marker, capsize=3, label=label)
    gain.axhline(0, color="#999999", linewidth=1)
    level.set(title=title, ylabel="mAP@R of unseen classes, %")
    gain.set(ylabel="gain over Sup-AP, points of mAP@R")
    for panel in (level, gain):
        _batch_axis(panel, [results.items(one) for one in chosen], [_batch(one) for one in chosen])
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize="small")


def _draw_gap(results: Results, gap: Any, against: Any) -> None:
    chosen = results.equal_images()
    batches = [results.items(one) for one in chosen]
    gap.plot(batches, [results.gap_before(one) for one in chosen], color="#999999", marker=".", label="before training")
    for method, (color, marker, _) in STYLES.items():
        own = [one for one in chosen if results.tests(one, method)]
        values = [results.gap_after(one, method) for one in own]
        gap.plot([results.items(one) for one in own], values, color=color, marker=marker, label=f"after {method}")
    gap.set(title="decomposability gap of AP, equal images", ylabel="AP in batches − AP over all, points")
    _batch_axis(gap, batches, [_batch(one) for one in chosen])
    gap.legend(fontsize="small")
    for some, style, title in ((chosen, "-", "equal images"), (results.equal_steps(), ":", "equal steps")):
        gains = [(results.gap_after(one, "Sup-AP"), found) for one in some if (found := results.gain(one, "L*_DG")) is not None]
        x, y = np.array([place for place, _ in gains]), np.array([found.difference for _, found in gains])
        ends = np.abs(np.array([[found.low, found.high] for _, found in gains]).T - y)
        color, marker, label = STYLES["L*_DG"]
        fill = color if style == "-" else "white"
        against.errorbar(
            x, y, ends, color=color, marker=marker, markerfacecolor=fill, capsize=3, linestyle=style, label=f"{label}, {title}"
        )
    against.axhline(0, color="#999999", linewidth=1)
    against.set(xlabel="decomposability gap after Sup-AP, points of AP", ylabel="gain over Sup-AP, points of mAP@R")
    against.legend(fontsize="small")


def _batch_axis(panel: Any, batches: list[int], names: list[str]) -> None:
    panel.set_xscale("log", base=2)
    panel.set_xticks(batches, names, fontsize="small")
    panel.set_xlabel("images in a batch")


def write_page(*, check: bool) -> None:
    """Write the tables and draw the figure; or only exit with 1 if the page has other tables."""
    results, small, large = (Results(read_rows(path)) for path in (RESULTS, SMALL_RESULTS, LARGE_RESULTS))
    pages.update(PAGE, tables(results, small, large), check=check)
    if not check:
        draw(with_large(results, large), RESULTS.with_suffix(".png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    help_text = "a folder of `suprank embed` with the parts train and test, or a file of --save-reduced"
    parser.add_argument("embeddings", type=Path, nargs="?", help=help_text)
    parser.add_argument("--level", default="character")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--small", action="store_true", help="train on five images of each class")
    which.add_argument("--large", action="store_true", help="train in batches up to the whole collection, and with a memory")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--jobs", type=int, default=1, help="number of processes that share the runs")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no further run is started")
    parser.add_argument("--settings", nargs="+", help="train only these settings of the study, such as wholex300")
    parser.add_argument("--out", type=Path, help="another file of results")
    parser.add_argument("--save-reduced", type=Path, help="train nothing; write the principal components to this .npz file")
    parser.add_argument("--write", action="store_true", help="train nothing; write the tables and draw the figure")
    parser.add_argument("--check", action="store_true", help="train nothing; exit with 1 if the page has other tables")
    options = parser.parse_args()
    if options.write or options.check:
        write_page(check=options.check)
        return
    if options.embeddings is None:
        parser.error("give a folder of embeddings to train on, or --write or --check")
    torch.set_num_threads(1)
    if options.embeddings.suffix == ".npz":
        if options.small:
            parser.error("--small reduces five images of each class; give it the folder of embeddings")
        reduced = Reduced.load(options.embeddings)
    else:
        per_class = SMALL_PER_CLASS if options.small else None
        reduced = Reduced.from_folder(options.embeddings, options.level, components=COMPONENTS, per_class=per_class)
    if options.save_reduced is not None:
        reduced.save(options.save_reduced)
        return
    path, seeds = RESULTS, MAIN_SEEDS
    settings: Settings = MAIN
    if options.small:
        path, settings, seeds = SMALL_RESULTS, SMALL, SMALL_SEEDS
    elif options.large:
        path, settings = LARGE_RESULTS, LARGE
    if options.settings is not None:
        if unknown := set(options.settings) - set(settings):
            parser.error(f"this study has no {', '.join(sorted(unknown))}")
        settings = {text: methods for text, methods in settings.items() if text in options.settings}
    collection, study = Collection(reduced, dim=DIM, device=options.device), Study(options.out or path)
    if not options.large:
        for text in settings:
            study.start(collection, parse_setting(text).batch)
    if options.jobs == 1:
        train_all(study, collection, settings, seeds, options.limit)
    else:
        train_in_processes(study, collection, settings, seeds, options.jobs, options.limit)


if __name__ == "__main__":
    main()
