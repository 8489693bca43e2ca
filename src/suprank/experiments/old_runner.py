"""Running the runs of an experiment: each once, several at a time, on this machine or as a SLURM array.

Every run is a process of `suprank train`, which resumes what was interrupted. An experiment can be stopped and started again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from suprank.experiments import fork_server, slurm
from suprank.experiments.fork_server import ForkedRun, ForkServer
from suprank.experiments.results import read_outcome
from suprank.experiments.worker_processes import WorkerPool, WorkerRun, open_log
from suprank.files.locking import lock_folder
from suprank.system.custom_code import handed_consents
from suprank.system.platforms import usable_cores
from suprank.training.code_copies import check_finished_run, find_sources
from suprank.training.run_folder import RESULT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import FrameType

    from suprank.experiments.grid import Combination
    from suprank.experiments.tables import Table
    from suprank.training.config import TrainConfig

LOCK = "sweep.lock"
LAST_LINES = 15  # of the log of a run that failed
POLL_SECONDS = 0.1
PROGRAM = [sys.executable, "-P", "-m", "suprank"]  # -P: no module of the current folder, which may be anybody's


class Display:
    """A base class whose methods do nothing: override those that you want to show, as the command line does."""

    def begin(self, runs: int) -> None:
        """This many runs are about to be run on this machine."""

    def run_started(self, name: str) -> None:
        """A run was started."""

    def run_progress(self, name: str, done: int, steps: int, loss: float | None) -> None:
        """`done` of the `steps` of a run are done; known for runs in `suprank.experiments.parallel` only."""

    def run_ended(self, name: str, failure: str) -> None:
        """A run ended; `failure` is empty if it left a result."""

    def end(self) -> None:
        """No run is left on this machine; follows every `begin`, also after an error."""

    def skipped(self, finished: int, total: int) -> None:
        """`finished` of `total` runs were finished before, and are not run again."""

    def note(self, text: str) -> None:
        """Something that a user should know."""

    def table(self, table: Table, *, seconds: bool = False) -> None:
        """A table of results; called also if the table cannot be written. `seconds` asks for the column of times."""


class Task(NamedTuple):
    """A run to do: its command, the folder of its result, and the log of what it prints."""

    name: str
    command: list[str]
    folder: Path
    log: Path

    @classmethod
    def create(cls, name: str, recipe: str, overrides: Sequence[str], folder: Path) -> Task:
        """The run of this name in the folder of an experiment."""
        return cls(name, train_command(recipe, overrides, folder / name), folder / name, folder / "logs" / f"{name}.log")

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
        """Start the run as a process in a session of its own: Ctrl-C reaches the experiment, which then asks its runs to save.

        The process inherits `lock`, the descriptor of the experiment's lock, so that it holds the lock too: if the experiment
        is killed and the run lives on, no other experiment starts the same run a second time.
        """
        with open_log(log or self.log) as file:
            return subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=_full_environment(environment or {}),
                pass_fds=() if lock is None or os.name == "nt" else (lock,),  # Windows cannot pass a descriptor on
                start_new_session=True,
            )

    @property
    def can_fork(self) -> bool:
        """Whether a fork server or a worker can start the run: its command is `suprank train`, on a system that has these."""
        return fork_server.is_supported() and self.command[:5] == [*PROGRAM, "train"]

    def fork(self, server: ForkServer, environment: Mapping[str, str], *, lock: int | None = None) -> ForkedRun:
        """Start the run as `start` does, as a fork of the server, which has imported everything."""
        with open_log(self.log) as file:
            return server.start(
                self.command[len(PROGRAM) :],
                _full_environment(environment),
                log=file.fileno(),
                lock=lock,
                fallback=lambda: self.start(environment, lock=lock),
            )

    def run_in(self, pool: WorkerPool, slot: int, environment: Mapping[str, str], *, lock: int | None = None) -> WorkerRun:
        """Run it in the worker of a slot, after the runs that the worker had before."""
        arguments, variables = self.command[len(PROGRAM) :], _full_environment(environment)
        return pool.start(slot, arguments, variables, run=self.folder, log=self.log, lock=lock)

    def failure(self, code: int) -> str:
        """What went wrong with a run that ended with this exit code; empty if it left a result."""
        if code == 0 and (self.folder / RESULT).exists():
            return ""
        reason = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return reason if code else "ended without a result"


def _full_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """The environment of a run: ours, with our consents and these changes, and UTF-8 as the encoding of the log."""
    return {"PYTHONIOENCODING": "utf-8", **os.environ, **handed_consents(), **changes}


class EndedTask(NamedTuple):
    """A run that ended; `failure` is empty if it left a result. The exit code is negative if a signal ended it."""

    task: Task
    failure: str
    code: int


class ExperimentStopped(Exception):  # noqa: N818 - not an error: somebody asked for it
    """A signal stopped the experiment, and its runs have saved what they had."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


