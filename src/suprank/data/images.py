"""Decode the bytes of an image file to a PIL image in RGB; a file that is not a complete image is an error that names it."""

from __future__ import annotations

import io
import re
import struct
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile

MAX_PIXELS = 178_956_970
"""The most pixels an image may claim to have; above this PIL, too, calls it a decompression bomb."""

MAX_ASPECT = 32
"""Images more times as long as wide than this are cropped to it around their center before their short side is resized: a strip
of 500,000 × 1 pixels, 1.5 kB of PNG, would become 256 × 128,000,000 pixels."""

FRACTIONS = (8, 4, 2, 1)
"""JPEGs are decoded at 1/8, 1/4, 1/2 or all of their size. At other eighths libjpeg-turbo takes longer than at full size."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
"""The formats that are read, by PIL's names. PIL has more, such as PostScript, for which it starts a program: unsafe here."""

_STRIP_PIXELS = 1 << 20
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_warning_filters = threading.Lock()


class BrokenImageError(ValueError):
    """A file is not an image, is incomplete or damaged, or is too large to open. The message begins with its name."""


class BrokenImage(NamedTuple):
    """An image that could not be read, in place of an `ImageItem`: its row, its path, and the reason."""

    index: int  # type: ignore[assignment]
    path: str
    reason: str


class ImageInfo(NamedTuple):
    """Properties of an image as stored: before it is rotated upright and converted to RGB."""

    format: str
    mode: str
    width: int
    height: int


