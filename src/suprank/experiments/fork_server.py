"""A process that has imported everything that training needs, and forks for each run of an experiment.

Importing torch, timm and Lightning takes several seconds, as long as a short training. The server is a process of its own, and
not a fork of the experiment, which may have threads, or have used a GPU. It imports only: it computes nothing, draws no random
numbers and never initializes CUDA, so that a run gives the same numbers as one that `python -P -m suprank train` starts.

For each run the server forks a watcher, which forks the run, waits for it and reports its exit code. If the server dies, the
watchers and their runs go on. If the experiment dies, the server ends, and runs that were started go on, as other processes do.

Only Linux has it: on macOS, system libraries may crash in a process that was forked and did not start another program.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# By name: they belong to the program that is started, which this package must not import. Each is imported by every training.
# Not tensorboard, because gRPC may crash in processes that are forked and fork again.
MODULES = (
    *("suprank.cli.app", "suprank.cli.metric_table", "suprank.cli.training_display", "suprank.training.loop"),
    *("suprank.models", "pandas", "pyarrow.parquet"),
)
_MESSAGE_BYTES = 2**20  # more than a socket takes at once
_SERVE = "import sys; from suprank.experiments.fork_server import serve; serve(*map(int, sys.argv[1:]))"


def is_supported() -> bool:
    """Whether runs can be forked on this system."""
    return sys.platform == "linux"


class ForkServer:
    """The server, as seen from the experiment. Its process is started with the first run, and ended by `close`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The server's process, once there is one."""
        return self._process.pid if self._process else None

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        log: int,
        lock: int | None,
        fallback: Callable[[], subprocess.Popen[bytes]],
    ) -> ForkedRun:
        """Run `suprank` with these arguments. `log` and `lock` are descriptors: of the output, and one that the run inherits.

        Variables that are read at import, such as OMP_NUM_THREADS, must be the same in the environments of all runs.
        `fallback` starts the run if the server cannot.
        """
        if self._socket is None:
            self._environment = dict(environment)
            self._socket = self._start_server()
        changes = {name: value for name, value in environment.items() if self._environment.get(name) != value}
        ours, theirs = socket_pair()
        descriptors = [theirs.fileno(), log, *([] if lock is None else [lock])]
        request = json.dumps({"arguments": list(arguments), "environment": changes, "folder": str(Path.cwd())}).encode()
        with theirs, suppress(OSError):  # the server is dead, or the request too long: `ours` is at its end, and says so
            socket.send_fds(self._socket, [request], descriptors)
        return ForkedRun(ours, self, fallback)

    def _start_server(self) -> socket.socket:
        ours, theirs = socket_pair()
        with theirs, tempfile.TemporaryFile() as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _SERVE, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        return ours

    def kill(self) -> None:
        """Kill the server; runs that it has started go on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """End the server."""
        self.kill()
        if self._socket is not None:
            self._socket.close()


class ForkedRun:
    """A run that the server forks, with those attributes of `subprocess.Popen` that an experiment needs.

    `pid` is None until the server has forked it, which takes seconds for the first runs. The pid stays valid until `poll` has
    returned the exit code, because the watcher keeps the ended process until then.
    """

    def __init__(self, connection: socket.socket, server: ForkServer, fallback: Callable[[], subprocess.Popen[bytes]]) -> None:
        connection.setblocking(False)
        self._connection, self._server, self._fallback = connection, server, fallback
        self._process: subprocess.Popen[bytes] | None = None  # if the server could not start it
        self._is_terminated = False
        self.pid: int | None = None
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative if a signal ended the run; None while it runs."""
        while self.returncode is None and self._process is None:
            try:
                message = self._connection.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return None
            except OSError:
                message = b""
            self._receive(json.loads(message) if message else None)
        if self._process is not None:
            self.returncode = self._process.poll()
        return self.returncode

    def _receive(self, message: Mapping[str, int] | None) -> None:
        """Take what the run or its watcher reports; None is the end of the connection."""
        if message is None and self.pid is None and not self._is_terminated:
            self._process = self._fallback()  # the server is dead
            self.pid = self._process.pid
        elif message is None:
            if self.pid is not None:  # the watcher was killed, and nobody would know how the run ends
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
            self.returncode = -signal.SIGTERM if self.pid is None else -signal.SIGKILL
        elif "pid" in message:
            self.pid = message["pid"]
            if self._is_terminated:
                os.kill(self.pid, signal.SIGTERM)
        else:
            self.returncode = message["code"]
        if self.returncode is not None or self._process is not None:
            self._connection.close()

    def terminate(self) -> None:
        """Send SIGTERM to the run. If the server has not forked it yet, it will not be started."""
        self._is_terminated, was_forked = True, self.pid is not None
        if self.poll() is not None:
            return
        if self.pid is None:
            self._server.kill()
        elif was_forked:  # or else `poll` has sent it
            os.kill(self.pid, signal.SIGTERM)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets on which a message arrives whole."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


