"""Revisited Oxford and Paris (Radenović et al., CVPR 2018): three protocols, a trapezoidal AP, and mP@k.

Every gallery image is easy, hard, junk or negative for a query. A protocol says which of them are positive, and which are
taken out of the ranked list as if they were not in the gallery. The measures start from *places*: for each query the 1-based
places of its positives in its list, the protocol's ignored images taken out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.progress import progress_to
from suprank.evaluation.report import Report
from suprank.evaluation.search import Search, device_for, places
from suprank.evaluation.targets import ListedTargets, padded
from suprank.files.revisited import read_content

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from numpy.typing import ArrayLike, NDArray

    from suprank.evaluation.embeddings import Source
    from suprank.evaluation.progress import Progress

KINDS = ("easy", "hard", "junk")
PROTOCOLS = {  # protocol: (the kinds that are positive, the kinds that are ignored)
    "easy": (("easy",), ("hard", "junk")),
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("easy", "junk")),
}


class Judged(NamedTuple):
    """One protocol: for each query the gallery indices of its positives, and of the images to ignore; both ascending."""

    positives: list[NDArray[np.int64]]
    ignored: list[NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """The file of a revisited dataset: names of the gallery images and of the queries, and how each query judges the gallery.

    `judged[q]` maps "easy", "hard" and "junk" to gallery indices. `boxes` `[queries, 4]` are the regions to crop queries to,
    as x1, y1, x2, y2 in pixels (`bbx` in the file); None where the file has none.
    """

    items: tuple[str, ...]
    queries: tuple[str, ...]
    judged: Sequence[Mapping[str, NDArray[np.int64]]]
    boxes: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if len(self.judged) != len(self.queries):
            raise ValueError(f"the ground truth judges {len(self.judged)} queries and names {len(self.queries)}; one each.")
        object.__setattr__(self, "judged", tuple(_lists(row, query) for query, row in enumerate(self.judged)))
        for query, lists in zip(self.queries, self.judged, strict=True):
            indices = np.concatenate([lists[kind] for kind in KINDS])
            if indices.size and (indices.min() < 0 or indices.max() >= len(self.items)):
                raise ValueError(
                    f"query {query!r} judges gallery index {indices.max() if indices.min() >= 0 else indices.min()}, but there "
                    f"are {len(self.items)} gallery images; do gnd and imlist come from one file?"
                )


def protocols(ground_truth: GroundTruth | Sequence[Mapping[str, ArrayLike]]) -> dict[str, Judged]:
    """Positives and ignored images of every query under each protocol; from `read_ground_truth`, or the pickle's `gnd` list.

        easy:    easy positive,           hard and junk ignored
        medium:  easy and hard positive,  junk ignored
        hard:    hard positive,           easy and junk ignored

    A query may have no positives under a protocol: it is then left out of that protocol's means. An image judged twice for
    one query is an error.
    """
    rows = (
        ground_truth.judged if isinstance(ground_truth, GroundTruth) else [_lists(row, i) for i, row in enumerate(ground_truth)]
    )
    return {
        name: Judged(*([np.sort(np.concatenate([row[kind] for kind in kinds])) for row in rows] for kinds in both))
        for name, both in PROTOCOLS.items()
    }


def trapezoidal_average_precision(places: ArrayLike, positives: int | None = None) -> float:
    """AP = 1/m · Σ_{j=0..} ½ · (j/r_j + (j+1)/(r_j+1)), r_j the 0-based place of the j-th positive; NaN without positives.

    The area under the precision-recall curve, by trapezoids: each positive adds 1/m times the mean of the precision just
    before it (1 where r_j = 0) and with it. `suprank.ranking.average_precision` takes the latter alone, so it is never
    lower: the difference is 1/m · Σ_j (r_j − j) / (2·r_j·(r_j+1)), 0 while positives come first without a gap, and at most
    1/(4m) · Σ_{j<m} 1/(2j+1), which positives at places 2, 4, 6, … reach. That is 0.25 for one positive at place 2 (0.25
    here, 0.5 there), 0.053 for ten, 0.008 for a hundred. Quote the two apart.

    `places` are 1-based, in any order. `positives` is m, where some were not retrieved and add nothing; by default all were.
    """
    zero_based = _ascending(places) - 1
    m = len(zero_based) if positives is None else positives
    if m < len(zero_based):
        raise ValueError(f"positives={m}, but {len(zero_based)} places are given; m counts all positives, retrieved or not.")
    if m == 0:
        return math.nan
    j = np.arange(len(zero_based))
    before = np.where(zero_based > 0, j / np.maximum(zero_based, 1), 1.0)
    after = (j + 1) / (zero_based + 1)
    return float((before + after).sum() / (2 * m))


def precision_at_reached(places: ArrayLike, k: int) -> float:
    """P@k of the protocol: the share of positives in the first k_q = min(k, place of the last positive); NaN without positives.

    Where all positives stand before place k, the rest of the list is not held against the query: three positives at places 1,
    2, 3 have P@10 = 1, where the usual one is 0.3. Give the places of all positives, or the last is not the last.
    """
    if k < 1:
        raise ValueError(f"k={k} must be 1 or more: a precision needs a list.")
    found = _ascending(places)
    if not len(found):
        return math.nan
    reached = min(int(found[-1]), k)
    return int((found <= reached).sum()) / reached


def revisited_values(
    places_by_protocol: Mapping[str, Sequence[ArrayLike]], items: int, ks: Sequence[int] = (1, 5, 10)
) -> dict[str, Any]:
    """Places → values: what the protocol reports. `places_by_protocol[protocol][q]` are the places of all positives of query q.

    For each protocol p: `mAP/p` and `mP@k/p`, means over the queries that have positives (NaN if none has);
    `AP/p` and `P@k/p`, the same query by query, NaN without positives; `without_positives/p`, how many those are. `items` is
    the size of the gallery, which no place may exceed.
    """
    report: dict[str, Any] = {}
    for protocol, lists in places_by_protocol.items():
        for query, found in enumerate(lists):
            last = int(_ascending(found)[-1]) if np.size(found) else 0
            if last > items:
                raise ValueError(
                    f"query {query} has a positive at place {last} of {items} items ({protocol}); count places from 1."
                )
        values = {"AP": np.array([trapezoidal_average_precision(found) for found in lists])}
        for k in ks:
            values[f"P@{k}"] = np.array([precision_at_reached(found, k) for found in lists])
        valid = ~np.isnan(values["AP"])
        for name, per_query in values.items():
            report[f"m{name}/{protocol}"] = float(per_query[valid].mean()) if valid.any() else math.nan
            report[f"{name}/{protocol}"] = per_query
        report[f"without_positives/{protocol}"] = int((~valid).sum())
    return report


def revisited(
    queries: Source,
    gallery: Source,
    ground_truth: GroundTruth | Sequence[Mapping[str, ArrayLike]],
    ks: Sequence[int] = (1, 5, 10),
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    progress: bool | Progress = True,
    *,
    normalize: bool = True,
    per_query: bool = False,
    bootstrap: int = 0,
    seed: int = 0,
) -> Report:
    """Rank the gallery for every query, exactly, and measure it by the three protocols of revisited Oxford and Paris.

    The report has `AP/easy`, `AP/medium`, `AP/hard`, whose means are the protocol's mAP (trapezoidal, see
    `trapezoidal_average_precision`), and `P@1/easy`, … for its mP@k (see `precision_at_reached`). Distractors are more gallery
    items, after those that the ground truth numbers. Arguments are otherwise as in `evaluate`.
    """
    source, items = Embeddings.of(queries, "queries"), Embeddings.of(gallery, "gallery")
    lists = protocols(ground_truth)
    for protocol, judged in lists.items():
        if len(judged.positives) != len(source):
            raise ValueError(f"the ground truth judges {len(judged.positives)} queries and there are {len(source)}; one each.")
        last = max((int(one.max()) for one in (*judged.positives, *judged.ignored) if len(one)), default=0)
        if last >= len(items):
            raise ValueError(
                f"the ground truth names item {last} ({protocol}), but the gallery has items 0 to {len(items) - 1}."
            )
    where = device_for(device, source)
    search = Search(source, items, device=where, memory_budget=memory_budget, normalize=normalize)
    show = progress_to(progress, "evaluating")
    found: dict[str, list[NDArray[np.int64]]] = {}
    for number, (protocol, judged) in enumerate(lists.items()):
        targets = ListedTargets(*(torch.from_numpy(padded(part)).to(where) for part in judged))
        found[protocol] = []
        for block in search.blocks(targets.positives()):
            rows = targets.queries[block]
            level, place = places(search.scored(rows), targets.wanted(rows))
            found[protocol] += [row[kept].cpu().numpy() for row, kept in zip(place, level > 0, strict=True)]
            show(number * len(source) + block.stop, len(lists) * len(source))
    measured = revisited_values(found, len(items), ks)
    names = [f"{name}/{protocol}" for name in ("AP", *(f"P@{k}" for k in ks)) for protocol in lists]
    report = Report(
        values={name: measured[f"m{name}"] for name in names},
        queries=len(source),
        items=len(items),
        levels=tuple(lists),
        without_positives={protocol: measured[f"without_positives/{protocol}"] for protocol in lists},
        settings={"protocol": "revisited Oxford and Paris", "average_precision": "trapezoidal", "ks": list(ks)},
        per_query={name: measured[name] for name in names},
    )
    if bootstrap:
        report = report.with_intervals(bootstrap, seed=seed)
    return report if per_query else replace(report, per_query=None)


def _ascending(places: ArrayLike) -> NDArray[np.int64]:
    found = _integers(places, "places")
    found = np.sort(found)
    if found.size and (found[0] < 1 or (np.diff(found) == 0).any()):
        raise ValueError(f"places {found[:10].tolist()} must be distinct and count from 1: one image stands at each place.")
    return found


def _integers(values: ArrayLike, name: str) -> NDArray[np.int64]:
    found = np.asarray(values)
    if found.size == 0:
        return np.zeros(0, np.int64)
    if found.dtype.kind == "f" and (found == np.floor(found)).all():  # Matlab, where these files come from, has no others
        found = found.astype(np.int64)
    if found.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {found.dtype}, but must be whole numbers.")
    return found.astype(np.int64).reshape(-1)


def _lists(row: Mapping[str, ArrayLike], query: int) -> dict[str, NDArray[np.int64]]:
    if not isinstance(row, Mapping) or not set(KINDS) <= set(row):
        found = sorted(row) if isinstance(row, Mapping) else type(row).__name__
        raise ValueError(
            f"gnd[{query}] has {found}, but needs the lists easy, hard and junk; the original Oxford and Paris files "
            f"have ok and junk only: use the revisited ones."
        )
    lists = {kind: _integers(row[kind], f"gnd[{query}][{kind!r}]") for kind in KINDS}
    values, counts = np.unique(np.concatenate(list(lists.values())), return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"gnd[{query}] judges gallery image {values[counts > 1][0]} twice; it is easy, hard or junk, and once."
        )
    return lists


# Files


def read_ground_truth(path: str | PathLike[str]) -> GroundTruth:
    """`gnd_roxford5k.pkl`, `gnd_rparis6k.pkl`, or the same as `.json`: keys `imlist`, `qimlist` and `gnd`.

    No code of a pickle is run: see `suprank.files.revisited`.
    """
    items, queries, rows = read_content(Path(path))
    boxes = np.array([row["bbx"] for row in rows], np.float64).reshape(-1, 4) if all("bbx" in row for row in rows) else None
    return GroundTruth(tuple(items), tuple(queries), rows, boxes)