class Record(Protocol):
    """What the folder of an experiment says about it: a `Sweep` or a `Comparison`."""

    @property
    def runs(self) -> tuple[Combination, ...]: ...
    def save(self, folder: Path) -> None: ...


@dataclass(frozen=True)
class Plan:
    """An experiment that was checked and can be run: its record, and a task and a config for each run that was asked for.

    The record may have further runs, of earlier calls. `configs` may leave out runs that differ only in their seed.
    """

    record: Record
    folder: Path
    tasks: list[Task]
    configs: list[TrainConfig]
    job_name: str

    def run(
        self,
        *,
        jobs: int | None = None,
        workers: WorkerPool | None = None,
        slurm_options: Sequence[str] = (),
        display: Display | None = None,
    ) -> list[str]:
        """Run what is not finished, and return the names of the runs that failed. `workers` are as in `run_tasks`.

        With `slurm_options` (KEY=VALUE, as for sbatch) the runs are submitted as a SLURM array, and nothing is waited for.
        """
        parameters = slurm.slurm_parameters(slurm_options, self.configs, jobs, self.job_name) if slurm_options else None
        with self.open() as lock:
            return self.run_tasks(
                self.tasks,
                jobs=jobs,
                workers=workers,
                lock=lock,
                slurm_parameters=parameters,
                display=display or Display(),
            )

    @contextmanager
    def open(self) -> Iterator[int]:
        """Make the folder, lock it for this process and save the record in it. Yields the lock's file descriptor.

        Code that the recipes name must have the user's consent, before any run starts.
        """
        for config in self.configs:
            find_sources(config, self.folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"{self.folder} cannot be made ({error.strerror}); name another --out.") from error
        with lock_experiment(self.folder) as lock:
            self.record.save(self.folder)
            yield lock

    def run_tasks(
        self,
        tasks: Sequence[Task],
        *,
        jobs: int | None,
        workers: WorkerPool | None,
        lock: int,
        slurm_parameters: tuple[str, dict[str, Any]] | None,
        display: Display,
    ) -> list[str]:
        """Run those of the tasks that are not finished, here or in SLURM, and return the names of those that failed."""
        waiting = [task for task in tasks if read_outcome(task.folder) is None]
        for task in tasks:
            if task not in waiting:
                check_finished_run(task.folder)
        if len(waiting) < len(tasks):
            display.skipped(len(tasks) - len(waiting), len(tasks))
        if slurm_parameters is None:
            gpus = shared_gpus(self.configs, jobs or 1)
            return _run_here(waiting, jobs or 1, lock, gpus, display, workers=workers)
        submit(waiting, self.folder, *slurm_parameters, display)
        return []


def lock_experiment(folder: Path) -> AbstractContextManager[int]:
    """Hold the lock of an experiment's folder, which its runs inherit; yields the lock's file descriptor."""
    return lock_folder(
        folder, "running a sweep or comparison (or one of its runs is still running) in", "wait for it, or stop it", name=LOCK
    )


def train_command(recipe: str, overrides: Sequence[str], folder: Path) -> list[str]:
    """`suprank train`, started or resumed, by this Python."""
    return [*PROGRAM, "train", recipe, *overrides, "--out", str(folder), "--resume"]


def shared_gpus(configs: Sequence[TrainConfig], jobs: int) -> list[str]:
    """The GPUs, as CUDA_VISIBLE_DEVICES names them, among which runs at the same time are distributed; none if a run takes
    several GPUs, or none."""
    if jobs == 1 or any(config.engine.devices > 1 or config.engine.accelerator == "cpu" for config in configs):
        return []
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [gpu for gpu in named.split(",") if gpu] if named else [str(gpu) for gpu in range(torch.cuda.device_count())]


