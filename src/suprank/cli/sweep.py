"""suprank sweep: a grid of training runs, a table of what they found, and the figure."""

from __future__ import annotations

import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from suprank.training.sweep import Sweep, Table, Task


def sweep(
    recipe: Annotated[str, typer.Argument(help="A recipe: a .toml file, or a name that `suprank recipes` lists.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the sweep.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE,...", help="Values to combine; a single one holds for all runs."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of each combination, with run.seed=0,1,...", show_default="1")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at the same time.", show_default="1; with --slurm all")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="A metric of the table and the figure, repeatable.", show_default="R@1, mAP@R and H-AP"),
    ] = None,
    relative_to: Annotated[
        str | None,
        typer.Option(metavar="KEY=VALUE", help="Also show the increase over the runs with this value of an axis."),
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Submit a SLURM array, with this option of sbatch, repeatable."),
    ] = None,
    collect: Annotated[
        bool, typer.Option("--collect", help="Only write the table and the figure of what is finished.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the commands that would be run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Train every combination of some values, and compare: DIR/table.md, table.csv, plot.png and plot.svg.

    All combinations are checked before the first one runs. Given again, the command leaves out what is finished and resumes
    what was interrupted; with further values it adds them to the sweep. Numbers are of the last epoch: mean ± standard
    deviation over seeds, in percent.

    \b
    suprank sweep cub/roadmap loss.weight=0,0.1,0.3,0.5 --seeds 3 --out lambda
    suprank sweep cub/roadmap batch.size=32,64,128 loss.weight=0,0.1 --relative-to loss.weight=0 --out batch
    suprank sweep sop/happier loss.decay=0.5,1,3 --seeds 3 --slurm partition=gpu --slurm time=12:00:00 --out alpha
    """
    with terminal.plain_errors("fewer --jobs"):
        from suprank.evaluation.names import parse
        from suprank.training import sweep as sweeps

        folder = out.absolute()
        grid = sweeps.Grid.read(values or [], seeds)
        metrics = list(dict.fromkeys(str(parse(one)) for one in metric or ()))
        there = sweeps.Sweep.load(folder)
        if collect:
            if there is None:
                raise FileNotFoundError(f"{out} has no sweep.json, so there is nothing to collect; name the folder of a sweep.")
            _finish(there, folder, metrics, relative_to)
            return
        recipe = str(Path(recipe).absolute()) if Path(recipe).is_file() else recipe
        grid = there.aligned(grid) if there else grid
        configs = sweeps.checked(recipe, grid)
        whole = sweeps.Sweep.of(recipe, grid, configs[0], shlex.join(["suprank", *sys.argv[1:]]))
        whole = there.joined(whole) if there else whole
        if relative_to:
            sweeps.relative_table(dict.fromkeys(whole.runs), relative_to)  # refuses what is no value of an axis
        tasks = sweeps.tasks(recipe, grid, folder)
        if dry_run:
            for task in tasks:
                typer.echo(shlex.join(task.command))
            return
        parameters = sweeps.slurm_parameters(slurm, configs, jobs) if slurm else None
        terminal.check_folder(folder)
        folder.mkdir(exist_ok=True)
        with sweeps.locked(folder) as lock:
            whole.save(folder)
            waiting = [task for task in tasks if sweeps.outcome(task.folder) is None]
            if len(waiting) < len(tasks) and not quiet:
                typer.echo(f"{len(tasks) - len(waiting)} of {len(tasks)} runs are finished already.", err=True)
            failed: list[str] = []
            if parameters:
                _submit(waiting, folder, *parameters)
            else:
                failed = _run(waiting, jobs or 1, lock, sweeps.shared_gpus(configs, jobs or 1), quiet, out)
        _finish(whole, folder, metrics, relative_to)
    if failed:
        said = f"{len(failed)} of {len(tasks)} runs failed: {', '.join(failed)}. Given again, the command resumes them."
        typer.echo(said, err=True)
        raise typer.Exit(1)


def _run(waiting: Sequence[Task], jobs: int, lock: int, gpus: Sequence[str], quiet: bool, out: Path) -> list[str]:
    """Runs the tasks here; the names of those that failed."""
    from suprank.training import sweep as sweeps

    failed = []
    with _bar(len(waiting), quiet) as (starting, ending):
        try:
            for task, failure in sweeps.ended(waiting, jobs, lock=lock, gpus=gpus, starting=starting):
                ending(task, failure)
                if failure:
                    failed.append(task.name)
                    typer.echo(f"{task.name} {failure}; the end of {task.log}:\n{task.last_lines}", err=True)
        except sweeps.Stopped as stopped:
            typer.echo(
                f"{stopped}; the runs have saved what they had. Give the same command again to go on in {out}.", err=True
            )
            raise typer.Exit(128 + stopped.signal) from None
    return failed


@contextmanager
def _bar(total: int, quiet: bool) -> Iterator[tuple[Callable[[Task], None], Callable[[Task, str], None]]]:
    """A bar of the runs with the names of those under way: functions for one that starts, and one that ends."""
    if quiet or not total:
        yield lambda task: None, lambda task, failure: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    remaining = TimeRemainingColumn(elapsed_when_finished=True)
    columns = BarColumn(), MofNCompleteColumn(), remaining, TextColumn("{task.description}", markup=False)
    running: list[str] = []
    with Progress(*columns, console=Console(stderr=True)) as bar:
        shown = bar.add_task("", total=total)

        def starting(task: Task) -> None:
            running.append(task.name)
            bar.update(shown, description="; ".join(running))

        def ending(task: Task, failure: str) -> None:
            running.remove(task.name)
            bar.console.print(f"{task.name}: {failure or 'finished'}", highlight=False, markup=False)
            bar.update(shown, advance=1, description="; ".join(running))

        yield starting, ending


def _submit(waiting: Sequence[Task], folder: Path, cluster: str, parameters: dict[str, object]) -> None:
    """Submits what is neither finished nor in the queue."""
    from suprank.training import sweep as sweeps

    queue = sweeps.queued(folder) if cluster == "slurm" else {}
    again = [task for task in waiting if task.name in queue]
    if again:
        jobs = ", ".join(sorted({queue[task.name] for task in again}))
        typer.echo(
            f"{len(again)} runs are in the queue already, or too new for SLURM to know them: {jobs}. "
            f"If they are not, remove {folder / 'slurm' / 'jobs.json'}.",
            err=True,
        )
    todo = [task for task in waiting if task.name not in queue]
    if todo:
        for name, job in sweeps.submitted(todo, folder, cluster, parameters).items():
            typer.echo(f"{job.job_id}: {name}", err=True)
        typer.echo(f"submitted {len(todo)} runs. Give the same command again, or with --collect, for the table.", err=True)


def _finish(sweep: Sweep, folder: Path, metrics: Sequence[str], base: str | None) -> None:
    """Writes and prints the tables, and draws them."""
    from suprank.atomic import write_atomically
    from suprank.training import sweep as sweeps

    found = sweeps.outcomes(sweep, folder)
    write_atomically(folder / "table.csv", sweeps.run_table(found).encode())
    if not any(found.values()):
        typer.echo(f"none of {len(found)} runs is finished, so there is no table yet.", err=True)
        return
    tables = {"table": sweeps.table(found, metrics)}
    if base:
        tables["relative"] = sweeps.relative_table(found, base, metrics)
    for name, table in tables.items():
        write_atomically(folder / f"{name}.md", table.markdown().encode())
        _print(table)
    try:
        from suprank.training.sweep.plot import draw
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        typer.echo('no figure, because matplotlib is not installed; pip install "suprank[vision]", then --collect.', err=True)
        return
    for name, table in tables.items():
        stem = "plot" if name == "table" else name
        draw(table, [folder / f"{stem}.png", folder / f"{stem}.svg"])


def _print(table: Table) -> None:
    from rich.console import Console
    from rich.table import Table as Printed
    from rich.text import Text

    head, *rows = table.cells(lambda text: Text(text, style="bold"))
    printed = Printed(title=f"relative to {table.base}" if table.base else None)
    for place, column in enumerate(head):
        printed.add_column(column, justify="left" if place < len(table.labels) else "right")
    for row in rows:
        printed.add_row(*row)
    Console(markup=False, highlight=False).print(printed)  # a value may have brackets
