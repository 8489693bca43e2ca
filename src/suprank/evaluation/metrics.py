"""Sums over rankings → every metric, one value a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from suprank.evaluation.names import OVERALL, Metric
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
    """What the metrics of one evaluation mean: names of the levels (finest first), α of the relevance, weights of wAP."""

    level_names: tuple[str, ...]
    decay: float
    weights: tuple[float, ...]  # in the order of the names

    @property
    def depth(self) -> int:
        return len(self.level_names)

    def number(self, name: str | None) -> int:
        """The level's depth in the tree: 1 for the coarsest, L for the finest, which no name stands for."""
        return self.depth if name is None else self.depth - self.level_names.index(name)

    def relevance(self, sizes: Integer[Tensor, "queries depth"]) -> Float[Tensor, "queries depth"]:
        """rel of the items of level l, (l/L)^decay / |Ω^(l)| (eq:hierarchy_relevance); 0 where a level has none."""
        exactly = sizes - torch.nn.functional.pad(sizes[:, 1:], (0, 1))
        share = torch.arange(1, self.depth + 1, device=sizes.device, dtype=torch.float64) / self.depth
        return (share**self.decay / exactly.clamp(min=1)).where(exactly > 0, 0)


def default_metrics(ks: Sequence[int], level_names: Sequence[str]) -> list[Metric]:
    """Every metric there is: flat ones, with one level or several; and graded ones, which look at all levels."""
    levels: list[str | None] = [None, *level_names, OVERALL] if len(level_names) > 1 else [None]
    at_k = [Metric(name, k, level) for name in _FLAT_AT_K for k in ks for level in levels]
    # ASI without a level is the graded one; with one level, the two are the same.
    flat = [Metric(name, None, level) for name in _FLAT for level in levels if (name, level) != ("ASI", None)]
    graded = [Metric(name) for name in _GRADED]
    graded_at_k = [Metric(name, k) for name in ("H-P", "H-R") for k in ks] if len(level_names) > 1 else []
    return [*at_k, *flat, *graded, *graded_at_k]


class Found(NamedTuple):
    """What was found for some queries: how many positives they have, and the sums over their rankings."""

    sizes: Tensor  # [queries, depth], the coarsest level first
    tallies: RankingSums | None  # None where only the top k was looked at
    top: TopSums

    def joined(self, others: Sequence[Found]) -> Found:
        """This and others, one after the other: a metric takes as many operations for a thousand queries as for one."""
        parts = [self, *others]
        tallies = (
            None if self.tallies is None else RankingSums(*map(torch.cat, zip(*(part.tallies for part in parts), strict=True)))
        )
        top = TopSums(*map(torch.cat, zip(*(part.top for part in parts), strict=True)))
        return Found(torch.cat([part.sizes for part in parts]), tallies, top)


def measured(
    metrics: Sequence[Metric], found: Found, ks: Sequence[int], meaning: MetricSettings
) -> Float[Tensor, "metrics queries"]:
    """The value of each metric for each query, NaN without positives; `ks` are those of `found.top`."""
    values = _Values(found, tuple(ks), meaning)
    return torch.stack([values[metric] for metric in metrics])


