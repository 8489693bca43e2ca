"""Sums over rankings → every metric, one value per query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from suprank.evaluation.metric_names import OVERALL, Metric
from suprank.ranking.exact import RankingSums, TopSums
from suprank.ranking.exact.tables import ideal_discount

if TYPE_CHECKING:
    from jaxtyping import Float, Integer
    from torch import Tensor

_FLAT_AT_K = ("R", "TR", "P", "mAP")
_FLAT = ("AP", "mAP@R", "R-P", "MRR", "ASI")
_GRADED = ("H-AP", "wAP", "NDCG", "ASI")


@dataclass(frozen=True)
class MetricSettings:
    """Names of the levels (finest first), α of the relevance (`decay`), and the weights of wAP, finest level first.

    `grades` are what NDCG takes the levels for, coarsest first: by default 1 to L. `flat_level` is the level, from 1 on, from
    which an item is a positive of a metric without a level: by default the finest.
    """

    levels: tuple[str, ...]
    decay: float
    weights: tuple[float, ...]
    grades: tuple[int, ...] = ()
    flat_level: int | None = None

    @property
    def depth(self) -> int:
        return len(self.grades or self.levels)

    def level_number(self, name: str | None) -> int:
        """The level's depth in the tree: 1 for the coarsest, L for the finest, which None stands for."""
        return self.flat_level or self.depth if name is None else self.depth - self.levels.index(name)

    def gain_steps(self, name: str) -> Float[Tensor, " depth"]:
        """How much more an item of level l gains than one of level l − 1: 2^grade − 1 in NDCG, the grade in NDCG-linear."""
        grades = torch.tensor([0, *(self.grades or range(1, self.depth + 1))], dtype=torch.float64)
        return (torch.exp2(grades) if name == "NDCG" else grades).diff()

    def relevance(self, sizes: Integer[Tensor, "queries depth"]) -> Float[Tensor, "queries depth"]:
        """rel of the items of level l, (l/L)^decay / |Ω^(l)| (eq:hierarchy_relevance); 0 where a level has no items."""
        exactly = sizes - torch.nn.functional.pad(sizes[:, 1:], (0, 1))
        share = torch.arange(1, self.depth + 1, device=sizes.device, dtype=torch.float64) / self.depth
        return (share**self.decay / exactly.clamp(min=1)).where(exactly > 0, 0)


def default_metrics(ks: Sequence[int], levels: Sequence[str]) -> list[Metric]:
    """Every metric: flat ones, at each level if there are several; and graded ones, which use all levels."""
    columns: list[str | None] = [None, *levels, OVERALL] if len(levels) > 1 else [None]
    at_k = [Metric(name, k, level) for name in _FLAT_AT_K for k in ks for level in columns]
    # ASI without a level is the graded one; with one level, the two are the same.
    flat = [Metric(name, None, level) for name in _FLAT for level in columns if (name, level) != ("ASI", None)]
    graded = [Metric(name) for name in _GRADED]
    graded_at_k = [Metric(name, k) for name in ("H-P", "H-R") for k in ks] if len(levels) > 1 else []
    return [*at_k, *flat, *graded, *graded_at_k]


class QuerySums(NamedTuple):
    """What the metrics of some queries are computed from: numbers of positives, and sums over the rankings."""

    sizes: Tensor  # [queries, depth], the coarsest level first
    full: RankingSums | None  # None where only the top k was ranked
    top: TopSums

    @classmethod
    def concatenate(cls, parts: Sequence[QuerySums]) -> QuerySums:
        """All queries of the parts in one: a metric takes as many operations for a thousand queries as for one."""
        full = None
        if parts[0].full is not None:
            full = RankingSums(*map(torch.cat, zip(*(part.full for part in parts), strict=True)))
        top = TopSums(*map(torch.cat, zip(*(part.top for part in parts), strict=True)))
        return cls(torch.cat([part.sizes for part in parts]), full, top)


def metric_values(
    metrics: Sequence[Metric], sums: QuerySums, ks: Sequence[int], settings: MetricSettings
) -> Float[Tensor, "metrics queries"]:
    """The value of each metric for each query, NaN without positives; `ks` are those of `sums.top`."""
    values = _MetricValues(sums, tuple(ks), settings)
    return torch.stack([values[metric] for metric in metrics])


