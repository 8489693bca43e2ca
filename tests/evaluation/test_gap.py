"""The decomposability gap and its bounds: by hand, beside loops, and the bounds beside the worst ranking there is."""

import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.evaluation.gap import (
    decomposability_gap,
    gap_bound,
    gap_bound_in_any_order,
    gap_bounds,
    refined_gap_bound,
    refined_gap_bound_in_any_order,
)
from tests import reference

PLENTY = settings(deadline=None, max_examples=60)
SOME = settings(deadline=None, max_examples=25)

TREE = [[0, 0], [0, 0], [1, 0], [2, 1], [2, 1], [3, 1], [4, 2], [1, 0], [0, 0], [2, 1], [-1, 1], [3, 1], [-1, -1]]


def embedded(scores):
    """A query, and items with these cosines to it."""
    cosine = torch.tensor(scores, dtype=torch.float64)
    return torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.stack([cosine, (1 - cosine**2).sqrt()], -1)


def arranged(ranking, low=-0.9, high=0.9):
    """What `decomposability_gap` and `gap_bounds` take, for a ranking such as "A+ B- B+ A-", from the top."""
    places = ranking.split()
    names = sorted({place[:-1] for place in places})
    query, items = embedded(np.linspace(high, low, len(places)).tolist())
    labels = torch.tensor([place.endswith("+") for place in places]).long()
    return {
        "embeddings": query,
        "labels": torch.tensor([1]),
        "batches": [names.index(place[:-1]) for place in places],
        "gallery": items,
        "gallery_labels": labels,
    }


def drawn(count=len(TREE), dim=4, seed=0):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float()


# The gap by hand


@pytest.mark.parametrize(
    ("ranking", "in_batches", "overall"),
    [
        ("A+ A- B+ B-", 1, (1 + 2 / 3) / 2),  # the paper's worst case: whole batches one above the other
        ("A+ B+ A- B-", 1, 1),
        ("A+ B- B+ A-", (1 + 1 / 2) / 2, (1 + 2 / 3) / 2),  # a gap below 0
        ("A- B+ B- A+", (1 / 2 + 1) / 2, (1 / 2 + 2 / 4) / 2),
        ("A+ C- A- B+ B-", 1, (1 + 2 / 4) / 2),  # C has no positive: it does not count among the batches, but overall
        ("A- B- A- C-", math.nan, math.nan),
        ("A+ A- A+ A-", (1 + 2 / 3) / 2, (1 + 2 / 3) / 2),  # a single batch
    ],
)
def test_the_gap_of_one_query_by_hand(ranking, in_batches, overall):
    gap = decomposability_gap(**arranged(ranking))
    assert gap.in_batches == pytest.approx(in_batches, nan_ok=True)
    assert gap.overall == pytest.approx(overall, nan_ok=True)
    assert gap.value == pytest.approx(in_batches - overall, nan_ok=True, abs=1e-12)
    assert gap.queries_left_out == math.isnan(overall)


def test_the_gap_of_a_hit_rate_by_hand():
    assert decomposability_gap(**arranged("A- B+ B- A+"), metric="R@1").value == 1 / 2  # B hits, A and overall do not
    assert decomposability_gap(**arranged("A+ A- B+ B-"), metric="R@1").value == 0


def test_a_metric_that_no_single_query_has_is_refused():
    with pytest.raises(ValueError, match="'AP/mean-of-levels' has no value for a single query"):
        decomposability_gap(**arranged("A+ B+"), metric="AP/mean-of-levels")


def test_queries_without_positives_are_left_out_and_counted():
    gap = decomposability_gap(drawn(5), torch.tensor([0, 0, 1, -1, -1]), 2)
    assert gap.queries_left_out == 3
    assert np.isnan(gap.per_query).tolist() == [False, False, True, True, True]
    assert gap.value == pytest.approx(np.nanmean(gap.per_query))
    nothing = decomposability_gap(drawn(3), torch.tensor([0, 1, 2]), 2)
    assert nothing.queries_left_out == 3
    assert math.isnan(nothing.value)
    assert math.isnan(nothing.overall)


