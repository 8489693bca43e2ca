"""Processes that train one run of an experiment after the other.

A new process has to initialize CUDA and to load the kernels of cuDNN, for every shape of images: 20 to 30 s of CPU time on an
H200, several times as long as a short training. A worker does so once. Its runs share nothing else: each is the program
`suprank` with its own arguments and log, whose random numbers depend on the recipe alone.

A worker that may not be as good as new ends after its run, and the next run gets another one: after a run that failed, because
an error of CUDA would fail the next one too; after one with code of the user's own, which may have changed anything in the
process, and may be edited before the next run; and after one that leaves processes or a process group of torch behind.

If the experiment dies, a worker finishes its run, holding the lock of the experiment meanwhile, and ends. Only Linux has
workers: macOS has no sockets on which a message arrives whole, and Windows cannot send file descriptors.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tomllib
import warnings
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from suprank.experiments import fork_server
from suprank.experiments.fork_server import import_program, redirect_output, run_program, socket_pair
from suprank.system.custom_code import is_custom
from suprank.training.run_folder import RECIPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

_MESSAGE_BYTES = 2**20
_SECONDS_TO_END = 60.0
_WORK = "import sys; from suprank.experiments.worker_processes import work; work(int(sys.argv[1]))"


def optional_pool(*, keep_processes: bool, slurm: Sequence[str] = ()) -> AbstractContextManager[WorkerPool | None]:
    """A pool of workers if the user asks for it by `--keep-processes`, or else None."""
    if keep_processes and slurm:
        raise ValueError("--keep-processes is for runs on this machine, and SLURM starts a process for each; leave one out.")
    return WorkerPool() if keep_processes else nullcontext()


class WorkerPool:
    """Processes in which the runs of experiments take turns, one for each of the runs at the same time, on Linux only.

    They are started when they are needed, and end with the pool. Several experiments, one after the other, can share it:

        with WorkerPool() as workers:
            compare(["cub112/nsm", "cub112/roadmap"], "cub112", jobs=8, workers=workers)
            compare(["emoji64/nsm", "emoji64/roadmap"], "emoji64", jobs=8, workers=workers)
    """

    def __init__(self) -> None:
        if not fork_server.is_supported():
            raise OSError(
                "only Linux can keep the processes of runs (--keep-processes); leave it out, and each run has one of its own."
            )
        self._workers: dict[int, _Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self, slot: int, arguments: Sequence[str], environment: Mapping[str, str], *, run: Path, log: Path, lock: int | None
    ) -> WorkerRun:
        """Run `suprank` with these arguments in the worker of a slot, which has this environment. It holds `lock` meanwhile.

        `run` is the folder of the training, and its output is appended to the file `log`.
        """
        request = {"arguments": list(arguments), "folder": str(Path.cwd()), "run": str(run.absolute())}
        return WorkerRun(lambda: self._idle_worker(slot, environment, log), request, log, lock)

    def _idle_worker(self, slot: int, environment: Mapping[str, str], log: Path) -> _Worker:
        """The worker of a slot; a new one if there is none, or none that can be used for this environment."""
        worker = self._workers.get(slot)
        if worker is None or not worker.is_idle or worker.environment != environment:
            if worker is not None:
                worker.disconnect()
                worker.wait()
            worker = self._workers[slot] = _Worker(environment, log)
        return worker

    def close(self) -> None:
        """End the workers; one that is training ends after its run."""
        for worker in self._workers.values():
            worker.disconnect()
        for worker in self._workers.values():
            worker.wait()
        self._workers.clear()


class _Worker:
    """A worker process, as seen from the experiment. What it says before its first run is in the log of that run."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self.environment = dict(environment)
        self.runs = 0  # that were sent to it
        self.is_training = False
        self._connection, theirs = socket_pair()
        with theirs, open_log(log) as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _WORK, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._connection.setblocking(False)

    @property
    def is_idle(self) -> bool:
        """Whether it can train the next run."""
        return not self.is_training and self.process.poll() is None

    def send(self, request: Mapping[str, object], log: Path, lock: int | None) -> None:
        self.runs, self.is_training = self.runs + 1, True
        with open_log(log) as output, suppress(BrokenPipeError, ConnectionResetError):  # it has ended, as `receive` will say
            descriptors = [output.fileno(), *([] if lock is None else [lock])]
            socket.send_fds(self._connection, [json.dumps(request).encode()], descriptors)

    def receive(self) -> dict[str, Any] | None:
        """What it reports; None if there is nothing new; empty if it has ended.

        The end is that of the process, because what it started may live on, with the connection.
        """
        has_ended = self.process.poll() is not None  # before reading: all that it has sent is there then
        try:
            message = self._connection.recv(_MESSAGE_BYTES)
        except OSError:  # nothing to read, or the connection was reset
            message = b""
        if message:
            report: dict[str, Any] = json.loads(message)
            return report
        return {} if has_ended else None

    def disconnect(self) -> None:
        """Let it end, after its run if it is training."""
        self._connection.close()

    def wait(self) -> None:
        """Wait for the end of an idle worker that was disconnected; kill it if it does not come."""
        if self.is_training:
            return
        try:
            self.process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class WorkerRun:
    """A run in a worker, with those attributes of `subprocess.Popen` that an experiment needs."""

    def __init__(self, idle_worker: Callable[[], _Worker], request: Mapping[str, object], log: Path, lock: int | None) -> None:
        self._idle_worker, self._request, self._log, self._lock = idle_worker, request, log, lock
        self._has_begun = self._is_terminated = False
        self._code: int | None = None  # of a run whose worker is about to end
        self.returncode: int | None = None
        self._worker = self._send()

    def _send(self) -> _Worker:
        worker = self._idle_worker()
        worker.send(self._request, self._log, self._lock)
        return worker

    @property
    def pid(self) -> int:
        return self._worker.process.pid

    def poll(self) -> int | None:
        """The exit code, negative if a signal ended the worker; None while it runs."""
        while self.returncode is None and (report := self._worker.receive()) is not None:
            self._take(report)
        return self.returncode

    def _take(self, report: Mapping[str, Any]) -> None:
        if "code" in report and report["reusable"]:
            self.returncode, self._worker.is_training = report["code"], False
        elif "code" in report:  # the run is over when the worker has ended, like any process
            self._code = report["code"]
        elif report:
            self._has_begun = True
        else:
            self._worker.is_training = False
            if not self._has_begun and not self._is_terminated and self._worker.runs > 1:
                self._worker = self._send()  # it has ended between two runs, and this one is not to blame
            else:
                self.returncode = (self._worker.process.returncode or 1) if self._code is None else self._code

    def terminate(self) -> None:
        """Send SIGTERM to the worker, whose training saves a checkpoint and ends, as does the worker."""
        self._is_terminated = True
        if self.poll() is None:
            self._worker.process.terminate()


