"""What worker processes do and do not tell, and that they end."""

import gc
import multiprocessing
import os
import signal
import sys
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from suprank.data.workers import _dead_worker, ignore_signals, loader_batches, start_method

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SCRIPT = """
import os, signal, sys
from suprank.data.workers import ignore_signals
ignore_signals(0)
for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(os.getpid(), number)
for error in (ConnectionResetError, EOFError, BrokenPipeError, ValueError):
    try:
        raise error
    except Exception:
        sys.excepthook(*sys.exc_info())
    print("still here after", error.__name__)
"""


def test_a_worker_lives_on_after_signals_and_tells_of_errors_but_not_of_a_parent_that_is_gone(forked):
    code, output, said = forked.script(SCRIPT).end(timeout=60)
    errors = ("ConnectionResetError", "EOFError", "BrokenPipeError", "ValueError")
    assert output == "".join(f"still here after {error}\n" for error in errors)
    assert [error for error in errors if error in said] == ["ValueError"]
    assert code not in (-signal.SIGINT, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("workers", "system", "chosen", "expected"),
    [
        (2, "linux", None, "fork"),  # Python 3.14 would choose forkserver
        (2, "linux", "spawn", None),  # the program has chosen
        (2, "darwin", None, None),
        (2, "win32", None, None),
        (0, "linux", None, None),  # torch refuses a start method for no workers
    ],
)
def test_workers_are_forked_on_linux_unless_the_program_has_chosen_otherwise(monkeypatch, workers, system, chosen, expected):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: chosen if allow_none else pytest.fail("set"))
    assert start_method(workers) == expected


class Numbers(Dataset):
    """Numbers from 0 on; the one at `bad` is refused, and the one at `slow` sets `reached` and takes two minutes."""

    def __init__(self, bad=None, slow=None, reached=None):
        self.bad, self.slow, self.reached = bad, slow, reached

    def __len__(self):
        return 1000

    def __getitem__(self, row):
        if row == self.bad:
            raise ValueError(f"{row} is bad")
        if row == self.slow:
            if self.reached:
                self.reached.set()
            time.sleep(120)
        return row


def loader(workers=2, start=ignore_signals, **faults):
    return DataLoader(Numbers(**faults), batch_size=2, num_workers=workers, worker_init_fn=start, generator=torch.Generator())


def interrupt_and_ignore(worker):
    """A terminal's Ctrl-C and a scheduler's SIGTERM reach a worker that has just been started."""
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    ignore_signals(worker)


@pytest.fixture(autouse=True)
def no_worker_is_left():
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_loaders(workers):
    found = list(loader_batches(loader(workers)))
    assert torch.equal(torch.cat(found), torch.arange(1000))


def test_a_signal_does_not_end_a_worker_that_has_just_started():
    with closing(loader_batches(loader(1, interrupt_and_ignore))) as batches:
        assert next(batches).tolist() == [0, 1]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), "this process is to get its own"


@pytest.mark.parametrize("slow", [None, 6], ids=["", "and one is busy"])
def test_workers_end_when_the_iteration_is_closed_by_a_failure_that_holds_it(slow):
    failure, reached = None, multiprocessing.Event()
    try:
        with closing(loader_batches(loader(slow=slow, reached=reached))) as batches:
            next(batches)
            workers = multiprocessing.active_children()
            assert slow is None or reached.wait(60)
            raise KeyError("outside of the loader")
    except KeyError as error:
        failure = error  # with the traceback, whose frame holds the batches
    assert failure is not None
    assert multiprocessing.active_children() == []
    assert slow is None or -signal.SIGKILL in [worker.exitcode for worker in workers], "the slow one was waited for"


def test_workers_end_after_an_error_of_one_of_them_which_is_raised_as_it_was():
    batches = loader_batches(loader(bad=9))
    with pytest.raises(ValueError, match="9 is bad"):
        list(batches)
    assert multiprocessing.active_children() == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of torch's half-made iterator
def test_workers_end_where_not_all_can_be_started(monkeypatch):
    start, started = multiprocessing.Process.start, []

    def limited(process):
        if started:
            raise OSError("no memory for another process")
        started.append(process)
        start(process)

    monkeypatch.setattr(multiprocessing.Process, "start", limited)
    with pytest.raises(OSError, match="no memory") as raised:
        next(loader_batches(loader()))
    assert [process.is_alive() for process in started] == [False]
    del raised
    gc.collect()


@pytest.mark.slow
def test_a_worker_that_died_is_named_with_the_signal_and_a_way_out(monkeypatch):
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))  # torch looks every 5 s
    batches = loader_batches(loader(slow=20))
    next(batches)
    victim = sorted(multiprocessing.active_children(), key=lambda process: process.pid)[1]
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(ChildProcessError, match="worker process 2 of 2, which decodes images, was killed by SIGKILL") as raised:
        list(batches)
    assert "ran out of memory" in str(raised.value)
    assert "data.workers in a recipe" in str(raised.value)
    died_of_shared_memory = [SimpleNamespace(exitcode=None), SimpleNamespace(exitcode=-signal.SIGBUS)]
    assert "worker process 2 of 2, which decodes images, was killed by SIGBUS" in _dead_worker(died_of_shared_memory)
    assert "/dev/shm" in _dead_worker(died_of_shared_memory)
    assert _dead_worker(died_of_shared_memory[:1]) == ""


HELD = """
import sys, time
sys.path.insert(0, "")
from tests.data.test_workers import loader, loader_batches
batches = loader_batches(loader(slow=6))
next(batches)
print("exiting", flush=True)
raise ValueError("and nobody has closed the batches")
"""


def test_a_process_that_holds_the_batches_exits_all_the_same(forked):
    code, output, said = forked.script(HELD).end(timeout=60)
    assert (code, output) == (1, "exiting\n")
    assert said.splitlines()[-1] == "ValueError: and nobody has closed the batches"
    assert said.count("Traceback") == 1
