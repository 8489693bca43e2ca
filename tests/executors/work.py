"""Functions that tests run in other processes."""

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

from suprank.executors.local import report
from suprank.training.signals import stop_on_signals


class OddError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Unpicklable(Exception):  # noqa: N818
    def __reduce__(self):
        raise TypeError("not me")


def act(what, *arguments):
    print("acting:", what, flush=True)
    return globals()[what](*arguments)


def double(number):
    return 2 * number


def fail(name):
    raise {"odd": OddError("this", "that"), "unpicklable": Unpicklable("so it is"), "memory": MemoryError("too much")}[name]


def end(number):
    """End this process by a signal, or with an exit code."""
    if number > 0:
        os._exit(number)
    os.kill(os.getpid(), -number)
    time.sleep(60)


def leave_a_child(folder):
    """Be killed, and leave a process behind that holds the pipe."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    Path(folder, "child").write_text(str(child.pid))
    os.kill(os.getpid(), signal.SIGKILL)


def lambdas():
    return lambda: 0


def fill_the_disk():
    with Path("/dev/full").open("w") as file:
        file.write("x" * 10**6)


def process():
    return os.getpid()


def facts():
    """What this process is like."""
    import torch

    return {
        "pid": os.getpid(),
        "cuda": [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()],
        "modules": sorted(sys.modules),
        "main": getattr(sys.modules["__main__"], "__file__", None),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "safe": sys.flags.safe_path,
        "path": sys.path,
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "threads": [os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads()],
        "PYTHONSAFEPATH": os.environ.get("PYTHONSAFEPATH"),
        "left": os.environ.get("LEFT_BEHIND"),
        "drawn": torch.rand(1).item(),
    }


def change():
    import torch

    os.environ["LEFT_BEHIND"] = "yes"
    torch.set_num_threads(7)
    return os.getpid()


def use_cuda():
    import torch

    return os.getpid(), torch.cuda.is_initialized(), torch.ones(3, device="cuda").sum().item()


def count(steps, seconds=0):
    for step in range(steps):
        report((step, steps))
    time.sleep(seconds)
    return "counted"


def stay(folder, *, stubborn=False):
    """Work until SIGTERM, and save then."""
    with stop_on_signals() as stop:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, "new").write_text(json.dumps([os.getpid(), os.getppid()]))
        Path(folder, "new").rename(Path(folder, "staying"))
        end = time.monotonic() + 120  # a test that fails leaves nobody behind
        while time.monotonic() < end and (stubborn or not stop.signal):
            if stop.signal:
                Path(folder, "asked").touch()
            report("working" * 1000)  # more than a pipe holds, if nobody reads
            time.sleep(0.01)
    Path(folder, "saved").touch()
    return stop.signal


def stay_stubborn(folder):
    return stay(folder, stubborn=True)
