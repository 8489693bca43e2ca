"""From how many positives per query a grid is faster than pairs: how the thresholds of `dispatch` were chosen.

python benchmarks/choice.py                  CPU, one thread: `chunked` against `gridded`
python benchmarks/choice.py --device cuda    `fused` against `gridded`

Each cell is pairs / grid, in milliseconds, forward and backward (exact ranks: forward). The two are timed in turn.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import TYPE_CHECKING

import torch

from suprank.ranking import Sigmoid, SupStep, heaviside, tree_relevance
from suprank.ranking.ranks import resolve_implementation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from suprank.ranking import Implementation, ImplementationName, Step

STEPS: dict[str, tuple[Step, Step]] = {
    "exact": (heaviside, heaviside),
    "SupRank": (heaviside, SupStep()),
    "sigmoids": (Sigmoid(), Sigmoid()),
}
NAMES: dict[str, dict[str, tuple[ImplementationName, ImplementationName]]] = {
    "cpu": dict.fromkeys(STEPS, ("chunked", "gridded")),
    "cuda": {"SupRank": ("fused", "gridded"), "sigmoids": ("fused", "gridded")},
}
SIZES = {
    "cpu": ((64, 256), (32, 1024), (8, 8192)),
    "cuda": ((256, 4096), (256, 16384), (256, 60_000), (4096, 2048), (4096, 4096), (4096, 16384)),
}
POSITIVES = {"cpu": (4, 8, 16, 32, 64, 128), "cuda": (4, 16, 64, 256, 1024, 4096)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(1)
    for steps, names in NAMES[device].items():
        print(f"\n{steps}: {names[0]} / {names[1]}, ms\n")
        print("| queries × items | " + " | ".join(f"{positives} positives" for positives in POSITIVES[device]) + " |")
        print("|---" + "|---:" * len(POSITIVES[device]) + "|")
        for queries, items in SIZES[device]:
            cells = [cell(device, steps, queries, items, positives) for positives in POSITIVES[device]]
            print(f"| {queries} × {items} | " + " | ".join(cells) + " |", flush=True)


def cell(device: str, steps: str, queries: int, items: int, positives: int) -> str:
    """Times of the two ways, the faster one in bold."""
    if positives > items // 2:
        return ""
    inputs = ranking(queries, items, positives, device)
    calls = [partial(forward_backward, resolve_implementation(name), *inputs, *STEPS[steps]) for name in NAMES[device][steps]]
    times = milliseconds(calls, device)
    return " / ".join(f"**{one:.3g}**" if one == min(times) else f"{one:.3g}" for one in times)


def ranking(queries: int, items: int, positives: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Scores as of random embeddings, levels in two steps (a quarter of the positives is of level 2), and relevance."""
    generator = torch.Generator().manual_seed(positives)
    scores = 0.05 * torch.randn(queries, items, generator=generator)
    level = torch.zeros(queries, items, dtype=torch.int8)
    level[:, :positives] = 1
    level[:, : -(-positives // 4)] = 2
    level = level.gather(1, torch.rand(queries, items, generator=generator).argsort(-1))
    return scores.to(device), level.to(device), tree_relevance(level).to(device)


def milliseconds(calls: Sequence[Callable[[], object]], device: str, runs: int = 5) -> list[float]:
    """The fastest run of each call, after an untimed one."""
    times: list[list[float]] = [[] for _ in calls]
    for run in range(runs + 1):
        for call, mine in zip(calls, times, strict=True):
            begin = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            mine.append((time.perf_counter() - begin) * 1e3 if run else float("inf"))
    return [min(mine) for mine in times]


def forward_backward(using: Implementation, scores: Tensor, level: Tensor, relevance: Tensor, plus: Step, minus: Step) -> None:
    """Rank, and differentiate what has a gradient."""
    leaf = scores.clone().requires_grad_(not minus.flat)
    found = using(leaf, level, relevance, plus=plus, minus=minus)
    assert found.hierarchical is not None
    if not minus.flat:
        (found.hierarchical / found.total).where(level > 0, 0).sum().backward()


if __name__ == "__main__":
    main()
