"""The page: sections in, one self-contained HTML text out that loads nothing.

Every text goes through Jinja2 with autoescaping. What is already markup (figures, style, script) has the type `Markup` and is
made here or in `figures`, never from a label. The content security policy in the page's head allows exactly this style and this
script, by their hashes, and embedded images: even markup that slipped through could not run or load anything. The images come
last in the page, so that a browser shows its beginning before it has read them.
"""

from __future__ import annotations

import base64
import hashlib
import io
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup
from PIL import Image

from suprank import __version__
from suprank.evaluation.report_text import pluralize
from suprank.evaluation.verdict import percent
from suprank.explorer.colors import CLASSES, PAGE, level_style
from suprank.explorer.images import read_picture
from suprank.web.pages import template_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jinja2 import Environment

    from suprank.evaluation.retrieval_data import Items, RetrievalData
    from suprank.explorer.report.header import Header


@dataclass(frozen=True)
class Section:
    """A section of the page: id, title, a few introductory sentences, and a template with its content."""

    id: str
    title: str
    template: str
    content: Any
    about: tuple[str, ...] = ()
    short: str = ""  # title in the table of contents, if it differs
    collapsed: bool = False  # only its title is shown until the reader opens it


class LegendEntry(NamedTuple):
    """A line of a legend: the CSS classes of its mark, and its text."""

    look: str
    text: str


def render_page(
    title: str,
    runs: Sequence[str],
    header: Header,
    sections: Sequence[Section],
    images: Sequence[Thumbnail],
    *,
    levels: int,
) -> str:
    """The whole page. `levels` is the number of levels, for their colors."""
    style, script = _style(levels), _read("report/map_view.js") + _read("report/script.js")
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            runs=runs,
            header=header,
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
    environment = template_environment("suprank.explorer.report")
    environment.filters.update(percent=percent, pluralize=pluralize)
    return environment


def _style(levels: int) -> str:
    """The shared style.css, the report's own, and the colors of levels and of the map's classes in both themes."""
    classes = [
        "".join(f".c{number}{{color:{shade[theme]};fill:{shade[theme]}}}" for number, shade in enumerate(CLASSES))
        for theme in range(len(PAGE))
    ]
    dark = f"@media screen and (prefers-color-scheme:dark){{{classes[1]}}}"
    shared = (files("suprank.web") / "style.css").read_text(encoding="utf-8")
    parts = (shared, _read("report/report.css"), level_style(levels), classes[0], dark)
    return "\n".join(parts)


def _read(name: str) -> str:
    return files("suprank.explorer").joinpath(name).read_text(encoding="utf-8")


SIDE = 112  # pixels of the longer side: tiles are 84 to 96 wide, and screens often have finer pixels
QUALITIES = (70, 40, 10)  # of WebP; the first that is small enough, which 70 is for almost every photo
LARGEST = 5000  # bytes of an image; photos have 1 to 4 kB
BUDGET = 7_500_000  # characters of embedded images and the map in the page, which stays below 10 MB with its figures and tables


class Thumbnail(NamedTuple):
    """An embedded image: its number, its size and its data URI (None if the image is broken)."""

    number: int
    width: int
    height: int
    uri: str | None
    path: str

    @property
    def id(self) -> str:
        """Id of its <symbol>."""
        return f"i{self.number}"


class Thumbnails:
    """The images of a page, each scaled down and embedded once; the same image in two runs is embedded once, too.

    A broken or missing image gets a tile with its path. Once the budget is spent, `get` with `needed=False` returns None: a
    map can do without a picture, an example cannot. `on_new` is called with the number of images after each new one.
    """

    def __init__(self, budget: int = BUDGET, on_new: Callable[[int], None] = lambda number: None) -> None:
        self._budget_left, self._on_new = budget, on_new
        self._images: dict[tuple[str, str], Thumbnail] = {}

    def reserve(self, characters: int) -> None:
        """Take these characters of the page out of the budget, for something else than an image."""
        self._budget_left -= characters

    def get(self, images: Items, row: int, *, needed: bool = True) -> Thumbnail | None:
        """The image of a row, embedded on the first call."""
        table = images.manifest.table
        key = (images.manifest.paths[row].as_py(), str(table["box"][row].as_py()) if "box" in table.column_names else "")
        if key not in self._images:
            if not needed and self._budget_left <= 0:
                return None
            self._images[key] = _thumbnail(images, row, len(self._images))
            self._budget_left -= len(self._images[key].uri or "") + _MARKUP
            self._on_new(len(self._images))
        return self._images[key]

    def embedded(self) -> list[Thumbnail]:
        """The thumbnails that the page has to contain, in the order in which they were first requested."""
        return [one for one in self._images.values() if one.uri is not None]

    @property
    def broken(self) -> int:
        """Number of images that could not be read."""
        return len(self._images) - len(self.embedded())


_MARKUP = 100  # characters around the data of an image


def public_path(path: str) -> str:
    """The path as in the manifest; only the file name of an absolute path, because pages are sent to other people.

    Example:
        >>> public_path("cars/lada/3.jpg"), public_path("/home/me/cars/3.jpg")
        ('cars/lada/3.jpg', '3.jpg')
    """
    return PurePath(path).name if PurePath(path).is_absolute() else path


def _thumbnail(images: Items, row: int, number: int) -> Thumbnail:
    path = public_path(images.manifest.paths[row].as_py())
    picture = read_picture(images, row, min_short_side=SIDE)
    if not isinstance(picture, Image.Image):
        return Thumbnail(number, SIDE, SIDE, None, path)
    small = picture.convert("RGB")
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return Thumbnail(number, *small.size, "data:image/webp;base64," + base64.b64encode(_compress(small)).decode(), path)


def _compress(picture: Image.Image) -> bytes:
    for quality in QUALITIES:
        file = io.BytesIO()
        picture.save(file, "WEBP", quality=quality, method=4)
        if file.tell() <= LARGEST:
            break
    return file.getvalue()


def label_name(data: RetrievalData, images: Items, row: int, level: int = 0) -> str:
    """Name of the image's label at a level."""
    label = int(images.labels[row, level]) if data.levels else -1
    return data.names[data.levels[level]][label] if label >= 0 else "no label"


def label_path(data: RetrievalData, images: Items, row: int, first: int = 0) -> str:
    """The image's labels from level `first` (0: the finest) to the coarsest."""
    return " · ".join(label_name(data, images, row, level) for level in range(first, len(data.levels)))
