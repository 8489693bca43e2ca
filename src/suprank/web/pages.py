"""Templates with automatic escaping, and URLs that hold the whole state of a page."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import jinja2

if TYPE_CHECKING:
    from starlette.requests import Request


def template_environment(package: str) -> jinja2.Environment:
    """The Jinja environment for the templates of a package, which may include ours; it adds a filter `count` and `link()`."""
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader("suprank.web")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(count=lambda number: f"{number:,}")
    environment.globals.update(link=link)
    return environment


def stylesheet() -> str:
    """The style sheet of every page; a page's own styles follow it."""
    return "\n".join((files("suprank.web") / name).read_text(encoding="utf-8") for name in ("style.css", "page.css"))


def link(path: str, /, **parameters: object) -> str:
    """A URL with query parameters; parameters that are None, empty or 0 are left out.

    Example:
        >>> link("/", q="a&b", offset=0, split=None), link("/item/a/gallery/3", level="0")
        ('/?q=a%26b', '/item/a/gallery/3?level=0')
    """
    query = {name: str(value) for name, value in parameters.items() if value is not None and str(value) and value != 0}
    return f"{path}?{urlencode(query)}" if query else path


def wants_json(request: Request) -> bool:
    """Whether a script of the page sent the request, and not a form or a link."""
    return "application/json" in request.headers.get("accept", "")
