"""Figures of what a model retrieves: queries with their first items, framed by what these share with the query."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageOps

from suprank.explorer.colors import OTHER, SAME, TEXT, level_names
from suprank.explorer.images import best_items, read_picture, shared_levels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.evaluation.retrieval_data import Items, RetrievalData

FRAMES = (OTHER.light, "#f59e0b", SAME.light)
"""Frame of an item that shares nothing with the query, a coarser label, and its finest label: red, orange, green."""

MARKS = ("✗", "≈", "✓")  # the same in a corner of the item, for readers who cannot tell the colors apart
DPI = 200  # at which figures are saved
_CELL, _GAP, _LINE = 1.0, 0.1, 0.2  # inches: the side of an image, the space between images, a line of text
_CARD_DPI = 110  # a page is about 900 pixels wide
_MOST_LETTERS = 90


class ResultsPicture(NamedTuple):
    """A PNG, a description for readers who cannot see it, and the numbers of queries and images in it."""

    png: bytes
    alt: str
    queries: int
    images: int


def results_picture(data: RetrievalData, *, queries: int = 4, results: int = 8, seed: int = 0) -> ResultsPicture | None:
    """Random queries, each of another class if possible, with their first results; None if no image can be read.

    Only queries with an image of their class to find are drawn. Images with several labels at a level have no frames, because
    nothing says how near they are.
    """
    rows = _choose_queries(data, queries, seed)
    if not len(rows):
        return None
    found, _ = best_items(data, rows, results)
    width = (results + 1) * (_CELL + _GAP) + 4 * _GAP
    height = len(rows) * (_LINE + _CELL + 2 * _GAP) + 2 * _LINE
    figure = Figure(figsize=(width, height))
    several = data.queries.labels.ndim == 3
    names, readable = level_names(data.levels), []

    def draw(images: Items, row: int, left: float, top: float, shared: int | None) -> None:
        place = (left / width, 1 - (top + _CELL) / height, _CELL / width, _CELL / height)
        kind = None if shared is None else 0 if not shared else 2 if shared == len(data.levels) else 1
        frame, mark = (None, "") if kind is None else (FRAMES[kind], MARKS[kind])
        readable.append(draw_image(figure, place, images, row, frame, mark))

    lists = []
    for number, (query, items) in enumerate(zip(rows.tolist(), found, strict=True)):
        top = _GAP + number * (_LINE + _CELL + 2 * _GAP)
        heading = _heading(data, query)
        figure.text(_GAP / width, 1 - top / height, heading, va="top", color=TEXT.light, fontsize=9, parse_math=False)
        draw(data.queries, query, _GAP, top + _LINE, None)
        items = items[items >= 0]
        shared = (
            [None] * len(items) if several else shared_levels(data.queries.labels[query], data.items.labels[items]).tolist()
        )
        for place, (item, level) in enumerate(zip(items.tolist(), shared, strict=True)):
            draw(data.items, item, 4 * _GAP + (place + 1) * (_CELL + _GAP), top + _LINE, level)
        counts = [f"{shared.count(level)} {names[level]}" for level in reversed(range(len(names)))] if not several else []
        lists.append(f"{heading}: {', '.join(counts) or f'{len(items)} items'}")
    if not any(readable):
        return None
    legend = (
        "" if several else f"   {MARKS[2]} {names[-1]}   {f'{MARKS[1]} a coarser label   ' * (len(names) > 2)}{MARKS[0]} other"
    )
    figure.text(
        0.5,
        0.4 * _LINE / height,
        f"left: query; right: its first {results} results{legend}",
        ha="center",
        fontsize=9,
        color=TEXT.light,
    )
    alt = f"Random queries and their first {results} results. {'. '.join(lists)}."
    return ResultsPicture(_png(figure), alt, len(rows), sum(readable))


def draw_image(
    figure: Figure, place: tuple[float, float, float, float], images: Items, row: int, frame: str | None, mark: str
) -> bool:
    """Draw an image with a frame of a color and a mark in its corner, or as a query without them; False if unreadable."""
    axes = figure.add_axes(place)
    axes.set(xticks=[], yticks=[])
    pixels = round(DPI * place[2] * figure.get_figwidth())
    picture = read_picture(images, row, min_short_side=pixels)
    readable = isinstance(picture, Image.Image)
    if isinstance(picture, Image.Image):
        axes.imshow(square_crop(picture, pixels), aspect="auto")
    else:
        axes.text(0.5, 0.5, "unreadable", fontsize=8, ha="center", va="center", transform=axes.transAxes)
    if frame is None:
        axes.spines[:].set(color=TEXT.light, linewidth=1)
        return readable
    axes.spines[:].set(color=frame, linewidth=3.5)
    corner = {"facecolor": frame, "edgecolor": "none", "boxstyle": "square,pad=0.15"}
    axes.text(1, 0, mark, color="white", fontsize=8, ha="right", va="bottom", transform=axes.transAxes, bbox=corner)
    return readable


def square_crop(picture: Image.Image, side: int) -> Image.Image:
    """The center of the picture as a square."""
    return ImageOps.fit(picture.convert("RGB"), (side, side), Image.Resampling.LANCZOS)


def _choose_queries(data: RetrievalData, number: int, seed: int) -> NDArray[np.int64]:
    """Random rows of queries, of different finest classes as far as there are, in the order of the rows."""
    shuffled = np.random.default_rng(seed).permutation(len(data.queries))
    if not data.levels or data.queries.labels.ndim == 3:
        return np.sort(shuffled[:number])
    labels, items = data.queries.labels[:, 0], data.items.labels[:, 0]
    to_find = np.bincount(items[items >= 0], minlength=len(data.names[data.levels[0]])) - int(data.gallery is None)
    candidates = shuffled[(labels[shuffled] >= 0) & (to_find[labels[shuffled]] > 0)]
    _, first = np.unique(labels[candidates], return_index=True)
    ordered = np.concatenate([candidates[np.sort(first)], np.delete(candidates, first)])
    return np.sort(ordered[:number])


def _heading(data: RetrievalData, query: int) -> str:
    labels = data.queries.labels[query]
    named = zip(data.levels, labels.reshape(len(data.levels), -1).tolist(), strict=True)
    names = [data.names[level][label] for level, of_level in named for label in of_level if label >= 0]
    text = " ".join(", ".join(names).split()) or "query"
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)  # such as emoji: a box is drawn
        figure.savefig(buffer, format="png", dpi=_CARD_DPI)
    return buffer.getvalue()
