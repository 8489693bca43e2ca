"""Decide what two annotators disagree on: the cases, and decisions with who made them, when and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from suprank.hierarchy.adjudication.final_branch import GroupPlan, Origin, hierarchy_at, read_origin
from suprank.hierarchy.adjudication.resolve import GroupNamed, Resolve, Target, fingerprint
from suprank.hierarchy.agreement import Annotation, Comparison, Disagreement
from suprank.hierarchy.agreement.disagreements import KINDS, Kind
from suprank.hierarchy.project import utc_now
from suprank.hierarchy.review.actions import MAX_NAME, MAX_TEXT, RefusedError
from suprank.hierarchy.review.branch import Branch, Event
from suprank.hierarchy.review.state import BranchState, GroupRow
from suprank.hierarchy.text import label_key, pluralize
from suprank.hierarchy.tree import FINAL, UNSETTLED

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from suprank.hierarchy.project import Project

Choice = Literal["first", "second", "other", "excluded"]


@dataclass(frozen=True)
class Decision:
    """What was chosen, why, by whom and when."""

    chosen: str
    reason: str
    who: str
    at: str


@dataclass(frozen=True)
class Case:
    """A disagreement and its current state on the final branch.

    `current` is the state in words, `fingerprint` changes whenever it does, and `decision` is the last one that is not undone.
    """

    disagreement: Disagreement
    current: str
    fingerprint: str
    resolved: bool
    decision: Decision | None


@dataclass(frozen=True)
class AdjudicationStatus:
    """All cases, and whether the annotators' branches have changed since the final branch started."""

    cases: dict[Kind, list[Case]]
    changed: dict[str, int]
    """Branch → number of events on it since; branches without any are left out."""

    def counts(self, kind: Kind) -> tuple[int, int]:
        """The number of resolved cases of this kind, and of all."""
        return sum(case.resolved for case in self.cases[kind]), len(self.cases[kind])

    @property
    def open(self) -> int:
        """The number of cases that are not resolved."""
        return sum(not case.resolved for cases in self.cases.values() for case in cases)


