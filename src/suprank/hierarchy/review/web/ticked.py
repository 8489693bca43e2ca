"""Ticked labels: which they are, and where they are to go. What the page of a group and a search have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suprank.hierarchy.review.acts import Act, Move
from suprank.hierarchy.review.web.acting import Offer, Refusal
from suprank.hierarchy.review.web.views.labels import Asked, Label, label_ids

if TYPE_CHECKING:
    import sqlite3

    from suprank.hierarchy.review.web.auth import Visit
    from suprank.hierarchy.review.web.forms import Sent
    from suprank.hierarchy.review.web.views.board import Board

LABEL_ACTS = {"split": "split_name", "move": "to", "exclude": "reason"}
"""What can be done with ticked labels, and the field that each needs."""

NAMES = 1_000
"""Group names that the page offers while one types; the largest. Any other can be typed all the same."""


def filled(sent: Sent) -> str:
    """The act that is meant by the Enter key without a script: that of the one field which is filled in; else none."""
    acts = [act for act, name in LABEL_ACTS.items() if sent.text(name).strip()]
    return acts[0] if len(acts) == 1 else ""


def chosen_labels(db: sqlite3.Connection, here: Visit, sent: Sent, asked: Asked) -> tuple[int, ...]:
    """The labels that are ticked, on the page and off it; or, where the form says `all`, all that are asked for."""
    if sent.text("all"):
        return tuple(label_ids(db, here.branch, asked))
    return sent.numbers("label", "labels")


def moved(board: Board, labels: tuple[int, ...], to: str, of: int | None = None) -> Act | Refusal:
    """Move labels to the group of this name or number; offers similar ones, and a new one, where there is none.

    `of` is the group that they are in, where they were ticked on its page.
    """
    if not to.strip():
        return Refusal(400, "Say which group to move the labels to.")
    target = board.called(to)
    if target is not None:
        return Move(labels, target.id, of)
    offers = [Offer("selection", f"move:#{one.id}", f"move to {one.name!r}") for one in board.like(to)]
    new = Offer("selection", f"split:{to}", f"make {to!r} of the ticked labels")
    return Refusal(400, f"There is no group called {to!r}.", offers=(new, *offers))


def pictures_of(here: Visit, label: Label) -> list[int]:
    """Rows of the manifest that show a label: one of each sample item, or some of the label itself where there are no items."""
    samples = here.review.samples
    if samples is None:
        return []
    if label.samples:
        return [row for one in label.samples for row in samples.rows(one.key, one.split, 1)]
    return samples.rows(label.text)
