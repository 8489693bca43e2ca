"""`adapt`: train a head on stored embeddings, and measure it on classes that it has not seen."""

from __future__ import annotations

import copy
import hashlib
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from suprank.adaptation.class_splits import BatchShape, batch_shape, split_classes
from suprank.adaptation.config import AdaptConfig
from suprank.adaptation.head_folder import HeadFolder
from suprank.adaptation.head_trainer import HeadTrainer
from suprank.adaptation.principal_start import principal_heads
from suprank.adaptation.result import AdaptResult, SeedResult
from suprank.adaptation.runs import AdaptationRun, Validation
from suprank.evaluation import RetrievalData, evaluate
from suprank.evaluation.retrieval_data import Origin
from suprank.models.head import Head, HeadConfig
from suprank.system.progress import stage_progress
from suprank.training.loss_specs import RankSpec
from suprank.training.seeds import derive_seed
from suprank.training.signals import stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike

    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.adaptation.class_splits import ClassSplit
    from suprank.evaluation import Report
    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.system.progress import StageProgress
    from suprank.training.signals import StopRequest

MAX_DIM = 512
"""The default width of the new embeddings, if the given ones are wider."""

STEPS, WHOLE_STEPS = 600, 100
"""The default number of steps, with batches and with the whole collection."""

_VALIDATIONS = 24  # of a run
_WEIGHTS = 3  # place of a derived seed


class AdaptationStopped(Exception):  # noqa: N818  no error: the same call continues
    """A signal stopped `adapt`; if it has a folder, a checkpoint is in it."""

    def __init__(self, signal: int, done: int, total: int) -> None:
        super().__init__(f"stopped after {done} of {total} steps")
        self.signal = signal


def adapt(
    embeddings: RetrievalData | EmbeddingSource,
    labels: ArrayLike | Tensor | None = None,
    config: AdaptConfig | None = None,
    *,
    test: RetrievalData | None = None,
    levels: Sequence[str] | None = None,
    folder: str | PathLike[str] | None = None,
    source: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    progress: bool | StageProgress = True,
    on_result: Callable[[AdaptResult], None] = lambda result: None,
) -> AdaptResult:
    """Train a head that maps embeddings of any model to a space in which images of a class are closer.

    Labels are `[N]` or `[N, levels]`, column 0 the finest; −1 is no label. Of `RetrievalData` the queries are taken. The
    classes of column 0 are divided at random: some choose the step and the seed to keep (validation), some do neither and are
    for testing, and the head is trained on the others. If `test` data are given, with labels that are numbered as `labels` are,
    no classes are held out for testing.

    The head begins at the principal directions of the training embeddings, centered or not, whichever rank the validation
    classes better, and this start takes part in the choice of the best step. If `dim` is the width of the embeddings and
    `normalization` is `l2`, the head is therefore never worse than the embeddings themselves on the validation classes.

    `folder` receives the head, and checkpoints until it is finished. After a kill, or after a signal, which raises
    `AdaptationStopped`, the same call continues and gives the same head, on a CPU to the last bit. `source` is saved with the
    head, to tell where the embeddings are from. `progress` draws a bar of the steps, or is called with (what, done, total), and
    `on_result` with what is returned, before the checkpoints are removed: after a kill in between, the same call calls it
    again.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat(np.arange(40), 8)
        >>> signal = 2 * rng.normal(size=(40, 4))[labels] + rng.normal(size=(320, 4))
        >>> noise = 3 * rng.normal(size=(320, 12))
        >>> result = adapt(np.hstack([signal, noise]), labels, AdaptConfig(steps=60, batch=64, lr=0.01))
        >>> result.after["mAP@R"] > result.before["mAP@R"]
        True
    """
    settings = config or AdaptConfig()
    training = embeddings
    if not isinstance(training, RetrievalData):
        training = RetrievalData.from_arrays(training, labels, levels=levels)
    training.require_labels()
    table = training.queries.labels
    if table.ndim == 3:
        raise ValueError("images have several labels at a level, and adapt needs one for each; choose another level.")
    stored = training.queries.embeddings
    stored.norms()  # refuses NaN, infinity and zeros
    values: NDArray[np.float32] = stored[:]
    split = split_classes(table, settings, with_test=test is None)
    settings = _with_defaults(settings, values.shape[1], table[split.training])
    if test is None:
        test = RetrievalData.from_arrays(values[split.test], table[split.test], levels=training.levels)
    else:
        _check_test(test, training)
        test = test.numbered_as(training)
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    # Where the test set is from is no matter of the metrics: its provenance would be compared at every step.
    data = _Collection(values, table, training.levels, split, replace(test, origin=Origin()), where)
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[where] if where.type == "cuda" else []))
        saved = None
        if folder is not None:
            saved = stack.enter_context(HeadFolder(Path(folder), data.fingerprint(settings)))
        stop = stack.enter_context(stop_on_signals())
        result = _train_and_test(settings, data, saved, stop, stage_progress(progress))
        result.head.training_record = {"source": dict(source or {}), **result.record()}
        if saved is not None:
            result.head.save(saved.path)
        on_result(result)
        if saved is not None:
            saved.finish()
    return result


