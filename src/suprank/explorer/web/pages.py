"""The HTML templates of the web page."""

from __future__ import annotations

from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from suprank.evaluation.verdict import percent
from suprank.explorer.colors import level_names, level_style
from suprank.explorer.tags import MAX_LENGTH
from suprank.explorer.web.selections import default_side
from suprank.explorer.web.uploads import MAX_BYTES, TYPES
from suprank.files.tables import MalformedError
from suprank.web.pages import stylesheet, template_environment

if TYPE_CHECKING:
    from suprank.explorer.web.explorer import Explorer
    from suprank.explorer.web.ids import ImageId


_SUGGESTED = 200  # tags


class Pages:
    """Renders the templates for one explorer."""

    def __init__(self, explorer: Explorer) -> None:
        self._environment = template_environment("suprank.explorer.web")
        data = explorer.data
        self._environment.filters.update(percent=percent, duration=duration)
        self._environment.globals.update(
            explorer=explorer,
            data=data,
            tree=explorer.tree,
            level_names=level_names(data.levels),
            labels=lambda image: _labels(explorer, image),
            path=lambda image: _path(explorer, image),
            split=lambda image: explorer.searcher.side_images(image).manifest.table["split"][image.row].as_py(),
            title=lambda image: _title(explorer, image),
            most_bytes=MAX_BYTES,
            image_types=TYPES,
            image_tags=lambda image: _tags(explorer, image),
            listed_side=lambda image: _listed_side(explorer, image),
            known_tags=lambda: _known_tags(explorer),
            max_tag=MAX_LENGTH,
            order_name=lambda order, level: _order_name(explorer, order, level),
        )
        folder = files("suprank.explorer.web")
        own = [(folder / name).read_text(encoding="utf-8") for name in ("page.css", "label.css", "upload.css")]
        self.style = "\n".join((stylesheet(), *own, level_style(len(data.levels))))
        self.script = "\n".join((folder / name).read_text(encoding="utf-8") for name in ("script.js", "upload.js"))

    def render(self, template: str, **values: Any) -> str:
        """Render a template."""
        return self._environment.get_template(template).render(**values)


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
    data = explorer.runs[image.run].data
    own = explorer.searcher.side_images(image).labels[image.row]
    pairs = [(level, data.names[level][label]) for level, label in zip(data.levels, own, strict=True) if label >= 0]
    return pairs[::-1]


def _path(explorer: Explorer, image: ImageId) -> str:
    path: str = explorer.searcher.side_images(image).manifest.paths[image.row].as_py()
    return path


def _title(explorer: Explorer, image: ImageId) -> str:
    """The title of an image: its finest label, or else its file name."""
    named = _labels(explorer, image)
    return named[-1][1] if named else _path(explorer, image).rpartition("/")[2]


def _tags(explorer: Explorer, image: ImageId) -> tuple[str, ...]:
    """The tags of an image; none if the file of tags is damaged, which the list of images reports."""
    with suppress(MalformedError):
        return explorer.tags.of(explorer.searcher.side_images(image).manifest, image.row)
    return ()


def _listed_side(explorer: Explorer, image: ImageId) -> str | None:
    """The side on which lists show an image; None for the one that they show by default."""
    listed = image.side in explorer.browser.sides and image.side != default_side(explorer)
    return image.side if listed else None


def _known_tags(explorer: Explorer) -> list[str]:
    """The tags that are suggested when one is typed."""
    with suppress(MalformedError):
        return list(explorer.tag_counts())[:_SUGGESTED]
    return []


def _order_name(explorer: Explorer, order: str, level: int) -> str:
    """An order of images in words."""
    names = [run.data.name for run in explorer.runs]
    first = f" of {names[0]}" if len(names) > 1 else ""
    words = {
        "mixed": "mixed",
        "lowest": f"lowest AP{first} first",
        "highest": f"highest AP{first} first",
        "first_better": f"{names[0]} better than {names[-1]} first",
        "second_better": f"{names[-1]} better than {names[0]} first",
    }
    if order in words:
        return words[order]
    return f"{order} images of its {explorer.data.levels[level]} first"
