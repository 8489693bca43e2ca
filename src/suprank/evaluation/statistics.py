"""Statistics of means over queries and seeds: intervals, paired tests, effect sizes, Holm's correction.

Queries are not independent of one another, but the units that they belong to are (`Units`): nothing here counts queries.
"""

from __future__ import annotations

import math
import statistics
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from suprank.evaluation.units import MIN_UNITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jaxtyping import Float, Int

MIN_SAMPLES = 10_000
"""Assignments of signs that `paired_randomizations` draws, if it cannot try them all; more for many metrics."""

_BLOCK = 2**22  # numbers held at once: 32 MiB of float64, whatever the number of samples
# Two sums of the same numbers may differ by rounding, in the sums and in the differences themselves. Closer than this share
# of Σ|d| they are equal. Sums that do differ lie further apart: by 1/n of it for 0/1 metrics, n the number of queries.
_EQUAL = 1e-9
_MANY_DEGREES = 1e6  # of freedom: Student's t is the normal distribution


def mean_intervals(
    values: Float[np.ndarray, "queries metrics"],
    units: Int[np.ndarray, " queries"],
    *,
    confidence: float = 0.95,
    skewed: bool = True,
) -> Float[np.ndarray, "metrics 2"]:
    """The interval of each metric's mean over queries, for new units of the same kind: jackknife over units, Student's t.

        low = mean − g(t)·√V                 V = Σ_u d_u²,  d_u = mean − mean without the queries of unit u
        high = mean − g(−t)·√V               t = quantile (1 + confidence)/2 with ν = (Σn_u)²/Σn_u² − 1 (at least 1) degrees
        g(x) = 3/γ·(∛(1 + γ·(x − γ/6)) − 1)  γ = Σ_u d_u³/V^(3/2), the skewness (Hall 1992)

    Row m of the result is (low, high) of metric m. A query whose value is NaN is left out, for that metric only. `units` are
    those of `Units.of_query`. The interval is (NaN, NaN) with fewer than `MIN_UNITS` units. Means of metrics are skewed: a few
    classes are easy. Differences of two models are not, if both are alike: for them `skewed=False`, which is g(x) = x, keeps
    the coverage. A percentile bootstrap over units covers the mean of new ones in 88 % of cases with 10 units, instead of 95 %.
    """
    values = _matrix(values, "values", units)
    check_confidence(confidence)
    sums, counts = _unit_sums(values, units)
    means, changes = _jackknife(sums, counts)
    found = np.full((len(means), 2), np.nan)
    for metric, (mean, change) in enumerate(zip(means, changes.T, strict=True)):
        sizes = counts[counts[:, metric] > 0, metric]
        if len(sizes) >= MIN_UNITS:
            freedom = max(1.0, sizes.sum() ** 2 / (sizes**2).sum() - 1)
            ends = np.array([1, -1]) * student_quantile((1 + confidence) / 2, freedom)
            error = np.sqrt((change**2).sum())
            skewness = ((change / error) ** 3).sum() if skewed and error > 0 else 0.0
            if abs(skewness) > _EQUAL:
                ends = 3 / skewness * (np.cbrt(1 + skewness * (ends - skewness / 6)) - 1)
            found[metric] = mean - ends * error
    return found


