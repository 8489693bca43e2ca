"""`AdaptResult`: the head, what it reached on the test classes, and how it was chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation.statistics import mean_intervals

if TYPE_CHECKING:
    from suprank.adaptation.config import AdaptConfig
    from suprank.adaptation.runs import Validation
    from suprank.evaluation import Report
    from suprank.models.head import Head

_ROUNDING = 1e-4  # of a metric, if a rotation of the embeddings swaps items of equal scores


@dataclass(frozen=True, eq=False)
class SeedResult:
    """One seed: the validation of its best step, all its validations, and the test report and weights of that step."""

    seed: int
    best: Validation
    history: tuple[Validation, ...]
    report: Report
    head: Head = field(repr=False)


@dataclass(frozen=True, eq=False)
class AdaptResult:
    """What `adapt` returns: the head of the seed with the best validation, at its best step, and what was measured.

    `before` and `after` are reports of the test set, with values per query: of the embeddings as they are, and after the head.
    """

    before: Report

    seeds: tuple[SeedResult, ...]
    """The result of every seed."""

    metric: str
    """The metric that chose the step and the seed."""

    raw: float
    """This metric of the embeddings as they are, on the validation classes."""

    start: str
    """How the head began: at `centered` or `uncentered` principal directions."""

    classes: dict[str, int]
    """The numbers of classes for training, validation and test; `seen` of the test classes were trained on."""

    rows: dict[str, int]
    """The same of images; those that were `left_out` have no label or are alone in their class."""

    config: AdaptConfig
    """The settings, with defaults filled in."""

    @property
    def best_seed(self) -> SeedResult:
        """The result of the seed with the best validation, whose head is saved; the first one if several are equal."""
        return max(self.seeds, key=lambda one: one.best.value)

    @property
    def head(self) -> Head:
        return self.best_seed.head

    @property
    def after(self) -> Report:
        return self.best_seed.report

    @property
    def improved(self) -> bool:
        """Whether the head ranks the validation classes better than the embeddings themselves do, by more than rounding."""
        return self.best_seed.best.value > self.raw + _ROUNDING

    def seed_spread(self, metric: str) -> tuple[float, float]:
        """Mean and standard deviation over the seeds of a metric of the test set; NaN for the deviation of one seed."""
        values = [one.report[metric] for one in self.seeds]
        return mean(values), stdev(values) if len(values) > 1 else math.nan

    def difference_interval(self, metric: str) -> tuple[float, float]:
        """95 % interval of after − before, paired, in the units of all metrics (`Report.units`)."""
        before, after = (one.values_per_query("an interval")[one.resolve(metric)] for one in (self.before, self.after))
        low, high = mean_intervals((after - before)[:, None], self.before.units().of_query, skewed=False)[0].tolist()
        return low, high

    def record(self) -> dict[str, Any]:
        """What is saved with the head: settings, splits, the best step of every seed, and the test metrics before and after."""
        return {
            "config": self.config.model_dump(mode="json"),
            "classes": self.classes,
            "rows": self.rows,
            "start": self.start,
            "metric": self.metric,
            "validation": {
                "before": self.raw,
                "seeds": [{"seed": one.seed, "step": one.best.step, "value": one.best.value} for one in self.seeds],
                "kept_seed": self.best_seed.seed,
            },
            "test": {"before": _finite(self.before), "after": _finite(self.after)},
        }


def _finite(report: Report) -> dict[str, float | None]:
    return {key: value if np.isfinite(value) else None for key, value in report.items()}