# The gap beside loops


def slow_measure(measure, scores, level, names):
    depth = len(names)
    if measure == "H-AP":
        return reference.h_average_precision(scores, level, reference.tree_relevance(level, depth=depth))
    if measure == "NDCG":
        return reference.ndcg(scores, level, reference.exponential_gain(level))
    name, _, level_name = measure.partition("/")
    lowest = depth - (names.index(level_name) if level_name else 0)
    positive = reference.binary(level, lowest)
    if name == "AP":
        return reference.average_precision(scores, positive)
    order = sorted((-score, own) for score, own in zip(scores, positive, strict=True) if own >= 0)  # ties: lower level first
    return float(any(own for _, own in order[:1])) if max(positive, default=0) > 0 else math.nan


@pytest.mark.parametrize("measure", ["AP", "AP/coarse", "H-AP", "NDCG", "R@1", "R@1/coarse"])
def test_the_gap_equals_its_equation_in_loops(measure):
    names = ["fine", "coarse"]
    embeddings, batches = drawn(), [[3, 0, 4, 7], [1, 2, 12, 5, 6], [11, 8, 9, 10]]
    unit = torch.nn.functional.normalize(embeddings).double()
    expected = []
    for query in range(len(TREE)):

        def value(among, query=query):
            items = [item for item in among if item != query]
            level = [_level(TREE[query], TREE[item]) for item in items]
            scores = [float(unit[query] @ unit[item]) for item in items]
            return slow_measure(measure, scores, level, names)

        found = [value(batch) for batch in batches]
        valid = [one for one in found if not math.isnan(one)]
        expected.append((sum(valid) / len(valid) if valid else math.nan) - value(range(len(TREE))))
    gap = decomposability_gap(embeddings, torch.tensor(TREE), batches, measure, levels=names)
    np.testing.assert_allclose(gap.per_query, expected, atol=1e-6)
    assert gap.queries_left_out == sum(map(math.isnan, expected))
    assert gap.value == pytest.approx(gap.in_batches - gap.overall)


def _level(mine, theirs):
    """As in evaluation: −1 is nobody's label."""
    depth = 0
    for own, other in zip(reversed(mine), reversed(theirs), strict=True):
        if own != other or own < 0:
            break
        depth += 1
    return depth


