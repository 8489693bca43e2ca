"""From how many positives per query sorting is faster than `chunked` on a CPU: how `dispatch.SORT_FROM` was chosen.

python benchmarks/sort_threshold.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from suprank.ranking import Implementation, chunked, heaviside, levelwise, sorting


def milliseconds(call: Callable[[], object], runs: int = 5) -> float:
    """The fastest run, after an untimed one."""
    call()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def main() -> None:
    torch.set_num_threads(1)
    for queries, items in ((256, 256), (128, 1024), (32, 8192)):
        for positives in (2, 4, 8, 12, 16, 24, 32, 64):
            torch.manual_seed(positives)
            scores = 0.05 * torch.randn(queries, items)
            level = torch.zeros(queries, items, dtype=torch.int8)
            level[:, :positives] = 1
            level[:, : -(-positives // 4)] = 2
            level = level.gather(1, torch.rand(queries, items).argsort(-1))

            def forward_backward(using: Implementation, scores: torch.Tensor = scores, level: torch.Tensor = level) -> None:
                leaf = scores.clone().requires_grad_()
                using(leaf, level).minus.where(level > 0, 0).sum().backward()

            def exact(using: Implementation, scores: torch.Tensor = scores, level: torch.Tensor = level) -> None:
                using(scores, level, plus=heaviside, minus=heaviside)

            columns = [
                f"{name} {milliseconds(lambda run=run, using=using: run(using)):.1f} ms"
                for name, run, using in (
                    ("SupRank, forward + backward: chunked", forward_backward, chunked),
                    ("levelwise", forward_backward, levelwise),
                    ("exact: chunked", exact, chunked),
                    ("sorting", exact, sorting),
                )
            ]
            print(f"{queries} × {items}, {positives} positives: " + ", ".join(columns))


if __name__ == "__main__":
    main()
