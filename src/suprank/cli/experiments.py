"""How experiments look in a terminal: progress on stderr, and tables on standard output."""

from __future__ import annotations

import shlex
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from suprank.cli import terminal
from suprank.executors.local import ExperimentStopped
from suprank.experiments.display import ProgressDisplay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from suprank.experiments.tables import Table


class CommandDisplay(ProgressDisplay):
    """Progress and notes on stderr, tables on standard output; with `quiet` only notes and tables."""

    def __init__(self, *, quiet: bool = False, tables: bool = True) -> None:
        super().__init__(quiet=quiet)
        self._tables = tables

    def escape(self, text: str) -> str:
        return terminal.escaped(text)

    def table(self, table: Table, *, seconds: bool = False) -> None:
        if self._tables:
            print_table(table, seconds=seconds)


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
        console.width = max(console.width, terminal.full_width(console, printed))
    console.print(printed)
