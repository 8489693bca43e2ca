"""Decisions on what two annotators differ in, made as acts on the final branch and kept with who, when and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from suprank.hierarchy.adjudication.act import Called, Settle, Wanted, standing
from suprank.hierarchy.adjudication.beginning import Origin, origin_of
from suprank.hierarchy.adjudication.decisions import Decision, decisions_on, with_decisions
from suprank.hierarchy.adjudication.plan import Plan, hierarchy_at
from suprank.hierarchy.agreement import Comparison, Disagreement, View
from suprank.hierarchy.agreement.disagreements import KINDS, Kind
from suprank.hierarchy.project import now
from suprank.hierarchy.review.acts import LONGEST_NAME, LONGEST_TEXT, RefusedError
from suprank.hierarchy.review.branch import Branch, Event
from suprank.hierarchy.review.changes import GroupRow, State
from suprank.hierarchy.tree import FINAL, UNSETTLED

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from suprank.hierarchy.project import Project

Choice = Literal["first", "second", "other", "excluded"]


@dataclass(frozen=True)
class Subject:
    """A disagreement and how it stands: `now` in words, `standing` for the form; `decision` where there is one, not undone."""

    disagreement: Disagreement
    now: str
    standing: str
    settled: bool
    decision: Decision | None


@dataclass(frozen=True)
class Unsettled:
    """How far the settling is, and since when the two branches are other than what is settled."""

    subjects: dict[Kind, list[Subject]]
    changed: dict[str, int]
    """Branch → acts on it since; those without any are left out."""

    def counts(self, kind: Kind) -> tuple[int, int]:
        """Settled ones, and all."""
        return sum(one.settled for one in self.subjects[kind]), len(self.subjects[kind])

    @property
    def open(self) -> int:
        return sum(not one.settled for subjects in self.subjects.values() for one in subjects)


class Settling:
    """The final branch and the disagreements from which it began; these are read from the logs, as they were then."""

    def __init__(self, project: Project) -> None:
        self.project, self.branch = project, Branch(project, FINAL)
        self._kept: tuple[tuple[Origin, int], Plan] | None = None

    def plan(self, db: sqlite3.Connection) -> tuple[Origin, Plan]:
        """What is settled. Kept from one call to the next while its origin is the same and no step has run."""
        origin = _begun(db)
        (steps,) = db.execute("SELECT coalesce(max(id), 0) FROM step").fetchone()
        kept = self._kept
        if kept is None or kept[0] != (origin, steps):
            levels = self.project.recipe.levels
            first = hierarchy_at(db, origin.first, origin.first_seq, levels)
            second = hierarchy_at(db, origin.second, origin.second_seq, levels)
            kept = self._kept = ((origin, steps), Plan(Comparison(first, second)))
        return origin, kept[1]

    def plan_now(self) -> Plan:
        """What is settled, for those who have no connection open."""
        with self.project.reading() as db:
            return self.plan(db)[1]

    def sides(self) -> tuple[str, str]:
        """The names of the two branches."""
        with self.project.reading() as db:
            origin = _begun(db)
        return origin.first, origin.second

    def groups(self) -> dict[int, GroupRow]:
        """The groups that the final branch has now."""
        with self.project.reading() as db:
            return State(db, self.branch.id).groups()

    def now(self) -> Unsettled:
        """All disagreements and how they stand. Names and parents of groups that are not on the branch are left out."""
        with self.project.reading() as db:
            origin, plan = self.plan(db)
            state = State(db, self.branch.id)
            groups, places, decisions = state.groups(), state.all_places(), decisions_on(db, self.branch.id)
            subjects: dict[Kind, list[Subject]] = {kind: [] for kind in KINDS}
            for one in plan.comparison.disagreements:
                decision = decisions.get((one.kind, one.subject))
                if one.kind == "label":
                    place = places.get(int(one.subject))
                    if place is None:
                        continue  # came after the branch last took in labels
                    said = groups[place].name if isinstance(place, int) else f"excluded: {place}"
                    stands = f"#{place}" if isinstance(place, int) else place
                    subjects["label"].append(Subject(one, said, stands, place != UNSETTLED, decision))
                elif (group := groups.get(_group(one))) is not None:
                    above = "no parent" if group.parent is None else groups[group.parent].name
                    stands = standing(state, groups, one.kind, _group(one))
                    said = group.name if one.kind == "name" else above
                    subjects[one.kind].append(Subject(one, said, stands, decision is not None, decision))
            return Unsettled(subjects, _changed(db, origin))

    def settle(
        self,
        disagreements: Sequence[Disagreement],
        choice: Choice,
        value: str = "",
        *,
        reason: str = "",
        who: str | None = None,
        token: str | None = None,
        seen: Mapping[tuple[Kind, str], str] | None = None,
    ) -> Event:
        """Decide these as the first or the second branch does, as `value` says ("other"), or leave the labels out.

        `value` is the name of a group for labels and parents (new where there is none), and a name for names. Leaving out
        needs a `reason`. All become one event, which one step of undo takes back. `seen` holds the `standing` of each.
        """
        if not disagreements:
            raise RefusedError("Choose at least one to settle.")
        if len(reason) > LONGEST_TEXT or len(who or "") > LONGEST_NAME:
            raise RefusedError(f"A reason has {LONGEST_TEXT:,} characters at most, and a name {LONGEST_NAME}.")
        with self.project.reading() as db:
            origin, plan = self.plan(db)
            rows = with_decisions(plan.rows, decisions_on(db, self.branch.id))
        names = {"first": origin.first, "second": origin.second, "other": repr(value), "excluded": "excluded"}
        wanted = {(one.kind, _group(one)): _wanted(one, choice, value, reason, plan, names[choice]) for one in disagreements}
        stood = {(one.kind, _group(one)): (seen or {}).get((one.kind, one.subject)) for one in disagreements}
        known = {key: was for key, was in stood.items() if was is not None}
        act = Settle(rows, f"settled {_counted(disagreements)}: {names[choice]}", wanted, known)

        def decided(db: sqlite3.Connection, event: int) -> None:
            state, at = State(db, self.branch.id), now()
            groups = state.groups()
            written = [
                (one.kind, one.subject, *one.sides, _chosen(state, groups, one), reason.strip(), who or FINAL, at, event)
                for one in disagreements
            ]
            columns = "kind, subject, first, second, chosen, reason, who, at, event"
            db.executemany(f"INSERT INTO decision ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", written)

        return self.branch.do(act, token=token, who=who, also=decided)


def _begun(db: sqlite3.Connection) -> Origin:
    origin = origin_of(db)
    if origin is None:
        raise ValueError("final has not begun from two branches; `suprank hierarchy agree --settle` begins it.")
    return origin


def _wanted(one: Disagreement, choice: Choice, value: str, reason: str, plan: Plan, branch: str) -> Wanted:
    """What a choice means for a disagreement: a group of the plan, a name, a reason, or (of a parent) none."""
    if choice == "excluded":
        if one.kind != "label":
            raise RefusedError("Only labels are left out; a group goes when its last label does.")
        if not reason.strip() or reason.strip() == UNSETTLED or len(reason.strip()) > LONGEST_NAME:
            raise RefusedError(f"Give a reason of 1 to {LONGEST_NAME} characters, such as: not a kind of place.")
        return reason.strip()
    if choice == "other":
        return value if one.kind == "name" else Called(value)
    view: View = one.first if choice == "first" else one.second
    if one.kind == "name":
        return view.name
    if view.group is not None:
        return plan.of_first(view.group) if choice == "first" else plan.of_second(view.group)
    if one.kind == "label" and view.reason is None:
        raise RefusedError(f"{branch} has not looked at {one.about!r} yet; choose the other, or a group.")
    return view.reason


def _group(one: Disagreement) -> int:
    """The id of the label, or of the group on the final branch: that of the first of the pair."""
    return int(one.subject.split("|")[0])


def _chosen(state: State, groups: Mapping[int, GroupRow], one: Disagreement) -> str:
    """What came of it: the name of a group or of its parent, "" where it has none, or why a label is excluded."""
    if one.kind == "label":
        place = state.places([int(one.subject)])[int(one.subject)]
        return groups[place].name if isinstance(place, int) else f"excluded: {place}"
    row = groups.get(_group(one))
    if row is None:
        raise RefusedError(f"{one.about!r} is empty once its labels are settled so; settle these first.")
    return row.name if one.kind == "name" else "" if row.parent is None else groups[row.parent].name


def _changed(db: sqlite3.Connection, origin: Origin) -> dict[str, int]:
    asked = "SELECT count(*) FROM event WHERE branch = (SELECT id FROM branch WHERE name = ?) AND seq > ?"
    sides = ((origin.first, origin.first_seq), (origin.second, origin.second_seq))
    found = {name: db.execute(asked, (name, seq)).fetchone()[0] for name, seq in sides}
    return {name: count for name, count in found.items() if count}


def _counted(disagreements: Sequence[Disagreement]) -> str:
    if len(disagreements) == 1:
        return f"the {disagreements[0].kind} {disagreements[0].about!r}"
    kinds = Counter(one.kind for one in disagreements)
    return ", ".join(f"{kinds[kind]:,} {kind}{'' if kinds[kind] == 1 else 's'}" for kind in KINDS if kinds[kind])
