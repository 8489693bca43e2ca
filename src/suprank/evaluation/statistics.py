"""Statistics of means over queries and seeds: bootstrap intervals, paired tests, effect sizes, Holm's correction."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jaxtyping import Float

_BLOCK = 2**22  # numbers held at once: 32 MiB of float64, whatever the number of samples
# Two sums of the same numbers may differ by rounding, in the sums and in the differences themselves. Closer than this share
# of Σ|d| they are equal. Sums that do differ lie further apart: by 1/n of it for 0/1 metrics, n the number of queries.
_EQUAL = 1e-9
_MANY_DEGREES = 1e6  # of freedom: Student's t is the normal distribution


def mean_over_queries(values: Float[np.ndarray, " queries"]) -> float:
    """The mean of the values that are not NaN; NaN when there is none."""
    valid = values[~np.isnan(values)]
    return float(valid.mean()) if len(valid) else float("nan")


def bootstrap_interval(
    values: Float[np.ndarray, "queries metrics"], *, samples: int = 1000, confidence: float = 0.95, seed: int = 0
) -> Float[np.ndarray, "metrics 2"]:
    """Percentile bootstrap over queries: the spread of the mean over queries that are drawn again, with replacement.

        mean*_b = Σ_q c_bq·v_q / Σ_q c_bq,   c_b ~ Multinomial(n, 1/n),   b = 1..samples
        [low, high] = quantiles (1 ± confidence)/2 of mean*_1, mean*_2, … (linear between samples)

    Row m of the result is (low, high) of metric m. All metrics share the draws c_b, so that a metric's interval does not
    depend on which other metrics are given. A query whose value is NaN is left out of both sums, for that metric only; a
    draw that has only such queries has no mean and is left out too. A metric with no value at all has the interval
    (NaN, NaN), one with a single value an interval of no width. Values are finite or NaN.

    Time grows with queries × samples × metrics; memory with queries × metrics, plus a fixed 32 MiB for the draws.
    """
    values = _matrix(values, "values")
    _check_samples(samples)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r} must lie strictly between 0 and 1; try 0.95.")
    queries, metrics = values.shape
    defined = ~np.isnan(values)
    if not defined.any():
        return np.full((metrics, 2), np.nan)
    # Concatenated, so that one product with the draws gives the sums and the numbers of queries.
    both = np.concatenate([np.where(defined, values, 0.0), defined], axis=1)
    sums = np.concatenate([drawn @ both for drawn in _draws(queries, samples, seed)])
    total, count = sums[:, :metrics], sums[:, metrics:]
    means = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    ends = [(1 - confidence) / 2, (1 + confidence) / 2]
    columns = [column[~np.isnan(column)] for column in means.T]
    return np.array([np.quantile(column, ends) if column.size else [np.nan, np.nan] for column in columns])


def paired_randomization(difference: Float[np.ndarray, " queries"], *, samples: int = 10_000, seed: int = 0) -> float:
    """Fisher's paired randomization test: the two-sided p-value of a mean difference over queries.

    If two systems are alike, each query's difference d_q is as likely to have the other sign. With signs ε_q = ±1,

        p = share of the 2ⁿ assignments ε with |Σ_q ε_q·d_q| ≥ |Σ_q d_q|                        if 2ⁿ ≤ samples
        p = (1 + number of drawn assignments ε with |Σ_q ε_q·d_q| ≥ |Σ_q d_q|) / (1 + samples)   otherwise

    Queries where d is NaN are left out. So are those where it is 0: their sign changes no sum, hence no p, and without
    them more cases are small enough to be exact. Sums that are equal up to rounding count as equal. Two systems that
    never differ have p = 1, a test without queries NaN. The exact p is never below 2^(1−n).

    Example:
        >>> paired_randomization(np.array([0.1, 0.2, 0.3]))  # only +++ and −−− are as far from 0: 2 of 8
        0.25
    """
    difference = np.asarray(difference, dtype=np.float64)
    if difference.ndim != 1:
        raise ValueError(f"difference has shape {difference.shape}, but must be [queries]; see paired_randomizations.")
    return float(paired_randomizations(difference[:, None], samples=samples, seed=seed)[0])


def paired_randomizations(
    difference: Float[np.ndarray, "queries metrics"], *, samples: int = 10_000, seed: int = 0
) -> Float[np.ndarray, " metrics"]:
    """`paired_randomization` of every column. All share the drawn signs, so a metric's p does not depend on the others."""
    difference = _matrix(difference, "difference")
    _check_samples(samples)
    queries, metrics = difference.shape
    defined = ~np.isnan(difference)
    difference = np.where(defined, difference, 0.0)
    nonzero = difference != 0
    p_values = np.empty(metrics)
    exact = nonzero.sum(0) < int(samples).bit_length()  # 2ⁿ ≤ samples
    for column in np.flatnonzero(exact):
        small = difference[nonzero[:, column], column]
        p_values[column] = _count_as_far(_every_assignment(len(small)), small[:, None])[0] / 2 ** len(small)
    drawn = np.flatnonzero(~exact)
    if drawn.size:
        far = _count_as_far(_drawn_assignments(queries, samples, seed), difference[:, drawn])
        p_values[drawn] = (1 + far) / (1 + samples)
    p_values[~defined.any(0)] = np.nan
    return p_values


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
    """How much better the first of two systems is: the difference of their means, its bootstrap interval, the effect size
    (`paired_effect_size`) and the two-sided p-value."""

    difference: float
    low: float
    high: float
    effect_size: float
    p_value: float


