"""What the verbs that train many times share: the runs with a bar, the queue of a cluster, and the table that is printed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from suprank.experiments.sweep import Table, Task
    from suprank.training.config import TrainConfig


def failures(
    tasks: Sequence[Task],
    save: Callable[[Path], None],
    out: Path,
    configs: Sequence[TrainConfig],
    *,
    jobs: int | None,
    slurm: tuple[str, dict[str, Any]] | None,
    quiet: bool,
) -> list[str]:
    """Runs what is not finished, here or by SLURM, with the folder, where `save` notes what is run, for this process alone; the
    names of the runs that failed."""
    from suprank.experiments import sweep as sweeps

    folder = out.absolute()
    terminal.check_folder(folder)
    folder.mkdir(exist_ok=True)
    with sweeps.locked(folder) as lock:
        save(folder)
        waiting = [task for task in tasks if sweeps.outcome(task.folder) is None]
        if len(waiting) < len(tasks) and not quiet:
            terminal.echo(f"{len(tasks) - len(waiting)} of {len(tasks)} runs are finished already.", err=True)
        if slurm is None:
            return _run(waiting, jobs or 1, lock, sweeps.shared_gpus(configs, jobs or 1), quiet, out)
        _submit(waiting, folder, *slurm)
        return []


def end(failed: Sequence[str], total: int) -> None:
    """Ends the command with exit code 1 where runs failed."""
    if failed:
        said = f"{len(failed)} of {total} runs failed: {', '.join(failed)}. Given again, the command resumes them."
        terminal.echo(said, err=True)
        raise typer.Exit(1)


def _run(waiting: Sequence[Task], jobs: int, lock: int, gpus: Sequence[str], quiet: bool, out: Path) -> list[str]:
    """Runs the tasks here; the names of those that failed."""
    from suprank.experiments import sweep as sweeps

    failed = []
    with _bar(len(waiting), quiet) as (starting, ending):
        try:
            for task, failure in sweeps.ended(waiting, jobs, lock=lock, gpus=gpus, starting=starting):
                ending(task, failure)
                if failure:
                    failed.append(task.name)
                    terminal.echo(f"{task.name} {failure}; the end of {task.log}:\n{task.last_lines}", err=True)
        except sweeps.Stopped as stopped:
            terminal.echo(
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


def _submit(waiting: Sequence[Task], folder: Path, cluster: str, parameters: dict[str, Any]) -> None:
    """Submits what is neither finished nor in the queue."""
    from suprank.experiments import sweep as sweeps

    queue = sweeps.queued(folder) if cluster == "slurm" else {}
    again = [task for task in waiting if task.name in queue]
    if again:
        jobs = ", ".join(sorted({queue[task.name] for task in again}))
        terminal.echo(
            f"{len(again)} runs are in the queue already, or too new for SLURM to know them: {jobs}. "
            f"If they are not, remove {folder / 'slurm' / 'jobs.json'}.",
            err=True,
        )
    todo = [task for task in waiting if task.name not in queue]
    if todo:
        for name, job in sweeps.submitted(todo, folder, cluster, parameters).items():
            terminal.echo(f"{job.job_id}: {name}", err=True)
        terminal.echo(f"submitted {len(todo)} runs. Give the same command again, or with --collect, for the table.", err=True)


@contextmanager
def perhaps_drawing() -> Iterator[None]:
    """For what imports matplotlib: says so where it is not installed, and goes on."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        terminal.echo(
            'no figure, because matplotlib is not installed; pip install "suprank[cli,train]", then --collect.', err=True
        )


def print_table(table: Table, *, seconds: bool = False) -> None:
    """The table on standard output; in a file it is as wide as it must be."""
    from rich.console import Console
    from rich.table import Table as Printed
    from rich.text import Text

    def _shown(cell: str | Text) -> str | Text:
        return terminal.escaped(cell) if isinstance(cell, str) else cell

    head, *rows = table.cells(lambda text: Text(terminal.escaped(text), style="bold"), seconds=seconds)
    printed = Printed(title=f"relative to {table.base}" if table.base else None)
    for place, column in enumerate(head):
        printed.add_column(_shown(column), justify="left" if place < len(table.labels) else "right")
    for row in rows:
        printed.add_row(*map(_shown, row))
    console = Console(markup=False, highlight=False)  # a value may have brackets
    if not console.is_terminal:
        whole = console.measure(printed, options=console.options.update(width=10_000)).maximum
        console.width = max(console.width, whole)
    console.print(printed)
