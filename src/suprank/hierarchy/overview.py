"""Where a project stands: its steps, what they left, how far each branch is reviewed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3

    from suprank.hierarchy.project import Project

_BRANCHES = """
SELECT name, kind, clustering,
  (SELECT count(*) FROM "group" WHERE branch = b.id) AS groups,
  (SELECT count(*) FROM "group" WHERE branch = b.id AND state = 'done') AS done,
  (SELECT count(*) FROM member WHERE branch = b.id) AS labels,
  (SELECT count(*) FROM member LEFT JOIN "group" g ON g.branch = b.id AND g.id = member."group"
     WHERE member.branch = b.id AND (member."group" IS NULL OR g.state = 'done')) AS reviewed,
  (SELECT count(*) FROM member WHERE branch = b.id AND "group" IS NULL) AS excluded,
  (SELECT count(*) FROM event WHERE branch = b.id) AS acts,
  (SELECT max(at) FROM event WHERE branch = b.id) AS last
FROM branch b ORDER BY kind = 'final', id
"""


def overview(project: Project) -> dict[str, Any]:
    """Steps with settings and whether they are stale, counts, branches with progress, and what is wrong with the file.

    A label counts as reviewed where its group is marked done, or where it is excluded.
    """
    steps = [{key: value for key, value in asdict(step).items() if key != "inputs"} for step in project.steps().values()]
    with project.reading() as db:
        items = {"all": _one(db, "SELECT count(*) FROM item"), "splits": dict(_pairs(db, "SELECT split, count(*) FROM item"))}
        labels = dict(_pairs(db, "SELECT state, count(*) FROM label"))
        branches = [dict(row) for row in db.execute(_BRANCHES)]
        counts = {
            "items": items["all"],
            "splits": items["splits"],
            "labeled": _one(db, "SELECT count(*) FROM item_label WHERE label IS NOT NULL"),
            "reasons": dict(_pairs(db, "SELECT reason, count(*) FROM item_label WHERE reason IS NOT NULL")),
            "labels": labels.get("active", 0),
            "removed_labels": labels.get("removed", 0),
            "embeddings": _one(db, "SELECT count(*) FROM embedding"),
            "clusterings": _one(db, "SELECT count(*) FROM clustering"),
            "clusters": _one(db, "SELECT count(*) FROM cluster WHERE clustering = (SELECT max(id) FROM clustering)"),
            "exports": _one(db, "SELECT count(*) FROM export"),
        }
    return {
        "project": str(project.folder),
        "recipe": project.recipe.name,
        "levels": list(project.recipe.levels),
        "steps": steps,
        "counts": counts,
        "branches": branches,
        "damage": project.check(),
    }


def _one(db: sqlite3.Connection, query: str) -> int:
    return int(db.execute(query).fetchone()[0])


def _pairs(db: sqlite3.Connection, query: str) -> list[tuple[str, int]]:
    return [(row[0], row[1]) for row in db.execute(f"{query} GROUP BY 1 ORDER BY 2 DESC, 1")]