def paired_randomizations(
    difference: Float[np.ndarray, "queries metrics"],
    units: Int[np.ndarray, " queries"],
    *,
    samples: int | None = None,
    seed: int = 0,
) -> Float[np.ndarray, " metrics"]:
    """Fisher's paired randomization test: the two-sided p-value of each metric's mean difference over queries.

    If two systems are alike, the differences D_u = Σ_{q∈u} d_q of a unit are as likely to have the other sign, all of them
    together. With signs ε_u = ±1 of n units,

        p = share of the 2ⁿ assignments ε with |Σ_u ε_u·D_u| ≥ |Σ_u D_u|                         if 2ⁿ ≤ samples
        p = (1 + number of drawn assignments ε with |Σ_u ε_u·D_u| ≥ |Σ_u D_u|) / (1 + samples)   otherwise

    Queries where d is NaN are left out. So are units where D is 0: their sign changes no sum, hence no p, and without them
    more cases are small enough to be exact. Sums that are equal up to rounding count as equal. Two systems that never differ
    have p = 1; with fewer than `MIN_UNITS` units with a value p is NaN. All metrics share the drawn signs, so that a metric's p
    does not depend on the others. `samples` are by default `needed_samples(metrics)`.

    Example:
        >>> paired_randomizations(np.full((8, 1), 0.1), np.arange(8)).tolist()  # only 8 × + and 8 × − are as far from 0
        [0.0078125]
    """
    difference = _matrix(difference, "difference", units)
    samples = needed_samples(difference.shape[1]) if samples is None else samples
    if samples < 1:
        raise ValueError(f"samples={samples!r} must be at least 1; {MIN_SAMPLES} is usual for p-values.")
    sums, counts = _unit_sums(difference, units)
    scale = _unit_sums(np.abs(difference), units)[0]
    sums[np.abs(sums) <= _EQUAL * scale] = 0
    nonzero = sums != 0
    p_values = np.empty(sums.shape[1])
    exact = nonzero.sum(0) < int(samples).bit_length()  # 2ⁿ ≤ samples
    for column in np.flatnonzero(exact):
        small = sums[nonzero[:, column], column]
        p_values[column] = _count_as_far(_every_assignment(len(small)), small[:, None])[0] / 2 ** len(small)
    drawn = np.flatnonzero(~exact)
    if drawn.size:
        far = _count_as_far(_drawn_assignments(len(sums), samples, seed), sums[:, drawn])
        p_values[drawn] = (1 + far) / (1 + samples)
    p_values[(counts > 0).sum(0) < MIN_UNITS] = np.nan
    return p_values


def needed_samples(tests: int) -> int:
    """How many assignments of signs to draw, so that Holm's correction over this many tests can reach 1 %."""
    return max(MIN_SAMPLES, 100 * tests)


def smallest_p(units: int, samples: int) -> float:
    """The smallest p that `paired_randomizations` can find: if one system is ahead on each unit."""
    return 2.0 ** (1 - units) if units < int(samples).bit_length() else 1 / (1 + samples)


