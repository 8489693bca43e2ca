"""`suprank hierarchy agree`: measure the agreement of two annotators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import plain_errors
from suprank.cli.hierarchy.new import ProjectFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suprank.hierarchy.agreement import Agreement, Disagreement
    from suprank.hierarchy.agreement.comparison import CategoryAgreement, PairAgreement
    from suprank.hierarchy.project import Project

MAX_GROUPS = 20
COLUMNS = ("kind", "subject", "level", "about", "items", "first", "second", "first_note", "second_note")


def agree(
    project: ProjectFolder,
    branches: Annotated[
        list[str] | None, typer.Argument(metavar="A B", help="Two branches.", show_default="those of the two annotators")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the statistics as JSON; undefined ones are null.")] = False,
    list_file: Annotated[
        Path | None, typer.Option("--list", metavar="FILE.csv", help="Write all disagreements to this file, heaviest first.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print the table of groups.")] = False,
) -> None:
    """Measure how far the branches of two annotators agree, first ignoring the names of groups, then aligning them.

    The statistics are over the labels that both have put into a group; those that cannot be computed (one category, nothing
    reviewed by both) are called undefined. To decide what they differ on, review a third branch that starts from theirs.

    \b
    suprank hierarchy agree landmarks
    suprank hierarchy agree landmarks anna ben --list disagreements.csv
    suprank hierarchy review landmarks --annotator final --from anna --against ben
    """
    with plain_errors():
        from suprank.hierarchy.agreement import compare_branches
        from suprank.hierarchy.project import Project

        opened = Project(project)
        if list_file is not None:
            terminal.check_writable(list_file)
        comparison = compare_branches(opened, *_two_branches(opened, branches or []))
        found = comparison.agreement()
        if list_file is not None:
            _write_disagreements(list_file, comparison.disagreements, opened.recipe.levels)
    if as_json:
        terminal.echo(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
        return
    for line in _lines(found, quiet):
        terminal.echo(line)
    if list_file is not None:
        terminal.echo(f"{list_file}: {len(comparison.disagreements):,} disagreements")


def _two_branches(project: Project, given: list[str]) -> tuple[str, str]:
    """The branches that are given, or those of the two annotators."""
    with project.snapshot() as db:
        branches = [row[0] for row in db.execute("SELECT name FROM branch WHERE origin IS NULL ORDER BY id")]
    if len(given) == 2:
        return given[0], given[1]
    known = f"the annotators' branches are {', '.join(branches)}" if branches else "nobody has begun a review yet"
    if given:
        raise ValueError(f"{len(given)} branches are named; name two, or none. Here, {known}.")
    if len(branches) < 2:
        start = f"`suprank hierarchy review {project.folder} --annotator NAME` starts a branch"
        raise ValueError(f"agreement is between two branches, and {known}; {start}.")
    if len(branches) > 2:
        raise ValueError(f"agreement is between two branches, and {known}; name two of them.")
    return branches[0], branches[1]


def _lines(found: Agreement, quiet: bool) -> Iterator[str]:
    from suprank.hierarchy.text import pluralize

    first, second = found.first, found.second
    yield f"{first} and {second}: both have put {found.placed:,} of {found.labels:,} labels into a group"
    alone = f"{found.excluded_by_first:,} by {first} alone, {found.excluded_by_second:,} by {second} alone"
    unseen = f"; unknown to one of them: {found.unknown:,}" if found.unknown else ""
    yield f"excluded: {found.excluded:,} by both, {alone}{unseen}"
    unfinished = "" if found.done == found.placed else "; the review is not finished"
    yield f"{found.done:,} of {found.placed:,} labels are in groups marked done by both{unfinished}"
    yield ""
    yield "names of groups ignored"
    yield f"  adjusted Rand index          {found.rand}"
    yield f"  adjusted mutual information  {found.information}"
    yield f"  pairs of labels together     {_pairs(found.pairs, first, second)}"
    yield f"  the same by items            {_pairs(found.pairs_by_items, first, second)}"
    yield ""
    yield "names of groups aligned"
    rows = {"groups": found.aligned, "groups, by name alone": found.by_name, "in or excluded": found.included}
    rows |= {f"{level}, of the groups": one for level, one in found.parents.items()}
    width = max(map(len, rows))
    yield f"  {'':{width}}  {'labels':>8}  {'agreed':>7}  {'kappa':>9}  {'by items':>9}"
    for name, one in rows.items():
        yield f"  {name:{width}}  {_row(one)}"
    if not quiet:
        yield from _groups(found)
    kinds = ", ".join(pluralize(number, kind) for kind, number in found.disagreements.items())
    yield ""
    yield f"{sum(found.disagreements.values()):,} disagreements: {kinds}"


def _pairs(found: PairAgreement, first: str, second: str) -> str:
    scores = [f"precision {found.precision}", f"recall {found.recall}", f"F1 {found.f1}"]
    return f"{', '.join(scores)}  ({first} against {second})"


def _row(one: CategoryAgreement) -> str:
    percent = "undefined" if one.percent.value is None else f"{one.percent.value:.1%}"
    kappas = ["undefined" if figure.value is None else f"{figure.value:.3f}" for figure in (one.kappa, one.kappa_by_items)]
    why = one.kappa.undefined or one.kappa_by_items.undefined
    return f"{one.labels:>8,}  {percent:>7}  {kappas[0]:>9}  {kappas[1]:>9}" + (f"  ({why})" if why else "")


def _groups(found: Agreement) -> Iterator[str]:
    """The table of groups that differ, those that differ most first."""
    differing = [one for one in found.groups if one.only_first or one.only_second]
    if not differing:
        return
    heads = (found.first, found.second, "common", f"only {found.first}", f"only {found.second}", "items apart")
    rows = [
        (one.first or "–", one.second or "–", *(f"{n:,}" for n in (one.common, one.only_first, one.only_second, one.apart)))
        for one in differing[:MAX_GROUPS]
    ]
    widths = [max(len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]
    yield ""
    yield "groups that differ" + (f", {MAX_GROUPS} of {len(differing):,}" if len(differing) > MAX_GROUPS else "")
    for row in (heads, *rows):
        cells = [f"{cell:{'<' if place < 2 else '>'}{widths[place]}}" for place, cell in enumerate(row)]
        yield f"  {'  '.join(cells)}".rstrip()


def _write_disagreements(file: Path, disagreements: list[Disagreement], levels: tuple[str, ...]) -> None:
    from suprank.files.atomic import write_atomically
    from suprank.files.spreadsheets import csv_bytes

    rows = []
    for one in disagreements:
        level = "label" if one.level == 0 else levels[one.level]
        rows.append((one.kind, one.subject, level, one.about, one.weight, *one.descriptions, one.first.note, one.second.note))
    write_atomically(file, csv_bytes(COLUMNS, rows))
