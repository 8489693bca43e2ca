"""How experiments look in a terminal: progress bars on stderr, and tables on standard output."""

from __future__ import annotations

import shlex
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from suprank.cli import terminal
from suprank.experiments.old_runner import Display, ExperimentStopped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.progress import Progress, ProgressColumn, TaskID

    from suprank.experiments.tables import Table


class ExperimentDisplay(Display):
    """One bar for all runs, with the names of those that are running; notes on stderr, tables on standard output."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self._bar: Progress | None = None
        self._running: list[str] = []

    def begin(self, runs: int) -> None:
        if self.quiet or not runs:
            return
        from rich.progress import TextColumn

        self._bar = _progress((), (TextColumn("{task.description}", markup=False),))
        self._task = self._bar.add_task("", total=runs)
        self._bar.start()

    def run_started(self, name: str) -> None:
        self._running.append(name)
        self._update(0)

    def run_ended(self, name: str, failure: str) -> None:
        self._running.remove(name)
        if self._bar:
            self._bar.console.print(f"{name}: {failure or 'finished'}", highlight=False, markup=False)
        self._update(1)

    def end(self) -> None:
        if self._bar:
            self._bar.stop()

    def skipped(self, finished: int, total: int) -> None:
        if not self.quiet:
            self.note(f"{finished} of {total} runs are finished already.")

    def note(self, text: str) -> None:
        terminal.echo(text, err=True)

    def table(self, table: Table, *, seconds: bool = False) -> None:
        print_table(table, seconds=seconds)

    def _update(self, advance: int) -> None:
        if self._bar:
            self._bar.update(self._task, advance=advance, description="; ".join(self._running))


class ParallelTrainingDisplay(Display):
    """A bar for each of several trainings, with its steps and its loss; notes stand above the bars."""

    def __init__(self) -> None:
        from rich.progress import TextColumn

        self._bars = _progress((TextColumn("{task.description}"), TextColumn("{task.fields[loss]}")), ())
        self._tasks: dict[str, TaskID] = {}

    def begin(self, runs: int) -> None:
        self._bars.start()

    def run_started(self, name: str) -> None:
        self._tasks[name] = self._bars.add_task(name, total=None, loss="")

    def run_progress(self, name: str, done: int, steps: int, loss: float | None) -> None:
        text = "" if loss is None else f"loss {loss:.3f}"
        self._bars.update(self._tasks[name], completed=done, total=steps, loss=text)

    def end(self) -> None:
        self._bars.stop()

    def note(self, text: str) -> None:
        self._bars.console.print(terminal.escaped(text), highlight=False, markup=False, soft_wrap=True)


def _progress(before: Sequence[ProgressColumn], after: Sequence[ProgressColumn]) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*before, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(elapsed_when_finished=True), *after)
    return Progress(*columns, console=Console(stderr=True))


def command_line() -> str:
    """The command that was given, as a person would repeat it."""
    return shlex.join(["suprank", *sys.argv[1:]])


@contextmanager
def explain_stop(out: Path) -> Iterator[None]:
    """If a signal stops the experiment, say how to resume it, and exit as shells do for that signal."""
    try:
        yield
    except ExperimentStopped as stopped:
        terminal.echo(
            f"{stopped}; the runs have saved what they had. Give the same command again to resume them in {out}.", err=True
        )
        raise typer.Exit(128 + stopped.signal) from None


def exit_if_failed(failed: Sequence[str], total: int) -> None:
    """End the command with exit code 1 if runs failed."""
    if failed:
        text = f"{len(failed)} of {total} runs failed: {', '.join(failed)}. Given again, the command resumes them."
        terminal.echo(text, err=True)
        raise typer.Exit(1)


def print_table(table: Table, *, seconds: bool = False) -> None:
    """Print the table on standard output; if that is not a terminal, as wide as the table needs."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    def escape(cell: str | Text) -> str | Text:
        return terminal.escaped(cell) if isinstance(cell, str) else cell

    head, *rows = table.cells(lambda text: Text(terminal.escaped(text), style="bold"), seconds=seconds)
    printed = RichTable(title=f"relative to {table.base}" if table.base else None)
    for place, column in enumerate(head):
        printed.add_column(escape(column), justify="left" if place < len(table.labels) else "right")
    for row in rows:
        printed.add_row(*map(escape, row))
    console = Console(markup=False, highlight=False)  # a value may have brackets
    if not console.is_terminal:
        width = console.measure(printed, options=console.options.update(width=10_000)).maximum
        console.width = max(console.width, width)
    console.print(printed)
