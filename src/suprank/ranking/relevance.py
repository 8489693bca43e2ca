"""Turn labels into levels and relevance: how close every item is to every query.

A *level* is the depth of the closest common ancestor in the label tree: L for the same fine class, 0 for items that
share nothing, and `IGNORED` (−1) for an item that is not in the query's list at all (the query itself, or junk).

An item may have several labels at a level: labels are then sets, `[N, L, M]` in place of `[N, L]`, padded with −1 to the size M
of the largest. Two items agree at a level where their sets meet. Truth values `[N, L, C]` (multi-hot) say of each of C classes
whether the item has it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from suprank.ranking.hyper_parameters import is_number
from suprank.ranking.reading import Reading, may_read
from suprank.ranking.seam import with_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Integer, Shaped
    from torch import Tensor

IGNORED = -1
NO_LABEL = -1
"""The label of an item whose class at a level is unknown: it is no query's positive there, and a negative of all."""
_UNMATCHED = -2  # what a query without a label looks for: no item has it
_DEEPEST = 127  # levels are int8: one byte a pair


def common_level(
    labels: Integer[Tensor, "queries ..."] | Bool[Tensor, "queries ..."],
    ref_labels: Integer[Tensor, "items ..."] | Bool[Tensor, "items ..."] | None = None,
) -> Integer[Tensor, "queries items"]:
    """Depth of the closest common ancestor of every query and item, counted from the root.

    Labels are `[N]` or `[N, L]`, column 0 the finest. An item shares level l when the l coarsest columns agree, so
    a fine id that occurs under two parents is not shared: the result counts agreeing columns from the coarsest on,
    up to the first that differs. −1 is no label, which nothing shares, not even another −1; values below are refused. The
    query itself, where it is among the items, has the level of its labels, L if it has them all: see `ignoring`.

    Labels `[N, L, M]` are sets of up to M labels at each level, padded with −1: columns agree where the sets meet.

    Example:
        >>> lada, other_lada, fiat, truck = [0, 0, 0], [1, 0, 0], [2, 1, 0], [3, 2, 1]
        >>> common_level(torch.tensor([lada]), torch.tensor([lada, other_lada, fiat, truck])).tolist()
        [[3, 2, 1, 0]]
        >>> dog_and_person, person, cat = [[0, 1]], [[1, -1]], [[2, -1]]
        >>> common_level(torch.tensor([dog_and_person, person, cat])).tolist()
        [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    ref_labels = labels if ref_labels is None else ref_labels
    columns, ref_columns = _columns(labels, "labels"), _columns(ref_labels, "ref_labels")
    if columns.shape[1] != ref_columns.shape[1]:
        raise ValueError(
            f"labels have {columns.shape[1]} level(s) and ref_labels {ref_columns.shape[1]}, but levels are compared "
            f"column by column; give both the same columns, finest first."
        )
    return listed_level(columns, ref_columns)


@with_kernels
def listed_level(
    labels: Integer[Tensor, "queries depth *set"],
    ref_labels: Integer[Tensor, "items depth *ref_set"],
    *,
    fine: bool = False,
    is_self: Bool[Tensor, "queries items"] | None = None,
    within_batch: bool = False,
) -> Integer[Tensor, "queries items"]:
    """`common_level` of checked int64 labels, or with `fine` 1 where all columns are shared and 0 elsewhere, in int8.

    The query itself is marked `IGNORED`: the items of the mask `is_self` or, without one and `within_batch`, the diagonal.
    """
    are_sets = labels.ndim == 3 or ref_labels.ndim == 3
    labels = torch.threshold(labels, NO_LABEL, _UNMATCHED)
    labels, ref_labels = labels[:, None], ref_labels[None]
    agree = _sets_meet if are_sets else torch.eq
    same = agree(labels[:, :, -1], ref_labels[:, :, -1])
    level = None if fine else same.to(torch.int8)
    for column in reversed(range(labels.shape[2] - 1)):
        same &= agree(labels[:, :, column], ref_labels[:, :, column])
        if level is not None:
            level += same
    level = same.to(torch.int8) if level is None else level
    if is_self is not None:
        return level.masked_fill_(is_self, IGNORED)
    return level.fill_diagonal_(IGNORED) if within_batch else level


def _sets_meet(labels: Tensor, ref_labels: Tensor) -> Tensor:
    """Whether the sets of each query and item have a member in common: M² comparisons, in the memory of one."""
    meet = torch.zeros(len(labels), ref_labels.shape[1], dtype=torch.bool, device=labels.device)
    sets, ref_sets = (one if one.ndim == 3 else one[..., None] for one in (labels, ref_labels))
    for own in sets.unbind(2):
        for member in ref_sets.unbind(2):
            meet |= own == member
    return meet


def is_integral(values: Tensor) -> bool:
    """Whether the tensor holds integers; truth values are none."""
    return not (values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool)


def label_columns(labels: Tensor, name: str) -> Integer[Tensor, "rows depth ..."]:
    """Labels as columns `[N, L]`, or as sets `[N, L, M]` if an item may have several at a level. Other shapes are refused."""
    dtype = labels.dtype
    if dtype.is_floating_point or dtype.is_complex or (dtype == torch.bool and labels.ndim != 3):
        raise TypeError(
            f"{name} have dtype {dtype}, but must be integers, or truth values of C classes [N, 1, C]; use "
            f"{name}.long() if the values are whole numbers."
        )
    if labels.ndim not in (1, 2, 3) or (labels.ndim > 1 and not 1 <= labels.shape[1] <= _DEEPEST) or 0 in labels.shape[2:]:
        raise ValueError(
            f"{name} have shape {tuple(labels.shape)}, but must be [N] or [N, L] with 1 to {_DEEPEST} levels, finest first, or "
            f"[N, L, M] if an item has up to M labels at a level; one-hot labels become numbers by {name}.argmax(1)."
        )
    columns = labels[:, None] if labels.ndim == 1 else labels
    if columns.dtype == torch.bool:
        readable = columns.numel() and may_read(Reading.TO_CHOOSE)
        found = columns.byte().topk(max(1, int(columns.sum(-1).max())) if readable else columns.shape[-1])
        columns = found.indices.where(found.values > 0, NO_LABEL)
    return columns[..., 0] if columns.ndim == 3 and columns.shape[2] == 1 else columns


def match_sets(
    labels: Integer[Tensor, "queries depth ..."], ref_labels: Integer[Tensor, "items depth ..."]
) -> tuple[Integer[Tensor, "queries depth ..."], Integer[Tensor, "items depth ..."]]:
    """Both labels as sets of one size, `[..., L, M]`, padded with −1, if one of them has sets; otherwise both as they are."""
    if labels.ndim == ref_labels.ndim == 2:
        return labels, ref_labels
    sets = [one if one.ndim == 3 else one[..., None] for one in (labels, ref_labels)]
    most = max(one.shape[2] for one in sets)
    padded = [torch.nn.functional.pad(one, (0, most - one.shape[2]), value=NO_LABEL) for one in sets]
    return padded[0], padded[1]


def refuse_label_sets(labels: Tensor, what: str, instead: str) -> None:
    """Raise if the labels are sets `[N, L, M]`, for `what` cannot use them; `instead` says what to do."""
    if labels.ndim == 3:
        raise ValueError(
            f"{what} needs one label for an image at each level, but these labels have up to {labels.shape[2]} (shape "
            f"{tuple(labels.shape)}); {instead}."
        )


def check_labels(labels: Integer[Tensor, "..."], name: str, *, unsigned: bool = False) -> None:
    """Raise if int64 labels are below −1, or sets multi-hot. `unsigned`: they were uint64, and from 2⁶³ on are below 0."""
    if labels.ndim == 3:
        refuse_hot(labels, name)
    if not labels.numel() or int(labels.min()) >= (0 if unsigned else NO_LABEL):
        return
    row = int((labels.reshape(len(labels), -1).amin(1) < (0 if unsigned else NO_LABEL)).nonzero()[0])
    value = int(labels[row].min())
    if unsigned:
        raise ValueError(
            f"{name} hold {value + 2**64} in row {row}, but ids must be below 2^63 = {2**63}, as int64 is; renumber them: "
            f"np.unique(labels, return_inverse=True)."
        )
    raise ValueError(
        f"{name} hold {value} in row {row}, but must be 0 or more, or −1 for no label; renumber the classes from 0 on."
    )


def refuse_hot(labels: Integer[Tensor, "rows depth ..."], name: str) -> None:
    """Raise if nothing but 0 and 1 says of each class whether a row has it: in columns that form no tree, or in sets."""
    if not labels.numel() or int(labels.min()) < 0 or int(labels.max()) > 1:
        return
    if labels.ndim == 3 and (labels.shape[2] > 2 or (labels[..., 0] == labels[..., 1]).any()):
        raise ValueError(
            f"{name} of shape {tuple(labels.shape)} hold nothing but 0 and 1, and one of them twice in a row, so they look "
            f"multi-hot; give truth values (dtype bool), or the numbers of each row's classes, padded with −1."
        )
    if labels.ndim == 2 and labels.shape[1] > 2 and (labels.sum(1) == 1).all():
        raise ValueError(
            f"{name} of shape {tuple(labels.shape)} hold one 1 in each row and else 0, so they look one-hot, but columns are "
            f"the levels of a tree; give the numbers of the classes: {name}.argmax(1)."
        )


def ignoring(level: Shaped[Tensor, "queries items"], item: Integer[Tensor, " queries"]) -> Shaped[Tensor, "queries items"]:
    """`level` with one item of each query marked `IGNORED`; an index of −1 leaves that query's row as it is."""
    absent = item < 0
    index = item.clamp(min=0)[:, None]
    before = level.gather(1, index)
    return level.scatter(1, index, before.where(absent[:, None], IGNORED))


