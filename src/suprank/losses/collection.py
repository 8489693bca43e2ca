"""`collection_loss`: the loss of a whole collection against itself, with the exact gradient, in bounded memory."""

from __future__ import annotations

from functools import reduce
from operator import add, mul
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from suprank.losses.base import RetrievalLoss, check_means
from suprank.losses.batch import RetrievalBatch, without_autocast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Integer
    from torch import Tensor

CHUNK_BYTES = 2 * 2**30
"""Bytes for the matrices of one chunk of queries if `chunk` is not given."""

_NUMBERS_PER_PAIR = 20  # SupHAP, the largest, had 73 bytes a pair in float32 on a CPU


def collection_loss(
    loss: RetrievalLoss,
    embeddings: Float[Tensor, "items dim"],
    labels: Integer[Tensor, "items ..."] | Bool[Tensor, "items ..."],
    *,
    chunk: int | None = None,
) -> Float[Tensor, ""]:
    """`loss(embeddings, labels)`, value and gradient, computed for `chunk` queries at a time against all embeddings.

    Each chunk is scored, ranked and differentiated before the next one, so that memory holds `chunk` × items matrices and, for
    each mean that the loss consists of (`RetrievalLoss.means`), one gradient of the embeddings' size. Without `chunk` there are
    as many queries in one as fit into 2 GiB. The result equals the loss on the whole up to rounding, whatever the chunk.

    `backward()` fills the gradients of the embeddings and of the loss's parameters. There is no second derivative, and
    `loss.log` is not written. A loss that is not made of means over queries, like `SimilarityMixup`, is refused.

    Example:
        >>> from suprank.losses import SupAP
        >>> embeddings, labels = torch.randn(100, 16, requires_grad=True), torch.arange(100) // 4
        >>> value = collection_loss(SupAP(), embeddings, labels, chunk=32)
        >>> value.backward()
        >>> torch.testing.assert_close(value, SupAP()(embeddings, labels))
    """
    check_means(loss, "it cannot be summed over chunks of queries")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk={chunk} must be 1 or more queries; leave it out for as many as fit into 2 GiB.")
    whole = RetrievalBatch.from_embeddings(embeddings, labels)
    loss.check_label_tree(whole, stacklevel=3)
    row = len(embeddings) * _NUMBERS_PER_PAIR * whole.queries.element_size()
    rows = max(1, CHUNK_BYTES // row) if chunk is None else chunk
    parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    differentiate = torch.is_grad_enabled() and any(one.requires_grad for one in (embeddings, *parameters))
    value: Tensor = _CollectionLoss.apply(loss, whole.labels, rows, differentiate, whole.queries, *parameters)
    return value


class _RunningMean:
    """One of the means of a loss over the chunks so far: total, count, and the gradients of the total."""

    def __init__(self, inputs: tuple[Tensor, ...]) -> None:
        self.total: Tensor | float = 0.0
        self.count: Tensor | int = 0
        self.gradients = [torch.zeros_like(one) for one in inputs]

    def add(self, total: Tensor, count: Tensor | int, block: slice, gradients: tuple[Tensor | None, ...]) -> None:
        """Add the mean of a chunk, with the gradients of its queries, of all items and of the parameters."""
        self.total = self.total + total.detach().double()
        self.count = self.count + count
        for running, gradient in zip((self.gradients[0][block], *self.gradients), gradients, strict=True):
            if gradient is not None:
                running += gradient


class _CollectionLoss(torch.autograd.Function):
    """The gradient is computed with the value, chunk by chunk, and only scaled in backward."""

    @staticmethod
    def forward(
        ctx: Any, loss: RetrievalLoss, labels: Tensor, rows: int, differentiate: bool, vectors: Tensor, *parameters: Tensor
    ) -> Tensor:
        running: list[_RunningMean] = []
        for start in range(0, len(vectors), rows):
            block = slice(start, start + rows)
            with torch.set_grad_enabled(differentiate):
                queries, items = (one.detach().requires_grad_(differentiate) for one in (vectors[block], vectors))
                means = loss.means(_chunk(queries, items, labels, block))
                totals = [mean.total for mean in means]
            running = running or [_RunningMean((vectors, *parameters)) for _ in means]
            for mean, total, sums in zip(means, totals, running, strict=True):
                gradients: tuple[Tensor | None, ...] = (None,) * (2 + len(parameters))
                if total.requires_grad:
                    more = mean is not means[-1]
                    with without_autocast(vectors):  # a training loop calls backward outside of it
                        gradients = torch.autograd.grad(
                            total, [queries, items, *parameters], retain_graph=more, allow_unused=True
                        )
                sums.add(total, mean.count, block, gradients)
        counts = [torch.as_tensor(sums.count, device=vectors.device).clamp(min=1).double() for sums in running]
        shares = [mean.weight / count for mean, count in zip(means, counts, strict=True)]
        ctx.save_for_backward(*(_weighted(shares, parts) for parts in zip(*(one.gradients for one in running), strict=True)))
        return _weighted(shares, [torch.as_tensor(one.total, device=vectors.device) for one in running]).to(vectors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, None, *(gradient * grad.to(gradient.dtype) for gradient in ctx.saved_tensors)


def _chunk(queries: Tensor, items: Tensor, labels: Tensor, block: slice) -> RetrievalBatch:
    own = torch.arange(len(items), device=items.device)
    is_self = own[block, None] == own
    return RetrievalBatch(queries, items, labels[block], labels, relevance=None, is_self=is_self, within_batch=False)


def _weighted(shares: list[Tensor], parts: Sequence[Tensor]) -> Tensor:
    """Σ share · part."""
    return reduce(add, map(mul, shares, parts))
