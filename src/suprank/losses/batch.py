"""`RetrievalBatch`: the queries and items a loss is computed on, checked and of unit length, and their scores and levels."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from suprank.ranking.reading import Checks
from suprank.ranking.relevance import (
    IGNORED,
    check_labels,
    is_integral,
    label_columns,
    listed_level,
    match_sets,
)
from suprank.ranking.seam import transforming, with_kernels

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Integer, Shaped
    from torch import Tensor


_SHORTEST = 1e-12  # length below which an embedding gets no gradient; torch's own normalize has this bound too
_PLAIN_LENGTHS = 1e-15, 1e15  # between these, squares neither vanish nor overflow in float32
_WITHOUT_FLOAT64 = {"mps"}  # kinds of devices


@dataclass(frozen=True)
class RetrievalBatch:
    """A batch of queries against items: unit-length embeddings in float32 (or float64), integer labels `[N, L]`, −1 for none.

    Labels `[N, L, M]` are sets of up to M labels at each level, padded with −1; items agree at a level where their sets meet.
    `within_batch` says that the items are the queries themselves. `is_self`, if given, is a mask `[queries, items]` of the
    items that are the query itself; without it that is the diagonal within a batch, and nothing among references.
    `relevance`, if the user gave one, replaces levels. `full_dim` is the dimension of the embeddings where these are the first
    few of it (`at_dim`). Build a batch with `from_embeddings`, which checks its arguments.
    """

    queries: Tensor
    items: Tensor
    labels: Tensor | None
    item_labels: Tensor | None
    relevance: Tensor | None
    is_self: Tensor | None
    within_batch: bool
    full_dim: int | None = None
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
        by_id = ids is not None or ref_ids is not None
        if ref_emb is None and (by_id or self_index is not None):
            given = "self_index" if not by_id else "ref_ids" if ids is None else "ids"
            raise ValueError(f"{given} was given without ref_emb, but within a batch each query is one item; leave it out.")
        within_batch = ref_emb is None or (ref_emb is embeddings and not by_id and self_index is None)
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
        if by_id:
            if self_index is not None:
                raise ValueError("ids and self_index were both given, and both say which references are the query; give one.")
            is_self = _is_self_by_id(ids, ref_ids, queries, items)
        elif self_index is not None:
            is_self = _is_self_by_index(self_index, queries, items, checks)
        return cls(queries, items, labels, item_labels, relevance, is_self, within_batch, checks=checks)

    @property
    def scores(self) -> Float[Tensor, "queries items"]:
        """Cosine similarities in the embeddings' float32 or float64, whatever the autocast dtype."""
        if "scores" not in self._cache:
            with without_autocast(self.queries):
                shared = self.within_batch and (torch.compiler.is_compiling() or not transforming())
                product = _SelfScores.apply(self.queries) if shared else self.queries @ self.items.T
            self._cache["scores"] = product
        return self._cache["scores"]

    def level(self, *, include_self: bool = False) -> Shaped[Tensor, "queries items"]:
        """The level of each item, or the user's relevance in its place. The query itself is ignored unless included."""
        if self.relevance is not None:
            return self.relevance if include_self else self._without_self(self.relevance.clone())
        return self._listed_level(include_self=include_self)

    def fine_level(self, *, include_self: bool = False) -> Integer[Tensor, "queries items"]:
        """Binary levels: 1 for items of the query's finest class (or of any user relevance above 0), 0 for the others."""
        columns = 0 if self.labels is None else self.labels.shape[1]  # the levels of `at_level` share one cache
        name = f"fine of {columns} columns, {'with' if include_self else 'without'} self"
        if name not in self._cache:
            if self.relevance is None:
                level = self._listed_level(fine=True, include_self=include_self)
            else:
                level = self.relevance.sign().to(torch.int8)
                level = level if include_self else self._without_self(level)
            self._cache[name] = level
        return self._cache[name]

    def at_level(self, level: int) -> RetrievalBatch:
        """The batch with labels from column `level` on, so that the classes of that level are the finest.

        Two classes of a level that differ further up stay two. Scores are computed once for all levels.
        """
        assert self.labels is not None
        item_labels = None if self.item_labels is None else self.item_labels[:, level:]
        return replace(self, labels=self.labels[:, level:], item_labels=item_labels)

    def at_dim(self, dim: int) -> RetrievalBatch:
        """The batch with the first `dim` dimensions of the embeddings, normalized again. Levels are computed once for all."""
        queries = unit_vectors(self.queries[:, :dim])
        items = queries if self.items is self.queries else unit_vectors(self.items[:, :dim])
        levels = {name: value for name, value in self._cache.items() if name != "scores"}
        return replace(self, queries=queries, items=items, full_dim=self.dim, _cache=levels)

    @property
    def dim(self) -> int:
        """The dimension of the embeddings, also where only the first few are left (`at_dim`)."""
        return self.full_dim or self.queries.shape[1]

    @property
    def depth(self) -> int:
        """L, the number of label columns."""
        assert self.labels is not None
        return self.labels.shape[1]

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


