"""`suprank hierarchy scrape`: look up the types of items at Wikimedia, or read them from files."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import UNRESOLVED, plain_errors
from suprank.cli.hierarchy.new import ProjectFolder, Quiet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suprank.hierarchy.project import Project
    from suprank.hierarchy.wikimedia.item_types import ScrapeResult

_PHASES = {
    "page": "pages",
    "move": "moved pages",
    "item": "items of Wikidata",
    "type": "names of types",
}


def scrape(
    project: ProjectFolder,
    contact: Annotated[
        str | None,
        typer.Option(metavar="E-MAIL|URL", help="How Wikimedia can reach you. Required unless --from-csv is given."),
    ] = None,
    commons: Annotated[
        str | None, typer.Option(metavar="URL", help="The api.php of Commons.", show_default="the recipe's")
    ] = None,
    wikidata: Annotated[
        str | None, typer.Option(metavar="URL", help="The api.php of Wikidata.", show_default="the recipe's")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Most requests per minute.", show_default="the recipe's")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Look up only the first N items.", show_default="all")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Repeat requests that failed.")] = False,
    move_log: Annotated[
        bool, typer.Option("--move-log", help="Ask where missing pages were moved to: one or two requests each.")
    ] = False,
    ancestors: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=20,
            metavar="STEPS",
            help="Steps of superclasses to fetch for items with several types, for `clean --several most-specific`.",
            show_default="the recipe's",
        ),
    ] = None,
    afresh: Annotated[bool, typer.Option("--afresh", help="Forget what was fetched before, and fetch everything.")] = False,
    patience: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Give up after waiting this long.")] = 1800.0,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Longest pause within a reply.")] = 60.0,
    from_csv: Annotated[
        list[str] | None,
        typer.Option(metavar="[SPLIT=]FILE", help="Read types from a table, one per row, without network; repeatable."),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of --from-csv with the item.", show_default="the recipe's")
    ] = None,
    type_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of --from-csv with its type.", show_default="the recipe's")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Look up the types of every item: Commons category, Wikidata item, "instance of", names of these types.

    You may stop it at any time: the same command continues, and repeats no request. The exit code is 4 if requests failed for
    good (see --retry-failed), and 5 if a server asked us to stop or did not answer for --patience seconds. Items for which
    nothing was found are counted by reason, and are not errors.

    \b
    suprank hierarchy scrape landmarks --contact you@example.org --limit 500
    suprank hierarchy scrape landmarks --contact you@example.org
    suprank hierarchy scrape landmarks --from-csv index=types.csv --type-column kind
    """
    with plain_errors():
        from suprank.hierarchy.project import Project

        opened = Project(project)
        if from_csv:
            numbers = (rate, limit, ancestors)
            if commons or wikidata or retry_failed or move_log or afresh or any(one is not None for one in numbers):
                raise typer.BadParameter("--from-csv reads files and makes no requests; leave out the options for requests.")
            _scrape_files(opened, from_csv, id_column, type_column)
            return
        if id_column or type_column:
            raise typer.BadParameter("--id-column and --type-column name columns of --from-csv; give that, too.")
        if contact is None:
            message = "give an e-mail address or a page by which you can be reached; Wikimedia turns away those who do not."
            raise typer.BadParameter(message, param_hint="--contact")
        from suprank.hierarchy.wikimedia import scraping
        from suprank.hierarchy.wikimedia.client import Client, RateLimiter

        recipe = opened.recipe.scrape
        rate_limiter = RateLimiter(recipe.rate if rate is None else rate)
        with (
            _explain_interrupt(),
            _progress_bar(quiet) as bar,
            Client(
                contact,
                rate_limiter,
                maxlag=recipe.maxlag,
                timeout=timeout,
                patience=patience,
                report_wait=bar.report_wait,
            ) as client,
        ):
            result = scraping.scrape(
                opened,
                client,
                commons=commons,
                wikidata=wikidata,
                limit=limit,
                retry_failed=retry_failed,
                move_log=move_log,
                ancestors=ancestors,
                afresh=afresh,
                progress=bar.advance,
            )
    _print_result(project, result)
    terminal.echo(f"requests made: {result.requests:,}" if result.requests else "no requests were needed")
    if result.failed:
        terminal.echo(f"failed for good: {result.failed:,}; repeat them with --retry-failed", err=True)
        raise typer.Exit(UNRESOLVED)


