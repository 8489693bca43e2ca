"""The kernels compile to machine code for GPUs that are not here: the interpreter, which runs them in CI, accepts more."""

import itertools
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
        [sys.executable, "-c", f"from tests.ranking.ranks.test_kernels import compile_all; compile_all(*{CAPABILITIES})"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == len(CAPABILITIES) * ["partition", "partition", "spans", *["forward"] * 5, *["backward"] * 5]


def compile_all(*capabilities):
    """In one process: to import torch and Triton takes longer."""
    for capability in capabilities:
        compile_for(capability)


def compile_for(capability):
    """Compiles each kernel with the options that `fused` uses, and prints its name; no GPU is asked."""
    from suprank.ranking import Sigmoid, SupStep, heaviside
    from suprank.ranking.ranks import fused, kernels

    for ranked in (False, True):
        compiled(kernels.partition, capability, 4, RANKED=ranked, WEIGHTED=True, BLOCK=2048)
    sizes = {size: fused.FORWARD[True][size] for size in ("BLOCK_K", "BLOCK_J")}
    compiled(kernels.spans, capability, 4, BLOCK=128, **sizes)
    pairs = [(heaviside, SupStep()), (heaviside, heaviside), (Sigmoid(), Sigmoid())]
    runs = [(pair, sort) for pair, sort in itertools.product(pairs, (False, True)) if not (sort and pair[1].flat)]
    for (plus, minus), sort in runs:
        smooth, sup, shared = fused._encoded(plus, minus)[0]
        flags = {"SHARED": shared, "SORTED": sort, "FAST": True}
        sizes = dict(fused.FORWARD[sort])
        warps = sizes.pop("num_warps")
        compiled(kernels.forward, capability, warps, SMOOTH=smooth, SUP=sup, WEIGHTED=True, SLOPED=True, **flags, **sizes)
    for (plus, minus), sort in runs:
        smooth, sup, shared = fused._encoded(plus, minus)[0]
        flags = {"SHARED": shared, "SORTED": sort, "FAST": True}
        sizes = dict(fused.BACKWARD[sort])
        warps = sizes.pop("num_warps")
        compiled(kernels.backward, capability, warps, TO_PLUS=smooth, TO_MINUS=sup, TO_H=smooth, **flags, **sizes)


def compiled(kernel, capability, warps, **constants):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    integers, indices = {"items", "search"}, {"order", "counts", "spans"}
    scalars = {"plus_rate", "minus_rate", "rho", "delta", "jump", "height", "reach"}

    def kind(name):
        if name in constants:
            return "constexpr"
        if name in integers:
            return "i32"
        if name in scalars:
            return "fp32"
        return {"level": "*i8", "ranking": "*i64"}.get(name, "*i32" if name in indices else "*fp32")

    source = ASTSource(
        fn=kernel,
        signature={name: kind(name) for name in kernel.arg_names},
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    assert len(found.asm["cubin"]) > 0
    print(kernel.__name__)