class UnitVectors(torch.autograd.Function):
    """v / ‖v‖ and ‖v‖. Backward takes five operations where autograd's takes a dozen, which dominate at small batches."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> tuple[Tensor, Tensor]:
        vectors, norm = unit(vectors)
        ctx.save_for_backward(vectors, norm)  # both are outputs, so that backward can be differentiated
        ctx.set_materialize_grads(False)
        return vectors, norm

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_norm: Tensor | None) -> Tensor | None:
        vectors, norm = ctx.saved_tensors
        gradient = None if grad is None else unit_gradient(grad, vectors, norm, _SHORTEST)
        if grad_norm is not None:
            gradient = grad_norm * vectors if gradient is None else torch.addcmul(gradient, grad_norm, vectors)
        return gradient


@with_kernels
def unit(vectors: Float[Tensor, "rows dim"]) -> tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows 1"]]:
    """v / ‖v‖ and ‖v‖, right also where squares would vanish (1e-30) or overflow (1e30) in float32, as in `evaluate`.

    Below the smallest normal number (1.2e-38 in float32) a vector counts as the zero vector, which `evaluate` refuses. Squares
    are summed in float64, which a GPU does as fast, and a CPU only where it must: there it takes eight times as long.
    """
    norm = None
    if vectors.device.type == "cpu" and not torch.compiler.is_compiling() and not transforming():  # reading costs nothing here
        norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        shortest, longest = torch.aminmax(norm)
        if not (_PLAIN_LENGTHS[0] < shortest and longest < _PLAIN_LENGTHS[1]):
            norm = None
    norm = _precise_lengths(vectors) if norm is None else norm
    return vectors / norm.clamp(min=torch.finfo(norm.dtype).tiny), norm


def _precise_lengths(vectors: Tensor) -> Tensor:
    if vectors.device.type in _WITHOUT_FLOAT64:
        largest = vectors.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(vectors.dtype).tiny)
        return largest * torch.linalg.vector_norm(vectors / largest, dim=-1, keepdim=True)
    return torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64).to(vectors.dtype)


@with_kernels
def unit_gradient(
    grad: Float[Tensor, "rows dim"], unit: Float[Tensor, "rows dim"], norm: Float[Tensor, "rows 1"], shortest: float
) -> Float[Tensor, "rows dim"]:
    """The gradient with respect to v of a function of v / ‖v‖. A vector of almost no length gets none: 1/‖v‖ would explode."""
    along = (grad * unit).sum(-1, keepdim=True)
    return torch.addcmul(grad, unit, along, value=-1) / torch.threshold(norm, shortest, torch.inf)


def unit_vectors_and_lengths(
    vectors: Float[Tensor, "rows dim"],
) -> tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows 1"]]:
    """`unit_vectors`, and the lengths that they had."""
    if torch.compiler.is_compiling() or not transforming():
        units, norm = UnitVectors.apply(vectors)
        return units, norm
    has_length = torch.linalg.vector_norm(vectors.detach(), dim=-1, keepdim=True) > _SHORTEST
    return unit(torch.where(has_length, vectors, vectors.detach()))


def unit_vectors(vectors: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
    """Normalize vectors of float32 or float64 of any length; a zero vector stays as it is, without a gradient."""
    return unit_vectors_and_lengths(vectors)[0]


class _SelfScores(torch.autograd.Function):
    """V·Vᵀ in the precision of V. Backward adds its two products in place: one operation less, and no third matrix.

    On a CPU, where a product takes long, it multiplies once, with G + Gᵀ.
    """

    @staticmethod
    def forward(ctx: Any, unit: Tensor) -> Tensor:
        ctx.save_for_backward(unit)
        return unit @ unit.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (unit,) = ctx.saved_tensors
        with without_autocast(unit):
            if unit.device.type == "cpu":
                return (grad + grad.T) @ unit
            return (grad @ unit).addmm_(grad.T, unit)


def without_autocast(values: Tensor) -> AbstractContextManager[Any]:
    """Within this context products of matrices keep their precision. Where autocast is off, that takes no time."""
    device = values.device.type
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
