"""Pictures, made small for a page and kept in memory; a drawing in place of one that is missing."""

from __future__ import annotations

import base64
import io
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from PIL.Image import Image

KEPT_BYTES = 64 * 2**20

MISSING = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 96 96"><rect width="96" height="96" fill="#8a939c" opacity=".25"/>'
    b'<path d="M26 34h44v32H26z M26 60l14-13 9 8 8-6 13 11" fill="none" stroke="#78828c" stroke-width="3"/>'
    b'<path d="M22 74 74 26" stroke="#78828c" stroke-width="3"/></svg>'
)


class Encoded(NamedTuple):
    """What is sent: bytes, their type, and whether it is the picture, not the drawing for a missing one."""

    data: bytes
    kind: str
    there: bool

    @property
    def kept(self) -> dict[str, str]:
        """The header that lets a browser keep a picture, but not a drawing: the file may come back."""
        return {"Cache-Control": "private, max-age=86400" if self.there else "no-store"}


class Pictures:
    """Makes pictures small when they are asked for, and keeps those of the last `kept_bytes`."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._most, self._size = kept_bytes, 0
        self._kept: OrderedDict[Hashable, Encoded] = OrderedDict()
        self._lock = threading.Lock()

    def encoded(self, key: Hashable, side: int, read: Callable[[], Image | None]) -> Encoded:
        """The picture that `read` gives, no larger than `side`; the drawing where that is None. `key` names both."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = read()
        if found is None:
            return Encoded(MISSING, "image/svg+xml", False)
        made = _made(found, side)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._size += len(made.data)
            while self._size > self._most:
                _, dropped = self._kept.popitem(last=False)
                self._size -= len(dropped.data)
        return made


def data_address(picture: Image, side: int) -> str:
    """A picture as an address that holds it: an uploaded one has no other."""
    made = _made(picture, side)
    return f"data:{made.kind};base64,{base64.b64encode(made.data).decode()}"


def _made(picture: Image, side: int) -> Encoded:
    small = picture.copy()
    small.thumbnail((side, side))
    file = io.BytesIO()
    if small.size == picture.size and small.width * small.height <= 128 * 128:  # drawings, and letters: JPEG would smear them
        small.save(file, "PNG")
        return Encoded(file.getvalue(), "image/png", True)
    small.save(file, "JPEG", quality=87)
    return Encoded(file.getvalue(), "image/jpeg", True)
