"""suprank hierarchy clean: of the types that were found, those that are labels."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import plain_errors
from suprank.cli.hierarchy.new import ProjectFolder, Quiet


class Several(StrEnum):
    """Rules for items of several types."""

    SINGLE_ONLY = "single-only"
    FIRST = "first"
    MOST_SPECIFIC = "most-specific"
    MOST_FREQUENT = "most-frequent"


class Ended(StrEnum):
    """What becomes of types with an end date."""

    KEEP = "keep"
    DROP = "drop"


def clean(
    project: ProjectFolder,
    several: Annotated[
        Several | None,
        typer.Option(
            help="An item of several types: is left out; or has the first, the most specific (P279), the most frequent.",
            show_default="the recipe's",
        ),
    ] = None,
    ended: Annotated[Ended | None, typer.Option(help="Types with an end date.", show_default="the recipe's")] = None,
    least_items: Annotated[
        int | None, typer.Option(min=1, help="Labels of fewer are left out.", show_default="the recipe's")
    ] = None,
    listed: Annotated[
        Path | None, typer.Option("--list", metavar="FILE.csv", help="Write every removal: split, id, types, reason.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Turn types into labels, by rules of the recipe; every item ends with one label, or with the reason why it has none.

    Told besides: what each rule for items of several types would keep, and items of one source with different labels. Run
    again with other rules, labels are replaced; those that stay keep their place in a review.

    \b
    suprank hierarchy clean landmarks --list removed.csv
    suprank hierarchy clean landmarks --several most-specific --least-items 3
    """
    with plain_errors():
        from suprank.hierarchy.cleaning import clean as cleaned_by
        from suprank.hierarchy.cleaning import write_list
        from suprank.hierarchy.project import Project

        if listed is not None:
            terminal.check_writable(listed)
        opened = Project(project)
        given = {"several": several and several.value, "ended": ended and ended.value, "least_items": least_items}
        rules = opened.recipe.clean.model_copy(update={key: value for key, value in given.items() if value is not None})
        with terminal.progress("cleaning", quiet) as progress:
            done = cleaned_by(opened, rules, progress=progress)
        if listed is not None:
            write_list(listed, done.removals)
    if as_json:
        terminal.echo(json.dumps(done.to_dict(), indent=2, ensure_ascii=False))
        return
    for line in done.sentences():
        terminal.echo(line)
    if listed is not None:
        terminal.echo(f"{listed}: {len(done.removals):,} removals")
