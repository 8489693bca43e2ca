"""The measuring itself: median time and peak extra memory of one case at one size, in this process or in a fresh one."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from suprank.bench.cases import CASES, Case
from suprank.bench.measurement import Measurement
from suprank.bench.workload import Inputs, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

T = TypeVar("T")

_LINUX = Path("/proc/self/status").exists()
_CLEAR_REFS = Path("/proc/self/clear_refs")
_START_SECONDS = 60  # a fresh process imports torch before it measures
_PATIENCE = 10  # one run may take this many times the time limit before its process is stopped
_NO_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc", "out of memory", "Memory allocation still failed")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class CudaMeter:
    """CUDA events, one synchronization a run, and the peak of what torch's allocator gave out since `start`."""

    method = "time by CUDA events; memory: torch.cuda.max_memory_allocated less what was allocated with the inputs in place"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def start(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        self.before = torch.cuda.memory_allocated(self.device)

    def timed(self, call: Callable[[], T]) -> tuple[float, T]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        value = call()
        end.record()
        torch.cuda.synchronize(self.device)
        return begin.elapsed_time(end) / 1e3, value

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)

    def extra_bytes(self) -> int:
        return self.peak_bytes() - self.before


class CpuMeter:
    """perf_counter, and the peak resident memory of the process since `start`: its own only in a fresh process."""

    method = (
        "time by perf_counter; memory: peak resident memory of the case's own process less what was resident with the "
        "inputs in place, to about 1 MiB"
        + ("" if os.access(_CLEAR_REFS, os.W_OK) else " (the peak could not be reset: small cases hide behind start-up)")
    )

    def start(self) -> None:
        gc.collect()
        if _LINUX:  # give back what the allocator keeps, or it hides what the case takes
            ctypes.CDLL(None).malloc_trim(0)
        if os.access(_CLEAR_REFS, os.W_OK):
            _CLEAR_REFS.write_text("5")
        self.before = _peak_resident()

    def timed(self, call: Callable[[], T]) -> tuple[float, T]:
        begin = time.perf_counter()
        value = call()
        return time.perf_counter() - begin, value

    def peak_bytes(self) -> int:
        return _peak_resident()

    def extra_bytes(self) -> int:
        return self.peak_bytes() - self.before


def _peak_resident() -> int:
    if _LINUX:
        return _status("VmHWM")
    try:
        import resource
    except ImportError:
        raise OSError("this system does not say how much memory a process takes; measure on Linux or macOS.") from None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def meter(device: torch.device) -> CudaMeter | CpuMeter:
    return CudaMeter(device) if device.type == "cuda" else CpuMeter()


def blank(case: Case, workload: Workload, note: str = "") -> Measurement:
    return Measurement(case.name, case.kind, workload.queries, workload.items, workload.memory, note=note)


def in_process(case: Case, workload: Workload, *, device: torch.device, repeats: int, seconds: float) -> Measurement:
    """Measured here. Running out of memory, a missing package and a failing loss become a note, not an exception."""
    found = measured_or_note(lambda: _measured(case, workload, device, repeats, seconds), device)
    return blank(case, workload, found) if isinstance(found, str) else found


def measured_or_note(measured: Callable[[], T], device: torch.device) -> T | str:
    """What `measured` gives, or in a few words why it gives nothing."""
    try:
        return measured()
    except ImportError as error:
        return f"not installed: {error.name or error}"
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        return "out of memory" if _out_of_memory(error) else f"failed: {type(error).__name__}: {reason}"
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _measured(case: Case, workload: Workload, device: torch.device, repeats: int, seconds: float) -> Measurement:
    _call(case, workload.miniature, workload.miniature.inputs(device))()  # libraries load, threads start
    inputs, gauge = workload.inputs(device), meter(device)
    gauge.start()
    call = _call(case, workload, inputs)
    call()  # compiles and picks algorithms for this very size: not timed, however long it took
    if device.type == "cuda" and not case.graphed:
        gauge.start()  # forget what autotuning took; on a CPU, what that run gave back would hide later peaks
    times: list[float] = []
    while not times or (len(times) < repeats and sum(times) <= seconds):
        took, value = gauge.timed(call)
        times.append(took)
    return replace(
        blank(case, workload),
        seconds=statistics.median(times),
        runs=len(times),
        fastest=min(times),
        extra_bytes=gauge.extra_bytes(),
        loss=value.item(),
    )


def _call(case: Case, workload: Workload, inputs: Inputs) -> Callable[[], Tensor]:
    """One forward and backward pass, which leaves no gradient behind."""
    loss: Any = case.loss(workload).to(inputs.embeddings.device)
    labels = inputs.labels if case.takes_tree else inputs.labels[:, 0]
    references = {} if inputs.ref_emb is None else {"ref_emb": inputs.ref_emb, "ref_labels": inputs.ref_labels}
    if case.graphed:
        gc.collect()  # an older graph that dies while this one is recorded would spoil it
        sample = inputs.embeddings.detach().clone().requires_grad_()
        loss = torch.cuda.make_graphed_callables(loss, (sample, labels))

    def call() -> Tensor:
        value: Tensor = loss(inputs.embeddings, labels, **references)
        torch.autograd.backward(value)
        inputs.embeddings.grad = None
        loss.zero_grad()
        return value.detach()

    return call


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(text in str(error) for text in _NO_MEMORY)


def in_child(case: Case, workload: Workload, *, repeats: int, seconds: float, max_bytes: int) -> Measurement:
    """Measured on the CPU in a fresh process that may take `max_bytes` more than torch does.

    So its peak is its own, and running out of memory ends it and not us. The limit holds on Linux only.
    """
    task = {"case": case.name, "workload": asdict(workload), "repeats": repeats, "seconds": seconds, "max_bytes": max_bytes}
    found = answer("suprank.bench.timing", task, limit=_START_SECONDS + 2 * _PATIENCE * seconds)  # untimed, then timed
    return blank(case, workload, found) if isinstance(found, str) else Measurement(**found)


def answer(
    module: str, task: dict[str, Any], *, limit: float, grace: float = 0, threads: int | None = None
) -> dict[str, Any] | str:
    """What the module's `child` prints, as JSON, in a fresh process that is given `task`; or why there is no answer.

    The process is stopped `grace` seconds after the limit.
    """
    command = [sys.executable, "-c", f"from {module} import child; child()", json.dumps(task)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if threads is not None:
        environment |= dict.fromkeys(_THREADS, str(threads))
    try:  # a session of its own: Ctrl-C reaches us alone, and `run` then ends the child
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit + grace, env=environment, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        return f"stopped: over {limit:g} s"
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    if done.returncode == -9 or any(text in done.stderr for text in _NO_MEMORY):  # the kernel ended it, or C++ gave up
        return "out of memory"
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"failed: {reason}"


def task_of_child() -> dict[str, Any]:
    """What `answer` gave this process to do, once the process may take no more than `max_bytes` above what it has."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    if _LINUX:
        import resource

        # Private writable memory is what tensors take; the whole address space counts libraries too
        limit = _status("VmData") + task["max_bytes"]
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return task


def child() -> None:
    """One loss, measured in this process."""
    task = task_of_child()
    found = in_process(
        CASES[task["case"]],
        Workload(**task["workload"]),
        device=torch.device("cpu"),
        repeats=task["repeats"],
        seconds=task["seconds"],
    )
    print(json.dumps(asdict(found)))
