"""suprank hierarchy scrape: what kind of thing every item is, by Wikimedia or by a file."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import UNRESOLVED, plain_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suprank.hierarchy.project import Project
    from suprank.hierarchy.wikimedia.outcome import Outcome

_PHASES = {"page": "pages", "move": "moved pages", "item": "items of Wikidata", "type": "names of types"}


def scrape(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="The project's folder.")],
    contact: Annotated[
        str | None,
        typer.Option(metavar="E-MAIL|URL", help="Of you, who run this, for Wikimedia. Required, but with --from-csv."),
    ] = None,
    commons: Annotated[str | None, typer.Option(metavar="URL", help="An api.php.", show_default="the recipe's")] = None,
    wikidata: Annotated[str | None, typer.Option(metavar="URL", help="An api.php.", show_default="the recipe's")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a minute, at most.", show_default="the recipe's")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N items, as a trial.", show_default="all")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Ask again for what failed.")] = False,
    move_log: Annotated[
        bool, typer.Option("--move-log", help="Ask where missing pages were moved to: one or two requests each.")
    ] = False,
    ancestors: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=20,
            metavar="STEPS",
            help="Of items with several types, ask for the classes above them, for `clean --several most-specific`.",
            show_default="the recipe's",
        ),
    ] = None,
    afresh: Annotated[bool, typer.Option("--afresh", help="Forget what was fetched before, and ask for all of it.")] = False,
    patience: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Of waiting in a row, then it gives up.")] = 1800.0,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="For a reply to begin, and go on.")] = 60.0,
    from_csv: Annotated[
        list[str] | None,
        typer.Option(metavar="[SPLIT=]FILE", help="Types from a table instead, a row a type; repeatable. No network."),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of --from-csv: the item.", show_default="the recipe's")
    ] = None,
    type_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of --from-csv: its type.", show_default="the recipe's")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Look up what kind of thing every item is: Commons category, Wikidata item, "instance of", names of these types.

    Stop it whenever you like, or let it crash: the same command goes on from there, and asks for nothing twice. It ends with
    exit code 4 where requests failed for good (see --retry-failed), and with 5 where a server told us to stop or did not
    answer for --patience seconds. Items for which nothing was found are counted by reason, and are no error.

    \b
    suprank hierarchy scrape landmarks --contact you@example.org --limit 500
    suprank hierarchy scrape landmarks --contact you@example.org
    suprank hierarchy scrape landmarks --from-csv index=types.csv --type-column kind
    """
    with plain_errors():
        from suprank.hierarchy.project import Project

        opened = Project(project)
        if from_csv:
            if commons or wikidata or rate is not None or limit is not None or retry_failed or move_log or afresh or ancestors:
                raise typer.BadParameter("--from-csv reads files whole, and asks nobody; leave options of the network out.")
            _from_files(opened, from_csv, id_column, type_column)
            return
        if id_column or type_column:
            raise typer.BadParameter("--id-column and --type-column are of --from-csv; name a file.")
        if contact is None:
            said = "say by which e-mail address or page you can be reached; Wikimedia turns away those who do not."
            raise typer.BadParameter(said, param_hint="--contact")
        from suprank.hierarchy.wikimedia.client import Client
        from suprank.hierarchy.wikimedia.rate_limit import Pace
        from suprank.hierarchy.wikimedia.scraping import scrape as scraped

        recipe = opened.recipe.scrape
        pace = Pace(recipe.rate if rate is None else rate)
        with (
            _kept(),
            _bar(quiet) as bar,
            Client(contact, pace, maxlag=recipe.maxlag, timeout=timeout, patience=patience, say=bar.say) as client,
        ):
            outcome = scraped(
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
    _tell(project, outcome)
    terminal.echo(f"requests that were made: {outcome.requests:,}" if outcome.requests else "nothing had to be asked for")
    if outcome.failed:
        terminal.echo(f"failed for good: {outcome.failed:,}; ask again with --retry-failed", err=True)
        raise typer.Exit(UNRESOLVED)


def _from_files(project: Project, given: list[str], id_column: str | None, type_column: str | None) -> None:
    from suprank.hierarchy.text import amount
    from suprank.hierarchy.typed_files import types_from_files

    files = [_pair(project, one) for one in given]
    found = types_from_files(project, files, id_column=id_column, type_column=type_column)
    _tell(project.folder, found.outcome)
    if found.added:
        terminal.echo(f"added: {amount(found.added, 'item')}")
    if found.repeated:
        terminal.echo(f"said twice, and counted once: {amount(found.repeated, 'row')}")


def _pair(project: Project, text: str) -> tuple[str, Path]:
    split, equals, file = text.partition("=")
    if equals:
        if not split.strip() or not file:
            raise typer.BadParameter(f"{text!r} is not [SPLIT=]FILE, such as train=types.csv.", param_hint="--from-csv")
        return split.strip(), Path(file)
    with project.reading() as db:
        splits = [row[0] for row in db.execute("SELECT DISTINCT split FROM item ORDER BY split")]
    if len(splits) > 1:
        said = f"the project has the splits {', '.join(splits)}; say of which {text} is: {splits[0]}={text}."
        raise typer.BadParameter(said, param_hint="--from-csv")
    return splits[0] if splits else "all", Path(text)


def _tell(folder: Path, outcome: Outcome) -> None:
    from suprank.hierarchy.reasons import in_words
    from suprank.hierarchy.text import amount

    same = "" if outcome.changed else "; nothing changed"
    terminal.echo(f"{folder}: {outcome.typed:,} of {outcome.items:,} items have a type, {outcome.types:,} different ones{same}")
    if outcome.untyped:
        for reason, count in outcome.untyped.items():
            terminal.echo(f"  {amount(count, 'item')} without a type: {in_words(reason)}")
    if outcome.several:
        terminal.echo(f"of several types: {amount(outcome.several, 'item')}; `suprank hierarchy clean` has the rule")
    if outcome.nameless:
        terminal.echo(f"without a name in the recipe's languages, called by their QID: {amount(outcome.nameless, 'type')}")


@contextmanager
def _kept() -> Iterator[None]:
    """Says what became of the work where somebody stops it."""
    try:
        yield
    except KeyboardInterrupt:
        terminal.echo("what was fetched is kept; the same command goes on from there", err=True)
        raise


class _Bar:
    """Progress on stderr: what is being asked for, how far it is, and, while it waits, why."""

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

    def say(self, why: str) -> None:
        """Why it waits, or nothing once it goes on. In a log each wait is a line; on a terminal it takes the bar's name."""
        if self.bar.console.is_terminal:
            self.bar.update(self.task, description=terminal.escaped(why or _PHASES.get(self.phase, "")))
        elif why and not self.bar.disable:
            self.bar.console.print(terminal.escaped(why), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _bar(quiet: bool) -> Iterator[_Bar]:
    bar = _Bar(quiet)
    try:
        yield bar
    finally:
        if bar.phase:  # begun by the first request: what is refused at the door leaves not even an empty line
            bar.bar.stop()
