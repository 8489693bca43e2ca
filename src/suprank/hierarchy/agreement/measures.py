"""How far two annotators agree: functions on arrays, one entry a label. A figure that has no value says why."""

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
ALL_APART = "both leave every label alone"
NO_PAIRS = "no two labels stand together"


@dataclass(frozen=True)
class Figure:
    """A number; or None, and why it is undefined. 0/0 is never taken for 1 or 0."""

    value: float | None
    undefined: str = ""

    def __str__(self) -> str:
        return f"undefined ({self.undefined})" if self.value is None else f"{self.value:.3f}"


def percent_agreement(first: ArrayLike, second: ArrayLike, weights: ArrayLike | None = None) -> Figure:
    """p_o = Σᵢ wᵢ [aᵢ = bᵢ] / Σᵢ wᵢ, with wᵢ = 1 without weights."""
    a, b, w = _arrays(first, second, weights)
    if (why := _nothing(w)) is not None:
        return Figure(None, why)
    return Figure(float(w[a == b].sum() / w.sum()))


def cohen_kappa(first: ArrayLike, second: ArrayLike, weights: ArrayLike | None = None) -> Figure:
    """κ = (p_o − p_e) / (1 − p_e) with nominal categories, p_e = Σ_c p_a(c) · p_b(c).

    Undefined where p_e = 1, which is where all labels are of one category on both sides. From the margins, because
    scikit-learn's makes a square of all categories, which thousands of groups do not fit in; they agree, as a test tells.
    """
    a, b, w = _arrays(first, second, weights)
    if (why := _nothing(w)) is not None:
        return Figure(None, why)
    a, b, w = a[w > 0], b[w > 0], w[w > 0]
    names, codes = np.unique(np.concatenate([a, b]), return_inverse=True)
    if len(names) == 1:
        return Figure(None, ONE_CATEGORY)
    total = w.sum()
    margins = [np.bincount(half, w, len(names)) / total for half in np.split(codes.reshape(-1), 2)]
    observed, expected = w[a == b].sum() / total, float(margins[0] @ margins[1])
    return Figure(float((observed - expected) / (1 - expected)))


def adjusted_rand(first: ArrayLike, second: ArrayLike) -> Figure:
    """ARI = (RI − E[RI]) / (max RI − E[RI]) (Hubert & Arabie 1985): 1 for the same partition, 0 expected by chance.

    0/0 where both put all labels into one group, or leave every one alone: no pair can tell them apart.
    """
    from sklearn.metrics import adjusted_rand_score

    a, b, _ = _arrays(first, second, None)
    if (why := _trivial(a, b)) is not None:
        return Figure(None, why)
    return Figure(float(adjusted_rand_score(a, b)))


def adjusted_mutual_information(first: ArrayLike, second: ArrayLike) -> Figure:
    """AMI = (MI − E[MI]) / (½ (H_a + H_b) − E[MI]) (Vinh, Epps & Bailey 2010); undefined where ARI is."""
    from sklearn.metrics import adjusted_mutual_info_score

    a, b, _ = _arrays(first, second, None)
    if (why := _trivial(a, b)) is not None:
        return Figure(None, why)
    return Figure(float(adjusted_mutual_info_score(a, b)))


@dataclass(frozen=True)
class Pairs:
    """Pairs of labels that stand together: in both, in the first and in the second partition."""

    both: int
    first: int
    second: int

    @property
    def precision(self) -> Figure:
        """Of the pairs the first puts together, the share that the second does too."""
        return Figure(self.both / self.first) if self.first else Figure(None, f"in the first, {NO_PAIRS}")

    @property
    def recall(self) -> Figure:
        """Of the pairs the second puts together, the share that the first does too."""
        return Figure(self.both / self.second) if self.second else Figure(None, f"in the second, {NO_PAIRS}")

    @property
    def f1(self) -> Figure:
        """F1 = 2 · both / (first + second); undefined where neither puts any two labels together."""
        either = self.first + self.second
        return Figure(2 * self.both / either) if either else Figure(None, f"in neither, {NO_PAIRS}")


def pairs_together(first: ArrayLike, second: ArrayLike, weights: ArrayLike | None = None) -> Pairs:
    """Pairs i < j of one group, counted from the table of groups against groups and never one by one.

        Σ_groups Σ_{i<j} wᵢ wⱼ = Σ_groups ((Σᵢ wᵢ)² − Σᵢ wᵢ²) / 2

    With items for weights these are pairs of items of different labels: two of one label are together anyhow.
    """
    a, b, w = _arrays(first, second, weights)
    a_codes, b_codes = (np.unique(one, return_inverse=True)[1].reshape(-1) for one in (a, b))
    cells = a_codes * (int(b_codes.max(initial=0)) + 1) + b_codes
    return Pairs(*(_pairs(codes, w) for codes in (cells, a_codes, b_codes)))


def _pairs(groups: NDArray[np.int64], weights: NDArray[np.float64]) -> int:
    _, codes = np.unique(groups, return_inverse=True)
    sums, squares = (np.bincount(codes.reshape(-1), one) for one in (weights, weights**2))
    return round(float((sums**2 - squares).sum()) / 2)


def _arrays(
    first: ArrayLike, second: ArrayLike, weights: ArrayLike | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]:
    a, b = np.asarray(first), np.asarray(second)
    w = np.ones(len(a)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(a) == len(b) == len(w):
        raise ValueError(f"{len(a)} and {len(b)} groups with {len(w)} weights: give one of each for every label.")
    if (w < 0).any():
        raise ValueError(f"weight {w.min():g} must not be negative: it is a number of items.")
    return a, b, w


def _nothing(weights: NDArray[np.float64]) -> str | None:
    if not len(weights):
        return NO_LABELS
    return None if weights.sum() > 0 else NO_ITEMS


def _trivial(first: NDArray[Any], second: NDArray[Any]) -> str | None:
    """Why two partitions leave chance-corrected figures at 0/0; None where they do not."""
    if not len(first):
        return NO_LABELS
    counts = {len(np.unique(first)), len(np.unique(second))}
    if counts == {len(first)}:
        return ALL_APART if len(first) > 1 else ONE_GROUP
    return ONE_GROUP if counts == {1} else None
