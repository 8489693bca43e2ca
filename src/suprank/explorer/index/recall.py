"""The recall of an approximate index, against exact search on items drawn at random, and the search settings that reach one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.explorer.index.kinds import SearchSettings, cells_in, least_effort, search_faiss
from suprank.explorer.index.protocol import unit_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.evaluation.embeddings import Embeddings

QUERIES, _FEWER_QUERIES, _COMPARED_NUMBERS = 1024, 512, 2**37  # the last one takes some seconds
_STANDARD_ERRORS = 2  # by which the recall must exceed what is wanted, since these queries are a sample
_MAX_RESCORED = 2**15
_GAIN = 0.002  # from doubling the effort: below this the codes, not the effort, limit the recall
_FINE = 16  # the effort found is at most 1/16 above the least


class ExactNeighbors(NamedTuple):
    """Query rows, their unit vectors, and the k best rows for each without itself, `[queries, k]`."""

    rows: NDArray[np.int64]
    queries: NDArray[np.float32]
    best: NDArray[np.int64]


class MeasuredRecall(NamedTuple):
    """The share of the k best items that is found with these settings, and its standard error."""

    settings: SearchSettings
    recall: float
    error: float

    def reaches(self, wanted: float) -> bool:
        """Whether other queries, too, can be expected to find this share."""
        return self.recall - _STANDARD_ERRORS * self.error >= wanted


def exact_neighbors(embeddings: Embeddings, k: int, queries: int | None = None) -> ExactNeighbors:
    """Exact neighbors of rows drawn at random, always the same ones; in bounded memory, by `suprank.evaluation.top_k`.

    There are 1,024 queries by default, fewer from 130 million numbers on, and 512 at least.
    """
    import torch  # when it is used: an index is opened and described without it

    from suprank.evaluation import top_k

    if queries is None:
        queries = min(QUERIES, max(_FEWER_QUERIES, _COMPARED_NUMBERS // (len(embeddings) * embeddings.dim)))
    rows = np.sort(np.random.default_rng(1).choice(len(embeddings), min(queries, len(embeddings)), replace=False))
    queries_of_rows = unit_rows(embeddings.rows(torch.from_numpy(rows)).cpu().numpy(), embeddings.name)
    k = min(k, len(embeddings) - 1)
    if k < 1:
        return ExactNeighbors(rows, queries_of_rows, np.empty((len(rows), 0), np.int64))
    found = top_k(queries_of_rows, embeddings, k, self_index=torch.from_numpy(rows), progress=False)
    return ExactNeighbors(rows, queries_of_rows, np.asarray(found.item_ids, np.int64))


def measure_recall(index: Any, settings: SearchSettings, known: ExactNeighbors) -> MeasuredRecall:
    """The share of the exact neighbors that the index finds, leaving the query itself out of its list."""
    count, k = known.best.shape
    if not k:
        return MeasuredRecall(settings, 1.0, 0.0)
    _, found = search_faiss(index, settings, known.queries, k + 1)
    others = [row[row != own][:k] for row, own in zip(found, known.rows, strict=True)]
    shares = np.array([len(np.intersect1d(mine, best)) / k for mine, best in zip(others, known.best, strict=True)])
    return MeasuredRecall(settings, float(shares.mean()), float(shares.std()) / math.sqrt(count))


def tune_search(index: Any, kind: str, known: ExactNeighbors, wanted: float) -> MeasuredRecall:
    """The least settings, nearly, that reach the recall `wanted`; or those beyond which more effort gains little."""
    settings = SearchSettings(kind, min(least_effort(index, kind, known.best.shape[1] + 1), _most_effort(index, kind)))
    measured = _tune_effort(index, settings, known, wanted)
    most = min(index.ntotal, _MAX_RESCORED) if hasattr(index, "base_index") else 0
    while not measured.reaches(wanted) and measured.settings.rescored < most:
        settings = settings._replace(rescored=4 * settings.rescored)
        measured = _tune_effort(index, settings, known, wanted)
    return _tune_rescored(index, measured, known, wanted) if most else measured


def _tune_rescored(index: Any, measured: MeasuredRecall, known: ExactNeighbors, wanted: float) -> MeasuredRecall:
    """Halve the number of rescored candidates as long as the recall is reached: they take a third of the time of a query."""
    while measured.reaches(wanted) and measured.settings.rescored > 1:
        fewer = measure_recall(index, measured.settings._replace(rescored=measured.settings.rescored // 2), known)
        if not fewer.reaches(wanted):
            break
        measured = fewer
    return measured


def _most_effort(index: Any, kind: str) -> int:
    return int(index.ntotal if kind == "hnsw" else cells_in(index).nlist)


def _tune_effort(index: Any, settings: SearchSettings, known: ExactNeighbors, wanted: float) -> MeasuredRecall:
    """Double the effort until the recall is reached or more effort gains little; then halve the last step where possible."""

    def measure(effort: int) -> MeasuredRecall:
        return measure_recall(index, settings._replace(effort=effort), known)

    most, measured = _most_effort(index, settings.kind), measure(settings.effort)
    too_little = settings.effort
    while not measured.reaches(wanted) and measured.settings.effort < most:
        too_little = measured.settings.effort
        more = measure(min(2 * too_little, most))
        if measured.recall > 0.5 and more.recall - measured.recall < _GAIN:
            return measured
        measured = more
    while measured.settings.effort - too_little > max(1, too_little // _FINE):
        between = measure((too_little + measured.settings.effort) // 2)
        if between.reaches(wanted):
            measured = between
        else:
            too_little = between.settings.effort
    return measured
