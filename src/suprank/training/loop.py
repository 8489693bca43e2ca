"""The training loop: batches in, steps, exact metrics now and then, and nothing lost when it is interrupted."""

from __future__ import annotations

import math
import time
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

import torch

from suprank.evaluation import Report
from suprank.training import checkpoint, distributed
from suprank.training.batches import TrainBatches
from suprank.training.callbacks import Callback, StepValues
from suprank.training.engine import fabric_of
from suprank.training.learner import Learner, NonFiniteError
from suprank.training.loggers import Records
from suprank.training.manifests import manifest_of
from suprank.training.run_folder import RunFolder
from suprank.training.signals import Stop, stop_on_signals
from suprank.training.validation import Validator

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from os import PathLike

    from lightning.fabric import Fabric

    from suprank.training.batches import TrainBatch
    from suprank.training.config import TrainConfig

Done = TypeVar("Done")

LEAST_BETWEEN = 60.0  # seconds between checkpoints at the ends of short epochs
BETWEEN_AGREEMENTS = 8  # steps after which several processes ask each other whether to stop: each time they wait for all


class Result(NamedTuple):
    """What a run has come to: the reports of its test sets, its best evaluation, and the signal that stopped it, if one did."""

    folder: Path
    reports: dict[str, Report]
    best: dict[str, Any] | None
    stopped: int | None


class NonFiniteLossError(RuntimeError):
    """Training met a number that is none, and stopped: the message says where, and what was kept."""


@dataclass
class Position:
    """Where training stands: `consumed` batches of `epoch`, `step` steps since the beginning, `seconds` spent on them.

    `replaced` counts how often this process saw another image in place of a broken one. `test_set` is the fingerprint of the
    test images of the last evaluation, "" where there was none.
    """

    epoch: int = 0
    consumed: int = 0
    step: int = 0
    seconds: float = 0.0
    replaced: int = 0
    best: dict[str, Any] | None = None
    test_set: str = ""


def train(config: TrainConfig, folder: str | PathLike[str], *, resume: bool = False, watch: Callback | None = None) -> Result:
    """Train as the recipe says, into a run folder: checkpoints, metrics, reports, and the model as `Embedder.save` writes it.

    With `resume` a run that was interrupted goes on where its last checkpoint stands, in the middle of an epoch, with the
    batches that were left; on one CPU it ends with the very weights of a run that was not interrupted. A run that is finished
    returns at once, and where there is none, one begins. SIGINT, SIGTERM and SIGUSR1 write a checkpoint and return.

    Raises `NonFiniteLossError` at a loss, embedding or gradient that is not finite: the checkpoints are those of before, and
    the images of the batch are written down.
    """
    fabric = fabric_of(config.engine)
    shown = watch if watch is not None and fabric.is_global_zero else Callback()
    opened = _done_by_first(fabric, partial(RunFolder.open, folder, config, resume=resume))
    with opened or RunFolder(folder) as run, stop_on_signals() as stop:
        done = fabric.broadcast(run.finished if resume else None)
        if done is not None:
            shown.say(f"{run.path} is finished already. Its metrics are of the test images that it ended with.")
            return Result(run.path, _reports_of(run, done["epoch"]), done["best"], None)
        with closing(_Run(config, fabric, run, shown, stop)) as running:
            try:
                return running.result(resume)
            except _StoppedError:
                return Result(run.path, {}, running.at.best, stop.signal)


def _done_by_first(fabric: Fabric, action: Callable[[], Done]) -> Done | None:
    """What an action of the first process alone returns, there. Where it fails, that one says why, and the others end."""
    done, failure = None, None
    if fabric.is_global_zero:
        try:
            done = action()
        except Exception as error:
            failure = error
    failed = fabric.broadcast(failure is not None)  # else the others would wait for the first, and complain that it is gone
    if failure is not None:
        raise failure
    if failed:
        raise SystemExit(1)
    return done


