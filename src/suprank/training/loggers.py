"""Loggers of a run's metrics: metrics.jsonl always; TensorBoard, Weights & Biases and MLflow if the recipe says so.

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
_OWN_KEYS = ("step", "epoch", "time")
_log = logging.getLogger(__name__)


class _Logger(Protocol):
    """Something that values are logged to."""

    def write(self, step: int, epoch: float, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class MetricsLogger:
    """Logs values to all loggers that the config names. In a run of several processes only the first has one.

    `step` is where a resumed run continues: entries beyond it are removed, so that nothing is logged twice. (Weights & Biases
    and MLflow cannot remove entries: they get those steps again.) What the run logs again at that very step, such as an
    evaluation that came after the checkpoint, is not repeated.

    A logger that cannot be opened is an error, except for TensorBoard, which is left out if it is not installed. If a logger
    fails later, on a full disk for example, there is one warning, and training goes on.
    """

    def __init__(
        self, folder: Path, config: LoggingConfig, *, step: int = 0, name: str, settings: Mapping[str, Any] | None = None
    ) -> None:
        file = _JsonLinesLogger(folder / FILE, step)
        self._already_logged = file.already_logged
        self._loggers: dict[str, _Logger] = {FILE: file}
        self._failed: set[str] = set()
        try:
            self._open(folder, config, step, name, settings)
        except BaseException:
            self.close()
            raise

    def _open(self, folder: Path, config: LoggingConfig, step: int, name: str, settings: Mapping[str, Any] | None) -> None:
        if config.tensorboard and (board := _tensorboard(folder / "tensorboard", step)):
            self._loggers["TensorBoard"] = board
        ids = _TrackerIds(folder / TRACKERS)
        if config.wandb is not None:
            self._loggers["Weights & Biases"] = _wandb(config.wandb, folder, name, ids, settings)
        if config.mlflow is not None:
            self._loggers["MLflow"] = _mlflow(config.mlflow, name, ids, settings)

    def log_step(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        """Log the values of a training step. Outside of metrics.jsonl their names begin with `train/`."""
        self._write(step, epoch, values, {f"train/{name}": value for name, value in values.items()})

    def log_evaluation(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        """Log the values of an evaluation, whose names begin with that of the test set: `test/H-AP`."""
        self._write(step, epoch, values, values)

    def close(self) -> None:
        """Flush and close all loggers."""
        for name, logger in self._loggers.items():
            self._try(name, logger.close)
        self._loggers = {}

    def _write(self, step: int, epoch: float, values: Mapping[str, float], prefixed: Mapping[str, float]) -> None:
        if taken := [name for name in _OWN_KEYS if name in values]:
            raise ValueError(f"a value cannot be called {taken[0]!r}, which is a key of every line; rename it.")
        if (step, frozenset(values)) in self._already_logged:
            return
        for name, logger in self._loggers.items():
            self._try(name, partial(logger.write, step, epoch, values if name == FILE else prefixed))

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # trackers raise whatever their network library does, and none of it is worth a run
            if name == FILE and not isinstance(error, OSError):
                raise
            if name not in self._failed:
                _log.warning("%s could not be written (%s); training goes on, with entries missing there.", name, error)
            self._failed.add(name)


class _JsonLinesLogger:
    """The file metrics.jsonl, unbuffered: each line has been handed to the system when `write` returns."""

    def __init__(self, path: Path, step: int) -> None:
        lines: list[bytes] = []
        self.already_logged: set[tuple[int, frozenset[str]]] = set()
        """The lines at `step`, each as the names of its values."""
        content = path.read_bytes() if path.is_file() else b""
        for line in content.splitlines(keepends=True):
            entry = _parse_line(line)
            if entry is not None and entry["step"] <= step:
                lines.append(line)
                if entry["step"] == step:
                    self.already_logged.add((step, frozenset(entry) - {*_OWN_KEYS}))
        if b"".join(lines) != content:
            write_atomically(path, b"".join(lines))
        self._file = path.open("ab", buffering=0)  # unbuffered: a failed line is not written later

    def write(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        line = json_bytes({"step": step, "epoch": round(epoch, 6), "time": round(time.time(), 3), **values})
        start = self._file.seek(0, 2)
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError:
            self._file.truncate(start)  # remove the half of a line, so that the next one starts a line
            raise

    def close(self) -> None:
        self._file.close()


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """The entry of a line; None for a line that was not written to its end."""
    try:
        entry = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("step"), int) else None


class _TensorBoardLogger:
    """TensorBoard's event files."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        for name, value in {**values, "epoch": epoch}.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def _tensorboard(folder: Path, step: int) -> _TensorBoardLogger | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        _log.warning(
            'TensorBoard is not installed, so its files are not written; pip install "suprank[train]", '
            "or set logging.tensorboard=false."
        )
        return None
    purge_step = step + 1 if folder.is_dir() else None  # hides what an interrupted run logged beyond the step
    return _TensorBoardLogger(SummaryWriter(str(folder), purge_step=purge_step))


