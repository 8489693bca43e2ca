"""A branch: one annotator's tree, changed act by act, with a log that undo, redo and replay go by."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suprank.hierarchy.project import as_json, now
from suprank.hierarchy.review.acts import Act, ConflictError, RefusedError
from suprank.hierarchy.review.changes import Changes, State
from suprank.hierarchy.text import key_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping

    from suprank.hierarchy.project import Project

NOT_UNDONE = ("start", "sync")
"""Acts of the tool itself."""

EXCLUDED = 0
"""In what was seen, where groups stand with their versions: the newest event then, for labels that are in no group."""


@dataclass(frozen=True)
class Event:
    """A line of the log."""

    seq: int
    at: str
    who: str
    act: str
    said: str
    undoes: int | None = None


class Branch:
    """A branch of a project, by its name.

    Every act is one transaction: it is checked against what the annotator saw, written, and logged, or nothing is done.
    """

    def __init__(self, project: Project, name: str) -> None:
        self.project, self.name = project, name
        with project.reading() as db:
            row = db.execute("SELECT id, kind, clustering, token FROM branch WHERE name = ?", (name,)).fetchone()
            there = [one[0] for one in db.execute("SELECT name FROM branch ORDER BY id")]
        if row is None:
            said = f"there are {', '.join(there)}" if there else "`suprank hierarchy review` begins one"
            raise ValueError(f"there is no branch {name!r}; {said}.")
        self.id: int = row["id"]
        self.kind: str = row["kind"]
        self.clustering: int | None = row["clustering"]
        self.token: str = row["token"]
        self._stacked: tuple[int, list[int], list[int]] = (0, [], [])

    def do(
        self,
        act: Act,
        *,
        seen: Mapping[int, int] | None = None,
        token: str | None = None,
        who: str | None = None,
        also: Callable[[sqlite3.Connection, int], None] | None = None,
    ) -> Event:
        """Do an act, and log it.

        `seen` holds the versions of the groups the annotator was looking at: every group that the act changes or takes labels
        from must be among them and still be of that version, or `ConflictError` is raised and nothing done; None trusts the
        caller. Labels that are excluded have no group: no event after `seen[EXCLUDED]` may have touched them. `token` names the
        click: sent again, it gives the event of the first time, and a `ConflictError` if that is undone since. `also` writes
        more, given the event's number, in the same transaction.
        """
        with self.project.writing() as db:
            if token is not None and (before := self._sent(db, token)) is not None:
                return before
            state = State(db, self.id)
            changes, said = act.changes(state, self.project.recipe.depth)
            if seen is not None:
                self._check_seen(state, changes, seen)
            if not changes and also is None:
                raise RefusedError("That changes nothing.")
            event = self._log(db, type(act).__name__.lower(), said, changes, token=token, who=who)
            state.apply(changes, event.seq)
            if also is not None:
                also(db, event.seq)
            return event

    def undo(self, seq: int | None = None, *, token: str | None = None, who: str | None = None) -> Event:
        """Take back the last act, or that of this number, where nothing that came after is in its way."""
        return self._reverse("undo", seq, token, who)

    def redo(self, seq: int | None = None, *, token: str | None = None, who: str | None = None) -> Event:
        """Do again what was last undone; a new act in between forgets it. `seq`, if given, must be the event that undid it."""
        return self._reverse("redo", seq, token, who)

    def undoable(self) -> tuple[Event | None, Event | None]:
        """What `undo` would take back, and what `redo` would do again; for the latter, the event that undid it."""
        with self.project.reading() as db:
            done, undone = self.stacks(db)
            return tuple(self._event(db, stack[-1]) if stack else None for stack in (done, undone))  # type: ignore[return-value]

    def log(self, *, offset: int = 0, limit: int | None = None, newest_first: bool = True) -> list[Event]:
        """The log, a page of it."""
        order = "DESC" if newest_first else "ASC"
        with self.project.reading() as db:
            rows = db.execute(
                f"SELECT seq, at, who, act, said, undoes FROM event WHERE branch = ? ORDER BY seq {order} LIMIT ? OFFSET ?",
                (self.id, -1 if limit is None else limit, offset),
            )
            return [Event(**row) for row in rows]

    def problems(self) -> list[str]:
        """What is wrong with the branch: the log replayed must give it, and every active label must be on it."""
        with self.project.reading() as db:
            state, groups, places = State(db, self.id), {}, {}
            for row in db.execute("SELECT changes_json FROM event WHERE branch = ? ORDER BY seq", (self.id,)):
                changes = Changes.of_plain(json.loads(row[0]))
                groups.update({one: after for one, (_, after) in changes.groups.items()})
                places.update({label: after for label, (_, after) in changes.labels.items()})
            found = []
            if {one: row for one, row in groups.items() if row is not None} != state.groups():
                found.append(f"branch {self.name}: the log replayed gives other groups")
            if {label: place for label, place in places.items() if place is not None} != state.all_places():
                found.append(f"branch {self.name}: the log replayed puts labels elsewhere")
            return found

    def _check_seen(self, state: State, changes: Changes, seen: Mapping[int, int]) -> None:
        concerned = {one for one, (before, _) in changes.groups.items() if before is not None}
        concerned |= {before for before, _ in changes.labels.values() if isinstance(before, int)}
        now_there = state.versions(concerned)
        stale = tuple(sorted(one for one in concerned if seen.get(one) != now_there[one]))
        if stale:
            events = [self._event(state.db, now_there[one]) for one in stale[:3]]
            said = "; ".join(dict.fromkeys(f"{event.who} {event.said}" for event in events if event is not None))
            raise ConflictError(f"This was changed meanwhile ({said}); nothing was saved.", stale)
        outside = {label for label, (before, _) in changes.labels.items() if isinstance(before, str)}
        if outside:
            self._check_untouched(state.db, outside, seen.get(EXCLUDED, 0))

    def _check_untouched(self, db: sqlite3.Connection, labels: set[int], seen: int) -> None:
        """Refuse where an event that came later than what was seen touched one of the labels."""
        asked = "SELECT who, said, changes_json FROM event WHERE branch = ? AND seq > ? ORDER BY seq DESC"
        for row in db.execute(asked, (self.id, seen)):
            if labels & Changes.of_plain(json.loads(row["changes_json"])).labels.keys():
                raise ConflictError(f"This was changed meanwhile ({row['who']} {row['said']}); nothing was saved.")

    def _reverse(self, act: str, seq: int | None, token: str | None, who: str | None) -> Event:
        with self.project.writing() as db:
            if token is not None and (before := self._sent(db, token)) is not None:
                return before
            done, undone = self.stacks(db)
            stack = done if act == "undo" else undone
            if seq is None and not stack:
                raise RefusedError(f"There is nothing to {act}.")
            target = stack[-1] if seq is None else seq
            if act == "redo" and target not in stack[-1:]:
                raise ConflictError("Something else was done or undone meanwhile; nothing was redone.")
            if target not in stack:
                raise RefusedError(f"Event {target} cannot be undone: it is not of this branch, or is undone already.")
            row = db.execute("SELECT said, changes_json FROM event WHERE seq = ?", (target,)).fetchone()
            changes, state = Changes.of_plain(json.loads(row["changes_json"])).reversed(), State(db, self.id)
            self._check_free(state, changes, target)
            said = f"undid: {row['said']}" if act == "undo" else f"redid: {row['said'].removeprefix('undid: ')}"
            event = self._log(db, act, said, changes, token=token, who=who, undoes=target)
            state.apply(changes, event.seq)
            return event

    def _check_free(self, state: State, changes: Changes, target: int) -> None:
        """Refuse to reverse an event where later ones are in the way.

        Rows must be as it left them; a group that vanishes must hold nothing else; what comes back must find its parent or its
        group there, and its name free.
        """
        differing, labels = state.differing(changes)
        rows, held = set(differing), set[int]()  # groups that are in the way themselves, and by what they hold
        there = state.groups()
        kept = there.keys() | changes.groups
        names = {(row.level, key_of(row.name)): one for one, row in there.items() if one not in changes.groups}
        for one, (_, after) in changes.groups.items():
            if after is None:
                leaving = {label for label, (before, _) in changes.labels.items() if before == one}
                if set(state.labels_of(one)) - leaving or set(state.children_of(one)) - changes.groups.keys():
                    held.add(one)
            else:
                namesake = names.get((after.level, key_of(after.name)))
                rows |= {namesake} if namesake is not None else set()
                rows |= {after.parent} - kept if after.parent is not None else set()
        rows |= {after for _, after in changes.labels.values() if isinstance(after, int)} - kept
        if not rows and not held and not labels:
            return
        later = state.db.execute(
            "SELECT seq, said, changes_json FROM event WHERE branch = ? AND seq > ? ORDER BY seq", (self.id, target)
        )
        for row in later:
            found = Changes.of_plain(json.loads(row["changes_json"]))
            if set(found.groups) & rows or found.joined() & held or set(found.labels) & set(labels):
                raise RefusedError(f"Event {row['seq']} came after and builds on it: {row['said']}. Undo that first.")
        raise RefusedError("Later acts build on it, so it cannot be undone alone.")

    def stacks(self, db: sqlite3.Connection) -> tuple[list[int], list[int]]:
        """Events that undo can take back, and events of undo that redo can, each with the next one last."""
        # Every page asks, and the log only grows: what was read of it is kept.
        last, done, undone = self._stacked[0], self._stacked[1].copy(), self._stacked[2].copy()
        asked = "SELECT seq, act, undoes FROM event WHERE branch = ? AND seq > ? ORDER BY seq"
        for seq, act, undoes in db.execute(asked, (self.id, last)):
            last = seq
            if act == "undo":
                done.remove(undoes)
                undone.append(seq)
            elif act == "redo":
                undone.remove(undoes)
                done.append(seq)
            else:
                undone.clear()
                if act not in NOT_UNDONE:
                    done.append(seq)
        self._stacked = (last, done.copy(), undone.copy())
        return done, undone

    def _sent(self, db: sqlite3.Connection, token: str) -> Event | None:
        """What came of this click before; refused where that no longer stands, because it would be told as done."""
        row = db.execute("SELECT seq FROM event WHERE token = ? AND branch = ?", (token, self.id)).fetchone()
        if row is None:
            return None
        if db.execute("SELECT 1 FROM event WHERE branch = ? AND undoes = ?", (self.id, row[0])).fetchone() is not None:
            raise ConflictError("This was done already, and taken back since; nothing was saved. Here is how things are now.")
        return self._event(db, row[0])

    def _event(self, db: sqlite3.Connection, seq: int) -> Event | None:
        row = db.execute("SELECT seq, at, who, act, said, undoes FROM event WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else Event(**row)

    def _log(
        self,
        db: sqlite3.Connection,
        act: str,
        said: str,
        changes: Changes,
        *,
        token: str | None = None,
        who: str | None = None,
        undoes: int | None = None,
    ) -> Event:
        at, who = now(), who or self.name
        row = (self.id, at, who, act, said, as_json(changes.as_plain()), undoes, token)
        cursor = db.execute(
            "INSERT INTO event (branch, at, who, act, said, changes_json, undoes, token) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row
        )
        assert cursor.lastrowid is not None
        return Event(cursor.lastrowid, at, who, act, said, undoes)


def write_start(
    db: sqlite3.Connection, name: str, kind: str, clustering: int | None, changes: Changes, said: str, *, act: str = "start"
) -> int:
    """Make a branch with these first rows, in the caller's transaction; its id. The log begins with them."""
    row = (name, kind, clustering, secrets.token_urlsafe(24), now())
    branch = db.execute("INSERT INTO branch (name, kind, clustering, token, made) VALUES (?, ?, ?, ?, ?)", row).lastrowid
    assert branch is not None
    write_own_act(db, branch, act, said, changes)
    return branch


def write_own_act(db: sqlite3.Connection, branch: int, act: str, said: str, changes: Changes) -> None:
    """Log and apply what the tool does by itself, which nobody undoes."""
    row = (branch, now(), "suprank", act, said, as_json(changes.as_plain()))
    seq = db.execute("INSERT INTO event (branch, at, who, act, said, changes_json) VALUES (?, ?, ?, ?, ?, ?)", row).lastrowid
    assert seq is not None
    State(db, branch).apply(changes, seq)
