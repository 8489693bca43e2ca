"""Measurements of the fused kernels on a GPU, behind the numbers of docs/benchmarks.md.

python benchmarks/kernels.py tiles       time forward and backward over tile sizes: how `fused.FORWARD` was chosen
python benchmarks/kernels.py parts       the parts of a SupAP step: host and device time, kernels launched
python benchmarks/kernels.py compiled    a loss as it is, under torch.compile, and with its CUDA graphs
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable

import torch
from bench.loss_workload import LossWorkload
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from suprank.losses import Combined, PairCalibration, RankLoss, SupAP, SupHAP, roadmap
from suprank.ranking import SupStep, common_level, heaviside, tree_relevance
from suprank.ranking.gpu import pairs as fused

GPU = torch.device("cuda")


def roadmap_of_pairs() -> Combined:
    return roadmap(decomposability=PairCalibration())


def milliseconds(call: Callable[[], object], runs: int = 5) -> float:
    """Median by CUDA events, after two untimed runs."""
    call(), call()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def step(loss: RankLoss, embeddings: Tensor, labels: Tensor) -> Callable[[], None]:
    """One forward and backward pass."""

    def call() -> None:
        embeddings.grad = None
        loss(embeddings, labels).backward()

    return call


def tiles() -> None:
    steps, numbers = fused._encoded(heaviside, SupStep())
    for workload in (LossWorkload(2048), LossWorkload(64, 60_000)):
        inputs = workload.inputs(GPU)
        items = inputs.embeddings if inputs.ref_emb is None else inputs.ref_emb
        scores = (torch.nn.functional.normalize(inputs.embeddings) @ torch.nn.functional.normalize(items).T).detach()
        level = common_level(inputs.labels, inputs.ref_labels)
        relevance, grad = tree_relevance(level, depth=3), torch.randn_like(scores)
        rows = []
        for k, j, warps in itertools.product((4, 8, 16, 32), (32, 64, 128, 256), (1, 2, 4)):
            if 512 <= k * j <= 1024 and 8 <= k * j / (32 * warps) <= 16:
                fused.FORWARD = fused.BACKWARD = {"BLOCK_K": k, "BLOCK_J": j, "num_warps": warps}
                forward = (scores, level, relevance, steps, numbers, True)
                kept = torch.ops.suprank.ranks(*forward)[3:]
                backward = (steps, numbers, None, grad, None, scores, level, relevance, kept)
                ahead = milliseconds(lambda given=forward: torch.ops.suprank.ranks(*given))
                back = milliseconds(lambda given=backward: torch.ops.suprank.ranks_gradient(*given))
                rows.append((ahead, back, f"{k} × {j}, {warps} warps"))
        pairs = int((level > 0).sum()) * scores.shape[1] / 1e9
        print(f"{workload}, {pairs:.1f} G pairs")
        for name, column in (("forward", 0), ("backward", 1)):
            best = sorted(rows, key=lambda row: row[column])[:3]
            print(f"  {name}: " + "; ".join(f"{row[column]:.2f} ms at {row[2]}" for row in best))


def compiled() -> None:
    for batch, make in itertools.product((256, 1024, 4096), (SupAP, SupHAP, roadmap_of_pairs)):
        embeddings, labels, _, _ = LossWorkload(batch).inputs(GPU)
        loss = make().cuda()
        found = []
        for how in (None, "default", "reduce-overhead"):
            torch.compiler.reset()
            call = loss if how is None else torch.compile(loss, mode=how)

            def once(call: Callable[..., Tensor] = call, leaf: Tensor = embeddings, labels: Tensor = labels) -> None:
                torch.compiler.cudagraph_mark_step_begin()
                torch.autograd.grad(call(leaf, labels), leaf)

            for _ in range(10):  # it compiles, warms up, and records
                once()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(50):
                once()
            torch.cuda.synchronize()
            found.append((time.perf_counter() - begin) / 50 * 1e3)
        name = getattr(make, "__name__", "")
        print(f"{name}, batch {batch}: {found[0]:.2f} ms, compiled {found[1]:.2f} ms, with CUDA graphs {found[2]:.2f} ms")


def parts() -> None:
    for batch, loss in itertools.product((256, 2048), (SupAP(), SupHAP())):
        embeddings, labels, _, _ = LossWorkload(batch).inputs(GPU)
        call = step(loss, embeddings, labels)
        call(), call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(50):
            call()
        torch.cuda.synchronize()
        host = (time.perf_counter() - begin) / 50 * 1e3
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            call()
            torch.cuda.synchronize()
        kernels = [event for event in profiled.events() if event.device_type.name == "CUDA"]
        busy = sum(event.self_device_time_total for event in kernels) / 1e3
        print(f"{type(loss).__name__}, batch {batch}: {host:.2f} ms a step, {len(kernels)} kernels busy for {busy:.3f} ms")
        for event in sorted(kernels, key=lambda event: -event.self_device_time_total)[:6]:
            print(f"  {event.self_device_time_total / 1e3:.3f} ms {event.name[:90]}")


if __name__ == "__main__":
    {"tiles": tiles, "parts": parts, "compiled": compiled}[sys.argv[1]]()
