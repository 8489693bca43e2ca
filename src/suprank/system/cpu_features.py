"""bf16 on CPUs that advertise AMX but forbid its use, as in some virtual machines and containers.

There torch ends the process with SIGILL at its first bf16 product on the CPU. The variable ONEDNN_MAX_CPU_ISA keeps oneDNN,
which computes these products, to instructions that work; oneDNN reads it once, at its first use in a process. So a child
process tries bf16, its result is cached in a file, and either the variable is set in time or bf16 is refused with an error.

If no AMX is advertised, or the variable is already set, nothing happens.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from suprank.files.atomic import write_atomically
from suprank.system.platforms import default_cache

VARIABLE, CAP = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"
_VARIABLES = (VARIABLE, "DNNL_MAX_CPU_ISA")  # the latter is its older name
_CPUINFO = Path("/proc/cpuinfo")
_SECONDS = 120.0  # importing torch can take half a minute on a busy machine

ProbeResult = Literal["works", "works capped", "dies"]

# The products that a network computes, small and large. A process that dies leaves no core file.
_PROBE_CODE = """
import faulthandler, resource, torch
faulthandler.disable()
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
torch.set_num_threads(1)
with torch.no_grad():
    for size in (8, 256):
        square = torch.ones(size, size, dtype=torch.bfloat16)
        torch.nn.functional.linear(square, square) @ square
        torch.bmm(square[None], square[None])
        torch.nn.functional.conv2d(square.expand(2, 32, size, size), torch.ones(64, 32, 3, 3, dtype=torch.bfloat16))
"""

_warned: set[str] = set()


def prepare_bf16(instead: str) -> None:
    """Make bf16 on this CPU safe for this process, or raise a ValueError that names what to use `instead`.

    Call it before oneDNN is used, at the start of a command. If necessary it caps the instruction set, for child processes too,
    and logs a warning once. If oneDNN was used before, it is too late for the cap, and bf16 is refused.
    """
    if not _advertises_amx() or any(name in os.environ for name in _VARIABLES):
        return
    result = _cached_result() or _probe()
    if result is None or result == "works":
        return
    forbidden = f"this CPU advertises AMX but forbids it ({_model()}), and bf16 would end the process with SIGILL"
    if result == "dies":
        raise ValueError(f"{forbidden}; use {instead}.")
    os.environ[VARIABLE] = CAP
    if not _survives_here():
        del os.environ[VARIABLE]
        raise ValueError(
            f"{forbidden}; torch has already computed in this process, so start it again with {VARIABLE}={CAP} in its "
            f"environment, or use {instead}."
        )
    message = f"{forbidden}: {VARIABLE} is set to {CAP}, so that bf16 works without it."
    if message not in _warned:
        _warned.add(message)
        logging.getLogger(__name__).warning(message)


@cache
def _advertises_amx() -> bool:
    return any(flag.startswith("amx") for flag in _cpuinfo("flags").split())


def _model() -> str:
    return _cpuinfo("model name") or platform.machine()


@cache
def _cpuinfo(entry: str) -> str:
    """An entry of Linux's /proc/cpuinfo for the first core; "" on other systems."""
    with suppress(OSError), _CPUINFO.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == entry:
                return value.strip()
    return ""


def _file() -> Path:
    """The cache file of the result for this CPU, kernel and torch."""
    import torch

    parts = (_model(), platform.release(), str(torch.__version__))
    return default_cache() / f"bf16-on-cpu-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


def _cached_result() -> ProbeResult | None:
    with suppress(OSError):
        text = _file().read_text(encoding="utf-8")
        for result in get_args(ProbeResult):
            if text == result:
                return result
    return None


def _probe() -> ProbeResult | None:
    """Try bf16 in child processes, without and with the cap, and cache the result. None if they fail for another reason."""
    lives = _survives({})
    if lives is None:
        return None
    result: ProbeResult = "works"
    if not lives:
        capped = _survives({VARIABLE: CAP})
        if capped is None:
            return None
        result = "works capped" if capped else "dies"
    with suppress(OSError):  # then the next process tries again
        _file().parent.mkdir(parents=True, exist_ok=True)
        write_atomically(_file(), result.encode())
    return result


def _survives(environment: dict[str, str]) -> bool | None:
    """Whether a new process survives bf16. None if it fails other than by SIGILL, or takes too long."""
    try:
        command = [sys.executable, "-P", "-c", _PROBE_CODE]  # -P: no module of the current folder, which may be anybody's
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {0: True, -signal.SIGILL: False}.get(done.returncode)


def _survives_here() -> bool:
    """Whether a fork of this process survives bf16: it does not if oneDNN was used before the cap was set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about forking with threads: the fork computes on one thread, and ends
        child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            exec(_PROBE_CODE, {})
            code = 0
        os._exit(code)
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False
