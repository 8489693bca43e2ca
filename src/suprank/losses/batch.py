"""`RetrievalBatch`: the queries and items a loss is computed on, checked, with scores and levels computed once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from suprank.losses.unit_vectors import self_scores, unit_vectors_and_lengths, without_autocast
from suprank.ranking.reading import Checks
from suprank.ranking.relevance import (
    IGNORED,
    check_labels,
    classes_with_two_parents,
    is_integral,
    label_columns,
    listed_level,
    match_sets,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Integer, Shaped
    from torch import Tensor


@dataclass(frozen=True)
class RetrievalBatch:
    """A batch of queries against items: unit-length embeddings in float32 (or float64), integer labels `[N, L]`, −1 for none.

    Labels `[N, L, M]` are sets of up to M labels at each level, padded with −1; items agree at a level where their sets meet.
    `within_batch` says that the items are the queries themselves. `is_self`, if given, is a mask `[queries, items]` of the
    items that are the query itself; without it that is the diagonal within a batch, and nothing among references.
    `relevance`, if the user gave one, replaces levels. Build a batch with `from_embeddings`, which checks its arguments.
    """

    queries: Tensor
    items: Tensor
    labels: Tensor | None
    item_labels: Tensor | None
    relevance: Tensor | None
    is_self: Tensor | None
    within_batch: bool
    checks: Checks = field(default_factory=Checks, repr=False, compare=False)
    # Values computed once. Not functools.cached_property, whose lock torch.compile cannot trace on Python 3.11.
    _cache: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def from_embeddings(
        cls,
        embeddings: Float[Tensor, "queries dim"],
        labels: Integer[Tensor, "queries ..."] | Bool[Tensor, "queries ..."] | None = None,
        indices_tuple: object = None,
        ref_emb: Float[Tensor, "items dim"] | None = None,
        ref_labels: Integer[Tensor, "items ..."] | Bool[Tensor, "items ..."] | None = None,
        *,
        relevance: Float[Tensor, "queries items"] | None = None,
        self_index: Integer[Tensor, " queries"] | None = None,
        ids: Integer[Tensor, " queries"] | None = None,
        ref_ids: Integer[Tensor, " items"] | None = None,
        checks: Checks | None = None,
    ) -> RetrievalBatch:
        """Check the arguments of a loss and normalize the embeddings. Without references the queries are each other's items.

        `checks` collects the checks of values; without it they run at once.
        """
        checks = checks or Checks()
        if indices_tuple is not None:
            raise ValueError(
                "indices_tuple was given, but a rank needs every item of the batch, so mined pairs cannot be used; "
                "leave it out, and the miner with it."
            )
        named = {"ids": ids, "ref_ids": ref_ids, "self_index": self_index}
        given = [name for name, value in named.items() if value is not None]
        if given and ref_emb is None:
            raise ValueError(f"{given[0]} was given without ref_emb, but within a batch each query is one item; leave it out.")
        within_batch = ref_emb is None or (ref_emb is embeddings and not given)
        queries = _normalize(embeddings, "embeddings", checks)
        if labels is None and relevance is None:
            raise ValueError("labels are missing; give integer labels [B], [B, L] or [B, L, M], or relevance=[queries, items].")
        labels = None if labels is None else _label_columns(labels, queries, "labels", checks)
        items, item_labels = queries, labels
        if ref_emb is not None:
            items = queries if within_batch else _normalize(ref_emb, "ref_emb", checks).to(queries.dtype)
            if items.shape[1] != queries.shape[1]:
                raise ValueError(
                    f"ref_emb has dimension {items.shape[1]} and embeddings {queries.shape[1]}; embed both with one model."
                )
            item_labels = None
            if ref_labels is not None:
                item_labels = _label_columns(ref_labels, items, "ref_labels", checks)
            elif relevance is None:
                raise ValueError("ref_emb was given without ref_labels; references need labels of their own.")
            if labels is not None and item_labels is not None and labels.shape[1] != item_labels.shape[1]:
                raise ValueError(
                    f"labels have {labels.shape[1]} level(s) and ref_labels {item_labels.shape[1]}, but levels are compared "
                    f"column by column; give both the same columns, finest first."
                )
            if labels is not None and item_labels is not None:
                labels, item_labels = match_sets(labels, item_labels)
        elif ref_labels is not None:
            raise ValueError("ref_labels was given without ref_emb; give both, or neither to rank within the batch.")
        if relevance is not None:
            relevance = _check_relevance(relevance, queries, items, checks)
        is_self = None
        if ids is not None or ref_ids is not None:
            if self_index is not None:
                raise ValueError("ids and self_index were both given, and both say which references are the query; give one.")
            is_self = _is_self_by_id(ids, ref_ids, queries, items)
        elif self_index is not None:
            is_self = _is_self_by_index(self_index, queries, items, checks)
        return cls(queries, items, labels, item_labels, relevance, is_self, within_batch, checks)

    @property
    def scores(self) -> Float[Tensor, "queries items"]:
        """Cosine similarities in the embeddings' float32 or float64, whatever the autocast dtype."""
        if "scores" not in self._cache:
            if self.within_batch:
                self._cache["scores"] = self_scores(self.queries)
            else:
                with without_autocast(self.queries):
                    self._cache["scores"] = self.queries @ self.items.T
        return self._cache["scores"]

    def level(self, *, include_self: bool = False) -> Shaped[Tensor, "queries items"]:
        """The level of each item, or the user's relevance in its place. The query itself is ignored unless included."""
        if self.relevance is not None:
            return self.relevance if include_self else self._without_self(self.relevance.clone())
        return self._listed_level(include_self=include_self)

    def fine_level(self, *, include_self: bool = False) -> Integer[Tensor, "queries items"]:
        """Binary levels: 1 for items of the query's finest class (or of any user relevance above 0), 0 for the others."""
        columns = 0 if self.labels is None else self.depth  # the levels of `at_level` share one cache
        name = f"fine of {columns} columns, {'with' if include_self else 'without'} self"
        if name not in self._cache:
            self._cache[name] = self._fine_level(include_self=include_self)
        return self._cache[name]

    def at_level(self, level: int) -> RetrievalBatch:
        """The batch with labels from column `level` on, so that the classes of that level are the finest.

        Two classes of a level that differ further up stay two. Scores are computed once for all levels.
        """
        assert self.labels is not None
        labels, item_labels = self.labels[:, level:], None if self.item_labels is None else self.item_labels[:, level:]
        return replace(self, labels=labels, item_labels=item_labels)

    def label_tree_error(self) -> str | None:
        """What is wrong with the label columns as a tree, finest first, or None. It waits for a GPU."""
        if self.labels is None or self.depth < 2:
            return None
        others = [] if self.item_labels is None or self.item_labels is self.labels else [self.item_labels]
        labels = torch.cat([self.labels, *others])
        columns = labels.cpu().unbind(1)
        for fine, (child, parent) in enumerate(pairwise(columns)):
            unknown = parent < 0 if parent.ndim == 1 else (parent < 0).all(1)[:, None]
            for orphan in child[(child >= 0) & unknown][:1].tolist():
                return (
                    f"class {orphan} of column {fine} has no parent: column {fine + 1} is −1, no label, so nothing shares its "
                    f"class; label the parent too, or read the manifest with fill_gaps=True."
                )
            twice = classes_with_two_parents(child, parent)
            if not len(twice):
                continue
            first = int(twice[0])
            if child.ndim == 2:
                return (
                    f"the columns do not form a tree: images of class {first} of column {fine} have no class of column "
                    f"{fine + 1} in common, so it has no parent there; add its parent to the labels of each."
                )
            above = " and ".join(map(str, parent[child == first].unique()[:2].tolist()))
            if not len(classes_with_two_parents(parent, child)):
                return (
                    f"column {fine + 1} is finer than column {fine}: class {first} of column {fine} holds classes {above} of "
                    f"column {fine + 1}. Column 0 must be the finest level; reverse the columns: labels.flip(1)."
                )
            return (
                f"the columns do not form a tree: class {first} of column {fine} stands under {above} of column {fine + 1} "
                f"({len(twice)} such class(es)), and counts as one class under each; give it an id for each parent, or order "
                f"the columns finest first."
            )
        return None

    @property
    def depth(self) -> int:
        """L, the number of label columns."""
        assert self.labels is not None
        return self.labels.shape[1]

    def _fine_level(self, *, include_self: bool) -> Tensor:
        if self.relevance is None:
            return self._listed_level(fine=True, include_self=include_self)
        level = self.relevance.sign().to(torch.int8)
        return level if include_self else self._without_self(level)

    def _listed_level(self, *, fine: bool = False, include_self: bool) -> Tensor:
        assert self.labels is not None and self.item_labels is not None
        is_self, within_batch = (None, False) if include_self else (self.is_self, self.within_batch)
        return listed_level(self.labels, self.item_labels, fine=fine, is_self=is_self, within_batch=within_batch)

    def _without_self(self, fresh: Tensor) -> Tensor:
        if self.is_self is not None:
            return fresh.masked_fill_(self.is_self, IGNORED)
        return fresh.fill_diagonal_(IGNORED) if self.within_batch else fresh


