"""Templates filled in: everything is escaped, and addresses carry all there is to know of a page."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import jinja2
from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from collections.abc import Mapping


def environment(package: str) -> jinja2.Environment:
    """Templates of a package, which may include ours; with the filter `count` and the function `link`."""
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader("suprank.web")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(count=lambda number: f"{number:,}")
    made.globals.update(link=link)
    return made


def style() -> str:
    """The style sheet that every page has; its own comes after it."""
    return "\n".join((files("suprank.web") / name).read_text(encoding="utf-8") for name in ("style.css", "page.css"))


def link(path: str, /, **parameters: object) -> str:
    """An address; parameters that are None, empty or 0 are left out.

    Example:
        >>> link("/", q="a&b", offset=0, split=None), link("/item/a/gallery/3", level="0")
        ('/?q=a%26b', '/item/a/gallery/3?level=0')
    """
    given = {name: str(value) for name, value in parameters.items() if value is not None and str(value) and value != 0}
    return f"{path}?{urlencode(given)}" if given else path


def offset_of(parameters: Mapping[str, str]) -> int:
    """Where a page of a list begins, as its address says; 400 where that is no number."""
    text = parameters.get("offset") or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise HTTPException(400, f"offset={text!r} must be a whole number, 0 or more.")
    return int(text)
