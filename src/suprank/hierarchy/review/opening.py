"""Open an annotator's branch: start it from the clusters, or continue it with the labels that cleaning added or removed."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from suprank.hierarchy.review.adjudication import start_from_two
from suprank.hierarchy.review.branch import Branch, apply_system_action, create_branch
from suprank.hierarchy.review.state import BranchState, Changes, GroupRow, Place
from suprank.hierarchy.text import label_key, pluralize

if TYPE_CHECKING:
    import sqlite3

    from suprank.hierarchy.project import Project

UNSORTED = "unsorted"
REMOVED_BY_CLEANING = "removed by cleaning: "


def open_branch(project: Project, name: str, *, source: str | None = None, against: str | None = None) -> Branch:
    """Open the branch of an annotator.

    A new branch starts from the newest clustering: clusters become groups with suggested names. To adjudicate what two
    annotators differ on, it starts from the branch `source`, with the labels that `against` placed differently marked as
    doubtful. An existing branch continues where it was, with labels that cleaning added or removed since.
    """
    if (source is None) != (against is None):
        raise ValueError("give both source and against, the branches of two annotators, or neither.")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", name):
        raise ValueError(f"annotator {name!r} must be 1 to 40 letters, digits, - and _, because it is part of a URL.")
    with project.transaction() as db:
        row = db.execute("SELECT id FROM branch WHERE name = ?", (name,)).fetchone()
        if row is not None and source is not None:
            raise ValueError(f"there is a branch {name!r} already; open it by its name alone, or start one of another name.")
        if row is not None:
            number = row["id"]
        elif source is not None and against is not None:
            number = start_from_two(db, name, source, against, project.recipe.levels)
        else:
            number = _start(project, db, name)
        sync_labels(db, number)
    return Branch(project, name)


def _start(project: Project, db: sqlite3.Connection, name: str) -> int:
    row = db.execute("SELECT max(id) FROM clustering").fetchone()
    if row[0] is None:
        raise ValueError(f"there are no clusters to review; run `suprank hierarchy cluster {project.folder}` first.")
    clustering, changes, used = row[0], Changes(), set[str]()
    for top in project.recipe.top:
        changes.groups[len(changes.groups) + 1] = (None, GroupRow(project.recipe.depth, top))
    group_of_cluster: dict[int, int] = {}
    for number, names in db.execute(
        "SELECT number, names_json FROM cluster WHERE clustering = ? ORDER BY number", (clustering,)
    ):
        one = group_of_cluster[number] = len(changes.groups) + 1
        group_name = _unused_name([*json.loads(names), f"cluster {number}"], used)
        changes.groups[one] = (None, GroupRow(1, group_name, named=False, cluster=number))
    members = db.execute(
        "SELECT label, number FROM cluster_member JOIN label ON label.id = label WHERE clustering = ? AND state = 'active'",
        (clustering,),
    )
    changes.labels = {label: (None, group_of_cluster[number]) for label, number in members}
    with_labels = {after for _, after in changes.labels.values()}
    for one in set(group_of_cluster.values()) - with_labels:  # cleaning has removed all their labels since
        del changes.groups[one]
    summary = f"started from {len(group_of_cluster):,} clusters of {len(changes.labels):,} labels"
    return create_branch(db, name, clustering, changes, summary)


def sync_labels(db: sqlite3.Connection, branch: int) -> None:
    """Add labels that are new since the branch was last opened, and take out those that cleaning removed.

    New labels go into a group of their own.
    """
    new = db.execute(
        "SELECT id FROM label WHERE state = 'active' AND id NOT IN (SELECT label FROM member WHERE branch = ?) ORDER BY id",
        (branch,),
    ).fetchall()
    removed = db.execute(
        'SELECT label, "group", label.reason FROM member JOIN label ON label.id = label '
        "WHERE branch = ? AND state = 'removed' AND \"group\" IS NOT NULL",
        (branch,),
    ).fetchall()
    restored = db.execute(
        "SELECT label, member.reason FROM member JOIN label ON label.id = label "
        "WHERE branch = ? AND state = 'active' AND member.reason LIKE ?",
        (branch, REMOVED_BY_CLEANING + "%"),
    ).fetchall()
    changes = Changes()
    if new or restored:
        place = _place_for_new_labels(db, branch, changes)
        changes.labels.update({row["id"]: (None, place) for row in new})
        changes.labels.update({row["label"]: (row["reason"], place) for row in restored})
    changes.labels.update({row[0]: (row[1], REMOVED_BY_CLEANING + row[2]) for row in removed})
    if changes:
        summary = (
            f"added {pluralize(len(new) + len(restored), 'new label')}, and took out {len(removed):,} that cleaning removed"
        )
        apply_system_action(db, branch, "sync", summary, changes)


def _place_for_new_labels(db: sqlite3.Connection, branch: int, changes: Changes) -> Place:
    """Where new labels go. The group for them is added to `changes` if the branch does not have it."""
    state = BranchState(db, branch)
    unsorted = next((one for one, row in state.groups().items() if row.level == 1 and row.name == UNSORTED), None)
    if unsorted is None:
        unsorted = state.next_id()
        changes.groups[unsorted] = (None, GroupRow(1, UNSORTED, named=False))
    return unsorted


def _unused_name(names: list[str], used: set[str]) -> str:
    """The first of the names that no group has yet, with a number if all are taken."""
    for name in names:
        if label_key(name) and label_key(name) not in used:
            used.add(label_key(name))
            return name
    number = 2
    while label_key(f"{names[0]} ({number})") in used:
        number += 1
    return _unused_name([f"{names[0]} ({number})"], used)
