"""How the cost of a rank loss grows with the batch, beside the authors' code and pytorch-metric-learning.

git clone https://github.com/elias-ramzi/SupRank DIR
python benchmarks/growth.py --authors DIR --memory 60000 --out growth.json --plot growth.png
python benchmarks/growth.py --from growth.json --plot growth.png      only draws

Forward + backward on the batches of measure.py: dimension 512, three levels, a quarter of the items are positives.
"pairs" is our loss over every pair of a positive and an item: `using="fused"` on a GPU, "chunked" on a CPU. A loss that takes
longer than `--seconds`, or runs out of memory, is skipped at larger batches.

The authors' package is called suprank too, so we load only the modules of its losses. We call them as their training loop does.
First we compare their values and gradients with ours, on a small batch and with the query in its own list, as theirs have it.
"""

import argparse
import itertools
import math
import resource
import shlex
import statistics
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch
from bench import LOSS_CASES, BenchmarkSettings, LossBenchmarkRun, LossCase, LossMeasurement, LossWorkload
from bench.benchmark_run import markdown_table
from bench.loss_benchmark import CPU_BATCHES, CUDA_BATCHES, _build_step, empty_measurement
from bench.measurement import format_seconds
from bench.runner import run_plan
from bench.timing import meter_for, result_or_note
from torch import Tensor, nn
from torch.nn.functional import normalize

from suprank import losses

WARM_UP, REPEATS = 12, 10  # our losses check the labels of their first ten batches
PAIRS = ", pairs"
LOOKS = {  # color, marker and line of a loss
    "similarity product": ("#999999", ".", "-"),
    "SupHAP": ("#D55E00", "o", "-"),
    "SmoothHAP": ("#CC79A7", "s", "-"),
    "SupNDCG": ("#009E73", "^", "-"),
    "SupAP": ("#0072B2", "v", "-"),
    "authors' SupHAPLoss": ("#D55E00", "X", ":"),
    "authors' SupAPLoss": ("#0072B2", "P", ":"),
    "PML SmoothAPLoss": ("#000000", "s", "-."),
    "PML FastAPLoss": ("#000000", "D", "-."),
}


class AuthorsLoss(nn.Module):
    """A loss of the authors, with their relevance of three levels."""

    def __init__(self, checkout: Path, name: str, level: int | str) -> None:
        super().__init__()
        with patch.dict(sys.modules):  # ours are back afterwards
            for module in [module for module in sys.modules if module.split(".")[0] == "suprank"]:
                del sys.modules[module]
            for package in ("suprank", "suprank.lib", "suprank.losses", "suprank.engine"):  # without what they import
                sys.modules[package] = ModuleType(package)
                sys.modules[package].__path__ = [str(checkout.joinpath(*package.split(".")))]
            for function in ("create_label_matrix", "create_relevance_matrix"):
                setattr(sys.modules["suprank.lib"], function, getattr(import_module(f"suprank.lib.{function}"), function))
            self.loss = getattr(import_module("suprank.losses.ranking_loss"), name)(hierarchy_level=level)
            relevance = import_module("suprank.engine.compute_relevance_on_the_fly").compute_relevance_on_the_fly
        self.relevance = partial(relevance, alpha=1.0, check_for=range(4))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        unit = normalize(embeddings, dim=-1)
        return self.loss(unit, labels, ref_embeddings=unit, ref_labels=labels, relevance_fn=self.relevance)


def check(ours: nn.Module, theirs: nn.Module, device: torch.device) -> None:
    """Both losses have the same value and gradient."""
    embeddings, labels, _, _ = LossWorkload(128).inputs(device)
    value, expected = ours(embeddings, labels), theirs(embeddings, labels)
    gradient, wanted = (torch.autograd.grad(one, embeddings)[0] for one in (value, expected))
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=0)
    assert (gradient - wanted).norm() < 1e-3 * wanted.norm(), f"the gradients of {ours} and the authors' loss differ"


def contestants(device: torch.device, checkout: Path | None) -> list[LossCase]:
    pairs = "fused" if device.type == "cuda" else "chunked"
    more = [LossCase(f"SupHAP{PAIRS}", "ours", lambda _: losses.SupHAP(using=pairs), takes_memory=True)]
    more += [LossCase(f"SmoothHAP{PAIRS}", "ours", lambda _: losses.SmoothHAP(using=pairs))]
    for ours, level in ((losses.SupHAP, "MULTI"), (losses.SupAP, 0)) if checkout is not None else ():
        build = partial(AuthorsLoss, checkout, f"{ours.__name__}Loss", level)
        check(ours(include_self=True), build(), device)
        more += [LossCase(f"authors' {ours.__name__}Loss", "peer", lambda _, build=build: build())]
    cases = {case.name: case for case in [*LOSS_CASES.values(), *more]}
    return [cases[name] for look in LOOKS for name in (look, look + PAIRS) if name in cases]


def measure(case: LossCase, workload: LossWorkload, device: torch.device, seconds: float) -> LossMeasurement:
    """The median of the last ten steps, of as many as take `seconds`; it may raise what the loss raises."""
    inputs, meter, times = workload.inputs(device), meter_for(device), []
    step = _build_step(case, workload, inputs)
    step()  # compiles kernels
    meter.start()
    while not times or (len(times) < WARM_UP + REPEATS and sum(times) <= seconds):
        took, value = meter.timed(step)
        times.append(took)
    last = times[-REPEATS:]
    extra = meter.extra_bytes() if device.type == "cuda" else None  # a CPU's would need a process for each
    found = {"seconds": statistics.median(last), "fastest": min(last), "runs": len(last), "loss": value.item()}
    return replace(empty_measurement(case, workload), **found, extra_bytes=extra)


