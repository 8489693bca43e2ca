"""What a run measures, written down as it goes: metrics.jsonl always, TensorBoard, Weights & Biases and MLflow if asked.

A line of metrics.jsonl is a JSON object: `step` (steps done), `epoch` (epochs done, with a fraction), `time` (seconds since
1970), and the values by name, null where they are not finite.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from suprank.files.atomic import write_atomically
from suprank.training.run_folder import METRICS, json_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from suprank.training.config import LoggingConfig

FILE, TRACKERS = METRICS, "trackers.json"
_OWN = ("step", "epoch", "time")
_log = logging.getLogger(__name__)


class _Sink(Protocol):
    """A place to write values to."""

    def write(self, step: int, epoch: float, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class Records:
    """Writes values to all places that the config asks for. In a run of several processes only the first has one.

    `step` is where a resumed run goes on: what was written beyond it is taken out, so that nothing is there twice. (Weights &
    Biases and MLflow forget nothing: they get those steps again.) What a run writes again at that very step, such as an
    evaluation that came after the checkpoint, is not repeated.

    A place that cannot be opened is an error, but for TensorBoard, which is left out where it is not installed. A place that
    cannot be written to later, on a full disk for example, is told once as a warning, and training goes on.
    """

    def __init__(
        self, folder: Path, config: LoggingConfig, *, step: int = 0, name: str, settings: Mapping[str, Any] | None = None
    ) -> None:
        lines = _Lines(folder / FILE, step)
        self._there = lines.there
        self._sinks: dict[str, _Sink] = {FILE: lines}
        self._failed: set[str] = set()
        try:
            self._open(folder, config, step, name, settings)
        except BaseException:
            self.close()
            raise

    def _open(self, folder: Path, config: LoggingConfig, step: int, name: str, settings: Mapping[str, Any] | None) -> None:
        if config.tensorboard and (board := _tensorboard(folder / "tensorboard", step)):
            self._sinks["TensorBoard"] = board
        runs = _TrackedRuns(folder / TRACKERS)
        if config.wandb is not None:
            self._sinks["Weights & Biases"] = _wandb(config.wandb, folder, name, runs, settings)
        if config.mlflow is not None:
            self._sinks["MLflow"] = _mlflow(config.mlflow, name, runs, settings)

    def step(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        """Values of a training step. Outside of metrics.jsonl their names begin with `train/`."""
        self._write(step, epoch, values, {f"train/{name}": value for name, value in values.items()})

    def evaluation(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        """Values of an evaluation, their names beginning with that of the test set: `test/H-AP`."""
        self._write(step, epoch, values, values)

    def close(self) -> None:
        """Write what is waiting to be written."""
        for name, sink in self._sinks.items():
            self._tried(name, sink.close)
        self._sinks = {}

    def _write(self, step: int, epoch: float, values: Mapping[str, float], elsewhere: Mapping[str, float]) -> None:
        if taken := [name for name in _OWN if name in values]:
            raise ValueError(f"values must not be called {taken[0]!r}, which is an entry of every line; rename it.")
        if (step, frozenset(values)) in self._there:
            return
        for name, sink in self._sinks.items():
            self._tried(name, partial(sink.write, step, epoch, values if name == FILE else elsewhere))

    def _tried(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # trackers raise whatever their network library does, and none of it is worth a run
            if name == FILE and not isinstance(error, OSError):
                raise
            if name not in self._failed:
                _log.warning("%s could not be written (%s); training goes on without what is missing there.", name, error)
            self._failed.add(name)


class _Lines:
    """The file metrics.jsonl: a line at a time, each in the hands of the system when `write` returns."""

    def __init__(self, path: Path, step: int) -> None:
        kept: list[bytes] = []
        self.there: set[tuple[int, frozenset[str]]] = set()
        """What is there at `step` already: the names of the values of a line."""
        found = path.read_bytes() if path.is_file() else b""
        for line in found.splitlines(keepends=True):
            entries = _entries(line)
            if entries is not None and entries["step"] <= step:
                kept.append(line)
                if entries["step"] == step:
                    self.there.add((step, frozenset(entries) - {*_OWN}))
        if b"".join(kept) != found:
            write_atomically(path, b"".join(kept))
        self._file = path.open("ab", buffering=0)  # without a buffer: what failed to be written does not come back later

    def write(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        line = json_bytes({"step": step, "epoch": round(epoch, 6), "time": round(time.time(), 3), **values})
        begin = self._file.seek(0, 2)
        try:
            left = memoryview(line)
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError:
            self._file.truncate(begin)  # no half of a line, so that the next one begins a line
            raise

    def close(self) -> None:
        self._file.close()


def _entries(line: bytes) -> dict[str, Any] | None:
    """What a line holds; None for a torn one."""
    try:
        entries = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return entries if isinstance(entries, dict) and isinstance(entries.get("step"), int) else None


class _TensorBoard:
    """Event files for TensorBoard."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        for name, value in {**values, "epoch": epoch}.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def _tensorboard(folder: Path, step: int) -> _TensorBoard | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        _log.warning(
            'TensorBoard is not installed, so its files are not written; pip install "suprank[train]", '
            "or set logging.tensorboard=false."
        )
        return None
    purged = step + 1 if folder.is_dir() else None  # what an interrupted run wrote beyond the step is not shown
    return _TensorBoard(SummaryWriter(str(folder), purge_step=purged))


