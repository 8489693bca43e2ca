"""Intervals and p-values: by hand, beside scipy's, and laws that hold for any values."""

import time
import tracemalloc

import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from suprank.evaluation import statistics
from suprank.evaluation.statistics import (
    SeedBootstrap,
    bootstrap_interval,
    holm,
    paired_effect_size,
    paired_randomization,
    paired_randomizations,
)

PLENTY = settings(deadline=None, max_examples=60)
NAN = np.nan
FRACTIONS = st.floats(0, 1, allow_subnormal=False) | st.just(NAN)
MATRICES = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=FRACTIONS)
DIFFERENCES = arrays(np.float64, st.integers(0, 30), elements=st.sampled_from([-1.0, -0.5, -0.1, 0.0, 0.1, 0.3, 1.0, NAN]))


# The paired randomization test, by hand


@pytest.mark.parametrize(
    ("difference", "p"),
    [
        ([0.1, 0.2, 0.3], 2 / 8),  # only +++ and −−−
        ([0.1, 0.2, -0.3], 1.0),  # the mean is 0, and nothing is closer to 0
        ([0.2, 0.2, -0.1], 4 / 8),  # the sums are ±.5 once each, ±.3 once each, ±.1 twice each: .3 is reached by four
        ([1.0, 1.0, 1.0, -1.0], 10 / 16),  # ±4 once each, ±2 four times each, 0 six times: 2 is reached by ten
        ([0.4], 1.0),
        ([0.4, 0.0, NAN], 1.0),
        ([0.0, 0.0], 1.0),
    ],
)
def test_a_p_value_by_hand(difference, p):
    assert paired_randomization(np.array(difference)) == p


def test_a_drawn_p_value_counts_the_observed_assignment_too():
    # Thirty equal differences: 2 of 2³⁰ assignments are as far, and none of 99 draws will be.
    assert paired_randomization(np.full(30, 0.2), samples=99) == 1 / 100


@pytest.mark.parametrize("flipped", range(4))
def test_rounding_does_not_make_an_equal_sum_smaller(flipped):
    difference = np.array([0.1, 0.1, 0.1, 0.1])
    difference[flipped] = 0.4 - 0.3 - 0.2  # −0.1 but for rounding
    assert difference[flipped] != -0.1
    assert paired_randomization(difference) == 10 / 16


def test_the_exact_test_is_made_up_to_as_many_assignments_as_samples():
    ten = np.full(10, 0.5)
    assert paired_randomization(ten, samples=2**10) == 2 / 2**10
    assert paired_randomization(ten, samples=2**10 - 1) != 2 / 2**10


def test_a_query_without_a_difference_does_not_keep_the_test_from_being_exact():
    difference = np.concatenate([[0.1, 0.2, 0.3], np.zeros(50), np.full(50, NAN)])
    assert paired_randomization(difference, samples=100) == 2 / 8


# Beside scipy


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("queries", [2, 5, 9])
def test_exact_p_values_are_scipys(queries, seed):
    difference = np.random.default_rng(seed).normal(0.3, 1, queries)
    theirs = scipy.stats.permutation_test((difference,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert paired_randomization(difference) == pytest.approx(theirs.pvalue)


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.3])
def test_drawn_p_values_are_close_to_the_exact_one(shift):
    difference = np.random.default_rng(1).normal(shift, 1, 15)
    exact = paired_randomization(difference, samples=2**15)
    drawn = paired_randomization(difference, samples=2**15 - 1)
    assert exact != drawn
    assert drawn == pytest.approx(exact, abs=4 * np.sqrt(0.25 / 2**15))


def test_p_values_are_uniform_where_there_is_no_difference():
    difference = np.random.default_rng(0).normal(size=(40, 400))
    p_values = paired_randomizations(difference, samples=1000)
    assert scipy.stats.kstest(p_values, "uniform").pvalue > 0.01


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_intervals_are_scipys_up_to_chance(confidence):
    values = np.random.default_rng(2).beta(2, 1, size=(80, 1))
    theirs = scipy.stats.bootstrap(
        (values[:, 0],), np.mean, n_resamples=20_000, confidence_level=confidence, method="percentile", rng=7
    ).confidence_interval
    (ours,) = bootstrap_interval(values, samples=20_000, confidence=confidence)
    assert ours == pytest.approx([theirs.low, theirs.high], abs=0.1 * scipy.stats.sem(values[:, 0]))


