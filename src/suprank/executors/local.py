"""Functions in other processes, several at a time: each answer is what the function returned, or the exception that ended it.

    for task, answer in run(train_run, [Task("seed=0", (config, "runs/0"), Path("logs/0.log")), ...], jobs=4):
        if answer.error is None: ...

A process is forked from the standard library's fork server, which has imported once what the tasks need, and computes nothing;
where there is none (macOS, Windows) it is spawned. It has one pipe, for its tasks, reports and answers, and imports neither the
caller's `__main__` nor anything of the working folder first. Whatever happens to it fails its own task only. If the caller
dies, it gets SIGTERM, and so do tasks when the caller is stopped: a training saves a checkpoint then.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakSet

from suprank.system.child_processes import safe_environment
from suprank.system.custom_code import handed_consents
from suprank.system.platforms import usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection
    from types import FrameType

CONTEXT: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
POLL_SECONDS = 0.1  # until a signal, or the end of a process whose own children live on, is noticed
SECONDS_TO_SAVE = 60.0  # before processes are killed, if the caller fails; after a signal a second one kills them
SECONDS_FOR_SERVER = 10.0  # to start in place of one that was killed
SERVER_DIED = 255  # what multiprocessing says of a process whose fork server is gone; the process may live


class Task(NamedTuple):
    """One call of the function: its arguments, which are pickled, and the file to which its output is appended.

    A task that `needs_new_process`, such as a training with code of the user's own, shares its process with no other one.
    """

    name: str
    arguments: tuple[Any, ...]
    log: Path | None = None
    needs_new_process: bool = False


class Answer(NamedTuple):
    """What a task returned, or the exception that ended it, whose cause is the traceback in its process."""

    value: Any = None
    error: Exception | None = None


NOT_BEGUN = Answer()
"""In place of the answer of a task that was sent to a kept process which had died."""


class Crashed(Exception):  # noqa: N818 - the process may have been killed for a good reason
    """A process ended without an answer. The exit code is negative if a signal ended it."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code

    def __str__(self) -> str:
        number = -self.exit_code if self.exit_code < 0 else self.exit_code - 128  # as shells say it
        try:
            name = signal.Signals(number).name
        except ValueError:
            return f"ended with exit code {self.exit_code}"
        return f"was ended by {name}" + (" (perhaps memory ran out)" if name == "SIGKILL" else "")


