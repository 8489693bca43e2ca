"""Our losses on given scores and grades, beside those of allRank, LibAUC and sentence-transformers.

pip install --no-deps --target DIR allrank==1.4.3 libauc==2.0.1 sentence-transformers==6.2.0
python benchmarks/learning_to_rank.py --peers DIR --out learning-to-rank.json
python benchmarks/learning_to_rank.py --device cuda             peers that can be imported, here or through PYTHONPATH
python benchmarks/learning_to_rank.py --from learning-to-rank.json --out learning-to-rank.json      only writes the tables anew

Forward + backward of `loss.from_scores(scores, grades)` and of what is used elsewhere, at 128 × 1,024 and 512 × 512 (queries ×
items). An eighth of a query's items have a grade from 1 to 4, the others 0. Scores are normal, with a unit of spread and half a
unit for each grade, and τ = 0.1. Every loss at every size has a fresh process, which may take 12 GiB and `--limit` seconds.

We load only the modules of the losses: allRank's would import gcsfs, torchvision and pkg_resources, LibAUC's scikit-learn, and
sentence-transformers' a whole transformers, none of which a loss uses. So no environment of their own is needed, only torch.

SmoothNDCG is ApproxNDCG (Qin, Liu and Li, 2010): the same value and gradient as allRank's with alpha = 1/τ, which is checked
here in float64. sentence-transformers' LambdaLoss is allRank's lambdaLoss with weighing_scheme="ndcgLoss2PP_scheme" and
reduction="mean". Its model is a stand-in that returns the scores. LibAUC's losses average over steps (SONG, SOAP): their values
are not the measure, and all queries must have the same number of positives. mAPLoss takes each query as a label.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import shlex
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from bench.benchmark_run import BenchmarkRun, markdown_table
from bench.measurement import format_bytes, format_seconds
from bench.timing import child_task, meter_for, result_or_note, run_in_child
from torch import nn

from suprank import losses

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Loss = Callable[[Tensor, Tensor], Tensor]

TAU = 0.1
SIZES = ((128, 1024), (512, 512))
LARGEST_GRADE = 4
POSITIVES = 8  # one item in so many
REPEATS, WARM_UP = 15, 2
CHECKED = 16  # queries whose values and gradients are compared
GIB = 2**30


# Peers


def package_folder(package: str) -> Path:
    """Where a package is, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(next(iter(spec.submodule_search_locations)))


def stand_in(name: str, folder: Path | None = None, **members: Any) -> ModuleType:
    """A module of this name that has only these members; with a folder, a package whose modules are found there."""
    module = ModuleType(name)
    module.__dict__.update(members)
    if folder is not None:
        module.__path__ = [str(folder)]
    sys.modules[name] = module
    return module


def allrank(device: torch.device) -> ModuleType:
    package_folder("allrank")
    stand_in("allrank.data.dataset_loading", PADDED_Y_VALUE=-1)
    stand_in("allrank.models.model_utils", get_torch_device=lambda: device)
    return import_module("allrank.models.losses")


def libauc() -> ModuleType:
    utils = stand_in("libauc.utils", package_folder("libauc") / "utils")
    utils.__dict__.update(vars(import_module("libauc.utils.utils")))
    return import_module("libauc.losses")


def sentence_transformers() -> ModuleType:
    folder = package_folder("sentence_transformers")
    stand_in("sentence_transformers", folder)
    stand_in("sentence_transformers.util", batch_to_device=lambda batch, device: batch, fullname=str)
    stand_in("sentence_transformers.cross_encoder", folder / "cross_encoder", CrossEncoder=nn.Module)
    stand_in("sentence_transformers.cross_encoder.losses", folder / "cross_encoder" / "losses")
    return import_module("sentence_transformers.cross_encoder.losses.lambda_loss")


