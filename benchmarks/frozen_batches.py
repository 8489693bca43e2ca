"""Do larger batches, or a memory of the whole collection, replace the decomposability losses? On frozen embeddings, on a CPU.

    suprank data import csv omniglot35.zip --out omniglot35.parquet
    suprank embed tf_efficientnet_lite0 omniglot35.parquet --weights tf_efficientnet_lite0.in1k.safetensors \\
        --split train --split test --size 64 --resize 64 --out omniglot
    OMP_NUM_THREADS=1 python benchmarks/frozen_batches.py omniglot     trains the runs that are not in the results yet
    OMP_NUM_THREADS=1 python benchmarks/frozen_batches.py omniglot --small     those on five images of each class
    python benchmarks/frozen_batches.py --write      writes the tables of docs/batch-size.md, and draws the figure
    python benchmarks/frozen_batches.py --check      exits with 1 if the page has other tables

A linear head is trained as by `suprank adapt`, on principal components of the embeddings, with Sup-AP, Sup-AP + L_DG (on pairs)
and Sup-AP + L*_DG (on proxies). By one convention all runs see equally many images, by the other all take equally many steps.
For each method and batch size, the learning rate is chosen from the same list by the mAP@R of training classes that are held
out. With it the head is trained on all training classes, once with each seed, and tested after its last step on unseen classes.

A line of the results is a run; metrics are in percent. Runs that are in the file are not repeated, so that an interrupted study
goes on. Settings are trained in the order of the list `MAIN`, or `SMALL`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from suprank.adaptation import AdaptConfig, EvaluationSet
from suprank.adaptation.class_splits import BatchShape
from suprank.adaptation.head_trainer import HeadTrainer
from suprank.adaptation.principal_start import principal_heads
from suprank.evaluation import decomposability_gap
from suprank.evaluation.statistics import SeedBootstrap, SeedDifference, holm
from suprank.losses import collection_loss, skip_value_checks
from suprank.losses.memory import EmbeddingMemory
from suprank.models.head import Head, HeadConfig
from suprank.training.memory_loss import LossWithMemory
from suprank.workflows.adaptation import AdaptInput

ROOT = Path(__file__).parents[1]
PAGE, FOLDER = ROOT / "docs" / "batch-size.md", ROOT / "benchmarks" / "results" / "cpu"
RESULTS, SMALL_RESULTS = FOLDER / "frozen-batches.jsonl", FOLDER / "frozen-batches-5.jsonl"
LOSSES: dict[str, dict[str, Any]] = {
    "Sup-AP": {"name": "sup-ap"},
    "L_DG": {"name": "roadmap", "decomposability": "pairs"},
    "L*_DG": {"name": "roadmap"},
}
METRICS = ("mAP@R", "AP", "R@1")
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
COMPONENTS, DIM = 256, 128  # principal components of the embeddings, and width of the head's output
MAIN_SEEDS, SMALL_SEEDS = 5, 3
SMALL_PER_CLASS = 5
IMAGES, STEPS = 76_800, 300  # images that every run of the one convention sees, and steps that all of the other take
LONG = 4_800  # steps of a control: those of the smallest batch of the first convention
PER_CLASS = 4
VALIDATION = 0.25  # share of the training classes that choose the learning rate
TUNING_SEED = 100
CHUNK = 128  # queries of a large batch at a time
SAMPLES = 2_000  # of the bootstrap
Row = dict[str, Any]

# Batch size x steps, and the methods. 76,800 images: 16 x 4,800 to 1,024 x 75. 300 steps: 16 x 300 to 256 x 300.
BOTH, ALL = ("Sup-AP", "L*_DG"), tuple(LOSSES)
MAIN = {
    **dict.fromkeys(("64x1200", "256x300", "16x4800", "1024x75", "16x300", "64x300"), ALL),
    **dict.fromkeys(("16x300+memory", "64x4800"), BOTH),
    **dict.fromkeys(("32x2400", "512x150", "128x600", "32x300", "128x300"), ALL),
}
SMALL = {**dict.fromkeys(("16x4800", "256x300", "wholex16"), BOTH), "16x4800+memory": ("Sup-AP",)}


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

    def __init__(self, *arguments: Any, memory: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.with_memory = None
        if memory:
            images, width = len(self.embeddings), self.head.config.out_features
            stored = EmbeddingMemory(images, width, self.labels.shape[1], per_item=True)
            stored.add(self.head(self.embeddings), self.labels, torch.arange(images))
            self.with_memory = LossWithMemory(self.loss, stored)

    def _batch_loss(self, rows: torch.Tensor) -> torch.Tensor:
        outputs, labels = self.head(self.embeddings[rows]), self.labels[rows]
        with skip_value_checks():
            if self.with_memory is not None:
                return self.with_memory(outputs, labels, rows)
            if len(rows) > 4 * CHUNK:
                return collection_loss(self.loss, outputs, labels, chunk=CHUNK)
            return self.loss(outputs, labels)

    def _whole_loss(self) -> torch.Tensor:
        with skip_value_checks():
            return collection_loss(self.loss, self.head(self.embeddings), self.labels, chunk=CHUNK)


class Collection:
    """Principal components of frozen embeddings, and the head at which every run begins."""

    def __init__(self, folder: Path, level: str, *, components: int, dim: int, per_class: int | None) -> None:
        data = AdaptInput.read(folder, levels=[level])
        assert data.test is not None, f"{folder} needs a part for training and a part for testing"
        embeddings, labels = np.asarray(data.embeddings), data.labels[:, 0]
        if per_class is not None:
            rows = _first_of_each_class(labels, per_class)
            embeddings, labels = embeddings[rows], labels[rows]
        reduced = HeadConfig(in_features=embeddings.shape[1], out_features=components)
        reduction = principal_heads(embeddings, reduced)["centered"]
        self.embeddings, self.labels = reduction.transform(embeddings), labels
        self.test = EvaluationSet(reduction.transform(np.asarray(data.test.queries)), data.test.labels)
        classes = np.random.default_rng(0).permutation(np.unique(labels))
        self.held_out = np.isin(labels, classes[: round(VALIDATION * len(classes))])
        self.head_config = HeadConfig(in_features=components, out_features=dim)

    def train(self, run: Run) -> Head:
        """Train the head of a run: on all training images, or without those that are held out."""
        rows = ~self.held_out if run.part == "tune" else np.ones(len(self.labels), bool)
        embeddings = self.embeddings[rows]
        labels = np.unique(self.labels[rows], return_inverse=True)[1]
        head = principal_heads(embeddings, self.head_config)["uncentered"]
        trainer = Trainer(
            head,
            torch.from_numpy(embeddings),
            torch.from_numpy(labels)[:, None],
            AdaptConfig(loss=LOSSES[run.method], lr=run.lr),
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
            tested = EvaluationSet(self.embeddings[self.held_out], self.labels[self.held_out])
            return _percent(tested.evaluate(head, metrics=METRICS[:1], device="cpu", progress=False).values)
        report = self.test.evaluate(head, metrics=METRICS, per_query=True, device="cpu", progress=False)
        found = _percent({name: report[name] for name in METRICS})
        if run.seed == 0 and run.batch != "whole":
            found["gap"] = self.gap(head, int(run.batch))
        values = report.values_per_query("class means")["mAP@R"]
        places = np.unique(self.test.labels[:, 0], return_inverse=True)[1]
        found["classes"] = np.round(100 * np.bincount(places, values) / np.bincount(places), 2).tolist()
        return found

    def gap(self, head: Head, batch: int) -> dict[str, float]:
        """AP of the test images in batches of the size and composition of training, over all, and the difference."""
        fine, generator = self.test.labels[:, 0], np.random.default_rng(0)
        per_class = batch_shape(batch, fine).images_per_class
        groups = [
            rows[start : start + per_class]
            for rows in (generator.permutation(np.flatnonzero(fine == one)) for one in np.unique(fine))
            for start in range(0, len(rows), per_class)
        ]
        order = np.concatenate([groups[place] for place in generator.permutation(len(groups))])
        parts = [order[start : start + batch] for start in range(0, len(order), batch)]
        found = decomposability_gap(head.transform(self.test.queries), fine, parts, device="cpu", progress=False)
        return _percent({"in batches": found.in_batches, "overall": found.overall, "gap": found.value})


def batch_shape(batch: int, labels: np.ndarray) -> BatchShape:
    """Four images of a class, or twice as many until there are classes enough."""
    per_class = PER_CLASS
    while batch // per_class > len(np.unique(labels)):
        per_class *= 2
    return BatchShape(batch, per_class)


def _first_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    return np.sort(np.concatenate([np.flatnonzero(labels == one)[:count] for one in np.unique(labels)]))


def _percent(values: dict[str, float]) -> dict[str, float]:
    return {name: round(100 * value, 3) for name, value in values.items()}


# The study


def parse_setting(text: str) -> Setting:
    """The setting that is written as 64x1200, wholex16 or 16x300+memory."""
    found = re.fullmatch(r"(whole|\d+)x(\d+)(\+memory)?", text)
    if found is None:
        raise ValueError(f"{text!r} is not BATCHxSTEPS, such as 64x1200, wholex16 or 16x300+memory.")
    return Setting("whole" if found[1] == "whole" else int(found[1]), int(found[2]), memory=found[3] is not None)


def train_setting(study: Study, collection: Collection, setting: Setting, methods: Sequence[str], seeds: int) -> None:
    """Choose the learning rates of a setting, and train and test every method with every seed."""
    chosen = {}
    for method in methods:
        runs = [Run("tune", **asdict(setting), method=method, lr=lr, seed=TUNING_SEED) for lr in RATES]
        trials = [study.result(run, collection) for run in runs]
        chosen[method] = max(trials, key=lambda row: row["mAP@R"])["lr"]
    for seed in range(seeds):
        for method, lr in chosen.items():
            if setting.batch != "whole" or method == "L*_DG" or seed == 0:  # only proxies are random
                study.result(Run("test", **asdict(setting), method=method, lr=lr, seed=seed), collection)


class Study:
    """The rows of a file of results, to which runs are appended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = read_rows(path)

    def result(self, run: Run, collection: Collection) -> dict[str, Any]:
        """The row of a run, which is trained if the file does not have it."""
        settings = asdict(run)
        for row in self.rows:
            if settings.items() <= row.items():
                return row
        start = time.process_time()
        head = collection.train(run)
        trained = time.process_time() - start
        row = {**settings, **collection.measure(run, head), "cpu_s": round(trained, 2)}
        self.append(row)
        print(*settings.values(), row["mAP@R"], row["cpu_s"], "s", flush=True)
        return row

    def start(self, collection: Collection, batch: int | str) -> None:
        """Measure the head before the first step, and its gap in batches of this size."""
        head = principal_heads(collection.embeddings, collection.head_config)["uncentered"].eval()
        if not any(row["part"] == "start" for row in self.rows):
            report = collection.test.evaluate(head, metrics=METRICS, device="cpu", progress=False)
            sizes = {"images": len(collection.labels), "classes": len(np.unique(collection.labels))}
            self.append({"part": "start", **sizes, **_percent({name: report[name] for name in METRICS})})
        if batch != "whole" and not any(row["part"] == "gap" and row["batch"] == batch for row in self.rows):
            self.append({"part": "gap", "batch": batch, **collection.gap(head, int(batch))})

    def append(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of results; none if there is no file yet."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


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

    def settings(self, *, memory: bool = False) -> list[Setting]:
        """All settings with tests of Sup-AP, by batch size and steps."""
        found = {Setting(row["batch"], row["steps"], row["memory"]) for row in self.rows if row["part"] == "test"}
        tested = [one for one in found if one.memory == memory and self.tests(one, "Sup-AP")]
        return sorted(tested, key=lambda one: (self.items(one), one.steps))

    def items(self, setting: Setting) -> int:
        """Images in a batch."""
        return self.start["images"] if setting.batch == "whole" else int(setting.batch)

    def equal_images(self) -> list[Setting]:
        """The settings of the first convention."""
        return [one for one in self.settings() if one.steps == round(IMAGES / self.items(one))]

    def equal_steps(self, steps: int = STEPS) -> list[Setting]:
        """The settings of the second convention, or of other steps."""
        return [one for one in self.settings() if one.steps == steps]

    def gain(self, setting: Setting, method: str, metric: str = "mAP@R", over: Setting | None = None) -> SeedDifference | None:
        """How much a method is above Sup-AP, there or in another setting; None without runs.

        The interval is over seeds and test classes, of other metrics than mAP@R over seeds only.
        """
        both = self.tests(setting, method), self.tests(over or setting, "Sup-AP")
        if not all(both):
            return None
        if metric == "mAP@R":
            values = [np.array([row["classes"] for row in rows])[:, :, None] for rows in both]
        else:
            values = [np.array([row[metric] for row in rows])[:, None, None] for rows in both]
        return SeedBootstrap(values, samples=SAMPLES).difference(0, 1, 0)

    def gap_before(self, setting: Setting) -> float:
        """The gap before the first step, in batches of the size of the setting."""
        if setting.batch == "whole":
            return 0.0
        return next(row["gap"] for row in self.rows if row["part"] == "gap" and row["batch"] == setting.batch)

    def gap_after(self, setting: Setting, method: str) -> float:
        """The gap after training with a method."""
        return 0.0 if setting.batch == "whole" else self.tests(setting, method)[0]["gap"]["gap"]


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


def replacement_table(results: Results) -> str:
    """Equal images: L*_DG in the two smallest batches minus Sup-AP in batches of each size."""
    chosen = results.equal_images()
    cells = gain_cells([results.gain(small, "L*_DG", over=one) for small in chosen[:2] for one in chosen])
    lines = [
        f"| | {' | '.join(f'Sup-AP, {_batch(one)}' for one in chosen)} |",
        "|---|" + "---:|" * len(chosen),
    ]
    for place, small in enumerate(chosen[:2]):
        own = cells[place * len(chosen) : (place + 1) * len(chosen)]
        lines.append(f"| L*_DG, {_batch(small)} | {' | '.join(own)} |")
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


def rates_table(results: Results) -> str:
    """The learning rates that the validation classes chose."""
    lines = ["| batch | steps | memory | Sup-AP | L_DG | L*_DG |", "|---:|---:|---|---:|---:|---:|"]
    for one in [*results.settings(), *results.settings(memory=True)]:
        rates = [next((f"{row['lr']:g}" for row in results.tests(one, method)), "") for method in LOSSES]
        lines.append(f"| {_batch(one)} | {one.steps:,} | {'yes' if one.memory else ''} | {' | '.join(rates)} |")
    return "\n".join(lines) + "\n"


def prediction(results: Results) -> str:
    """Whether the gap before training predicts the gain: Spearman's correlation over batch sizes."""
    chosen = results.equal_images()
    gaps = [results.gap_before(one) for one in chosen]
    found = []
    for method in ("L_DG", "L*_DG"):
        gains = [gain.difference for one in chosen if (gain := results.gain(one, method)) is not None]
        found.append(f"{spearman(gaps, gains):.2f} for {method}".replace("-", "−"))
    over = f"over {len(chosen)} batch sizes"
    return f"Spearman's rank correlation of the gap before training and the gain, {over}: {', '.join(found)}.\n"


def spearman(first: list[float], second: list[float]) -> float:
    """The correlation of ranks; values are assumed to differ."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.corrcoef(ranks)[0, 1])


def _batch(setting: Setting) -> str:
    return "whole" if setting.batch == "whole" else f"{setting.batch:,}"


def tables(results: Results, small: Results) -> dict[str, str]:
    """What stands between the markers of the page; `small` has the runs on a fourth of the images."""
    return {
        "images": images_table(results),
        "steps": gains_table(results, results.equal_steps()),
        "long": gains_table(results, results.equal_steps(LONG)),
        "small": gains_table(small, small.settings()),
        "replacement": replacement_table(results),
        "metrics": metrics_table(results),
        "rates": rates_table(results),
        "small rates": rates_table(small),
        "prediction": prediction(results),
    }


def rewrite(text: str, written: dict[str, str]) -> str:
    """The page with the tables between its markers."""

    def table(found: re.Match[str]) -> str:
        return f"<!-- begin {found[1]} -->\n{written[found[1]]}<!-- end {found[1]} -->"

    return re.sub(r"<!-- begin ([^>]+) -->\n.*?<!-- end \1 -->", table, text, flags=re.DOTALL)


def draw(results: Results, path: Path) -> None:
    """mAP@R and gains against the batch size in both conventions; the gap, and the gain against it."""
    from matplotlib.figure import Figure

    styles = {"Sup-AP": ("#000000", "o", ""), "L_DG": ("#E69F00", "s", "+ L_DG"), "L*_DG": ("#0072B2", "^", "+ L*_DG")}
    memory_styles = {"Sup-AP": ("#009E73", "D", "+ memory"), "L*_DG": ("#CC79A7", "v", "+ memory + L*_DG")}
    figure = Figure(figsize=(13, 7), layout="constrained")
    panels = figure.subplots(2, 3)
    columns = [
        ("equal images", results.equal_images(), []),
        ("equal steps", results.equal_steps(), results.settings(memory=True)),
    ]
    for column, (title, chosen, with_memory) in enumerate(columns):
        level, gain = panels[0, column], panels[1, column]
        for style, some, is_memory in ((styles, chosen, False), (memory_styles, with_memory, True)):
            for number, (method, (color, marker, label)) in enumerate(style.items()):
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
                    x = np.array([place for place, _ in points]) * (1 + 0.08 * (number - 1.5 + is_memory))
                    y = np.array([g.difference for _, g in points])
                    ends = np.abs(np.array([[g.low, g.high] for _, g in points]).T - y)
                    gain.errorbar(x, y, ends, color=color, marker=marker, capsize=3, label=label)
        level.axhline(results.start["mAP@R"], color="#999999", linestyle=":", label="before training")
        gain.axhline(0, color="#999999", linewidth=1)
        level.set(title=title, ylabel="mAP@R of unseen classes, %")
        gain.set(ylabel="gain over Sup-AP, points of mAP@R")
        for panel in (level, gain):
            panel.set(xlabel="images in a batch", xscale="log")
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.legend(fontsize="small")
    _draw_gap(results, panels[0, 2], panels[1, 2], styles)
    figure.savefig(path, dpi=110)


def _draw_gap(results: Results, gap: Any, against: Any, styles: dict[str, tuple[str, str, str]]) -> None:
    chosen = results.equal_images()
    batches = [results.items(one) for one in chosen]
    gap.plot(batches, [results.gap_before(one) for one in chosen], color="#999999", marker=".", label="before training")
    for method, (color, marker, label) in styles.items():
        own = [one for one in chosen if results.tests(one, method)]
        values = [results.gap_after(one, method) for one in own]
        gap.plot([results.items(one) for one in own], values, color=color, marker=marker, label=f"after {method}")
        gains = [(results.gap_before(one), found) for one in own if (found := results.gain(one, method)) is not None]
        if label and gains:
            x, y = np.array([place for place, _ in gains]), np.array([found.difference for _, found in gains])
            ends = np.abs(np.array([[found.low, found.high] for _, found in gains]).T - y)
            against.errorbar(x, y, ends, color=color, marker=marker, capsize=3, linestyle="", label=label)
    gap.set(
        title="decomposability gap of AP, equal images",
        xlabel="images in a batch",
        ylabel="AP in batches − AP over all, points",
    )
    gap.set_xscale("log", base=2)
    gap.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    gap.legend(fontsize="small")
    against.axhline(0, color="#999999", linewidth=1)
    against.set(xlabel="decomposability gap before training, points of AP", ylabel="gain over Sup-AP, points of mAP@R")
    against.legend(fontsize="small")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("embeddings", type=Path, nargs="?", help="a folder of `suprank embed` with the parts train and test")
    parser.add_argument("--level", default="character")
    parser.add_argument("--small", action="store_true", help="train on five images of each class")
    parser.add_argument("--write", action="store_true", help="train nothing; write the tables and draw the figure")
    parser.add_argument("--check", action="store_true", help="train nothing; exit with 1 if the page has other tables")
    options = parser.parse_args()
    if options.write or options.check:
        before = PAGE.read_text(encoding="utf-8")
        results = Results(read_rows(RESULTS))
        after = rewrite(before, tables(results, Results(read_rows(SMALL_RESULTS))))
        if options.check and after != before:
            sys.exit(f"{PAGE} is not what the runs say; python benchmarks/frozen_batches.py --write writes it anew.")
        if options.write:
            PAGE.write_text(after, encoding="utf-8")
            draw(results, RESULTS.with_suffix(".png"))
        return
    if options.embeddings is None:
        parser.error("give a folder of embeddings to train on, or --write or --check")
    torch.set_num_threads(1)
    per_class = SMALL_PER_CLASS if options.small else None
    collection = Collection(options.embeddings, options.level, components=COMPONENTS, dim=DIM, per_class=per_class)
    study = Study(SMALL_RESULTS if options.small else RESULTS)
    for text, methods in (SMALL if options.small else MAIN).items():
        setting = parse_setting(text)
        study.start(collection, setting.batch)
        train_setting(study, collection, setting, methods, SMALL_SEEDS if options.small else MAIN_SEEDS)


if __name__ == "__main__":
    main()
