"""Several trainings at the same time on the cores of one machine, each in a process with one thread."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import traceback
from contextlib import suppress
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, NamedTuple

from suprank.experiments.old_runner import Display
from suprank.system.child_processes import restore_environment, safe_environment
from suprank.training.callbacks import Callback, StepValues
from suprank.training.code_copies import find_sources
from suprank.training.run_folder import RunFolder
from suprank.training.signals import stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path

    from suprank.training.config import TrainConfig

SPAWN = multiprocessing.get_context("spawn")  # a fork of a process that has used torch may hang
_POLL_SECONDS = 0.2  # until a signal is noticed while no process sends anything


class TrainingError(RuntimeError):
    """A training that failed though nobody made a mistake: it was killed, or its loss became NaN or infinite."""


class Message(NamedTuple):
    """What a training process sends: how many of its steps are done, or a note, or the error that ended it."""

    done: int = 0
    steps: int = 0
    loss: float | None = None
    note: str = ""
    error: Exception | None = None
    trace: str = ""


def train_in_parallel(
    runs: Mapping[str, tuple[TrainConfig, Path]], processes: int, display: Display | None = None
) -> int | None:
    """Train each of the runs, by name, into its folder, `processes` at a time. Return the signal that stopped it, if one did.

    A finished run is left as it is, and an interrupted one is resumed. A signal stops all: each training writes a checkpoint
    and ends. If one fails, the others are stopped in the same way, and its error is raised.
    """
    display = display or Display()
    with stop_on_signals() as stop:
        display.begin(len(runs))
        running: list[_Training] = []
        try:
            waiting = {name: run for name, run in runs.items() if not _is_finished(name, *run, display)}
            while (waiting or running) and not stop.signal:
                while waiting and len(running) < processes:
                    name = next(iter(waiting))
                    running.append(_Training(name, *waiting.pop(name), display))
                ready = wait([training.connection for training in running], timeout=_POLL_SECONDS)
                for training in [training for training in running if training.connection in ready]:
                    if training.receive():
                        running.remove(training)
        finally:
            for training in running:
                training.process.terminate()  # it saves
            for training in running:
                with suppress(Exception):  # one error is enough
                    while not training.receive():
                        pass
                training.process.join()
            display.end()
    return stop.signal or None


class _Training:
    """A training process, as seen from the process that displays it. The constructor starts it."""

    def __init__(self, name: str, config: TrainConfig, folder: Path, display: Display) -> None:
        self.name, self.display = name, display
        find_sources(config, folder)  # the process does not know who has named the code in it
        display.run_started(name)
        self.connection, sender = SPAWN.Pipe(duplex=False)
        self.process = SPAWN.Process(target=_train, args=(config.model_dump_json(), folder, sender), name=name)
        # Ctrl-C reaches it too. It ignores it until it trains (and then saves what it has), because we end it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with safe_environment():
                self.process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        sender.close()  # the process has the last copy, so that the pipe ends when the process does

    def receive(self) -> bool:
        """Wait for the next message and display it. Return True at the end; raise an error if the training failed."""
        try:
            message: Message = self.connection.recv()
        except EOFError:
            self.process.join()
            if self.process.exitcode:
                reason = _exit_reason(self.process.exitcode)
                raise TrainingError(f"{self.name} {reason}; give the same command again to resume it.") from None
            self.display.run_ended(self.name, "")
            return True
        if isinstance(message.error, TrainingError):
            raise TrainingError(f"{self.name}: {message.error}")
        if message.error is not None:
            message.error.add_note(f"(training {self.name})")
            raise message.error from RuntimeError(f"in another process:\n{message.trace}")
        if message.note:
            self.display.note(f"{self.name}: {message.note}")
        else:
            self.display.run_progress(self.name, message.done, message.steps, message.loss)
        return False


def _is_finished(name: str, config: TrainConfig, folder: Path, display: Display) -> bool:
    """Whether there is nothing left to train, which is displayed. A run of another recipe is refused, as training would."""
    if RunFolder(folder).result is None:
        return False
    with RunFolder.open(folder, config, resume=True):
        display.note(f"{name}: {folder} is finished already.")
    return True


def _exit_reason(code: int) -> str:
    """How a process ended.

    Example:
        >>> _exit_reason(-9), _exit_reason(143), _exit_reason(1)
        ('was killed by SIGKILL (perhaps memory ran out)', 'was stopped by SIGTERM', 'ended with exit code 1')
    """
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"ended with exit code {code}"
    if code > 0:
        return f"was stopped by {name}"
    return f"was killed by {name}" + (" (perhaps memory ran out)" if name == "SIGKILL" else "")


# In the training process


class _Sender(Callback):
    """Sends what a display needs to the other process."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.steps = connection, 0

    def on_train_start(self, done: int, steps: int, description: str) -> None:
        self.steps = steps
        self._send(Message(done, steps))

    def on_step_end(self, step: StepValues) -> None:
        self._send(Message(step.step, self.steps, step.values["loss"]))

    def on_message(self, text: str) -> None:
        self._send(Message(note=text))

    def _send(self, message: Message) -> None:
        try:
            self.connection.send(message)
        except BrokenPipeError:  # the other process was killed: nobody would see how this ends
            signal.raise_signal(signal.SIGTERM)


def _train(config: str, folder: Path, connection: Connection) -> None:
    """The main function of a training process."""
    restore_environment()
    try:
        stop_signal = _run_training(config, folder, _Sender(connection))
    except KeyboardInterrupt:  # Ctrl-C, twice
        stop_signal = signal.SIGINT
    except Exception as error:
        connection.send(Message(error=_picklable(error), trace=traceback.format_exc()))
        raise SystemExit(1) from None
    if stop_signal:
        raise SystemExit(128 + stop_signal)


def _run_training(config: str, folder: Path, callback: Callback) -> int | None:
    """Train or resume. Return the signal that stopped it, if one did."""
    import torch

    from suprank.training import NonFiniteLossError, TrainConfig, train

    torch.set_num_threads(1)  # threads of two trainings would wait for each other
    try:
        return train(TrainConfig.model_validate_json(config), folder, resume=True, callbacks=callback).stop_signal
    except NonFiniteLossError as error:
        raise TrainingError(str(error)) from error


def _picklable(error: Exception) -> Exception:
    """The error; if it cannot be unpickled on the other side, one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
