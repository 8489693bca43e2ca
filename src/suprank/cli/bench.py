"""suprank bench: speed and memory beside peers."""

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

    from suprank.bench import Evaluated, EvaluationRun, Measurement, Run, Settings
    from suprank.bench.sweep import Named, Sized

F = TypeVar("F")

app = typer.Typer(help="Measure speed and memory beside peers.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure speed and memory beside peers."""


@app.command()
def losses(
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Batch size, repeatable.", show_default="256 512 1024; on a GPU 256 512 ... 16384"),
    ] = None,
    loss: Annotated[
        list[str] | None, typer.Option(help="A loss by its name in the table, repeatable.", show_default="all")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.", show_default="cuda if there is one")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs that a median is over, fewer once they took --seconds.")] = 20,
    seconds: Annotated[
        float, typer.Option(min=0, max=86400, help="A loss that takes longer is skipped at larger sizes.")
    ] = 10.0,
    max_memory: Annotated[
        float | None,
        typer.Option(min=0.1, help="GiB that a loss may take.", show_default="60% of the machine, or the whole GPU"),
    ] = None,
    memory: Annotated[
        int, typer.Option(min=0, help="Rank queries against this many items, in place of batches or, with --batch, besides.")
    ] = 0,
    queries: Annotated[int, typer.Option(min=1, help="Queries ranked against the memory.")] = 256,
    out: Annotated[
        Path | None, typer.Option(file_okay=False, writable=True, help="Folder for losses.json, losses.md and losses.png.")
    ] = None,
) -> None:
    """Time and peak extra memory of every loss, forward + backward, beside pytorch-metric-learning and plain torch.

    Prints Markdown tables. Ctrl-C ends the run and keeps what was measured.
    """
    from suprank.bench import CASES, Run, Settings, measurements, plan
    from suprank.bench.losses import CPU_BATCHES, CUDA_BATCHES

    target = _device(device)
    names = _names(loss or [], [name for name, case in CASES.items() if target.type == "cuda" or not case.graphed], "--loss")
    batches = batch or ([] if memory else list(CUDA_BATCHES if target.type == "cuda" else CPU_BATCHES))
    settings = Settings(target, repeats, seconds, _bytes(max_memory))
    try:
        planned = plan(batches, memory=memory, queries=queries, names=names)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not planned:
        raise typer.BadParameter("none of these losses is measured against a memory; add --batch, or leave --loss out.")
    _make(out)

    found: list[Measurement] = []
    interrupted = _collect(lambda starting: measurements(planned, settings, starting=starting), len(planned), found)
    sizes = [("batch", size) for size in batches] + ([("memory", memory), ("queries", queries)] if memory else [])
    options = [*sizes, *(("loss", name) for name in (names if loss else []))]
    _finish(Run.here(found, command=_command("losses", settings, options), device=target), out, interrupted)


@app.command()
def evaluation(
    case: Annotated[
        list[str] | None,
        typer.Option(help="A collection: sop, inat, gldv2 or million, repeatable.", show_default="sop; on a GPU all"),
    ] = None,
    items: Annotated[
        list[int] | None,
        typer.Option(help="Cut each collection to this many items, repeatable.", show_default="all; sop 5000 20000 60502"),
    ] = None,
    queries: Annotated[
        list[int] | None,
        typer.Option(
            help="Rank this many queries against the items, repeatable: time should grow with them, memory should not.",
            show_default="the collection's own: every item of sop and inat, 1129 of gldv2, 1000 of million",
        ),
    ] = None,
    evaluator: Annotated[
        list[str] | None, typer.Option(help="An evaluator by its name in the table, repeatable.", show_default="all")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.", show_default="cuda if there is one")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs that a median is over, as far as --seconds allows.")] = 1,
    seconds: Annotated[
        float,
        typer.Option(
            min=0, max=86400, help="An evaluator that takes longer is stopped (on a CPU) and skipped at larger sizes."
        ),
    ] = 900.0,
    max_memory: Annotated[
        float | None,
        typer.Option(min=0.1, help="GiB that an evaluator may take.", show_default="60% of the machine, or the whole GPU"),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each process on a CPU.", show_default="what the libraries choose")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Cut collections to 1000, 2000 and 5000 items: a minute or two.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, writable=True, help="Folder for evaluation.json, evaluation.md and evaluation.png."),
    ] = None,
) -> None:
    """Time and memory of exact evaluation, beside faiss, pytorch-metric-learning and torchmetrics on the same embeddings.

    Prints Markdown tables. On a CPU each evaluator has a process of its own, and CPU time and peak memory are that process's.
    Ctrl-C ends the run and keeps what was measured.
    """
    from suprank.bench import EVALUATORS, SHAPES, EvaluationRun, Settings
    from suprank.bench.evaluation import QUICK_ITEMS, measurements, plan

    target = _device(device)
    known = [name for name, one in EVALUATORS.items() if target.type == "cpu" or one.on_gpu]
    names = _names(evaluator or [], known, "--evaluator")
    shapes = _names(case or ([] if target.type == "cuda" and not quick else ["sop"]), list(SHAPES), "--case")
    counts = items or (list(QUICK_ITEMS) if quick else [])
    settings = Settings(target, repeats, seconds, _bytes(max_memory), threads)
    try:
        planned = plan(shapes, items=counts, queries=queries or [], names=names)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    _make(out)

    found: list[Evaluated] = []
    interrupted = _collect(lambda starting: measurements(planned, settings, starting=starting), len(planned), found)
    options = [("case", name) for name in shapes] + [("items", str(count)) for count in counts]
    options += [("queries", str(asked)) for asked in queries or []]
    options += [("evaluator", name) for name in (names if evaluator else [])]
    options += [] if threads is None else [("threads", str(threads))]
    command = _command("evaluation", settings, options)
    _finish(EvaluationRun.here(found, command=command, device=target, threads=threads), out, interrupted)


