"""Font files, and the shapes of characters in them: which a font really has, and which look the same."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
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
    """A character as a face draws it, undisturbed: coverage 0 to 255, and where the bitmap's top is from the baseline."""

    face: str
    size: tuple[int, int]
    pixels: bytes = field(repr=False)
    top: int


def face(path: Path, em: int, trusted: Iterable[str] | None = None) -> Face:
    """The face of a font file at a size of `em` pixels; of its characters, those that are `trusted`, or all.

    What a font has is what its character map lists, and never the box that it draws for a missing character.
    """
    from matplotlib.ft2font import FT2Font

    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such font file; fonts are .ttf or .otf files.")
    try:
        # Basic layout: a character by itself wants no shaping, and libraqm is not on every machine.
        font = ImageFont.truetype(path, em, layout_engine=ImageFont.Layout.BASIC)
        listed = frozenset(chr(code) for code in FT2Font(str(path)).get_charmap())
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} is not a font that can be read ({error}); give .ttf or .otf files.") from error
    has = listed if trusted is None else listed & frozenset(trusted)
    return Face(path.stem, font, has, hashlib.sha256(path.read_bytes()).hexdigest())


def named_apart(faces: Sequence[Face]) -> list[Face]:
    """The faces, those of a name that came before numbered: a file name is all a font of yours and one of ours may share."""
    seen: Counter[str] = Counter()
    apart = []
    for face in faces:
        seen[face.name] += 1
        apart.append(face if seen[face.name] == 1 else replace(face, name=f"{face.name}-{seen[face.name]}"))
    return apart


def distinct_shapes(characters: Iterable[str], faces: Sequence[Face], fewest: int) -> dict[str, list[Shape]]:
    """Character → its shapes, for the characters that have `fewest` different ones, and look like no character before.

    Left out is a character that more than half of its faces draw as they draw one and the same earlier character.
    """
    drawn: dict[str, list[Shape]] = {}
    earlier: dict[tuple[object, ...], list[tuple[str, Shape]]] = {}  # what each face draws at this size and height
    for character in characters:
        shapes = _drawn(character, faces)
        places = [earlier.setdefault((shape.face, shape.size, shape.top), []) for shape in shapes]
        pairs = zip(shapes, places, strict=True)
        twins = Counter(other for shape, place in pairs for other, like in place if _alike(shape, like))
        if len(shapes) < fewest or max(twins.values(), default=0) > len(shapes) / 2:
            continue
        drawn[character] = shapes
        for shape, place in zip(shapes, places, strict=True):
            place.append((character, shape))
    return drawn


def _drawn(character: str, faces: Sequence[Face]) -> list[Shape]:
    """A shape for each face that has the character; one that repeats another face's, or is empty, is left out."""
    found: list[Shape] = []
    for face in faces:
        shape = _shape(character, face) if character in face.has else None
        if shape is not None and not any(_alike(shape, other) for other in found):
            found.append(shape)
    return found


def _alike(one: Shape, other: Shape) -> bool:
    """Whether two shapes differ by no more than hinting makes one outline differ: equal sizes, and 3 % of the ink."""
    if one.size != other.size:
        return False
    ink, like = (np.frombuffer(shape.pixels, np.uint8).astype(np.int32) for shape in (one, other))
    return bool(np.abs(ink - like).sum() <= 0.03 * np.maximum(ink, like).sum())


def _shape(character: str, face: Face) -> Shape | None:
    left, top, right, bottom = (round(side) for side in face.font.getbbox(character, anchor="ls"))
    if right <= left or bottom <= top:  # a space by another name
        return None
    canvas = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(canvas).text((-left, -top), character, fill=255, font=face.font, anchor="ls")
    box = canvas.getbbox()
    if box is None:
        return None
    ink = canvas.crop(box)
    return Shape(face.name, ink.size, ink.tobytes(), top + box[1])
