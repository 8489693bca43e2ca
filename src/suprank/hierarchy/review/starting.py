"""The beginning of a branch: the clusters become groups with suggested names, and wait for the annotator."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from suprank.hierarchy.review.branch import Branch, write_own_act, write_start
from suprank.hierarchy.review.changes import Changes, GroupRow, Place, State
from suprank.hierarchy.text import amount, key_of
from suprank.hierarchy.tree import FINAL, UNSETTLED

if TYPE_CHECKING:
    import sqlite3

    from suprank.hierarchy.project import Project

UNSORTED = "unsorted"
BY_CLEANING = "removed by cleaning: "


def opened_branch(project: Project, name: str) -> Branch:
    """The branch of an annotator: begun from the newest clustering, or gone on with, with labels that came since."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", name):
        raise ValueError(f"annotator {name!r} must be 1 to 40 letters, digits, - and _, because it stands in an address.")
    with project.writing() as db:
        row = db.execute("SELECT id FROM branch WHERE name = ?", (name,)).fetchone()
        if row is None:
            if name == FINAL:
                raise ValueError("`final` is what two annotators settle on; `suprank hierarchy agree --settle` begins it.")
            _start(project, db, name)
        else:
            take_in(db, row["id"])
    return Branch(project, name)


def _start(project: Project, db: sqlite3.Connection, name: str) -> None:
    row = db.execute("SELECT max(id) FROM clustering").fetchone()
    if row[0] is None:
        raise ValueError(f"there are no clusters to review; run `suprank hierarchy cluster {project.folder}` first.")
    clustering, changes, used = row[0], Changes(), set[str]()
    for top in project.recipe.top:
        changes.groups[len(changes.groups) + 1] = (None, GroupRow(project.recipe.depth, top))
    of_cluster: dict[int, int] = {}
    for number, names in db.execute(
        "SELECT number, names_json FROM cluster WHERE clustering = ? ORDER BY number", (clustering,)
    ):
        one = of_cluster[number] = len(changes.groups) + 1
        called = _free([*json.loads(names), f"cluster {number}"], used)
        changes.groups[one] = (None, GroupRow(1, called, named=False, cluster=number))
    members = db.execute(
        "SELECT label, number FROM cluster_member JOIN label ON label.id = label WHERE clustering = ? AND state = 'active'",
        (clustering,),
    )
    changes.labels = {label: (None, of_cluster[number]) for label, number in members}
    held = {after for _, after in changes.labels.values()}
    for one in set(of_cluster.values()) - held:  # of labels that cleaning has removed since
        del changes.groups[one]
    said = f"began with {len(of_cluster):,} clusters of {len(changes.labels):,} labels"
    branch = write_start(db, name, "annotator", clustering, changes, said)
    take_in(db, branch)


def take_in(db: sqlite3.Connection, branch: int) -> None:
    """Labels that came after the branch began join it; those that cleaning removed leave their groups.

    New ones wait in a group of their own; on the final branch they are unsettled.
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
    back = db.execute(
        "SELECT label, member.reason FROM member JOIN label ON label.id = label "
        "WHERE branch = ? AND state = 'active' AND member.reason LIKE ?",
        (branch, BY_CLEANING + "%"),
    ).fetchall()
    changes = Changes()
    if new or back:
        waiting = _waiting(db, branch, changes)
        changes.labels.update({row["id"]: (None, waiting) for row in new})
        changes.labels.update({row["label"]: (row["reason"], waiting) for row in back})
    changes.labels.update({row[0]: (row[1], BY_CLEANING + row[2]) for row in removed})
    if changes:
        said = f"took in {amount(len(new) + len(back), 'new label')}, and put aside {len(removed):,} that cleaning removed"
        write_own_act(db, branch, "sync", said, changes)


def _waiting(db: sqlite3.Connection, branch: int, changes: Changes) -> Place:
    """Where new labels wait; a group for them is made where there is none."""
    (kind,) = db.execute("SELECT kind FROM branch WHERE id = ?", (branch,)).fetchone()
    if kind == "final":
        return UNSETTLED
    state = State(db, branch)
    unsorted = next((one for one, row in state.groups().items() if row.level == 1 and row.name == UNSORTED), None)
    if unsorted is None:
        unsorted = state.next_id()
        changes.groups[unsorted] = (None, GroupRow(1, UNSORTED, named=False))
    return unsorted


def _free(names: list[str], used: set[str]) -> str:
    """The first of the names that no group has yet; numbered where all are taken."""
    for name in names:
        if key_of(name) and key_of(name) not in used:
            used.add(key_of(name))
            return name
    number = 2
    while key_of(f"{names[0]} ({number})") in used:
        number += 1
    return _free([f"{names[0]} ({number})"], used)