class GrowthRun(LossBenchmarkRun):
    bench = "growth"

    def markdown(self) -> str:
        """Time and peak extra memory at each size, and the power of the batch that time grew with between the last two."""
        columns = sorted({(one.memory, one.queries) for one in self.measurements})
        head = ["loss", *(f"{queries} × {memory}" if memory else f"batch {queries}" for memory, queries in columns), "growth"]
        rows = []
        for case in dict.fromkeys(one.case for one in self.measurements):
            found = {(one.memory, one.queries): one for one in self.measurements if one.case == case}
            texts = {at: one.time_text.split(":")[0] for at, one in found.items()}
            texts |= {at: f"{texts[at]}, {one.memory_text}" for at, one in found.items() if one.extra_bytes is not None}
            logs = [(math.log(one.queries), math.log(one.seconds)) for one in found.values() if one.seconds and not one.memory]
            growth = [f"N^{(y1 - y0) / (x1 - x0):.1f}" for (x0, y0), (x1, y1) in itertools.pairwise(logs)]
            rows.append([case, *(texts.get(at, "") for at in columns), *(growth or [""])[-1:]])
        return "\n\n".join([*self.heading("Rank losses as the batch grows"), markdown_table(head, rows)])


def draw(run: GrowthRun, path: Path) -> None:
    """Time against the batch; thin lines beside SupHAP and its pairs show the slopes of N² and N³."""
    from bench.benchmark_plots import _label
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    drawn = [one for one in run.measurements if not one.memory and one.seconds]
    axes = (figure := Figure(figsize=(9.4, 5.8), layout="constrained")).subplots()
    for index, case in enumerate(dict.fromkeys(one.case for one in drawn)):
        color, marker, line = LOOKS[case.removesuffix(PAIRS)]
        line, face, width = ("--", "white", 1.3) if case.endswith(PAIRS) else (line, color, 2 if line == "-" else 1.3)
        points = {one.queries: one.seconds for one in drawn if one.case == case}
        look = {"color": color, "marker": marker, "linestyle": line, "markerfacecolor": face, "linewidth": width}
        axes.plot(points.keys(), points.values(), **look, label=case, zorder=3 - index / 100)
    axes.set_yscale("log", subs=[])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    _label(axes, "time, forward + backward", "batch size N", sorted({one.queries for one in drawn}), format_seconds)
    for power, case, beside in ((2, "SupHAP", 0.7), (3, f"SupHAP{PAIRS}", 1.4)):
        at, took = max((one.queries, beside * one.seconds) for one in drawn if one.case == case)
        axes.plot([at / 4, at], [took / 4**power, took], color="#777777", linewidth=0.8, scalex=False)
        axes.annotate(f"N{'²³'[power - 2]}", (at, took), (4, -3), textcoords="offset points", color="#777777")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, handlelength=3.5)
    figure.suptitle(f"{run.hardware}\ndimension 512, a quarter of the batch positive, three levels", fontsize=10)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", help="default: 256 to 16384 on a GPU, 256 to 1024 on a CPU")
    parser.add_argument("--memory", type=int, default=0, help="also 256 queries against so many items")
    parser.add_argument("--seconds", type=float, default=1.0, help="a loss that takes longer is skipped at larger batches")
    parser.add_argument("--authors", type=Path, metavar="DIR", help="a checkout of the authors' code")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="the numbers, hardware, versions and date")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="time against the batch (needs matplotlib)")
    parser.add_argument("--from", type=Path, metavar="FILE.json", dest="source", help="show these numbers, measure nothing")
    given = parser.parse_args()
    if given.authors is not None and not (given.authors / "suprank" / "losses").is_dir():
        parser.error(f"{given.authors} has no suprank/losses: git clone https://github.com/elias-ramzi/SupRank {given.authors}")
    run = GrowthRun.load(given.source) if given.source else run_here(given)
    print(run.markdown())
    if given.out is not None:
        run.save(given.out)
    if given.plot is not None:
        draw(run, given.plot)


def run_here(given: argparse.Namespace) -> GrowthRun:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":  # a tensor of batch³ ends with an error then, and not with a killed process
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (BenchmarkSettings(device).limit_bytes, hard))
    cases = contestants(device, given.authors)
    sizes = given.batch or (CUDA_BATCHES if device.type == "cuda" else CPU_BATCHES)
    workloads = [*map(LossWorkload, sorted(sizes)), *([LossWorkload(256, given.memory)] if given.memory else [])]
    plan = [(case, at) for case in cases for at in workloads if case.takes_memory or not at.memory]

    def measure_or_note(case: LossCase, at: LossWorkload) -> LossMeasurement:
        print(f"{case.name}, {at.size}", file=sys.stderr)
        found = result_or_note(lambda: measure(case, at, device, given.seconds), device)
        return empty_measurement(case, at, found) if isinstance(found, str) else found

    found = run_plan(plan, measure_or_note, empty_measurement, seconds=given.seconds, on_start=lambda case, at: None)
    return GrowthRun.here(found, command=shlex.join(["python", "benchmarks/growth.py", *sys.argv[1:]]), device=device)


if __name__ == "__main__":
    main()