def tree_relevance(
    level: Integer[Tensor, "queries items"],
    decay: float = 1.0,
    *,
    depth: int | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "queries items"]:
    """rel(k) = (l/L)^decay / |Ω^(l)| for k ∈ Ω^(l) (eq:hierarchy_relevance); 0 for negatives and ignored items.

    Sets are counted over the items in the list, so an ignored query does not count among its own fine items. `depth`
    is L; by default the deepest level present. It scales all relevances alike, which H-AP does not see. A deeper
    level can get less relevance an item than a coarser one that has fewer items.
    """
    check_decay(decay)
    _check_integer(level, "level")
    if depth is None:
        depth = max(_deepest(level), 1)
    elif depth < 1 or _known_deeper(level, depth):
        raise ValueError(
            f"depth={depth} must be 1 or more and reach the deepest level present, {_deepest(level)}; leave it out."
        )
    weights = tuple((current / depth) ** decay for current in range(1, depth + 1))
    return shared_weights(level, weights, cumulative=False, dtype=dtype or torch.get_default_dtype())


def weighted_ap_relevance(
    level: Integer[Tensor, "queries items"], weights: Sequence[float], *, dtype: torch.dtype | None = None
) -> Float[Tensor, "queries items"]:
    """rel(k) = Σ_{p=1..l} w_p / |Ω^{+,p}| for k ∈ Ω^(l): the relevance that makes H-AP = Σ_l w_l·AP^(l) (Property 1).

    Weights are given finest first, as label columns are: `weights[0]` is w_L and the last is w_1, of the coarsest level.
    They need not sum to 1, as H-AP divides by their sum; a level at which a query has no positives drops out of
    that query's sum and of its divisor.
    """
    check_level_weights(weights)
    _check_integer(level, "level")
    if _known_deeper(level, len(weights)):
        raise ValueError(
            f"level reaches {_deepest(level)} but there are {len(weights)} weights; give one for each level, finest first."
        )
    return shared_weights(level, tuple(reversed(weights)), cumulative=True, dtype=dtype or torch.get_default_dtype())


