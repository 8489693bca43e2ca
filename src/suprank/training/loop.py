"""The training loop: steps, evaluations, and checkpoints from which an interrupted run resumes, in the middle of an epoch."""

from __future__ import annotations

import math
import time
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote

import torch

from suprank.evaluation import Report
from suprank.evaluation.report_comparison import LABELS
from suprank.losses import gather
from suprank.models.hub_names import HubName
from suprank.models.networks import resolve_hub_backbone
from suprank.system import custom_code
from suprank.training import checkpoint, code_copies, distributed
from suprank.training.batches import TrainBatches
from suprank.training.callbacks import Callback, CallbackList, StepValues
from suprank.training.config import TrainConfig
from suprank.training.custom_loss import CustomLoss
from suprank.training.engine import build_fabric
from suprank.training.image_contents import check_contents, save_contents
from suprank.training.learner import Learner, NonFiniteError
from suprank.training.loggers import MetricsLogger
from suprank.training.loss_specs import CustomLossSpec
from suprank.training.manifests import open_manifest
from suprank.training.recipe import read_recipe
from suprank.training.run_folder import NonFiniteLossError, RunFolder
from suprank.training.signals import StopRequest, stop_on_signals
from suprank.training.validation import Validator

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from os import PathLike

    from lightning.fabric import Fabric
    from torch import Tensor

    from suprank.training.batches import TrainBatch

T = TypeVar("T")

MIN_SECONDS_BETWEEN_CHECKPOINTS = 60.0  # at the ends of short epochs
STEPS_BETWEEN_AGREEMENTS = 8  # several processes agree on a stop only so often, because each time they wait for all


class TrainResult(NamedTuple):
    """The reports of a run's test sets, its best evaluation, and the signal that stopped it, or None if it is finished."""

    folder: Path
    reports: dict[str, Report]
    best: dict[str, Any] | None
    stop_signal: int | None


@dataclass
class Position:
    """Where training stands: `consumed` batches of `epoch`, `step` steps since the start, `seconds` spent on them.

    `replaced` counts how often this process saw another image in place of a broken one. `test_set` is the fingerprint of the
    test images of the last evaluation, "" before the first.
    """

    epoch: int = 0
    consumed: int = 0
    step: int = 0
    seconds: float = 0.0
    replaced: int = 0
    best: dict[str, Any] | None = None
    test_set: str = ""


def train(
    config: TrainConfig | str | PathLike[str],
    folder: str | PathLike[str],
    *,
    resume: bool = False,
    callbacks: Callback | Sequence[Callback] | None = None,
    loss: Callable[..., Tensor] | None = None,
    trust_code: bool = False,
) -> TrainResult:
    """Train as the recipe says, into a run folder: checkpoints, metrics, reports, and the model as `Embedder.save` writes it.

    With `resume` an interrupted run continues from its last checkpoint, in the middle of an epoch, with the batches that were
    left; on one CPU it ends with exactly the weights of an uninterrupted run. A finished run returns at once, and if there is
    no run, one starts. SIGINT, SIGTERM and SIGUSR1 save a checkpoint and return.

    `config` is a `TrainConfig`, or a recipe by its name or file, such as "cub/roadmap"; `read_recipe` takes overrides.

    `loss`, an `nn.Module` or any callable `loss(embeddings, labels)`, replaces the one that the recipe names. The run saves its
    parameters and buffers with every checkpoint, and a copy of the file that defines its class, but not the object itself: to
    resume, pass an object of the same class, from an unchanged file, again.

    Code of your own is run if you name it in Python. If a recipe's file names it, that needs your consent, `trust_code=True`,
    which is remembered until the code changes; an `UntrustedCodeError` says what would be run.

    Raises `NonFiniteLossError` at a NaN or infinite loss, embedding or gradient: the checkpoints are those of before, and the
    images of the batch are listed in a file.
    """
    if not isinstance(config, TrainConfig):
        config = read_recipe(config, saved=RunFolder(folder).saved_recipe if resume else None)
    own_loss = None
    if loss is not None:
        own_loss = CustomLoss(loss, custom_code.object_name(loss))
        config = config.model_copy(update={"loss": CustomLossSpec(name=own_loss.name)})
    known = RunFolder(folder)
    is_finished = resume and known.result is not None
    with custom_code.trusting(trust_code):
        sources = {} if is_finished else code_copies.find_sources(config, known.path, loss)
    fabric = build_fabric(config.engine)
    config = _with_pinned_backbone(config, folder, fabric, resume=resume)
    callback = CallbackList(callbacks if fabric.is_global_zero else None)
    opened = _run_on_first_process(fabric, partial(_open_run, config, folder, resume, sources))
    with opened or RunFolder(folder) as run, stop_on_signals() as stop:
        result = fabric.broadcast(run.result if resume else None)
        if result is not None:
            callback.on_message(f"{run.path} is finished already. Its metrics are those of its last evaluation.")
            return TrainResult(run.path, _load_reports(run, result["epoch"]), result["best"], None)
        with closing(_Trainer(config, fabric, run, callback, stop, own_loss)) as trainer:
            try:
                return trainer.fit(resume)
            except _StoppedError:
                return TrainResult(run.path, {}, trainer.position.best, stop.signal)


