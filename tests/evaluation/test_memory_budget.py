"""Evaluation stays within its memory budget, in every way to rank: the process's own peak is measured."""

import pytest

BUDGET = 64 * 2**20

SCRIPT = """
import resource, sys
import torch
from suprank.evaluation import evaluate
from suprank.ranking.exact import dispatch

ordering, dim, budget = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dispatch.COMPILE_FROM = {"plain": 2**62, "compiled": 0}[ordering]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
torch.set_num_threads(1)
embeddings = torch.randn(40_000, dim)
fine = torch.arange(40_000) % 4_000
labels = torch.stack([fine >> shift for shift in (0, 2, 4, 6, 8, 10, 11)], 1)  # two coarsest classes: 20,000 positives
evaluate(embeddings[:500], labels[:500], progress=False)  # imports and compiles
before = peak()
evaluate(embeddings[:40], labels[:40], embeddings, labels, memory_budget=budget, self_index=range(40), progress=False)
print((peak() - before) / budget)
"""


@pytest.mark.parametrize(
    ("ordering", "dim"),
    [("plain", 64), ("plain", 256), ("compiled", 256)],
    ids=["plain", "plain, the gallery streamed", "compiled, the gallery streamed"],
)
def test_many_positives_at_seven_levels_fit_the_budget(ordering, dim, forked):
    if ordering == "compiled":
        pytest.importorskip("numba")
    code, printed, errors = forked.script(SCRIPT, ordering, dim, BUDGET).end(120)
    assert code == 0, errors
    assert float(printed) < 1.1
