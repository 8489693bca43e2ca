"""Decode JPEGs with libjpeg-turbo (the package simplejpeg): at a fraction of the size, and only the rows that a crop needs.

PIL, which stays the default and the reference, decodes with the same library, so the pixels are the same. What PIL costs beyond
that is four bytes per pixel, a copy to a tensor, and all rows of the image.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from suprank.data.images import FRACTIONS, MAX_PIXELS, exif_orientation

Decoder = Literal["pil", "turbo"]
"""What decodes JPEGs. Other formats are always PIL's."""

Pixels: TypeAlias = NDArray[np.uint8]

_BASELINE, _EXTENDED, _PROGRESSIVE, _SCAN, _APP1 = 0xC0, 0xC1, 0xC2, 0xDA, 0xE1  # markers; each follows a 0xFF
_EXIF = b"Exif\0\0"
_LEFT_OVER = "extraneous bytes before marker"  # libjpeg's words, of its first warning
_UPRIGHT: dict[int, Callable[[Pixels], Pixels]] = {
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: stored[::-1].swapaxes(0, 1),
    7: lambda stored: stored[::-1, ::-1].swapaxes(0, 1),
    8: lambda stored: stored[:, ::-1].swapaxes(0, 1),
}
_ON_ITS_SIDE = (5, 6, 7, 8)


def check_decoder(decoder: str) -> None:
    """Refuse a decoder that does not exist, or that is not installed."""
    if decoder not in get_args(Decoder):
        raise ValueError(f"decoder={decoder!r} must be one of {', '.join(get_args(Decoder))}.")
    if decoder == "turbo":
        try:
            import simplejpeg  # noqa: F401
        except ModuleNotFoundError as error:
            message = 'the decoder turbo needs simplejpeg, which is not installed; pip install "suprank[vision]", or use pil.'
            raise ModuleNotFoundError(message, name="simplejpeg") from error


def is_installed(decoder: Decoder) -> bool:
    """Whether this machine has the decoder."""
    try:
        check_decoder(decoder)
    except ModuleNotFoundError:
        return False
    return True


class Jpeg(NamedTuple):
    """A JPEG that is not decoded yet: its bytes, its size when upright, its EXIF orientation, and where the bytes say how many
    rows it has, if it is coded row by row (None if progressive)."""

    data: bytes
    width: int
    height: int
    orientation: int
    rows_offset: int | None

    def fraction(self, min_short_side: int | None) -> int:
        """The most by which both sides can be divided for the short one to keep this many pixels; 1 for None."""
        least = min(self.width, self.height) if min_short_side is None else min_short_side
        return next(one for one in FRACTIONS if one == 1 or one * least <= min(self.width, self.height))

    def decode(self, fraction: int = 1, rows: int | None = None) -> Pixels | None:
        """The upright image in RGB `[height, width, 3]`, each side divided by `fraction` and rounded up; None if libjpeg-turbo
        has any complaint, so that PIL decides whether the image is broken.

        Only the first `rows` rows are sure to be decoded, others may be black: rows are coded from top to bottom, so decoding
        can stop below them. Progressive images and those that are stored turned are decoded whole.
        """
        turn = _UPRIGHT.get(self.orientation)
        # Two more rows, because the colors of a row depend on those below if they are stored at half the size.
        if rows is not None and self.rows_offset is not None and turn is None and (rows + 2) * fraction < self.height:
            return self._decode_top((rows + 2) * fraction, fraction)
        try:
            width, height = (self.height, self.width) if self.orientation in _ON_ITS_SIDE else (self.width, self.height)
            stored = _decode(self.data, width, height, fraction)
        except ValueError:
            return None
        return stored if turn is None else np.ascontiguousarray(turn(stored))

    def _decode_top(self, rows: int, fraction: int) -> Pixels | None:
        """The image with only the first of its rows, because the header is made to claim that there are no others."""
        assert self.rows_offset is not None
        data = self.data[: self.rows_offset] + rows.to_bytes(2, "big") + self.data[self.rows_offset + 2 :]
        pixels = np.zeros((-(-self.height // fraction), -(-self.width // fraction), 3), np.uint8)
        try:
            _decode(data, self.width, rows, fraction, pixels)
        except ValueError as error:
            return pixels if _LEFT_OVER in str(error) else None
        return pixels


def _decode(data: bytes, width: int, height: int, fraction: int, buffer: Pixels | None = None) -> Pixels:
    """Decode a JPEG of this size, into the buffer if there is one; raise ValueError for libjpeg's errors and warnings."""
    import simplejpeg

    return simplejpeg.decode_jpeg(
        data, "RGB", min_height=-(-height // fraction), min_width=-(-width // fraction), buffer=buffer
    )


def read_jpeg(data: bytes) -> Jpeg | None:
    """The JPEG in these bytes; None if they are something else, or a JPEG that is left to PIL: with other than 8 bits, inks
    (CMYK), arithmetic or lossless coding, more pixels than are decoded, bytes after its end, or none of its end."""
    if not data.startswith(b"\xff\xd8\xff") or not data.endswith(b"\xff\xd9"):
        return None
    place, exif, frame = 2, b"", None
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker, length = struct.unpack_from(">xBH", data, place)
        if marker == _SCAN:
            break
        if marker == _APP1 and data.startswith(_EXIF, place + 4):
            exif += data[place + (4 + len(_EXIF) if exif else 4) : place + 2 + length]
        if marker in (_BASELINE, _EXTENDED, _PROGRESSIVE) and place + 10 <= len(data):
            frame = (None if marker == _PROGRESSIVE else place + 5, *struct.unpack_from(">BHHB", data, place + 4))
        place += 2 + length
    if frame is None:
        return None
    offset, bits, height, width, components = frame
    if bits != 8 or components not in (1, 3) or not 0 < width * height <= MAX_PIXELS:
        return None
    orientation = exif_orientation(exif)
    size = (height, width) if orientation in _ON_ITS_SIDE else (width, height)
    return Jpeg(data, *size, orientation, offset)
