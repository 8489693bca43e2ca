"""Uploaded images: read into memory within limits, used for one search, and never stored."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from anyio.to_thread import run_sync
from python_multipart.exceptions import FormParserError
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from suprank.data.images import BrokenImageError, decode_image

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from PIL import Image
    from starlette.requests import Request

TYPES = (
    "image/jpeg",
    "image/png",
    "image/webp",
    "image/gif",
    "image/bmp",
    "image/tiff",
    "image/avif",
    "image/jp2",
    "image/x-portable-pixmap",
)
"""The formats that are read (`suprank.data.images.FORMATS`), as a browser calls them, to offer no other file."""

MAX_BYTES = 10_000_000
MAX_PIXELS = 50_000_000
SECONDS = 20.0
"""Time limit for decoding an image; the thread then ends by itself, because the pixels are bounded."""

_FORM = 10_000  # bytes of a form besides its image: names, boundaries, filters
_DISCARDED = 20 * MAX_BYTES  # bytes read and dropped before refusing: a browser that is cut off while sending shows no answer


class Uploads:
    """Reads uploads, at most two pictures at a time, so that a burst of them exhausts neither memory nor threads."""

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(2)

    @asynccontextmanager
    async def picture(self, request: Request) -> AsyncGenerator[Image.Image, None]:
        """The picture in the form field `image`, in RGB; use it as a context, since 150 kB of PNG may be 150 MB of pixels.

        Raises HTTPException: 413 above `MAX_BYTES`; 400 for a form without an image, a broken image, or one with more than
        `MAX_PIXELS` pixels. Nothing is written to disk.
        """
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise HTTPException(400, "The request contains no image form; choose an image and press the upload button.")
        parser = MultiPartParser(request.headers, _limited_body(request), max_files=1, max_fields=10, max_part_size=_FORM)
        parser.spool_max_size = MAX_BYTES + _FORM + 1  # starlette would put all above 1 MB into a temporary file
        try:
            form = await parser.parse()
        except (MultiPartException, FormParserError) as error:  # the latter from starlette before 1.0
            raise HTTPException(400, f"The form cannot be read: {error}") from error
        try:
            image = form.get("image")
            if image is None or isinstance(image, str) or not image.size:
                raise HTTPException(400, "The form contains no image; choose one first.")
            if image.size > MAX_BYTES:
                raise _too_large()
            data = await image.read()
        finally:
            await form.close()
        async with self._limiter:
            yield await self._picture(data)

    async def _picture(self, data: bytes) -> Image.Image:
        try:
            with anyio.fail_after(SECONDS):
                return await run_sync(_decode_upload, data, abandon_on_cancel=True)
        except TimeoutError as error:
            raise HTTPException(400, f"The image took more than {SECONDS:g} s to decode; choose a smaller one.") from error


def _decode_upload(data: bytes) -> Image.Image:
    try:
        return decode_image(data, "The file", max_pixels=MAX_PIXELS)
    except BrokenImageError as error:
        reason = str(error).removeprefix("The file: ").replace(", or allow more by max_pixels", "")
        raise HTTPException(400, f"The file {reason}") from error


async def _limited_body(request: Request) -> AsyncGenerator[bytes, None]:
    """The body up to the limit; anything beyond is read and dropped, and then refused."""
    seen = 0
    async for chunk in request.stream():
        seen += len(chunk)
        if seen > _DISCARDED:
            break
        if seen <= MAX_BYTES + _FORM:
            yield chunk
    if seen > MAX_BYTES + _FORM:
        raise _too_large()


def _too_large() -> HTTPException:
    # Close the connection, or uvicorn would keep reading whatever is still sent, endlessly.
    return HTTPException(
        413, f"The image has more than {MAX_BYTES // 1_000_000} MB; choose a smaller one.", headers={"Connection": "close"}
    )
