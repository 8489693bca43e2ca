"""Read submitted forms, turn them into actions, and answer those that cannot be carried out."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from suprank.hierarchy.project import BusyError, FullError
from suprank.hierarchy.review.actions import Action, ConflictError, Merge, Move, RefusedError, SetParent
from suprank.hierarchy.review.web.queries import LabelQuery, label_ids
from suprank.web.forms import limited_form

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping

    from starlette.datastructures import FormData

    from suprank.hierarchy.review.branch import Branch, Event
    from suprank.hierarchy.review.web.auth import AnnotatorRequest
    from suprank.hierarchy.review.web.group_index import GroupIndex, GroupView

MAX_BYTES = 4_000_000
"""Size limit of a form: enough to select half a million labels."""

MAX_SUGGESTED_NAMES = 1_000
"""Number of group names that a text field suggests, largest groups first. Any other name can still be typed."""

LABEL_FIELDS = {"split": "split_name", "move": "to", "exclude": "reason"}
"""Actions on selected labels, and the field that each of them needs."""

UNCLEAR_ACTION = "Use one of the buttons: more than one field is filled in, or none."
BUSY = "Somebody else is writing to the project; nothing was saved. Try again in a moment."
DISK_FULL = "The disk is full; nothing was saved. Make room, and try again."


@dataclass(frozen=True)
class SubmittedForm:
    """The fields of a form; a missing field is empty."""

    fields: FormData

    def text(self, name: str) -> str:
        """The text of a field exactly as typed."""
        value = self.fields.get(name, "")
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int | None:
        """The whole number in a field; None if it is empty or not a number."""
        text = self.text(name).strip()
        return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None

    def numbers(self, *names: str) -> tuple[int, ...]:
        """The different whole numbers in fields of these names: checkboxes, and lists separated by spaces or commas."""
        return tuple(dict.fromkeys(int(one) for text in self._texts(names) for one in re.findall(r"[0-9]{1,15}", text)))

    def versions(self, name: str = "seen") -> dict[int, int]:
        """The groups and versions that the annotator saw, written as `ID:VERSION`."""
        pairs = [re.findall(r"([0-9]{1,15}):([0-9]{1,15})", text) for text in self._texts((name,))]
        return {int(group): int(version) for found in pairs for group, version in found}

    def action_token(self, action: Action | str) -> str | None:
        """The token of the click for `Branch.apply`.

        It includes the action: a page opened with the back button has its old token, and another action there is another click.
        """
        token = self.text("token")[:64]
        return f"{token}.{hashlib.sha256(repr(action).encode()).hexdigest()[:16]}" if token else None

    def _texts(self, names: Iterable[str]) -> list[str]:
        return [value for name in names for value in self.fields.getlist(name) if isinstance(value, str)]


async def read_form(request: Request) -> SubmittedForm:
    """The form of a request; status 413 if it is too large."""
    too_large = f"The form has more than {MAX_BYTES // 1_000_000} MB; select fewer labels."
    return SubmittedForm(await limited_form(request, MAX_BYTES, too_large, max_fields=100_000))


Form = Annotated[SubmittedForm, Depends(read_form)]


@dataclass(frozen=True)
class Offer:
    """A button that does what was probably meant: it sends `act` with the form of this id, as it was filled in."""

    form: str
    act: str
    text: str


@dataclass(frozen=True)
class Refusal:
    """Nothing was saved: the HTTP status, the reason, the groups that have changed, and what to do instead."""

    status: int
    message: str
    groups: tuple[int, ...] = ()
    merge_with: int | None = None
    offers: tuple[Offer, ...] = ()


def try_action(branch: Branch, action: Action | Refusal, form: SubmittedForm, seen: Mapping[int, int]) -> Event | Refusal:
    """Carry out an action once, if the groups are still as they were seen. A refusal is returned as it is."""
    if isinstance(action, Refusal):
        return action
    try:
        return branch.apply(action, seen=seen, token=form.action_token(action))
    except (RefusedError, ConflictError, BusyError, FullError) as error:
        return refusal_for(error)


def refusal_for(error: RefusedError | ConflictError | BusyError | FullError) -> Refusal:
    """The refusal that answers an error."""
    if isinstance(error, ConflictError):
        return Refusal(409, str(error), error.groups)
    if isinstance(error, RefusedError):
        return Refusal(400, str(error), merge_with=error.merge_with)
    return Refusal(503, BUSY) if isinstance(error, BusyError) else Refusal(507, DISK_FULL)


def label_action(form: SubmittedForm) -> tuple[str, str]:
    """The action on labels that a button sends, and its argument, as in `move:#12`.

    The Enter key sends no button without a script: then it is the action of the only field that is filled in.
    """
    action, _, argument = form.text("act").partition(":")
    filled = [name for name, field in LABEL_FIELDS.items() if form.text(field).strip()]
    return action or (filled[0] if len(filled) == 1 else ""), argument


def selected_labels(
    db: sqlite3.Connection, request: AnnotatorRequest, form: SubmittedForm, query: LabelQuery
) -> tuple[int, ...]:
    """The selected labels, on this page and others; or, if the form says `all`, all labels of the query."""
    if form.text("all"):
        return tuple(label_ids(db, request.branch, query))
    return form.numbers("label", "labels")


def selected_elsewhere(index: GroupIndex, form: SubmittedForm | None, shown: list[GroupView]) -> list[str]:
    """The checkbox values of groups that are selected in a form, but not on the page that shows it again."""
    on_page = {one.id for one in shown}
    selected = [] if form is None else [index.get(number) for number in form.versions("group") if number not in on_page]
    return [one.checkbox_value for one in selected if one is not None]


def move_action(index: GroupIndex, labels: tuple[int, ...], to: str, source: int | None = None) -> Action | Refusal:
    """Move labels to the group with this name or number. If there is none, offer a new group and similar names.

    `source` is the group on whose page the labels were selected.
    """
    if not to.strip():
        return Refusal(400, "Enter the group to move the labels to.")
    target = index.find(to)
    if target is not None:
        return Move(labels, target.id, source)
    offers = [Offer("selection", f"move:#{one.id}", f"move to {one.name!r}") for one in index.similar(to)]
    new = Offer("selection", f"split:{to}", f"create {to!r} from the selected labels")
    return Refusal(400, f"There is no group called {to!r}.", offers=(new, *offers))


def merge_action(index: GroupIndex, groups: tuple[int, ...], into: str, form: str, level: int = 1) -> Action | Refusal:
    """Merge groups into the one with this name or number. If there is none, offer similar names."""
    if not into.strip():
        return Refusal(400, "Enter the group to merge into.")
    target = index.find(into, level)
    if target is None:
        offers = [Offer(form, f"merge:#{one.id}", f"merge into {one.name!r}") for one in index.similar(into, level)]
        return Refusal(400, f"There is no group called {into!r}.", offers=tuple(offers))
    return Merge(groups, target.id)


def parent_action(groups: tuple[int, ...], form: SubmittedForm) -> Action | Refusal:
    """Put groups under the one chosen in the field `parent`, or under no group if that is `none`."""
    if not groups:
        return Refusal(400, "Select at least one group first.")
    parent = form.number("parent")
    if parent is None and form.text("parent") != "none":
        return Refusal(400, "Choose the group to put it under.")
    return SetParent(groups, parent)