class ScoresModel(nn.Module):
    """In place of a cross-encoder: returns scores that it was given, whatever the texts."""

    num_labels = 1

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.scores: Tensor | None = None

    def preprocess(self, pairs: object, **_: object) -> dict[str, Tensor]:
        return {}

    def forward(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        assert self.scores is not None
        return {"scores": self.scores}


def lambda_loss_of_sentence_transformers(device: torch.device) -> Loss:
    model = ScoresModel(device)
    loss = sentence_transformers().LambdaLoss(model, mini_batch_size=-1)

    def call(scores: Tensor, grades: Tensor) -> Tensor:
        model.scores = scores.reshape(-1)
        value: Tensor = loss([range(len(scores)), [range(scores.shape[1])] * len(scores)], list(grades))
        return value

    return call


def ndcg_loss_of_libauc(device: torch.device, queries: int, items: int) -> Loss:
    positives = items // POSITIVES
    relevant = queries * positives
    loss = libauc().NDCGLoss(relevant, queries, items, positives, device=device)
    ids = torch.zeros(queries, items, dtype=torch.int64)
    ids[:, :positives] = torch.arange(relevant).reshape(queries, positives)
    batch = {"user_id": torch.arange(queries), "user_item_id": ids, "num_pos_items": torch.full((queries,), positives)}
    batch = {name: values.to(device) for name, values in batch.items()}

    def call(scores: Tensor, grades: Tensor) -> Tensor:
        discount = torch.log2(torch.arange(2, positives + 2, device=device))
        ideal = ((2.0 ** grades[:, :positives].sort(descending=True).values - 1) / discount).sum(-1)
        value: Tensor = loss(scores, {**batch, "rating": grades, "ideal_dcg": ideal})
        return value

    return call


def map_loss_of_libauc(device: torch.device, queries: int, items: int) -> Loss:
    loss = libauc().mAPLoss(data_len=items, num_labels=queries, device=device)
    index = torch.arange(items, device=device)
    return lambda scores, grades: loss(scores.T, (grades > 0).T.long(), index)


def ours(loss: losses.RankLoss) -> Loss:
    return loss.from_scores


def approx_ndcg(device: torch.device) -> Loss:
    module = allrank(device)
    return lambda scores, grades: 1 + module.approxNDCGLoss(scores, grades.to(scores.dtype), alpha=1 / TAU)


def lambda_loss(device: torch.device, scheme: str) -> Loss:
    module = allrank(device)
    options = {"weighing_scheme": scheme, "reduction": "mean"}
    return lambda scores, grades: module.lambdaLoss(scores, grades.to(scores.dtype), **options)


def neural_ndcg(device: torch.device) -> Loss:
    module = allrank(device)
    return lambda scores, grades: 1 + module.neuralNDCG(scores, grades.to(scores.dtype))


@dataclass(frozen=True)
class Case:
    """A loss, by library; `build(device, queries, items)` makes it. `same_as` names the case that computes the same.

    `is_measure` is true if the value is 1 − a measure, so that it can be compared with others.
    """

    name: str
    library: str
    build: Callable[[torch.device, int, int], Loss]
    same_as: str | None = None
    is_measure: bool = False


CASES = {
    case.name: case
    for case in (
        Case("SmoothNDCG", "suprank", lambda *_: ours(losses.SmoothNDCG(tau=TAU)), is_measure=True),
        Case("SupNDCG", "suprank", lambda *_: ours(losses.SupNDCG(**losses.scaled_step(TAU))), is_measure=True),
        Case("SmoothAP", "suprank", lambda *_: ours(losses.SmoothAP(tau=TAU)), is_measure=True),
        Case("SupAP", "suprank", lambda *_: ours(losses.SupAP(**losses.scaled_step(TAU))), is_measure=True),
        Case("approxNDCGLoss", "allRank", lambda device, *_: approx_ndcg(device), "SmoothNDCG", is_measure=True),
        Case("lambdaLoss, NDCG-Loss2", "allRank", lambda device, *_: lambda_loss(device, "ndcgLoss2_scheme")),
        Case("lambdaLoss, NDCG-Loss2++", "allRank", lambda device, *_: lambda_loss(device, "ndcgLoss2PP_scheme")),
        Case("neuralNDCG", "allRank", lambda device, *_: neural_ndcg(device), is_measure=True),
        Case(
            "LambdaLoss, NDCG-Loss2++",
            "sentence-transformers",
            lambda device, *_: lambda_loss_of_sentence_transformers(device),
            "lambdaLoss, NDCG-Loss2++",
        ),
        Case("NDCGLoss (SONG)", "LibAUC", ndcg_loss_of_libauc),
        Case("mAPLoss (SOAP)", "LibAUC", map_loss_of_libauc),
    )
}


# Measurements


@dataclass(frozen=True)
class ScoreMeasurement:
    """Forward + backward of one loss. Without a result the numbers are None, and `note` says why.

    `value_difference` and `gradient_difference` are relative, to the case that computes the same: of the values, and of the
    norms of the gradients.
    """

    case: str
    library: str
    queries: int
    items: int
    seconds: float | None = None  # median
    fastest: float | None = None
    cpu_seconds: float | None = None  # median, of all threads; on a GPU the host's
    fastest_cpu: float | None = None
    runs: int = 0
    extra_bytes: int | None = None
    value: float | None = None
    value_difference: float | None = None
    gradient_difference: float | None = None
    note: str = ""


def inputs(queries: int, items: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Scores, and grades of which the positives come first, as LibAUC wants them. No loss gains by the order of the others."""
    random = torch.Generator().manual_seed(0)
    grades = torch.zeros(queries, items, dtype=torch.int64)
    shape = (queries, items // POSITIVES)
    grades[:, : shape[1]] = torch.randint(1, LARGEST_GRADE + 1, shape, generator=random)
    scores = torch.randn(queries, items, generator=random) + 0.5 * grades
    return scores.to(device).requires_grad_(), grades.to(device)


def measure(case: Case, queries: int, items: int, device: torch.device, seconds: float) -> ScoreMeasurement:
    """Time the loss, then compare it with the one that computes the same; it may raise what the loss raises."""
    scores, grades = inputs(queries, items, device)
    loss = case.build(device, queries, items)

    def step() -> Tensor:
        value = loss(scores, grades)
        value.backward()
        scores.grad = None
        return value.detach()

    meter = meter_for(device)
    meter.start()
    for _ in range(WARM_UP if device.type == "cuda" else 1):
        step()  # compiles kernels
    if device.type == "cuda":
        meter.start()
    times: list[float] = []
    on_host: list[float] = []
    while not times or (len(times) < REPEATS and sum(times) <= seconds):
        begin = time.process_time()
        took, value = meter.timed(step)
        on_host.append(time.process_time() - begin)
        times.append(took)
    found = ScoreMeasurement(
        case.name,
        case.library,
        queries,
        items,
        seconds=statistics.median(times),
        fastest=min(times),
        cpu_seconds=statistics.median(on_host),
        fastest_cpu=min(on_host),
        runs=len(times),
        extra_bytes=meter.extra_bytes(),
        value=value.item(),
    )
    if case.same_as is None:
        return found
    differences = result_or_note(lambda: compare(loss, CASES[case.same_as or ""], queries, items, device), device)
    if isinstance(differences, str):
        return replace(found, note=f"not compared: {differences}")
    return replace(found, value_difference=differences[0], gradient_difference=differences[1])


def compare(loss: Loss, other: Case, queries: int, items: int, device: torch.device) -> tuple[float, float]:
    """How far `loss` in float64 is from the other case in float32, as it is timed, on a few queries: value and gradient."""
    scores, grades = (values[:CHECKED].detach() for values in inputs(queries, items, device))
    results = []
    for function, dtype in ((loss, torch.float64), (other.build(device, CHECKED, items), torch.float32)):
        leaf = scores.to(dtype).requires_grad_()
        value = function(leaf, grades)
        results.append((value.double(), torch.autograd.grad(value, leaf)[0].double()))
    (exact, gradient), (value, approximate) = results
    return ((value - exact) / exact).abs().item(), ((approximate - gradient).norm() / gradient.norm()).item()


def child() -> None:
    """Measure one loss in this process, which `measure_in_child` started."""
    task = child_task()
    device = torch.device(task["device"])
    case, size = CASES[task["case"]], (task["queries"], task["items"])
    found = result_or_note(lambda: measure(case, *size, device, task["seconds"]), device)
    print(json.dumps(asdict(ScoreMeasurement(case.name, case.library, *size, note=found) if isinstance(found, str) else found)))


def measure_in_child(case: Case, queries: int, items: int, given: argparse.Namespace) -> ScoreMeasurement:
    on_cpu = given.device == "cpu"
    task = {"case": case.name, "queries": queries, "items": items, "device": given.device, "seconds": given.seconds}
    task["max_bytes"] = 12 * GIB if on_cpu else 2**50  # a GPU's address space is large, its memory has a limit of its own
    found = run_in_child(Path(__file__).stem, task, limit=given.limit, threads=1 if on_cpu else None)
    if isinstance(found, str):
        return ScoreMeasurement(case.name, case.library, queries, items, note=found)
    return ScoreMeasurement(**found)


# Results


class LearningToRankRun(BenchmarkRun[ScoreMeasurement]):
    bench = "learning-to-rank"
    measurement_type = ScoreMeasurement
    packages = ("suprank", "triton", "allrank", "libauc", "sentence-transformers")

    def markdown(self) -> str:
        """Time, memory and value of each loss at each size; then how far the losses that are the same differ."""
        on_gpu = "CUDA events" in self.method
        what = "time" if on_gpu else "CPU time"
        other = "" if on_gpu else " The tables have the CPU time of the process (process_time), which other work disturbs less."
        parts = [*self.heading("Losses of given scores and grades"), f"Forward + backward. Measured: {self.method}.{other}"]
        for queries, items in dict.fromkeys((one.queries, one.items) for one in self.measurements):
            rows = [_row(one, on_gpu) for one in self.measurements if (one.queries, one.items) == (queries, items)]
            head = ["loss", f"{what}, median", "fastest", "peak extra memory", "1 − measure"]
            parts += [f"## {queries} queries × {items:,} items", markdown_table(head, rows)]
        compared = [one for one in self.measurements if one.value_difference is not None]
        if compared:
            rows = [
                [f"{one.library}: {one.case}", CASES[one.case].same_as or "", f"{one.queries} × {one.items:,}"]
                + [f"{difference:.1e}" for difference in (one.value_difference, one.gradient_difference)]
                for one in compared
            ]
            head = ["loss, in float64", "and in float32", "size", "difference of the values", "of the gradients"]
            parts += [f"## The same loss twice, on {CHECKED} queries, relative", markdown_table(head, rows)]
        return "\n\n".join(parts) + "\n"


def _row(one: ScoreMeasurement, on_gpu: bool) -> list[str]:
    name = f"{one.library}: {one.case}"
    times = (one.seconds, one.fastest) if on_gpu else (one.cpu_seconds, one.fastest_cpu)
    if times[0] is None or times[1] is None or one.extra_bytes is None:
        return [name, one.note, "", "", ""]
    value = f"{one.value:.4f}" if CASES[one.case].is_measure else ""
    median, fastest = map(format_seconds, times)
    return [name, median, fastest if one.runs > 1 else "one run", format_bytes(one.extra_bytes), value]


def installed(given: argparse.Namespace) -> list[Case]:
    """The cases whose library is here; a line on stderr says how to install the others."""
    packages = {"allRank": "allrank", "LibAUC": "libauc", "sentence-transformers": "sentence_transformers"}
    missing = {library for library, package in packages.items() if importlib.util.find_spec(package) is None}
    for library in sorted(missing):
        name = packages[library].replace("_", "-")
        print(f"{library} is skipped: pip install --no-deps --target DIR {name}, and give --peers DIR", file=sys.stderr)
    return [case for case in CASES.values() if case.library not in missing and (not given.loss or case.name in given.loss)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="on a CPU every loss has one thread")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="folder into which the other libraries were installed")
    parser.add_argument("--loss", action="append", choices=list(CASES), help="only this loss; repeatable")
    parser.add_argument("--seconds", type=float, default=10.0, help="time steps for so long, 15 at most and one at least")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a process is stopped")
    parser.add_argument("--from", type=Path, metavar="FILE.json", dest="source", help="show these numbers, measure nothing")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="the numbers; tables go to FILE.md beside it")
    given = parser.parse_args()
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)  # now: the measurements take minutes
    if given.peers is not None:
        if not given.peers.is_dir():
            parser.error(f"--peers {given.peers} is no folder: pip install --no-deps --target {given.peers} allrank libauc ...")
        sys.path.append(str(given.peers.resolve()))  # after all others: it may hold packages of any name
    if given.device == "cuda" and given.source is None and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU")
    run = LearningToRankRun.load(given.source) if given.source else run_here(given)
    print(run.markdown())
    if given.out is not None:
        run.save(given.out)
        given.out.with_suffix(".md").write_text(run.markdown(), encoding="utf-8")


def run_here(given: argparse.Namespace) -> LearningToRankRun:
    found, loads = [], os.getloadavg()
    for (queries, items), case in itertools.product(SIZES, installed(given)):
        found.append(one := measure_in_child(case, queries, items, given))
        text = one.note if one.seconds is None else f"{format_seconds(one.seconds)}, {format_bytes(one.extra_bytes or 0)}"
        print(f"{case.library} {case.name}, {queries} × {items}: {text}", file=sys.stderr)
    command = shlex.join(["python", "benchmarks/learning_to_rank.py", *sys.argv[1:]])
    run = LearningToRankRun.here(found, command=command, device=torch.device(given.device), threads=1)
    load = f"load average {loads[0]:.1f} before and {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} cores"
    return replace(run, method=f"{run.method}; {load}")


if __name__ == "__main__":
    main()
