"""SiMix: virtual examples between two images of a class, by mixing similarities (Patel et al., CVPR 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from suprank.losses.base import RetrievalLoss
from suprank.losses.batch import RetrievalBatch
from suprank.losses.weighted_sums import Matryoshka
from suprank.ranking.relevance import NO_LABEL

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Integer
    from torch import Tensor


class SimilarityMixup(RetrievalLoss):
    """`loss` on the batch and a virtual example between every two images x and z of a fine class:

        s(u, [x, z; α]) = α·s(u, x) + (1 − α)·s(u, z),   α ~ U(0, 1) for each pair, at each call

    Virtual examples are queries and items like any others, of their class at every level; where images have several
    labels, of those that both have. The similarity of two of them is mixed on both sides. So each is α·v_x + (1 − α)·v_z,
    unit vectors mixed and not normalized again. A class of m images has m(m − 1)/2: a batch of four a class grows to two and
    a half times its size, and one of a few large classes to its square. A class of one image has none.

    An example made of the query, or of an image that the query is made of, is not in the query's list, where it would be
    a positive that contains s(x, x) = 1. A loss with `include_self=True` keeps it there, as SiMix's released code does. A
    pair that is a whole class thus has no positives as a query: virtual queries count in `queries_without_positives` too.

    References are not mixed, so that neither is the loss against a memory. α comes from torch's random numbers on the CPU,
    whatever the device, so that processes with one seed and one batch draw alike.

    Example:
        >>> from suprank.losses import SupAP
        >>> loss = SimilarityMixup(SupAP())
        >>> embeddings, labels = torch.randn(8, 16, requires_grad=True), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
        >>> loss(embeddings, labels).backward()
        >>> loss.log["queries_without_positives"]  # the virtual example of the last class
        tensor(1)
    """

    recordable = False

    def __init__(self, loss: RetrievalLoss) -> None:
        super().__init__()
        if not isinstance(loss, RetrievalLoss):
            raise TypeError(f"loss is a {type(loss).__name__}, but must be a loss of suprank, which can take virtual examples.")
        for part in loss.modules():
            if isinstance(part, RetrievalLoss) and not part.ranks_items:
                name = type(part).__name__
                raise TypeError(
                    f"{name} ranks no items, so there are no similarities to mix; mix the surrogate alone: "
                    f"Combined(SimilarityMixup(surrogate), {name}(...))."
                )
            if isinstance(part, Matryoshka):
                raise TypeError(
                    "Matryoshka normalizes each width, and virtual examples are not normalized; mix inside of it: "
                    "Matryoshka(SimilarityMixup(loss), dims)."
                )
            if isinstance(part, SimilarityMixup):
                raise TypeError(
                    "SimilarityMixup is in the loss already, and virtual examples are not mixed again; use it once."
                )
        self.loss = loss

    @property
    def log(self) -> dict[str, Tensor]:
        """The log of the wrapped loss."""
        return getattr(self.loss, "log", {})

    def compute(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        return self.loss.compute(_with_virtual_examples(batch) if batch.within_batch else batch)


def _with_virtual_examples(batch: RetrievalBatch) -> RetrievalBatch:
    if batch.relevance is not None or batch.labels is None:
        raise ValueError(
            "relevance was given, but a virtual example has the labels of its class, and no relevance of its own; "
            "give labels alone, or leave SimilarityMixup out."
        )
    x, z = batch.fine_level(include_self=True).triu(1).nonzero(as_tuple=True)
    if not len(x):
        return batch
    # float32 whatever the embeddings are: a seed then draws the same α in every precision.
    alpha = torch.rand(len(x), 1, dtype=torch.float32, device="cpu").to(batch.queries)
    mixed = torch.cat([batch.queries, alpha * batch.queries[x] + (1 - alpha) * batch.queries[z]])
    labels = torch.cat([batch.labels, _common_labels(batch.labels[x], batch.labels[z])])
    real = torch.arange(len(batch.queries), device=x.device)
    is_self = _share_an_image(torch.cat([real, x]), torch.cat([real, z]))
    return RetrievalBatch(mixed, mixed, labels, labels, relevance=None, is_self=is_self, within_batch=True, checks=batch.checks)


def _common_labels(one: Tensor, other: Tensor) -> Tensor:
    """The labels that two images of a fine class share: all of them, or of sets those in both."""
    if one.ndim == 2:
        return one
    return one.masked_fill((one[..., :, None] != other[..., None, :]).all(-1), NO_LABEL)


def _share_an_image(
    one: Integer[Tensor, " examples"], other: Integer[Tensor, " examples"]
) -> Bool[Tensor, "examples examples"]:
    """Whether the row's example and the column's are made of a common image."""
    return (one[:, None] == one) | (one[:, None] == other) | (other[:, None] == one) | (other[:, None] == other)