def run_tasks(
    waiting: Sequence[Task],
    jobs: int = 1,
    *,
    lock: int | None = None,
    gpus: Sequence[str] = (),
    workers: WorkerPool | None = None,
    display: Display | None = None,
) -> Iterator[EndedTask]:
    """Run the tasks, `jobs` at a time, and yield each as it ends; one that fails does not keep the others from running.

    Tasks that the caller adds to a deque `waiting` in the meantime are run too. Tasks at the same time share the cores, and
    take turns at `gpus`. If there are several trainings, a `ForkServer` starts them, so that modules are imported once. With
    `workers` they take turns in `jobs` processes instead, each of which initializes CUDA once. On SIGINT, SIGTERM or SIGHUP the
    runs get SIGTERM and are waited for; a second signal kills them. Then `ExperimentStopped` is raised.
    """
    display = display or Display()
    queue = waiting if isinstance(waiting, deque) else deque(waiting)
    running: dict[int, tuple[Task, subprocess.Popen[bytes] | ForkedRun | WorkerRun]] = {}
    with _catch_signals() as caught, ForkServer() as server:
        try:
            while queue or running:
                for slot in range(jobs):
                    if queue and slot not in running and not caught:
                        task = queue.popleft()
                        display.run_started(task.name)
                        environment = _environment(slot, jobs, gpus)
                        if task.can_fork and workers is not None:
                            running[slot] = task, task.run_in(workers, slot, environment, lock=lock)
                        elif task.can_fork and (queue or server.pid):  # for a single run, the server would be no gain
                            running[slot] = task, task.fork(server, environment, lock=lock)
                        else:
                            running[slot] = task, task.start(environment, lock=lock)
                if caught:
                    raise ExperimentStopped(caught[0])
                for slot, (task, process) in list(running.items()):
                    if (code := process.poll()) is not None:
                        del running[slot]
                        yield EndedTask(task, task.failure(code), code)
                time.sleep(POLL_SECONDS if running else 0)
        finally:
            _stop([process for _, process in running.values()], caught)


def _run_here(
    waiting: Sequence[Task], jobs: int, lock: int, gpus: Sequence[str], display: Display, *, workers: WorkerPool | None
) -> list[str]:
    """Run the tasks on this machine, and return the names of those that failed."""
    failed = []
    display.begin(len(waiting))
    try:
        tasks = run_tasks(waiting, jobs, lock=lock, gpus=gpus, workers=workers, display=display)
        for task, failure, _ in tasks:
            display.run_ended(task.name, failure)
            if failure:
                failed.append(task.name)
                display.note(f"{task.name} {failure}; the end of {task.log}:\n{task.last_lines}")
    finally:
        display.end()
    return failed


def submit(waiting: Sequence[Task], folder: Path, cluster: str, parameters: Mapping[str, object], display: Display) -> None:
    """Submit the tasks that are neither finished nor in the queue."""
    queue = slurm.queued_jobs(folder) if cluster == "slurm" else {}
    queued = [task for task in waiting if task.name in queue]
    if queued:
        jobs = ", ".join(sorted({queue[task.name] for task in queued}))
        display.note(
            f"{len(queued)} runs are in the queue already, or too new for SLURM to know them: {jobs}. "
            f"If they are not, remove {folder / 'slurm' / 'jobs.json'}."
        )
    new = [task for task in waiting if task.name not in queue]
    if new:
        for name, job in slurm.submit_tasks(new, folder, cluster, parameters).items():
            display.note(f"{job.job_id}: {name}")
        display.note(f"submitted {len(new)} runs. Give the same command again, or with --collect, for the table.")


def _environment(slot: int, jobs: int, gpus: Sequence[str]) -> dict[str, str]:
    """The environment variables that give one of several runs its part of the machine."""
    share = {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if gpus else {}
    if jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
        share["OMP_NUM_THREADS"] = str(max(1, usable_cores() // jobs))
    return share


@contextmanager
def _catch_signals() -> Iterator[list[int]]:
    """Collect the signals that ask to stop, in order. Those that our parent wants ignored (nohup, `&`) stay ignored."""
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


def _stop(processes: Sequence[subprocess.Popen[bytes] | ForkedRun | WorkerRun], caught: Sequence[int]) -> None:
    """Let the processes save and end; kill them, and what they started, if a further signal comes."""
    for process in processes:
        process.terminate()
    enough = len(caught) + 1
    while any(process.poll() is None for process in processes):
        if len(caught) >= enough:
            for process in processes:
                if process.poll() is None:
                    _kill(process)
        time.sleep(POLL_SECONDS)


def _kill(process: subprocess.Popen[bytes] | ForkedRun | WorkerRun) -> None:
    """Kill the process and what it started; on Windows, which has no process groups, only the process."""
    if isinstance(process, subprocess.Popen) and not hasattr(os, "killpg"):
        process.kill()
    elif process.pid is not None:  # or else it was terminated before its start
        os.killpg(process.pid, signal.SIGKILL)
