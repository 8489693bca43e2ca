"""The beginning of the final branch: what two annotators agree on, with the rest waiting for a decision."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from suprank.hierarchy.adjudication.plan import Plan
from suprank.hierarchy.agreement import Comparison
from suprank.hierarchy.project import as_json
from suprank.hierarchy.review.branch import NOT_UNDONE, Branch, write_own_act, write_start
from suprank.hierarchy.review.changes import Changes, State
from suprank.hierarchy.review.starting import take_in
from suprank.hierarchy.tree import FINAL, UNSETTLED, hierarchy_in

if TYPE_CHECKING:
    import sqlite3

    from suprank.hierarchy.project import Project

KEY = "settled_from"
"""Of `meta`."""


@dataclass(frozen=True)
class Origin:
    """The two branches that are settled, and the last event of each when it began."""

    first: str
    second: str
    first_seq: int
    second_seq: int


def origin_of(db: sqlite3.Connection) -> Origin | None:
    """What the final branch began from; None where it has not."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (KEY,)).fetchone()
    return None if row is None else Origin(**json.loads(row[0]))


def begin_final(project: Project, first: str, second: str, *, restart: bool = False) -> Branch:
    """The branch `final` of two branches: begun now, or gone on with where it is there already.

    Labels that came since it began wait as unsettled. `restart` begins it once more from the two as they are now, which is
    refused once somebody has worked on it.
    """
    if FINAL in (first, second) or first == second:
        raise ValueError(f"{first!r} and {second!r} cannot be settled; name the branches of two annotators.")
    with project.writing() as db:
        origin = origin_of(db)
        if origin is None:
            _start(db, project, first, second, None)
        else:
            if (origin.first, origin.second) != (first, second) and not restart:
                raise ValueError(
                    f"final began from {origin.first} and {origin.second}, not {first} and {second}; settle those, or give "
                    f"--restart while nobody has decided anything."
                )
            (final,) = db.execute("SELECT id FROM branch WHERE name = ?", (FINAL,)).fetchone()
            if restart:
                _start(db, project, first, second, final)
            else:
                take_in(db, final)
    return Branch(project, FINAL)


def _start(db: sqlite3.Connection, project: Project, first: str, second: str, final: int | None) -> None:
    sides = [hierarchy_in(db, name, project.recipe.levels) for name in (first, second)]
    plan = Plan(Comparison(*sides))
    changes = plan.start()
    waiting = sum(after == UNSETTLED for _, after in changes.labels.values())
    said = f"began from {first} and {second}: {len(changes.labels) - waiting:,} labels agreed, {waiting:,} to settle"
    if final is None:
        (clustering,) = db.execute("SELECT clustering FROM branch WHERE name = ?", (first,)).fetchone()
        final = write_start(db, FINAL, "final", clustering, changes, said)
    else:
        marks = ", ".join("?" * len(NOT_UNDONE))
        (acts,) = db.execute(
            f"SELECT count(*) FROM event WHERE branch = ? AND act NOT IN ({marks})", (final, *NOT_UNDONE)
        ).fetchone()
        if acts:
            raise ValueError(f"final holds work of people ({acts:,} events), and is not begun again; go on without --restart.")
        write_own_act(db, final, "start", said, _difference(State(db, final), changes))
    # Ids of the plan are taken, whether their groups are made or not.
    db.execute("UPDATE branch SET next_group = max(next_group, ?) WHERE id = ?", (plan.highest + 1, final))
    origin = Origin(first, second, sides[0].seq, sides[1].seq)
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (KEY, as_json(asdict(origin))))


def _difference(state: State, wanted: Changes) -> Changes:
    """What makes a branch into one that would begin with these changes."""
    groups, places = state.groups(), state.all_places()
    pairs = {one: (groups.get(one), wanted.groups.get(one, (None, None))[1]) for one in groups.keys() | wanted.groups}
    ways = {one: (places.get(one), wanted.labels.get(one, (None, None))[1]) for one in places.keys() | wanted.labels}
    return Changes(
        {one: pair for one, pair in sorted(pairs.items()) if pair[0] != pair[1]},
        {one: way for one, way in sorted(ways.items()) if way[0] != way[1]},
    )
