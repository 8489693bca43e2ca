"""suprank bench: speed and memory beside peers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

    from suprank.bench import Case, Measurement, Run, Settings, Workload

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
    from suprank.bench import CASES, Run, Settings, plan
    from suprank.bench.losses import CPU_BATCHES, CUDA_BATCHES

    target = _device(device)
    names = _names(loss or [], [name for name, case in CASES.items() if target.type == "cuda" or not case.graphed])
    batches = batch or ([] if memory else list(CUDA_BATCHES if target.type == "cuda" else CPU_BATCHES))
    settings = Settings(target, repeats, seconds, None if max_memory is None else int(max_memory * 2**30))
    try:
        planned = plan(batches, memory=memory, queries=queries, names=names)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not planned:
        raise typer.BadParameter("none of these losses is measured against a memory; add --batch, or leave --loss out.")
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(f"{out} cannot be made: {error.strerror}; name another.", param_hint="--out") from error

    found: list[Measurement] = []
    interrupted = _collect(planned, settings, found)
    sizes = [("batch", size) for size in batches] + ([("memory", memory), ("queries", queries)] if memory else [])
    run = Run.here(found, command=_command(settings, sizes, names if loss else []), device=target)
    typer.echo(run.markdown())
    if out is not None and (found or not interrupted):  # Ctrl-C before the first number leaves an older run as it was
        run.save(out / "losses.json")
        _render(run, out)
    if interrupted:
        raise typer.Exit(130)


@app.command()
def render(file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A losses.json.")]) -> None:
    """Write losses.md and losses.png beside a losses.json, for a run made where matplotlib was missing."""
    from suprank.bench import Run

    try:
        run = Run.load(file)
    except (ValueError, TypeError, KeyError) as error:
        raise typer.BadParameter(f"{file} is not a run that `suprank bench losses --out` saved ({error!r}).") from error
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


def _names(asked: list[str], known: list[str]) -> list[str]:
    """The known names asked for, whatever their case; all of them when none is."""
    by_lower = {name.lower(): name for name in known}
    for name in asked:
        if name.lower() not in by_lower:
            raise typer.BadParameter(f"there is no {name!r}; choose from {', '.join(known)}.", param_hint="--loss")
    return [by_lower[name.lower()] for name in asked] or known


def _command(settings: Settings, sizes: list[tuple[str, int]], names: list[str]) -> str:
    """The command that repeats this run, with the defaults of this machine spelt out."""
    options = [("device", settings.device), *sizes, *(("loss", name) for name in names), ("repeats", settings.repeats)]
    options += [("seconds", f"{settings.seconds:g}"), ("max-memory", f"{settings.limit_bytes / 2**30:.1f}")]
    return shlex.join(["suprank", "bench", "losses", *(word for name, value in options for word in (f"--{name}", str(value)))])


def _collect(planned: list[tuple[Case, Workload]], settings: Settings, found: list[Measurement]) -> bool:
    """Appends to `found` under a progress bar; True if Ctrl-C cut it short."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from suprank.bench import measurements

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(planned))

        def starting(case: Case, workload: Workload) -> None:
            progress.update(task, description=f"{case.name} at {workload.items}")

        try:
            for measurement in measurements(planned, settings, starting=starting):
                found.append(measurement)
                progress.advance(task)
        except KeyboardInterrupt:
            return True
    return False


def _render(run: Run, folder: Path) -> None:
    (folder / "losses.md").write_text(run.markdown(), encoding="utf-8")
    try:
        from suprank.bench.plot import draw
    except ImportError:
        typer.echo(
            f"losses.png was not written, because matplotlib is not installed; pip install 'suprank[bench]', then run "
            f"suprank bench render {folder / 'losses.json'}",
            err=True,
        )
        return
    draw(run, folder / "losses.png")