def open_log(log: Path) -> BinaryIO:
    """The file of a run's output, to which is appended."""
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("ab")


# In the worker


def work(descriptor: int) -> None:
    """The main function of a worker: run what the experiment sends, until it is gone or this process is unfit for more."""
    connection, reusable = socket.socket(fileno=descriptor), True
    import_program()
    while reusable:
        try:
            message, descriptors, *_ = socket.recv_fds(connection, _MESSAGE_BYTES, 2)
        except OSError:
            break
        if not message:
            break
        _report(connection, {"begun": True})
        code, reusable = _run(json.loads(message), descriptors[0])
        for lock in descriptors[1:]:
            os.close(lock)
        _report(connection, {"code": code, "reusable": reusable})


def _report(connection: socket.socket, report: Mapping[str, object]) -> None:
    with suppress(OSError):  # the experiment was killed, and the run goes on
        connection.send(json.dumps(report).encode())


def _run(request: Mapping[str, Any], log: int) -> tuple[int, bool]:
    """Run the program, with its output in the log. Returns its exit code, and whether the process is fit for another run."""
    redirect_output(log)
    with _restored_settings():
        try:
            run_program(request["arguments"], request["folder"])
            code = 0
        except SystemExit as end:
            code = _exit_code(end)
    sys.stdout.flush()
    sys.stderr.flush()
    return code, code == 0 and _is_reusable(Path(request["run"]))


def _exit_code(end: SystemExit) -> int:
    """The exit code of the process that this would end; a text is printed, as Python does."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


@contextmanager
def _restored_settings() -> Iterator[None]:
    """Undo what a run changes in this process, and let it show warnings that were shown to the run before."""
    variables, path, format_warning = dict(os.environ), list(sys.path), warnings.formatwarning
    with warnings.catch_warnings():  # Python forgets which warnings it has shown when it begins and ends
        pass
    random.seed()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:] = path
        warnings.formatwarning = format_warning


def _is_reusable(run: Path) -> bool:
    """Free what a finished run has left, on the GPU too. Returns whether the process is then like one that has had no run."""
    import torch

    gc.collect()
    if multiprocessing.active_children() or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return not _has_own_code(run)
    except (RuntimeError, OSError, ValueError, KeyError):  # an error of CUDA, or the recipe is gone or damaged
        return False


def _has_own_code(run: Path) -> bool:
    """Whether the run has loaded code of the user's own: training loads only what its recipe names."""
    recipe = tomllib.loads((run / RECIPE).read_text(encoding="utf-8"))
    return is_custom(recipe["loss"]["name"]) or is_custom(recipe.get("model", {}).get("backbone", ""))