def test_all_ways_to_give_batches_agree():
    embeddings, labels = drawn(), torch.tensor(TREE)
    parts = [[3, 0, 4, 7], [1, 2, 12, 5], [6, 11, 8, 9], [10]]
    number = np.empty(len(TREE), int)
    for batch, part in enumerate(parts):
        number[part] = 10 * batch  # numbers need not be consecutive
    expected = decomposability_gap(embeddings, labels, parts).per_query
    ways = [map(torch.tensor, parts), tuple(map(np.array, parts)), number, torch.tensor(number), number.tolist()]
    for way in ways:
        np.testing.assert_array_equal(decomposability_gap(embeddings, labels, way).per_query, expected)
    square = np.array([[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(
        decomposability_gap(embeddings[:6], labels[:6], square).per_query,
        decomposability_gap(embeddings[:6], labels[:6], square.tolist()).per_query,
    )


def test_a_batch_size_cuts_shuffled_items_and_keeps_a_smaller_last_batch():
    embeddings, labels = drawn(), torch.tensor(TREE)
    shuffled = np.random.default_rng(3).permutation(len(TREE))
    by_size = decomposability_gap(embeddings, labels, 5, seed=3)
    by_hand = decomposability_gap(embeddings, labels, [shuffled[:5], shuffled[5:10], shuffled[10:]])
    np.testing.assert_array_equal(by_size.per_query, by_hand.per_query)
    assert decomposability_gap(embeddings, labels, np.int64(5), seed=4).value != by_size.value
    assert decomposability_gap(embeddings, labels, 100).value == 0


def test_files_a_small_budget_and_queries_in_pieces_change_nothing(tmp_path, monkeypatch):
    embeddings, labels = drawn(200), torch.arange(200) % 7
    expected = decomposability_gap(embeddings, labels, 32).per_query
    np.save(tmp_path / "embeddings.npy", embeddings.numpy())
    monkeypatch.setattr("suprank.evaluation.gap.measured_gap._ROW_BYTES", 4 * 4 * 33)
    seen = []
    found = decomposability_gap(
        tmp_path / "embeddings.npy", labels, 32, memory_budget=40_000, progress=lambda *step: seen.append(step)
    )
    np.testing.assert_array_equal(found.per_query, expected)
    assert seen[-1] == (400, 400)
    assert sorted(seen) == seen


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        (0, ValueError, "batches=0 is a batch size"),
        (True, TypeError, "batches=True"),
        (2.5, TypeError, "batches=2.5"),
        ([[0, 1], [1, 2, 3]], ValueError, "hold item 1 more than once"),
        ([[0, 3], [1]], ValueError, "each of 4 items once, but lack item 2;"),
        ([[0, 1, 2], [3, 4, -1]], ValueError, "hold items -1, 4, but items are numbered 0 to 3"),
        ([[0, 1, 2, 3], []], ValueError, r"batches\[1\] has shape \(0,\)"),
        ([[0.0, 1.0], [2.0, 3.0]], TypeError, r"batches\[0\] holds float64"),
        ([0, 0, 1], ValueError, "3 batch numbers for 4 items"),
        ([0, 0, -1, 1], ValueError, "holds -1 for item 2"),
        (np.array([0.0, 0, 1, 1]), TypeError, "batches holds float64"),
        ([], ValueError, "lack items 0, 1, 2, 3;"),
    ],
)
def test_batches_that_do_not_cut_the_items_are_refused(batches, error, message):
    for function in (decomposability_gap, gap_bounds):
        with pytest.raises(error, match=message):
            function(drawn(4), torch.tensor([0, 0, 1, 1]), batches)


def test_many_wrong_items_are_counted_and_only_some_named():
    with pytest.raises(ValueError, match=r"lack items 1, 2, 3, 4, 5, \.\.\. \(8 of them\)"):
        decomposability_gap(drawn(9), torch.zeros(9, dtype=torch.long), [[0]])


# The bounds as functions of counts


def slow_bound(positives, negatives):
    """eq:upperBound."""
    total = Fraction(0)
    for b in range(len(positives)):
        for j in range(1, positives[b] + 1):
            rank = j + sum(positives[:b])
            total += Fraction(rank, rank + sum(negatives[:b]))
    return 1 - total / sum(positives)


def slow_refined_bound(positives, negatives, good, bad):
    """eq:upperBoundRefined."""
    total = Fraction(0)
    for b in range(len(positives)):
        for j in range(1, good[b] + 1):
            rank = j + sum(good[:b])
            total += Fraction(rank, rank + sum(bad[:b]))
        for j in range(1, positives[b] - good[b] + 1):
            rank = j + good[b] + sum(positives[:b])
            total += Fraction(rank, rank + sum(negatives[:b]))
    return 1 - total / sum(positives)


def worst_gap(positives, negatives, good=None, bad=None):
    """The largest gap of AP over all rankings in which each batch is perfect, by trying them all.

    With `good` and `bad`, over all assignments of scores: they fall through three zones, s ≥ α, α > s > β and β ≥ s. Good
    positives are in the first, other positives in the second or third, bad negatives in the first or second, and other
    negatives in the third.
    """
    sizes = [p + n for p, n in zip(positives, negatives, strict=True)]

    def zones(b, place):
        if good is None:
            return (0,)
        if place < positives[b]:
            return (0,) if place < good[b] else (1, 2)
        return (0, 1) if place < positives[b] + bad[b] else (2,)

    @functools.cache
    def least(taken, zone):
        """The least Σ rank⁺/rank over the positives that are still to come."""
        above = [min(own, p) for own, p in zip(taken, positives, strict=True)]
        ways = []
        for b, place in enumerate(taken):
            for into in zones(b, place) if place < sizes[b] else ():
                if into >= zone:
                    rest = least((*taken[:b], place + 1, *taken[b + 1 :]), into)
                    precision = Fraction(sum(above) + 1, sum(taken) + 1) if place < positives[b] else 0
                    ways.append(rest + precision)
        return min(ways) if ways else (Fraction(0) if list(taken) == sizes else Fraction(10**9))

    return 1 - least((0,) * len(sizes), 0) / sum(positives)


def orders(*counts):
    """The counts in every order of the batches."""
    return [[[one[b] for b in order] for one in counts] for order in itertools.permutations(range(len(counts[0])))]


@st.composite
def batch_counts(draw, batches=4, most=6):
    """Positives, negatives, good positives and bad negatives of some batches, with at least one positive."""
    number = draw(st.integers(1, batches))
    positives = draw(st.lists(st.integers(0, most), min_size=number, max_size=number).filter(any))
    negatives = draw(st.lists(st.integers(0, most), min_size=number, max_size=number))
    good = [draw(st.integers(0, p)) for p in positives]
    bad = [draw(st.integers(0, n)) for n in negatives]
    return positives, negatives, good, bad


@PLENTY
@given(batch_counts())
def test_the_bounds_equal_their_equations(counts):
    positives, negatives, good, bad = map(np.array, counts)
    assert gap_bound(positives, negatives) == pytest.approx(float(slow_bound(*counts[:2])), abs=1e-14)
    assert refined_gap_bound(positives, negatives, good, bad) == pytest.approx(float(slow_refined_bound(*counts)), abs=1e-14)


def test_many_queries_are_bounded_at_once():
    rng = np.random.default_rng(0)
    positives, negatives = rng.integers(0, 5, (2, 7, 3)), rng.integers(0, 5, (2, 7, 3))
    positives[0, 0] = 0
    good, bad = rng.integers(0, positives + 1), rng.integers(0, negatives + 1)
    plain, refined = gap_bound(positives, negatives), refined_gap_bound(positives, negatives, good, bad)
    assert plain.shape == refined.shape == (2, 7)
    assert np.isnan(plain[0, 0])
    assert np.isnan(refined[0, 0])
    for at in [(0, 1), (1, 6)]:
        assert plain[at] == pytest.approx(float(slow_bound(positives[at].tolist(), negatives[at].tolist())))
        counts = [array[at].tolist() for array in (positives, negatives, good, bad)]
        assert refined[at] == pytest.approx(float(slow_refined_bound(*counts)))


@pytest.mark.parametrize(
    ("counts", "error", "message"),
    [
        (([1], [1], [2], [0]), ValueError, r"good_positives at \(0,\) are 2, but there are only 1 positives"),
        (([1], [1], [0], [3]), ValueError, r"bad_negatives at \(0,\) are 3"),
        (([1], [-1], [0], [0]), ValueError, "negatives holds -1"),
        (([1.0], [1], [0], [0]), TypeError, "positives is float64"),
        (([1], [1, 2], [0], [0]), ValueError, "one shape"),
    ],
)
def test_counts_that_cannot_be_are_refused(counts, error, message):
    for function in (refined_gap_bound, refined_gap_bound_in_any_order):
        with pytest.raises(error, match=message):
            function(*map(np.array, counts))


# What they bound


@pytest.mark.parametrize(("batches", "positives", "negatives"), [(1, 3, 2), (2, 1, 1), (3, 2, 3), (4, 3, 1)])
def test_batches_one_above_the_other_attain_the_plain_bound(batches, positives, negatives):
    ranking = " ".join(f"{b}+ " * positives + f"{b}- " * negatives for b in "ABCD"[:batches])
    gap, bounds = decomposability_gap(**arranged(ranking)), gap_bounds(**arranged(ranking))
    assert gap.in_batches == 1
    assert gap.value == pytest.approx(bounds.plain, abs=1e-14)
    assert gap.value == pytest.approx(float(slow_bound([positives] * batches, [negatives] * batches)), abs=1e-14)


def test_with_unequal_positives_the_plain_bound_can_be_exceeded_in_the_order_given():
    # Two batches of two items each: one of positives only, and one of each kind.
    positives, negatives = np.array([2, 1]), np.array([0, 1])
    assert gap_bound(positives, negatives) == 0
    gap, bounds = decomposability_gap(**arranged("B+ B- A+ A+")), gap_bounds(**arranged("B+ B- A+ A+"))
    assert gap.in_batches == 1
    assert gap.value == pytest.approx(7 / 36)
    assert bounds.plain == 0
    assert bounds.plain_any_order == pytest.approx(7 / 36)


@PLENTY
@given(batch_counts(batches=3, most=3))
def test_the_worst_order_of_the_batches_is_the_worst_ranking_and_any_order_bounds_it(counts):
    positives, negatives, _, _ = counts
    worst = worst_gap(positives, negatives)
    assert worst == max(slow_bound(*order) for order in orders(positives, negatives))
    any_order = float(gap_bound_in_any_order(np.array(positives), np.array(negatives)))
    sizes = [p + n for p, n in zip(positives, negatives, strict=True)]
    if max(sizes) - min(sizes) <= 1:
        assert any_order == pytest.approx(float(worst), abs=1e-14)
    else:
        assert any_order >= float(worst) - 1e-14


def test_the_papers_refined_bound_can_be_exceeded_in_its_own_setting():
    # Batches of one positive and one negative each, all positives good, and the second batch's negative bad.
    counts = [1, 1], [1, 1], [1, 1], [0, 1]
    assert refined_gap_bound(*map(np.array, counts)) == 0
    assert worst_gap(*counts) == Fraction(1, 6)
    # With scores: s ≥ 0.9 for positives, the bad negative between them, the other below 0.6.
    query, items = embedded([0.94, 0.1, 0.98, 0.96])
    labels, batches = torch.tensor([1, 0, 1, 0]), [[0, 1], [2, 3]]
    gap = decomposability_gap(query, [1], batches, gallery=items, gallery_labels=labels)
    bounds = gap_bounds(query, [1], batches, gallery=items, gallery_labels=labels)
    assert gap.in_batches == 1
    assert gap.value == pytest.approx(1 / 6)
    assert bounds.refined == 0
    assert bounds.refined_any_order == pytest.approx(1 / 6)


def test_the_refined_bound_can_be_above_the_plain_one():
    counts = np.array([1, 1]), np.array([1, 1]), np.array([0, 1]), np.array([1, 0])
    assert refined_gap_bound(*counts) == 1 / 4
    assert gap_bound(*counts[:2]) == pytest.approx(1 / 6)
    assert worst_gap(*(count.tolist() for count in counts)) == 0


@SOME
@given(batch_counts(batches=3, most=2))
def test_the_refined_bound_holds_in_the_worst_order_and_any_order_bounds_it(counts):
    worst = worst_gap(*counts)
    in_worst_order = max(slow_refined_bound(*order) for order in orders(*counts))
    assert worst <= in_worst_order
    assert float(refined_gap_bound_in_any_order(*map(np.array, counts))) >= float(worst) - 1e-14


def test_scores_that_attain_the_refined_bound():
    # All positives good but one of the last batch, bad negatives among them, and good negatives above the bad positive.
    batches = [[0.99, 0.98, 0.97, 0.3], [0.96, 0.95, 0.94, 0.2], [0.93, 0.1, -0.5]]
    labels = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0]]
    counts = [2, 2, 2], [2, 2, 1], [2, 2, 1], [1, 1, 0]
    query, items = embedded([*itertools.chain(*batches)])
    given = {
        "batches": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]],
        "gallery": items,
        "gallery_labels": torch.tensor([*itertools.chain(*labels)]),
    }
    gap, bounds = decomposability_gap(query, [1], **given), gap_bounds(query, [1], **given)
    assert gap.in_batches == 1
    assert gap.value == pytest.approx(bounds.refined, abs=1e-14)
    assert bounds.refined == pytest.approx(float(slow_refined_bound(*counts)), abs=1e-14)
    assert bounds.refined < bounds.plain
    assert worst_gap(*counts) == slow_refined_bound(*counts)