def _normalize(embeddings: Tensor, name: str, checks: Checks) -> Tensor:
    if not isinstance(embeddings, torch.Tensor) or embeddings.ndim != 2 or not embeddings.dtype.is_floating_point:
        given = (
            f"{embeddings.dtype} of shape {tuple(embeddings.shape)}"
            if isinstance(embeddings, torch.Tensor)
            else type(embeddings)
        )
        raise ValueError(f"{name} is {given}, but must be a floating-point tensor [batch, dim].")
    if embeddings.numel() == 0:
        raise ValueError(f"{name} has shape {tuple(embeddings.shape)}: there is nothing to rank; skip empty batches.")
    precise = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
    unit, norm = unit_vectors_and_lengths(precise)
    checks.add(norm, lambda: norm.detach().sum() * 0, partial(_check_finite, precise, norm, name))
    return unit


def _check_finite(embeddings: Tensor, norm: Tensor, name: str) -> None:
    if math.isfinite(norm.sum().item()):
        return
    for row in (~norm.isfinite()).nonzero()[:1, 0].tolist():
        value = embeddings[row][~embeddings[row].isfinite()][:1].tolist()
        raise ValueError(
            f"{name}[{row}] holds {value[0] if value else 'values whose length overflows'}, but ranks need finite scores; "
            f"look for a too high learning rate or an overflow in half precision upstream."
        )


