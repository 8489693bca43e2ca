"""`suprank evaluate --gap`: the decomposability gap in batches, and its upper bounds for AP."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from suprank.evaluation import RetrievalData

SEED = 0  # of the batches


def evaluate_gap(
    data: RetrievalData,
    batch_size: int,
    thresholds: tuple[float, float],
    *,
    metrics: Sequence[str] | None = None,
    decay: float | None = None,
    weights: Mapping[str, float] | None = None,
    device: str | None = None,
    memory_budget: int | None = None,
    out: Path | None = None,
    quiet: bool = False,
) -> None:
    """Print the gap of each metric (eq:decomposability-gap) and, if AP is one of them, both bounds of tab:compa_bounds.

    They are saved as JSON if asked.
    """
    from suprank import evaluation
    from suprank.evaluation.metric_names import parse_metric
    from suprank.evaluation.report_files import write_file

    data.require_labels()
    _check_ids(data)
    queries, gallery = data.queries, data.gallery
    shared: dict[str, Any] = {
        "labels": queries.labels,
        "batches": batch_size,
        "gallery": None if gallery is None else gallery.embeddings,
        "gallery_labels": None if gallery is None else gallery.labels,
        "device": device,
        "memory_budget": memory_budget,
        "seed": SEED,
    }
    keys = list(dict.fromkeys(str(parse_metric(metric)) for metric in metrics or ["AP"]))
    measured: dict[str, Any] = {
        "batch_size": batch_size,
        "seed": SEED,
        "queries": len(queries),
        "items": len(data.items),
        "gaps": {},
        "bounds": None,
    }
    for key in keys:
        with terminal.progress(f"gap of {key}", quiet) as progress:
            found = evaluation.decomposability_gap(
                queries.embeddings,
                metric=key,
                levels=data.levels,
                decay=data.defaults.decay if decay is None else decay,
                weights=data.defaults.weights if weights is None else weights,
                progress=progress,
                **shared,
            )
        measured["gaps"][key] = _numbers(found)
    if "AP" in keys:
        limits: dict[str, Any] = dict(zip(("positive_floor", "negative_ceiling"), thresholds, strict=True))
        with terminal.progress("bounds for AP", quiet) as progress:
            bounds = evaluation.gap_bounds(queries.embeddings, progress=progress, **shared, **limits)
        measured["bounds"] = {**_numbers(bounds), **limits}
    if out is not None:
        write_file(out, (json.dumps(measured, indent=1, allow_nan=False) + "\n").encode())
    if not quiet:
        terminal.echo(gap_table(measured))


def gap_table(measured: Mapping[str, Any]) -> str:
    """What `evaluate_gap` measured, in percent."""
    from suprank.evaluation.report_text import align_columns, percent

    def cell(value: float | None, sign: str = "") -> str:
        return percent(math.nan if value is None else value, sign=sign)

    gaps = measured["gaps"]
    left_out = {one["queries_left_out"] for one in gaps.values()} - {0}
    lines = [
        f"{measured['queries']:,} queries, {measured['items']:,} items in batches of {measured['batch_size']:,}, "
        f"shuffled with seed {measured['seed']}",
        *(f"queries without positives, left out: {number:,}" for number in sorted(left_out)),
        "",
        *align_columns(
            [
                ["%", *gaps],
                ["mean over batches", *(cell(one["in_batches"]) for one in gaps.values())],
                ["over all items", *(cell(one["overall"]) for one in gaps.values())],
                ["decomposability gap", *(cell(one["value"], "+z") for one in gaps.values())],
            ]
        ),
    ]
    if (bounds := measured["bounds"]) is None:
        return "\n".join(lines)
    calibrated = f"with L_DG, α = {bounds['positive_floor']:g}, β = {bounds['negative_ceiling']:g} (eq:upperBoundRefined)"
    lines += [
        "",
        "Upper bounds of the gap of AP where every batch is ranked perfectly. In the order of the batches they hold",
        "only if all batches have the same counts; in any order they always hold.",
        "",
        *align_columns(
            [
                ["%", "in order", "in any order"],
                ["without L_DG (eq:upperBound)", cell(bounds["plain"]), cell(bounds["plain_any_order"])],
                [calibrated, cell(bounds["refined"]), cell(bounds["refined_any_order"])],
            ]
        ),
    ]
    return "\n".join(lines)


def _numbers(result: Any) -> dict[str, float | int | None]:
    """The numbers of a result without its values per query, NaN as None, which JSON can hold."""
    named = {field.name: getattr(result, field.name) for field in dataclasses.fields(result) if field.name != "per_query"}
    return {name: None if math.isnan(value) else value for name, value in named.items()}


def _check_ids(data: RetrievalData) -> None:
    """Refuse ids by which a query would be in its own list: batches leave out an image by its number only."""
    ids, item_ids = data.queries.ids, data.items.ids
    if ids is None or item_ids is None:
        return
    items = Counter(item_ids)
    allowed = 1 if data.gallery is None else 0  # the query itself
    repeated = [one for one in ids if items[one] > allowed]
    if repeated:
        raise ValueError(
            f"{len(repeated):,} queries, such as {str(repeated[0])!r}, have their own id on another item, and --gap would not "
            f"leave it out; rank the images against each other, each once."
        )
