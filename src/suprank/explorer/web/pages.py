"""Templates filled in: everything is escaped, and addresses carry all there is to know of a page."""

from __future__ import annotations

import math
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import jinja2

from suprank.explorer.colours import level_names, level_style
from suprank.explorer.web.uploads import MAX_BYTES

if TYPE_CHECKING:
    from suprank.explorer.web.explorer import Explorer
    from suprank.explorer.web.places import Place


class Pages:
    """Fills in the templates for one explorer."""

    def __init__(self, explorer: Explorer) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader("suprank.explorer.web"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        source = explorer.source
        self._environment.filters.update(percent=percent, count=lambda number: f"{number:,}", duration=duration)
        self._environment.globals.update(
            explorer=explorer,
            source=source,
            tree=explorer.tree,
            link=link,
            level_names=level_names(source.levels),
            labels=lambda place: _labels(explorer, place),
            path=lambda place: explorer.searcher.images(place).path(place.row),
            split=lambda place: explorer.searcher.images(place).items.table["split"][place.row].as_py(),
            title=lambda place: _title(explorer, place),
            most_bytes=MAX_BYTES,
        )
        folder = files("suprank.explorer")
        parts = (folder / "style.css", folder / "web" / "page.css")
        self.style = "\n".join((*(part.read_text(encoding="utf-8") for part in parts), level_style(len(source.levels))))
        self.script = (folder / "web" / "script.js").read_text(encoding="utf-8")

    def html(self, template: str, **values: Any) -> str:
        """A template, filled in."""
        return self._environment.get_template(template).render(**values)


def link(path: str, **parameters: object) -> str:
    """An address; parameters that are None, empty or 0 are left out.

    Example:
        >>> link("/", q="a&b", offset=0, split=None), link("/item/a/gallery/3", level="0")
        ('/?q=a%26b', '/item/a/gallery/3?level=0')
    """
    given = {name: str(value) for name, value in parameters.items() if value is not None and str(value) and value != 0}
    return f"{path}?{urlencode(given)}" if given else path


def percent(value: float) -> str:
    """A share in percent with one digit; a dash for NaN.

    Example:
        >>> percent(0.8333), percent(float("nan"))
        ('83.3', '–')
    """
    return "–" if math.isnan(value) else f"{100 * value:.1f}"


def duration(seconds: float) -> str:
    """A time as one reads it.

    Example:
        >>> duration(0.00001), duration(0.00042), duration(0.0123), duration(1.5)
        ('0.1 ms', '0.4 ms', '12 ms', '1.5 s')
    """
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{max(1000 * seconds, 0.1):.1f} ms"


def _labels(explorer: Explorer, place: Place) -> list[tuple[str, str]]:
    """Level and name of an image's labels, coarsest first."""
    source = explorer.runs[place.run].source
    own = explorer.searcher.images(place).labels[place.row]
    pairs = [(level, source.names[level][label]) for level, label in zip(source.levels, own, strict=True) if label >= 0]
    return pairs[::-1]


def _title(explorer: Explorer, place: Place) -> str:
    """What to call an image: its finest label, or else its file."""
    named = _labels(explorer, place)
    return named[-1][1] if named else explorer.searcher.images(place).path(place.row).rpartition("/")[2]
