"""A contact sheet: one row of thumbnails for each of some classes of a manifest."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from suprank.data.columns import SPLITS
from suprank.data.datasets import ImageDataset, ImageItem
from suprank.data.duplicates import split_codes
from suprank.data.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_GAP = 4
_TEXT_WIDTH = 240
_INK, _FAINT, _EMPTY, _PAPER = "#222222", "#777777", "#e4e4e4", "white"


class _Row(NamedTuple):
    name: str
    ancestors: list[str]  # its coarser labels, nearest first
    images: int
    shown: NDArray[np.int64]


def contact_sheet(
    manifest: Manifest,
    *,
    classes: int = 12,
    per_class: int = 8,
    size: int = 96,
    seed: int = 0,
    level: int = 0,
) -> Image.Image:
    """Draw one row per class: its name, its coarser labels and its number of images, then up to `per_class` of them.

    Classes of `level` (0 is the finest) are chosen at random, in turn from all the coarsest classes, and sorted so that related
    ones are neighbors; images of a class are chosen at random too. The same seed gives the same sheet. Without labels there is
    one row per split. Thumbnails fit into `size` × `size` pixels, uncropped; an image that cannot be read is a crossed box.
    """
    for name, value in (("classes", classes), ("per_class", per_class), ("size", size)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1.")
    if not 0 <= level < max(len(manifest.levels), 1):
        levels = ", ".join(f"{index} ({name})" for index, name in enumerate(manifest.levels)) or "0, because it has no labels"
        raise ValueError(f"level={level} is not a level of this manifest; choose from {levels}.")
    rows = _rows(manifest, level, classes, per_class, np.random.default_rng(seed))
    step = size + _GAP
    columns = max(len(row.shown) for row in rows)
    sheet = Image.new("RGB", (_TEXT_WIDTH + columns * step + _GAP, len(rows) * step + _GAP), _PAPER)
    pictures = ImageDataset(manifest.take(np.concatenate([row.shown for row in rows])), on_broken="skip", min_short_side=size)
    item = 0
    for top, row in zip(range(_GAP, len(rows) * step, step), rows, strict=True):
        _write_text(ImageDraw.Draw(sheet), row, top, size)
        for column in range(len(row.shown)):
            image = pictures[item]
            thumbnail = _thumbnail(image.image, size) if isinstance(image, ImageItem) else _crossed_box(size)
            sheet.paste(thumbnail, (_TEXT_WIDTH + _GAP + column * step, top))
            item += 1
    return sheet


# Choosing


def _rows(manifest: Manifest, level: int, classes: int, per_class: int, generator: np.random.Generator) -> list[_Row]:
    labels, names = manifest.labels[:, level:], [manifest.names[one] for one in manifest.levels[level:]]
    if not names or labels[:, 0].max() < 0:
        labels, names = split_codes(manifest)[:, None], [SPLITS]
    if labels.ndim == 3:
        return _rows_of_sets(labels[:, 0], names[0], classes, per_class, generator)
    rows = []
    for label in _choose_classes(labels, classes, generator):
        members = np.flatnonzero(labels[:, 0] == label)
        ancestors = [known[parent] for known, parent in zip(names[1:], labels[members[0], 1:], strict=True)]
        shown = generator.permutation(members)[:per_class]
        rows.append(_Row(names[0][label], ancestors, len(members), np.sort(shown)))
    return rows


def _rows_of_sets(
    sets: NDArray[np.int64], names: Sequence[str], classes: int, per_class: int, generator: np.random.Generator
) -> list[_Row]:
    """Rows of classes where an image has several: which of its coarser labels is whose parent is unknown, so none is shown."""
    rows = []
    for label in np.sort(generator.permutation(np.unique(sets[sets >= 0]))[:classes]):
        members = np.flatnonzero((sets == label).any(1))
        rows.append(_Row(names[label], [], len(members), np.sort(generator.permutation(members)[:per_class])))
    return rows


def _choose_classes(labels: NDArray[np.int64], count: int, generator: np.random.Generator) -> list[int]:
    """Classes of the first column, chosen in turn from all classes of the last, and sorted by their ancestors."""
    _, first = np.unique(labels[:, 0], return_index=True)
    lines = generator.permutation(labels[first][labels[first, 0] >= 0])  # each class and its ancestors
    by_coarsest = np.argsort(lines[:, -1], kind="stable")
    coarsest = lines[by_coarsest, -1]
    turn = np.empty(len(lines), np.int64)  # how many of the same coarsest class come before it
    turn[by_coarsest] = np.arange(len(lines)) - np.searchsorted(coarsest, coarsest)
    chosen = lines[np.argsort(turn, kind="stable")[:count]]
    return chosen[np.lexsort(chosen.T), 0].tolist()


# Drawing


def _thumbnail(picture: Image.Image, size: int) -> Image.Image:
    """The whole picture in the middle of a square, enlarged if it is smaller."""
    return ImageOps.pad(picture, (size, size), color=_EMPTY)


def _crossed_box(size: int) -> Image.Image:
    box = Image.new("RGB", (size, size), _EMPTY)
    draw = ImageDraw.Draw(box)
    draw.line((0, 0, size, size), fill=_FAINT, width=2)
    draw.line((0, size, size, 0), fill=_FAINT, width=2)
    return box


def _write_text(draw: ImageDraw.ImageDraw, row: _Row, top: int, size: int) -> None:
    """Write the text beside a row: as many lines as fit its height."""
    images = f"{row.images:,} image" + ("" if row.images == 1 else "s")
    lines = [(row.name, 15, _INK), (images, 12, _FAINT), *((name, 12, _FAINT) for name in row.ancestors)]
    bottom = top + size
    for text, height, ink in lines:
        if top + height > bottom:
            break
        draw.text((2 * _GAP, top), _shorten(text, _font(height), _TEXT_WIDTH - 3 * _GAP), font=_font(height), fill=ink)
        top += round(1.4 * height)


def _shorten(text: str, font: Font, width: int) -> str:
    """The text, without its middle if it would be wider than `width` pixels: names differ at either end."""
    text = cut = " ".join(text.split())
    length = len(text)
    while font.getlength(cut) > width and length > 2:
        length -= 1
        cut = text[: (length + 1) // 2] + "…" + text[len(text) - length // 2 :]
    return cut


def _font(height: int) -> Font:
    """DejaVu, which comes with matplotlib and has most alphabets, or PIL's own font."""
    package = find_spec("matplotlib")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
        if file.is_file():
            return ImageFont.truetype(str(file), height)
    return ImageFont.load_default(height)
