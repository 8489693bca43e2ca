"""Images of a page: each is made small, embedded once, and shown wherever it is needed, without a script."""

from __future__ import annotations

import base64
import io
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable

    from suprank.explorer.images import Images

SIDE = 112  # pixels of the longer side: tiles are 84 to 96 wide, screens often finer
QUALITY = 70  # of WebP: 1 to 4 kB an image
BUDGET = 14 * 2**20  # bytes of embedded images as they stand in the page, which is to stay below 20 MB


class Thumbnail(NamedTuple):
    """An embedded image: the id of its <symbol>, its size and its data URI; None in place of that for one that is broken."""

    id: str
    width: int
    height: int
    uri: str | None
    path: str


class Thumbnails:
    """The images of a page, in the order in which they were first asked for. The same image of two runs is one.

    A broken or missing image has a tile that says so, with its path. When the budget is used up, `get` with `needed=False`
    gives None: a map can do without a picture, a gallery cannot. `made` is told how many there are, after each.
    """

    def __init__(self, budget: int = BUDGET, made: Callable[[int], None] = lambda number: None) -> None:
        self._left, self._told = budget, made
        self._found: dict[tuple[str, str], Thumbnail] = {}

    def get(self, images: Images, row: int, *, needed: bool = True) -> Thumbnail | None:
        """The image of a row, embedded on the first call."""
        table = images.items.table
        key = (images.path(row), str(table["box"][row].as_py()) if "box" in table.column_names else "")
        if key not in self._found:
            if not needed and self._left <= 0:
                return None
            self._found[key] = _made(images, row, f"i{len(self._found)}")
            self._left -= len(self._found[key].uri or "")
            self._told(len(self._found))
        return self._found[key]

    def embedded(self) -> list[Thumbnail]:
        """Those that the page has to hold."""
        return [one for one in self._found.values() if one.uri is not None]

    @property
    def broken(self) -> int:
        """How many could not be read."""
        return len(self._found) - len(self.embedded())


def shown_path(path: str) -> str:
    """The path as the manifest has it; of an absolute one its name alone, because a page travels to other machines.

    Example:
        >>> shown_path("cars/lada/3.jpg"), shown_path("/home/me/cars/3.jpg")
        ('cars/lada/3.jpg', '3.jpg')
    """
    return PurePath(path).name if PurePath(path).is_absolute() else path


def _made(images: Images, row: int, name: str) -> Thumbnail:
    path = shown_path(images.path(row))
    found = images.picture(row, at_least=SIDE)
    if not isinstance(found, Image.Image):
        return Thumbnail(name, SIDE, SIDE, None, path)
    small = found.convert("RGB")
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS, reducing_gap=2.0)
    file = io.BytesIO()
    small.save(file, "WEBP", quality=QUALITY, method=4)
    return Thumbnail(name, *small.size, "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode(), path)
