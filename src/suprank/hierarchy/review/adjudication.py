"""Start a branch from one annotator's, with the labels that another placed differently marked as doubtful."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from suprank.hierarchy.agreement import Comparison
from suprank.hierarchy.review.branch import create_branch
from suprank.hierarchy.review.state import BranchState, Changes, GroupRow
from suprank.hierarchy.text import pluralize
from suprank.hierarchy.tree import hierarchy_from_db

if TYPE_CHECKING:
    import sqlite3


def start_from_two(db: sqlite3.Connection, name: str, source: str, against: str, levels: tuple[str, ...]) -> int:
    """Create the branch `name` and return its id: it has the groups of `source`, and those that differ in `against` are open.

    A label that only `against` has in a group goes there, so that every doubtful label is in a group: whoever marks that group
    as done has decided. What `against` says about the name or the parent of a group becomes a note.
    """
    if len({name, source, against}) < 3:
        raise ValueError(f"{name!r} cannot start from {source!r} against {against!r}; name three different branches.")
    comparison = Comparison(hierarchy_from_db(db, source, levels), hierarchy_from_db(db, against, levels))
    number, clustering = db.execute("SELECT id, clustering FROM branch WHERE name = ?", (source,)).fetchone()
    state = BranchState(db, number)
    groups, places = state.groups(), state.all_places()
    doubts: dict[int, str] = {}
    for label in (one for one in comparison.disagreements if one.kind == "label"):
        if label.first.group is not None:
            doubts[int(label.subject)] = f"{against}: {label.descriptions[1]}"
        elif label.second.group is not None:
            places[int(label.subject)] = _as_own_group(label.second.group, comparison, groups)
            doubts[int(label.subject)] = f"{source}: {label.descriptions[0]}"
    open_again = {places[label] for label in doubts}
    for one in comparison.disagreements:
        if one.kind != "label":
            group, said = int(one.subject.split("|")[0]), one.descriptions[1]
            note = f"{against}: called {said!r}" if one.kind == "name" else f"{against}: under {said}"
            groups[group] = replace(groups[group], note="\n".join(filter(None, (groups[group].note, note))))
            open_again.add(group)
    rows = {one: replace(row, state="open") if one in open_again else row for one, row in groups.items()}
    changes = Changes({one: (None, row) for one, row in rows.items()}, {label: (None, to) for label, to in places.items()})
    summary = f"started from {source} against {against}, who differ on {pluralize(len(doubts), 'label')}"
    branch = create_branch(db, name, clustering, changes, summary, origin=f"{source} against {against}")
    db.executemany("INSERT INTO doubt VALUES (?, ?, ?)", [(branch, label, about) for label, about in doubts.items()])
    return branch


def _as_own_group(group: int, comparison: Comparison, groups: dict[int, GroupRow]) -> int:
    """The partner of a group of the second branch, or a new one of its name."""
    partner = {two: one for one, two in comparison.partners.items()}
    if group in partner:
        return partner[group]
    found = comparison.second.groups[group]
    for one, row in groups.items():
        if (row.level, row.name) == (1, found.name):
            return one
    new = max(groups, default=0) + 1
    groups[new] = GroupRow(1, found.name, None if found.parent is None else partner.get(found.parent))
    return new
