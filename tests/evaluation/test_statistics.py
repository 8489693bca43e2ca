"""Intervals and p-values: by hand, beside scipy's and plain loops, and laws that hold for any values."""

import itertools
import time
import tracemalloc

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from suprank.evaluation import statistics
from suprank.evaluation.statistics import (
    MIN_SAMPLES,
    holm,
    mean_intervals,
    needed_samples,
    paired_effect_size,
    paired_randomizations,
    seed_difference,
    smallest_p,
    student_p_value,
    student_quantile,
)
from suprank.evaluation.units import MIN_UNITS

PLENTY = settings(deadline=None, max_examples=60)
NAN = np.nan
FRACTIONS = st.floats(0, 1, allow_subnormal=False) | st.just(NAN)
STEPS = st.sampled_from([-1.0, -0.5, -0.1, 0.0, 0.1, 0.3, 1.0, NAN])


@st.composite
def clustered(draw, elements=STEPS, max_units=14):
    """The values of a metric, and the unit of each query: mostly enough units, with a few queries each."""
    units = draw(st.integers(6, max_units))
    further = draw(arrays(np.int64, st.integers(0, 25), elements=st.integers(-1, units - 1)))
    return draw(arrays(np.float64, units + len(further), elements=elements)), np.append(np.arange(units), further)


def p_value(difference, units=None, **options):
    """The p-value of one metric; without `units` each query is one."""
    difference = np.asarray(difference, dtype=float)
    units = np.arange(len(difference)) if units is None else np.asarray(units)
    return paired_randomizations(difference[:, None], units, **options)[0]


def interval(values, units=None, **options):
    """The interval of one metric's mean; without `units` each query is one."""
    values = np.asarray(values, dtype=float)
    return mean_intervals(values[:, None], np.arange(len(values)) if units is None else np.asarray(units), **options)[0]


def same(one, other, **tolerance):
    return one == pytest.approx(other, nan_ok=True, **tolerance)


# The paired randomization test, by hand


@pytest.mark.parametrize(
    ("difference", "p"),
    [
        ([0.1] * 8, 2 / 256),  # only eight + and eight −
        ([1.0] * 7 + [-1.0], 18 / 256),  # ±8 once each, ±6 eight times each: 6 is reached by eighteen
        ([1.0] * 4 + [-1.0] * 4, 1.0),  # the mean is 0, and nothing is closer to 0
        ([0.2, 0.2, -0.1] + [0.0] * 5, 4 / 8),  # units without a difference count as units, and change nothing
        ([0.4] + [0.0] * 7, 1.0),
        ([0.0] * 8, 1.0),
        ([0.1] * 7, NAN),  # too few
        ([0.1] * 7 + [NAN], NAN),
    ],
)
def test_a_p_value_by_hand(difference, p):
    assert same(p_value(difference), p)


