"""Hours and disk of training runs, estimated before they are run.

The hours are steps × the time of a step, and evaluations × test images × the time to embed one. Both times are measured for
the networks of the recipes by benchmarks/step_times.py (`step_times.json`), without data loading: decoding has to keep up. If
runs of the same network, image size and batch are finished, their time is used instead, which includes data loading.

A memory of earlier batches, and the search and the metrics of evaluations, are not counted. Frozen epochs are counted like
others, although their steps are shorter.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from suprank.data.importers.base import split_counts
from suprank.embedding.parts import PARTS
from suprank.embedding.query_gallery import ranked_parts
from suprank.experiments.results import read_outcome
from suprank.losses.memory import EmbeddingMemory
from suprank.models.config import EmbedderConfig
from suprank.models.model_folder import SETTINGS
from suprank.models.networks import create_network
from suprank.paper.datasets import START
from suprank.training.batches import TrainBatches
from suprank.training.config import BatchConfig, ScheduleConfig, TrainConfig
from suprank.training.manifests import open_manifest
from suprank.training.recipe import read_recipe
from suprank.training.recipe_files import RecipeError
from suprank.training.run_folder import RECIPE, RESULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import nn

    from suprank.paper.datasets import DatasetSize

STEP_TIMES = Path(__file__).with_name("step_times.json")
"""What benchmarks/step_times.py wrote."""

_FORWARD_SHARE = 1 / 3  # of a step: the backward pass takes twice as long as the forward pass
_MODEL_KEYS = ("backbone", "pooling", "normalization", "dim", "bias")


class StepTime(NamedTuple):
    """Seconds of a training step and of embedding one image, measured for a network at an image size and a batch size."""

    backbone: str
    pooling: str
    image_size: int
    batch_size: int
    precision: str
    step_seconds: float
    embedding_seconds: float


class StepTimes(NamedTuple):
    """Measured times, and where they come from: "benchmarks/step_times.py on one NVIDIA H200, 2026-11-16"."""

    rows: tuple[StepTime, ...]
    source: str

    @classmethod
    def load(cls, file: Path = STEP_TIMES) -> Self:
        """Read a file that benchmarks/step_times.py wrote."""
        content = json.loads(file.read_text(encoding="utf-8"))
        rows = tuple(StepTime(**{key: row[key] for key in StepTime._fields}) for row in content["networks"])
        return cls(rows, f"benchmarks/step_times.py on one {content['hardware']}, {content['date'][:10]}")

    def nearest(self, network: EmbedderConfig, image_size: int, batch_size: int, precision: str) -> StepTime | None:
        """The measurement of this backbone and precision with the nearest image size, then batch size, then pooling.

        16 bits are 16 bits: bf16 stands for fp16.
        """

        def distance(row: StepTime) -> tuple[float, float, bool]:
            size, batch = math.log(row.image_size / image_size), math.log(row.batch_size / batch_size)
            return abs(size), abs(batch), row.pooling != network.pooling

        bits = "fp32" if precision == "fp32" else "bf16"
        rows = [row for row in self.rows if (row.backbone, row.precision) == (network.backbone, bits)]
        return min(rows, key=distance, default=None)


class FinishedRun(NamedTuple):
    """The recipe of a finished run, its steps, and the seconds that they took, without evaluations."""

    config: TrainConfig
    step: int
    seconds: float


class Cost(NamedTuple):
    """What a run takes: its steps, hours of one GPU (None if its network was not measured), and the size of its folder.

    `source` says where the hours come from.
    """

    steps: int
    gpu_hours: float | None
    disk_bytes: int
    source: str


def finished_runs(folder: Path) -> list[FinishedRun]:
    """The finished runs in a folder, at any depth. Runs whose recipe this version cannot read are left out."""
    runs = []
    for result in sorted(folder.rglob(RESULT)):
        outcome = read_outcome(result.parent) if (result.parent / RECIPE).is_file() else None
        if outcome is not None:
            try:
                runs.append(FinishedRun(read_recipe(result.parent / RECIPE), outcome.step, outcome.seconds))
            except RecipeError:
                continue
    return runs


def estimate(
    config: TrainConfig,
    size: DatasetSize | None,
    manifest: Path | str | None,
    finished: Sequence[FinishedRun] = (),
    times: StepTimes | None = None,
) -> Cost:
    """The cost of a run of this recipe.

    The steps are exactly those of training if there is a manifest; otherwise they follow from the size of the dataset. Of an
    m-per-class sampler they are then a guess: the last group of a class is taken to be half full. `times` are the measured
    times, by default those that come with suprank.
    """
    if manifest is not None:
        counts = _count_manifest(config, str(manifest))
    elif size is not None:
        counts = _count_published(config, size)
    else:
        raise ValueError("an estimate needs a manifest, or the size of the dataset.")
    steps = config.run.epochs * -(-counts.batches // config.batch.accumulate)
    embedded = _evaluations(config) * counts.test_images
    alike = [run for run in finished if run.step and _speed_settings(run.config) == _speed_settings(config)]
    if alike:
        seconds, source = _seconds_of_finished(alike, config, steps, embedded)
    else:
        seconds, source = _seconds_of_measured(times or StepTimes.load(), config, steps, embedded)
    return Cost(steps, None if seconds is None else seconds / 3600, _disk_bytes(config, counts), source)


# Hours


def _seconds_of_finished(
    runs: Sequence[FinishedRun], config: TrainConfig, steps: int, embedded: int
) -> tuple[float | None, str]:
    devices = config.engine.devices * config.engine.nodes
    step = devices * sum(run.seconds for run in runs) / sum(run.step for run in runs)
    image = _FORWARD_SHARE * step / (config.batch.size * config.batch.accumulate)
    plural = "s" if len(runs) > 1 else ""
    return steps * step + embedded * image, f"from {len(runs)} finished run{plural} of the same network, image size and batch"


def _seconds_of_measured(times: StepTimes, config: TrainConfig, steps: int, embedded: int) -> tuple[float | None, str]:
    network, batch, side = _network_config(config), config.batch, config.images.size
    in_chunks = batch.chunk is not None and batch.chunk < batch.size
    at_once = batch.chunk if in_chunks and batch.chunk is not None else batch.size
    row = times.nearest(network, side, at_once, config.engine.precision)
    if row is None:
        return None, f"not measured: {network.backbone} in {config.engine.precision}"
    notes = [f"measured: {times.source}; data loading is not included"]
    pixels = (side / row.image_size) ** 2
    if (row.image_size, row.batch_size) != (side, at_once):
        notes.append(f"scaled from batches of {row.batch_size} at {row.image_size} pixels")
    step = row.step_seconds * pixels * batch.size * batch.accumulate / row.batch_size
    if in_chunks:
        step *= 1 + _FORWARD_SHARE
        notes.append("in chunks every image is embedded twice")
    return steps * step + embedded * row.embedding_seconds * pixels, "; ".join(notes)


def _speed_settings(config: TrainConfig) -> tuple[Any, ...]:
    """What the time of a step depends on: network, image size, batch, devices, precision."""
    network, batch, engine = _network_config(config), config.batch, config.engine
    model = tuple(getattr(network, key) for key in _MODEL_KEYS)
    devices = (engine.accelerator, engine.devices, engine.nodes, engine.precision)
    return (*model, config.images.size, batch.size, batch.chunk, batch.accumulate, *devices)


def _evaluations(config: TrainConfig) -> int:
    """Evaluations of a run: every few epochs, at the end, and at the start if the recipe says so."""
    every, epochs = config.evaluation.every, config.run.epochs
    before_the_end = (epochs - 1) // every if every else 0
    return before_the_end + 1 + config.evaluation.at_start


# Images, classes and batches


class _Counts(NamedTuple):
    """Batches of an epoch, training images, their classes by level (finest first), and the images that are evaluated."""

    batches: int
    train_images: int
    classes: tuple[int, ...]
    test_images: int


def _count_manifest(config: TrainConfig, manifest: str) -> _Counts:
    tests = [_split_counts(file, _modified(file)) for file in config.data.tests.values()]
    own = _split_counts(manifest, _modified(manifest))
    if {"test", "query"} & set(own):
        tests.append(own)
    train = own.get("train", {})
    levels = config.data.levels or [level for level in train if level != "images"]
    batches = _batches_of_epoch(manifest, _modified(manifest), config.batch, config.data.levels)
    return _Counts(batches, train["images"], tuple(train[level] for level in levels), sum(map(_evaluated_images, tests)))


def _count_published(config: TrainConfig, size: DatasetSize) -> _Counts:
    levels = config.data.levels or tuple(size.classes)
    classes = tuple(size.classes[level] for level in levels)
    return _Counts(_published_batches(config.batch, size, levels), size.train_images, classes, size.test_images)


def _published_batches(batch: BatchConfig, size: DatasetSize, levels: Sequence[str]) -> int:
    if batch.batches is not None:
        return batch.batches
    if batch.sampler == "hierarchical":
        coarse = size.classes[batch.level or levels[1]]
        return math.comb(coarse, batch.coarse_per_batch) * batch.batches_per_combination
    m, classes = batch.images_per_class, size.classes[levels[0]]
    groups = size.train_images / m + classes * (m - 1) / (2 * m)
    if batch.max_images_per_class is not None:
        groups = min(groups, classes * batch.max_images_per_class / m)
    return math.ceil(groups * m / batch.size)


def _evaluated_images(counts: Mapping[str, Mapping[str, int]]) -> int:
    images = {part: sum(counts[split]["images"] for split in splits if split in counts) for part, splits in PARTS.items()}
    return sum(images[part] for part in ranked_parts([part for part, count in images.items() if count]))


@cache
def _split_counts(manifest: str, modified: int) -> dict[str, dict[str, int]]:
    return split_counts(open_manifest(manifest))


@cache
def _batches_of_epoch(manifest: str, modified: int, batch: BatchConfig, levels: tuple[str, ...] | None) -> int:
    """Batches of an epoch, by the sampler of training; it depends on these settings only."""
    data = {"manifest": manifest, "levels": levels}
    config = TrainConfig.model_validate({"data": data, "batch": batch.model_dump(), "loss": {"name": "smooth-ap"}})
    return len(TrainBatches.from_config(config, open_manifest(manifest)))


def _modified(manifest: str) -> int:
    """When the file was changed, so that a manifest that is imported again is read again."""
    file = Path(manifest)
    return file.stat().st_mtime_ns if file.is_file() else 0


# Disk


def _disk_bytes(config: TrainConfig, counts: _Counts) -> int:
    """Models and checkpoints of a run folder; recipe, metrics and reports are small beside them."""
    network = _network_size(_network_config(config))
    loss, proxies = _loss_size(config, counts, network.dim)
    moments = _moments(config.optimizer) * network.parameters + _moments(config.proxies) * proxies
    checkpoint = network.state_bytes + loss + 4 * moments
    models = 2 if counts.test_images else 1  # the last, and the best
    return models * network.state_bytes + config.checkpoint.keep * checkpoint


def _moments(optimizer: ScheduleConfig) -> int:
    """Numbers that an optimizer keeps for each parameter: two moments of Adam, or the momentum of SGD."""
    return int(optimizer.momentum > 0) if optimizer.name == "sgd" else 2


class _NetworkSize(NamedTuple):
    parameters: int
    state_bytes: int
    dim: int


def _network_config(config: TrainConfig) -> EmbedderConfig:
    """The network of a recipe; if it starts from a saved one that does not exist yet, that of H-GLDv2."""
    if config.model.start is None:
        return config.embedder
    file = Path(config.model.start) / SETTINGS
    if not file.is_file():
        return START
    saved = json.loads(file.read_text(encoding="utf-8"))["config"]
    return EmbedderConfig(**{key: saved[key] for key in _MODEL_KEYS})


@cache
def _network_size(config: EmbedderConfig) -> _NetworkSize:
    """Built without data ("meta"), which costs nothing."""
    with torch.device("meta"):
        net = create_network(config.backbone, config.image_size)
        width = int(net.num_features)  # type: ignore[arg-type]
        head = [torch.nn.Linear(width, config.dim, bias=config.bias)] if config.dim else []
    modules = [net, *head]
    power = int(config.pooling == "gem")
    parameters = sum(parameter.numel() for module in modules for parameter in module.parameters()) + power
    return _NetworkSize(parameters, sum(map(_state_bytes, modules)) + 4 * power, config.dim or width)


def _loss_size(config: TrainConfig, counts: _Counts, dim: int) -> tuple[int, int]:
    """Bytes of the loss and the memory in a checkpoint, and the number of its parameters, the proxies.

    Proxies are as wide as embeddings, so that losses for widths 1 and 2 tell the size for any width.
    """
    labels = _nested_labels(counts.classes)
    with torch.random.fork_rng(devices=[]):
        narrow, wide = (config.loss.build(labels, width) for width in (1, 2))
    size = _extrapolate(_state_bytes, narrow, wide, dim)
    if config.memory.size:
        items = counts.train_images if config.memory.size == "all" else config.memory.size
        with torch.device("meta"):
            size += _state_bytes(EmbeddingMemory(items, dim, len(counts.classes), per_item=config.memory.per_item))
    return size, _extrapolate(_parameters, narrow, wide, dim)


def _nested_labels(classes: Iterable[int]) -> torch.Tensor:
    """Labels `[finest classes, levels]` of a tree with so many classes at each level."""
    first, *others = classes
    columns, before = [torch.arange(first)], first
    for count in others:
        columns.append(columns[-1] * count // before)
        before = count
    return torch.stack(columns, 1)


def _extrapolate(size: Callable[[nn.Module], int], narrow: nn.Module, wide: nn.Module, dim: int) -> int:
    return size(narrow) + (size(wide) - size(narrow)) * (dim - 1)


def _state_bytes(module: nn.Module) -> int:
    return sum(value.numel() * value.element_size() for value in module.state_dict().values())


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
