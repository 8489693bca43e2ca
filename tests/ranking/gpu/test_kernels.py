"""The kernels compile to machine code for GPUs that are not here: the interpreter, which runs them in CI, accepts more."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CAPABILITIES = (80, 100)  # the oldest and the newest that we support
BUILD = f"""
from tests.ranking.gpu import exact_kernel_builds as exact
from tests.ranking.gpu import kernel_builds as ranks
ranks.compile_all(*{CAPABILITIES})
print("---")
exact.compile_all(*{CAPABILITIES})
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None or sys.platform != "linux", reason="needs Triton's compiler"),
]


@pytest.fixture(scope="module")
def build():
    """One process for all, because to import torch and Triton takes longer. Its names end where it failed."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run([sys.executable, "-c", BUILD], env=environment, capture_output=True, text=True)


def test_every_kernel_of_ranks_compiles_for_an_nvidia_gpu(build):
    pairs = ["partition", *["forward"] * 3, *["backward"] * 3]
    grid = ["survey", "arrange", "rearrange", "exact", *["edges", "spread", "read"] * 3, "connect"]
    assert build.stdout.partition("---\n")[0].split() == [*len(CAPABILITIES) * pairs, *grid], build.stderr[-2000:]


def test_every_kernel_of_exact_compiles_for_an_nvidia_gpu(build):
    sums = ["count_levels", "sum_positives", "sum_top"]
    names = len(CAPABILITIES) * ["take", "count_few", *["fill_gaps"] * 2, *["settle"] * 2, *sums]
    assert build.stdout.partition("---\n")[2].split() == names, build.stderr[-2000:]
    assert build.returncode == 0
