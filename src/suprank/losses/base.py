"""`RetrievalLoss`, the call that all losses share, and `MeasureLoss`, 1 − the mean of a measure over queries."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import partial, reduce
from inspect import signature
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from suprank.losses.batch import RetrievalBatch
from suprank.losses.score_batch import ScoreBatch
from suprank.ranking.label_tree import label_tree_error
from suprank.ranking.measures import mean_over_queries
from suprank.ranking.reading import Checks
from suprank.ranking.relevance import refuse_hot
from suprank.ranking.seam import transforming

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Integer, Shaped
    from torch import Tensor

    from suprank.losses.score_batch import RankingBatch

_CHECKED_BATCHES = 10  # on so many it is checked whether label columns form a tree, and whether there are positives
_MOST_LOGGED = 32  # values of a log that a compiled loss keeps
_CALLER = 5  # stack frames from `check_label_tree` up to the caller: `forward` and two of nn.Module lie between


class LabelTreeWarning(UserWarning):
    """The label columns are not a tree, finest level first: they are reversed, or a class has two parents or none."""


class NoPositivesWarning(UserWarning):
    """No query of a batch has a positive: the loss is 0, without a gradient."""


@dataclass(frozen=True)
class QueryMean:
    """A mean over queries, or over their pairs: what each query adds to the total and to the count, and the weight in the loss.

    `counts` are truth values where each query counts once or not at all, and numbers of pairs where the mean is over these. A
    query that counts 0 must have the value 0. Without them every query counts once.
    """

    values: Tensor
    counts: Tensor | None = None
    weight: float = 1.0

    def times(self, weight: float) -> QueryMean:
        """The mean with its weight multiplied."""
        return replace(self, weight=weight * self.weight)

    @property
    def total(self) -> Float[Tensor, ""]:
        """What the mean divides."""
        return self.values.sum()

    @property
    def count(self) -> Tensor | int:
        """What the mean divides by, if that is not 0."""
        return len(self.values) if self.counts is None else self.counts.sum()

    @property
    def value(self) -> Float[Tensor, ""]:
        """The weighted mean; 0 where it is over nothing."""
        count = self.count
        mean = self.total / (count if isinstance(count, int) else count.clamp(min=1))
        return mean if self.weight == 1 else self.weight * mean


class RetrievalLoss(nn.Module):
    """The base of all losses, called as pytorch-metric-learning's are. A subclass implements `compute` on a checked batch.

    One that consists of means over queries may implement `means` too, or in its place: then `collection_loss` can go through
    the queries in chunks.

    `ranks_items` says whether a query is compared with other images, so that a memory of them is of use. Losses that
    compare it with proxies only set it to False. `recordable` says whether a CUDA graph can record the loss: not one that reads
    values, or draws random numbers on the host. `cosines_only` says that `from_scores` takes only scores from −1 to 1.
    """

    ranks_items: ClassVar[bool] = True
    recordable: ClassVar[bool] = True
    cosines_only: ClassVar[bool] = False
    _logged: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._batches_checked = {"label tree": 0, "positives": 0}
        self.register_buffer("_logged", torch.zeros(_MOST_LOGGED), persistent=False)

    def extra_repr(self) -> str:
        """The arguments of the constructor that the loss has as attributes: its hyper-parameters, as they are now."""
        values = {name: getattr(self, name) for name in signature(type(self)).parameters if hasattr(self, name)}
        hidden = (nn.Module, torch.Tensor)  # which torch shows itself, or nobody wants to see
        return ", ".join(f"{name}={value!r}" for name, value in values.items() if not isinstance(value, hidden))

    def forward(
        self,
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
    ) -> Float[Tensor, ""]:
        """The loss of `embeddings` as queries, against each other or against `ref_emb`.

        Embeddings of any floating dtype are normalized here and scored in float32. Labels are integers `[B]` or
        `[B, L]`, column 0 the finest, and −1 is no label: such an item is no query's positive and a negative of all, as
        in `evaluate`. Labels `[B, L, M]` are sets of up to M labels at each level, padded with −1, or truth values of M
        classes (multi-hot): a positive is an item whose set meets the query's; proxies refuse them. `relevance` gives a
        graded relevance for each pair in place of levels (labels are then needed by proxies only). `indices_tuple` is
        refused: a rank needs the whole batch.

        The query is never in its own list. `ref_emb=embeddings`, the same tensor, is the batch as it is without. Among other
        references, of which a detached copy is one, the query is recognized in one of two ways. `self_index` is the
        position of each query, −1 where it is absent. `ids` and `ref_ids` number the images: every reference with the
        query's id is the query, as in a memory that has seen an image several times. An id below 0 means "unknown" and
        matches nothing.
        """
        arguments = embeddings, labels, indices_tuple, ref_emb, ref_labels
        named: dict[str, Any] = {"relevance": relevance, "self_index": self_index, "ids": ids, "ref_ids": ref_ids}
        checks = Checks(postpone=True)
        batch = RetrievalBatch.from_embeddings(*arguments, **named, checks=checks)
        checks.send()
        self.check_label_tree(batch, stacklevel=_CALLER)
        loss = self.compute(batch)
        checks.run()
        return loss

    def from_scores(
        self,
        scores: Float[Tensor, "queries items"],
        relevance: Shaped[Tensor, "queries items"],
        mask: Bool[Tensor, "queries items"] | None = None,
    ) -> Float[Tensor, ""]:
        """The loss of lists of items with these scores, one list for each query, from any model.

        `relevance` in integers are levels, as labels give them: 0 is a negative, NDCG has the gain 2^l − 1, and H-AP weighs
        levels by `decay` or `weights`. In floats it is the relevance of H-AP and the gain of NDCG itself. AP, R@k and MRR take
        all above 0 as positives. `mask` is False for padding, and a relevance below 0 is padding too: whatever it holds, NaN
        included, changes nothing, and its gradient is 0. Queries without positives are left out of the mean, as in a call, and
        are counted in `log`.

        τ is a difference of scores: the default, 0.01, suits cosines. `suggest_tau` proposes one for other scores, and
        `scaled_step` scales the other parameters of a Sup-loss with it. Scores are ranked in float32, or float64 if they are.

        Rank losses, `SupCon`, `SigLIP` and `PairCalibration` take any scores; `FastAP`, `SoftBinAP`, `Circle` and
        `MultiSimilarity` cosines; and `Combined` what its parts do. Other losses need embeddings and labels.

        Example:
            >>> from suprank.losses import SmoothNDCG
            >>> scores = torch.tensor([[2.0, 1.0, 0.5], [0.3, 0.9, 0.0]], requires_grad=True)
            >>> grades = torch.tensor([[2, 0, 1], [1, 0, 0]])
            >>> mask = torch.tensor([[True, True, True], [True, True, False]])
            >>> SmoothNDCG(tau=0.1).from_scores(scores, grades, mask).backward()
            >>> scores.grad[1, 2].item()
            0.0
        """
        cosines = any(part.cosines_only for part in self.modules() if isinstance(part, RetrievalLoss))
        checks = Checks(postpone=True)
        batch = ScoreBatch.from_scores(scores, relevance, mask, cosines=cosines, checks=checks)
        checks.send()
        loss = self.compute_lists(batch)
        checks.run()
        return loss

    def per_query_values(
        self,
        embeddings: Float[Tensor, "queries dim"],
        labels: Integer[Tensor, "queries ..."] | Bool[Tensor, "queries ..."] | None = None,
        **references: Any,
    ) -> Float[Tensor, " queries"]:
        """The loss of each query, of which a call returns the mean (elsewhere `reduction="none"`); arguments as in a call.

        It is NaN for a query that is left out of the mean, such as one without positives: `values.nanmean()` is the loss. In a
        sum of several means (`Combined`) a query has the parts that count it. Where a mean is over pairs or triplets, this is
        the mean over those of the query. Use it to weigh queries, or to find the hardest:

            values = loss.per_query_values(embeddings, labels)
            (class_weights[labels] * values).nanmean().backward()

        Losses that are not made of means over queries have none, such as `ProxyAnchor`.

        Example:
            >>> from suprank.losses import SupMRR
            >>> SupMRR().per_query_values(torch.eye(3), torch.tensor([0, 0, 1]))
            tensor([0.5000, 0.5000,    nan])
        """
        check_means(self, "it has no value for each query")
        checks = Checks(postpone=True)
        batch = RetrievalBatch.from_embeddings(embeddings, labels, **references, checks=checks)
        checks.send()
        self.check_label_tree(batch, stacklevel=3)
        means = self.means(batch)
        checks.run()
        counts = [torch.ones_like(one.values) if one.counts is None else one.counts for one in means]
        parts = [one.weight * one.values / own.clamp(min=1) for one, own in zip(means, counts, strict=True)]
        return reduce(add, parts).masked_fill(reduce(add, counts) == 0, torch.nan).to(batch.queries.dtype)

    def check_label_tree(self, batch: RetrievalBatch, *, stacklevel: int) -> None:
        """Warn once if the labels of one of the first batches form no tree. Later ones are not checked: a GPU would wait."""
        labels = batch.labels
        if (
            labels is None
            or labels.shape[1] < 2
            or not batch.checks.allowed
            or self._batches_checked["label tree"] >= _CHECKED_BATCHES
        ):
            return
        self._batches_checked["label tree"] += 1
        others = [] if batch.item_labels is None or batch.item_labels is labels else [batch.item_labels]
        error = label_tree_error(torch.cat([labels, *others]))
        if error is not None:
            refuse_hot(labels, "labels")
            self._batches_checked["label tree"] = _CHECKED_BATCHES
            warnings.warn(f"labels of {type(self).__name__}: {error}", LabelTreeWarning, stacklevel=stacklevel)

    def check_positives(self, checks: Checks, skipped: Tensor, queries: int) -> None:
        """Warn once if, on one of the first batches, as many queries as there are have no positives."""
        if not checks.allowed or self._batches_checked["positives"] >= _CHECKED_BATCHES:
            return
        self._batches_checked["positives"] += 1
        checks.add(skipped, lambda: queries - 2 - skipped, partial(self._warn_without_positives, skipped, queries))

    def _warn_without_positives(self, skipped: Tensor, queries: int) -> None:
        if int(skipped) == queries:
            self._batches_checked["positives"] = _CHECKED_BATCHES
            warnings.warn(
                f"{type(self).__name__}: none of {queries} queries has a positive, so the loss is 0 without a gradient; give "
                f"batches with several images of a class, as BalancedBatchSampler makes them, or references with positives.",
                NoPositivesWarning,
                stacklevel=2,
            )

    def compute(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        """The loss on a batch that has been checked and normalized; by default the sum of its `means`."""
        return reduce(add, [mean.value for mean in self.means(batch)])

    def compute_lists(self, batch: ScoreBatch) -> Float[Tensor, ""]:
        """The loss on lists of scored items that have been checked. A loss that reads embeddings or labels has none."""
        raise TypeError(
            f"{type(self).__name__} reads embeddings or labels, and from_scores has none; use a rank loss, such as SmoothNDCG "
            f"or SupAP, or Combined(SupAP(), PairCalibration())."
        )

    def means(self, batch: RetrievalBatch) -> Sequence[QueryMean]:
        """The means whose sum is the loss. Queries must not depend on one another, but for the items that they share."""
        raise NotImplementedError

    def loggable(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return `values`, for a `log`; under torch.compile, views of a buffer of the loss into which they are copied.

        The next call of a compiled graph may overwrite the tensors it returned (`mode="reduce-overhead"`), and torch refuses to
        read them then. The buffer is no tensor of the graph. It moves with the loss: on another device nothing is logged.
        """
        if not torch.compiler.is_compiling():
            return {} if transforming() else values  # torch.func's tensors end with its transform
        numbers = [value.detach().to(self._logged.dtype) for value in values.values()]
        if not 0 < len(numbers) <= _MOST_LOGGED or numbers[0].device != self._logged.device:
            return {}
        places = self._logged[: len(numbers)]
        places.copy_(torch.stack(numbers))
        return dict(zip(values, places.unbind(), strict=True))