class Adjudication:
    """The final branch, and the disagreements of the two branches it started from, as they were then."""

    def __init__(self, project: Project) -> None:
        self.project, self.branch = project, Branch(project, FINAL)
        self._cache: tuple[tuple[Origin, int], GroupPlan] | None = None

    def names(self) -> tuple[str, str]:
        """The names of the two branches."""
        with self.project.snapshot() as db:
            origin = _existing_origin(db)
        return origin.first, origin.second

    def group_rows(self) -> dict[int, GroupRow]:
        """The groups of the final branch now, and those of the two branches that decisions may create."""
        with self.project.snapshot() as db:
            return {**self._plan(db)[1].rows, **BranchState(db, self.branch.id).groups()}

    def status(self) -> AdjudicationStatus:
        """All disagreements and their current state. Names and parents of groups that do not exist now are left out."""
        with self.project.snapshot() as db:
            origin, plan = self._plan(db)
            state = BranchState(db, self.branch.id)
            groups, places, decisions = state.groups(), state.all_places(), _read_decisions(db, self.branch.id)
            cases: dict[Kind, list[Case]] = {kind: [] for kind in KINDS}
            for one in plan.comparison.disagreements:
                decision = decisions.get((one.kind, one.subject))
                if one.kind == "label":
                    place = places.get(int(one.subject))
                    if place is None:
                        continue  # the label was added after the branch was last synced
                    current = groups[place].name if isinstance(place, int) else f"excluded: {place}"
                    mark = f"#{place}" if isinstance(place, int) else place
                    cases["label"].append(Case(one, current, mark, place != UNSETTLED, decision))
                elif (group := groups.get(_subject_id(one))) is not None:
                    parent = "no parent" if group.parent is None else groups[group.parent].name
                    mark = fingerprint(state, groups, one.kind, _subject_id(one))
                    current = group.name if one.kind == "name" else parent
                    cases[one.kind].append(Case(one, current, mark, decision is not None, decision))
            return AdjudicationStatus(cases, _changed_branches(db, origin))

    def resolve(
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
        """Decide disagreements: take the first or the second branch's answer, another one, or exclude the labels.

        For "other", `value` is the name of a group for labels and parents (created if there is none), and the new name for
        names. To exclude labels, a `reason` is required. All decisions are one event, which one undo takes back. `seen` has the
        `fingerprint` of each case as it was shown.
        """
        if not disagreements:
            raise RefusedError("Choose at least one disagreement to resolve.")
        if len(reason) > MAX_TEXT or len(who or "") > MAX_NAME:
            raise RefusedError(f"A reason may have at most {MAX_TEXT:,} characters, and a name {MAX_NAME}.")
        with self.project.snapshot() as db:
            origin, plan = self._plan(db)
            rows = _apply_decisions(plan.rows, _read_decisions(db, self.branch.id))
        answers = {"first": origin.first, "second": origin.second, "other": repr(value), "excluded": "excluded"}
        targets = {
            (one.kind, _subject_id(one)): _target(one, choice, value, reason, plan, answers[choice]) for one in disagreements
        }
        shown = {(one.kind, _subject_id(one)): (seen or {}).get((one.kind, one.subject)) for one in disagreements}
        known = {key: mark for key, mark in shown.items() if mark is not None}
        action = Resolve(rows, f"resolved {_describe(disagreements)}: {answers[choice]}", targets, known)

        def write_decisions(db: sqlite3.Connection, event: int) -> None:
            state, at = BranchState(db, self.branch.id), utc_now()
            groups = state.groups()
            person, why = who or FINAL, reason.strip()
            values = [
                (one.kind, one.subject, *one.descriptions, _outcome(state, groups, one), why, person, at, event)
                for one in disagreements
            ]
            columns = "kind, subject, first, second, chosen, reason, who, at, event"
            db.executemany(f"INSERT INTO decision ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

        return self.branch.apply(action, token=token, who=who, also=write_decisions)

    def _plan(self, db: sqlite3.Connection) -> tuple[Origin, GroupPlan]:
        """The plan of groups with its disagreements; cached while the origin is the same and no step has run."""
        origin = _existing_origin(db)
        (steps,) = db.execute("SELECT coalesce(max(id), 0) FROM step").fetchone()
        cache = self._cache
        if cache is None or cache[0] != (origin, steps):
            levels = self.project.recipe.levels
            first = hierarchy_at(db, origin.first, origin.first_seq, levels)
            second = hierarchy_at(db, origin.second, origin.second_seq, levels)
            cache = self._cache = ((origin, steps), GroupPlan(Comparison(first, second)))
        return origin, cache[1]


def _existing_origin(db: sqlite3.Connection) -> Origin:
    origin = read_origin(db)
    if origin is None:
        raise ValueError("final has not been started from two branches; start it with `suprank hierarchy agree --adjudicate`.")
    return origin


def _target(one: Disagreement, choice: Choice, value: str, reason: str, plan: GroupPlan, branch: str) -> Target:
    """What a choice means for a disagreement: a group of the plan, a name, a reason, or None for no parent."""
    if choice == "excluded":
        if one.kind != "label":
            raise RefusedError("Only labels can be excluded; a group is deleted with its last label.")
        if not reason.strip() or reason.strip() == UNSETTLED or len(reason.strip()) > MAX_NAME:
            raise RefusedError(f"Give a reason of 1 to {MAX_NAME} characters, such as: not a kind of place.")
        return reason.strip()
    if choice == "other":
        return value if one.kind == "name" else GroupNamed(value)
    answer: Annotation = one.first if choice == "first" else one.second
    if one.kind == "name":
        return answer.name
    if answer.group is not None:
        return plan.id_of_first(answer.group) if choice == "first" else plan.id_of_second(answer.group)
    if one.kind == "label" and answer.reason is None:
        raise RefusedError(f"{branch} has not looked at {one.about!r} yet; choose the other answer, or a group.")
    return answer.reason


def _subject_id(one: Disagreement) -> int:
    """The id of the label, or of the group on the final branch, which is that of the first branch."""
    return int(one.subject.split("|")[0])


def _outcome(state: BranchState, groups: Mapping[int, GroupRow], one: Disagreement) -> str:
    """The result of a decision: the name of a group or of its parent ("" for none), or why a label is excluded."""
    if one.kind == "label":
        place = state.places([int(one.subject)])[int(one.subject)]
        return groups[place].name if isinstance(place, int) else f"excluded: {place}"
    row = groups.get(_subject_id(one))
    if row is None:
        raise RefusedError(f"These decisions about labels leave {one.about!r} empty; resolve the labels first.")
    return row.name if one.kind == "name" else "" if row.parent is None else groups[row.parent].name


def _changed_branches(db: sqlite3.Connection, origin: Origin) -> dict[str, int]:
    sql = "SELECT count(*) FROM event WHERE branch = (SELECT id FROM branch WHERE name = ?) AND seq > ?"
    branches = ((origin.first, origin.first_seq), (origin.second, origin.second_seq))
    counts = {name: db.execute(sql, (name, seq)).fetchone()[0] for name, seq in branches}
    return {name: count for name, count in counts.items() if count}


def _describe(disagreements: Sequence[Disagreement]) -> str:
    if len(disagreements) == 1:
        return f"the {disagreements[0].kind} {disagreements[0].about!r}"
    kinds = Counter(one.kind for one in disagreements)
    return ", ".join(pluralize(kinds[kind], kind) for kind in KINDS if kinds[kind])


def _read_decisions(db: sqlite3.Connection, branch: int) -> dict[tuple[Kind, str], Decision]:
    """The last decision on each subject that is not undone."""
    undone, original = set[int](), dict[int, int]()
    rows = db.execute("SELECT seq, act, undoes FROM event WHERE branch = ? AND undoes IS NOT NULL ORDER BY seq", (branch,))
    for seq, action, undoes in rows:
        original[seq] = original.get(undoes, undoes)  # undoing a redo takes back the original event
        (undone.add if action == "undo" else undone.discard)(original[seq])
    decisions = db.execute("SELECT kind, subject, chosen, reason, who, at, event FROM decision ORDER BY id").fetchall()
    return {(row[0], row[1]): Decision(*row[2:6]) for row in decisions if row[6] not in undone}


def _apply_decisions(rows: Mapping[int, GroupRow], decisions: Mapping[tuple[Kind, str], Decision]) -> dict[int, GroupRow]:
    """Rows for groups that are created again after they had been deleted: with the names and parents that were decided."""
    decided = dict(rows)
    by_name = {(row.level, label_key(row.name)): one for one, row in rows.items()}
    for (kind, subject), decision in decisions.items():
        if kind == "label" or (group := int(subject.split("|")[0])) not in decided:
            continue
        row = decided[group]
        if kind == "name":
            decided[group] = replace(row, name=decision.chosen)
        else:
            decided[group] = replace(row, parent=by_name.get((row.level + 1, label_key(decision.chosen))))
    return decided
