"""Checks of the arguments of an evaluation: labels, level names, metrics, and the items excluded from a query's list."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from suprank.evaluation.metric_names import LEVEL_MEANS, Metric, check_level_name, parse_metric
from suprank.evaluation.overlap import warn_if_queries_in_gallery, warn_if_queries_repeat
from suprank.evaluation.positives import pad_lists
from suprank.files.labels import check_tree
from suprank.ranking.relevance import check_labels, label_columns, match_sets, refuse_hot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import Embeddings


def check_label_pair(
    labels: Tensor | ArrayLike, gallery_labels: Tensor | ArrayLike | None, source: Embeddings, gallery: Embeddings | None
) -> tuple[Tensor, Tensor]:
    """The labels of the queries and of the items, which are the queries if there is no gallery: `[N, L]` or `[N, L, M]`."""
    own = _check_labels(labels, source, "labels")
    if gallery is None:
        if gallery_labels is not None:
            raise ValueError("gallery_labels were given without a gallery; give the gallery's embeddings too.")
        return own, own
    if gallery_labels is None:
        raise ValueError("a gallery was given without gallery_labels; give them, with −1 for items without a label.")
    theirs = _check_labels(gallery_labels, gallery, "gallery_labels")
    if own.shape[1] != theirs.shape[1]:
        raise ValueError(
            f"labels have {own.shape[1]} level(s) and gallery_labels {theirs.shape[1]}, but levels are compared column by "
            f"column; give both the same columns, finest first."
        )
    return match_sets(own, theirs)


def _check_labels(labels: Tensor | ArrayLike, source: Embeddings, name: str) -> Tensor:
    tensor = labels.detach() if isinstance(labels, torch.Tensor) else integer_tensor(labels, name)
    unsigned = tensor.dtype == torch.uint64
    tensor = label_columns(tensor, name)
    if len(tensor) != len(source):
        raise ValueError(f"{name} have {len(tensor)} rows and {source.name} {len(source)}; give one row for each embedding.")
    tensor = tensor if tensor.ndim == 2 and tensor.dtype == torch.int32 else tensor.long()
    check_labels(tensor, name, unsigned=unsigned)
    return tensor


def integer_tensor(values: ArrayLike, name: str) -> Tensor:
    """Labels as a tensor; of int32 and int64 it shares the memory, or the mapped file, and must not be written to."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and not (array.dtype == np.bool_ and array.ndim == 3):
        raise TypeError(
            f"{name} have dtype {array.dtype}, but must be integers; number the classes from 0 on, or give the "
            f"names to suprank.evaluation.encode_labels."
        )
    if array.dtype not in (np.int32, np.int64, np.uint64, np.bool_):
        array = array.astype(np.int64)
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):  # reversed, or a field of a structured array
        array = array.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an array that may not be written to
        return torch.from_numpy(array)


def check_label_tree(parts: Sequence[Tensor], levels: Sequence[str]) -> None:
    """Refuse labels that are no tree, and what look like rows of 0 and 1 instead of labels: see `check_tree`."""

    def where(row: int) -> str:
        queries = len(parts[0])
        return f"row {row} of labels" if row < queries else f"row {row - queries} of gallery_labels"

    if parts[0].ndim == 3:
        refuse_hot(torch.cat([*parts]), "labels")
    try:
        check_tree([part.cpu().numpy() for part in parts], levels, where=where)
    except ValueError:
        refuse_hot(torch.cat([*parts]), "labels")
        raise


def check_level_names(names: Sequence[str] | None, depth: int) -> tuple[str, ...]:
    """The names of the label columns, finest first; ``label0``, ``label1``, … where none are given."""
    if names is None:
        return tuple(f"label{column}" for column in range(depth))
    if isinstance(names, str) or len(names) != depth or len(set(names)) < depth or set(LEVEL_MEANS) & set(names):
        raise ValueError(
            f"levels={names!r} must be {depth} different name(s), one for each column of labels, finest first, none of "
            f"them {' or '.join(map(repr, LEVEL_MEANS))}, which stand for means over the levels."
        )
    for name in names:
        check_level_name(name)
    return tuple(names)


def check_ks(ks: Sequence[int]) -> list[int]:
    """The ks in ascending order without duplicates; a single number is allowed."""
    numbers = [ks] if isinstance(ks, int) else list(ks)
    for k in numbers:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise ValueError(f"ks={ks!r} must be integers of at least 1; try (1, 10, 100).")
    return sorted({int(k) for k in numbers})


def parse_metrics(metrics: Sequence[str], levels: Sequence[str]) -> list[Metric]:
    """The metrics of these names, in their order, without duplicates."""
    if isinstance(metrics, str):
        raise TypeError(f"metrics={metrics!r} must be a sequence of names; write [{metrics!r}].")
    chosen = list(dict.fromkeys(map(parse_metric, metrics)))
    if not chosen:
        raise ValueError("metrics is empty; name at least one, or leave it out to get them all.")
    for metric in chosen:
        if metric.level is not None and metric.level not in (*levels, *LEVEL_MEANS):
            raise ValueError(f"{metric} names no level of the labels; their levels are {', '.join(levels)}.")
    return chosen


