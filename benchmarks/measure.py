"""Time and memory of the losses and of the evaluation, compared with other libraries.

python benchmarks/measure.py losses --device cpu --out benchmarks/results/cpu
python benchmarks/measure.py evaluation --quick
python benchmarks/measure.py render benchmarks/results/cpu/losses.json
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from suprank.cli import terminal
from suprank.files.atomic import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from bench import (
        BenchmarkSettings,
        EvaluationBenchmarkRun,
        EvaluationMeasurement,
        LossBenchmarkRun,
        LossMeasurement,
    )
    from bench.runner import BenchmarkCase, BenchmarkWorkload

M = TypeVar("M")

app = typer.Typer(help="Measure time and memory, compared with other libraries.", no_args_is_help=True)


@app.command()
def losses(
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Batch size, repeatable.", show_default="256 512 1024; on a GPU 256 512 ... 16384"),
    ] = None,
    loss: Annotated[
        list[str] | None, typer.Option(help="Name of a loss, as in the table; repeatable.", show_default="all")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.", show_default="cuda if there is one")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs for the median; fewer once they took --seconds.")] = 20,
    seconds: Annotated[
        float, typer.Option(min=0, max=86400, help="A loss that takes longer is skipped at larger sizes.")
    ] = 10.0,
    max_memory: Annotated[
        float | None,
        typer.Option(min=0.1, help="Memory limit of a loss, in GiB.", show_default="60% of the machine, or the whole GPU"),
    ] = None,
    memory: Annotated[
        int,
        typer.Option(min=0, help="Rank queries against a memory of this many items, instead of batches; with --batch, both."),
    ] = 0,
    queries: Annotated[int, typer.Option(min=1, help="Queries ranked against the memory.")] = 256,
    out: Annotated[
        Path | None, typer.Option(file_okay=False, writable=True, help="Folder for losses.json, losses.md and losses.png.")
    ] = None,
) -> None:
    """Measure time and peak extra memory of every loss, forward + backward, and of pytorch-metric-learning's and plain torch's.

    Prints Markdown tables. Ctrl-C ends the run and keeps the measurements made so far.
    """
    from bench import LOSS_CASES, BenchmarkSettings, LossBenchmarkRun, measure_losses, plan_losses
    from bench.loss_benchmark import CPU_BATCHES, CUDA_BATCHES

    target = _device(device)
    names = _names(
        loss or [], [name for name, case in LOSS_CASES.items() if target.type == "cuda" or not case.graphed], "--loss"
    )
    batches = batch or ([] if memory else list(CUDA_BATCHES if target.type == "cuda" else CPU_BATCHES))
    settings = BenchmarkSettings(target, repeats, seconds, _bytes(max_memory))
    try:
        plan = plan_losses(batches, memory=memory, queries=queries, names=names)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not plan:
        raise typer.BadParameter("none of these losses can rank against a memory; add --batch, or leave --loss out.")
    _make_folder(out)

    results: list[LossMeasurement] = []
    interrupted = _collect(lambda on_start: measure_losses(plan, settings, on_start=on_start), len(plan), results)
    sizes = [("batch", size) for size in batches] + ([("memory", memory), ("queries", queries)] if memory else [])
    options = [*sizes, *(("loss", name) for name in (names if loss else []))]
    _finish(LossBenchmarkRun.here(results, command=_command("losses", settings, options), device=target), out, interrupted)


@app.command()
def evaluation(
    case: Annotated[
        list[str] | None,
        typer.Option(help="A synthetic collection: sop, inat, gldv2 or million; repeatable.", show_default="sop; on a GPU all"),
    ] = None,
    items: Annotated[
        list[int] | None,
        typer.Option(help="Cut each collection to this many items; repeatable.", show_default="all; sop 5000 20000 60502"),
    ] = None,
    queries: Annotated[
        list[int] | None,
        typer.Option(
            help="Rank this many queries against the items; repeatable. Time should grow with them, memory should not.",
            show_default="the collection's own: every item of sop and inat, 1129 of gldv2, 1000 of million",
        ),
    ] = None,
    evaluator: Annotated[
        list[str] | None, typer.Option(help="Name of an evaluator, as in the table; repeatable.", show_default="all")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.", show_default="cuda if there is one")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs for the median, as far as --seconds allows.")] = 1,
    seconds: Annotated[
        float,
        typer.Option(
            min=0, max=86400, help="An evaluator that takes longer is stopped (on a CPU) and skipped at larger sizes."
        ),
    ] = 900.0,
    max_memory: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Memory limit of an evaluator, in GiB.", show_default="60% of the machine, or the whole GPU"
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each process on a CPU.", show_default="what the libraries choose")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Cut collections to 1000, 2000 and 5000 items, which takes a minute or two.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, writable=True, help="Folder for evaluation.json, evaluation.md and evaluation.png."),
    ] = None,
) -> None:
    """Measure time and memory of exact evaluation, and of faiss, pytorch-metric-learning and torchmetrics on the same data.

    Prints Markdown tables. On a CPU each evaluator has a process of its own, whose CPU time and peak memory are given.
    Ctrl-C ends the run and keeps the measurements made so far.
    """
    from bench import (
        EVALUATORS,
        SHAPES,
        BenchmarkSettings,
        EvaluationBenchmarkRun,
        measure_evaluation,
        plan_evaluation,
    )
    from bench.evaluation_benchmark import QUICK_ITEMS

    target = _device(device)
    known = [name for name, one in EVALUATORS.items() if target.type == "cpu" or one.on_gpu]
    names = _names(evaluator or [], known, "--evaluator")
    shapes = _names(case or ([] if target.type == "cuda" and not quick else ["sop"]), list(SHAPES), "--case")
    counts = items or (list(QUICK_ITEMS) if quick else [])
    settings = BenchmarkSettings(target, repeats, seconds, _bytes(max_memory), threads)
    try:
        plan = plan_evaluation(shapes, items=counts, queries=queries or [], names=names)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    _make_folder(out)

    results: list[EvaluationMeasurement] = []
    interrupted = _collect(lambda on_start: measure_evaluation(plan, settings, on_start=on_start), len(plan), results)
    options = [("case", name) for name in shapes] + [("items", str(count)) for count in counts]
    options += [("queries", str(count)) for count in queries or []]
    options += [("evaluator", name) for name in (names if evaluator else [])]
    options += [] if threads is None else [("threads", str(threads))]
    command = _command("evaluation", settings, options)
    _finish(EvaluationBenchmarkRun.here(results, command=command, device=target, threads=threads), out, interrupted)


@app.command()
def render(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A losses.json or an evaluation.json.")],
) -> None:
    """Write the tables and the figure next to a losses.json or evaluation.json, as for a run without matplotlib."""
    run = _load_run(file)
    with terminal.plain_errors(""):
        _render(run, file.parent)


def _device(name: str | None) -> torch.device:
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise typer.BadParameter(f"{name!r} is not a device; use cpu, cuda or cuda:N.", param_hint="--device") from error
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise typer.BadParameter(
            f"{name!r} cannot be measured: there are {torch.cuda.device_count()} CUDA GPUs here; use cpu, cuda or cuda:N.",
            param_hint="--device",
        )
    return device


def _names(given: list[str], known: list[str], option: str) -> list[str]:
    """The known names that were given, in any case of letters; all of them if none was."""
    by_lower = {name.lower(): name for name in known}
    for name in given:
        if name.lower() not in by_lower:
            raise typer.BadParameter(f"there is no {name!r}; choose from {', '.join(known)}.", param_hint=option)
    return list(dict.fromkeys(by_lower[name.lower()] for name in given)) or known


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * 2**30)


def _make_folder(folder: Path | None) -> None:
    """Make the folder now, so that a wrong one is refused before hours of measuring."""
    if folder is not None:
        with terminal.plain_errors(""):
            terminal.check_folder(folder)
            folder.mkdir(exist_ok=True)


def _command(verb: str, settings: BenchmarkSettings, chosen: Iterable[tuple[str, object]]) -> str:
    """The command that repeats this run, with the defaults of this machine written out."""
    options = [("device", settings.device), *chosen, ("repeats", settings.repeats), ("seconds", f"{settings.seconds:g}")]
    options += [("max-memory", f"{settings.limit_bytes / 2**30:.1f}")]
    words = (word for name, value in options for word in (f"--{name}", str(value)))
    return shlex.join(["python", "benchmarks/measure.py", verb, *words])


def _collect(
    measure: Callable[[Callable[[BenchmarkCase, BenchmarkWorkload], None]], Iterable[M]], total: int, results: list[M]
) -> bool:
    """Append measurements to `results` under a progress bar; return True if Ctrl-C interrupted them."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total)

        def on_start(case: BenchmarkCase, workload: BenchmarkWorkload) -> None:
            progress.update(task, description=f"{case.name} at {workload.size}")

        try:
            for measurement in measure(on_start):
                results.append(measurement)
                progress.advance(task)
        except KeyboardInterrupt:
            return True
    return False


