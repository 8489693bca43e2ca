"""Agreement measures of two annotators, on arrays with one entry per label. An undefined value says why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

NO_LABELS = "no label was reviewed by both"
NO_ITEMS = "no label that was reviewed by both has items"
ONE_CATEGORY = "both use one category only"
ONE_GROUP = "both put all labels into one group"
ALL_SINGLE = "both put every label into a group of its own"
NO_PAIRS = "no two labels share a group"


@dataclass(frozen=True)
class Statistic:
    """A number, or None and the reason why it is undefined. 0/0 is never replaced by 0 or 1."""

    value: float | None
    undefined: str = ""

    def __str__(self) -> str:
        return f"undefined ({self.undefined})" if self.value is None else f"{self.value:.3f}"


def percent_agreement(first: ArrayLike, second: ArrayLike, weights: ArrayLike | None = None) -> Statistic:
    """p_o = Σᵢ wᵢ [aᵢ = bᵢ] / Σᵢ wᵢ, with wᵢ = 1 if no weights are given."""
    a, b, w = _arrays(first, second, weights)
    if (why := _empty(w)) is not None:
        return Statistic(None, why)
    return Statistic(float(w[a == b].sum() / w.sum()))


def cohen_kappa(first: ArrayLike, second: ArrayLike, weights: ArrayLike | None = None) -> Statistic:
    """κ = (p_o − p_e) / (1 − p_e) for nominal categories, with p_e = Σ_c p_a(c) · p_b(c).

    It is undefined where p_e = 1: both annotators put all labels into the same category. p_e comes from the margins, because
    scikit-learn builds the full confusion matrix, which is too large for thousands of groups; the values are the same.
    """
    a, b, w = _arrays(first, second, weights)
    if (why := _empty(w)) is not None:
        return Statistic(None, why)
    a, b, w = a[w > 0], b[w > 0], w[w > 0]
    names, codes = np.unique(np.concatenate([a, b]), return_inverse=True)
    if len(names) == 1:
        return Statistic(None, ONE_CATEGORY)
    total = w.sum()
    margins = [np.bincount(half, w, len(names)) / total for half in np.split(codes.reshape(-1), 2)]
    observed, expected = w[a == b].sum() / total, float(margins[0] @ margins[1])
    return Statistic(float((observed - expected) / (1 - expected)))


def adjusted_rand(first: ArrayLike, second: ArrayLike) -> Statistic:
    """ARI = (RI − E[RI]) / (max RI − E[RI]) (Hubert & Arabie 1985): 1 for the same partition, 0 by chance.

    It is undefined (0/0) where both put all labels into one group, or every label into a group of its own.
    """
    from sklearn.metrics import adjusted_rand_score

    a, b, _ = _arrays(first, second, None)
    if (why := _trivial(a, b)) is not None:
        return Statistic(None, why)
    return Statistic(float(adjusted_rand_score(a, b)))


def adjusted_mutual_information(first: ArrayLike, second: ArrayLike) -> Statistic:
    """AMI = (MI − E[MI]) / (½ (H_a + H_b) − E[MI]) (Vinh, Epps & Bailey 2010), undefined where ARI is."""
    from sklearn.metrics import adjusted_mutual_info_score

    a, b, _ = _arrays(first, second, None)
    if (why := _trivial(a, b)) is not None:
        return Statistic(None, why)
    return Statistic(float(adjusted_mutual_info_score(a, b)))


@dataclass(frozen=True)
class PairCounts:
    """The number of pairs of labels that share a group: in both partitions, in the first, and in the second."""

    both: int
    first: int
    second: int

    @property
    def precision(self) -> Statistic:
        """Share of the first partition's pairs that the second has too."""
        return Statistic(self.both / self.first) if self.first else Statistic(None, f"{NO_PAIRS} in the first branch")

    @property
    def recall(self) -> Statistic:
        """Share of the second partition's pairs that the first has too."""
        return Statistic(self.both / self.second) if self.second else Statistic(None, f"{NO_PAIRS} in the second branch")

    @property
    def f1(self) -> Statistic:
        """F1 = 2 · both / (first + second), undefined where no two labels share a group in either partition."""
        either = self.first + self.second
        return Statistic(2 * self.both / either) if either else Statistic(None, f"{NO_PAIRS} in either branch")


def count_pairs(first: ArrayLike, second: ArrayLike, weights: ArrayLike | None = None) -> PairCounts:
    """Count the pairs i < j that share a group, from group sizes instead of one by one.

        Σ_groups Σ_{i<j} wᵢ wⱼ = Σ_groups ((Σᵢ wᵢ)² − Σᵢ wᵢ²) / 2

    With numbers of items as weights, these are pairs of items with different labels.
    """
    a, b, w = _arrays(first, second, weights)
    a_codes, b_codes = (np.unique(one, return_inverse=True)[1].reshape(-1) for one in (a, b))
    cells = a_codes * (int(b_codes.max(initial=0)) + 1) + b_codes
    return PairCounts(*(_pairs_within(codes, w) for codes in (cells, a_codes, b_codes)))


def _pairs_within(groups: NDArray[np.int64], weights: NDArray[np.float64]) -> int:
    _, codes = np.unique(groups, return_inverse=True)
    sums, squares = (np.bincount(codes.reshape(-1), one) for one in (weights, weights**2))
    return round(float((sums**2 - squares).sum()) / 2)


def _arrays(
    first: ArrayLike, second: ArrayLike, weights: ArrayLike | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]:
    a, b = np.asarray(first), np.asarray(second)
    w = np.ones(len(a)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(a) == len(b) == len(w):
        raise ValueError(f"got {len(a)} and {len(b)} groups and {len(w)} weights; give one of each per label.")
    if (w < 0).any():
        raise ValueError(f"weight {w.min():g} must not be negative, because it is a number of items.")
    return a, b, w


def _empty(weights: NDArray[np.float64]) -> str | None:
    if not len(weights):
        return NO_LABELS
    return None if weights.sum() > 0 else NO_ITEMS


def _trivial(first: NDArray[Any], second: NDArray[Any]) -> str | None:
    """Why chance-corrected measures of two partitions are 0/0; None where they are not."""
    if not len(first):
        return NO_LABELS
    counts = {len(np.unique(first)), len(np.unique(second))}
    if counts == {len(first)}:
        return ALL_SINGLE if len(first) > 1 else ONE_GROUP
    return ONE_GROUP if counts == {1} else None
