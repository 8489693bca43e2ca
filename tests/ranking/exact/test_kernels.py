"""The kernels of `fused` compile to machine code for GPUs that are not here, which the interpreter does not show."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CAPABILITIES = (80, 100)  # the oldest and the newest that we support


@pytest.mark.skipif(find_spec("triton") is None or sys.platform != "linux", reason="needs Triton's compiler")
def test_every_kernel_compiles_for_an_nvidia_gpu():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", f"from tests.ranking.exact.test_kernels import compile_all; compile_all(*{CAPABILITIES})"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    sums = ["count_levels", "sum_positives", "sum_top"]
    assert done.stdout.split() == len(CAPABILITIES) * ["take", "count_few", *["fill_gaps"] * 2, *["settle"] * 2, *sums]


def compile_all(*capabilities):
    """In one process: to import torch and Triton takes longer."""
    for capability in capabilities:
        compile_for(capability)


def compile_for(capability):
    """Compiles each kernel with the options that `fused` uses, and prints its name; no GPU is asked."""
    from suprank.ranking.exact import kernels

    compiled(kernels.take, capability, BLOCK=1024)
    compiled(kernels.count_few, capability, BLOCK=1024)
    for steps in (5, 17):
        compiled(kernels.fill_gaps, capability, STEPS=steps, BLOCK=1024)
    for parity in (0, 1):
        compiled(kernels.settle, capability, PARITY=parity, BLOCK=1024)
    depth = 2 if capability == CAPABILITIES[0] else 8
    compiled(kernels.count_levels, capability, DEPTH=depth, SEGMENT=4096, BLOCK=256)
    compiled(kernels.sum_positives, capability, DEPTH=depth, SEGMENT=4096, BLOCK=256)
    compiled(kernels.sum_top, capability, DEPTH=depth, BLOCK=128)


def compiled(kernel, capability, **constants):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    pointers = {
        **dict.fromkeys(("scores", "into", "thresholds", "falling"), "*fp32"),
        **dict.fromkeys(("relevance", "harmonic", "by_level", "by_query", "at_level", "at_query"), "*fp64"),
        **dict.fromkeys(("counts", "gaps", "place", "sizes", "before", "unsettled", "ks"), "*i32"),
        "item": "*i64",
        "level": "*i8",
    }
    source = ASTSource(
        fn=kernel,
        signature={name: "constexpr" if name in constants else pointers.get(name, "i32") for name in kernel.arg_names},
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    assert len(found.asm["cubin"]) > 0
    print(kernel.__name__)