def test_where_batches_are_not_ranked_perfectly_the_gap_can_exceed_the_bound():
    ranking = arranged("A- B+ B- A+")
    assert decomposability_gap(**ranking).value == 1 / 4
    assert gap_bounds(**ranking).plain == pytest.approx(1 / 6)


@PLENTY
@given(st.data())
def test_the_gap_is_within_the_bounds_for_any_scores_that_rank_batches_perfectly(data):
    scores, labels, batches = [], [], []
    for batch in range(data.draw(st.integers(1, 4))):
        size = data.draw(st.integers(1, 5))
        positives = data.draw(st.integers(0 if batch else 1, size))
        steps = data.draw(st.lists(st.integers(-19, 19), min_size=size, max_size=size, unique=True))
        scores += [0.05 * step for step in sorted(steps, reverse=True)]
        labels += [1] * positives + [0] * (size - positives)
        batches += [batch] * size
    query, items = embedded(scores)  # scores of different batches may be equal: a positive then stands below
    given = {"batches": batches, "gallery": items, "gallery_labels": torch.tensor(labels)}
    gap = decomposability_gap(query, [1], **given)
    bounds = gap_bounds(query, [1], positive_floor=0.23, negative_ceiling=-0.33, **given)
    assert gap.in_batches == 1
    assert 0 <= gap.value <= bounds.plain_any_order + 1e-12
    assert gap.value <= bounds.refined_any_order + 1e-12


