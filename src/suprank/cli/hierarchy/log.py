"""suprank hierarchy log: what was done on the branches of a project."""

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

DECIDED = ("kind", "subject", "first", "second", "chosen", "reason", "who")


def log(
    project: ProjectFolder,
    branch: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this branch.", show_default="all")] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="A line of JSON each, with the rows before and after.")] = False,
) -> None:
    """The log of a project, oldest first: who did what, when, and what it undid. It only ever grows.

    Replayed in order, the `changes` of a branch's lines (--jsonl) give its groups and the places of its labels. Decisions of
    the settling are with the event that carried them out.

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
                why = next((f"  because: {one['reason']}" for one in event["decisions"] if one["reason"]), "")
                said = f"{event['who']}: {event['said']}{undoes}{why}"
                terminal.echo(f"{event['seq']:>6}  {event['at']}  {event['branch']}  {said}")


def _events(project: Project, branch: str | None) -> Iterator[dict[str, Any]]:
    """One by one: the first event of a branch may hold all its labels."""
    from suprank.hierarchy.tree import chosen_branch

    wanted = None if branch is None else chosen_branch(project, branch)
    with project.reading() as db:
        rows = db.execute(
            "SELECT seq, at, branch.name AS branch, who, act, said, changes_json, undoes FROM event "
            "JOIN branch ON branch.id = event.branch WHERE ? IS NULL OR branch.name = ? ORDER BY seq",
            (wanted, wanted),
        )
        for row in rows:
            event = dict(row)
            event["changes"] = json.loads(event.pop("changes_json"))
            decided = db.execute(f"SELECT {', '.join(DECIDED)} FROM decision WHERE event = ? ORDER BY id", (event["seq"],))
            event["decisions"] = [dict(one) for one in decided]
            yield event
