"""`suprank hierarchy status`: show the progress of a project."""

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
    as_json: Annotated[bool, typer.Option("--json", help="Print the status as JSON, with all settings.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only problems: stale steps and damage.")] = False,
) -> None:
    """Show the progress of a project: its steps and which are stale, counts, and how far each branch is reviewed.

    The exit code is 1 if the file is damaged.

    \b
    suprank hierarchy status landmarks
    """
    with plain_errors():
        from suprank.hierarchy.project import Project, project_status

        summary = project_status(Project(project))
    if as_json:
        terminal.echo(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        for line in _lines(summary, quiet):
            terminal.echo(line)
    raise typer.Exit(1 if summary["damage"] else 0)


def _lines(summary: dict[str, Any], quiet: bool) -> Iterator[str]:
    from suprank.hierarchy.text import pluralize

    counts = summary["counts"]
    if not quiet:
        yield f"{summary['project']}: recipe {summary['recipe']}, levels {', '.join(summary['levels'])}"
    for step in summary["steps"]:
        if step["stale"] or not quiet:
            stale = "  STALE: an earlier step ran again, with another result" if step["stale"] else ""
            yield f"  {step['name']}  {step['ended']}  {_settings(step['settings'])}{stale}"
    if not quiet:
        if counts["items"]:
            splits = ", ".join(f"{count:,} {split}" for split, count in counts["splits"].items())
            yield f"{pluralize(counts['items'], 'item')} ({splits}), {counts['labeled']:,} with a label"
        removed = f", {counts['removed_labels']:,} removed" if counts["removed_labels"] else ""
        others = (pluralize(counts[name], name.removesuffix("s")) for name in ("clusters", "exports"))
        yield f"{pluralize(counts['labels'], 'label')}{removed}; {'; '.join(others)}"
        for branch in summary["branches"]:
            yield (
                f"branch {branch['name']}: {branch['done']:,} of {branch['groups']:,} groups done, {branch['reviewed']:,} of "
                f"{branch['labels']:,} labels reviewed, {branch['excluded']:,} excluded, {pluralize(branch['acts'], 'change')}"
            )
    yield from (f"DAMAGED: {line}" for line in summary["damage"])
    if not summary["damage"] and not quiet:
        yield "the file is intact"


def _settings(settings: dict[str, Any]) -> str:
    """The settings that are single values; --json has the others, too."""
    return " ".join(f"{key}={value}" for key, value in settings.items() if isinstance(value, str | int | float))