class ExperimentStopped(Exception):  # noqa: N818 - not an error: somebody asked for it
    """A signal stopped the experiment, and its runs have saved what they had."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


def run(
    function: Callable[..., Any],
    tasks: Iterable[Task],
    *,
    jobs: int = 1,
    gpus: Sequence[str] = (),
    keep: bool = False,
    preload: Sequence[str] = (),
    on_start: Callable[[Task], object] = lambda task: None,
    on_report: Callable[[Task, Any], object] = lambda task, values: None,
) -> Iterator[tuple[Task, Answer]]:
    """Call the function for each task, `jobs` at a time, and yield each with its answer as it ends.

    Tasks that the caller adds to a deque `tasks` in the meantime are done too. Those at the same time share the cores, and take
    turns at `gpus`. With `keep` a process does task after task until one fails, so that it initializes CUDA once; else each has
    a process of its own. `preload` names the modules that the tasks will import: they are imported once, by the fork server, if
    it is started here. `on_start` is called with each task, and `on_report` with what it passes to `report`.

    On SIGINT, SIGTERM or SIGHUP tasks get SIGTERM and are waited for; a second signal kills them. Then `ExperimentStopped` is
    raised. No process is left behind, also if the caller fails, or goes on without the remaining answers.
    """
    queue = tasks if isinstance(tasks, deque) else deque(tasks)
    processes: dict[int, _Process] = {}
    with catch_signals() as caught:
        try:
            while queue or any(process.task for process in processes.values()):
                for slot in range(jobs):
                    if caught:
                        raise ExperimentStopped(caught[0])
                    if not queue or (slot in processes and processes[slot].task):
                        continue
                    task = queue.popleft()
                    on_start(task)
                    try:
                        if slot in processes and (task.needs_new_process or processes[slot].connection.poll()):
                            processes.pop(slot).end()  # an idle process says nothing, unless it is gone
                        if slot not in processes:
                            arguments = function, _environment(slot, jobs, gpus), keep
                            processes[slot] = _Process(arguments, preload)
                        processes[slot].send(task)
                    except Exception as error:  # no process is left on this machine, or an argument cannot be pickled
                        if slot in processes:
                            processes.pop(slot).end()
                        yield task, Answer(error=error)
                wait([process.connection for process in processes.values() if process.task], POLL_SECONDS)
                for slot, process in list(processes.items()):
                    if (done := process.task) and (answer := process.receive(on_report)):
                        if answer is NOT_BEGUN:  # an idle process was killed, perhaps before it could be seen
                            queue.appendleft(done)
                            processes.pop(slot)
                            continue
                        process.task = None
                        if not keep or answer.error or done.needs_new_process or not process.is_reusable:
                            processes.pop(slot).end()
                        yield done, answer
            if caught:
                raise ExperimentStopped(caught[0])
        finally:
            _stop(list(processes.values()), caught)


_processes: WeakSet[_Process] = WeakSet()


class _Process:
    """A process, as seen from the caller, and the task that it is doing."""

    def __init__(self, arguments: tuple[Any, ...], preload: Sequence[str]) -> None:
        self.connection, theirs = CONTEXT.Pipe()
        self.task: Task | None = None
        self.has_begun = False  # this task, rather than an earlier one
        self.is_reusable = True
        self.is_new = True
        self.process = CONTEXT.Process(target=_work, args=(theirs, *arguments))
        _processes.add(self)
        with theirs:
            _start(self.process, preload)

    def send(self, task: Task) -> None:
        # Pickled here, so that what cannot be pickled is an error before anything is sent.
        content = pickle.dumps(task)
        self.task, self.has_begun = task, False
        self.connection.send_bytes(content)

    def receive(self, on_report: Callable[[Task, Any], object]) -> Answer | None:
        """The answer, if it is there. A process that ends without one, even if its own children live on, has crashed."""
        assert self.task is not None
        has_ended = not self.is_alive()  # before reading: all that it has sent is there then
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, SentAnswer):
                    self.is_reusable, self.is_new = message.is_reusable, False
                    return message.answer()
                if message is None:
                    self.has_begun = True
                else:
                    on_report(self.task, message)
        except (EOFError, ConnectionResetError):
            has_ended = True
        if not has_ended:
            return None
        self.end()
        if not (self.has_begun or self.is_new):
            return NOT_BEGUN
        return Answer(error=Crashed(self.process.exitcode or 0))

    def is_alive(self) -> bool:
        if self.process.is_alive() or self.process.exitcode != SERVER_DIED:
            return self.process.is_alive()
        with suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, 0)
            return True
        return False

    def terminate(self) -> None:
        if os.name == "nt" or self.process.pid is None:
            self.process.terminate()
        else:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and what it has started, of which nobody would hear again."""
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.kill()

    def end(self) -> None:
        """Let it end, which it does at the end of its pipe."""
        self.connection.close()
        self.process.join(SECONDS_TO_SAVE)
        self.kill()
        self.process.join()


def _start(process: Any, preload: Sequence[str]) -> None:
    """Start a process. A fork server that was just killed seems to live until the system has cleared it away."""
    end = time.monotonic() + SECONDS_FOR_SERVER
    while True:
        start_server(preload)
        try:
            with safe_environment(), _without_main():
                process.start()
            return
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
        time.sleep(POLL_SECONDS)


def start_server(preload: Sequence[str]) -> None:
    """Start the fork server, unless there is one. All processes have the signal mask that this thread has now."""
    CONTEXT.set_forkserver_preload(["torch", *preload, "suprank.executors.quick_end"])
    if CONTEXT.get_start_method() == "forkserver":
        with safe_environment(), _without_main():
            forkserver.ensure_running()


