"""Checks of the arguments of an evaluation: labels, level names, metrics, and the items excluded from a query's list."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from suprank.evaluation.metric_names import LEVEL_MEANS, Metric, check_level_name, parse_metric
from suprank.evaluation.overlap import warn_if_queries_in_gallery, warn_if_queries_repeat
from suprank.evaluation.positives import pad_lists
from suprank.ranking.relevance import check_labels, classes_with_two_parents, label_columns, match_sets, refuse_hot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Integer
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import Embeddings

_ROWS = 2**18  # of labels that are looked at together


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
        raise TypeError(f"{name} have dtype {array.dtype}, but must be integers; number the classes from 0 on.")
    if array.dtype not in (np.int32, np.int64, np.uint64, np.bool_):
        array = array.astype(np.int64)
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):  # reversed, or a field of a structured array
        array = array.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an array that may not be written to
        return torch.from_numpy(array)


def forms_tree(parts: Sequence[Integer[Tensor, "_ depth"]]) -> bool:
    """Whether every label has a parent, and the same one in all rows of all parts.

    Read some rows at a time, into a table of parents; False too for labels that are too large to index one.
    """
    parts = [part for part in parts if len(part)]
    if not parts:
        return True
    rows = [part[first : first + _ROWS] for part in parts for first in range(0, len(part), _ROWS)]
    for column in range(parts[0].shape[1] - 1):
        largest = max(int(part[:, column].max()) for part in parts)
        if largest > sum(map(len, parts)) + 1024:
            return False
        parents = torch.full((largest + 2,), -1, dtype=parts[-1].dtype, device=parts[0].device)
        for one in rows:  # the last entry is for rows without a label, and means nothing
            parents[one[:, column].where(one[:, column] >= 0, largest + 1).long()] = one[:, column + 1].to(parents.dtype)
        for one in rows:
            child, parent = one[:, column], one[:, column + 1]
            known = parents[child.where(child >= 0, largest + 1).long()]
            if ((child >= 0) & ((parent < 0) | (known != parent))).any():
                return False
    return True


def check_tree(
    labels: Integer[Tensor, "rows depth *set"], names: Sequence[str], gallery: Integer[Tensor, "items depth *set"] | None = None
) -> None:
    """Refuse a label with two parents, and one whose parent is missing, in the labels and those of a gallery together.

    Of sets, refuse a label whose images have no label of the next level in common, which could be its parent.
    """
    parts = [labels] if gallery is None else [labels, gallery]
    if labels.ndim == 2 and forms_tree(parts):
        return
    labels = torch.cat(parts)
    refuse_hot(labels, "labels")
    for column in range(labels.shape[1] - 1):
        child, parent = labels[:, column], labels[:, column + 1]
        if labels.ndim == 3:
            _check_set_tree(child, parent, names[column : column + 2])
            continue
        orphans = ((child >= 0) & (parent < 0)).nonzero()[:, 0]
        if len(orphans):
            row = int(orphans[0])
            raise ValueError(
                f"{names[column]}={int(child[row])} has no parent: its {names[column + 1]} is {int(parent[row])} in "
                f"{len(orphans)} row(s), and −1 means unlabeled; label the parent too (fill_gaps of a manifest or a label file "
                f"does), or set the finer label to −1."
            )
        twice = classes_with_two_parents(child, parent).tolist()
        if twice:
            parents = parent[child == twice[0]].unique().tolist()
            way_out = "give a label that occurs under two parents an id for each of them."
            if not len(classes_with_two_parents(parent, child)):
                way_out = f"{names[column + 1]} looks finer than {names[column]}: give the columns finest first."
            raise ValueError(
                f"labels must form a tree, but {names[column]}={twice[0]} stands under {names[column + 1]} "
                f"{' and '.join(map(str, parents[:3]))}{' and more' if len(parents) > 3 else ''} ({len(twice)} such label(s)); "
                f"{way_out}"
            )


def _check_set_tree(child: Tensor, parent: Tensor, names: Sequence[str]) -> None:
    fine, coarse = names
    orphans = ((child >= 0).any(1) & (parent < 0).all(1)).nonzero()[:, 0]
    if len(orphans):
        row = int(orphans[0])
        raise ValueError(
            f"{fine}={int(child[row].max())} has no parent: row {row} has no {coarse}, one of {len(orphans)} such rows; label "
            f"the parents too, or set the finer labels to −1."
        )
    for label in classes_with_two_parents(child, parent)[:1].tolist():
        rows = (child == label).any(1).nonzero()[:, 0].tolist()
        raise ValueError(
            f"labels must form a tree, but {len(rows)} rows with {fine}={label} (such as {', '.join(map(str, rows[:3]))}) "
            f"have no {coarse} in common that could be its parent; add the parent to each of them, or leave out a level."
        )


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
