"""State that all requests share: the project, its branches, templates, sample images and suggestions."""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from functools import cache
from importlib.resources import files
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.data.image_files import ImageFiles
from suprank.hierarchy.project import BusyError, FullError, Project
from suprank.hierarchy.review.branch import Branch
from suprank.hierarchy.review.web.queries import read_event
from suprank.hierarchy.review.web.suggestions import Suggestions
from suprank.hierarchy.text import label_key
from suprank.web.pages import stylesheet, template_environment
from suprank.web.thumbnails import EncodedImage, ThumbnailCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jinja2 import Environment
    from PIL.Image import Image

    from suprank.data import Manifest
    from suprank.hierarchy.review.branch import Event
    from suprank.hierarchy.review.web.auth import AnnotatorRequest
    from suprank.hierarchy.review.web.queries import SampleItem

SCRIPTS = ("navigation.js", "script.js")

BUSY_SECONDS = 2.0
"""How long a form waits while another process writes to the project. Shorter than the 3 s for which the command line lets
requests finish after Ctrl-C, so that every annotator gets an answer: saved, or not."""

SAMPLE_SIDE = 120
"""The longest side of a sample image, in pixels."""

MAX_DECODING = 2
"""Images decoded at the same time: a page requests hundreds at once, and a large one takes half a gigabyte."""


class Review:
    """The state of the server."""

    def __init__(self, project: Project, names: Iterable[str]) -> None:
        self.project = Project(project.folder, busy_seconds=min(project.busy_seconds, BUSY_SECONDS))
        self.branches = {name: Branch(self.project, name) for name in names}
        self.version = secrets.token_hex(4)  # in the URLs of styles and scripts, so that browsers reload them
        self.templates = Templates(self)
        self.samples, self.no_images_reason = _read_samples(self.project)
        self.suggestions = Suggestions(self.project)
        self._impatient = Project(project.folder, busy_seconds=0.0)

    def remember(self, branch: Branch, group: int) -> None:
        """Save which group the annotator opened last; skipped if somebody else is writing."""
        with self._impatient.snapshot() as db:
            if db.execute("SELECT last_group FROM branch WHERE id = ?", (branch.id,)).fetchone()[0] == group:
                return
        with suppress(BusyError, FullError), self._impatient.transaction() as db:
            db.execute("UPDATE branch SET last_group = ? WHERE id = ?", (group, branch.id))

    def image_rows(self, label: str, items: Sequence[SampleItem]) -> list[int]:
        """Manifest rows that show a label: one for each of these items, or some of the label itself if it has none."""
        if self.samples is None:
            return []
        if items:
            return [row for one in items for row in self.samples.rows(one.key, one.split, 1)]
        return self.samples.rows(label)


class Templates:
    """Renders the templates of a review.

    A template extends base.html and fills the blocks `title` and `main`. It gets `request` (the `AnnotatorRequest`), `branch`,
    `prefix` ("/anna"), `levels` of the recipe, `undo` and `redo` (events or None), `done_event` (the event that led to the
    page, which base.html reports), `new_token()` for a form, `link` and `count`; also `message` (why something was refused) and
    `form` (the refused form whose fields are kept), both None unless the page passes them.
    """

    def __init__(self, review: Review) -> None:
        recipe = review.project.recipe
        self._values = {"review": review, "recipe": recipe, "levels": recipe.levels}
        folder = files("suprank.hierarchy.review.web")
        self.style = f"{stylesheet()}\n{(folder / 'page.css').read_text(encoding='utf-8')}"
        self.script = "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)

    def render(self, template: str, request: AnnotatorRequest | None = None, **values: Any) -> str:
        """Render a template for an annotator's request, or without one for a stranger."""
        shared: dict[str, Any] = {
            **self._values,
            "request": request,
            "branch": None,
            "prefix": "",
            "message": None,
            "form": None,
        }
        if request is not None:
            undo, redo = request.branch.undoable()
            shared |= {"branch": request.branch, "prefix": request.prefix}
            shared |= {"undo": undo, "redo": redo, "done_event": _done_event(request)}
        return _environment().get_template(template).render(**{**shared, **values})


@cache
def _environment() -> Environment:
    """The templates, compiled once per process."""
    environment = template_environment("suprank.hierarchy.review.web")
    environment.filters.update(
        when=format_time, figure=format_number, spaces=hidden_spaces, without_undid=lambda text: text.removeprefix("undid: ")
    )
    environment.globals.update(new_token=lambda: secrets.token_urlsafe(9))
    return environment