class SeedBootstrap:
    """Bootstrap over queries and seeds of several systems, each trained with some seeds and evaluated on the same queries.

    A system's mean is that over its seeds of the means over queries. In every sample b, queries are drawn again with
    replacement, the same for all systems (they are paired), and each system draws its seeds again, on its own:

        mean*_b(system) = 1/S Σ_{i=1..S} Σ_q c_bq·v(s_bi, q) / Σ_q c_bq,   c_b ~ Multinomial(n, 1/n),   s_bi ~ the S seeds

    With few seeds, the spread among drawn seeds is too small by (S − 1)/S. So that it is not, each seed's mean is moved away
    from that of all seeds by √(S/(S − 1)) first. That spread is itself uncertain, as Student's t takes into account: see
    `difference`. A system with one seed has no spread over seeds: its interval is that over queries, and too narrow.

        values    for each system `[seeds, queries, metrics]`; systems may have other numbers of seeds. A query whose value is
                  NaN is left out for that seed and metric.

    Time grows with samples × queries × systems × seeds × metrics.
    """

    def __init__(
        self, values: Sequence[Float[np.ndarray, "seeds queries metrics"]], *, samples: int = 10_000, seed: int = 0
    ) -> None:
        _check_samples(samples)
        systems = [np.asarray(one, dtype=np.float64) for one in values]
        for one in systems:
            if one.ndim != 3 or 0 in one.shape[:2] or one.shape[1:] != systems[0].shape[1:]:
                raise ValueError(
                    f"values have shapes {[one.shape for one in systems]}, but must be [seeds, queries, metrics] with one seed "
                    f"or more, and the same queries and metrics for all systems."
                )
        self._per_query = [mean_ignoring_nan(one, axis=0) for one in systems]
        by_seed = [mean_ignoring_nan(one, axis=1) for one in systems]  # [seeds, metrics]
        self.means = [mean_ignoring_nan(one, axis=0) for one in by_seed]
        self._samples = _resampled_means(systems, self.means, samples, seed)
        self._seeds = [len(one) for one in systems]
        self._seed_variance = [_variance_of_mean(one) for one in by_seed]
        self._seed = seed

    def difference(self, first: int, second: int, metric: int, *, confidence: float = 0.95) -> SeedDifference:
        """The difference between two of the systems, by their places, in one of the metrics.

            p = (1 + number of samples with |difference* − difference| ≥ |difference|) / (1 + samples)

        The interval has the quantiles (1 ± confidence)/2 of the samples. NaN where a system has no value.

        Where the spread comes from few seeds, a sample's distance from the difference is first multiplied by √(ν/χ²_ν), which
        makes Student's t with ν degrees of freedom of a normal distribution. ν is Welch's; queries are many:

            ν = Var(difference*)² / Σ_systems (s²/S)²/(S − 1)          s² the variance of the means of the S seeds

        Without it, where seeds vary more than queries do, two alike systems would differ at 5 % in 12 % of cases with three
        seeds, and in 20 % with two.
        """
        value = float(self.means[first][metric] - self.means[second][metric])
        drawn = self._samples[first][:, metric] - self._samples[second][:, metric]
        drawn = drawn[~np.isnan(drawn)]
        effect = paired_effect_size(self._per_query[first][:, metric] - self._per_query[second][:, metric])
        if np.isnan(value) or not drawn.size:
            return SeedDifference(value, np.nan, np.nan, effect, np.nan)
        drawn = value + (drawn - value) * self._widening(drawn.var(), len(drawn), (first, second), metric)
        low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
        far = np.count_nonzero(np.abs(drawn - value) >= abs(value) * (1 - _EQUAL))
        return SeedDifference(value, low, high, effect, float((1 + far) / (1 + drawn.size)))

    def _widening(
        self, variance: float, samples: int, systems: tuple[int, int], metric: int
    ) -> float | Float[np.ndarray, " samples"]:
        """√(ν/χ²_ν) for each sample; 1 if no spread comes from seeds."""
        uncertain = sum(
            self._seed_variance[one][metric] ** 2 / (self._seeds[one] - 1) for one in systems if self._seeds[one] > 1
        )
        freedom = variance**2 / uncertain if uncertain > 0 else np.inf
        if not 0 < freedom < _MANY_DEGREES:
            return 1.0
        return np.sqrt(freedom / np.random.default_rng([self._seed, 2]).chisquare(freedom, samples))


