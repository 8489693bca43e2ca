"""The page: sections in, one HTML text out that needs nothing else, and lets nothing in.

Every text goes through Jinja2 with autoescaping. What is markup already (figures, style, script) says so by its type, and is
made here or in `drawing`, never from a label. The policy in the page's head allows this one style and this one script, by
their hashes, and images that stand in the page itself: even markup that slipped through would find nothing to run or to load.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from suprank import __version__
from suprank.explorer.colors import CLASSES, PAGE, level_style

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.explorer.report.thumbnails import Thumbnail


@dataclass(frozen=True)
class Section:
    """A part of the page: its id, its title, a few sentences about it, and a template with what that shows."""

    id: str
    title: str
    template: str
    content: Any
    about: tuple[str, ...] = ()
    short: str = ""  # for the table of contents, where the title is long


def rendered(
    title: str,
    runs: Sequence[str],
    facts: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    images: Sequence[Thumbnail],
    *,
    levels: int,
    warning: str | None = None,
) -> str:
    """The whole page. `levels` is how many there are, for their colors; a `warning` stands on top."""
    style, script = _style(levels), _read("report/script.js")
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            runs=runs,
            facts=facts,
            warning=warning,
            sections=sections,
            images=images,
            version=__version__,
            style=Markup(style),
            script=Markup(script),
            policy=policy(style, script),
        )
    )


def policy(style: str, script: str) -> str:
    """The content security policy of a page with this style and this script."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("suprank.explorer.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _style(levels: int) -> str:
    """style.css, what the report adds, and the colors of levels and of the map's classes in both themes."""
    classes = [
        "".join(f".c{number}{{fill:{shade[theme]}}}" for number, shade in enumerate(CLASSES)) for theme in range(len(PAGE))
    ]
    in_the_dark = f"@media screen and (prefers-color-scheme:dark){{{classes[1]}}}"
    shared = (files("suprank.web") / "style.css").read_text(encoding="utf-8")
    parts = (shared, _read("report/report.css"), level_style(levels), classes[0], in_the_dark)
    return "\n".join(parts)


def _read(name: str) -> str:
    return files("suprank.explorer").joinpath(name).read_text(encoding="utf-8")