class _Collection(NamedTuple):
    """All embeddings and labels to train on, their split, the test set, and the device to evaluate on."""

    embeddings: NDArray[np.float32]
    labels: NDArray[np.int64]
    levels: tuple[str, ...]
    split: ClassSplit
    test: RetrievalData
    device: torch.device

    def report(self, head: Head | None) -> Report:
        """The metrics of the test set."""
        data = self.test if head is None else self.test.with_head(head, progress=False)
        return evaluate(data, per_query=True, progress=False, device=self.device, distributed=False)

    def validate(self, head: Head | None, metric: str) -> float:
        """A metric of the validation classes."""
        rows = self.split.validation
        data = RetrievalData.from_arrays(self.embeddings[rows], self.labels[rows], levels=self.levels)
        data = data if head is None else data.with_head(head, progress=False)
        return evaluate(data, metrics=[metric], progress=False, device=self.device, distributed=False)[metric]

    def fingerprint(self, config: AdaptConfig) -> dict[str, Any]:
        """What a checkpoint depends on."""
        digest = hashlib.blake2b(digest_size=16)
        for values in (self.embeddings, self.labels, self.split.training, self.split.validation):
            digest.update(np.ascontiguousarray(values).data)
        return {**config.model_dump(mode="json"), "embeddings and labels": digest.hexdigest()}

    def count_classes(self) -> dict[str, int]:
        """How many classes are in each part, and how many of the test classes are trained on."""
        training, validation = (np.unique(self.labels[rows, 0]) for rows in self.split[:2])
        test = np.unique(self.test.queries.labels[:, 0])
        test = test[test >= 0]
        seen = len(np.intersect1d(test, np.concatenate([training, validation])))
        return {"training": len(training), "validation": len(validation), "test": len(test), "seen": seen}


def _train_and_test(
    config: AdaptConfig, data: _Collection, folder: HeadFolder | None, stop: StopRequest, progress: StageProgress
) -> AdaptResult:
    before = data.report(None)  # first, so that an error in the test set does not come after the training
    metric = str(config.metric)
    raw = data.validate(None, metric)
    torch.manual_seed(derive_seed(config.seed, _WEIGHTS))
    embeddings, labels = data.embeddings[data.split.training], data.labels[data.split.training]
    starts = principal_heads(embeddings, _head_config(config, embeddings.shape[1]))
    device = data.device
    quality = {name: data.validate(head.to(device), metric) for name, head in starts.items()}
    start = max(quality, key=lambda name: quality[name])
    training = _Training(
        config,
        torch.from_numpy(embeddings).to(device),
        torch.from_numpy(_renumbered(labels)).to(device),
        starts[start],
        lambda head: data.validate(head, metric),
        folder,
        progress,
    )
    seeds = []
    for number, (history, head) in enumerate(training.train(stop)):
        best = max(history, key=lambda one: one.value)
        seeds.append(SeedResult(config.seed + number, best, tuple(history), data.report(head), head.cpu()))
    split = data.split
    rows = {"training": len(split.training), "validation": len(split.validation), "test": len(data.test.queries)}
    return AdaptResult(
        before=before,
        seeds=tuple(seeds),
        metric=metric,
        raw=raw,
        start=start,
        classes=data.count_classes(),
        rows={**rows, "left_out": split.left_out},
        config=config,
    )


