"""One training run of an experiment, as a task: `train_run` is called in another process, or on another machine."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank.executors.local import Answer, Crashed, Task, report, run
from suprank.training.callbacks import Callback, StepValues, metrics_line, step_line
from suprank.training.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suprank.evaluation import Report

# What a run imports, as names: the caller need not import it. Not tensorboard, because gRPC may crash in processes that are
# forked and fork again.
PRELOAD = ("suprank.training.loop", "suprank.models", "pandas", "pyarrow.parquet")
SECONDS_BETWEEN_REPORTS = 0.2
SECONDS_TO_UNLOCK = 120.0  # network file systems free the locks of a machine that is gone after a minute or two
SECONDS_BETWEEN_LINES = 30.0  # of the log


class RunStopped(Exception):  # noqa: N818 - not an error: somebody asked for it
    """A run was stopped by a signal that the experiment did not send, and has saved what it had."""


def train_run(config: str, folder: str) -> dict[str, dict[str, float | None]]:
    """Train the config, in JSON, into a folder, or resume it there. Returns the metrics of its test sets.

    Raises what `train` raises, `MemoryError` or `torch.OutOfMemoryError` if memory ran out, and `RunStopped`. Code of the
    user's own must have their consent already, which comes with the environment of the process.
    """
    from suprank.training.config import TrainConfig
    from suprank.training.engine import launched_processes
    from suprank.training.loop import train

    settings = TrainConfig.model_validate_json(config)
    settings.loss._named_in = settings.model._named_in = str(Path(folder) / "recipe.toml")
    if settings.engine.devices > 1 and launched_processes() is None:
        return _train_on_devices(config, folder, settings.engine.devices)
    try:
        result = train(settings, folder, resume=True, callbacks=_Progress())
    except RuntimeError as error:
        if "can't allocate memory" in str(error):  # on a CPU torch has no class for it
            raise MemoryError(str(error)) from error
        raise
    if result.stop_signal:
        raise RunStopped(f"stopped by signal {result.stop_signal}")
    return (RunFolder(folder).result or {}).get("metrics", {})


def train_run_again(config: str, folder: str) -> dict[str, dict[str, float | None]]:
    """`train_run`, perhaps in place of a process that died on another machine and may hold the lock of the folder a while."""
    end = time.monotonic() + SECONDS_TO_UNLOCK
    while True:
        try:
            return train_run(config, folder)
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(1)


class _Progress(Callback):
    """Reports steps to the experiment, and prints a line now and then, and all metrics, for the log."""

    def __init__(self) -> None:
        self._steps, self._reported, self._printed = 0, 0.0, time.monotonic()

    def on_train_start(self, done: int, steps: int, description: str) -> None:
        self._steps = steps
        print(description)
        report((done, steps, None))

    def on_step_end(self, step: StepValues) -> None:
        now = time.monotonic()
        if now - self._reported >= SECONDS_BETWEEN_REPORTS:
            self._reported = now
            report((step.step, self._steps, step.values["loss"]))
        if now - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = now
            print(f"epoch {step.epoch:.2f}  step {step.step}/{self._steps}  {step_line(step)}")

    def on_evaluation_end(self, epoch: int, reports: Mapping[str, Report]) -> None:
        for name, one in reports.items():
            print(f"epoch {epoch}{f' {name}' if len(reports) > 1 else ''}: {metrics_line(one)}")

    def on_message(self, text: str) -> None:
        print(text)


def _train_on_devices(config: str, folder: str, devices: int) -> dict[str, Any]:
    """Train in a process for each device of this machine, with the variables that torchrun would set."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": devices, "LOCAL_WORLD_SIZE": devices}
    shared |= {"TORCHELASTIC_RUN_ID": port, "GROUP_RANK": 0, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", 1)}
    variables = [{**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in range(devices)]
    tasks = [Task(f"rank {rank}", (config, folder, one)) for rank, one in enumerate(variables)]
    answer = Answer()
    for _, answer in run(_train_rank, tasks, jobs=devices, on_report=lambda _, values: report(values)):
        if answer.error is not None and not (isinstance(answer.error, Crashed) and answer.error.exit_code == 1):
            break  # which ends the others; a process ends with 1 if another one has failed, and says why
    if answer.error is not None:
        raise answer.error
    return answer.value


def _train_rank(config: str, folder: str, variables: Mapping[str, object]) -> dict[str, Any]:
    os.environ.update({name: str(value) for name, value in variables.items()})
    return train_run(config, folder)
