"""`suprank hierarchy types`: look up the types of items, or read them from tables, and turn them into labels."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import UNRESOLVED, plain_errors
from suprank.cli.hierarchy.new import ProjectFolder, Quiet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suprank.hierarchy.item_types import TypesResult
    from suprank.hierarchy.project import Project
    from suprank.hierarchy.recipe import Recipe

_PHASES = {"page": "pages", "move": "moved pages", "item": "items of Wikidata", "type": "names of types"}
_MAX_FAILURES = 3


def types(
    project: ProjectFolder,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys of the recipe's tables items, scrape and clean, for this run."),
    ] = None,
    contact: Annotated[
        str | None, typer.Option(metavar="E-MAIL|URL", help="Look types up at Wikimedia, which can reach you here.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Look up only the first N items.", show_default="all")] = None,
    move_log: Annotated[
        bool, typer.Option("--move-log", help="Ask where missing pages were moved to: one request each.")
    ] = False,
    afresh: Annotated[bool, typer.Option("--afresh", help="Forget the replies so far, and ask for everything again.")] = False,
    from_csv: Annotated[
        list[str] | None,
        typer.Option(metavar="[SPLIT=]FILE", help="Read types from a table instead, one per row; repeatable."),
    ] = None,
    list_file: Annotated[
        Path | None, typer.Option("--list", metavar="FILE.csv", help="Write what was left out, and why, to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Find the types of items, and turn them into labels: each item gets one label, or a reason why it has none.

    With --contact, types are looked up: Commons category, Wikidata item, "instance of", names of these types. You may stop it
    at any time: the same command continues, and repeats no request. The exit code is 4 if requests failed for good, and 5 if a
    server asked us to stop or did not answer for scrape.patience seconds. Without --contact and --from-csv, the types remain,
    and only the rules for labels are applied again; those that remain keep their place in a review.

    \b
    suprank hierarchy types landmarks --contact you@example.org --limit 500
    suprank hierarchy types landmarks --contact you@example.org
    suprank hierarchy types landmarks --from-csv index=types.csv items.type=kind
    suprank hierarchy types landmarks clean.several=most-specific clean.least_items=3 --list removed.csv
    """
    with plain_errors():
        if (limit or move_log or afresh) and not contact:
            raise typer.BadParameter("--limit, --move-log and --afresh are for types that are looked up; give --contact, too.")
        if contact and from_csv:
            raise typer.BadParameter("--contact looks types up, and --from-csv reads them from tables; give one of the two.")
        from suprank.hierarchy.cleaning import clean_labels, write_removals
        from suprank.hierarchy.item_types import types_from_files
        from suprank.hierarchy.project import Project
        from suprank.hierarchy.recipe import with_values

        if list_file is not None:
            terminal.check_writable(list_file)
        opened = Project(project)
        recipe = with_values(opened.recipe, values or (), ("items", "scrape", "clean"))
        found = None
        if from_csv:
            found = types_from_files(opened, [_split_file(opened, text) for text in from_csv], recipe.items)
        elif contact:
            found = _look_up(opened, contact, recipe, limit, quiet, move_log=move_log, afresh=afresh)
        with terminal.progress("cleaning", quiet) as progress:
            labels = clean_labels(opened, recipe.clean, progress=progress)
        if list_file is not None:
            write_removals(list_file, labels.removals)
    if as_json:
        result = {"types": None if found is None else found._asdict(), "labels": labels.to_dict()}
        terminal.echo(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        for line in (*(() if found is None else _sentences(project, found)), *labels.sentences()):
            terminal.echo(line)
        if list_file is not None:
            terminal.echo(f"{list_file}: {len(labels.removals):,} removals")
    if found is not None and found.failures:
        for key, error in list(found.failures.items())[:_MAX_FAILURES]:
            terminal.echo(f"failed: {key}: {error}", err=True)
        terminal.echo(f"failed for good: {len(found.failures):,}; the same command asks for these again", err=True)
        raise typer.Exit(UNRESOLVED)


def _look_up(
    project: Project, contact: str, recipe: Recipe, limit: int | None, quiet: bool, *, move_log: bool, afresh: bool
) -> TypesResult:
    from suprank.hierarchy.wikimedia.lookup import look_up_types

    def report_wait(reason: str) -> None:
        if not quiet:
            terminal.echo(reason, err=True)

    with _explain_interrupt(), terminal.ProgressBars(quiet) as bars:
        return look_up_types(
            project,
            contact,
            recipe.scrape,
            limit=limit,
            move_log=move_log,
            afresh=afresh,
            progress=lambda phase, done, total: bars(_PHASES[phase], done, total),
            report_wait=report_wait,
        )


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


def _sentences(folder: Path, found: TypesResult) -> Iterator[str]:
    from suprank.hierarchy.text import pluralize, reason_text

    same = "" if found.changed else "; nothing changed"
    yield f"{folder}: {found.typed:,} of {found.items:,} items have a type, {found.types:,} different ones{same}"
    for reason, count in found.untyped.items():
        yield f"  {pluralize(count, 'item')} without a type: {reason_text(reason)}"
    if found.several:
        yield f"with several types: {pluralize(found.several, 'item')}"
    if found.nameless:
        yield f"without a name in the recipe's languages, called by their QID: {pluralize(found.nameless, 'type')}"
    if found.added:
        yield f"added: {pluralize(found.added, 'item')}"
    if found.repeated:
        yield f"repeated and counted once: {pluralize(found.repeated, 'row')}"
    if found.requests is not None:
        yield f"requests made: {found.requests:,}"


@contextmanager
def _explain_interrupt() -> Iterator[None]:
    """On Ctrl-C, say that the replies are saved."""
    try:
        yield
    except KeyboardInterrupt:
        terminal.echo("replies so far are saved; the same command continues from there", err=True)
        raise