def test_a_95_percent_interval_holds_the_true_mean_about_95_times_in_100():
    drawn = np.random.default_rng(3).uniform(size=(200, 400))  # 400 evaluations of 200 queries; the true mean is ½
    low, high = bootstrap_interval(drawn, samples=400).T
    assert 0.91 < np.mean((low <= 0.5) & (high >= 0.5)) < 0.98


# Laws


@PLENTY
@given(DIFFERENCES)
def test_the_p_value_is_a_share_and_does_not_depend_on_who_is_first(difference):
    p = paired_randomization(difference, samples=300)
    if np.isnan(difference).all():
        assert np.isnan(p)
    else:
        assert 0 < p <= 1
        assert paired_randomization(-difference, samples=300) == p


@PLENTY
@given(DIFFERENCES, st.sampled_from([1e-6, 0.3, 7.0, 1e6]))
def test_the_p_value_does_not_depend_on_the_unit(difference, unit):
    here, there = (paired_randomization(values, samples=300) for values in (difference, unit * difference))
    assert here == there or (np.isnan(here) and np.isnan(there))


@PLENTY
@given(MATRICES, st.integers(0, 3))
def test_an_interval_lies_within_the_values_and_contains_the_narrower_one(values, seed):
    narrow, wide = (bootstrap_interval(values, samples=50, confidence=c, seed=seed) for c in (0.6, 0.9))
    for column, inner, outer in zip(values.T, narrow, wide, strict=True):
        defined = column[~np.isnan(column)]
        if not defined.size:
            assert np.isnan([*inner, *outer]).all()
            continue
        ends = [defined.min() - 1e-12, *outer[:1], *inner, *outer[1:], defined.max() + 1e-12]
        assert ends == sorted(ends)


@PLENTY
@given(MATRICES)
@example(np.array([[0.1, NAN], [0.4, 0.3], [0.9, NAN]]))
def test_a_metrics_interval_does_not_depend_on_its_company(values):
    together = bootstrap_interval(values, samples=50)
    alone = [bootstrap_interval(values[:, [column]], samples=50)[0] for column in range(values.shape[1])]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-12)


def test_a_metrics_p_value_does_not_depend_on_its_company():
    difference = np.random.default_rng(4).normal(0.05, 1, size=(50, 5))
    difference[5:, 2] = 0  # one that is exact among others that are drawn
    alone = [paired_randomization(column) for column in difference.T]
    assert paired_randomizations(difference).tolist() == alone


@pytest.mark.parametrize("block", [1, 100, 10**9])
def test_blocks_change_nothing(block, monkeypatch):
    generator = np.random.default_rng(5)
    values = generator.uniform(size=(24, 3))
    small, large = generator.normal(0.2, 1, 8), generator.normal(0.2, 1, 64)
    expected = bootstrap_interval(values, samples=40), paired_randomization(small), paired_randomization(large, samples=2000)
    monkeypatch.setattr(statistics, "_BLOCK", block)
    np.testing.assert_allclose(bootstrap_interval(values, samples=40), expected[0], rtol=0, atol=1e-12)
    assert paired_randomization(small) == expected[1]
    assert paired_randomization(large, samples=2000) == pytest.approx(expected[2], abs=0.05)


@PLENTY
@given(arrays(np.float64, st.integers(0, 8), elements=FRACTIONS))
def test_holms_p_values_are_no_smaller_keep_their_order_and_cost_no_more_than_bonferronis(p_values):
    corrected = holm(p_values)
    made = ~np.isnan(p_values)
    assert (np.isnan(corrected) == ~made).all()
    assert (corrected[made] >= p_values[made]).all()
    assert (corrected[made] <= np.minimum(1, made.sum() * p_values[made])).all()
    assert (np.diff(corrected[made][np.argsort(p_values[made])]) >= 0).all()


def test_holm_by_hand():
    # Sorted: .01·4, .02·3, .03·2 (no smaller than the one before), .5·1; NaN is no test.
    assert holm(np.array([0.5, 0.02, NAN, 0.01, 0.03])) == pytest.approx([0.5, 0.06, NAN, 0.04, 0.06], nan_ok=True)


# Edges


