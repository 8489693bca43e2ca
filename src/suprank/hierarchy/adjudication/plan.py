"""What the final branch may hold: a group for every pair of partners, and for every group without one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from suprank.hierarchy.review.changes import Changes, GroupRow, Place
from suprank.hierarchy.tree import UNSETTLED, Group, Hierarchy, Label

if TYPE_CHECKING:
    import sqlite3

    from suprank.hierarchy.agreement import Comparison


class Plan:
    """The groups of two branches as groups of the final one, by ids that are fixed beforehand.

    A group of the first branch keeps its id; one of the second has that of its partner, or its own behind all of the first.
    So a group is the same one whether it was there from the start, is made by a decision, or is made again.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self._back = {two: one for one, two in comparison.partners.items()}
        self._beyond = max(comparison.first.groups, default=0)
        first, second = comparison.first.groups, comparison.second.groups
        self.rows: dict[int, GroupRow] = {}
        for one, group in first.items():
            partner = comparison.partners.get(one)
            self.rows[one] = self._row(group, None if partner is None else second[partner])
        for two, group in second.items():
            if two not in self._back:
                self.rows[self.of_second(two)] = GroupRow(group.level, group.name, self._above(group), state=group.state)

    def of_first(self, group: int) -> int:
        """The id on the final branch of a group of the first."""
        return group

    def of_second(self, group: int) -> int:
        """The id on the final branch of a group of the second."""
        return self._back.get(group, self._beyond + group)

    @property
    def highest(self) -> int:
        return max(self.rows, default=0)

    def start(self) -> Changes:
        """What the final branch begins with: what both agree on, and the rest excluded as unsettled.

        Its groups are those that hold labels both agree on, and the coarser ones that both have.
        """
        places: dict[int, Place] = {}
        for label in self.comparison.first.labels.values():
            other = self.comparison.second.labels.get(label.id)
            places[label.id] = UNSETTLED
            if other is None:
                continue
            if label.group is not None and other.group is not None and self.comparison.partners.get(label.group) == other.group:
                places[label.id] = self.of_first(label.group)
            elif label.reason is not None and other.reason is not None:
                places[label.id] = label.reason
        held = set(places.values())
        common = {one for one, row in self.rows.items() if row.level > 1 and one in self.comparison.partners}
        groups = {one: row for one, row in self.rows.items() if one in held or one in common}
        return Changes(
            {one: (None, row) for one, row in groups.items()}, {label: (None, place) for label, place in places.items()}
        )

    def _row(self, group: Group, partner: Group | None) -> GroupRow:
        """The first branch's name, until decided; the parent on which both agree; done where both are."""
        if partner is None:
            return GroupRow(group.level, group.name, group.parent, state=group.state)
        parent = group.parent if group.parent == self._above(partner) else None
        state = "done" if group.state == partner.state == "done" else "open"
        return GroupRow(group.level, group.name, parent, state=state)

    def _above(self, group: Group) -> int | None:
        """The id on the final branch of the parent of a group of the second."""
        return None if group.parent is None else self.of_second(group.parent)


def hierarchy_at(db: sqlite3.Connection, branch: str, seq: int, levels: tuple[str, ...]) -> Hierarchy:
    """A branch as it was after an event, from its log; of the labels that are active now."""
    groups: dict[int, GroupRow | None] = {}
    places: dict[int, Place] = {}
    logged = db.execute(
        "SELECT changes_json FROM event WHERE branch = (SELECT id FROM branch WHERE name = ?) AND seq <= ? ORDER BY seq",
        (branch, seq),
    )
    for row in logged:
        changes = Changes.of_plain(json.loads(row[0]))
        groups.update({one: after for one, (_, after) in changes.groups.items()})
        places.update({label: after for label, (_, after) in changes.labels.items()})
    labels: dict[int, Label] = {}
    for one, key, text, weight in db.execute("SELECT id, key, text, weight FROM label WHERE state = 'active' ORDER BY id"):
        place = places.get(one)
        group, reason = (place, None) if isinstance(place, int) else (None, place)
        labels[one] = Label(one, key, text, weight, group, reason)
    kept = {
        one: Group(one, row.level, row.name, row.parent, row.state, row.note)
        for one, row in sorted(groups.items())
        if row is not None
    }
    return Hierarchy(levels, kept, labels, branch, seq)
