"""`suprank hierarchy log`: list the changes to the branches of a project."""

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


def log(
    project: ProjectFolder,
    branch: Annotated[str | None, typer.Option(metavar="NAME", help="List only this branch.", show_default="all")] = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Print each event as a line of JSON, with its rows before and after.")
    ] = False,
) -> None:
    """List the log of a project, oldest first: who did what and when, and what was undone. The log only grows.

    Replaying the `changes` of a branch's lines (--jsonl) in order gives its groups and the places of its labels.

    \b
    suprank hierarchy log landmarks --branch final
    suprank hierarchy log landmarks --jsonl > log.jsonl
    """
    with plain_errors():
        from suprank.hierarchy.project import Project

        for event in _events(Project(project), branch):
            if jsonl:
                terminal.echo(json.dumps(event, ensure_ascii=False))
            else:
                undoes = f"  (event {event['undoes']})" if event["undoes"] is not None else ""
                sentence = f"{event['who']}: {event['said']}{undoes}"
                terminal.echo(f"{event['seq']:>6}  {event['at']}  {event['branch']}  {sentence}")


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
