"""suprank paper: list every table and figure of the paper, and reproduce them by their labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal
from suprank.cli.compare import On
from suprank.cli.options import Quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table as RichTable

    from suprank.paper.layout import PaperTable
    from suprank.paper.plan import PaperPlan


def paper(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LABEL|KEY=VALUE",
            help="Labels of tables and figures, or all, tables or figures; and entries that hold for all runs.",
            show_default="list all labels",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the runs, tables and figures.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder with the datasets, or with their manifests.")] = None,
    small: Annotated[
        bool, typer.Option("--small", help="Use small sets, which are drawn, in place of the paper's datasets.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs of each recipe, with run.seed=0,1,...")] = 1,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of runs at the same time.", show_default="1; elsewhere as many as fit")
    ] = None,
    on: On = "local",
    method: Annotated[
        list[str] | None, typer.Option(metavar="METHOD", help="Train only this method of the tables, repeatable.")
    ] = None,
    dataset: Annotated[list[str] | None, typer.Option(metavar="DATASET", help="Only this dataset, repeatable.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only print the runs, which of them are finished, and missing datasets.")
    ] = False,
    collect: Annotated[
        bool, typer.Option("--collect", help="Only write tables and figures of the runs that are finished.")
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Lay out the CSV files of `suprank compare` in DIR, PRESET.csv each; nothing is run."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """List every table and figure of the paper, or reproduce some of them.

    Datasets are found in --data, or imported from there. Runs are shared by all tables and figures of a folder: given again,
    the command skips what is finished and resumes what was interrupted. Tables are written as .md, .tex and .csv with the
    paper's number beside ours and the difference, figures as .png and .svg.

    \b
    suprank paper                                                   # all labels
    suprank paper fig:smooth_rank tab:compa_bounds --out figures
    suprank paper tab:compa_ranking_losses --small --out small      # on images that are drawn here
    suprank paper tab:main_sop_inat --data datasets --out runs --plan
    suprank paper tab:main_sop_inat --data datasets --out runs --seeds 3 --jobs 4 batch.chunk=64
    suprank paper tab:main_sop_inat --data /shared/datasets --out /shared/runs --seeds 3 --on ray
    """
    with terminal.plain_errors("fewer --jobs"):
        from suprank.experiments.methods import split_arguments

        labels, overrides = split_arguments(arguments or [])
        if not labels and overrides:
            raise ValueError(f"{' '.join(overrides)} changes runs, but no label is named; `suprank paper` lists them.")
        if not labels:
            _list_contents()
            return

        from suprank.cli.experiments import CommandDisplay, command_line, exit_if_failed, explain_stop
        from suprank.experiments.experiment import Executor
        from suprank.paper.reproduction import Reproduction

        reproduction = Reproduction(
            labels=tuple(labels),
            out=out or Path(),
            data=data,
            small=small,
            seeds=seeds,
            overrides=tuple(overrides),
            methods=tuple(method or ()),
            datasets=tuple(dataset or ()),
            results=results,
            command=command_line(),
        )
        if plan and results:
            raise ValueError("--results runs nothing, so there is nothing to plan; leave out --plan.")
        if plan:
            _print_plan(reproduction.plan())
            return
        if out is None:
            raise ValueError(f"name a folder for what is written: suprank paper {' '.join(labels)} --out DIR")
        with explain_stop(out):
            result = reproduction.run(executor=Executor(on, jobs), collect=collect, display=CommandDisplay(quiet=quiet))
        for table in result.tables:
            print_paper_table(table)
        for fact in result.facts:
            terminal.echo(fact)
        for file in result.files:
            terminal.echo(str(file))
    exit_if_failed(result.failed, result.planned)


def _list_contents() -> None:
    from suprank.paper.contents import KINDS, contents

    _print_rows(["label", "what", "needs"], [[item.label, item.title, KINDS[item.kind]] for item in contents().values()])
    terminal.echo("suprank paper LABEL --out DIR reproduces one; --small needs no dataset, --plan lists its runs.")


def print_paper_table(table: PaperTable) -> None:
    """Print a table as its files have it, on standard output."""
    from suprank.paper.layout import text_cells

    head, *rows = text_cells(table, "[bold]{}[/bold]", "[underline]{}[/underline]")
    terminal.echo(f"{table.item.title} ({table.item.label})")
    _print_rows(head, rows, right_from=table.label_columns, split=True)
    for sentence in (table.caption(), *(table.order_sentences() if table.small else ()), *table.notes):
        terminal.echo(sentence)


def _print_plan(plan: PaperPlan) -> None:
    from rich.markup import escape

    head, *rows = [[escape(terminal.escaped(cell)) for cell in row] for row in plan.text_cells()]
    if rows:
        _print_rows(head, rows, right_from=2)
    for sentence in plan.sentences():
        terminal.echo(sentence)


def _print_rows(
    head: Sequence[str], rows: Sequence[Sequence[str]], right_from: int | None = None, *, split: bool = False
) -> None:
    """Print a table on standard output; if that is not a terminal, as wide as the table needs.

    With `split`, a table that is wider than the terminal is printed in blocks of columns, each with the first `right_from`
    columns, because numbers that are folded cannot be read.
    """
    from rich.console import Console

    console = Console(highlight=False)
    labels, columns = right_from or 0, len(head)

    def block(start: int, end: int) -> RichTable:
        chosen = [*range(labels), *range(start, end)]
        table = terminal.plain_table([head[place] for place in chosen], right_from)
        for row in rows:
            table.add_row(*(row[place] for place in chosen))
        return table

    if not console.is_terminal:
        console.width = max(console.width, terminal.full_width(console, block(labels, columns)))
    start = labels
    while start < columns:
        end = start + 1 if split else columns
        while end < columns and terminal.full_width(console, block(start, end + 1)) <= console.width:
            end += 1
        console.print(block(start, end))
        start = end