# In the server


def serve(descriptor: int, experiment: int) -> None:
    """The main function of the server: import, then fork for each request until the experiment's process is gone.

    Returns in the server, and in each run at its end: a run ends by SystemExit, as usual.
    """
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_program()
    sys.stdout.flush()
    printed = os.pread(1, os.fstat(1).st_size, 0)  # warnings at import belong in the log of each run
    gc.freeze()  # a collection would write to the pages of all these objects, which runs share until then
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers that end leave no zombies
    requests = socket.socket(fileno=descriptor)
    while True:
        request, descriptors, *_ = socket.recv_fds(requests, _MESSAGE_BYTES, 3)
        if not request or os.getppid() != experiment:
            return
        if _fork() == 0:
            break
        for one in descriptors:
            os.close(one)  # if there is no watcher, the experiment learns it by this
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection, log = socket.socket(fileno=descriptors[0]), descriptors[1]
    if (run := _fork()) != 0:
        for one in descriptors[1:]:
            os.close(one)  # the lock is held by the run, and no longer than by it
        _watch(run, connection)
    os.setsid()
    with connection, suppress(OSError):  # the experiment was killed, and the run goes on
        connection.send(json.dumps({"pid": os.getpid()}).encode())
    signal.signal(signal.SIGINT, on_interrupt)
    _run(json.loads(request), log, descriptors[2:], printed)


def _fork() -> int:
    """`os.fork`, or -1 if the system has no process left. The threads of OpenBLAS and jemalloc, which Python would warn of, are
    prepared for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return os.fork()
        except OSError:
            return -1


def _watch(run: int, connection: socket.socket) -> NoReturn:
    """Report the exit code of the run, and keep its process until the experiment has read it, or is gone."""
    if run > 0:
        ended = os.waitid(os.P_PID, run, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with suppress(OSError):
            connection.send(json.dumps({"code": code}).encode())
            connection.recv(1)
        os.waitpid(run, 0)
    os._exit(0)


def _run(request: Mapping[str, Any], log: int, inherited: Sequence[int], printed: bytes) -> None:
    """Run the program in this process, as `python -P -m suprank` does."""
    os.write(log, printed)
    redirect_output(log)
    for one in inherited:
        os.set_inheritable(one, True)
    os.environ.update(request["environment"])
    run_program(request["arguments"], request["folder"])


# In every process that runs the program without being started for it: also the workers of `worker_processes`


def import_program() -> None:
    """Import what every training imports."""
    for module in MODULES:
        with suppress(Exception):  # a run imports it again, and says what is wrong
            importlib.import_module(module)


def redirect_output(log: int) -> None:
    """Let stdout and stderr be this file descriptor, which is closed."""
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)


def run_program(arguments: Sequence[str], folder: str) -> None:
    """Run `suprank` in this process and this working folder, as `python -P -m suprank` does. It ends by SystemExit."""
    os.chdir(folder)
    _reseed()
    sys.argv = ["suprank", *arguments]
    runpy.run_module("suprank", run_name="__main__", alter_sys=True)


def _reseed() -> None:
    """Seed torch and numpy from the system, as their import does, so that runs do not share what they draw without a seed of
    ours. `random` does so by itself in a fork."""
    import numpy as np
    import torch

    np.random.seed()
    torch.default_generator.seed()
    if torch.cuda.is_initialized():
        torch.cuda.seed_all()