def _finish(run: LossBenchmarkRun | EvaluationBenchmarkRun, out: Path | None, interrupted: bool) -> None:
    """Print the tables, and write the files."""
    terminal.echo(run.markdown())
    # Ctrl-C before the first measurement leaves an older run as it was.
    if out is not None and (run.measurements or not interrupted):
        with terminal.plain_errors(""):
            run.save(out / f"{run.bench}.json")
            _render(run, out)
    if interrupted:
        raise typer.Exit(130)


def _load_run(file: Path) -> LossBenchmarkRun | EvaluationBenchmarkRun:
    from bench import EvaluationBenchmarkRun, LossBenchmarkRun

    try:
        bench = json.loads(file.read_text(encoding="utf-8")).get("bench")
        run = EvaluationBenchmarkRun if bench == EvaluationBenchmarkRun.bench else LossBenchmarkRun
        return run.load(file)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise typer.BadParameter(f"{file} is not a run that `measure.py ... --out` saved ({error!r}).") from error


def _render(run: LossBenchmarkRun | EvaluationBenchmarkRun, folder: Path) -> None:
    write_atomically(folder / f"{run.bench}.md", run.markdown().encode())
    try:
        from bench import EvaluationBenchmarkRun
        from bench.benchmark_plots import draw_evaluation, draw_losses
    except ImportError:
        terminal.echo(
            f"{run.bench}.png was not written, because matplotlib is not installed; pip install matplotlib, then run "
            f"python benchmarks/measure.py render {folder / f'{run.bench}.json'}",
            err=True,
        )
        return
    figure = folder / f"{run.bench}.png"
    if isinstance(run, EvaluationBenchmarkRun):
        draw_evaluation(run, figure)
    else:
        draw_losses(run, figure)


if __name__ == "__main__":
    app()