def _scrape_files(project: Project, given: list[str], id_column: str | None, type_column: str | None) -> None:
    from suprank.hierarchy.text import pluralize
    from suprank.hierarchy.type_files import types_from_files

    files = [_split_file(project, text) for text in given]
    found = types_from_files(project, files, id_column=id_column, type_column=type_column)
    _print_result(project.folder, found.outcome)
    if found.added:
        terminal.echo(f"added: {pluralize(found.added, 'item')}")
    if found.repeated:
        terminal.echo(f"repeated and counted once: {pluralize(found.repeated, 'row')}")


def _split_file(project: Project, text: str) -> tuple[str, Path]:
    split, equals, file = text.partition("=")
    if equals:
        if not split.strip() or not file:
            raise typer.BadParameter(f"{text!r} is not [SPLIT=]FILE, such as train=types.csv.", param_hint="--from-csv")
        return split.strip(), Path(file)
    with project.snapshot() as db:
        splits = [row[0] for row in db.execute("SELECT DISTINCT split FROM item ORDER BY split")]
    if len(splits) > 1:
        message = f"the project has the splits {', '.join(splits)}; name the one of {text}, such as {splits[0]}={text}."
        raise typer.BadParameter(message, param_hint="--from-csv")
    return splits[0] if splits else "all", Path(text)


def _print_result(folder: Path, result: ScrapeResult) -> None:
    from suprank.hierarchy.text import pluralize, reason_text

    same = "" if result.changed else "; nothing changed"
    terminal.echo(f"{folder}: {result.typed:,} of {result.items:,} items have a type, {result.types:,} different ones{same}")
    for reason, count in result.untyped.items():
        terminal.echo(f"  {pluralize(count, 'item')} without a type: {reason_text(reason)}")
    if result.several:
        terminal.echo(f"with several types: {pluralize(result.several, 'item')}; `suprank hierarchy clean` decides on these")
    if result.nameless:
        terminal.echo(f"without a name in the recipe's languages, called by their QID: {pluralize(result.nameless, 'type')}")


@contextmanager
def _explain_interrupt() -> Iterator[None]:
    """On Ctrl-C, say that the replies are saved."""
    try:
        yield
    except KeyboardInterrupt:
        terminal.echo("replies so far are saved; the same command continues from there", err=True)
        raise


class _ProgressBar:
    """Progress on stderr: what is being fetched, how much of it is done, and the reason while it waits."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), disable=quiet)
        self.phase, self.task = "", self.bar.add_task("", visible=False)

    def advance(self, phase: str, done: int, total: int) -> None:
        if phase != self.phase:
            self.phase = phase
            self.bar.start()
            self.bar.reset(self.task, description=_PHASES[phase], visible=True)
        self.bar.update(self.task, completed=done, total=total)

    def report_wait(self, reason: str) -> None:
        """Show the reason of a wait, or none once it is over: on a terminal as the bar's title, in a log as a line."""
        if self.bar.console.is_terminal:
            self.bar.update(self.task, description=terminal.escaped(reason or _PHASES.get(self.phase, "")))
        elif reason and not self.bar.disable:
            self.bar.console.print(terminal.escaped(reason), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _progress_bar(quiet: bool) -> Iterator[_ProgressBar]:
    bar = _ProgressBar(quiet)
    try:
        yield bar
    finally:
        if bar.phase:  # it starts with the first request, so that a refused command prints no empty line
            bar.bar.stop()