class _Values:
    def __init__(self, found: Found, ks: tuple[int, ...], meaning: MetricSettings):
        self.found, self.ks, self.meaning = found, ks, meaning
        self.sizes = found.sizes.double()
        exactly = self.sizes - torch.nn.functional.pad(self.sizes[:, 1:], (0, 1))
        self.whole = (meaning.relevance(found.sizes) * exactly).sum(-1)  # Σ rel(k) over the positives

    def __getitem__(self, metric: Metric) -> Tensor:
        if metric.level == OVERALL:
            # The mean over the levels at which the query has positives.
            levels = [self[Metric(metric.name, metric.k, level)] for level in self.meaning.level_names]
            # Added one after the other: torch's own sum takes an order that depends on where in the block the query is.
            total, known = torch.zeros_like(levels[0]), torch.zeros_like(levels[0])
            for value in levels:
                total, known = total + value.nan_to_num(), known + ~value.isnan()
            return _over(total, known)
        if metric.name in ("H-P", "H-R"):
            assert metric.k is not None
            return self._graded_at(metric.name, metric.k)
        if metric.hierarchical:
            return self._graded(metric.name)
        number = self.meaning.number(metric.level)
        size = self.sizes[:, number - 1]
        if metric.k is not None:
            return self._flat_at(metric.name, metric.k, number, size)
        return self._flat(metric.name, number, size)

    @property
    def tallies(self) -> RankingSums:
        assert self.found.tallies is not None, "a metric over the full ranking needs the full ranking"
        return self.found.tallies

    def _flat_at(self, name: str, k: int, number: int, size: Tensor) -> Tensor:
        at = self.ks.index(k)
        found, precision = self.found.top.found[:, at, number - 1], self.found.top.precision[:, at, number - 1]
        if name == "R":
            return _over(found.clamp(max=1), size.clamp(max=1))
        if name == "P":
            return _over(found / k, size.clamp(max=1))
        return _over({"TR": found, "mAP": precision}[name], size.clamp(max=k))

    def _flat(self, name: str, number: int, size: Tensor) -> Tensor:
        if name == "MRR":
            return _over(1 / self.tallies.first[:, number - 1], size.clamp(max=1))
        total = {
            "AP": self.tallies.precision,
            "mAP@R": self.tallies.precision_in_r,
            "R-P": self.tallies.found_in_r,
            "ASI": self.tallies.intersection,
        }[name]
        return _over(total[:, number - 1], size)

    def _graded_at(self, name: str, k: int) -> Tensor:
        at = self.ks.index(k)
        if name == "H-R":
            return _over(self.found.top.relevance[:, at], self.whole)
        return self.found.top.hierarchical[:, at].where(self.whole > 0, torch.nan)

    def _graded(self, name: str) -> Tensor:
        if name == "H-AP":
            return _over(self.tallies.hierarchical, self.whole)
        if name == "ASI":
            return _over(self.tallies.graded_intersection, self.sizes[:, 0])
        if name == "NDCG":
            return _over(self.tallies.dcg, self._ideal_dcg())
        # Σ_l w_l · AP^(l) / Σ_l w_l over the levels at which the query has positives (Property 1).
        weights = torch.tensor(self.meaning.weights[::-1], dtype=torch.float64, device=self.sizes.device)
        present = weights * (self.sizes > 0)
        precision = self.tallies.precision / self.sizes.clamp(min=1)
        return _over((present * precision).sum(-1), present.sum(-1))

    def _ideal_dcg(self) -> Tensor:
        """iDCG of the gain 2^l − 1, as in `suprank.ranking.ideal_dcg`, from the number of items at each level."""
        table = ideal_discount(max(int(self.sizes.max()), 1), self.sizes.device)
        steps = 2.0 ** torch.arange(self.meaning.depth, dtype=torch.float64, device=self.sizes.device)
        return (steps * table[self.found.sizes.long()]).sum(-1)


def _over(total: Tensor, number: Tensor) -> Tensor:
    """total / number, NaN where the number is 0."""
    return (total / number).where(number > 0, torch.nan)


def weights_of(weights: Mapping[str, float] | Sequence[float] | None, level_names: Sequence[str]) -> tuple[float, ...]:
    """The weights of wAP in the order of the level names, finest first; by default all the same.

    A sequence is the coarsest first, as in `suprank.ranking.weighted_ap_relevance` and the losses.
    """
    if weights is None:
        return (1 / len(level_names),) * len(level_names)
    if isinstance(weights, Mapping):
        unknown = set(weights) - set(level_names)
        if unknown:
            raise ValueError(f"weights name the level {sorted(unknown)[0]!r}, but the levels are {', '.join(level_names)}.")
        found = tuple(float(weights.get(name, 0)) for name in level_names)
    else:
        found = tuple(map(float, weights))[::-1]
    if len(found) != len(level_names):
        raise ValueError(
            f"there are {len(found)} weights for {len(level_names)} level(s) ({', '.join(level_names)}); give one for each, "
            f"by name, or as a sequence with the coarsest level first."
        )
    if not all(0 <= weight < float("inf") for weight in found) or sum(found) <= 0:
        raise ValueError(f"weights={weights} must be finite, 0 or more, with at least one above 0; try 1 for every level.")
    return found