@with_kernels
def shared_weights(
    level: Integer[Tensor, "queries items"], weights: tuple[float, ...], *, cumulative: bool, dtype: torch.dtype
) -> Float[Tensor, "queries items"]:
    """w_l / |Ω^(l)| of each item, or Σ_{p ≤ l} w_p / |Ω^{+,p}| if `cumulative`; `weights` are w_1, w_2, …, coarsest first."""
    relevance = torch.zeros(level.shape, dtype=dtype, device=level.device)
    for current, weight in enumerate(weights, start=1):
        members = level >= current if cumulative else level == current
        share = weight / members.sum(-1, keepdim=True).to(dtype)
        relevance = torch.where(members, relevance + share, relevance)
    return relevance


def check_decay(decay: float) -> None:
    """Raise unless this is a `decay` of `tree_relevance`."""
    if not ((is_number(decay) and decay >= 0) or decay == math.inf):
        raise ValueError(f"decay={decay!r} must be 0 or more, or coarse levels would outweigh fine ones; the paper uses 1.")


def check_level_weights(weights: Sequence[float]) -> None:
    """Raise unless these may be `weights` of `weighted_ap_relevance`."""
    if not all(is_number(weight) and weight >= 0 for weight in weights) or sum(weights) <= 0:
        raise ValueError(f"weights={list(weights)} must be finite, 0 or more, with at least one above 0; try [1/L] * L.")


def exponential_gain(
    level: Integer[Tensor, "queries items"], *, dtype: torch.dtype | None = None
) -> Float[Tensor, "queries items"]:
    """2^l − 1, the gain of NDCG (sec:ndcg); 0 for negatives and ignored items.

    Example:
        >>> exponential_gain(torch.tensor([[3, 1, 0, -1]])).tolist()
        [[7.0, 1.0, 0.0, 0.0]]
    """
    _check_integer(level, "level")
    return torch.exp2(level.clamp(min=0).to(dtype or torch.get_default_dtype())) - 1


def _columns(labels: Tensor, name: str) -> Tensor:
    columns = label_columns(labels, name).to(torch.int64)
    if columns.device.type == "cpu" and may_read(Reading.TO_CHOOSE):  # on a GPU the check would wait for the device
        check_labels(columns, name, unsigned=labels.dtype == torch.uint64)
    return columns


def _check_integer(values: Tensor, name: str) -> None:
    if not is_integral(values):
        raise TypeError(
            f"{name} has dtype {values.dtype}, but must be integers; use {name}.long() if the values are whole numbers."
        )


def _deepest(level: Tensor) -> int:
    return int(level.max()) if level.numel() else 0


def _known_deeper(level: Tensor, depth: int) -> bool:
    """Whether a level is deeper than `depth`; False without looking on a GPU or under a compiler, which would have to wait."""
    return level.device.type == "cpu" and may_read(Reading.TO_CHOOSE) and _deepest(level) > depth
