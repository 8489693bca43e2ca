"""The worker processes of an image loader: how many to start, and how they end."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from contextlib import contextmanager, nullcontext
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils import signal_handling

from suprank.system.child_processes import restore_environment, safe_environment
from suprank.system.platforms import usable_cores

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from multiprocessing.process import BaseProcess
    from types import TracebackType

    from torch.utils.data import DataLoader

_IGNORED = (signal.SIGINT, signal.SIGTERM)
_GRACE = 1.0  # seconds that workers have to end on their own
_LIKELY_CAUSE = {
    "SIGKILL": ", most likely because the machine (or the job's limit) ran out of memory",
    "SIGBUS": ", most likely because shared memory (/dev/shm) is full",
}


def default_workers() -> int:
    """The default number of worker processes: the cores that this process may use, at most 16."""
    return min(usable_cores(), 16)


def start_method(workers: int) -> str | None:
    """For `DataLoader(multiprocessing_context=...)`: workers are forked on Linux, and start as Python prefers elsewhere.

    Python 3.14 prefers a "forkserver" on Linux, whose workers import torch anew and each get a copy of the dataset. A start
    method that the program has set (`multiprocessing.set_start_method`) is used.
    """
    fork = workers > 0 and sys.platform == "linux" and multiprocessing.get_start_method(allow_none=True) is None
    return "fork" if fork else None


def loader_batches(loader: DataLoader[Any]) -> Generator[Any]:
    """Yield the batches of a loader. Its worker processes end with the iteration, whether it is exhausted, closed or fails.

    If you may stop early, close it (`contextlib.closing`): a traceback would keep it, and the workers, alive. Workers that are
    left when this process exits are killed. A worker that died, for example for lack of memory, raises a `ChildProcessError`.

    Without workers, this process decodes, on one thread as workers do: images are too small to split between threads, and on a
    busy machine, threads that wait for each other took 20 times as long.
    """
    if not loader.num_workers:
        yield from _on_one_thread(iter(loader))
        return
    batches, workers = _start(loader)
    # Workers ignore SIGTERM, so the exit handler of multiprocessing, which sends it and then joins them, would wait for ever.
    kill = Finalize(None, _kill, (workers,), exitpriority=0)
    try:
        yield from batches
    except (RuntimeError, OSError, EOFError) as error:
        if isinstance(error, ConnectionError | EOFError):  # a worker is about to end
            gone = wait([worker.sentinel for worker in workers], timeout=_GRACE)
            for worker in (worker for worker in workers if worker.sentinel in gone):
                worker.join(_GRACE)  # until its exit code is known
        if message := _dead_worker(workers):
            raise ChildProcessError(message) from error
        raise
    finally:
        if kill.still_active():  # not while the interpreter exits
            _shut_down(batches)
            kill()


def _on_one_thread(batches: Iterator[Any]) -> Generator[Any]:
    while True:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            batch = next(batches)
        except StopIteration:
            return
        finally:
            torch.set_num_threads(threads)
        yield batch


def _start(loader: DataLoader[Any]) -> tuple[Any, list[BaseProcess]]:
    """The loader's iterator and its worker processes."""
    before = set(multiprocessing.active_children())
    try:
        forks = (loader.multiprocessing_context or multiprocessing).get_start_method() == "fork"
        with _block_signals(), nullcontext() if forks else safe_environment():
            batches: Any = iter(loader)
        # On SIGCHLD torch would raise between any two instructions of the main thread, for example while it saves a checkpoint.
        # Without the handler, it checks the workers every 5 s while it waits for a batch, and raises there.
        signal_handling._remove_worker_pids(id(batches))  # type: ignore[attr-defined]
        batches._worker_pids_set = False
    except BaseException:  # Ctrl-C, or no memory for another process
        _kill([child for child in multiprocessing.active_children() if child not in before])
        raise
    return batches, batches._workers


@contextmanager
def _block_signals() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM from workers that start meanwhile: one that does not ignore them yet would die of them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _shut_down(batches: Any) -> None:
    """Give the workers a moment to end on their own, then kill those that are still working on a batch.

    It runs in a thread, because torch would wait forever for the lock of a worker that was killed.
    """
    shutdown = threading.Thread(target=batches._shutdown_workers, daemon=True)
    shutdown.start()
    shutdown.join(_GRACE)
    _kill(batches._workers)
    shutdown.join(_GRACE)


def _kill(workers: Sequence[BaseProcess]) -> None:
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join()


def _dead_worker(workers: Sequence[BaseProcess]) -> str:
    """A message about the first worker that failed; "" if none did."""
    for number, worker in enumerate(workers, 1):
        code = worker.exitcode
        if not code:
            continue
        name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
        how = f"was killed by {name}{_LIKELY_CAUSE.get(name, '')}" if code < 0 else f"ended with exit code {code}"
        return (
            f"worker process {number} of {len(workers)}, which decodes images, {how}; use fewer worker processes "
            f"(workers; data.workers in a recipe; 0 decodes in the main process), or a smaller batch."
        )
    return ""


def ignore_signals(worker: int) -> None:
    """For `DataLoader(worker_init_fn=...)`: make a worker ignore Ctrl-C and SIGTERM, which its parent handles, before it runs a
    transform of the user's.

    The parent may have something to save first, and needs its workers for that. They end with it, or are killed: see
    `loader_batches`. A worker prints no traceback either if its parent has gone while it hands over an image.
    """
    restore_environment()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)  # see `_block_signals`
    sys.excepthook = _print_unless_parent_is_gone


def _print_unless_parent_is_gone(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)
