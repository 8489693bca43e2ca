"""Templates filled in with what every page of a branch shows: who, what undo would take back, a token for the next click."""

from __future__ import annotations

import secrets
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from suprank.hierarchy.review.web.views.events import read_event
from suprank.web.pages import environment, style

if TYPE_CHECKING:
    from jinja2 import Environment

    from suprank.hierarchy.review.branch import Event
    from suprank.hierarchy.review.web.auth import Visit
    from suprank.hierarchy.review.web.review import Review


class Pages:
    """Fills in the templates of a review.

    A template extends base.html and fills the blocks `name` (of the page) and `main`. It has `here` (the Visit), `branch`,
    `prefix` ("/anna"), `levels` (of the recipe), `undo` and `redo` (events or None), `did` (the event that led here, which is
    told by itself), `click()` (a fresh token for a form), `link` and `count`; and `said` (why something was refused) and `kept`
    (the Sent form whose typing is to be kept), both None unless the page gives them.
    """

    def __init__(self, review: Review) -> None:
        recipe = review.project.recipe
        self._shown = {"review": review, "recipe": recipe, "levels": recipe.levels}
        folder = files("suprank.hierarchy.review.web")
        self.style = "\n".join((style(), (folder / "page.css").read_text(encoding="utf-8")))
        self.script = (folder / "script.js").read_text(encoding="utf-8")

    def html(self, template: str, here: Visit | None = None, **values: Any) -> str:
        """A template, filled in for a visit; without one, for a stranger."""
        shown: dict[str, Any] = {**self._shown, "here": here, "said": None, "kept": None, "branch": None, "prefix": ""}
        if here is not None:
            undo, redo = here.branch.undoable()
            shown |= {"branch": here.branch, "prefix": here.prefix, "undo": undo, "redo": redo, "did": _did(here)}
        return _templates().get_template(template).render(**{**shown, **values})


@cache
def _templates() -> Environment:
    """The templates, compiled once for all reviews of a process."""
    made = environment("suprank.hierarchy.review.web")
    made.filters.update(when=when, figure=figure, blanks=blanks, removed_undid=lambda said: said.removeprefix("undid: "))
    made.globals.update(click=lambda: secrets.token_urlsafe(9))
    return made


def _did(here: Visit) -> Event | None:
    """The act that led to this page, if one did."""
    text = here.parameters.get("did", "")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        return None
    with here.project.reading() as db:
        return read_event(db, here.branch, int(text))


def when(at: str) -> str:
    """A time of the log as one reads it.

    Example:
        >>> when("2026-11-15T09:08:07.123Z")
        '2026-11-15 09:08'
    """
    return at[:16].replace("T", " ")


def blanks(text: str) -> str:
    """What a browser hides of a name: blanks at its ends, or several in a row; empty where there are none.

    Example:
        >>> blanks("ocean area "), blanks(" a  b"), blanks("a b")
        ('ends in a blank', 'begins with a blank, has blanks in a row', '')
    """
    inner = text.strip()
    found = {"begins with a blank": text != text.lstrip(), "ends in a blank": text != text.rstrip()}
    found["has blanks in a row"] = any(one.isspace() and two.isspace() for one, two in pairwise(inner))
    return ", ".join(said for said, is_so in found.items() if is_so)


def figure(value: float | None) -> str:
    """A share with two digits; a dash where there is none.

    Example:
        >>> figure(0.4567), figure(None)
        ('0.46', '–')
    """
    return "–" if value is None else f"{value:.2f}"