class _StoppedError(Exception):
    """A signal came during an evaluation. The checkpoint before it is there, and a resumed run begins with the evaluation."""


class _Run:
    """One process's share of a run, from opened folder to result."""

    def __init__(self, config: TrainConfig, fabric: Fabric, run: RunFolder, watch: Callback, stop: Stop) -> None:
        self.config, self.fabric, self.run, self.watch, self.stop = config, fabric, run, watch, stop
        self.at = Position()
        reading = partial(
            manifest_of, config.data.manifest, config.data.root, partial(watch.preparing, f"drawing {config.data.manifest}")
        )
        manifest = _done_by_first(fabric, reading) or reading()  # the first process draws a set that is not there yet
        processes: dict[str, Any] = {
            "rank": fabric.global_rank,
            "world_size": fabric.world_size,
            "pinned": fabric.device.type == "cuda",
        }
        self.feed = TrainBatches.of(
            config, manifest, **processes, progress=partial(watch.preparing, "decoding training images")
        )
        self.judge = Validator.of(config, manifest, **processes, progress=partial(watch.preparing, "decoding test images"))
        self.learner = Learner(config, fabric, self.feed)
        self.records: Records | None = None
        self.saved_at = time.monotonic()
        self.last_checkpoint: Path | None = None

    def close(self) -> None:
        if self.records is not None:
            self.records.close()

    def result(self, resume: bool) -> Result:
        if resume:
            self._go_on()
        settings = self.config.model_dump(mode="json")
        records = partial(Records, self.run.path, self.config.logging, name=self.run.path.name, settings=settings)
        self.records = _done_by_first(self.fabric, partial(records, step=self.at.step))
        self.watch.begin(self.at.step, self._steps(), self._about())
        if not self.judge.names:
            self.watch.say(f"{self.config.data.manifest} has no test images, so this run will have no metrics.")
        if self.config.evaluation.at_start and self.judge.names and self.at.step == 0:
            self._judged()
        reports: dict[str, Report] = {}
        with closing(self._batches()) as batches:
            while self.at.epoch < self.config.run.epochs:
                stopped = self._epoch(batches)
                if not stopped:
                    reports = self._end_of_epoch() or reports
                    stopped = self._kept(ended=True) if self.at.epoch < self.config.run.epochs else 0
                if stopped:
                    return Result(self.run.path, reports, self.at.best, stopped)
        return self._finished(reports or self._last_reports())

    # An epoch

    def _batches(self) -> Generator[TrainBatch]:
        epoch, consumed = self.at.epoch, self.at.consumed
        if consumed == len(self.feed):
            epoch, consumed = epoch + 1, 0
        return self.feed.batches(epoch, consumed, self.config.run.epochs)

    def _epoch(self, batches: Iterator[TrainBatch]) -> int:
        """0 at the end of the epoch; or the signal that asks to stop, and a checkpoint is written."""
        at, length = self.at, len(self.feed)
        while at.consumed < length:
            begun = time.monotonic()
            group = [next(batches) for _ in range(min(self.config.batch.accumulate, length - at.consumed))]
            try:
                values = self.learner.step(group, at.step, at.epoch, at.consumed, length)
            except NonFiniteError as error:
                raise NonFiniteLossError(self._told(error, group)) from error
            at.step += 1
            at.consumed += len(group)
            seconds = time.monotonic() - begun
            at.seconds += seconds
            self._note(values, group, seconds)
            stopped = self._kept(ended=at.consumed == length)
            if stopped:
                return stopped
        return 0

    def _kept(self, *, ended: bool) -> int:
        """Write a checkpoint if one is due, or if a signal asks to stop, which is returned. Processes agree on both."""
        if self.fabric.world_size > 1 and not ended and self.at.step % BETWEEN_AGREEMENTS:
            return 0
        due = time.monotonic() - self.saved_at >= 60 * self.config.checkpoint.minutes
        stopped, save = self._agreed(self.stop.signal, due)
        if stopped or (save and not ended):
            self._save()
        return stopped

    def _end_of_epoch(self) -> dict[str, Report]:
        """The reports of the evaluation, if one is due. A checkpoint before it makes a resumed run begin with it."""
        at, every = self.at, self.config.evaluation.every
        last = at.epoch + 1 == self.config.run.epochs
        reports: dict[str, Report] = {}
        if self.judge.names and (last or (every and (at.epoch + 1) % every == 0)):
            self._save()
            reports = self._judged()
        at.epoch, at.consumed = at.epoch + 1, 0
        (due,) = self._agreed(last or time.monotonic() - self.saved_at >= LEAST_BETWEEN)
        if due:
            self._save()
        return reports

    # What is measured

    def _judged(self) -> dict[str, Report]:
        at = self.at
        epoch = at.epoch + bool(at.consumed)
        self.learner.eval()
        reports = self.judge(self.learner.forward, device=self.fabric.device, progress=self._evaluating)
        values = {name: dict(report.values) for name, report in reports.items()}
        test, metric = self.judge.best_metric
        found = values[test][metric]
        if _is_better(metric, found, at.best):
            failed = True
            with self._going_on("the best model"):
                self.learner.save_model(self.run.best)
                failed = False
            if not any(self._agreed(failed)):  # the best is what the folder holds; one process has written, and all must know
                at.best = {"epoch": epoch, "metric": metric, "value": found, "metrics": values}
        at.test_set = self.judge.fingerprint
        if self.fabric.is_global_zero:
            for name, report in reports.items():
                with self._going_on("the report"):
                    report.save(self.run.reports / _report_name(name, epoch))
        if self.records is not None:
            flat = {f"{name}/{key}": value for name, metrics in values.items() for key, value in metrics.items()}
            self.records.evaluation(at.step, float(epoch), flat)
        self.watch.judged(epoch, reports)
        return reports

    def _evaluating(self, name: str, done: int, total: int) -> None:
        if self.stop.signal and self.fabric.world_size == 1:  # several would have to agree
            raise _StoppedError
        self.watch.evaluating(name, done, total)

    def _note(self, values: dict[str, float], group: list[TrainBatch], seconds: float) -> None:
        at, images = self.at, len(group) * self.config.batch.size
        at.replaced += sum(batch.replaced for batch in group)
        if at.replaced:
            values["broken images replaced"] = at.replaced
        epoch = at.epoch + at.consumed / len(self.feed)
        left = at.seconds / at.step * (self._steps() - at.step)
        self.watch.step(StepValues(at.step, epoch, values, self.learner.rates, images / seconds, left))
        if self.records is not None and (at.step % self.config.logging.every == 0 or at.step == 1):
            rates = {f"learning rate/{name}": value for name, value in self.learner.rates.items()}
            self.records.step(at.step, epoch, {**values, **rates, "images per second": images / seconds})

    def _steps(self) -> int:
        return self.config.run.epochs * -(-len(self.feed) // self.config.batch.accumulate)

    def _about(self) -> str:
        devices = (
            f"{self.fabric.world_size} × {self.fabric.device.type}" if self.fabric.world_size > 1 else self.fabric.device.type
        )
        return f"{self.config.loss.name} on {len(self.feed.labels):,} images of {self.feed.classes:,} classes, {devices}"

    # What is kept

    def _save(self) -> None:
        state = {"position": asdict(self.at), "feed": self.feed.state(self.at.epoch, self.at.consumed), **self.learner.state()}
        if self.fabric.is_global_zero:
            with self._going_on("the checkpoint"):
                self.last_checkpoint = checkpoint.save(
                    self.run.checkpoints, self.at.step, state, keep=self.config.checkpoint.keep
                )
        self.saved_at = time.monotonic()
        self.fabric.barrier()

    @contextmanager
    def _going_on(self, what: str) -> Iterator[None]:
        """A full disk is told, and no reason to stop: it may be in order when the next file is due."""
        try:
            yield
        except OSError as error:
            then = "stopping without it" if self.stop.signal else "training goes on"
            self.watch.say(f"{what} of step {self.at.step} could not be written ({error.strerror or error}); {then}.")

    def _go_on(self) -> None:
        found = _done_by_first(self.fabric, partial(checkpoint.newest, self.run.checkpoints, self.watch.say))
        path = self.fabric.broadcast(None if found is None else str(found[1]))
        if path is None:
            return
        state = checkpoint.load(Path(path))
        self.feed.check(state["feed"])
        self.learner.load(state)
        self.at = Position(**state["position"])
        self.last_checkpoint = Path(path)
        self.watch.say(f"going on from {path}, step {self.at.step}.")
        if self.at.test_set and self.at.test_set != self.judge.fingerprint:
            self.watch.say(
                "the test images, their labels or evaluation.decay have changed since the last evaluation: metrics before and "
                f"after do not compare, and the next evaluation chooses {self.run.best} anew."
            )
            self.at.best, self.at.test_set = None, ""

    def _last_reports(self) -> dict[str, Report]:
        """Of a run that was interrupted after its last evaluation, and before its result was written."""
        found = self.fabric.broadcast(_reports_of(self.run, self.at.epoch))
        known = bool(self.at.test_set) or not self.judge.names  # else they may be of other test images
        return found if known and set(found) == set(self.judge.names) else self._judged()

    def _finished(self, reports: Mapping[str, Report]) -> Result:
        at = self.at
        metrics = {name: dict(report.values) for name, report in reports.items()}
        try:
            self.learner.save_model(self.run.model)
            if self.fabric.is_global_zero:
                result = {"epoch": at.epoch, "step": at.step, "seconds": at.seconds, "metrics": metrics, "best": at.best}
                self.run.finish(result)
        except OSError as error:
            raise OSError(
                f"training is done, but could not be written to {self.run.model} ({error.strerror or error}); make room, and "
                f"--resume goes on from {self.last_checkpoint or 'the beginning'}."
            ) from error
        self.fabric.barrier()
        return Result(self.run.path, dict(reports), self.at.best, None)

    def _told(self, error: NonFiniteError, group: list[TrainBatch]) -> str:
        rows = distributed.gathered(torch.cat([batch.ids for batch in group]).to(self.fabric.device)).tolist()
        at = self.at
        written = ""
        if self.fabric.is_global_zero:
            paths = [self.feed.paths[row].as_py() for row in rows]
            try:
                file = self.run.bad_batch(at.step, at.epoch, rows, paths, {"error": str(error)})
                written = f" Its images are in {file}."
            except OSError as full:
                written = f" Its images could not be written down ({full.strerror or full})."
        kept = f"the last checkpoint is {self.last_checkpoint}" if self.last_checkpoint else "there is no checkpoint yet"
        return (
            f"step {at.step}, epoch {at.epoch}: {error}; nothing was learned from this batch, and {kept}.{written} "
            f"Try a lower learning rate, run.clip=1, or engine.precision='fp32'."
        )

    # What processes agree on

    def _agreed(self, *wishes: int) -> list[int]:
        return distributed.agreed(wishes, self.fabric.device)


def _is_better(metric: str, value: float, best: Mapping[str, Any] | None) -> bool:
    """Whether it beats the best so far; any number beats NaN, and one of another metric, which a resumed run may ask for."""
    if best is None or best["metric"] != metric or math.isnan(best["value"]):
        return True
    return bool(value > best["value"])


def _report_name(test: str, epoch: int) -> str:
    return f"{quote(test, safe=' ')}-epoch-{epoch:04}.json"  # a name of data.tests may have a slash


def _reports_of(run: RunFolder, epoch: int) -> dict[str, Report]:
    return {
        unquote(file.name.removesuffix(f"-epoch-{epoch:04}.json")): Report.load(file)
        for file in sorted(run.reports.glob(f"*-epoch-{epoch:04}.json"))
    }
