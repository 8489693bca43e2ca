"""suprank hierarchy status: where a project stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import plain_errors
from suprank.cli.hierarchy.new import ProjectFolder


def status(
    project: ProjectFolder,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, with all settings.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only what is wrong: stale steps, damage.")] = False,
) -> None:
    """Where a project stands: its steps and whether they are stale, counts, how far each branch is reviewed.

    The exit code is 1 where the file is damaged.

    \b
    suprank hierarchy status landmarks
    """
    with plain_errors():
        from suprank.hierarchy.overview import overview
        from suprank.hierarchy.project import Project

        found = overview(Project(project))
    if as_json:
        terminal.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        for line in _lines(found, quiet):
            terminal.echo(line)
    raise typer.Exit(1 if found["damage"] else 0)


def _lines(found: dict[str, Any], quiet: bool) -> Iterator[str]:
    from suprank.hierarchy.text import amount

    counts = found["counts"]
    if not quiet:
        yield f"{found['project']}: recipe {found['recipe']}, levels {', '.join(found['levels'])}"
    for step in found["steps"]:
        if step["stale"] or not quiet:
            stale = "  STALE: a step before it ran again, with another outcome" if step["stale"] else ""
            yield f"  {step['name']}  {step['ended']}  {_settings(step['settings'])}{stale}"
    if not quiet:
        if counts["items"]:
            splits = ", ".join(f"{count:,} {split}" for split, count in counts["splits"].items())
            yield f"{amount(counts['items'], 'item')} ({splits}), {counts['labeled']:,} with a label"
        removed = f", {counts['removed_labels']:,} removed" if counts["removed_labels"] else ""
        things = (amount(counts[name], name.removesuffix("s")) for name in ("clusters", "exports"))
        yield f"{amount(counts['labels'], 'label')}{removed}; {'; '.join(things)}"
        for branch in found["branches"]:
            yield (
                f"branch {branch['name']}: {branch['done']:,} of {branch['groups']:,} groups done, {branch['reviewed']:,} of "
                f"{branch['labels']:,} labels reviewed, {branch['excluded']:,} excluded, {amount(branch['acts'], 'act')}"
            )
    yield from (f"DAMAGED: {line}" for line in found["damage"])
    if not found["damage"] and not quiet:
        yield "the file is whole"


def _settings(settings: dict[str, Any]) -> str:
    """The settings that are single values; lists of rules are in --json."""
    return " ".join(f"{key}={value}" for key, value in settings.items() if isinstance(value, str | int | float))