class _Training:
    """The runs of all seeds, one after the other, with checkpoints."""

    def __init__(
        self,
        config: AdaptConfig,
        embeddings: Tensor,
        labels: Tensor,
        start: Head,
        validate: Callable[[Head], float],
        folder: HeadFolder | None,
        progress: StageProgress,
    ) -> None:
        self.config, self.embeddings, self.labels = config, embeddings, labels
        self.start, self.validate, self.folder, self.progress = start, validate, folder, progress
        assert config.steps is not None
        self.steps = config.steps

    def train(self, stop: StopRequest) -> list[tuple[list[Validation], Head]]:
        """The validations and the best head of every seed."""
        state = None if self.folder is None else self.folder.load()
        finished: list[dict[str, Any]] = [] if state is None else state["finished"]
        current = None if state is None else state["current"]
        for number in range(len(finished), self.config.seeds):
            run = self._run(self.config.seed + number)
            if current is not None:
                run.load_state_dict(current)
                current = None
            for step in run.steps():
                self.progress(
                    f"training seed {self.config.seed + number}" if self.config.seeds > 1 else "training", step, self.steps
                )
                done = number * self.steps + step
                if self.folder is not None and (stop.signal or self.folder.is_due()):
                    self.folder.save(done, {"finished": finished, "current": run.state_dict()})
                if stop.signal:
                    raise AdaptationStopped(stop.signal, done, self.config.seeds * self.steps)
            finished.append({"history": [list(one) for one in run.history], "best": run.best})
        if self.folder is not None:
            self.folder.save(self.config.seeds * self.steps, {"finished": finished, "current": None})
        return [([Validation(*one) for one in each["history"]], self._head(each["best"])) for each in finished]

    def _run(self, seed: int) -> AdaptationRun:
        config, head = self.config, copy.deepcopy(self.start)
        shape = None
        if isinstance(config.batch, int):
            assert config.images_per_class is not None
            shape = BatchShape(config.batch, config.images_per_class)
        trainer = HeadTrainer(head, self.embeddings, self.labels, config, steps=self.steps, shape=shape, seed=seed)
        assert config.every is not None
        return AdaptationRun(trainer, lambda: self.validate(head), config.every)

    def _head(self, weights: dict[str, Tensor]) -> Head:
        head = copy.deepcopy(self.start)
        head.load_state_dict(weights)
        return head.eval()


def _check_test(test: RetrievalData, training: RetrievalData) -> None:
    width, dim = test.queries.embeddings.dim, training.queries.embeddings.dim
    if width != dim:
        raise ValueError(f"the test embeddings have width {width} and those to train on {dim}; embed both with the same model.")
    if len(test.levels) != len(training.levels):
        raise ValueError(
            f"the test labels have {len(test.levels)} levels and those to train on {len(training.levels)}; give both the same."
        )


def _with_defaults(config: AdaptConfig, width: int, labels: NDArray[np.int64]) -> AdaptConfig:
    """The config with values in place of None, and with a batch that the training images can fill."""
    if config.dim is not None and config.dim > width:
        raise ValueError(f"dim={config.dim} is more than the {width} numbers of an embedding; use {width} at most.")
    steps = config.steps or (STEPS if isinstance(config.batch, int) else WHOLE_STEPS)
    levels = labels.shape[1]
    values: dict[str, Any] = {
        "dim": config.dim or min(MAX_DIM, width),
        "steps": steps,
        "every": config.every or max(1, steps // _VALIDATIONS),
        "metric": config.metric
        or ("H-AP" if levels > 1 and isinstance(config.loss, RankSpec) and config.loss.is_hierarchical else "mAP@R"),
    }
    if isinstance(config.batch, int):
        shape = batch_shape(labels[:, 0], config.batch, config.images_per_class)
        values |= {"batch": shape.size, "images_per_class": shape.images_per_class}
    elif config.images_per_class is not None:
        raise ValueError("images_per_class is for batches, and batch='whole' has all images of every class; leave it out.")
    return config.model_copy(update=values)


def _head_config(config: AdaptConfig, width: int) -> HeadConfig:
    assert config.dim is not None
    return HeadConfig(in_features=width, out_features=config.dim, normalization=config.normalization, hidden=config.hidden)


def _renumbered(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Labels from 0 at every level, as the proxies of a loss are numbered."""
    return np.stack([np.unique(column, return_inverse=True)[1] for column in labels.T], axis=1)
