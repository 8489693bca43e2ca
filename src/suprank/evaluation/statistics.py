"""Statistics of means over queries: bootstrap intervals, the paired randomization test, Holm's correction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jaxtyping import Float

_BLOCK = 2**22  # numbers held at once: 32 MiB of float64, whatever the number of samples
# Two sums of the same numbers may differ by rounding, in the sums and in the differences themselves. Closer than this share
# of Σ|d| they are equal. Sums that do differ lie further apart: by 1/n of it for 0/1 metrics, n the number of queries.
_EQUAL = 1e-9


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
