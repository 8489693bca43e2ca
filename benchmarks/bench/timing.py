"""Meters of time and memory, and measurements in a child process with a memory limit."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_LINUX = Path("/proc/self/status").exists()
_CLEAR_REFS = Path("/proc/self/clear_refs")
_NO_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc", "out of memory", "Memory allocation still failed")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class CudaMeter:
    """Time by CUDA events, with one synchronization per run, and the peak of torch's allocator since `start`."""

    method = "time by CUDA events; memory: torch.cuda.max_memory_allocated less the memory of the inputs"

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
    """Time by perf_counter, and the peak resident memory of the process since `start`; use it in a fresh process."""

    method = (
        "time by perf_counter; memory: peak resident memory of the case's own process less its memory with the inputs, to "
        "about 1 MiB"
        + ("" if os.access(_CLEAR_REFS, os.W_OK) else " (the peak could not be reset: small cases hide behind start-up)")
    )

    def start(self) -> None:
        gc.collect()
        if _LINUX:  # return the allocator's free memory, or it would hide what the case takes
            ctypes.CDLL(None).malloc_trim(0)
        if os.access(_CLEAR_REFS, os.W_OK):
            _CLEAR_REFS.write_text("5", encoding="ascii")
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
        raise OSError("the memory of a process cannot be read on this system; measure on Linux or macOS.") from None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def meter_for(device: torch.device) -> CudaMeter | CpuMeter:
    """The meter of the device."""
    return CudaMeter(device) if device.type == "cuda" else CpuMeter()


def result_or_note(measure: Callable[[], T], device: torch.device) -> T | str:
    """The result of `measure`, or a short note on why it failed."""
    try:
        return measure()
    except ImportError as error:
        return f"not installed: {error.name or error}"
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        return "out of memory" if _out_of_memory(error) else f"failed: {type(error).__name__}: {reason}"
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(text in str(error) for text in _NO_MEMORY)


def run_in_child(
    module: str, task: dict[str, Any], *, limit: float, grace: float = 0, threads: int | None = None
) -> dict[str, Any] | str:
    """Run the module's `child` in a fresh process with `task`; return the JSON it prints, or a note on why it failed.

    The process is stopped `grace` seconds after the time limit.
    """
    command = [sys.executable, "-P", "-c", f"from {module} import child; child()", json.dumps(task)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if threads is not None:
        environment |= dict.fromkeys(_THREADS, str(threads))
    try:  # in a session of its own: Ctrl-C reaches only us, and `run` then ends the child
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit + grace,
            env=environment,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return f"stopped: over {limit:g} s"
    if done.returncode == 0:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result
    if done.returncode == -9 or any(text in done.stderr for text in _NO_MEMORY):  # killed by the kernel, or a C++ exception
        return "out of memory"
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"failed: {reason}"


def child_task() -> dict[str, Any]:
    """The task that `run_in_child` gave to this process, whose memory is limited to `max_bytes` above what it has."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    if _LINUX:
        import resource

        # Tensors are private writable memory; the whole address space would count libraries too
        limit = _status("VmData") + task["max_bytes"]
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return task