def test_queries_of_a_unit_change_their_signs_together():
    # Two queries of each of nine classes, all better: 2 of 2⁹ assignments are as far, not 2 of 2¹⁸.
    assert p_value(np.full(18, 0.1), np.arange(18) // 2) == 2 / 2**9
    # A class whose two queries cancel changes no sum.
    assert p_value([*[0.1] * 16, 0.3, -0.3], np.arange(18) // 2) == 2 / 2**8


def test_a_query_without_a_unit_or_a_value_is_left_out():
    difference, units = [*[0.1] * 9, NAN, 5.0], [*range(9), 3, -1]
    assert p_value(difference, units) == 2 / 2**9


def test_a_drawn_p_value_counts_the_observed_assignment_too():
    # Thirty equal differences: 2 of 2³⁰ assignments are as far, and none of 99 draws will be.
    assert p_value(np.full(30, 0.2), samples=99) == 1 / 100


@pytest.mark.parametrize("flipped", range(8))
def test_rounding_does_not_make_an_equal_sum_smaller(flipped):
    difference = np.full(8, 0.1)
    difference[flipped] = 0.4 - 0.3 - 0.2  # −0.1 but for rounding
    assert difference[flipped] != -0.1
    assert p_value(difference) == 18 / 256


def test_the_exact_test_is_made_up_to_as_many_assignments_as_samples():
    ten = np.full(10, 0.5)
    assert p_value(ten, samples=2**10) == smallest_p(10, 2**10) == 2 / 2**10
    assert p_value(ten, samples=2**10 - 1) != 2 / 2**10
    assert smallest_p(10, 2**10 - 1) == 1 / 2**10


def test_a_unit_without_a_difference_does_not_keep_the_test_from_being_exact():
    difference = np.concatenate([[0.1, 0.2, 0.3], np.zeros(50), np.full(50, NAN)])
    assert p_value(difference, samples=100) == 2 / 8


def test_seven_units_have_no_p_value_and_no_interval_and_eight_do():
    queries = np.arange(160)
    values = np.random.default_rng(0).uniform(0, 1, 160)
    for units, has in ((queries % (MIN_UNITS - 1), False), (queries % MIN_UNITS, True)):
        assert np.isfinite(p_value(values, units)) == has
        assert np.isfinite(interval(values, units)).all() == has


def test_enough_samples_are_drawn_for_holms_correction_over_hundreds_of_rows_to_reach_1_percent():
    assert needed_samples(1) == MIN_SAMPLES
    queries = np.random.default_rng(1)
    difference = queries.normal(0, 1, (40, 700))
    difference[:, 0] = 1.0  # one row in which every unit is better
    p_values = paired_randomizations(difference, np.arange(40))
    assert p_values[0] == smallest_p(40, needed_samples(700))
    assert holm(p_values)[0] <= 0.01
    assert holm(np.full(700, smallest_p(40, MIN_SAMPLES)))[0] > 0.05, "which the usual number of samples cannot"


# Beside scipy, and beside brute force


def brute_force(difference, units):
    """The share of all assignments of signs to units whose sum is as far from 0 as the observed one."""
    kept = [(value, unit) for value, unit in zip(difference, units, strict=True) if unit >= 0 and value == value]
    sums = [sum(value for value, unit in kept if unit == one) for one in sorted({unit for _, unit in kept})]
    if len(sums) < MIN_UNITS:
        return NAN
    far = [
        abs(sum(sign * one for sign, one in zip(signs, sums, strict=True))) >= abs(sum(sums)) - 1e-9
        for signs in itertools.product((1, -1), repeat=len(sums))
    ]
    return sum(far) / len(far)


@settings(PLENTY, max_examples=30)
@given(clustered(max_units=11))
def test_exact_p_values_are_those_of_all_signs_of_all_units(values):
    difference, units = values
    assert same(p_value(difference, units), brute_force(difference, units), abs=0, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("queries", [8, 11, 13])
def test_exact_p_values_of_single_queries_are_scipys(queries, seed):
    difference = np.random.default_rng(seed).normal(0.3, 1, queries)
    theirs = scipy.stats.permutation_test((difference,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert p_value(difference) == pytest.approx(theirs.pvalue)


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.3])
def test_drawn_p_values_are_close_to_the_exact_one(shift):
    difference = np.random.default_rng(1).normal(shift, 1, 15)
    exact = p_value(difference, samples=2**15)
    drawn = p_value(difference, samples=2**15 - 1)
    assert exact != drawn
    assert drawn == pytest.approx(exact, abs=4 * np.sqrt(0.25 / 2**15))


def test_p_values_are_uniform_where_units_rise_and_fall_together():
    random = np.random.default_rng(0)
    units = np.repeat(np.arange(40), 5)
    difference = random.normal(size=(40, 400))[units] + random.normal(size=(200, 400))
    p_values = paired_randomizations(difference, units, samples=1000)
    assert scipy.stats.kstest(p_values, "uniform").pvalue > 0.01
    assert np.mean(paired_randomizations(difference, np.arange(200), samples=1000) < 0.05) > 0.2, "not so queries"


def jackknife(values, units, confidence=0.95, *, skewed):
    """mean ± t·√Σ(mean − mean without a unit)², or with Hall's g(±t) in place of ±t, with plain loops and scipy's t."""
    kept = [(value, unit) for value, unit in zip(values, units, strict=True) if unit >= 0 and value == value]
    names = sorted({unit for _, unit in kept})
    if len(names) < MIN_UNITS:
        return NAN, NAN
    mean = sum(value for value, _ in kept) / len(kept)
    changes = []
    for name in names:
        others = [value for value, unit in kept if unit != name]
        changes.append(mean - sum(others) / len(others))
    variance = sum(change**2 for change in changes)
    sizes = [sum(unit == name for _, unit in kept) for name in names]
    freedom = max(1, sum(sizes) ** 2 / sum(size**2 for size in sizes) - 1)
    t = scipy.stats.t.ppf((1 + confidence) / 2, freedom)
    skewness = sum(change**3 for change in changes) / variance**1.5 if skewed and variance else 0
    if abs(skewness) < 1e-9:
        return mean - t * variance**0.5, mean + t * variance**0.5
    low, high = (3 / skewness * (np.cbrt(1 + skewness * (end - skewness / 6)) - 1) for end in (t, -t))
    return mean - low * variance**0.5, mean - high * variance**0.5


@PLENTY
@given(clustered(FRACTIONS), st.sampled_from([0.5, 0.9, 0.95, 0.99]), st.booleans())
def test_intervals_are_a_jackknife_over_units_with_students_t(values, confidence, skewed):
    found = interval(*values, confidence=confidence, skewed=skewed)
    assert same(found, jackknife(*values, confidence, skewed=skewed), rel=1e-5, abs=1e-9)


def test_a_skewed_mean_has_a_longer_interval_on_the_side_of_the_few():
    values = np.r_[np.full(36, 0.9), np.full(4, 0.1)]  # four classes are hard
    low, high = interval(values)
    assert values.mean() - low > 1.5 * (high - values.mean()) > 0
    assert interval(1 - values) == pytest.approx((1 - high, 1 - low))
    even = interval(values, skewed=False)
    assert even.mean() == pytest.approx(values.mean())


@pytest.mark.parametrize("size", [1, 4])
def test_intervals_of_units_of_one_size_are_those_of_a_t_test_of_their_means(size):
    # Σ(mean − mean without a unit)² = s²/(n − 1) for n units of one size, a bit more than the s²/n of the t-test.
    means = np.random.default_rng(2).beta(2, 1, 30)
    theirs = scipy.stats.t.interval(0.95, 29, means.mean(), means.std(ddof=1) / np.sqrt(29))
    found = interval(np.repeat(means, size), np.repeat(np.arange(30), size), skewed=False)
    assert found == pytest.approx(theirs, rel=1e-5)


def test_a_95_percent_interval_holds_the_mean_of_new_classes_about_95_times_in_100():
    random = np.random.default_rng(3)
    units = np.repeat(np.arange(20), 10)
    drawn = 0.5 + random.normal(0, 0.2, (20, 1000))[units] + random.normal(0, 0.2, (200, 1000))
    covered = {}
    for name, own in (("classes", units), ("queries", np.arange(200))):
        low, high = mean_intervals(drawn, own).T
        covered[name] = np.mean((low <= 0.5) & (high >= 0.5))
    assert 0.93 < covered["classes"] < 0.97
    assert covered["queries"] < 0.8, "what intervals over queries would claim"


# Laws


@PLENTY
@given(clustered())
def test_the_p_value_is_a_share_and_does_not_depend_on_who_is_first(values):
    difference, units = values
    p = p_value(difference, units, samples=300)
    measured = len({unit for value, unit in zip(*values, strict=True) if unit >= 0 and value == value})
    if measured < MIN_UNITS:
        assert np.isnan(p)
    else:
        assert 0 < p <= 1
        assert p_value(-difference, units, samples=300) == p


@PLENTY
@given(clustered(), st.sampled_from([1e-6, 0.3, 7.0, 1e6]))
def test_the_p_value_does_not_depend_on_the_scale(values, scale):
    difference, units = values
    assert same(p_value(difference, units, samples=300), p_value(scale * difference, units, samples=300), rel=0, abs=0)


@PLENTY
@given(clustered(max_units=12), st.data())
def test_neither_the_order_of_queries_nor_the_numbers_of_units_matter(values, data):
    difference, units = values
    order = np.array(data.draw(st.permutations(range(len(difference)))), dtype=np.int64)
    numbers = np.array([*data.draw(st.permutations(range(50, 62))), -1])
    other = difference[order], numbers[units][order]
    assert same(p_value(*other), p_value(*values), rel=0, abs=1e-12)
    assert same(interval(*other), interval(*values), abs=1e-9)


@PLENTY
@given(clustered(), st.integers(2, 4))
def test_more_images_like_those_of_each_class_add_no_certainty(values, times):
    difference, units = values
    repeated = np.tile(difference, times), np.tile(units, times)
    assert same(p_value(*repeated, samples=300), p_value(*values, samples=300), rel=0, abs=0)
    assert same(interval(*repeated), interval(*values), abs=1e-9)


@PLENTY
@given(clustered(FRACTIONS))
def test_an_interval_contains_the_mean_and_the_narrower_interval(values):
    narrow, wide = (interval(*values, confidence=c) for c in (0.6, 0.9))
    assume(not np.isnan(narrow).any())
    mean = np.nanmean(values[0][values[1] >= 0])
    ends = [wide[0] - 1e-12, narrow[0], mean, narrow[1], wide[1] + 1e-12]
    assert ends[0] <= ends[1] <= ends[2] + 1e-12
    assert ends[2] - 1e-12 <= ends[3] <= ends[4]


def test_a_metric_does_not_depend_on_its_company():
    random = np.random.default_rng(4)
    values = random.normal(0.05, 1, size=(100, 5))
    values[10:, 2] = 0  # one that is exact among others that are drawn
    values[random.uniform(size=(100, 5)) < 0.1] = NAN
    units = random.integers(-1, 50, 100)
    assert paired_randomizations(values, units).tolist() == [p_value(column, units) for column in values.T]
    np.testing.assert_allclose(mean_intervals(values, units), [interval(column, units) for column in values.T], rtol=1e-12)


@pytest.mark.parametrize("block", [1, 100, 10**9])
def test_blocks_change_nothing(block, monkeypatch):
    random = np.random.default_rng(5)
    small, large = random.normal(0.2, 1, 8), random.normal(0.2, 1, 64)
    expected = p_value(small), p_value(large, samples=2000)
    monkeypatch.setattr(statistics, "_BLOCK", block)
    assert p_value(small) == expected[0]
    assert p_value(large, samples=2000) == pytest.approx(expected[1], abs=0.05)


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
    values = np.tile([0.2, 0.2], (20, 1))
    values[3, 1] = values[7, 0] = NAN
    values[8, 1] = 1.0
    of_first, of_second = mean_intervals(values, np.arange(20))
    assert of_first == pytest.approx([0.2, 0.2])
    assert of_second == pytest.approx(jackknife(values[:, 1], range(20), skewed=True), rel=1e-5)


def test_a_metric_that_is_never_defined_has_no_interval():
    values = np.tile([NAN, 0.5], (8, 1))
    assert mean_intervals(values, np.arange(8)) == pytest.approx(np.array([[NAN, NAN], [0.5, 0.5]]), nan_ok=True)


def test_without_queries_there_is_no_interval_and_no_p_value():
    none = np.empty(0, np.int64)
    assert np.isnan(mean_intervals(np.empty((0, 2)), none)).all()
    assert mean_intervals(np.empty((3, 0)), np.arange(3)).shape == (0, 2)
    assert np.isnan(paired_randomizations(np.empty((0, 2)), none)).all()
    assert paired_randomizations(np.empty((9, 0)), np.arange(9)).shape == (0,)
    assert np.isnan(p_value([NAN] * 9))
    assert holm(np.empty(0)).shape == (0,)


def test_the_seed_decides():
    centered = np.random.default_rng(6).uniform(-0.5, 0.5, 50)
    assert p_value(centered, seed=1) == p_value(centered, seed=1)
    assert p_value(centered, seed=1) != p_value(centered, seed=2)


@pytest.mark.parametrize("confidence", [0, 1, 95, NAN])
def test_a_confidence_is_a_share(confidence):
    with pytest.raises(ValueError, match="strictly between 0 and 1; try 0.95"):
        interval(np.ones(8), confidence=confidence)


def test_what_has_the_wrong_shape_or_no_samples_is_refused():
    with pytest.raises(ValueError, match=r"shape \(3,\) for 3 units, but must be \[queries, metrics\].*give values\[:, None\]"):
        mean_intervals(np.ones(3), np.arange(3))
    with pytest.raises(ValueError, match=r"shape \(3, 1\) for 2 units, .* with a unit for each query"):
        paired_randomizations(np.ones((3, 1)), np.arange(2))
    with pytest.raises(ValueError, match="samples=0 must be at least 1"):
        p_value(np.ones(8), samples=0)


# Speed and memory


def test_inaturalists_queries_take_little_time_and_memory():
    # 60,502 queries in 11,316 classes × 40 metrics, as the budget has it: half a second on an idle core.
    random = np.random.default_rng(7)
    values, units = random.uniform(size=(60_502, 40)), random.integers(11_316, size=60_502)
    tracemalloc.start()
    start = time.process_time()
    mean_intervals(values, units)
    seconds, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 5
    assert peak < 8 * values.nbytes


# Student's t


@pytest.mark.parametrize("freedom", [1, 1.5, 2, 4.3, 10, 99, 12_345.6, 2e6, np.inf])
def test_students_t_is_scipys(freedom):
    for probability in (0.75, 0.9, 0.975, 0.995, 0.9999):
        theirs = scipy.stats.t.ppf(probability, freedom)
        assert student_quantile(probability, freedom) == pytest.approx(theirs, rel=1e-4)
    for value in (0.0, 0.3, 1.96, 5.0, 12.0, 30.0):
        theirs = 2 * scipy.stats.t.sf(value, freedom)
        assert student_p_value(value, freedom) == pytest.approx(theirs, rel=1e-4 if theirs > 1e-9 else 0.1)
        assert student_p_value(-value, freedom) == student_p_value(value, freedom)


# Seeds and queries


def satterthwaite(first, second, units):
    """D, its interval and p, with plain loops over seeds and units and scipy's t; values without NaN."""
    difference = np.mean(first, axis=0) - np.mean(second, axis=0)
    by_units = 0.0
    for unit in set(units.tolist()):
        by_units += (difference.mean() - difference[units != unit].mean()) ** 2
    of_seeds = [np.var([seed.mean() for seed in method], ddof=1) / len(method) for method in (first, second)]
    variance = by_units + sum(of_seeds)
    freedom = variance**2 / sum(one**2 / (len(method) - 1) for one, method in zip(of_seeds, (first, second), strict=True))
    low, high = scipy.stats.t.interval(0.95, freedom, difference.mean(), variance**0.5)
    return difference.mean(), low, high, 2 * scipy.stats.t.sf(abs(difference.mean()) / variance**0.5, freedom)


def test_a_difference_of_seeds_by_hand():
    # The units agree, so that only the seeds vary: the means 0.4 and 0.6 have variance 0.02/2, with one degree of freedom.
    first, second = np.repeat([[0.4], [0.6]], 10, axis=1), np.full((3, 10), 0.1)
    found = seed_difference(first, second, np.arange(10))
    assert found.difference == pytest.approx(0.4)
    half = scipy.stats.t.ppf(0.975, 1) * 0.1
    assert (found.low, found.high) == pytest.approx((0.4 - half, 0.4 + half), rel=1e-5)
    assert found.p_value == pytest.approx(2 * scipy.stats.t.sf(4, 1), rel=1e-4)


def test_seeds_that_agree_leave_the_variance_of_units():
    # The seeds of a method are alike, so that only the units vary: with certain seeds t is normal.
    random = np.random.default_rng(0)
    means = random.normal(0.1, 0.2, 30)
    first, second = np.tile(means, (3, 1)), np.zeros((3, 30))
    found = seed_difference(first, second, np.arange(30))
    error = means.std(ddof=1) / np.sqrt(29)
    assert (found.low, found.high) == pytest.approx(scipy.stats.norm.interval(0.95, means.mean(), error), rel=1e-5)


@PLENTY
@given(st.integers(2, 5), st.integers(2, 5), st.integers(8, 20), st.integers(0, 2**32))
def test_a_difference_of_seeds_is_the_plain_formula(ours, theirs, count, seed):
    random = np.random.default_rng(seed)
    units = np.append(np.arange(count), random.integers(count, size=2 * count))
    first, second = (random.uniform(size=(seeds, 3 * count)) for seeds in (ours, theirs))
    found = seed_difference(first, second, units)
    difference, low, high, p = satterthwaite(first, second, units)
    assert (found.difference, found.low, found.high) == pytest.approx((difference, low, high), rel=1e-4, abs=1e-9)
    assert found.p_value == pytest.approx(p, rel=1e-4, abs=1e-9)
    swapped = seed_difference(second, first, units)
    assert swapped[:3] == pytest.approx((-found.difference, -found.high, -found.low), rel=1e-9, abs=1e-12)
    assert swapped.p_value == pytest.approx(found.p_value, rel=1e-9, abs=1e-12)


def test_one_training_and_too_few_units_have_a_difference_without_interval_and_p():
    random = np.random.default_rng(1)
    three, units = random.uniform(size=(3, 40)), np.arange(40) % 10
    for first, second, own in ((three[:1], three, units), (three, three[:1], units), (three, three + 0.1, units % 7)):
        found = seed_difference(first, second, own)
        assert found.difference == pytest.approx(first.mean() - second.mean())
        assert np.isnan([found.low, found.high, found.p_value]).all()


def test_a_method_does_not_differ_from_itself_and_undefined_values_are_left_out():
    values = np.random.default_rng(2).uniform(size=(2, 12))
    values[:, 3] = NAN
    same_values = seed_difference(values, values, np.arange(12))
    assert (same_values.difference, same_values.effect_size, same_values.p_value) == (0, 0, 1)
    without = np.delete(values, 3, axis=1), np.delete(values**2, 3, axis=1), np.arange(11)
    assert seed_difference(values, values**2, np.arange(12)) == pytest.approx(seed_difference(*without))
    assert all(np.isnan(seed_difference(values, np.full((2, 12), NAN), np.arange(12))))
    with pytest.raises(ValueError, match=r"must be \[seeds, queries\] with one seed or more"):
        seed_difference(values, values[:, :3], np.arange(12))


def test_a_difference_that_is_the_same_for_every_seed_and_unit_is_certain():
    random = np.random.default_rng(3)
    values = np.tile(random.uniform(size=20), (3, 1))
    found = seed_difference(values + 0.1, values, np.arange(20))
    assert (found.low, found.difference, found.high) == pytest.approx((0.1, 0.1, 0.1))
    assert found.p_value == 0
    assert np.isnan(found.effect_size), "not 2e13"


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_alike_methods_differ_in_one_case_of_twenty_at_most_however_few_their_seeds(seeds):
    random, cases = np.random.default_rng(2), 400
    units = np.repeat(np.arange(12), 4)
    wrong = 0
    for _ in range(cases):
        classes = random.normal(0, 0.3, 12)[units]  # shared by all trainings
        first, second = (classes + random.normal(0, 1, (seeds, 1)) + random.normal(0, 0.3, (seeds, 48)) for _ in range(2))
        wrong += seed_difference(first, second, units).p_value < 0.05
    assert wrong / cases <= 0.07


def test_effect_sizes_by_hand():
    assert paired_effect_size(np.array([0.1, 0.3, NAN])) == pytest.approx(0.2 / np.std([0.1, 0.3], ddof=1))
    assert paired_effect_size(np.zeros(3)) == 0
    assert np.isnan(paired_effect_size(np.array([0.5, 0.5])))
    assert np.isnan(paired_effect_size(np.array([0.5])))
    assert np.isnan(paired_effect_size(np.linspace(0, 1, 50) + 0.1 - np.linspace(0, 1, 50))), "equal up to rounding"
