"""A branch: one annotator's version of the tree, with a log of every action for undo, redo and replay."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suprank.hierarchy.project import canonical_json, utc_now
from suprank.hierarchy.review.actions import Action, ConflictError, RefusedError
from suprank.hierarchy.review.state import BranchState, Changes
from suprank.hierarchy.text import label_key

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from suprank.hierarchy.project import Project

SYSTEM_ACTIONS = ("start", "sync")
"""Actions of suprank itself, which cannot be undone."""

EXCLUDED = 0
"""A key of `seen` beside the ids of groups: the newest event that the annotator saw, for labels that are in no group."""

EVENT_COLUMNS = "seq, at, who, act AS action, said AS summary, undoes"


@dataclass(frozen=True)
class Event:
    """An entry of the log."""

    seq: int
    at: str
    who: str
    action: str
    summary: str
    undoes: int | None = None


class Branch:
    """A branch of a project, opened by name.

    Every action is one transaction: it is checked against what the annotator saw, written and logged, or nothing is saved.
    """

    def __init__(self, project: Project, name: str) -> None:
        self.project, self.name = project, name
        with project.snapshot() as db:
            row = db.execute("SELECT id, origin, clustering, token FROM branch WHERE name = ?", (name,)).fetchone()
            names = [one[0] for one in db.execute("SELECT name FROM branch ORDER BY id")]
        if row is None:
            hint = f"choose from {', '.join(names)}" if names else "start one with `suprank hierarchy review`"
            raise ValueError(f"there is no branch {name!r}; {hint}.")
        self.id: int = row["id"]
        self.origin: str | None = row["origin"]
        self.clustering: int | None = row["clustering"]
        self.token: str = row["token"]
        self._undo_stacks: tuple[int, list[int], list[int]] = (0, [], [])

    def apply(
        self,
        action: Action,
        *,
        seen: Mapping[int, int] | None = None,
        token: str | None = None,
        who: str | None = None,
    ) -> Event:
        """Carry out an action and log it.

        Args:
            action: What to do.
            seen: Versions of the groups that the annotator was looking at. Every group that the action changes or takes labels
                from must be among them and still have that version; otherwise `ConflictError` is raised and nothing is saved.
                Excluded labels have no group: no event after `seen[EXCLUDED]` may have touched them. None skips the check.
            token: Identifies the click. Sent a second time, it returns the event of the first time, or raises `ConflictError`
                if that was undone since.
            who: Who acts, if not the annotator of the branch.
        """
        with self.project.transaction() as db:
            if token is not None and (earlier := self._event_of_token(db, token)) is not None:
                return earlier
            state = BranchState(db, self.id)
            changes, summary = action.changes(state, self.project.recipe.depth)
            if seen is not None:
                self._check_seen(state, changes, seen)
            if not changes:
                raise RefusedError("That changes nothing.")
            event = self._log(db, type(action).__name__.lower(), summary, changes, token=token, who=who)
            state.write(changes, event.seq)
            return event

    def undo(self, seq: int | None = None, *, token: str | None = None, who: str | None = None) -> Event:
        """Undo the last action, or the event with this number if no later event depends on it."""
        return self._reverse("undo", seq, token, who)

    def redo(self, seq: int | None = None, *, token: str | None = None, who: str | None = None) -> Event:
        """Redo what was undone last; a new action in between clears it. `seq`, if given, must be the event of that undo."""
        return self._reverse("redo", seq, token, who)

    def undoable(self) -> tuple[Event | None, Event | None]:
        """The event that `undo` would take back, and the undo event that `redo` would reverse."""
        with self.project.snapshot() as db:
            stacks = self.undo_stacks(db)
            return tuple(self._event(db, stack[-1]) if stack else None for stack in stacks)  # type: ignore[return-value]

    def log(self, *, offset: int = 0, limit: int | None = None, newest_first: bool = True) -> list[Event]:
        """The log, or a page of it."""
        order = "DESC" if newest_first else "ASC"
        with self.project.snapshot() as db:
            rows = db.execute(
                f"SELECT {EVENT_COLUMNS} FROM event WHERE branch = ? ORDER BY seq {order} LIMIT ? OFFSET ?",
                (self.id, -1 if limit is None else limit, offset),
            )
            return [Event(**row) for row in rows]

    def problems(self) -> list[str]:
        """Inconsistencies of the branch: replaying its log must give its current groups and places of labels."""
        with self.project.snapshot() as db:
            state, groups, places = BranchState(db, self.id), {}, {}
            for row in db.execute("SELECT changes_json FROM event WHERE branch = ? ORDER BY seq", (self.id,)):
                changes = Changes.from_dict(json.loads(row[0]))
                groups.update({one: after for one, (_, after) in changes.groups.items()})
                places.update({label: after for label, (_, after) in changes.labels.items()})
            found = []
            if {one: row for one, row in groups.items() if row is not None} != state.groups():
                found.append(f"branch {self.name}: replaying the log gives other groups")
            if {label: place for label, place in places.items() if place is not None} != state.all_places():
                found.append(f"branch {self.name}: replaying the log puts labels elsewhere")
            return found

    def undo_stacks(self, db: sqlite3.Connection) -> tuple[list[int], list[int]]:
        """Events that can be undone, and undo events that can be redone, each with the next one last."""
        # Every page needs this, and the log only grows: continue from what was read before.
        last, done, undone = self._undo_stacks[0], self._undo_stacks[1].copy(), self._undo_stacks[2].copy()
        sql = "SELECT seq, act, undoes FROM event WHERE branch = ? AND seq > ? ORDER BY seq"
        for seq, action, undoes in db.execute(sql, (self.id, last)):
            last = seq
            if action == "undo":
                done.remove(undoes)
                undone.append(seq)
            elif action == "redo":
                undone.remove(undoes)
                done.append(seq)
            else:
                undone.clear()
                if action not in SYSTEM_ACTIONS:
                    done.append(seq)
        self._undo_stacks = (last, done.copy(), undone.copy())
        return done, undone

    def _check_seen(self, state: BranchState, changes: Changes, seen: Mapping[int, int]) -> None:
        affected = {one for one, (before, _) in changes.groups.items() if before is not None}
        affected |= {before for before, _ in changes.labels.values() if isinstance(before, int)}
        versions = state.versions(affected)
        stale = tuple(sorted(one for one in affected if seen.get(one) != versions[one]))
        if stale:
            events = [self._event(state.db, versions[one]) for one in stale[:3]]
            raise _changed_meanwhile([(event.who, event.summary) for event in events if event is not None], stale)
        excluded = {label for label, (before, _) in changes.labels.items() if isinstance(before, str)}
        if excluded:
            self._check_untouched(state.db, excluded, seen.get(EXCLUDED, 0))

    def _check_untouched(self, db: sqlite3.Connection, labels: set[int], seen: int) -> None:
        """Refuse if an event after `seen` touched one of the labels."""
        sql = "SELECT who, said, changes_json FROM event WHERE branch = ? AND seq > ? ORDER BY seq DESC"
        for row in db.execute(sql, (self.id, seen)):
            if labels & Changes.from_dict(json.loads(row["changes_json"])).labels.keys():
                raise _changed_meanwhile([(row["who"], row["said"])])

    def _reverse(self, action: str, seq: int | None, token: str | None, who: str | None) -> Event:
        with self.project.transaction() as db:
            if token is not None and (earlier := self._event_of_token(db, token)) is not None:
                return earlier
            done, undone = self.undo_stacks(db)
            stack = done if action == "undo" else undone
            if seq is None and not stack:
                raise RefusedError(f"There is nothing to {action}.")
            target = stack[-1] if seq is None else seq
            if action == "redo" and target not in stack[-1:]:
                raise ConflictError("Something else was done or undone in the meantime; nothing was redone.")
            if target not in stack:
                raise RefusedError(f"Event {target} cannot be undone: it is not on this branch, or is undone already.")
            row = db.execute("SELECT said, changes_json FROM event WHERE seq = ?", (target,)).fetchone()
            changes, state = Changes.from_dict(json.loads(row["changes_json"])).reversed(), BranchState(db, self.id)
            self._check_reversible(state, changes, target)
            summary = f"undid: {row['said']}" if action == "undo" else f"redid: {row['said'].removeprefix('undid: ')}"
            event = self._log(db, action, summary, changes, token=token, who=who, undoes=target)
            state.write(changes, event.seq)
            return event

    def _check_reversible(self, state: BranchState, changes: Changes, target: int) -> None:
        """Refuse to reverse an event if later events depend on it.

        Rows must be as the event left them, a group that disappears must have nothing else in it, and what comes back must find
        its parent or group, and its name unused.
        """
        differing, labels = state.conflicts(changes)
        rows, occupied = set(differing), set[int]()  # groups in the way by their own rows, and by what is in them
        groups = state.groups()
        existing = groups.keys() | changes.groups
        names = {(row.level, label_key(row.name)): one for one, row in groups.items() if one not in changes.groups}
        for one, (_, after) in changes.groups.items():
            if after is None:
                leaving = {label for label, (before, _) in changes.labels.items() if before == one}
                if set(state.labels_in(one)) - leaving or set(state.children_of(one)) - changes.groups.keys():
                    occupied.add(one)
            else:
                namesake = names.get((after.level, label_key(after.name)))
                rows |= {namesake} if namesake is not None else set()
                rows |= {after.parent} - existing if after.parent is not None else set()
        rows |= {after for _, after in changes.labels.values() if isinstance(after, int)} - existing
        if not rows and not occupied and not labels:
            return
        later = state.db.execute(
            "SELECT seq, said, changes_json FROM event WHERE branch = ? AND seq > ? ORDER BY seq", (self.id, target)
        )
        for row in later:
            found = Changes.from_dict(json.loads(row["changes_json"]))
            if set(found.groups) & rows or found.joined() & occupied or set(found.labels) & set(labels):
                raise RefusedError(f"Event {row['seq']} came later and depends on it: {row['said']}. Undo that first.")
        raise RefusedError("Later actions depend on it, so it cannot be undone by itself.")

    def _event_of_token(self, db: sqlite3.Connection, token: str) -> Event | None:
        """The event of an earlier click with this token. A conflict if it was undone: the page would report it as done."""
        row = db.execute("SELECT seq FROM event WHERE token = ? AND branch = ?", (token, self.id)).fetchone()
        if row is None:
            return None
        if db.execute("SELECT 1 FROM event WHERE branch = ? AND undoes = ?", (self.id, row[0])).fetchone() is not None:
            raise ConflictError("This was already done, and undone since; nothing was saved. Below is the current state.")
        return self._event(db, row[0])

    def _event(self, db: sqlite3.Connection, seq: int) -> Event | None:
        row = db.execute(f"SELECT {EVENT_COLUMNS} FROM event WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else Event(**row)

    def _log(
        self,
        db: sqlite3.Connection,
        action: str,
        summary: str,
        changes: Changes,
        *,
        token: str | None = None,
        who: str | None = None,
        undoes: int | None = None,
    ) -> Event:
        at, who = utc_now(), who or self.name
        row = (self.id, at, who, action, summary, canonical_json(changes.to_dict()), undoes, token)
        cursor = db.execute(
            "INSERT INTO event (branch, at, who, act, said, changes_json, undoes, token) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row
        )
        assert cursor.lastrowid is not None
        return Event(cursor.lastrowid, at, who, action, summary, undoes)


def _changed_meanwhile(events: list[tuple[str, str]], groups: tuple[int, ...] = ()) -> ConflictError:
    who_did_what = "; ".join(dict.fromkeys(f"{who} {summary}" for who, summary in events))
    return ConflictError(f"This was changed in the meantime ({who_did_what}); nothing was saved.", groups)


def create_branch(
    db: sqlite3.Connection, name: str, clustering: int | None, changes: Changes, summary: str, *, origin: str | None = None
) -> int:
    """Create a branch with these initial rows in the caller's transaction, and return its id. Its log starts with them."""
    row = (name, origin, clustering, secrets.token_urlsafe(24), utc_now())
    branch = db.execute("INSERT INTO branch (name, origin, clustering, token, made) VALUES (?, ?, ?, ?, ?)", row).lastrowid
    assert branch is not None
    apply_system_action(db, branch, "start", summary, changes)
    return branch


def apply_system_action(db: sqlite3.Connection, branch: int, action: str, summary: str, changes: Changes) -> None:
    """Log and write changes that suprank itself makes, which cannot be undone."""
    row = (branch, utc_now(), "suprank", action, summary, canonical_json(changes.to_dict()))
    seq = db.execute("INSERT INTO event (branch, at, who, act, said, changes_json) VALUES (?, ?, ?, ?, ?, ?)", row).lastrowid
    assert seq is not None
    BranchState(db, branch).write(changes, seq)