class _TrackerIds:
    """The ids that trackers gave the run, saved in its folder, so that a resumed run logs to the same one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getitem__(self, tracker: str) -> str | None:
        return self._read().get(tracker)

    def __setitem__(self, tracker: str, run: str) -> None:
        write_atomically(self._path, json_bytes({**self._read(), tracker: run}, indent=2))

    def _read(self) -> dict[str, str]:
        return json.loads(self._path.read_bytes()) if self._path.is_file() else {}


class _LightningLogger:
    """One of Lightning's loggers; `rename` turns names of values into names that it accepts."""

    def __init__(self, logger: Any, rename: Callable[[str], str] = str) -> None:
        self._logger, self._rename = logger, rename

    def write(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        self._logger.log_metrics({self._rename(name): value for name, value in {**values, "epoch": epoch}.items()}, step=step)

    def close(self) -> None:
        self._logger.finalize("success")


def _wandb(project: str, folder: Path, name: str, ids: _TrackerIds, settings: Mapping[str, Any] | None) -> _LightningLogger:
    run = ids["wandb"] or secrets.token_hex(8)
    logger = _lightning_logger("WandbLogger", "wandb", project=project, save_dir=str(folder), name=name, version=run)
    if settings is not None:
        logger.log_hyperparams(dict(settings))
    ids["wandb"] = run
    return _LightningLogger(logger)


def _mlflow(address: str, name: str, ids: _TrackerIds, settings: Mapping[str, Any] | None) -> _LightningLogger:
    known = ids["mlflow"]
    logger = _lightning_logger(
        "MLFlowLogger", "mlflow", experiment_name="suprank", run_name=name, tracking_uri=address, run_id=known
    )
    if known is None:
        ids["mlflow"] = logger.run_id
        if settings is not None:  # MLflow takes them only once
            logger.log_hyperparams(dict(settings))
    return _LightningLogger(logger, _mlflow_name)


def _mlflow_name(name: str) -> str:
    """The name with characters that MLflow allows. Lightning would drop the others, and mAP@R would become mAPR.

    Example:
        >>> _mlflow_name("test/mAP@R/ü")
        'test/mAP_at_R/_'
    """
    return re.sub(r"[^\w/. -]", "_", name.replace("@", "_at_"), flags=re.ASCII)


def _lightning_logger(kind: str, package: str, **arguments: Any) -> Any:
    """One of Lightning's loggers; they are slow to import, and each needs a package."""
    from suprank.system import torchvision_operators

    torchvision_operators.declare()  # before Lightning imports torchvision
    from lightning.pytorch import loggers

    try:
        return getattr(loggers, kind)(**arguments)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"logging.{package} needs {package}, which is not installed; pip install {package}, or leave it out."
        ) from error