def excluded_items(
    source: Embeddings,
    gallery: Embeddings | None,
    self_index: Tensor | ArrayLike | None,
    ids: Sequence[Any] | NDArray[Any] | None,
    gallery_ids: Sequence[Any] | NDArray[Any] | None,
    ignored: Sequence[Sequence[int]] | None,
    *,
    stacklevel: int = 4,
) -> Tensor:
    """The items that are not in the list of each query: the query itself, and the ignored ones; −1 for padding.

    Warns if most queries are in the gallery and in their own lists, by default in the name of whoever calls the caller.
    """
    same, items = gallery is None, gallery or source
    if same and gallery_ids is not None:
        raise ValueError("gallery_ids were given without a gallery; the items are the queries, so give ids.")
    for given, owner, name in ((ids, source, "ids"), (gallery_ids, items, "gallery_ids")):
        if given is not None and len(given) != len(owner):
            raise ValueError(f"there are {len(given)} {name} for {len(owner)} rows of {owner.name}; give one for each.")
    columns = []
    if self_index is not None:
        index = self_index.detach().cpu().numpy() if isinstance(self_index, torch.Tensor) else np.asarray(self_index)
        if index.shape != (len(source),) or index.dtype.kind not in "iu":
            raise ValueError(f"self_index has shape {index.shape}, but must be one integer for each of {len(source)} queries.")
        columns.append(index.astype(np.int64)[:, None])
    elif ids is not None and (same or gallery_ids is not None):
        columns.append(_items_with_ids(as_array(ids), as_array(ids if same else gallery_ids)))
    elif same:
        columns.append(np.arange(len(source))[:, None])
    if ignored is not None:
        if len(ignored) != len(source):
            raise ValueError(f"ignored has {len(ignored)} lists for {len(source)} queries; give one for each, [] for none.")
        for query, one in enumerate(ignored):
            if np.size(one) and (np.ndim(one) != 1 or np.asarray(one).dtype.kind not in "iu"):
                raise TypeError(f"ignored[{query}]={one!r} must be a list of item numbers; [] for none.")
        columns.append(pad_lists(ignored))
    excluded = np.concatenate(columns, 1) if columns else np.empty((len(source), 0), np.int64)
    if excluded.size and not (excluded.min() >= -1 and excluded.max() < len(items)):
        wrong = excluded.min() if excluded.min() < -1 else excluded.max()
        raise ValueError(f"item {wrong} is to be left out, but items are numbered 0 to {len(items) - 1}; −1 stands for none.")
    if excluded.shape[1] > 1:
        # Each item once, or it would be subtracted from the number of positives twice.
        excluded = -np.sort(-excluded, axis=1)
        excluded[:, 1:][excluded[:, 1:] == excluded[:, :-1]] = -1
    tensor = torch.from_numpy(excluded)
    if not same or self_index is not None:  # else each query is excluded by its number, or by its id
        warn_if_queries_in_gallery(source, items, tensor, self_index=self_index is not None, stacklevel=stacklevel)
    else:
        warn_if_queries_repeat(source, tensor, stacklevel=stacklevel)
    return tensor


def as_array(ids: Any) -> NDArray[Any]:
    """Ids as an array; text and integers that come as Python objects, as from pandas, get a numpy type of their own."""
    array = np.asarray(ids)
    typed = np.array(array.tolist()) if array.dtype.kind in "OT" else array
    return typed if typed.dtype.kind in "iuU" and typed.shape == array.shape else array


def _items_with_ids(ids: NDArray[Any], gallery_ids: NDArray[Any]) -> NDArray[np.int64]:
    """The numbers of the items that have each query's id, −1 for padding."""
    if ids.dtype.kind + gallery_ids.dtype.kind in ("iu", "ui"):
        # Compared directly, both would become floats, in which large numbers are rounded to the same value.
        ids, gallery_ids = ids.astype(object), gallery_ids.astype(object)
    if ids.dtype.kind != gallery_ids.dtype.kind:
        raise TypeError(f"ids are {ids.dtype} and gallery_ids {gallery_ids.dtype}, so none could be equal; give both one type.")
    order = np.argsort(gallery_ids, kind="stable")
    ordered = gallery_ids[order]
    first, last = np.searchsorted(ordered, ids, "left"), np.searchsorted(ordered, ids, "right")
    same = np.full((len(ids), int((last - first).max(initial=0))), -1, np.int64)
    for column in range(same.shape[1]):
        inside = first + column < last
        same[inside, column] = order[(first + column)[inside]]
    return same
