"""The branch `final`: which groups it can have, and how it starts from what two annotators agree on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from suprank.hierarchy.agreement import Comparison
from suprank.hierarchy.project import canonical_json
from suprank.hierarchy.review.branch import SYSTEM_ACTIONS, Branch, apply_system_action, create_branch
from suprank.hierarchy.review.opening import sync_labels
from suprank.hierarchy.review.state import BranchState, Changes, GroupRow, Place
from suprank.hierarchy.tree import FINAL, UNSETTLED, Group, Hierarchy, Label, hierarchy_from_db

if TYPE_CHECKING:
    import sqlite3

    from suprank.hierarchy.project import Project

_ORIGIN_KEY = "settled_from"  # in the table `meta`


@dataclass(frozen=True)
class Origin:
    """The two branches that `final` started from, and the last event of each at that time."""

    first: str
    second: str
    first_seq: int
    second_seq: int


def read_origin(db: sqlite3.Connection) -> Origin | None:
    """The branches that `final` started from; None if it has not started."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (_ORIGIN_KEY,)).fetchone()
    return None if row is None else Origin(**json.loads(row[0]))


def open_final_branch(project: Project, first: str, second: str, *, restart: bool = False) -> Branch:
    """Open the branch `final` of two annotators' branches: start it, or continue where it was.

    Labels that were added since it started wait for a decision. `restart` starts it again from the two branches as they are
    now, which is refused once somebody has worked on it.
    """
    if FINAL in (first, second) or first == second:
        raise ValueError(f"{first!r} and {second!r} cannot be adjudicated; name the branches of two annotators.")
    with project.transaction() as db:
        origin = read_origin(db)
        if origin is None:
            _start(db, project, first, second, None)
        else:
            if (origin.first, origin.second) != (first, second) and not restart:
                raise ValueError(
                    f"final started from {origin.first} and {origin.second}, not from {first} and {second}; name those two, or "
                    f"restart while nobody has decided anything."
                )
            (final,) = db.execute("SELECT id FROM branch WHERE name = ?", (FINAL,)).fetchone()
            if restart:
                _start(db, project, first, second, final)
            else:
                sync_labels(db, final)
    return Branch(project, FINAL)


def _start(db: sqlite3.Connection, project: Project, first: str, second: str, final: int | None) -> None:
    hierarchies = [hierarchy_from_db(db, name, project.recipe.levels) for name in (first, second)]
    plan = GroupPlan(Comparison(*hierarchies))
    changes = plan.initial_changes()
    pending = sum(after == UNSETTLED for _, after in changes.labels.values())
    summary = f"started from {first} and {second}: {len(changes.labels) - pending:,} labels agreed, {pending:,} to resolve"
    if final is None:
        (clustering,) = db.execute("SELECT clustering FROM branch WHERE name = ?", (first,)).fetchone()
        final = create_branch(db, FINAL, "final", clustering, changes, summary)
    else:
        placeholders = ", ".join("?" * len(SYSTEM_ACTIONS))
        (actions,) = db.execute(
            f"SELECT count(*) FROM event WHERE branch = ? AND act NOT IN ({placeholders})", (final, *SYSTEM_ACTIONS)
        ).fetchone()
        if actions:
            raise ValueError(
                f"final has decisions of people ({actions:,} events) and is not started again; continue it, without restart."
            )
        apply_system_action(db, final, "start", summary, _difference(BranchState(db, final), changes))
    # The ids of the plan are reserved, whether their groups are created or not.
    db.execute("UPDATE branch SET next_group = max(next_group, ?) WHERE id = ?", (plan.highest_id + 1, final))
    origin = Origin(first, second, hierarchies[0].seq, hierarchies[1].seq)
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_ORIGIN_KEY, canonical_json(asdict(origin))))


def _difference(state: BranchState, target: Changes) -> Changes:
    """The changes that turn a branch into one that started with `target`."""
    groups, places = state.groups(), state.all_places()
    pairs = {one: (groups.get(one), target.groups.get(one, (None, None))[1]) for one in groups.keys() | target.groups}
    moves = {one: (places.get(one), target.labels.get(one, (None, None))[1]) for one in places.keys() | target.labels}
    return Changes(
        {one: pair for one, pair in sorted(pairs.items()) if pair[0] != pair[1]},
        {one: move for one, move in sorted(moves.items()) if move[0] != move[1]},
    )


