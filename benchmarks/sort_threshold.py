"""From how many positives per query sorting, and a grid, are faster than pairs on a CPU: how `dispatch.SORT_FROM` and
`dispatch.GRID_FROM` were chosen.

python benchmarks/sort_threshold.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from suprank.ranking import Implementation, Sigmoid, Step, SupStep, chunked, gridded, heaviside, levelwise, sorting


def milliseconds(call: Callable[[], object], runs: int = 3) -> float:
    """The fastest run, after an untimed one."""
    call()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


COLUMNS: tuple[tuple[str, Step, Step, tuple[Implementation, ...]], ...] = (
    ("exact", heaviside, heaviside, (chunked, sorting)),
    ("SupRank", heaviside, SupStep(), (chunked, levelwise, gridded)),
    ("sigmoids", Sigmoid(), Sigmoid(), (chunked, gridded)),
)


def main() -> None:
    torch.set_num_threads(1)
    print("milliseconds, one thread, forward and backward (exact: forward)")
    for queries, items in ((256, 256), (128, 1024), (16, 8192)):
        for positives in (2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512):
            if positives > items:
                continue
            torch.manual_seed(positives)
            scores = 0.05 * torch.randn(queries, items)
            level = torch.zeros(queries, items, dtype=torch.int8)
            level[:, :positives] = 1
            level[:, : -(-positives // 4)] = 2
            level = level.gather(1, torch.rand(queries, items).argsort(-1))
            cells = []
            for name, plus, minus, implementations in COLUMNS:
                times = [
                    f"{using.__name__} {milliseconds(partial(forward_backward, using, scores, level, plus, minus)):.1f}"
                    for using in implementations
                ]
                cells.append(f"{name}: {', '.join(times)}")
            print(f"{queries} × {items}, {positives} positives. {'; '.join(cells)}", flush=True)


def forward_backward(using: Implementation, scores: Tensor, level: Tensor, plus: Step, minus: Step) -> None:
    """Rank, and differentiate what has a gradient."""
    leaf = scores.clone().requires_grad_(not minus.flat)
    found = using(leaf, level, plus=plus, minus=minus)
    if not minus.flat:
        (found.plus / found.total).where(level > 0, 0).sum().backward()


if __name__ == "__main__":
    main()
