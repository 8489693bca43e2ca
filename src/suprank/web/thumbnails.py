"""Thumbnails of images, cached in memory, with a placeholder for a missing image."""

from __future__ import annotations

import base64
import io
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from PIL.Image import Image

CACHE_BYTES = 64 * 2**20

PLACEHOLDER = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 96 96"><rect width="96" height="96" fill="#8a939c" opacity=".25"/>'
    b'<path d="M26 34h44v32H26z M26 60l14-13 9 8 8-6 13 11" fill="none" stroke="#78828c" stroke-width="3"/>'
    b'<path d="M22 74 74 26" stroke="#78828c" stroke-width="3"/></svg>'
)


class EncodedImage(NamedTuple):
    """The bytes to send and their media type. `found` is False for the placeholder of a missing image."""

    data: bytes
    media_type: str
    found: bool

    @property
    def cache_headers(self) -> dict[str, str]:
        """Browsers may cache an image, but not the placeholder, because the file may come back."""
        return {"Cache-Control": "private, max-age=86400" if self.found else "no-store"}


class ThumbnailCache:
    """Makes thumbnails on request, and keeps the most recently used ones up to `max_bytes`."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes, self._size = max_bytes, 0
        self._cache: OrderedDict[Hashable, EncodedImage] = OrderedDict()
        self._lock = threading.Lock()

    def thumbnail(self, key: Hashable, side: int, read: Callable[[], Image | None]) -> EncodedImage:
        """The image that `read` returns, at most `side` pixels wide and high, or the placeholder if it returns None.

        `key` identifies the image and its size in the cache.
        """
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        image = read()
        if image is None:
            return EncodedImage(PLACEHOLDER, "image/svg+xml", False)
        encoded = _encode(image, side)
        with self._lock:
            if key not in self._cache:
                self._cache[key] = encoded
                self._size += len(encoded.data)
            while self._size > self._max_bytes:
                _, dropped = self._cache.popitem(last=False)
                self._size -= len(dropped.data)
        return encoded


def data_url(image: Image, side: int) -> str:
    """A thumbnail as a data URL, for an uploaded image that has no other URL."""
    encoded = _encode(image, side)
    return f"data:{encoded.media_type};base64,{base64.b64encode(encoded.data).decode()}"


def _encode(image: Image, side: int) -> EncodedImage:
    small = image.copy()
    small.thumbnail((side, side))
    file = io.BytesIO()
    if small.size == image.size and small.width * small.height <= 128 * 128:  # drawings and letters, which JPEG would smear
        small.save(file, "PNG")
        return EncodedImage(file.getvalue(), "image/png", True)
    small.save(file, "JPEG", quality=87)
    return EncodedImage(file.getvalue(), "image/jpeg", True)