def holm(p_values: Float[np.ndarray, " tests"]) -> Float[np.ndarray, " tests"]:
    """Holm's step-down correction: p-values that, rejected below α, keep the chance of any false rejection below α.

        p̃_(i) = max_{j ≤ i} min(1, (m − j + 1)·p_(j)),   p_(1) ≤ … ≤ p_(m)

    NaN, a test without queries, stays NaN and does not count in m.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03])).round(4).tolist()
        [0.03, 0.06, 0.06]
    """
    p_values = np.asarray(p_values, dtype=np.float64)
    corrected = np.full_like(p_values, np.nan)
    defined = np.flatnonzero(~np.isnan(p_values))
    order = defined[np.argsort(p_values[defined], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    corrected[order] = np.maximum.accumulate(np.minimum(1, factors * p_values[order]))
    return corrected


class SeedDifference(NamedTuple):
    """How much better the first of two methods is: the difference of their means, its interval, the effect size
    (`paired_effect_size` of the means over seeds) and the two-sided p-value."""

    difference: float
    low: float
    high: float
    effect_size: float
    p_value: float


def seed_difference(
    first: Float[np.ndarray, "seeds queries"],
    second: Float[np.ndarray, "seeds queries"],
    units: Int[np.ndarray, " queries"],
    *,
    confidence: float = 0.95,
) -> SeedDifference:
    """The difference of two methods, each trained with several seeds and evaluated on the same queries, for new trainings and
    new units of the same kind.

        D = mean over seeds and queries of the first − that of the second
        V = V_units + Σ_methods V_seeds       p and the interval from Student's t of D/√V, with
        ν = V² / Σ_methods V_seeds²/(S − 1)   degrees of freedom (Satterthwaite; units are many)

    V_units is the jackknife variance over units (`mean_intervals`) of the differences that are averaged over seeds, V_seeds the
    variance of the means of a method's S seeds, divided by S. Both contain the variance of what is particular to a seed and a
    unit, so that V is on the large side. With one seed nothing is known about V_seeds, nor with fewer than `MIN_UNITS` units
    about V_units: interval and p are NaN. Queries without a value (NaN) are left out, for that seed.

    `benchmarks/verdicts.py` shows size and power beside other tests.
    """
    first, second = (np.asarray(one, dtype=np.float64) for one in (first, second))
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[1] or 0 in (len(first), len(second)):
        raise ValueError(
            f"values have shapes {first.shape} and {second.shape}, but must be [seeds, queries] with one seed or more, and the "
            f"same queries for both."
        )
    by_seed = [mean_ignoring_nan(one, axis=1) for one in (first, second)]
    value = float(by_seed[0].mean() - by_seed[1].mean())
    difference = mean_ignoring_nan(first, axis=0) - mean_ignoring_nan(second, axis=0)
    effect = paired_effect_size(difference)
    sums, counts = _unit_sums(_matrix(difference[:, None], "values", units), units)
    if np.isnan(value) or min(len(first), len(second)) < 2 or (counts > 0).sum() < MIN_UNITS:
        return SeedDifference(value, np.nan, np.nan, effect, np.nan)
    of_seeds = [float(one.var(ddof=1)) / len(one) for one in by_seed]
    variance = float((_jackknife(sums, counts)[1] ** 2).sum()) + sum(of_seeds)
    if variance <= (_EQUAL * np.abs(value)) ** 2:  # the same for every seed and unit
        return SeedDifference(value, value, value, effect, 1.0 if value == 0 else 0.0)
    uncertain = sum(one**2 / (len(seeds) - 1) for one, seeds in zip(of_seeds, by_seed, strict=True))
    freedom = variance**2 / uncertain if uncertain > 0 else np.inf
    half = student_quantile((1 + confidence) / 2, freedom) * variance**0.5
    return SeedDifference(value, value - half, value + half, effect, student_p_value(value / variance**0.5, freedom))


def student_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t distribution, of at least 1 degree of freedom, for a probability of ½ or more.

    Example:
        >>> round(student_quantile(0.975, 10), 4), round(student_quantile(0.975, np.inf), 4)
        (2.2281, 1.96)
    """
    if freedom > _MANY_DEGREES:
        return statistics.NormalDist().inv_cdf(probability)
    values, tail = _student_tail(freedom)
    return float(np.interp(-np.log(1 - probability), -np.log(tail), values))


def student_p_value(value: float, freedom: float) -> float:
    """The two-sided p-value of a value of Student's t distribution, of at least 1 degree of freedom.

    Example:
        >>> round(student_p_value(-2.2281, 10), 4), student_p_value(0.0, 10)
        (0.05, 1.0)
    """
    if freedom > _MANY_DEGREES:
        return math.erfc(abs(value) / math.sqrt(2))
    values, tail = _student_tail(freedom)
    return float(2 * np.exp(np.interp(abs(value), values, np.log(tail))))


@lru_cache(maxsize=8)  # for the quantile and the p-value of one test
def _student_tail(freedom: float) -> tuple[np.ndarray, np.ndarray]:
    """Values from 0 on, and the probabilities of larger ones: the density ∝ (1 + t²/ν)^(−(ν+1)/2), summed from the far end."""
    grid = np.linspace(0, 20, 20_001)  # of sinh, so that steps grow with the value
    values = np.sinh(grid)
    density = np.exp(-(freedom + 1) / 2 * np.log1p(values**2 / freedom)) * np.cosh(grid)
    tail = np.cumsum(((density[:-1] + density[1:]) / 2)[::-1])[::-1]
    kept = tail > np.finfo(np.float64).tiny
    return values[:-1][kept], tail[kept] / (2 * tail[0])


def paired_effect_size(difference: Float[np.ndarray, " queries"]) -> float:
    """Cohen's d of paired values: the mean of the differences over their standard deviation (with n − 1).

    0.2 is called small, 0.5 medium, 0.8 large. 0 if there is no difference. NaN if it is undefined: fewer than two
    differences, or all the same up to rounding and not 0.

    Example:
        >>> paired_effect_size(np.array([0.0, 0.1, 0.2])), paired_effect_size(np.array([0.3, 0.1 + 0.2]))
        (1.0, nan)
    """
    valid = difference[~np.isnan(difference)]
    if len(valid) and not valid.any():
        return 0.0
    if len(valid) < 2 or np.ptp(valid) <= _EQUAL * np.abs(valid).max():
        return float("nan")
    return round(float(valid.mean() / valid.std(ddof=1)), 12)


def mean_ignoring_nan(values: np.ndarray, *, axis: int) -> np.ndarray:
    """The mean along an axis of the values that are not NaN; NaN where there is none."""
    defined = ~np.isnan(values)
    count = defined.sum(axis)
    total = np.where(defined, values, 0.0).sum(axis)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def _unit_sums(
    values: Float[np.ndarray, "queries metrics"], units: Int[np.ndarray, " queries"]
) -> tuple[Float[np.ndarray, "units metrics"], Float[np.ndarray, "units metrics"]]:
    """The sum of each unit's values that are not NaN, and how many these are; unit −1 is left out."""
    order = np.argsort(units, kind="stable")
    order = order[np.searchsorted(units[order], 0) :]
    starts = np.flatnonzero(np.diff(units[order], prepend=-1))
    chosen = values[order]
    defined = ~np.isnan(chosen)
    if not len(order):
        return np.zeros((0, values.shape[1])), np.zeros((0, values.shape[1]))
    return np.add.reduceat(np.where(defined, chosen, 0.0), starts), np.add.reduceat(defined.astype(np.float64), starts)


def _jackknife(
    sums: Float[np.ndarray, "units metrics"], counts: Float[np.ndarray, "units metrics"]
) -> tuple[Float[np.ndarray, " metrics"], Float[np.ndarray, "units metrics"]]:
    """The mean over queries, and by how much it is above the mean without each unit: the squares add up to its variance."""
    total, number = sums.sum(0), counts.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = total / number
        without = (total - sums) / (number - counts)
    return means, np.where(counts > 0, means - without, 0.0)


def _every_assignment(units: int) -> Iterator[Float[np.ndarray, "block units"]]:
    """All 2ⁿ assignments of signs, 1 for + and 0 for −, in blocks."""
    for rows in _rows(units, 2**units):
        yield (np.arange(rows.start, rows.stop)[:, None] >> np.arange(units) & 1).astype(np.float64)


def _drawn_assignments(units: int, samples: int, seed: int) -> Iterator[Float[np.ndarray, "block units"]]:
    """Assignments of signs drawn at random, 1 for + and 0 for −, in blocks."""
    generator = np.random.default_rng(seed)
    for rows in _rows(units, samples):
        packed = generator.integers(256, size=(len(rows), -(-units // 8)), dtype=np.uint8)
        yield np.unpackbits(packed, axis=1, count=units).astype(np.float64)


def _count_as_far(
    assignments: Iterable[Float[np.ndarray, "block units"]], difference: Float[np.ndarray, "units metrics"]
) -> Float[np.ndarray, " metrics"]:
    """How many assignments give a sum as far from 0 as the sum of the differences themselves, or farther."""
    total = difference.sum(0)
    least = np.abs(total) - _EQUAL * np.abs(difference).sum(0)
    far = np.zeros(difference.shape[1])
    for plus in assignments:
        far += (np.abs(2 * (plus @ difference) - total) >= least).sum(0)
    return far


def _rows(width: int, rows: int) -> Iterator[range]:
    """The numbers 0..rows−1 in ranges such that a range of rows of that width holds no more than a block."""
    step = max(1, _BLOCK // max(1, width))
    for start in range(0, rows, step):
        yield range(start, min(start + step, rows))


def _matrix(values: np.ndarray, name: str, units: np.ndarray) -> Float[np.ndarray, "queries metrics"]:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or len(values) != len(units):
        raise ValueError(
            f"{name} has shape {values.shape} for {len(units)} units, but must be [queries, metrics], with a unit for each "
            f"query; for one metric give {name}[:, None]."
        )
    return values


def check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r} must lie strictly between 0 and 1; try 0.95.")