def _label_columns(labels: Tensor, embeddings: Tensor, name: str, checks: Checks) -> Tensor:
    if not isinstance(labels, torch.Tensor):
        raise TypeError(f"{name} is {type(labels)}, but must be an integer tensor; use torch.tensor({name}).")
    columns = label_columns(labels.to(embeddings.device), name).to(torch.int64)
    if len(columns) != len(embeddings):
        raise ValueError(f"{name} has {len(columns)} rows for {len(embeddings)} embeddings; give one row for each.")
    unsigned = labels.dtype == torch.uint64
    checks.add(columns, lambda: _suspicion(columns, unsigned), partial(check_labels, columns, name, unsigned=unsigned))
    return columns


def _suspicion(columns: Tensor, unsigned: bool) -> Tensor:
    """Below −1 if `check_labels` may refuse the labels: for the smallest, or sets that hold nothing but 0 and 1."""
    lowest = columns.min()
    suspicion = lowest - 1 if unsigned else lowest
    return suspicion if columns.ndim == 2 else torch.minimum(suspicion, torch.maximum(columns.max() - 3, -2 - lowest))


def _check_relevance(relevance: Tensor, queries: Tensor, items: Tensor, checks: Checks) -> Tensor:
    if not isinstance(relevance, torch.Tensor) or relevance.shape != (len(queries), len(items)):
        given = (
            f"has shape {tuple(relevance.shape)}"
            if isinstance(relevance, torch.Tensor)
            else f"is a {type(relevance)}, not a tensor"
        )
        raise ValueError(
            f"relevance {given}, but there are {len(queries)} queries and {len(items)} items; "
            f"give one value for each pair, 0 for a negative and {IGNORED} for an item out of the query's list."
        )
    if is_integral(relevance):
        raise TypeError(
            f"relevance is {relevance.dtype}, but must be floats: in from_scores integers are levels, of gain 2^level − 1; "
            f"use relevance.float() if they are the gain itself, or 2.0**relevance - 1."
        )
    relevance = relevance.detach().to(queries.device, queries.dtype)
    checks.add(relevance, lambda: relevance.sum() * 0, partial(_check_finite_relevance, relevance))
    return relevance


def _check_finite_relevance(relevance: Tensor) -> None:
    if not relevance.isfinite().all():
        raise ValueError("relevance holds NaN or infinity; give finite values, 0 for a negative.")


def _is_self_by_index(self_index: Tensor, queries: Tensor, items: Tensor, checks: Checks) -> Tensor:
    index = _integers(
        self_index, queries, "self_index", "the position of each query among the items, −1 where it is not among them"
    )
    count = len(items)
    checks.add(index, lambda: torch.minimum(index.min(), count - 2 - index.max()), partial(_check_positions, index, count))
    return index[:, None] == torch.arange(count, device=index.device)


def _check_positions(index: Tensor, count: int) -> None:
    for wrong in index[(index < -1) | (index >= count)][:1].tolist():
        raise ValueError(f"self_index holds {wrong}, but there are {count} items; use −1 for a query that is not one.")


def _is_self_by_id(ids: Tensor | None, ref_ids: Tensor | None, queries: Tensor, items: Tensor) -> Tensor:
    if ids is None or ref_ids is None:
        given, missing = ("ref_ids", "ids") if ids is None else ("ids", "ref_ids")
        raise ValueError(f"{given} were given without {missing}, but they are compared; give both, −1 where an id is unknown.")
    queried = _integers(ids, queries, "ids", "which image each query is, −1 where that is unknown")
    referenced = _integers(ref_ids, items, "ref_ids", "which image each reference is, −1 where that is unknown")
    return (queried[:, None] == referenced) & (queried >= 0)[:, None]


def _integers(values: Tensor, embeddings: Tensor, name: str, meaning: str) -> Tensor:
    if not isinstance(values, torch.Tensor) or values.shape != (len(embeddings),) or not is_integral(values):
        given = f"{values.dtype} of shape {tuple(values.shape)}" if isinstance(values, torch.Tensor) else type(values)
        raise ValueError(f"{name} is {given}, but must be {len(embeddings)} integers: {meaning}.")
    return values.to(embeddings.device, torch.int64)