def test_a_query_without_a_value_is_left_out_of_that_metric_alone():
    values = np.array([[0.2, 0.2], [0.2, NAN], [0.2, 0.2], [NAN, 1.0]])
    of_first, of_second = bootstrap_interval(values, samples=500)
    assert of_first == pytest.approx([0.2, 0.2])
    assert of_second == pytest.approx([0.2, 1.0])


def test_one_query_has_an_interval_without_width():
    assert bootstrap_interval(np.array([[0.3]])) == pytest.approx(np.array([[0.3, 0.3]]))


def test_a_metric_that_is_never_defined_has_no_interval():
    values = np.array([[NAN, 0.5], [NAN, 0.5]])
    assert bootstrap_interval(values) == pytest.approx(np.array([[NAN, NAN], [0.5, 0.5]]), nan_ok=True)


def test_without_queries_there_is_no_interval_and_no_p_value():
    assert np.isnan(bootstrap_interval(np.empty((0, 2)))).all()
    assert bootstrap_interval(np.empty((3, 0))).shape == (0, 2)
    assert np.isnan(paired_randomizations(np.empty((0, 2)))).all()
    assert np.isnan(paired_randomization(np.array([NAN, NAN])))
    assert holm(np.empty(0)).shape == (0,)


def test_the_seed_decides():
    values = np.random.default_rng(6).uniform(size=(50, 2))
    assert (bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)).all()
    assert (bootstrap_interval(values, seed=1) != bootstrap_interval(values, seed=2)).all()
    centered = values[:, 0] - 0.5
    assert paired_randomization(centered, seed=1) == paired_randomization(centered, seed=1)
    assert paired_randomization(centered, seed=1) != paired_randomization(centered, seed=2)


@pytest.mark.parametrize("confidence", [0, 1, 95, NAN])
def test_a_confidence_is_a_share(confidence):
    with pytest.raises(ValueError, match="strictly between 0 and 1; try 0.95"):
        bootstrap_interval(np.ones((2, 1)), confidence=confidence)


def test_what_has_the_wrong_shape_or_no_samples_is_refused():
    with pytest.raises(
        ValueError, match=r"shape \(3,\), but must be \[queries, metrics\]; for one metric give values\[:, None\]"
    ):
        bootstrap_interval(np.ones(3))
    with pytest.raises(ValueError, match=r"shape \(3, 1\), but must be \[queries\]"):
        paired_randomization(np.ones((3, 1)))
    with pytest.raises(ValueError, match="samples=0 must be at least 1"):
        bootstrap_interval(np.ones((2, 1)), samples=0)
    with pytest.raises(ValueError, match="samples=0 must be at least 1"):
        paired_randomization(np.ones(3), samples=0)


# Speed and memory


def test_intervals_of_many_queries_take_little_time_and_memory_that_samples_do_not_add_to():
    values = np.random.default_rng(7).uniform(size=(20_000, 10))  # the draws of all samples at once would take 256 MB
    tracemalloc.start()
    start = time.process_time()
    bootstrap_interval(values, samples=1600)
    seconds, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 10  # half a second on an idle core
    assert peak < 8 * values.nbytes + 80 * 2**20


# Queries and seeds


def one_metric(values):
    """`[seeds, queries]` as `[seeds, queries, 1]`."""
    return np.asarray(values, dtype=np.float64)[:, :, None]


def test_drawn_seeds_by_hand():
    # One query; seeds 0.4 and 0.6 are moved √2 times as far from their mean: the drawn means are 0.5 − 0.1·√2, 0.5 and
    # 0.5 + 0.1·√2, with probabilities ¼, ½ and ¼, so that their variance is 0.01 = 0.02/2, that of a mean of two seeds.
    drawn = SeedBootstrap([one_metric([[0.4], [0.6]]), one_metric([[0.1]])], samples=4000)
    values, counts = np.unique(drawn._samples[0].round(9), return_counts=True)
    np.testing.assert_allclose(values, [0.5 - 0.1 * 2**0.5, 0.5, 0.5 + 0.1 * 2**0.5])
    np.testing.assert_allclose(counts / 4000, [0.25, 0.5, 0.25], atol=0.03)
    assert drawn._samples[0].var() == pytest.approx(0.01, rel=0.1)
    found = drawn.difference(0, 1, 0)
    assert found.difference == pytest.approx(0.4)
    # The variance is known from two seeds alone: one degree of freedom, with which 0.4/√0.01 has p = 0.16, not 0.0001.
    assert found.low < 0 < 0.8 < found.high
    assert found.p_value == pytest.approx(2 * scipy.stats.t.sf(0.4 / 0.01**0.5, df=1), abs=0.05)