def _with_pinned_backbone(config: TrainConfig, folder: str | PathLike[str], fabric: Fabric, *, resume: bool) -> TrainConfig:
    """The config with the commit of a backbone on the Hugging Face Hub, so that a resumed run and `--frozen` find the same one.

    A run that is resumed keeps the commit of its recipe if the same repository is named without a revision. A branch or a tag
    that means another commit by now is another recipe.
    """
    name = config.model.backbone
    if not name.startswith(custom_code.HUB) or HubName.parse(name).pinned:
        return config

    def pin() -> str:
        saved = RunFolder(folder).saved_recipe if resume else None
        if saved is not None and HubName.parse(name).revision is None:
            before = read_recipe(saved).model.backbone
            if before.startswith(f"{name}@"):
                return before
        return resolve_hub_backbone(name)[0]

    pinned = fabric.broadcast(_run_on_first_process(fabric, pin))
    return config.model_copy(update={"model": config.model.model_copy(update={"backbone": pinned})})


def _open_run(
    config: TrainConfig, folder: str | PathLike[str], resume: bool, sources: Mapping[str, custom_code.SourceFile]
) -> RunFolder:
    """The run folder, with a copy of the user's code, which must be the same when the run is resumed."""
    has_begun = RunFolder(folder).has_begun()
    run = RunFolder.open(folder, config, resume=resume)
    try:
        if has_begun:
            code_copies.check_sources(run.path, sources)
        else:
            code_copies.save_sources(run.path, sources)
    except BaseException:
        run.close()
        raise
    return run


def _run_on_first_process(fabric: Fabric, action: Callable[[], T]) -> T | None:
    """Run `action` on the first process and return its result there; if it fails, every process exits."""
    result, failure = None, None
    if fabric.is_global_zero:
        try:
            result = action()
        except Exception as error:
            failure = error
    failed = fabric.broadcast(failure is not None)  # else the others would wait for the first, and complain that it is gone
    if failure is not None:
        raise failure
    if failed:
        raise SystemExit(1)
    return result


class _StoppedError(Exception):
    """A signal came during an evaluation. There is a checkpoint before it, and a resumed run begins with the evaluation."""


