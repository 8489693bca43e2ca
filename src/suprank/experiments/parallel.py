"""Several trainings at once on the cores of one machine, a process and a thread each, with a bar for each of them."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import traceback
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from suprank.cli.terminal import escaped
from suprank.training.callbacks import Callback, StepValues
from suprank.training.run_folder import RunFolder
from suprank.training.signals import stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path

    from suprank.training.config import TrainConfig

SPAWN = multiprocessing.get_context("spawn")  # a fork of a process that has used torch may hang
_LISTEN = 0.2  # seconds until a signal is seen while no process tells anything


class TrainingError(RuntimeError):
    """A training that came to a bad end, by nobody's mistake: it was killed, or met a number that is none."""


class Told(NamedTuple):
    """What a training process tells: how many of its steps are done, or something to say, or the error that ended it."""

    done: int = 0
    steps: int = 0
    loss: float | None = None
    said: str = ""
    error: Exception | None = None
    trace: str = ""


def trained(runs: Mapping[str, tuple[TrainConfig, Path]], at_once: int) -> int | None:
    """Train each of the runs, by name, into its folder, `at_once` of them at a time. The signal that stopped it, if one did.

    What is finished stays as it is, and what was begun before goes on. Signals are meant for all: each training writes a
    checkpoint and ends. One that fails ends the others so, and its error is raised.
    """
    with stop_on_signals() as stop, _progress() as bars:
        waiting = {name: run for name, run in runs.items() if not _is_finished(name, *run, bars.console)}
        running: list[_Training] = []
        try:
            while (waiting or running) and not stop.signal:
                while waiting and len(running) < at_once:
                    name = next(iter(waiting))
                    running.append(_Training(name, *waiting.pop(name), bars))
                told = wait([one.told for one in running], timeout=_LISTEN)
                for one in [one for one in running if one.told in told]:
                    if one.ended():
                        running.remove(one)
        finally:
            for one in running:
                one.process.terminate()  # it saves
            for one in running:
                with suppress(Exception):  # one error is enough
                    while not one.ended():
                        pass
                one.process.join()
    return stop.signal or None


class _Training:
    """A process that trains, as seen from the one that shows it. It is running when this is made."""

    def __init__(self, name: str, config: TrainConfig, folder: Path, bars: Progress) -> None:
        self.name, self.bars = name, bars
        self.bar = bars.add_task(name, total=None, loss="")
        self.told, telling = SPAWN.Pipe(duplex=False)
        self.process = SPAWN.Process(target=_train, args=(config.model_dump_json(), folder, telling), name=name)
        # Ctrl-C reaches it too: until it trains, and saves what it has, it need not know, because we end it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        telling.close()  # its own copy is the last one, so that its end is the end of what is told

    def ended(self) -> bool:
        """Show what it tells next, for which it waits. Whether that was all; an end that is none of training's is an error."""
        try:
            told: Told = self.told.recv()
        except EOFError:
            self.process.join()
            if self.process.exitcode:
                raise TrainingError(f"{self.name} {_how(self.process.exitcode)}; the same command goes on with it.") from None
            return True
        if isinstance(told.error, TrainingError):
            raise TrainingError(f"{self.name}: {told.error}")
        if told.error is not None:
            told.error.add_note(f"(training {self.name})")
            raise told.error from RuntimeError(f"in another process:\n{told.trace}")
        if told.said:
            _say(self.bars.console, f"{self.name}: {told.said}")
        else:
            loss = "" if told.loss is None else f"loss {told.loss:.3f}"
            self.bars.update(self.bar, completed=told.done, total=told.steps, loss=loss)
        return False


def _is_finished(name: str, config: TrainConfig, folder: Path, console: Console) -> bool:
    """Whether there is nothing left to train; says so. A run of another recipe is refused, as training would."""
    if RunFolder(folder).finished is None:
        return False
    with RunFolder.open(folder, config, resume=True):
        _say(console, f"{name}: {folder} is finished already.")
    return True


def _say(console: Console, text: str) -> None:
    console.print(escaped(text), highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Bars on stderr, whose tasks have a `loss` in words."""
    columns = (
        TextColumn("{task.description}"),
        TextColumn("{task.fields[loss]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield bars


def _how(code: int) -> str:
    """How a process ended.

    Example:
        >>> _how(-9), _how(143), _how(1)
        ('was killed by SIGKILL (as happens where memory runs out)', 'was stopped by SIGTERM', 'ended with 1')
    """
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"ended with {code}"
    if code > 0:
        return f"was stopped by {name}"
    return f"was killed by {name}" + (" (as happens where memory runs out)" if name == "SIGKILL" else "")


# In the process that trains


class _Teller(Callback):
    """Passes on what a display needs to another process."""

    def __init__(self, telling: Connection) -> None:
        self.telling, self.steps = telling, 0

    def begin(self, done: int, steps: int, about: str) -> None:
        self.steps = steps
        self._tell(Told(done, steps))

    def step(self, at: StepValues) -> None:
        self._tell(Told(at.step, self.steps, at.values["loss"]))

    def say(self, text: str) -> None:
        self._tell(Told(said=text))

    def _tell(self, told: Told) -> None:
        try:
            self.telling.send(told)
        except BrokenPipeError:  # the other process was killed: nobody would see how this ends
            signal.raise_signal(signal.SIGTERM)


def _train(config: str, folder: Path, telling: Connection) -> None:
    """What a process does."""
    try:
        stopped = _stopped(config, folder, _Teller(telling))
    except KeyboardInterrupt:  # Ctrl-C, twice
        stopped = signal.SIGINT
    except Exception as error:
        telling.send(Told(error=_sendable(error), trace=traceback.format_exc()))
        raise SystemExit(1) from None
    if stopped:
        raise SystemExit(128 + stopped)


def _stopped(config: str, folder: Path, watch: Callback) -> int | None:
    """Train, or go on; the signal that stopped it, if one did."""
    import torch

    from suprank.training import NonFiniteLossError, TrainConfig, train

    torch.set_num_threads(1)  # threads of two trainings would wait for each other
    try:
        return train(TrainConfig.model_validate_json(config), folder, resume=True, watch=watch).stopped
    except NonFiniteLossError as error:
        raise TrainingError(str(error)) from error


def _sendable(error: Exception) -> Exception:
    """The error; where it cannot be read again on the other side, one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
