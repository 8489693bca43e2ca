"""Encoded bytes to a picture in RGB, whatever the file holds; a file that holds no whole picture is an error that names it."""

from __future__ import annotations

import io
import re
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile

MAX_PIXELS = 178_956_970
"""The most pixels a picture may claim to have: where PIL, too, calls it a decompression bomb."""

MAX_ASPECT = 32
"""Pictures that are more times as long as wide are cropped to this about their center before their short side is resized: of a
strip of 500,000 × 1 pixels, 1.5 kB of PNG, 256 × 128,000,000 would be left."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
"""What is read, by PIL's names. PIL knows more, such as PostScript, for which it starts a program: not on files of others."""

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
    """A file that holds no picture, or not the whole of it, or one too large to open. The message begins with its name."""


class Facts(NamedTuple):
    """What a file says of its picture, as stored: before it is turned upright and made RGB."""

    format: str
    mode: str
    width: int
    height: int


def decoded(
    data: bytes, name: str, *, at_least: int | tuple[int, int] | None = None, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """The picture as it is meant to be seen, in RGB; errors call it `name`.

    Turned upright as its EXIF orientation says. Gray, 1-bit, palette and CMYK pictures (with Adobe's inverted inks, and YCCK)
    become RGB; transparent ones lie on white; 16 bits are scaled down to 8 by 257, not cut off; 32-bit integers and floats,
    which have no agreed white, are stretched from their least to their greatest value. Of an animation: the first frame. Color
    profiles are ignored, as torchvision does.

    `at_least` lets a JPEG be decoded at 1/2, 1/4 or 1/8 of its size, the smallest of which the short side still has that many
    pixels, so that resizing to `at_least` only ever makes smaller. It saves most of the time on large photographs; the
    pixels differ a little from those of a full decoding resized. A pair asks for its greater number.

    Raises BrokenImageError for bytes that are no picture of `FORMATS`, for a truncated or damaged one, and, before
    decoding, for one of more than `max_pixels` pixels.
    """
    short = _short_side(at_least)
    with _broken_means(name):
        stored = _loaded(_opened(data, max_pixels), short)
        turn = _UPRIGHT.get(_orientation(stored.info.get("exif", b"")))
        picture = _rgb(stored) if turn is None else _rgb(stored).transpose(turn)
        picture.info = {}  # its EXIF would have it turned twice
        return picture


def facts(data: bytes, name: str, *, max_pixels: int = MAX_PIXELS) -> Facts:
    """What the file says, after decoding all of it, as coarsely as can be, to know that it is whole. Raises as `decoded`."""
    with _broken_means(name):
        picture = _opened(data, max_pixels)
        found = Facts(str(picture.format), picture.mode, picture.width, picture.height)
        _loaded(picture, 1)
        return found


# What people have in place of images. What else a file holds is not told: it may be a link to one that is nobody's business.
_OTHER_FILES = {
    b"version https://git-lfs": "a pointer of Git LFS; fetch the file itself",
    b"<": "a web page or XML",
    b"%PDF": "a PDF",
    b"PK\x03\x04": "a .zip archive",
}
_BYTES = re.compile(r"""b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*\"""")  # which PIL quotes from the file


@contextmanager
def _broken_means(name: str) -> Iterator[None]:
    """Raises whatever PIL raises on damaged files, which is nearly anything, as a BrokenImageError."""
    try:
        yield
    except MemoryError:  # says something of the machine
        raise
    except Exception as error:
        said = _BYTES.sub("...", str(error)) or type(error).__name__
        reason = said if isinstance(error, BrokenImageError) else f"cannot be decoded ({said})"
        raise BrokenImageError(f"{name}: {reason}.") from error


def _short_side(at_least: int | tuple[int, int] | None) -> int | None:
    short = max(at_least) if isinstance(at_least, tuple) else at_least
    if short is not None and short < 1:
        raise ValueError(f"at_least={at_least!r} must be a number of pixels of at least 1, or None for the full size.")
    return short


# Opening


class _Jpeg(JpegImageFile):
    def _read_dpi_from_exif(self) -> None:
        """Nobody asks for the resolution here, and parsing EXIF for it is slow, and warns where it is damaged."""


def _opened(data: bytes, max_pixels: int) -> ImageFile.ImageFile:
    """The picture with its header read and nothing decoded, refused if it is too large."""
    if not data:
        raise BrokenImageError("is empty")
    with nullcontext() if data.startswith(b"\xff\xd8\xff") else _silence():
        picture = _identified(data)
    if picture.width * picture.height > max_pixels:
        raise BrokenImageError(
            f"claims {picture.width:,} × {picture.height:,} pixels, and more than {max_pixels:,} are not decoded; "
            f"make it smaller, or allow more by max_pixels"
        )
    return picture


def _identified(data: bytes) -> ImageFile.ImageFile:
    # Not Image.open, which on large pictures warns or raises before anyone can ask for the size.
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
    """PIL warns of odd metadata, which a training run need not hear of. The filters are the whole process's: one at a time."""
    with _warning_filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _loaded(picture: ImageFile.ImageFile, short: int | None) -> ImageFile.ImageFile:
    if short is not None:
        picture.draft(picture.mode, (short, short))  # does nothing but for JPEG
    with _silence() if picture.format == "TIFF" else nullcontext():
        picture.load()
    return picture


def _orientation(exif: bytes) -> int:
    """The orientation, 1 to 8, that EXIF data tell; 1, upright, where they do not or are damaged."""
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


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture
    if picture.mode == "F" or picture.mode.startswith("I"):
        picture = _eight_bits(picture)
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    visible = picture.convert("RGBA")
    white = Image.new("RGB", picture.size, "white")
    white.paste(visible, mask=visible.getchannel("A"))
    return white


def _eight_bits(picture: Image.Image) -> Image.Image:
    values = np.asarray(picture)
    # PIL holds the 16 bits of a .pgm file, and in older versions those of a .png file, in 32.
    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in ("PNG", "PPM")):
        return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise BrokenImageError("holds pixels that are not finite numbers")
    low, high = values.min(), values.max()
    return Image.fromarray(np.rint((values - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8))