# Bounds from embeddings


def slow_counts(embeddings, labels, batches, floor, ceiling):
    unit = torch.nn.functional.normalize(embeddings)
    found = []
    for query in range(len(unit)):
        rows = []
        for batch in batches:
            others = [item for item in batch if item != query]
            same = [item for item in others if labels[item] == labels[query] >= 0]
            different = [item for item in others if item not in same]
            good = sum(float(unit[query] @ unit[item]) >= floor for item in same)
            bad = sum(float(unit[query] @ unit[item]) > ceiling for item in different)
            rows.append([len(same), len(different), good, bad])
        found.append([list(column) for column in zip(*rows, strict=True)])
    return found


@pytest.mark.parametrize("budget", [None, 70_000, 15_000])
def test_bounds_count_what_each_batch_holds_for_each_query(budget):
    embeddings, labels = drawn(150, dim=3), torch.arange(150) % 9
    labels[::10] = -1
    labels[3] = 77
    batches = [list(range(start, min(start + 40, 150))) for start in range(0, 150, 40)]
    bounds = gap_bounds(embeddings, labels, batches, 0.7, 0.4, memory_budget=budget, progress=False)
    counts = slow_counts(embeddings, labels.tolist(), batches, 0.7, 0.4)
    valid = [bool(sum(positives)) for positives, *_ in counts]
    assert bounds.queries_left_out == valid.count(False) == 16
    for name, slow in (("plain", lambda *four: slow_bound(*four[:2])), ("refined", slow_refined_bound)):
        expected = [float(slow(*four)) if good else math.nan for four, good in zip(counts, valid, strict=True)]
        np.testing.assert_allclose(bounds.per_query[name], expected, atol=1e-13)
        assert getattr(bounds, name) == pytest.approx(np.nanmean(expected))
        assert (bounds.per_query[f"{name}_any_order"][valid] >= bounds.per_query[name][valid] - 1e-13).all()


def test_a_pair_at_the_threshold_keeps_to_it_as_in_the_loss():
    query, items = embedded([1.0, 0.0, 1.0, 0.0])
    given = {"batches": [[0, 1], [2, 3]], "gallery": items, "gallery_labels": torch.tensor([1, 0, 1, 0])}
    assert gap_bounds(query, [1], positive_floor=1.0, negative_ceiling=0.0, **given).refined == 0
    assert gap_bounds(query, [1], positive_floor=1.01, negative_ceiling=0.0, **given).refined == pytest.approx(1 / 6)
    assert gap_bounds(query, [1], positive_floor=1.0, negative_ceiling=-0.01, **given).refined == pytest.approx(1 / 6)


def test_thresholds_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match="positive_floor=0.6 must be above negative_ceiling=0.6"):
        gap_bounds(drawn(4), torch.tensor([0, 0, 1, 1]), 2, 0.6, 0.6)