def paired_effect_size(difference: Float[np.ndarray, " queries"]) -> float:
    """Cohen's d of paired values: the mean of the differences over their standard deviation (with n − 1).

    0.2 is called small, 0.5 medium, 0.8 large. NaN if it is undefined: fewer than two differences, or all the same and not 0.

    Example:
        >>> paired_effect_size(np.array([0.0, 0.1, 0.2]))
        1.0
    """
    valid = difference[~np.isnan(difference)]
    if len(valid) and not valid.any():
        return 0.0
    if len(valid) < 2 or np.ptp(valid) == 0:
        return float("nan")
    return round(float(valid.mean() / valid.std(ddof=1)), 12)


def mean_ignoring_nan(values: np.ndarray, *, axis: int) -> np.ndarray:
    """The mean along an axis of the values that are not NaN; NaN where there is none."""
    defined = ~np.isnan(values)
    count = defined.sum(axis)
    total = np.where(defined, values, 0.0).sum(axis)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def _variance_of_mean(by_seed: Float[np.ndarray, "seeds metrics"]) -> Float[np.ndarray, " metrics"]:
    """The variance s²/S of the mean over seeds; 0 with one seed."""
    return by_seed.var(axis=0, ddof=1) / len(by_seed) if len(by_seed) > 1 else np.zeros(by_seed.shape[1])


def _resampled_means(
    systems: Sequence[np.ndarray], means: Sequence[np.ndarray], samples: int, seed: int
) -> list[Float[np.ndarray, "samples metrics"]]:
    """The means of each system in every bootstrap sample of `SeedBootstrap`."""
    queries, metrics = systems[0].shape[1:]
    columns = np.concatenate([one.transpose(1, 0, 2).reshape(queries, -1) for one in systems], axis=1)
    defined = ~np.isnan(columns)
    filled, everywhere = np.where(defined, columns, 0.0), bool(defined.all())
    resampled = np.empty((samples, columns.shape[1]))
    start = 0
    for drawn in _draws(queries, samples, seed):
        count = float(queries) if everywhere else drawn @ defined.astype(np.float64)
        with np.errstate(invalid="ignore"):  # a draw without a defined query has no mean
            resampled[start : start + len(drawn)] = (drawn @ filled) / count
        start += len(drawn)
    found, place = [], 0
    generator = np.random.default_rng([seed, 1])
    for one, center in zip(systems, means, strict=True):
        seeds = one.shape[0]
        own = resampled[:, place : place + seeds * metrics].reshape(samples, seeds, metrics)
        place += seeds * metrics
        if seeds > 1:
            widened = np.sqrt(seeds / (seeds - 1))
            offset = (widened - 1) * (mean_ignoring_nan(one, axis=1) - center)  # [seeds, metrics]
            chosen = generator.integers(seeds, size=(samples, seeds))
            own = np.take_along_axis(own + offset, chosen[:, :, None], axis=1)
        found.append(mean_ignoring_nan(own, axis=1))
    return found


def _draws(queries: int, samples: int, seed: int) -> Iterator[Float[np.ndarray, "block queries"]]:
    """How often each query is drawn, one row a sample, in blocks. Counting draws is eight times faster than `multinomial`."""
    generator = np.random.default_rng(seed)
    for rows in _rows(queries, samples):
        drawn = np.empty((len(rows), queries))
        for row in drawn:
            row[:] = np.bincount(generator.integers(queries, size=queries), minlength=queries)
        yield drawn


def _every_assignment(queries: int) -> Iterator[Float[np.ndarray, "block queries"]]:
    """All 2ⁿ assignments of signs, 1 for + and 0 for −, in blocks."""
    for rows in _rows(queries, 2**queries):
        yield (np.arange(rows.start, rows.stop)[:, None] >> np.arange(queries) & 1).astype(np.float64)


def _drawn_assignments(queries: int, samples: int, seed: int) -> Iterator[Float[np.ndarray, "block queries"]]:
    """Assignments of signs drawn at random, 1 for + and 0 for −, in blocks."""
    generator = np.random.default_rng(seed)
    for rows in _rows(queries, samples):
        packed = generator.integers(256, size=(len(rows), -(-queries // 8)), dtype=np.uint8)
        yield np.unpackbits(packed, axis=1, count=queries).astype(np.float64)


def _count_as_far(
    assignments: Iterable[Float[np.ndarray, "block queries"]], difference: Float[np.ndarray, "queries metrics"]
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


def _matrix(values: np.ndarray, name: str) -> Float[np.ndarray, "queries metrics"]:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2:
        raise ValueError(
            f"{name} has shape {values.shape}, but must be [queries, metrics]; for one metric give {name}[:, None]."
        )
    return values


def _check_samples(samples: int) -> None:
    if samples < 1:
        raise ValueError(f"samples={samples!r} must be at least 1; 1000 is usual for intervals, 10000 for p-values.")
