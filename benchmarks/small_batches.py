"""What a loss costs at a small batch, where the host is slower than the GPU: time, kernels, torch.compile, a replayed graph.

python benchmarks/small_batches.py                      batch 256 on a GPU; four losses under torch.compile, about a minute
python benchmarks/small_batches.py --compile none       without torch.compile, a few seconds

Each number is the median time of forward and backward in milliseconds, of steps that are launched one after the other as in
training; `checked` waits for the device once in each, as a call outside of `skip_value_checks` does. Beside ours: Smooth-AP by
a tensor of batch³ numbers, and pytorch-metric-learning's if it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from bench.loss_workload import DIM, LossWorkload
from torch import nn
from torch.nn.functional import normalize

from suprank import losses

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

MOST_LAUNCHES = {"SupAP": 25, "SupHAP": 35}
COMPILED = ("SupAP", "SupHAP", "roadmap", "happier")  # each takes 10 seconds
GPU = torch.device("cuda")


class DenseSmoothAP(nn.Module):
    """Smooth-AP by a tensor of batch³: every difference of two scores of every query, self included, without saving memory."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        unit = normalize(embeddings, dim=-1)
        scores = unit @ unit.T
        step = torch.sigmoid((scores[:, None, :] - scores[:, :, None]).clamp(-0.5, 0.5) / 0.01)
        step = step * (1 - torch.eye(len(scores), device=scores.device))
        positive = (labels[:, None, 0] == labels[None, :, 0]).float()
        ranks = 1 + step.sum(-1)
        plus = 1 + (step * positive[:, None, :]).sum(-1)
        return 1 - ((plus / ranks * positive).sum(-1) / positive.sum(-1)).mean()


class MetricLearningSmoothAP(nn.Module):
    """pytorch-metric-learning's Smooth-AP, on the fine labels."""

    def __init__(self) -> None:
        super().__init__()
        from pytorch_metric_learning.losses import SmoothAPLoss

        self.loss = SmoothAPLoss()

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = self.loss(embeddings, labels[:, 0])
        return value


def cases(classes: int) -> dict[str, Callable[[], nn.Module]]:
    ours: dict[str, Callable[[], nn.Module]] = {
        "SupAP": losses.SupAP,
        "SupHAP": losses.SupHAP,
        "SupRecall": losses.SupRecall,
        "SupNDCG": losses.SupNDCG,
        "roadmap": lambda: losses.roadmap(classes, DIM),
        "happier": lambda: losses.happier(classes, DIM),
        "rod_recall": lambda: losses.rod_recall(classes, DIM),
        "rod_ndcg": lambda: losses.rod_ndcg(classes, DIM),
        "Smooth-AP with batch³ numbers": DenseSmoothAP,
    }
    if importlib.util.find_spec("pytorch_metric_learning") is not None:
        ours["PML SmoothAPLoss"] = MetricLearningSmoothAP
    return ours


def milliseconds(step: Callable[[], object], steps: int = 30, turns: int = 5) -> float:
    """The median over turns of the time of a step, without waiting for the device in between."""
    found = []
    for turn in range(turns + 1):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(steps if turn else 5):
            step()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begun) / steps * 1e3)
    return statistics.median(found[1:])


def launches(step: Callable[[], object]) -> int:
    """Kernels of one step, by torch's profiler; copies to the host are none."""
    from torch.profiler import ProfilerActivity, profile

    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        step()
        torch.cuda.synchronize()
    names = [event.name for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not name.lower().startswith(("memcpy", "memset", "context sync")) for name in names)


def measure(name: str, make: Callable[[], nn.Module], batch: int, *, compiled: bool) -> dict[str, Any]:
    embeddings, labels, _, _ = LossWorkload(batch).inputs(GPU)
    loss = make().to(GPU)
    leaves = [embeddings, *loss.parameters()]

    def step(call: Callable[..., Tensor]) -> Callable[[], object]:
        def once() -> object:
            torch.compiler.cudagraph_mark_step_begin()
            return torch.autograd.grad(call(embeddings, labels), leaves)

        return once

    for _ in range(12):  # kernels are compiled, and the first ten batches are checked for a label tree
        step(loss)()
    row: dict[str, Any] = {"loss": name, "checked": milliseconds(step(loss))}
    with losses.skip_value_checks():
        row["eager"] = milliseconds(step(loss))
        row["launches"] = launches(step(loss))
    row["launches, checked"] = launches(step(loss))
    if isinstance(loss, losses.RetrievalLoss):
        replayed = losses.ReplayedLoss(loss)
        for _ in range(4):
            step(replayed)()
        assert replayed._recordings, f"{name} was not recorded"
        row["replayed"] = milliseconds(step(replayed))
        torch.testing.assert_close(step(replayed)(), step(loss)())
    for mode in ("default", "reduce-overhead") if compiled else ():
        torch.compiler.reset()
        fast = torch.compile(loss, mode=mode)
        for _ in range(5):
            step(fast)()
            log = {key: value.item() for key, value in getattr(loss, "log", {}).items()}
        step(loss)()
        for key, value in getattr(loss, "log", {}).items():
            assert abs(log[key] - value.item()) < 1e-3 * (1 + abs(log[key])), (
                f"{name}, {mode}: {key} is {log[key]}, not {value}"
            )
        row[mode] = milliseconds(step(fast))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--compile", choices=["some", "none", "all"], default="some", help="losses under torch.compile")
    parser.add_argument("--loss", action="append", help="only these losses")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this measures a GPU, and torch finds none.")
    warnings.simplefilter("ignore", losses.LabelTreeWarning)
    rows = []
    for name, make in cases(LossWorkload(given.batch).classes).items():
        if given.loss and name not in given.loss:
            continue
        compiled = given.compile == "all" or (given.compile == "some" and name in COMPILED)
        rows.append(measure(name, make, given.batch, compiled=compiled))
        print(
            " | ".join(
                f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}" for key, value in rows[-1].items()
            )
        )
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        found = {"hardware": torch.cuda.get_device_name(), "torch": torch.__version__, "batch": given.batch, "losses": rows}
        given.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    for row in rows:
        most = MOST_LAUNCHES.get(row["loss"])
        assert most is None or row["launches, checked"] <= most, (
            f"{row['loss']}: {row['launches, checked']} launches, not {most}"
        )


if __name__ == "__main__":
    main()