def decode_image(
    data: bytes, name: str, *, min_short_side: int | tuple[int, int] | None = None, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Decode an image to RGB as it is meant to be seen; errors call it `name`.

    The image is rotated upright according to its EXIF orientation. Gray, 1-bit, palette and CMYK images (with Adobe's inverted
    inks, and YCCK) become RGB; transparent ones are put on white; 16 bits are scaled to 8 by 257, not cut off; 32-bit integers
    and floats, which have no agreed white, are stretched from their minimum to their maximum. Of an animation, the first frame
    is used. Color profiles are ignored, as in torchvision.

    `min_short_side` lets a JPEG be decoded at 1/2, 1/4 or 1/8 of its size, the smallest at which the short side still has that
    many pixels, so that resizing to `min_short_side` never enlarges. This saves most of the time on large photographs; the
    pixels differ a little from those of a full decoding. Of a pair, the greater number counts.

    Raises BrokenImageError for bytes that are no image in one of `FORMATS`, for a truncated or damaged image, and, before
    decoding, for one of more than `max_pixels` pixels.
    """
    short = min_pixels(min_short_side)
    with _raise_broken(name):
        stored = _load(_open(data, max_pixels), short)
        turn = _UPRIGHT.get(exif_orientation(stored.info.get("exif", b"")))
        picture = _to_rgb(stored) if turn is None else _to_rgb(stored).transpose(turn)
        picture.info = {}  # its EXIF would have it turned twice
        return picture


def inspect_image(data: bytes, name: str, *, max_pixels: int = MAX_PIXELS) -> ImageInfo:
    """The properties of an image, after decoding it as coarsely as possible to verify that it is complete. Raises like
    `decode_image`."""
    with _raise_broken(name):
        picture = _open(data, max_pixels)
        info = ImageInfo(str(picture.format), picture.mode, picture.width, picture.height)
        _load(picture, 1)
        return info


def image_extension(data: bytes, name: str) -> str:
    """The usual extension of an image of this format, such as "jpg"; only the header is read. Raises like `decode_image`."""
    with _raise_broken(name):
        kind = str(_open(data, MAX_PIXELS).format)
    return {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif", "JPEG2000": "jp2"}.get(kind, kind.lower())


# What people have in place of images. Errors quote nothing else of a file: it may be a link to somebody's private file.
_OTHER_FILES = {
    b"version https://git-lfs": "a Git LFS pointer; fetch the file itself",
    b"<": "a web page or XML",
    b"%PDF": "a PDF",
    b"PK\x03\x04": "a .zip archive",
}
_BYTES = re.compile(r"""b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*\"""")  # PIL quotes bytes of the file


@contextmanager
def _raise_broken(name: str) -> Iterator[None]:
    """Raise every error of PIL as a BrokenImageError: on damaged files it raises nearly anything."""
    try:
        yield
    except MemoryError:  # a problem of the machine, not of the file
        raise
    except Exception as error:
        message = _BYTES.sub("...", str(error)) or type(error).__name__
        reason = message if isinstance(error, BrokenImageError) else f"cannot be decoded ({message})"
        raise BrokenImageError(f"{name}: {reason}.") from error


def min_pixels(min_short_side: int | tuple[int, int] | None) -> int | None:
    short = max(min_short_side) if isinstance(min_short_side, tuple) else min_short_side
    if short is not None and short < 1:
        raise ValueError(
            f"min_short_side={min_short_side!r} must be a number of pixels of at least 1, or None for the full size."
        )
    return short


# Opening


class _Jpeg(JpegImageFile):
    def _read_dpi_from_exif(self) -> None:
        """Skipped: the resolution is not needed, and parsing EXIF for it is slow and warns if it is damaged."""


def _open(data: bytes, max_pixels: int) -> ImageFile.ImageFile:
    """The image with its header read and nothing decoded; refused if it is too large."""
    if not data:
        raise BrokenImageError("is empty")
    with nullcontext() if data.startswith(b"\xff\xd8\xff") else _silence():
        picture = _identify(data)
    if picture.width * picture.height > max_pixels:
        raise BrokenImageError(
            f"claims {picture.width:,} × {picture.height:,} pixels, and more than {max_pixels:,} are not decoded; "
            f"make it smaller, or allow more by max_pixels"
        )
    return picture


def _identify(data: bytes) -> ImageFile.ImageFile:
    # Not Image.open, which warns or raises on large images before we can see the size.
    if data.startswith(b"\xff\xd8\xff"):
        return _Jpeg(io.BytesIO(data))
    Image.init()
    for kind in FORMATS:
        opener, accepts = Image.OPEN.get(kind, (None, None))
        if opener is not None and accepts is not None and accepts(data[:16]) is True:
            return opener(io.BytesIO(data), "")
    looks = next((kind for start, kind in _OTHER_FILES.items() if data.lstrip().startswith(start)), None)
    raise BrokenImageError(f"is not an image ({', '.join(FORMATS)} are)" + (f": it looks like {looks}" if looks else ""))


@contextmanager
def _silence() -> Iterator[None]:
    """Silence PIL's warnings about odd metadata. Warning filters belong to the whole process, so one thread at a time."""
    with _warning_filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _load(picture: ImageFile.ImageFile, short: int | None) -> ImageFile.ImageFile:
    if short is not None:
        picture.draft(picture.mode, (short, short))  # affects JPEG only
    with _silence() if picture.format == "TIFF" else nullcontext():
        picture.load()
    return picture


def exif_orientation(exif: bytes) -> int:
    """The orientation in EXIF data, 1 to 8; 1, upright, if there is none or the data are damaged."""
    while exif.startswith(b"Exif\0\0"):
        exif = exif[6:]
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(f"{order}HH", exif, entry)
            if tag == _ORIENTATION:
                return int(struct.unpack_from(f"{order}{'I' if kind == 4 else 'H'}", exif, entry + 8)[0])
    except struct.error:
        pass
    return 1


# Modes


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture
    if picture.mode == "F" or picture.mode.startswith("I"):
        picture = _to_eight_bits(picture)
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    white = Image.new("RGB", picture.size, "white")
    for box in _strips(picture):
        visible = picture.crop(box).convert("RGBA")
        white.paste(visible, box, visible)
    return white


def _strips(picture: Image.Image) -> list[tuple[int, int, int, int]]:
    """Boxes of some rows each: a float image as a whole would take 26 bytes a pixel."""
    rows = max(1, _STRIP_PIXELS // picture.width)
    return [(0, top, picture.width, min(top + rows, picture.height)) for top in range(0, picture.height, rows)]


def _to_eight_bits(picture: Image.Image) -> Image.Image:
    # PIL stores the 16 bits of a .pgm file, and in older versions those of a .png file, in 32.
    low, high = 0.0, 65535.0
    if not (picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in ("PNG", "PPM"))):
        numbers = (np.asarray(picture.crop(box), np.float64) for box in _strips(picture))
        extremes = np.array([(strip.min(), strip.max()) for strip in numbers])
        if not np.isfinite(extremes).all():  # NaN is the minimum of its strip
            raise BrokenImageError("has pixels that are not finite numbers")
        low, high = extremes.min(), extremes.max()
    gray = np.empty((picture.height, picture.width), np.uint8)
    for box in _strips(picture):
        values = np.asarray(picture.crop(box), np.float64)
        gray[box[1] : box[3]] = np.rint((values - low) * (255 / (high - low) if high > low else 0))
    return Image.fromarray(gray)


def crop_to_box(picture: Image.Image, box: Sequence[float], path: str) -> Image.Image:
    """Crop an upright image to (left, top, right, bottom) in pixels; a box that is mostly outside of it is an error."""
    left, top, right, bottom = (round(edge) for edge in box)
    inside = max(left, 0), max(top, 0), min(right, picture.width), min(bottom, picture.height)
    width, height = inside[2] - inside[0], inside[3] - inside[1]
    if width < 1 or height < 1 or 2 * width * height < (right - left) * (bottom - top):
        raise BrokenImageError(
            f"{path}: the box {', '.join(f'{edge:g}' for edge in box)} is outside of the image, which has {picture.width} × "
            f"{picture.height} pixels; was it made smaller? Give boxes for its size, or use crop_boxes=False."
        )
    return picture.crop(inside)
