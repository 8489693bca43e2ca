"""A click, carried out: the event that came of it, or a refusal that a page can show with a way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from suprank.hierarchy.project import BusyError, FullError
from suprank.hierarchy.review.acts import ConflictError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suprank.hierarchy.review.acts import Act
    from suprank.hierarchy.review.branch import Branch, Event
    from suprank.hierarchy.review.web.forms import Sent


NO_BUTTON = "Use one of the buttons: more than one field is filled in, or none."


@dataclass(frozen=True)
class Offer:
    """A way out of a refusal: a button with this text that sends `act` with the form of this id, as it was filled in."""

    form: str
    act: str
    text: str


@dataclass(frozen=True)
class Refusal:
    """Nothing was done: with which HTTP status, why, which groups differ from what was seen, and what to do instead."""

    status: int
    said: str
    groups: tuple[int, ...] = ()
    merge_with: int | None = None
    offers: tuple[Offer, ...] = ()


def attempt(branch: Branch, act: Act, sent: Sent, seen: Mapping[int, int]) -> Event | Refusal:
    """Do an act as the form says: once, and only if the groups are still as they were seen."""
    try:
        return branch.do(act, seen=seen, token=sent.click(act))
    except (RefusedError, ConflictError, BusyError, FullError) as error:
        return refusal_of(error)


def refusal_of(error: RefusedError | ConflictError | BusyError | FullError) -> Refusal:
    """How an error of the engine is answered."""
    if isinstance(error, ConflictError):
        return Refusal(409, str(error), error.groups)
    if isinstance(error, RefusedError):
        return Refusal(400, str(error), merge_with=error.merge_with)
    if isinstance(error, BusyError):
        return Refusal(503, "Somebody else is writing to the project; nothing was saved. Try again in a moment.")
    return Refusal(507, "The disk is full; nothing was saved. Make room, and try again.")