def test_with_one_seed_it_is_scipys_paired_bootstrap_over_queries():
    random = np.random.default_rng(0)
    first, second = random.uniform(0, 1, (2, 60))
    second += 0.3 * first
    found = SeedBootstrap([one_metric([first]), one_metric([second])], samples=4000).difference(0, 1, 0)
    expected = scipy.stats.bootstrap(
        (first, second), lambda a, b, axis: (a - b).mean(axis), paired=True, method="percentile", n_resamples=4000, rng=0
    ).confidence_interval
    assert (found.low, found.high) == (pytest.approx(expected.low, abs=0.01), pytest.approx(expected.high, abs=0.01))
    # The bootstrap test is about the t-test of the differences.
    assert found.p_value == pytest.approx(scipy.stats.ttest_rel(first, second).pvalue, abs=0.02)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_alike_systems_differ_in_one_case_of_twenty_however_few_their_seeds(seeds):
    # Seeds vary much more than queries, where the test is about Welch's t-test of the means of the seeds.
    random, cases = np.random.default_rng(2), 500  # as metrics, which share the draws
    systems = [random.normal(0, 1, (seeds, 1, cases)) + random.normal(0, 0.1, (seeds, 5, cases)) for _ in range(2)]
    drawn = SeedBootstrap(systems, samples=1000)
    p_values = np.array([drawn.difference(0, 1, case).p_value for case in range(cases)])
    assert 0.01 <= np.mean(p_values < 0.05) <= 0.08


def test_the_spread_is_that_over_queries_and_over_seeds():
    # v = query + seed: the variance of a difference of means is Var(d)/n over queries and s²/S over seeds, for both systems.
    random = np.random.default_rng(1)
    query, seeds = random.normal(0, 0.2, (2, 400)), (random.normal(0, 0.05, 4), random.normal(0, 0.02, 3))
    systems = [one_metric(offset[:, None] + own) for offset, own in zip(seeds, query, strict=True)]
    drawn = SeedBootstrap(systems, samples=6000)
    spread = (drawn._samples[0] - drawn._samples[1]).var()
    expected = (query[0] - query[1]).var(ddof=1) / 400 + seeds[0].var(ddof=1) / 4 + seeds[1].var(ddof=1) / 3
    assert spread == pytest.approx(expected, rel=0.06)
    found = drawn.difference(0, 1, 0)
    assert found.difference == pytest.approx(float(systems[0].mean() - systems[1].mean()))
    assert found.low < found.difference < found.high
    assert drawn.difference(1, 0, 0).p_value == found.p_value, "either way"


def test_a_system_does_not_differ_from_itself_and_undefined_values_are_left_out():
    values = np.array([[0.2, NAN, 0.4, 0.9], [0.3, NAN, 0.1, NAN]])
    drawn = SeedBootstrap([one_metric(values), one_metric(values), one_metric([[NAN] * 4])], samples=200)
    assert drawn.means[0] == pytest.approx((0.5 + 0.2) / 2)
    same = drawn.difference(0, 1, 0)
    assert (same.difference, same.effect_size, same.p_value) == (0, 0, 1)
    assert all(np.isnan(drawn.difference(0, 2, 0)))
    with pytest.raises(ValueError, match=r"must be \[seeds, queries, metrics\]"):
        SeedBootstrap([one_metric(values), one_metric(values[:, :3])])


def test_effect_sizes_by_hand():
    assert paired_effect_size(np.array([0.1, 0.3, NAN])) == pytest.approx(0.2 / np.std([0.1, 0.3], ddof=1))
    assert paired_effect_size(np.zeros(3)) == 0
    assert np.isnan(paired_effect_size(np.array([0.5, 0.5])))
    assert np.isnan(paired_effect_size(np.array([0.5])))


def test_holm_by_hand_on_a_table_of_six():
    # Sorted: .001·6, .008·5, .012·4 → .048, .02·3, .04·2, .5·1; no corrected value is below the one before.
    found = holm(np.array([0.02, 0.001, 0.5, 0.008, 0.04, 0.012]))
    np.testing.assert_allclose(found, [0.06, 0.006, 0.5, 0.04, 0.08, 0.048])