def _done_event(request: AnnotatorRequest) -> Event | None:
    """The event that led to this page, if the URL names one."""
    text = request.query.get("did", "")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        return None
    with request.project.snapshot() as db:
        return read_event(db, request.branch, int(text))


def format_time(at: str) -> str:
    """A time of the log, to the minute.

    Example:
        >>> format_time("2026-11-15T09:08:07.123Z")
        '2026-11-15 09:08'
    """
    return at[:16].replace("T", " ")


def hidden_spaces(text: str) -> str:
    """Spaces of a name that a browser hides, in words; empty if there are none.

    Example:
        >>> hidden_spaces("ocean area "), hidden_spaces(" a  b"), hidden_spaces("a b")
        ('ends with a space', 'starts with a space, has several spaces in a row', '')
    """
    inner = text.strip()
    found = {"starts with a space": text != text.lstrip(), "ends with a space": text != text.rstrip()}
    found["has several spaces in a row"] = any(one.isspace() and two.isspace() for one, two in pairwise(inner))
    return ", ".join(words for words, applies in found.items() if applies)


def format_number(value: float | None) -> str:
    """A number with two decimals, or a dash for None.

    Example:
        >>> format_number(0.4567), format_number(None)
        ('0.46', '–')
    """
    return "–" if value is None else f"{value:.2f}"


class SampleImages:
    """Sample images of items and labels: manifest rows by the name of their label at one level. URLs have rows, not paths."""

    def __init__(self, manifest: Manifest, level: str, splits: set[str]) -> None:
        """`splits` are those of the project's items; if the manifest has them too, an item has only images of its own split."""
        if level not in manifest.levels:
            raise ValueError(f"the manifest has no level {level!r}; choose from {', '.join(manifest.levels) or 'none'}.")
        manifest.require_single_labels("the review of a hierarchy")
        codes = manifest.labels[:, manifest.levels.index(level)]
        self.manifest, self._item_splits = manifest, splits
        self._order = np.argsort(codes, kind="stable")
        self._sorted_codes = codes[self._order]
        self._codes = {label_key(name): code for code, name in enumerate(manifest.names[level])}
        self._thumbnails, self._files = ThumbnailCache(), ImageFiles(manifest.root)
        self._decoding = threading.Semaphore(MAX_DECODING)

    @classmethod
    def from_project(cls, project: Project) -> SampleImages | None:
        """The sample images of the manifest that the project names, or None."""
        from suprank.data import Manifest

        path, level, root = (project.meta(key) for key in ("manifest", "manifest_level", "manifest_root"))
        if path is None or level is None:
            return None
        with project.snapshot() as db:
            splits = {row[0] for row in db.execute("SELECT DISTINCT split FROM item")}
        return cls(Manifest.read(path, root=root), level, splits)

    def rows(self, name: str, split: str | None = None, limit: int = 3) -> list[int]:
        """Some rows of a label, or of an item of this split."""
        code = self._codes.get(label_key(name))
        if code is None:
            return []
        first, last = np.searchsorted(self._sorted_codes, [code, code + 1])
        found = (int(row) for row in self._order[first:last] if split is None or self._is_of_split(int(row), split))
        return list(islice(found, limit))

    def thumbnail(self, row: int) -> EncodedImage:
        """The thumbnail of a row."""
        return self._thumbnails.thumbnail(row, SAMPLE_SIDE, lambda: self._read(row))

    def _is_of_split(self, row: int, split: str) -> bool:
        own = self.manifest.table["split"][row].as_py()
        return own == split or (split not in self.manifest.splits and own not in self._item_splits)

    def _read(self, row: int) -> Image | None:
        # Without ImageDataset, which takes seconds to import because of torch.
        from suprank.data.images import decode_image

        path, table = self.manifest.paths[row].as_py(), self.manifest.table
        box = table["box"][row].as_py() if "box" in table.column_names else None
        try:
            with self._decoding:
                data = self._files.read(path)
                if box is None:
                    return decode_image(data, path, min_short_side=SAMPLE_SIDE)
                return decode_image(data, path).crop(tuple(map(round, box)))
        except (OSError, ValueError):  # archives and images raise ValueError
            return None


def _read_samples(project: Project) -> tuple[SampleImages | None, str]:
    """The sample images, or the reason why there are none: a review works without them."""
    try:
        return SampleImages.from_project(project), ""
    except (OSError, ValueError) as error:
        return None, str(error)