class _TrackedRuns:
    """What trackers call the run, kept in a file of its folder, so that a resumed run is the same one to them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getitem__(self, tracker: str) -> str | None:
        return self._read().get(tracker)

    def __setitem__(self, tracker: str, run: str) -> None:
        write_atomically(self._path, json_bytes({**self._read(), tracker: run}, indent=2))

    def _read(self) -> dict[str, str]:
        return json.loads(self._path.read_bytes()) if self._path.is_file() else {}


class _Tracker:
    """A logger of Lightning's."""

    def __init__(self, logger: Any, called: Callable[[str], str] = str) -> None:
        self._logger, self._called = logger, called

    def write(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        self._logger.log_metrics({self._called(name): value for name, value in {**values, "epoch": epoch}.items()}, step=step)

    def close(self) -> None:
        self._logger.finalize("success")


def _wandb(project: str, folder: Path, name: str, runs: _TrackedRuns, settings: Mapping[str, Any] | None) -> _Tracker:
    run = runs["wandb"] or secrets.token_hex(8)
    logger = _lightning_logger("WandbLogger", "wandb", project=project, save_dir=str(folder), name=name, version=run)
    if settings is not None:
        logger.log_hyperparams(dict(settings))
    runs["wandb"] = run
    return _Tracker(logger)


def _mlflow(address: str, name: str, runs: _TrackedRuns, settings: Mapping[str, Any] | None) -> _Tracker:
    known = runs["mlflow"]
    logger = _lightning_logger(
        "MLFlowLogger", "mlflow", experiment_name="suprank", run_name=name, tracking_uri=address, run_id=known
    )
    if known is None:
        runs["mlflow"] = logger.run_id
        if settings is not None:  # which MLflow takes once only
            logger.log_hyperparams(dict(settings))
    return _Tracker(logger, _mlflow_name)


def _mlflow_name(name: str) -> str:
    """MLflow allows few signs in names; Lightning would drop the others, and with the @ of mAP@R the difference to others.

    Example:
        >>> _mlflow_name("test/mAP@R/ü")
        'test/mAP_at_R/_'
    """
    return re.sub(r"[^\w/. -]", "_", name.replace("@", "_at_"), flags=re.ASCII)


def _lightning_logger(kind: str, package: str, **arguments: Any) -> Any:
    """One of Lightning's loggers, which are slow to import, and need a package each."""
    from suprank.system import torchvision_operators

    torchvision_operators.declare()  # before Lightning imports torchvision
    from lightning.pytorch import loggers

    try:
        return getattr(loggers, kind)(**arguments)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"logging.{package} needs {package}, which is not installed; pip install {package}, or leave it out."
        ) from error
