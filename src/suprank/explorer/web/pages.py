"""The HTML templates of the web page."""

from __future__ import annotations

import math
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from suprank.explorer.colors import level_names, level_style
from suprank.explorer.web.uploads import MAX_BYTES, TYPES
from suprank.web.pages import stylesheet, template_environment

if TYPE_CHECKING:
    from suprank.explorer.web.explorer import Explorer
    from suprank.explorer.web.ids import ImageId


class Pages:
    """Renders the templates for one explorer."""

    def __init__(self, explorer: Explorer) -> None:
        self._environment = template_environment("suprank.explorer.web")
        source = explorer.source
        self._environment.filters.update(percent=percent, duration=duration)
        self._environment.globals.update(
            explorer=explorer,
            source=source,
            tree=explorer.tree,
            level_names=level_names(source.levels),
            labels=lambda image: _labels(explorer, image),
            path=lambda image: explorer.searcher.side_images(image).path(image.row),
            split=lambda image: explorer.searcher.side_images(image).manifest.table["split"][image.row].as_py(),
            title=lambda image: _title(explorer, image),
            most_bytes=MAX_BYTES,
            image_types=TYPES,
        )
        folder = files("suprank.explorer.web")
        own = [(folder / name).read_text(encoding="utf-8") for name in ("page.css", "label.css", "upload.css")]
        self.style = "\n".join((stylesheet(), *own, level_style(len(source.levels))))
        self.script = "\n".join((folder / name).read_text(encoding="utf-8") for name in ("script.js", "upload.js"))

    def render(self, template: str, **values: Any) -> str:
        """Render a template."""
        return self._environment.get_template(template).render(**values)


def percent(value: float) -> str:
    """A fraction as a percentage with one decimal; a dash for NaN.

    Example:
        >>> percent(0.8333), percent(float("nan"))
        ('83.3', '–')
    """
    return "–" if math.isnan(value) else f"{100 * value:.1f}"


def duration(seconds: float) -> str:
    """A duration with its unit.

    Example:
        >>> duration(0.00001), duration(0.00042), duration(0.0123), duration(1.5)
        ('0.1 ms', '0.4 ms', '12 ms', '1.5 s')
    """
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{max(1000 * seconds, 0.1):.1f} ms"


def _labels(explorer: Explorer, image: ImageId) -> list[tuple[str, str]]:
    """Level and name of each of an image's labels, coarsest first."""
    source = explorer.runs[image.run].source
    own = explorer.searcher.side_images(image).labels[image.row]
    pairs = [(level, source.names[level][label]) for level, label in zip(source.levels, own, strict=True) if label >= 0]
    return pairs[::-1]


def _title(explorer: Explorer, image: ImageId) -> str:
    """The title of an image: its finest label, or else its file name."""
    named = _labels(explorer, image)
    return named[-1][1] if named else explorer.searcher.side_images(image).path(image.row).rpartition("/")[2]
