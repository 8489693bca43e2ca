"""`suprank hierarchy status`: show the progress of a project, and the log of its branches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import plain_errors
from suprank.cli.hierarchy.new import ProjectFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suprank.hierarchy.project import Project


def status(
    project: ProjectFolder,
    log: Annotated[bool, typer.Option("--log", help="List who changed what on the branches, oldest first.")] = False,
    branch: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --log: only this branch.", show_default="all")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with all settings; with --log a line for each event.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only problems: stale steps and damage.")] = False,
) -> None:
    """Show the progress of a project: its steps and which are stale, counts, and how far each branch is reviewed.

    With --log, it lists who did what and when, and what was undone. Replaying the `changes` of a branch's lines (--json) in
    order gives its groups and the places of its labels. The exit code is 1 if the file is damaged.

    \b
    suprank hierarchy status landmarks
    suprank hierarchy status landmarks --log --branch final
    """
    if branch is not None and not log:
        raise typer.BadParameter("--branch belongs to --log; give both.", param_hint="--branch")
    with plain_errors():
        from suprank.hierarchy.project import Project, project_status

        opened = Project(project)
        if log:
            for event in _events(opened, branch):
                terminal.echo(json.dumps(event, ensure_ascii=False) if as_json else _sentence(event))
            return
        summary = project_status(opened)
    if as_json:
        terminal.echo(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        for line in _lines(summary, quiet):
            terminal.echo(line)
    raise typer.Exit(1 if summary["damage"] else 0)


def _sentence(event: dict[str, Any]) -> str:
    undoes = f"  (event {event['undoes']})" if event["undoes"] is not None else ""
    return f"{event['seq']:>6}  {event['at']}  {event['branch']}  {event['who']}: {event['said']}{undoes}"


def _events(project: Project, branch: str | None) -> Iterator[dict[str, Any]]:
    """Yield events one by one, because the first event of a branch may hold all its labels."""
    from suprank.hierarchy.tree import choose_branch

    wanted = None if branch is None else choose_branch(project, branch)
    with project.snapshot() as db:
        rows = db.execute(
            "SELECT seq, at, branch.name AS branch, who, act, said, changes_json, undoes FROM event "
            "JOIN branch ON branch.id = event.branch WHERE ? IS NULL OR branch.name = ? ORDER BY seq",
            (wanted, wanted),
        )
        for row in rows:
            event = dict(row)
            event["changes"] = json.loads(event.pop("changes_json"))
            yield event


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