@app.command()
def render(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A losses.json or an evaluation.json.")],
) -> None:
    """Write the tables and the figure beside a losses.json or evaluation.json, for a run made where matplotlib was missing."""
    run = _loaded(file)
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


def _names(asked: list[str], known: list[str], option: str) -> list[str]:
    """The known names asked for, whatever their case; all of them when none is."""
    by_lower = {name.lower(): name for name in known}
    for name in asked:
        if name.lower() not in by_lower:
            raise typer.BadParameter(f"there is no {name!r}; choose from {', '.join(known)}.", param_hint=option)
    return list(dict.fromkeys(by_lower[name.lower()] for name in asked)) or known


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * 2**30)


def _make(folder: Path | None) -> None:
    """Makes the folder now, so that a wrong one is refused before hours of measuring."""
    if folder is not None:
        with terminal.plain_errors(""):
            terminal.check_folder(folder)
            folder.mkdir(exist_ok=True)


def _command(verb: str, settings: Settings, chosen: Iterable[tuple[str, object]]) -> str:
    """The command that repeats this run, with the defaults of this machine spelt out."""
    options = [("device", settings.device), *chosen, ("repeats", settings.repeats), ("seconds", f"{settings.seconds:g}")]
    options += [("max-memory", f"{settings.limit_bytes / 2**30:.1f}")]
    return shlex.join(["suprank", "bench", verb, *(word for name, value in options for word in (f"--{name}", str(value)))])


def _collect(measured: Callable[[Callable[[Named, Sized], None]], Iterable[F]], total: int, found: list[F]) -> bool:
    """Appends to `found` under a progress bar, which `measured` tells what comes next; True if Ctrl-C cut it short."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total)

        def starting(case: Named, workload: Sized) -> None:
            progress.update(task, description=f"{case.name} at {workload.size}")

        try:
            for measurement in measured(starting):
                found.append(measurement)
                progress.advance(task)
        except KeyboardInterrupt:
            return True
    return False


def _finish(run: Run | EvaluationRun, out: Path | None, interrupted: bool) -> None:
    """Prints the tables, and writes what was measured."""
    terminal.echo(run.markdown())
    if out is not None and (
        run.measurements or not interrupted
    ):  # Ctrl-C before the first number leaves an older run as it was
        with terminal.plain_errors(""):
            run.save(out / f"{run.bench}.json")
            _render(run, out)
    if interrupted:
        raise typer.Exit(130)


def _loaded(file: Path) -> Run | EvaluationRun:
    from suprank.bench import EvaluationRun, Run

    try:
        kind = EvaluationRun if json.loads(file.read_text(encoding="utf-8")).get("bench") == EvaluationRun.bench else Run
        return kind.load(file)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise typer.BadParameter(f"{file} is not a run that `suprank bench ... --out` saved ({error!r}).") from error


def _render(run: Run | EvaluationRun, folder: Path) -> None:
    write_atomically(folder / f"{run.bench}.md", run.markdown().encode())
    try:
        from suprank.bench import EvaluationRun
        from suprank.bench.plot import draw, draw_evaluation
    except ImportError:
        terminal.echo(
            f"{run.bench}.png was not written, because matplotlib is not installed; pip install 'suprank[bench]', then run "
            f"suprank bench render {folder / f'{run.bench}.json'}",
            err=True,
        )
        return
    figure = folder / f"{run.bench}.png"
    if isinstance(run, EvaluationRun):
        draw_evaluation(run, figure)
    else:
        draw(run, figure)
