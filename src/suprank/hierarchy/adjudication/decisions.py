"""The decisions that were made on the final branch: rows that stay, of which those that were undone do not count."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from suprank.hierarchy.text import key_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from suprank.hierarchy.agreement.disagreements import Kind
    from suprank.hierarchy.review.changes import GroupRow


@dataclass(frozen=True)
class Decision:
    """Who chose what, and why."""

    chosen: str
    reason: str
    who: str
    at: str


def decisions_on(db: sqlite3.Connection, branch: int) -> dict[tuple[Kind, str], Decision]:
    """The last decision on each subject, of those that are not undone."""
    undone, origin = set[int](), dict[int, int]()
    rows = db.execute("SELECT seq, act, undoes FROM event WHERE branch = ? AND undoes IS NOT NULL ORDER BY seq", (branch,))
    for seq, act, undoes in rows:
        origin[seq] = origin.get(undoes, undoes)  # what an undo of a redo takes back is what was done first
        (undone.add if act == "undo" else undone.discard)(origin[seq])
    found = db.execute("SELECT kind, subject, chosen, reason, who, at, event FROM decision ORDER BY id").fetchall()
    return {(row[0], row[1]): Decision(*row[2:6]) for row in found if row[6] not in undone}


def with_decisions(rows: Mapping[int, GroupRow], decisions: Mapping[tuple[Kind, str], Decision]) -> dict[int, GroupRow]:
    """Groups as they are made again after they had gone: with the names and parents that were decided."""
    found = dict(rows)
    named = {(row.level, key_of(row.name)): one for one, row in rows.items()}
    for (kind, subject), decision in decisions.items():
        if kind == "label" or (group := int(subject.split("|")[0])) not in found:
            continue
        row = found[group]
        if kind == "name":
            found[group] = replace(row, name=decision.chosen)
        else:
            found[group] = replace(row, parent=named.get((row.level + 1, key_of(decision.chosen))))
    return found