class _Trainer:
    """One process's part in a run, from the opened folder to the result."""

    def __init__(
        self,
        config: TrainConfig,
        fabric: Fabric,
        run: RunFolder,
        callback: Callback,
        stop: StopRequest,
        loss: CustomLoss | None,
    ) -> None:
        self.config, self.fabric, self.run, self.callback, self.stop = config, fabric, run, callback, stop
        self.position = Position()
        name, root = config.data.manifest, config.data.root
        drawing = partial(callback.on_prepare_progress, f"drawing {name}")
        read_manifest = partial(open_manifest, name, root, drawing)
        manifest = _run_on_first_process(fabric, read_manifest) or read_manifest()  # the first process draws a new dataset
        processes: dict[str, Any] = {
            "rank": fabric.global_rank,
            "world_size": fabric.world_size,
            "device": fabric.device,
        }
        progress = callback.on_prepare_progress
        self.images = manifest
        self.batches = TrainBatches.from_config(
            config, manifest, **processes, progress=partial(progress, "decoding training images")
        )
        self.validator = Validator.from_config(
            config, manifest, **processes, progress=partial(progress, "decoding test images")
        )
        self.learner = Learner(config, fabric, self.batches, loss)
        self.logger: MetricsLogger | None = None
        self.saved_at = time.monotonic()
        self.last_checkpoint: Path | None = None

    def close(self) -> None:
        if self.logger is not None:
            self.logger.close()

    def fit(self, resume: bool) -> TrainResult:
        """Train to the last epoch, or until a signal."""
        if resume:
            self._resume()
        if self.position.step == 0:
            _run_on_first_process(self.fabric, partial(save_contents, self.run.path, self.images.split("train")))
        settings = self.config.model_dump(mode="json")
        open_logger = partial(MetricsLogger, self.run.path, self.config.logging, name=self.run.path.name, settings=settings)
        self.logger = _run_on_first_process(self.fabric, partial(open_logger, step=self.position.step))
        self.callback.on_train_start(self.position.step, self._total_steps(), self._description())
        if not self.validator.names:
            self.callback.on_message(f"{self.config.data.manifest} has no test images, so this run will have no metrics.")
        for text in self.validator.warnings:
            self.callback.on_message(f"warning: {text}")
        if self.config.evaluation.at_start and self.validator.names and self.position.step == 0:
            self._evaluate()
        reports: dict[str, Report] = {}
        with closing(self._remaining_batches()) as batches:
            while self.position.epoch < self.config.run.epochs:
                stop_signal = self._train_epoch(batches)
                if not stop_signal:
                    reports = self._end_epoch() or reports
                    is_last = self.position.epoch == self.config.run.epochs
                    stop_signal = 0 if is_last else self._maybe_checkpoint(end_of_epoch=True)
                if stop_signal:
                    return TrainResult(self.run.path, reports, self.position.best, stop_signal)
        return self._finish(reports or self._last_reports())

    # An epoch

    def _remaining_batches(self) -> Generator[TrainBatch]:
        epoch, consumed = self.position.epoch, self.position.consumed
        if consumed == len(self.batches):
            epoch, consumed = epoch + 1, 0
        return self.batches.batches(epoch, consumed, self.config.run.epochs)

    def _train_epoch(self, batches: Iterator[TrainBatch]) -> int:
        """Train to the end of the epoch and return 0; or save a checkpoint and return the signal that requested a stop."""
        position, length = self.position, len(self.batches)
        while position.consumed < length:
            start = time.monotonic()
            group = [next(batches) for _ in range(min(self.config.batch.accumulate, length - position.consumed))]
            try:
                values = self.learner.step(group, position.step, position.epoch, position.consumed, length)
            except NonFiniteError as error:
                raise NonFiniteLossError(self._non_finite_message(error, group)) from error
            position.step += 1
            position.consumed += len(group)
            seconds = time.monotonic() - start
            position.seconds += seconds
            self._log_step(values, group, seconds)
            stop_signal = self._maybe_checkpoint(end_of_epoch=position.consumed == length)
            if stop_signal:
                return stop_signal
        return 0

    def _maybe_checkpoint(self, *, end_of_epoch: bool) -> int:
        """Save a checkpoint if one is due or a stop was requested. Return the signal that requested it, or 0. All ranks agree.

        At the end of an epoch, `_end_epoch` saves the checkpoint that is due.
        """
        if self.fabric.world_size > 1 and not end_of_epoch and self.position.step % STEPS_BETWEEN_AGREEMENTS:
            return 0
        due = time.monotonic() - self.saved_at >= 60 * self.config.checkpoint.minutes
        stop_signal, save = self._all_max(self.stop.signal, due)
        if stop_signal or (save and not end_of_epoch):
            self._save_checkpoint()
        return stop_signal

    def _end_epoch(self) -> dict[str, Report]:
        """Evaluate if it is due, and return the reports. A checkpoint before makes a resumed run begin with the evaluation."""
        position, every = self.position, self.config.evaluation.every
        is_last = position.epoch + 1 == self.config.run.epochs
        reports: dict[str, Report] = {}
        if self.validator.names and (is_last or (every and (position.epoch + 1) % every == 0)):
            self._save_checkpoint()
            reports = self._evaluate()
        position.epoch, position.consumed = position.epoch + 1, 0
        (due,) = self._all_max(is_last or time.monotonic() - self.saved_at >= MIN_SECONDS_BETWEEN_CHECKPOINTS)
        if due:
            self._save_checkpoint()
        return reports

    # Metrics

    def _evaluate(self) -> dict[str, Report]:
        """Evaluate the test sets, save the reports, and save the model if it is the best so far."""
        position = self.position
        epoch = position.epoch + bool(position.consumed)
        self.learner.eval()
        # Those of every query are for the statistics of comparisons, which are of the last epoch.
        is_last = epoch == self.config.run.epochs
        show = self._on_evaluation_progress
        reports = self.validator(self.learner.forward, device=self.fabric.device, progress=show, per_query=is_last)
        metrics = {name: dict(report) for name, report in reports.items()}
        test, metric = self.validator.best_metric
        value = metrics[test][metric]
        if _is_better(metric, value, position.best):
            failed = True
            with self._tolerate_full_disk("the best model"):
                self.learner.save_model(self.run.best)
                failed = False
            if not any(self._all_max(failed)):  # `best` describes what the folder holds; one process writes, and all must know
                position.best = {"epoch": epoch, "metric": metric, "value": value, "metrics": metrics}
        position.test_set = self.validator.fingerprint
        if self.fabric.is_global_zero:
            for name, report in reports.items():
                with self._tolerate_full_disk("the report"):
                    report.save(self.run.report_file(name, epoch))
        if self.logger is not None:
            flat = {f"{name}/{key}": value for name, values in metrics.items() for key, value in values.items()}
            self.logger.log_evaluation(position.step, float(epoch), flat)
        self.callback.on_evaluation_end(epoch, reports)
        return reports

    def _on_evaluation_progress(self, name: str, done: int, total: int) -> None:
        if self.stop.signal and self.fabric.world_size == 1:  # several processes would have to agree
            raise _StoppedError
        self.callback.on_evaluation_progress(name, done, total)

    def _log_step(self, values: dict[str, float], group: list[TrainBatch], seconds: float) -> None:
        position, images = self.position, len(group) * self.config.batch.size
        position.replaced += sum(batch.replaced for batch in group)
        if position.replaced:
            values["broken images replaced"] = position.replaced
        epoch = position.epoch + position.consumed / len(self.batches)
        seconds_left = position.seconds / position.step * (self._total_steps() - position.step)
        rates = self.learner.rates
        self.callback.on_step_end(StepValues(position.step, epoch, values, rates, images / seconds, seconds_left))
        if self.logger is not None and (position.step % self.config.logging.every == 0 or position.step == 1):
            named_rates = {f"learning rate/{name}": value for name, value in rates.items()}
            self.logger.log_step(position.step, epoch, {**values, **named_rates, "images per second": images / seconds})

    def _total_steps(self) -> int:
        return self.config.run.epochs * -(-len(self.batches) // self.config.batch.accumulate)

    def _description(self) -> str:
        kind, count = self.fabric.device.type, self.fabric.world_size
        devices = f"{count} × {kind}" if count > 1 else kind
        images, model, batch = self.config.images, self.config.model, self.config.batch
        return (
            f"{self.config.loss.name} on {len(self.batches.labels):,} images of {self.batches.classes:,} classes, {devices}: "
            f"{model.start or model.backbone} at {images.size} pixels, batches of {batch.size} with {batch.images_per_class} "
            "of each class"
        )

    # Files

    def _save_checkpoint(self) -> None:
        state = {
            "position": asdict(self.position),
            "batches": self.batches.state_dict(self.position.epoch, self.position.consumed),
            **self.learner.state_dict(),
        }
        if self.fabric.is_global_zero:
            with self._tolerate_full_disk("the checkpoint"):
                self.last_checkpoint = checkpoint.save(
                    self.run.checkpoints, self.position.step, state, keep=self.config.checkpoint.keep
                )
        self.saved_at = time.monotonic()
        self.fabric.barrier()

    @contextmanager
    def _tolerate_full_disk(self, what: str) -> Iterator[None]:
        """Report a failed write and go on: the disk may have room when the next file is due."""
        try:
            yield
        except OSError as error:
            then = "stopping without it" if self.stop.signal else "training goes on"
            self.callback.on_message(
                f"{what} of step {self.position.step} could not be written ({error.strerror or error}); {then}."
            )

    def _resume(self) -> None:
        """Load the newest checkpoint, if there is one."""
        newest = _run_on_first_process(
            self.fabric, partial(checkpoint.load_newest, self.run.checkpoints, self.callback.on_message)
        )
        path = self.fabric.broadcast(None if newest is None else str(newest[1]))
        if path is None:
            return
        state = checkpoint.load(Path(path))
        self.batches.check_state_dict(state["batches"])
        check = partial(check_contents, self.run.path, self.images.split("train"), self.callback.on_message)
        _run_on_first_process(self.fabric, check)
        self.learner.load_state_dict(state)
        self.position = Position(**state["position"])
        self.last_checkpoint = Path(path)
        self.callback.on_message(f"resuming from {path}, step {self.position.step}.")
        if self.position.test_set and self.position.test_set != self.validator.fingerprint:
            self.callback.on_message(
                "the test images, their labels, evaluation.decay or evaluation.level_weights have changed since the last "
                "evaluation: metrics before and after cannot be compared, and the next evaluation chooses "
                f"{self.run.best} anew."
            )
            self.position.best, self.position.test_set = None, ""

    def _last_reports(self) -> dict[str, Report]:
        """The reports of a run that was interrupted between its last evaluation and its result; evaluated again if need be."""
        reports = self.fabric.broadcast(_load_reports(self.run, self.position.epoch))
        same_images = bool(self.position.test_set) or not self.validator.names
        return reports if same_images and set(reports) == set(self.validator.names) else self._evaluate()

    def _finish(self, reports: Mapping[str, Report]) -> TrainResult:
        """Save the last model and the result."""
        position = self.position
        metrics = {name: dict(report) for name, report in reports.items()}
        try:
            self.learner.save_model(self.run.model)
            if self.fabric.is_global_zero:
                counts = {"epoch": position.epoch, "step": position.step, "seconds": position.seconds}
                labels = {name: report.settings.get(LABELS, {}) for name, report in reports.items()}
                self.run.write_result({**counts, "metrics": metrics, "best": position.best, "labels": labels})
        except OSError as error:
            raise OSError(
                f"training is done, but could not be written to {self.run.model} ({error.strerror or error}); make room, and "
                f"resume goes on from {self.last_checkpoint or 'the beginning'}."
            ) from error
        self.fabric.barrier()
        return TrainResult(self.run.path, dict(reports), position.best, None)

    def _non_finite_message(self, error: NonFiniteError, group: list[TrainBatch]) -> str:
        """Where training stopped, and what to do; the first process writes the images of the batch to a file."""
        rows = gather(torch.cat([batch.ids for batch in group]).to(self.fabric.device), equal_sizes=True).tolist()
        position = self.position
        images = ""
        if self.fabric.is_global_zero:
            paths = [self.batches.paths[row].as_py() for row in rows]
            try:
                file = self.run.write_bad_batch(position.step, position.epoch, rows, paths, {"error": str(error)})
                images = f" Its images are listed in {file}."
            except OSError as full:
                images = f" The list of its images could not be written ({full.strerror or full})."
        last = f"the last checkpoint is {self.last_checkpoint}" if self.last_checkpoint else "there is no checkpoint yet"
        return (
            f"step {position.step}, epoch {position.epoch}: {error}; nothing was learned from this batch, and {last}.{images} "
            f"Try a lower learning rate, run.clip_grad_norm=1, or engine.precision='fp32'."
        )

    def _all_max(self, *flags: int) -> list[int]:
        return distributed.all_max(flags, self.fabric.device)


def _is_better(metric: str, value: float, best: Mapping[str, Any] | None) -> bool:
    """Whether it beats the best so far; any number beats NaN, and one of another metric, which a resumed run may choose."""
    if best is None or best["metric"] != metric or math.isnan(best["value"]):
        return True
    return bool(value > best["value"])


def _load_reports(run: RunFolder, epoch: int) -> dict[str, Report]:
    return {
        unquote(file.name.removesuffix(f"-epoch-{epoch:04}.json")): Report.load(file)
        for file in sorted(run.reports.glob(f"*-epoch-{epoch:04}.json"))
    }
