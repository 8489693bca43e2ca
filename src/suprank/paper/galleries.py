"""The paper's figures that need trained models or photos: maps of classes, retrieval results of two models, images of a label.

Each function returns a matplotlib figure with its facts and writes nothing. A run is a folder of `suprank train`, whose test
images are embedded into RUN/embeddings on first use, a folder of `suprank embed`, or an open `Source`. What is shown is chosen
by `suprank.explorer.findings`, as on the report page.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from suprank.data.datasets import ImageDataset, ImageItem
from suprank.explorer.colors import TEXT
from suprank.explorer.findings.mistakes import better_mistakes, both_fail, count_first_items
from suprank.explorer.images import best_items, shared_levels
from suprank.explorer.result_figures import DPI, FRAMES, MARKS, draw_image, square_crop
from suprank.paper.class_maps import class_map
from suprank.paper.model_figures import ModelFigure, choose_coarse_level, open_run, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.evaluation.retrieval_data import Items, RetrievalData
    from suprank.explorer.findings.mistakes import FirstItems
    from suprank.paper.model_figures import Run

__all__ = ["ModelFigure", "class_map", "gallery", "images_of_label"]

_CELL, _GAP, _LINE = 0.9, 0.1, 0.2  # inches: the side of an image, the space between images, a line of text
_TILE = 1.6  # inches: the side of an image of a label


# Results of two models


def gallery(
    baseline_run: Run,
    run: Run,
    *,
    kind: Literal["better_mistakes", "both_fail"],
    queries: int = 2,
    results: int = 10,
    level: str | None = None,
    names: tuple[str, str] | None = None,
    seed: int = 0,
) -> ModelFigure:
    """The first results of two models for some queries, framed by what they share with the query: green, orange or red.

    `better_mistakes`: all mistakes of `run` have the query's coarse label, most mistakes of the baseline do not, and both
    retrieve the fine label as well (fig:sup_qual_inat_good, fig:qual_sop_good). `both_fail`: neither retrieves the fine label,
    and `run` retrieves the coarse label more often (fig:sup_qual_inat_error, fig:qual_sop_error). The clearest query of each of
    several fine classes is shown. If no query qualifies, the nearest are shown, and the fact `note` says so.

    `level` is the coarse level, by default the coarsest; `names` are the names of the baseline and of `run` in the figure. The
    facts say how many queries qualify, how many would with the models swapped, and the share of near misses, mistakes with the
    coarse label, of each model over all queries (`both_fail`: over those on which both fail), so that the examples can be
    judged. Large collections are searched for a random sample of the queries (`seed`).
    """
    if kind not in ("better_mistakes", "both_fail"):
        raise ValueError(f"kind={kind!r} must be 'better_mistakes' or 'both_fail'.")
    if queries < 1 or results < 1:
        raise ValueError(f"queries={queries} and results={results} must be at least 1.")
    baseline, data = open_run(baseline_run), open_run(run)
    data.require_single_labels("a figure of rankings")
    same = data.match(baseline)
    common = data.common_levels(baseline)
    about = f"{data.name} and {baseline.name}"
    if len(common) < 2:
        shared = f"only the level {common[0]}" if common else "no level"
        raise ValueError(f"{about} share {shared}, and a coarse one is needed; give runs on a manifest with two levels.")
    levels = (common[0], choose_coarse_level(common, level, about))
    data, baseline = data.at_levels(levels), baseline.at_levels(levels)
    items = count_first_items(data, baseline, same, results, seed=seed)
    if not len(items.queries):
        raise ValueError(f"{about} have no query with another image of its {levels[0]}, so nothing can be retrieved.")
    chosen, facts = _choose_queries(items, data.queries.labels[items.queries, 0], kind, queries)
    baseline_name, run_name = names or (baseline.name, data.name)
    facts |= {"shown": len(chosen), "queries": len(items.queries), "results": results, "coarse_level": levels[1]}
    facts |= {"run": run_name, "baseline": baseline_name}
    if items.sampled:
        facts["sample_of"] = len(data.queries)
    if warning := data.comparison_warning(baseline):
        facts["warning"] = warning
    examples = [
        _Example(
            data,
            query,
            (_result_list(run_name, data, query, results), _result_list(baseline_name, baseline, int(same[query]), results)),
        )
        for query in items.queries[chosen].tolist()
    ]
    figure, unreadable = _draw_examples(examples, levels, results)
    if unreadable:
        facts["unreadable"] = unreadable
    lists = [f"Query {one.heading}: " + "; ".join(found.words(levels) for found in one.lists) + "." for one in examples]
    return ModelFigure(figure, facts, f"The first {results} results of two models. {' '.join(lists)}")


class _ResultList(NamedTuple):
    """The first items of a model for a query: rows of its gallery, and 0, 1 or 2 for nothing, the coarse or the fine label."""

    name: str
    images: Items
    rows: list[int]
    shared: list[int]

    def words(self, levels: Sequence[str]) -> str:
        count = Counter(self.shared)
        return f"{self.name}: {count[2]} same {levels[0]}, {count[1]} same {levels[1]}, {count[0]} other"


class _Example(NamedTuple):
    """A query with the lists of both models."""

    data: RetrievalData
    query: int
    lists: tuple[_ResultList, _ResultList]

    @property
    def heading(self) -> str:
        labels = zip(self.data.levels, self.data.queries.labels[self.query].tolist(), strict=True)
        return ", ".join(shorten(self.data.names[level][label], 60) for level, label in labels if label >= 0)


def _result_list(name: str, data: RetrievalData, query: int, results: int) -> _ResultList:
    rows = best_items(data, [query], results)[0][0]
    rows = rows[rows >= 0]
    return _ResultList(
        name, data.items, rows.tolist(), shared_levels(data.queries.labels[query], data.items.labels[rows]).tolist()
    )


def _choose_queries(
    items: FirstItems, labels: NDArray[np.int64], kind: str, number: int
) -> tuple[NDArray[np.int64], dict[str, float | str]]:
    """Indices of the queries to show, at most one of each fine class, and how typical they are."""
    facts: dict[str, float | str]
    if kind == "better_mistakes":
        order, matches = better_mistakes(items)
        facts = {"qualifying": matches, "qualifying_with_models_swapped": better_mistakes(items.swapped()).matches}
        judged = np.arange(len(items.queries))
        rule = "For no query are most mistakes of the baseline negatives and all mistakes of the other model near misses"
    else:
        order, failing = both_fail(items)
        judged = order[:failing]
        difference = (items.own.negative - items.other.negative)[judged]
        matches = int((difference < 0).sum())  # they come first: see `both_fail`
        facts = {"both_fail": failing, "qualifying": matches, "qualifying_with_models_swapped": int((difference > 0).sum())}
        rule = "For no query do both models fail while the baseline retrieves more negatives"
    shares = {"near_misses_run": items.own.near_miss_share(judged), "near_misses_baseline": items.other.near_miss_share(judged)}
    facts |= {key: share for key, share in shares.items() if not math.isnan(share)}
    if not matches:
        facts["note"] = f"{rule}; the queries that come nearest are shown."
    candidates = order[: matches or None]
    _, first = np.unique(labels[candidates], return_index=True)
    return candidates[np.sort(first)[:number]], facts


def _draw_examples(examples: Sequence[_Example], levels: Sequence[str], results: int) -> tuple[Figure, int]:
    """Draw each query with the lists of both models on its right; return also the number of images that cannot be read."""
    large = 2 * _CELL + _GAP + _LINE  # as high as both lists
    list_height = _LINE + _CELL + _GAP
    block_height = 1.5 * _LINE + 2 * list_height + _GAP
    width = 4 * _GAP + large + results * (_CELL + _GAP)
    height = len(examples) * block_height + 1.5 * _LINE
    figure = Figure(figsize=(width, height))

    def write(text: str, left: float, top: float, **look: Any) -> None:
        figure.text(left / width, 1 - top / height, text, va="top", color=TEXT.light, parse_math=False, **look)

    def draw(images: Items, row: int, left: float, top: float, side: float, shared: int | None) -> bool:
        place = (left / width, 1 - (top + side) / height, side / width, side / height)
        return draw_image(figure, place, images, row, None if shared is None else FRAMES[shared], MARKS[shared or 0])

    readable = []
    for number, one in enumerate(examples):
        top = number * block_height + _GAP
        write(f"Query: {one.heading}", _GAP, top, fontsize=10, fontweight="bold")
        top += 1.5 * _LINE
        readable.append(draw(one.data.queries, one.query, _GAP, top + _LINE, large, None))
        for found in one.lists:
            left = 4 * _GAP + large
            write(found.words(levels), left - _GAP / 4, top, fontsize=9)
            for row, shared in zip(found.rows, found.shared, strict=True):
                readable.append(draw(found.images, row, left, top + _LINE, _CELL, shared))
                left += _CELL + _GAP
            top += list_height
    handles = [
        Line2D([], [], linestyle="none", marker="s", markersize=9, markerfacecolor="none", markeredgewidth=2.5, color=color)
        for color in FRAMES[::-1]
    ]
    texts = (f"{MARKS[2]} same {levels[0]}", f"{MARKS[1]} same {levels[1]}", f"{MARKS[0]} other")
    legend = figure.legend(handles, texts, loc="lower center", ncols=3, frameon=False, fontsize=9, borderaxespad=0.1)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure, readable.count(False)


# Images of a label


def images_of_label(
    manifest: Manifest, level: str, label: str, *, rows: int = 3, columns: int = 3, seed: int = 0
) -> ModelFigure:
    """Random images of one label, in a grid (fig:gldv2_waterfall, fig:gldv2_bridge, fig:gldv2_castle).

    Images that cannot be read are replaced by others; the grid is not full if there are too few.
    """
    if level not in manifest.levels:
        raise ValueError(f"level={level!r} is not in the manifest; choose from {', '.join(manifest.levels) or 'none'}.")
    if rows < 1 or columns < 1:
        raise ValueError(f"rows={rows} and columns={columns} must be at least 1.")
    manifest.require_single_labels("a figure of the images of a label")
    place = manifest.levels.index(level)
    known = manifest.names[level]
    members = np.flatnonzero(manifest.labels[:, place] == known.index(label)) if label in known else np.empty(0, np.int64)
    if not len(members):
        near = difflib.get_close_matches(label, known, cutoff=0.4) or sorted(known)[:3]
        raise ValueError(f"no image has the {level} {label!r}; there are {len(known):,} others, such as {', '.join(near)}.")
    shuffled = np.random.default_rng(seed).permutation(members)
    pixels = round(DPI * _TILE)
    dataset = ImageDataset(manifest.take(shuffled), on_broken="skip", min_short_side=pixels)
    pictures, broken = [], []
    for item in (dataset[index] for index in range(len(shuffled))):
        if isinstance(item, ImageItem):
            pictures.append(square_crop(item.image, pixels))
        else:
            broken.append(item)
        if len(pictures) == rows * columns:
            break
    if not pictures:
        raise ValueError(f"none of the {len(members):,} images of {label!r} can be read; the first: {broken[0].reason}")
    figure = Figure(figsize=(_TILE * columns, _TILE * rows), layout="constrained")
    for axes, picture in zip(figure.subplots(rows, columns, squeeze=False).flat, pictures, strict=False):
        axes.imshow(picture)
    for axes in figure.axes:
        axes.set_axis_off()
    facts: dict[str, float | str] = {"label": label, "level": level, "images": len(members), "shown": len(pictures)}
    facts["classes"] = len(np.unique(manifest.labels[members, 0]))
    if broken:
        facts["unreadable"] = len(broken)
    return ModelFigure(figure, facts, f"{len(pictures)} of the {len(members):,} images of the {level} {label!r}.")