class GroupPlan:
    """The groups of two branches as groups of the final branch, with ids that are fixed in advance.

    A group of the first branch keeps its id. A group of the second has the id of its partner, or without one its own id plus
    the highest id of the first. So a group is the same one whether it exists from the start, is created by a decision, or is
    created again.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self._first_of_second = {two: one for one, two in comparison.partners.items()}
        self._offset = max(comparison.first.groups, default=0)
        first, second = comparison.first.groups, comparison.second.groups
        self.rows: dict[int, GroupRow] = {}
        for one, group in first.items():
            partner = comparison.partners.get(one)
            self.rows[one] = self._row(group, None if partner is None else second[partner])
        for two, group in second.items():
            if two not in self._first_of_second:
                self.rows[self.id_of_second(two)] = GroupRow(
                    group.level, group.name, self._parent_of_second(group), state=group.state
                )

    def id_of_first(self, group: int) -> int:
        """The id on the final branch of a group of the first branch."""
        return group

    def id_of_second(self, group: int) -> int:
        """The id on the final branch of a group of the second branch."""
        return self._first_of_second.get(group, self._offset + group)

    @property
    def highest_id(self) -> int:
        return max(self.rows, default=0)

    def initial_changes(self) -> Changes:
        """What the final branch starts with: what both agree on; all other labels are excluded as unsettled.

        Its groups are those with labels that both agree on, and the coarser groups that both have.
        """
        partners = self.comparison.partners
        places: dict[int, Place] = {}
        for label in self.comparison.first.labels.values():
            other = self.comparison.second.labels.get(label.id)
            places[label.id] = UNSETTLED
            if other is None:
                continue
            if label.group is not None and other.group is not None and partners.get(label.group) == other.group:
                places[label.id] = self.id_of_first(label.group)
            elif label.reason is not None and other.reason is not None:
                places[label.id] = label.reason
        with_labels = set(places.values())
        common = {one for one, row in self.rows.items() if row.level > 1 and one in partners}
        groups = {one: row for one, row in self.rows.items() if one in with_labels or one in common}
        return Changes(
            {one: (None, row) for one, row in groups.items()}, {label: (None, place) for label, place in places.items()}
        )

    def _row(self, group: Group, partner: Group | None) -> GroupRow:
        """The first branch's name until it is decided, the parent if both agree on it, and done if both are."""
        if partner is None:
            return GroupRow(group.level, group.name, group.parent, state=group.state)
        parent = group.parent if group.parent == self._parent_of_second(partner) else None
        state = "done" if group.state == partner.state == "done" else "open"
        return GroupRow(group.level, group.name, parent, state=state)

    def _parent_of_second(self, group: Group) -> int | None:
        """The id on the final branch of the parent of a group of the second branch."""
        return None if group.parent is None else self.id_of_second(group.parent)


def hierarchy_at(db: sqlite3.Connection, branch: str, seq: int, levels: tuple[str, ...]) -> Hierarchy:
    """A branch as it was after an event, replayed from its log, with the labels that are active now."""
    groups: dict[int, GroupRow | None] = {}
    places: dict[int, Place] = {}
    events = db.execute(
        "SELECT changes_json FROM event WHERE branch = (SELECT id FROM branch WHERE name = ?) AND seq <= ? ORDER BY seq",
        (branch, seq),
    )
    for row in events:
        changes = Changes.from_dict(json.loads(row[0]))
        groups.update({one: after for one, (_, after) in changes.groups.items()})
        places.update({label: after for label, (_, after) in changes.labels.items()})
    labels: dict[int, Label] = {}
    for one, key, text, weight in db.execute("SELECT id, key, text, weight FROM label WHERE state = 'active' ORDER BY id"):
        place = places.get(one)
        group, reason = (place, None) if isinstance(place, int) else (None, place)
        labels[one] = Label(one, key, text, weight, group, reason)
    existing = {
        one: Group(one, row.level, row.name, row.parent, row.state, row.note)
        for one, row in sorted(groups.items())
        if row is not None
    }
    return Hierarchy(levels, existing, labels, branch, seq)
