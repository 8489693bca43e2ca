"""Font files and the shapes of their characters: which characters a font has, and which look the same."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont


@dataclass(frozen=True)
class Face:
    """One font file, ready to draw."""

    name: str
    font: ImageFont.FreeTypeFont
    has: frozenset[str]
    digest: str


@dataclass(frozen=True)
class Shape:
    """A character as a face draws it: coverage 0 to 255, and the top of the bitmap relative to the baseline."""

    face: str
    size: tuple[int, int]
    pixels: bytes = field(repr=False)
    top: int

    @cached_property
    def ink(self) -> int:
        """The sum of the coverage."""
        return int(np.frombuffer(self.pixels, np.uint8).sum(dtype=np.int64))


def load_face(path: Path, em: int, trusted: Iterable[str] | None = None) -> Face:
    """Load a font file at a size of `em` pixels, with the `trusted` characters, or all.

    The characters of a font are those in its character map; the box that it draws for a missing character does not count.
    """
    from matplotlib.ft2font import FT2Font

    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; fonts are .ttf or .otf files.")
    try:
        # Basic layout: a single character needs no shaping, and libraqm is not on every machine.
        font = ImageFont.truetype(path, em, layout_engine=ImageFont.Layout.BASIC)
        listed = frozenset(chr(code) for code in FT2Font(str(path)).get_charmap())
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} is not a font that can be read ({error}); give .ttf or .otf files.") from error
    has = listed if trusted is None else listed & frozenset(trusted)
    return Face(path.stem, font, has, hashlib.sha256(path.read_bytes()).hexdigest())


def can_draw(path: Path, characters: Collection[str] | None = None) -> bool:
    """Whether this is a font of outlines, and has one of the characters, if they are given. Bitmaps have sizes of their own."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(str(path))
        ImageFont.truetype(path, layout_engine=ImageFont.Layout.BASIC)
    except (OSError, RuntimeError, ValueError):
        return False
    codes = font.get_charmap().keys()
    return bool(font.scalable and codes) and (characters is None or not codes.isdisjoint(map(ord, characters)))


def unique_names(faces: Sequence[Face]) -> list[Face]:
    """The faces, with numbers after repeated names: a font of the user may have the file name of one of ours."""
    seen: Counter[str] = Counter()
    unique = []
    for face in faces:
        seen[face.name] += 1
        unique.append(face if seen[face.name] == 1 else replace(face, name=f"{face.name}-{seen[face.name]}"))
    return unique


def distinct_shapes(drawn: Iterable[tuple[str, list[Shape]]], fewest: int) -> dict[str, list[Shape]]:
    """Character → its shapes, for those `drawn` with at least `fewest` shapes that look like no earlier character.

    A character looks like an earlier one if more than half of its faces draw the two alike.
    """
    distinct: dict[str, list[Shape]] = {}
    earlier: dict[tuple[object, ...], list[tuple[str, Shape]]] = {}  # by face, size and height
    for character, shapes in drawn:
        places = [earlier.setdefault((shape.face, shape.size, shape.top), []) for shape in shapes]
        pairs = zip(shapes, places, strict=True)
        twins = Counter(other for shape, place in pairs for other, like in place if _look_alike(shape, like))
        if len(shapes) < fewest or max(twins.values(), default=0) > len(shapes) / 2:
            continue
        distinct[character] = shapes
        for shape, place in zip(shapes, places, strict=True):
            place.append((character, shape))
    return distinct


def shapes_of(character: str, faces: Iterable[Face]) -> list[Shape]:
    """The shapes of a character in the faces that have it, without empty and repeated ones."""
    shapes: list[Shape] = []
    for face in faces:
        shape = _shape(character, face) if character in face.has else None
        if shape is not None and not any(_look_alike(shape, other) for other in shapes):
            shapes.append(shape)
    return shapes


def _look_alike(one: Shape, other: Shape) -> bool:
    """Whether two shapes have equal sizes and differ by at most 3 % of the ink, as one outline may by hinting."""
    if one.size != other.size or abs(one.ink - other.ink) > 0.03 * (one.ink + other.ink):
        return False
    ink, like = (np.frombuffer(shape.pixels, np.uint8).astype(np.int32) for shape in (one, other))
    return bool(np.abs(ink - like).sum() <= 0.03 * np.maximum(ink, like).sum())


def _shape(character: str, face: Face) -> Shape | None:
    try:
        left, top, right, bottom = (round(side) for side in face.font.getbbox(character, anchor="ls"))
    except OSError:  # FreeType stumbles over this outline, "invalid opcode" for one
        return None
    if right <= left or bottom <= top:  # some kind of space
        return None
    canvas = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(canvas).text((-left, -top), character, fill=255, font=face.font, anchor="ls")
    box = canvas.getbbox()
    if box is None:
        return None
    ink = canvas.crop(box)
    return Shape(face.name, ink.size, ink.tobytes(), top + box[1])
