"""Revisited Oxford and Paris (Radenović et al., CVPR 2018): three protocols, a trapezoidal AP, and mP@k.

Every gallery image is easy, hard, junk or negative for a query. A protocol says which of them are positive, and which are
ignored: removed from the ranked list as if they were not in the gallery. The metrics are functions of *places*: for each
query the 1-based places of its positives in its list, without the ignored images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from suprank.evaluation.block_ranking import rank_positives
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.metrics import mean_over_queries
from suprank.evaluation.positives import ListedPositives, pad_lists
from suprank.evaluation.report import Report
from suprank.evaluation.search import Search, choose_device
from suprank.evaluation.units import classes_of_positives
from suprank.files.reading import reading
from suprank.files.revisited import read_revisited
from suprank.system.progress import progress_function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from numpy.typing import ArrayLike, NDArray

    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.system.progress import Progress

KINDS = ("easy", "hard", "junk")
PROTOCOLS = {  # protocol: (the kinds that are positive, the kinds that are ignored)
    "easy": (("easy",), ("hard", "junk")),
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("easy", "junk")),
}


class ProtocolLists(NamedTuple):
    """One protocol: for each query the gallery indices of its positives, and of the images to ignore; both ascending."""

    positives: list[NDArray[np.int64]]
    ignored: list[NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """The file of a revisited dataset: names of the gallery images and of the queries, and the judgments of each query.

    `judgments[q]` maps "easy", "hard" and "junk" to gallery indices. `boxes` `[queries, 4]` are the regions to crop queries to,
    as x1, y1, x2, y2 in pixels (`bbx` in the file); None where the file has none.
    """

    items: tuple[str, ...]
    queries: tuple[str, ...]
    judgments: Sequence[Mapping[str, NDArray[np.int64]]]
    boxes: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if len(self.judgments) != len(self.queries):
            raise ValueError(
                f"the ground truth judges {len(self.judgments)} queries and names {len(self.queries)}; give one list for each."
            )
        object.__setattr__(self, "judgments", tuple(_check_lists(row, query) for query, row in enumerate(self.judgments)))
        for query, lists in zip(self.queries, self.judgments, strict=True):
            indices = np.concatenate([lists[kind] for kind in KINDS])
            if indices.size and indices.max() >= len(self.items):
                raise ValueError(
                    f"query {query!r} judges gallery index {indices.max()}, but there are {len(self.items)} gallery images; do "
                    f"gnd and imlist come from one file?"
                )


def protocol_lists(ground_truth: GroundTruth | Sequence[Mapping[str, ArrayLike]]) -> dict[str, ProtocolLists]:
    """Positives and ignored images of every query under each protocol; from `read_ground_truth`, or the pickle's `gnd` list.

        easy:    easy positive,           hard and junk ignored
        medium:  easy and hard positive,  junk ignored
        hard:    hard positive,           easy and junk ignored

    A query may have no positives under a protocol: it is then left out of that protocol's means. An image judged twice for
    one query is an error.
    """
    rows = (
        ground_truth.judgments
        if isinstance(ground_truth, GroundTruth)
        else [_check_lists(row, i) for i, row in enumerate(ground_truth)]
    )
    return {
        name: ProtocolLists(*([np.sort(np.concatenate([row[kind] for kind in kinds])) for row in rows] for kinds in both))
        for name, both in PROTOCOLS.items()
    }


def trapezoidal_average_precision(places: ArrayLike) -> float:
    """AP = 1/m · Σ_{j=0..} ½ · (j/r_j + (j+1)/(r_j+1)), r_j the 0-based place of the j-th positive; NaN without positives.

    The area under the precision-recall curve, by trapezoids: each positive adds 1/m times the mean of the precision just
    before it (1 where r_j = 0) and with it. `suprank.ranking.average_precision` takes only the latter, so it is never
    lower: the difference is 1/m · Σ_j (r_j − j) / (2·r_j·(r_j+1)), 0 while positives come first without a gap, and at most
    1/(4m) · Σ_{j<m} 1/(2j+1), which positives at places 2, 4, 6, … reach. That is 0.25 for one positive at place 2 (0.25
    here, 0.5 there), 0.053 for ten, 0.008 for a hundred. Do not mix the two.

    `places` are those of all positives, 1-based, in any order.
    """
    zero_based = _check_places(places) - 1
    if not len(zero_based):
        return math.nan
    j = np.arange(len(zero_based))
    before = np.where(zero_based > 0, j / np.maximum(zero_based, 1), 1.0)
    after = (j + 1) / (zero_based + 1)
    return float((before + after).mean() / 2)


def precision_at_reached(places: ArrayLike, k: int) -> float:
    """P@k of the protocol: the share of positives in the first k_q = min(k, place of the last positive); NaN without positives.

    If all positives come before place k, the rest of the list does not count: three positives at places 1, 2, 3 have
    P@10 = 1, where the usual one is 0.3. Give the places of all positives, because the last one matters.
    """
    if k < 1:
        raise ValueError(f"k={k} must be 1 or more: a precision needs a list.")
    ascending = _check_places(places)
    if not len(ascending):
        return math.nan
    reached = min(int(ascending[-1]), k)
    return int((ascending <= reached).sum()) / reached


def revisited(
    queries: EmbeddingSource,
    gallery: EmbeddingSource,
    ground_truth: GroundTruth | Sequence[Mapping[str, ArrayLike]],
    *,
    ks: Sequence[int] = (1, 5, 10),
    normalize: bool = True,
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    progress: bool | Progress = True,
) -> Report:
    """Rank the gallery for every query, exactly, and evaluate it by the three protocols of revisited Oxford and Paris.

    The report has `AP/easy`, `AP/medium`, `AP/hard`, whose means are the protocol's mAP (trapezoidal, see
    `trapezoidal_average_precision`), and `P@1/easy`, … for its mP@k (see `precision_at_reached`), with the values of each
    query, NaN without positives. Distractors are additional gallery items, after those that the ground truth numbers.
    Arguments are otherwise as in `evaluate`.
    """
    source, items = Embeddings.from_source(queries, "queries"), Embeddings.from_source(gallery, "gallery")
    protocols = protocol_lists(ground_truth)
    for protocol, lists in protocols.items():
        if len(lists.positives) != len(source):
            raise ValueError(
                f"the ground truth judges {len(lists.positives)} queries and there are {len(source)}; give one list for each."
            )
        last = max((int(one.max()) for one in (*lists.positives, *lists.ignored) if len(one)), default=0)
        if last >= len(items):
            raise ValueError(
                f"the ground truth names item {last} ({protocol}), but the gallery has items 0 to {len(items) - 1}."
            )
    device = choose_device(device, source)
    search = Search(source, items, device=device, memory_budget=memory_budget, normalize=normalize)
    show = progress_function(progress, "evaluating")
    values: dict[str, NDArray[np.float64]] = {}
    for number, (protocol, lists) in enumerate(protocols.items()):

        def show_queries(done: int, before: int = number * len(source)) -> None:
            show(before + done, len(protocols) * len(source))

        places = listed_places(search, *lists, show_queries)
        values[f"AP/{protocol}"] = np.array([trapezoidal_average_precision(one) for one in places])
        for k in ks:
            values[f"P@{k}/{protocol}"] = np.array([precision_at_reached(one, k) for one in places])
    names = [f"{name}/{protocol}" for name in ("AP", *(f"P@{k}" for k in ks)) for protocol in protocols]
    return Report(
        means={name: mean_over_queries(values[name]) for name in names},
        n_queries=len(source),
        n_items=len(items),
        levels=tuple(protocols),
        without_positives={protocol: int(np.isnan(values[f"AP/{protocol}"]).sum()) for protocol in protocols},
        settings={"protocol": "revisited Oxford and Paris", "average_precision": "trapezoidal", "ks": list(ks)},
        per_query={name: values[name] for name in names},
        classes=classes_of_positives(
            np.concatenate([np.ravel(lists.positives[query]) for lists in protocols.values()]).tolist()
            for query in range(len(source))
        ),
    )


def listed_places(
    search: Search, positives: Sequence[ArrayLike], ignored: Sequence[ArrayLike], show: Callable[[int], None]
) -> list[NDArray[np.int64]]:
    """For each query the 1-based places of its positives, ascending, without the ignored items; both are gallery indices.

    Of equal scores, positives come last. `show` gets the number of queries that are done.
    """
    listed = ListedPositives(*(torch.from_numpy(pad_lists(part)).to(search.device) for part in (positives, ignored)))
    places: list[NDArray[np.int64]] = []
    for block in search.blocks(listed.counts()):
        rows = listed.queries[block]
        level, place = rank_positives(search.score(rows), listed.items_of(rows))
        places += [row[positive].cpu().numpy() for row, positive in zip(place, level > 0, strict=True)]
        show(block.stop)
    return places


def _check_places(places: ArrayLike) -> NDArray[np.int64]:
    """The places in ascending order."""
    ascending = np.sort(_integers(places, "places"))
    if ascending.size and (ascending[0] < 1 or (np.diff(ascending) == 0).any()):
        raise ValueError(f"places {ascending[:10].tolist()} must be distinct and count from 1: each place has one image.")
    return ascending


def _integers(values: ArrayLike, name: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.dtype.kind == "f" and (array == np.floor(array)).all() and (abs(array) < 2**53).all():
        array = array.astype(np.int64)  # the files come from Matlab, which has floats only
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}, but must be whole numbers that are not larger than 2^53.")
    return array.astype(np.int64).reshape(-1)


def _check_lists(row: Mapping[str, ArrayLike], query: int) -> dict[str, NDArray[np.int64]]:
    if not isinstance(row, Mapping) or not set(KINDS) <= set(row):
        given = sorted(row) if isinstance(row, Mapping) else type(row).__name__
        raise ValueError(
            f"gnd[{query}] has {given}, but needs the lists easy, hard and junk; the original Oxford and Paris files "
            f"have ok and junk only: use the revisited ones."
        )
    lists = {kind: _integers(row[kind], f"gnd[{query}][{kind!r}]") for kind in KINDS}
    values, counts = np.unique(np.concatenate(list(lists.values())), return_counts=True)
    if values.size and values[0] < 0:
        raise ValueError(f"gnd[{query}] judges gallery image {values[0]}, but they are numbered from 0.")
    if (counts > 1).any():
        raise ValueError(
            f"gnd[{query}] judges gallery image {values[counts > 1][0]} twice; give it once, as easy, hard or junk."
        )
    return lists


# Files


def read_ground_truth(path: str | PathLike[str]) -> GroundTruth:
    """Read `gnd_roxford5k.pkl`, `gnd_rparis6k.pkl`, or the same as `.json`: keys `imlist`, `qimlist` and `gnd`.

    No code in a pickle is run: see `suprank.files.revisited`.
    """
    with reading(path, "ground truth"):
        items, queries, rows = read_revisited(Path(path))
        boxes = np.array([row["bbx"] for row in rows], np.float64).reshape(-1, 4) if all("bbx" in row for row in rows) else None
        return GroundTruth(tuple(items), tuple(queries), rows, boxes)
