"""`suprank hierarchy clean`: turn the types of items into labels."""

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
    """Rules for items with several types."""

    SINGLE_ONLY = "single-only"
    FIRST = "first"
    MOST_SPECIFIC = "most-specific"
    MOST_FREQUENT = "most-frequent"


class Ended(StrEnum):
    """What to do with types that have an end date."""

    KEEP = "keep"
    DROP = "drop"


def clean(
    project: ProjectFolder,
    several: Annotated[
        Several | None,
        typer.Option(
            help="Rule for items with several types: leave them out, or take the first, the most specific (P279) or the most "
            "frequent type.",
            show_default="the recipe's",
        ),
    ] = None,
    ended: Annotated[
        Ended | None, typer.Option(help="Keep or drop types that have an end date.", show_default="the recipe's")
    ] = None,
    least_items: Annotated[
        int | None, typer.Option(min=1, help="Leave out labels with fewer items.", show_default="the recipe's")
    ] = None,
    list_file: Annotated[
        Path | None,
        typer.Option("--list", metavar="FILE.csv", help="Write every removal to this file: split, id, types, reason."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Turn types into labels by the rules of the recipe: every item gets one label, or a reason why it has none.

    The output also says what each rule for items with several types would keep, and which items share a source but not a label.
    Running it again with other rules replaces the labels; those that remain keep their place in a review.

    \b
    suprank hierarchy clean landmarks --list removed.csv
    suprank hierarchy clean landmarks --several most-specific --least-items 3
    """
    with plain_errors():
        from suprank.hierarchy.cleaning import clean_labels, write_removals
        from suprank.hierarchy.project import Project

        if list_file is not None:
            terminal.check_writable(list_file)
        opened = Project(project)
        given = {"several": several and several.value, "ended": ended and ended.value, "least_items": least_items}
        rules = opened.recipe.clean.model_copy(update={key: value for key, value in given.items() if value is not None})
        with terminal.progress("cleaning", quiet) as progress:
            result = clean_labels(opened, rules, progress=progress)
        if list_file is not None:
            write_removals(list_file, result.removals)
    if as_json:
        terminal.echo(json.dumps(result.to_dict(), indent=2, ensure_ascii=False))
        return
    for line in result.sentences():
        terminal.echo(line)
    if list_file is not None:
        terminal.echo(f"{list_file}: {len(result.removals):,} removals")
