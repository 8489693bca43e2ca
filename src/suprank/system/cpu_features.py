"""bf16 on CPUs that advertise AMX but forbid its use, as in some virtual machines and containers."""

from __future__ import annotations

import os

VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # the latter is its older name
CAP = "AVX512_CORE_FP16"


def avoid_amx() -> None:
    """Keep oneDNN, which computes torch's bf16 products on a CPU, to instructions below AMX, unless the user has set its limit.

    Where AMX is advertised and forbidden, the first such product would end the process with SIGILL. oneDNN reads the variable
    once, at its first use in a process: if that was earlier, this has no effect.
    """
    if not any(name in os.environ for name in VARIABLES):
        os.environ[VARIABLES[0]] = CAP