class MeasureLoss(RetrievalLoss):
    """1 − the mean of a measure over the queries that have positives (eq:optimizing_M). A subclass implements `per_query`.

    A query without positives is left out of the mean; a batch of such queries gives 0, with zero gradients, and, among the
    first ones, a `NoPositivesWarning`. How many were left out is in `log["queries_without_positives"]` after a call.
    `include_self=True` keeps each query in its own list as a positive, as the authors' training code does; lists of
    `from_scores` have no such item.
    """

    def __init__(self, *, include_self: bool = False) -> None:
        super().__init__()
        if not isinstance(include_self, bool):
            raise ValueError(f"include_self={include_self!r} must be True or False.")
        self.include_self = include_self
        self.log: dict[str, Tensor] = {}

    def per_query(self, batch: RankingBatch) -> tuple[Float[Tensor, " queries"], Shaped[Tensor, " queries"]]:
        """The measure of every query, and what it was divided by: 0 for a query without positives."""
        raise NotImplementedError

    def compute(self, batch: RankingBatch) -> Float[Tensor, ""]:
        value, weight = self.per_query(batch)
        loss, skipped = mean_over_queries(value, weight, complement=True)
        self.log = self.loggable({"queries_without_positives": skipped})
        self.check_positives(batch.checks, skipped, len(value))
        return loss

    def compute_lists(self, batch: ScoreBatch) -> Float[Tensor, ""]:
        return self.compute(batch)

    def means(self, batch: RetrievalBatch) -> Sequence[QueryMean]:
        value, weight = self.per_query(batch)
        empty = weight <= 0
        return [QueryMean((1 - value).masked_fill(empty, 0), ~empty)]


def check_means(loss: RetrievalLoss, otherwise: str) -> None:
    """Refuse a loss without `means`, or one whose `compute` was replaced after its `means` was written."""
    if not isinstance(loss, RetrievalLoss):
        raise TypeError(f"loss is a {type(loss).__name__}, but must be a loss of suprank, whose `means` can be summed.")
    for part in loss.modules():
        if not isinstance(part, RetrievalLoss):
            continue
        means, compute = (
            next(depth for depth, kind in enumerate(type(part).__mro__) if name in vars(kind)) for name in ("means", "compute")
        )
        if type(part).means is RetrievalLoss.means or means > compute:
            raise TypeError(
                f"{type(part).__name__} has no `means` that belong to its `compute`, so {otherwise}; call it on the whole "
                f"batch, or implement `means(batch)` if it is made of means over queries."
            )