class _MetricValues:
    def __init__(self, sums: QuerySums, ks: tuple[int, ...], settings: MetricSettings):
        self.sums, self.ks, self.settings = sums, ks, settings
        self.sizes = sums.sizes.double()
        exactly = self.sizes - torch.nn.functional.pad(self.sizes[:, 1:], (0, 1))
        self.total_relevance = (settings.relevance(sums.sizes) * exactly).sum(-1)  # Σ rel(k) over the positives

    def __getitem__(self, metric: Metric) -> Tensor:
        if metric.level == OVERALL:
            # The mean over the levels at which the query has positives.
            levels = [self[one] for one in metric.at_levels(self.settings.levels)]
            # Added one by one: the order in which torch's own sum adds depends on where in the block the query is.
            total, known = torch.zeros_like(levels[0]), torch.zeros_like(levels[0])
            for value in levels:
                total, known = total + value.nan_to_num(), known + ~value.isnan()
            return _divide(total, known)
        if metric.name.startswith("NDCG"):
            return self._ndcg(metric.name, metric.k)
        if metric.name in ("H-P", "H-R"):
            assert metric.k is not None
            return self._graded_at(metric.name, metric.k)
        if metric.hierarchical:
            return self._graded(metric.name)
        number = self.settings.level_number(metric.level)
        size = self.sizes[:, number - 1]
        if metric.k is not None:
            return self._flat_at(metric.name, metric.k, number, size)
        return self._flat(metric.name, number, size)

    @property
    def full(self) -> RankingSums:
        assert self.sums.full is not None, "a metric over the full ranking needs the full ranking"
        return self.sums.full

    def _flat_at(self, name: str, k: int, number: int, size: Tensor) -> Tensor:
        at = self.ks.index(k)
        hits, precision = self.sums.top.found[:, at, number - 1], self.sums.top.precision[:, at, number - 1]
        if name == "R":
            return _divide(hits.clamp(max=1), size.clamp(max=1))
        if name == "P":
            return _divide(hits / k, size.clamp(max=1))
        if name == "MRR":
            return _divide(self.sums.top.reciprocal[:, at, number - 1], size.clamp(max=1))
        total = hits if name in ("TR", "recall-all") else precision
        return _divide(total, size if name.endswith("-all") else size.clamp(max=k))

    def _flat(self, name: str, number: int, size: Tensor) -> Tensor:
        if name == "MRR":
            return _divide(1 / self.full.first[:, number - 1], size.clamp(max=1))
        total = {
            "AP": self.full.precision,
            "mAP@R": self.full.precision_in_r,
            "R-P": self.full.found_in_r,
            "ASI": self.full.intersection,
        }[name]
        return _divide(total[:, number - 1], size)

    def _graded_at(self, name: str, k: int) -> Tensor:
        at = self.ks.index(k)
        if name == "H-R":
            return _divide(self.sums.top.relevance[:, at], self.total_relevance)
        return self.sums.top.hierarchical[:, at].where(self.total_relevance > 0, torch.nan)

    def _graded(self, name: str) -> Tensor:
        if name == "H-AP":
            return _divide(self.full.hierarchical, self.total_relevance)
        if name == "ASI":
            return _divide(self.full.graded_intersection, self.sizes[:, 0])
        # Σ_l w_l · AP^(l) / Σ_l w_l over the levels at which the query has positives (Property 1).
        weights = torch.tensor(self.settings.weights[::-1], dtype=torch.float64, device=self.sizes.device)
        present = weights * (self.sizes > 0)
        precision = self.full.precision / self.sizes.clamp(min=1)
        return _divide((present * precision).sum(-1), present.sum(-1))

    def _ndcg(self, name: str, k: int | None) -> Tensor:
        """DCG / iDCG of the first k items, level by level, as in `suprank.ranking.ideal_dcg`.

        Deeper levels come first in the ideal list: its first k places hold min(k, |Ω^{+,l}|) items of level l or deeper.
        """
        steps = self.settings.gain_steps(name).to(self.sizes.device)
        discount = self.full.discount if k is None else self.sums.top.discount[:, self.ks.index(k)]
        ideal = self.sums.sizes.long() if k is None else self.sums.sizes.long().clamp(max=k)
        table = ideal_discount(max(int(ideal.max()), 1), self.sizes.device)
        return _divide(_weighted_sum(steps, discount), _weighted_sum(steps, table[ideal]))


def _weighted_sum(weights: Float[Tensor, " depth"], values: Float[Tensor, "queries depth"]) -> Float[Tensor, " queries"]:
    """Σ_l w_l · v_l, added one by one: the order in which torch's own sum adds depends on where in the block the query is."""
    total = torch.zeros_like(values[:, 0])
    for weight, column in zip(weights, values.unbind(1), strict=True):
        total = total + weight * column
    return total


def _divide(total: Tensor, number: Tensor) -> Tensor:
    """total / number, NaN where the number is 0."""
    return (total / number).where(number > 0, torch.nan)


def check_weights(weights: Mapping[str, float] | Sequence[float] | None, levels: Sequence[str]) -> tuple[float, ...]:
    """The weights of wAP, finest level first, from weights by level name or a sequence in that order; equal by default."""
    if weights is None:
        return (1 / len(levels),) * len(levels)
    if isinstance(weights, Mapping):
        unknown = set(weights) - set(levels)
        if unknown:
            raise ValueError(f"weights name the level {sorted(unknown)[0]!r}, but the levels are {', '.join(levels)}.")
        values = tuple(float(weights.get(name, 0)) for name in levels)
    else:
        values = tuple(map(float, weights))
    if len(values) != len(levels):
        raise ValueError(
            f"there are {len(values)} weights for {len(levels)} level(s) ({', '.join(levels)}); give one for each, "
            f"by name, or as a sequence with the finest level first."
        )
    if not all(0 <= weight < float("inf") for weight in values) or sum(values) <= 0:
        raise ValueError(f"weights={weights} must be finite, 0 or more, with at least one above 0; try 1 for every level.")
    return values


def mean_over_queries(values: Float[np.ndarray, " queries"]) -> float:
    """The mean of the values that are not NaN; NaN when there is none."""
    valid = values[~np.isnan(values)]
    return float(valid.mean()) if len(valid) else float("nan")
