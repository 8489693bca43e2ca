"""Running the runs of a sweep on this machine: each once, several at a time, and all of them stopped together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from suprank.system.platforms import usable_cores
from suprank.training.run_folder import RESULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import FrameType

    from suprank.experiments.sweep.grid import Grid
    from suprank.training.config import TrainConfig

LAST_LINES = 15  # of the log of a run that failed
POLL_SECONDS = 0.1


class Task(NamedTuple):
    """A run to do: the command, where it leaves its result, and where what it prints goes."""

    name: str
    command: list[str]
    folder: Path
    log: Path

    @property
    def last_lines(self) -> str:
        """The end of the log, where a run that failed says why."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "\n".join(lines[-LAST_LINES:])

    def start(
        self, environment: Mapping[str, str] | None = None, *, log: Path | None = None, lock: int | None = None
    ) -> subprocess.Popen[bytes]:
        """The run as a process of its own session: a Ctrl-C is for the sweep, which then tells its runs to save."""
        log = log or self.log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            return subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                pass_fds=() if lock is None or os.name == "nt" else (lock,),  # Windows hands no descriptor on
                start_new_session=True,
            )

    def failure(self, code: int) -> str:
        """What went wrong, where the run ended with this exit code; empty where it left a result."""
        if code == 0 and (self.folder / RESULT).exists():
            return ""
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return how if code else "ended without a result"


def train_command(recipe: str, overrides: Sequence[str], folder: Path) -> list[str]:
    """`suprank train`, begun or resumed, by this Python."""
    return [sys.executable, "-m", "suprank.cli.main", "train", recipe, *overrides, "--out", str(folder), "--resume"]


def task(name: str, recipe: str, overrides: Sequence[str], folder: Path) -> Task:
    """The run of this name in the folder of a sweep."""
    return Task(name, train_command(recipe, overrides, folder / name), folder / name, folder / "logs" / f"{name}.log")


def tasks(recipe: str, grid: Grid, folder: Path) -> list[Task]:
    """A task for every combination, finished or not."""
    return [task(run.name, recipe, grid.overrides(run), folder) for run in grid.combinations()]


def shared_gpus(configs: Sequence[TrainConfig], jobs: int) -> list[str]:
    """The GPUs, as CUDA_VISIBLE_DEVICES calls them, that several runs at once take turns at; none where a run takes more than
    one, or where they are not wanted."""
    if jobs == 1 or any(config.engine.devices > 1 or config.engine.accelerator == "cpu" for config in configs):
        return []
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [one for one in named.split(",") if one] if named else [str(one) for one in range(torch.cuda.device_count())]


class Ended(NamedTuple):
    """A run that ended; `failure` is empty where it left a result."""

    task: Task
    failure: str


class Stopped(Exception):  # noqa: N818 - no error: somebody asked for it
    """A signal ended the sweep, and its runs have saved what they had."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


def ended(
    waiting: Sequence[Task],
    jobs: int = 1,
    *,
    lock: int | None = None,
    gpus: Sequence[str] = (),
    starting: Callable[[Task], None] = lambda task: None,
) -> Iterator[Ended]:
    """Runs the tasks, `jobs` at once, and gives each as it ends; one that fails does not keep the others from running.

    Several at once share the cores, and take turns at `gpus`. On SIGINT, SIGTERM or SIGHUP the runs get SIGTERM and are waited
    for; a second signal kills them. Then `Stopped` is raised.
    """
    queue = deque(waiting)
    running: dict[int, tuple[Task, subprocess.Popen[bytes]]] = {}
    with _signals() as caught:
        try:
            while queue or running:
                for slot in range(jobs):
                    if queue and slot not in running and not caught:
                        task = queue.popleft()
                        starting(task)
                        running[slot] = task, task.start(_share(slot, jobs, gpus), lock=lock)
                if caught:
                    raise Stopped(caught[0])
                for slot, (task, process) in list(running.items()):
                    if process.poll() is not None:
                        del running[slot]
                        yield Ended(task, task.failure(process.returncode))
                time.sleep(POLL_SECONDS if running else 0)
        finally:
            _stop([process for _, process in running.values()], caught)


def _share(slot: int, jobs: int, gpus: Sequence[str]) -> dict[str, str]:
    """The part of the machine that one of several runs may take."""
    share = {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if gpus else {}
    if jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
        share["OMP_NUM_THREADS"] = str(max(1, usable_cores() // jobs))
    return share


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals to stop that came, in order. Those that whoever started us wants ignored (nohup, `&`) stay ignored."""
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]  # no HUP on Windows
    numbers = [one for one in known if signal.getsignal(one) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(processes: Sequence[subprocess.Popen[bytes]], caught: Sequence[int]) -> None:
    """Lets the processes save and end; kills them, and what they started, when a further signal comes."""
    for process in processes:
        process.terminate()
    enough = len(caught) + 1
    while any(process.poll() is None for process in processes):
        if len(caught) >= enough:
            for process in processes:
                if process.poll() is None:
                    _kill(process)
        time.sleep(POLL_SECONDS)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started; on Windows, which knows no groups of processes, the process alone."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