def _environment(slot: int, jobs: int, gpus: Sequence[str]) -> dict[str, str]:
    """The environment of a process: ours, with our consents and with its part of the machine."""
    share = {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if gpus else {}
    if jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
        share["OMP_NUM_THREADS"] = str(max(1, usable_cores() // jobs))
    return {**os.environ, **handed_consents(), **share}


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes that start meanwhile do not import the caller's `__main__`: a script without a guard would run again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Collect the signals that ask to stop, in order. Those that our parent wants ignored (nohup, `&`) stay ignored."""
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    is_main = threading.current_thread() is threading.main_thread()
    known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if is_main and hasattr(signal, name)]
    before = {number: signal.signal(number, note) for number in known if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_tasks() -> None:
    """Let all tasks of this process save and end, as `run` does when it is stopped; for somebody else's signal handler."""
    _stop([process for process in _processes if process.is_alive()], [])


def _stop(processes: Sequence[_Process], caught: Sequence[int]) -> None:
    """Let the processes save and end; kill them if a further signal comes, or if the caller failed and it takes too long."""
    for process in processes:
        process.connection.close()  # nobody reads what they report, and one that waits for a reader would not end
        if process.task:
            process.terminate()
    enough, end = len(caught) + 1, time.monotonic() + SECONDS_TO_SAVE
    while any(process.is_alive() for process in processes):
        if len(caught) >= enough or (not caught and time.monotonic() > end):
            for process in processes:
                process.kill()
        time.sleep(POLL_SECONDS)
    for process in processes:
        process.kill()


# In the process


class SentAnswer(NamedTuple):
    """An answer on its way: pickled, and in words for a caller that cannot unpickle it."""

    pickled: bytes
    words: str
    trace: str
    is_reusable: bool = True

    def answer(self) -> Answer:
        try:
            answer: Answer = pickle.loads(self.pickled)
        except Exception:  # an exception of a class that only the process has, or that needs arguments
            answer = Answer(error=RuntimeError(self.words))
        if answer.error is not None:
            answer.error.__cause__ = RuntimeError(f"in another process:\n{self.trace}")
        return answer


class _Receiver(Protocol):
    def send(self, values: Any) -> object: ...


_connection: _Receiver | None = None


def report_to(receiver: _Receiver | None) -> None:
    """From here on, `report` sends to this receiver."""
    global _connection
    _connection = receiver


def report(values: Any) -> None:
    """Send values from within a task to `on_report` of `run`; elsewhere do nothing."""
    if _connection is not None:
        with suppress(OSError):  # nobody listens any more
            _connection.send(values)


def _work(connection: Connection, function: Callable[..., Any], environment: Mapping[str, str], keep: bool) -> None:
    """The main function of a process: do the tasks that come through the pipe, until its end, or a single one."""
    import torch

    gc.freeze()  # what the server has imported stays, so collecting garbage need not look at it, nor copy its pages
    report_to(connection)
    multiprocessing.set_start_method(None, force=True)  # not ours, which it got: a task starts processes as any program does
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches the caller, who decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        # Who started the server may have held these back just then. Others that are blocked stay so.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    threading.Thread(target=_end_with_caller, daemon=True).start()
    path = sorted(sys.path, key=lambda place: Path(place).absolute() == Path.cwd())  # the working folder may be anybody's
    given = environment.get("OMP_NUM_THREADS", "")  # which the server may have read before it was set
    threads = int(given) if given.isdigit() else torch.get_num_threads()
    while True:
        try:
            content = connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            return
        with suppress(OSError):  # the caller is gone
            connection.send(None)  # it has begun
        _renew(environment, path, threads)
        sent = call_pickled(function, content)
        is_reusable = keep and _clean_up()
        with suppress(OSError):  # the caller is gone
            connection.send(sent._replace(is_reusable=is_reusable))
        if not is_reusable:
            return


def _end_with_caller() -> None:
    caller = multiprocessing.parent_process()
    if caller is not None:
        caller.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _renew(environment: Mapping[str, str], path: Sequence[str], threads: int) -> None:
    """Undo what earlier tasks have changed, and what all forks of a server have in common: where random numbers begin."""
    import numpy as np
    import torch

    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    torch.set_num_threads(threads)
    random.seed()
    np.random.seed()
    torch.seed()


def call_pickled(function: Callable[..., Any], content: bytes) -> SentAnswer:
    """Do a pickled task; its answer, on its way to the caller."""
    answer, trace = _call(function, content)
    try:
        pickled, error = pickle.dumps(answer), answer.error
    except Exception as reason:
        pickled, error = b"", answer.error or reason
    return SentAnswer(pickled, "".join(traceback.format_exception_only(error)).strip(), trace)


def _call(function: Callable[..., Any], content: bytes) -> tuple[Answer, str]:
    """The answer of a pickled task, and its traceback, which is in its log too."""
    has_log = False
    try:
        task: Task = pickle.loads(content)
        if task.log is not None:
            _write_output_to(task.log)
            has_log = True
        return Answer(function(*task.arguments)), ""
    except Exception as error:
        trace = traceback.format_exc()
        if has_log:
            with suppress(OSError):
                print(trace, file=sys.stderr, flush=True)
        return Answer(error=error), trace


def _write_output_to(log: Path) -> None:
    """Append what this process prints, and what libraries in it print, to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout = sys.stderr = log.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
    for stream in (1, 2):
        os.dup2(sys.stdout.fileno(), stream)


def _clean_up() -> bool:
    """Free what a task has left on the GPU. Returns whether the process is then like one that has done nothing."""
    import torch

    gc.collect()
    if multiprocessing.active_children() or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    if torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError:  # an error of CUDA
            return False
    return True
