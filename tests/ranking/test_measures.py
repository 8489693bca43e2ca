"""Measures of ranks: the paper's numbers, its equations, other libraries' values, and laws that hold for any list."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.ranking import (
    Sigmoid,
    SupStep,
    at_least,
    average_precision,
    average_precision_at,
    exponential_gain,
    heaviside,
    hierarchical_average_precision,
    hierarchical_precision_at,
    hierarchical_recall_at,
    hit_rate_at,
    ideal_dcg,
    ndcg,
    ranks,
    recall_at,
    tree_relevance,
    weighted_ap_relevance,
)
from tests import reference
from tests.ranking.random_rankings import PLENTY, SOME, random_ranking, rankings


def from_the_top(*level):
    """A list in its order: scores that fall, and the level of each item."""
    return torch.linspace(0.5, -0.5, len(level), dtype=torch.float64)[None], torch.tensor([level])


def exact(scores, level, relevance=None):
    return ranks(scores, level, relevance, minus=heaviside)


def ap_at(scores, level, current):
    """AP at a level: its positives are the items of that level or deeper."""
    binary = at_least(level, current)
    return average_precision(exact(scores, binary), binary > 0)


# Worked examples


@pytest.mark.parametrize(("levels", "h_ap"), [((2, 3, 0, 1, 3), 0.7833), ((1, 3, 0, 2, 3), 0.6722)])
def test_the_papers_two_lists_have_one_ap_and_two_h_aps(levels, h_ap):
    scores, level = from_the_top(*levels)
    relevance = level / 3
    assert hierarchical_average_precision(exact(scores, level, relevance), relevance).item() == pytest.approx(h_ap, abs=5e-5)
    fine = at_least(level, 3)
    assert average_precision(exact(scores, fine), fine > 0).item() == pytest.approx(0.45)  # (1/2 + 2/5) / 2


def test_ap_by_hand():
    scores, level = from_the_top(1, 0, 1, 0, 0, 1)
    assert average_precision(exact(scores, level), level > 0).item() == pytest.approx((1 / 1 + 2 / 3 + 3 / 6) / 3)


def test_ap_at_k_divides_by_what_could_be_in_the_top_k():
    scores, level = from_the_top(1, 0, 1, 0, 0, 1)
    found, positive = exact(scores, level), level > 0
    assert average_precision_at(found, positive, 1).item() == pytest.approx(1.0)
    assert average_precision_at(found, positive, 2).item() == pytest.approx(1 / 2)
    assert average_precision_at(found, positive, 4).item() == pytest.approx((1 + 2 / 3) / 3)
    assert average_precision_at(found, positive, 100).item() == pytest.approx((1 + 2 / 3 + 3 / 6) / 3)


def test_map_at_r_is_ap_at_each_querys_own_number_of_positives():
    scores = torch.linspace(1, 0, 6).repeat(2, 1)
    level = torch.tensor([[1, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 1]])
    found = average_precision_at(exact(scores, level), level > 0, (level > 0).sum(-1))
    assert found.tolist() == pytest.approx([(1 + 2 / 3) / 3, (1 / 2) / 2])


def test_recall_and_hit_rate_by_hand():
    scores, level = from_the_top(0, 1, 1, 0, 1)
    found, positive = exact(scores, level), level > 0
    assert [recall_at(found, positive, k).item() for k in (1, 2, 3, 4, 5)] == pytest.approx([0, 1 / 2, 2 / 3, 2 / 3, 1])
    assert [hit_rate_at(found, positive, k).item() for k in (1, 2, 3, 4, 5)] == [0, 1, 1, 1, 1]


def test_h_precision_and_h_recall_by_hand():
    scores, level = from_the_top(1, 2, 0, 2)
    relevance = torch.tensor([[0.5, 1.0, 0.0, 1.0]], dtype=torch.float64)
    found = exact(scores, level, relevance)
    recalls = [hierarchical_recall_at(found, relevance, k).item() for k in (1, 2, 3, 4)]
    precisions = [hierarchical_precision_at(found, relevance, k).item() for k in (1, 2, 3, 4)]
    assert recalls == pytest.approx([0.5 / 2.5, 1.5 / 2.5, 1.5 / 2.5, 1])
    assert precisions == pytest.approx([1, 1.5 / 2, 2 / 3, 2.5 / 4])  # the third item is a negative: the share of positives


def test_ndcg_by_hand():
    scores, level = from_the_top(1, 0, 2)
    expected = (1 / math.log2(2) + 3 / math.log2(4)) / (3 / math.log2(2) + 1 / math.log2(3))
    assert ndcg(exact(scores, level), exponential_gain(level, dtype=torch.float64)).item() == pytest.approx(expected)


def test_ap_of_each_level_by_hand():
    scores, level = from_the_top(1, 2, 0, 2)
    assert [ap_at(scores, level, current).item() for current in (1, 2)] == pytest.approx(
        [(1 + 1 + 3 / 4) / 3, (1 / 2 + 2 / 4) / 2]
    )


def test_a_perfect_order_can_miss_h_ap_one_where_relevance_is_not_monotone():
    _, level = from_the_top(*[2] * 20, *[1] * 3)
    scores, relevance = torch.linspace(1, 0, 23, dtype=torch.float64)[None], tree_relevance(level, dtype=torch.float64)
    value = hierarchical_average_precision(exact(scores, level, relevance), relevance).item()
    assert value == pytest.approx(0.788, abs=5e-4)  # as measured on the authors' code (authors-code.md 4c)


def test_two_levels_of_equal_relevance_are_not_counted_twice():
    scores, level = from_the_top(*[2] * 8, *[1] * 4)  # 1/8 = 0.5/4; the authors' code finds 2.0 here
    relevance = tree_relevance(level, dtype=torch.float64)
    assert hierarchical_average_precision(exact(scores, level, relevance), relevance).item() == pytest.approx(1.0)


def test_a_tie_with_a_negative_is_an_error():
    scores, level = torch.zeros(1, 4), torch.tensor([[1, 0, 0, 1]])
    found, positive = exact(scores, level), level > 0
    assert average_precision(found, positive).item() == pytest.approx(2 / 4)
    assert hit_rate_at(found, positive, 3).item() == 0
    assert recall_at(found, positive, 4).item() == 1


# The equations, as loops


@PLENTY
@given(drawn=rankings(), cut=st.integers(1, 13))
def test_exact_measures_equal_the_reference(drawn, cut):
    scores, level = drawn
    relevance = tree_relevance(level, depth=4, dtype=torch.float64)
    gain = exponential_gain(level, dtype=torch.float64)
    found, positive = exact(scores, level, relevance), level > 0
    binary = at_least(level, 1)
    flat = exact(scores, binary)
    measured = {
        "AP": average_precision(flat, positive),
        "AP@k": average_precision_at(flat, positive, cut),
        "TR@k": recall_at(flat, positive, cut),
        "R@k": hit_rate_at(flat, positive, cut),
        "H-AP": hierarchical_average_precision(found, relevance),
        "NDCG": ndcg(found, gain),
        "smooth TR@k": recall_at(ranks(scores, level), positive, cut, step=Sigmoid(1.0)),
        "AP(1)": ap_at(scores, level, 1),
        "AP(3)": ap_at(scores, level, 3),
    }
    for query, (s, levels, rel) in enumerate(zip(scores.tolist(), level.tolist(), relevance.tolist(), strict=True)):
        flat_level = reference.binary(levels, 1)
        expected = {
            "AP": reference.average_precision(s, flat_level),
            "AP@k": reference.average_precision_at(s, flat_level, cut),
            "TR@k": reference.recall_at(s, flat_level, cut),
            "R@k": reference.hit_rate_at(s, flat_level, cut),
            "H-AP": reference.h_average_precision(s, levels, rel),
            "NDCG": reference.ndcg(s, levels, reference.exponential_gain(levels)),
            "smooth TR@k": reference.recall_at(s, levels, cut, minus=reference.h_minus(), inside=reference.smooth(1.0)),
            "AP(1)": reference.average_precision_at_level(s, levels, 1),
            "AP(3)": reference.average_precision_at_level(s, levels, 3),
        }
        values = {name: value[query].item() for name, value in measured.items()}
        assert values == pytest.approx(expected, rel=1e-10, abs=1e-12, nan_ok=True)


@SOME
@given(drawn=rankings())
def test_the_ideal_dcg_needs_only_the_number_of_items_at_each_level(drawn):
    ideal = ideal_dcg(drawn.level, 4, dtype=torch.float64)
    for query, levels in enumerate(drawn.level.tolist()):
        best = sorted(reference.exponential_gain(levels), reverse=True)
        expected = sum(gain / math.log2(1 + place) for place, gain in enumerate(best, start=1))
        assert ideal[query].item() == pytest.approx(expected, abs=1e-12)
    gain = exponential_gain(drawn.level, dtype=torch.float64)
    given_ideal, sorted_ideal = ndcg(exact(*drawn), gain, ideal), ndcg(exact(*drawn), gain)
    torch.testing.assert_close(given_ideal, sorted_ideal, equal_nan=True)


def test_the_ideal_dcg_of_a_deep_tree_does_not_overflow():
    assert ideal_dcg(torch.tensor([[100, 0]]), 100, dtype=torch.float64).item() == pytest.approx(2.0**100 - 1)


@PLENTY
@given(drawn=rankings(tied=False), data=st.data())
def test_h_precision_and_h_recall_equal_the_reference_without_ties(drawn, data):
    scores, level = drawn
    cut = data.draw(st.integers(1, max(1, int((level >= 0).sum(-1).min()))))
    relevance = tree_relevance(level, dtype=torch.float64)
    found = exact(scores, level, relevance)
    recalls, precisions = hierarchical_recall_at(found, relevance, cut), hierarchical_precision_at(found, relevance, cut)
    for query, (s, levels, rel) in enumerate(zip(scores.tolist(), level.tolist(), relevance.tolist(), strict=True)):
        if not reference.positives(levels):
            assert recalls[query].isnan()
            assert precisions[query].isnan()
        else:
            assert recalls[query].item() == pytest.approx(reference.h_recall_at(s, levels, rel, cut))
            assert precisions[query].item() == pytest.approx(reference.h_precision_at(s, levels, rel, cut))


@PLENTY
@given(drawn=rankings(tied=False))
def test_h_ap_is_the_area_under_the_h_precision_h_recall_curve(drawn):
    scores, level = drawn
    relevance = tree_relevance(level, dtype=torch.float64)
    found = exact(scores, level, relevance)
    area = torch.zeros(len(scores), dtype=torch.float64)
    before = torch.zeros_like(area)
    for k in range(1, scores.shape[1] + 1):
        recall = hierarchical_recall_at(found, relevance, k)
        area = area + (recall - before) * hierarchical_precision_at(found, relevance, k)
        before = recall
    torch.testing.assert_close(area, hierarchical_average_precision(found, relevance), equal_nan=True)


@PLENTY
@given(drawn=rankings(), weights=st.lists(st.integers(0, 3), min_size=4, max_size=4).filter(any))
def test_h_ap_is_the_weighted_sum_of_aps_under_property_ones_relevance(drawn, weights):
    scores, level = drawn
    relevance = weighted_ap_relevance(level, weights, dtype=torch.float64)
    found = hierarchical_average_precision(exact(scores, level, relevance), relevance)
    for query, (s, levels) in enumerate(zip(scores.tolist(), level.tolist(), strict=True)):
        present = [p for p in range(1, 5) if max(levels) >= p]  # a level without positives has no AP to weigh
        total = sum(weights[4 - p] for p in present)  # weights are finest first
        aps = sum(weights[4 - p] * reference.average_precision_at_level(s, levels, p) for p in present)
        assert found[query].item() == pytest.approx(aps / total if total else math.nan, nan_ok=True)


# Other libraries, on scores that are negative as often as not and classes of unequal size


@SOME
@given(drawn=rankings(lowest=0, deepest=1))
def test_ap_is_scikit_learns_even_at_ties(drawn):
    from sklearn.metrics import average_precision_score

    found = average_precision(exact(*drawn), drawn.level > 0)
    for query, (s, levels) in enumerate(zip(drawn.scores.numpy(), drawn.level.numpy(), strict=True)):
        if levels.any():
            assert found[query].item() == pytest.approx(average_precision_score(levels, s))


@SOME
@given(
    drawn=rankings(tied=False, lowest=0).filter(lambda drawn: drawn.scores.shape[1] > 1), k=st.sampled_from([None, 1, 3, 20])
)
def test_ndcg_is_scikit_learns(drawn, k):
    from sklearn.metrics import ndcg_score

    gain = exponential_gain(drawn.level, dtype=torch.float64)
    found = ndcg(exact(*drawn), gain, k=k)
    for query, (s, gains) in enumerate(zip(drawn.scores.numpy(), gain.numpy(), strict=True)):
        if gains.any():
            assert found[query].item() == pytest.approx(ndcg_score(gains[None], s[None], k=k, ignore_ties=True))


@SOME
@given(drawn=rankings(), k=st.sampled_from([1, 2, 5]), tau=st.sampled_from([1e-3, 0.7]))
def test_a_smooth_cut_counts_places_in_the_measure_and_in_its_ideal(drawn, k, tau):
    step, ranked = Sigmoid(tau), exact(*drawn)
    gain = exponential_gain(drawn.level, dtype=torch.float64)
    ideal = ideal_dcg(drawn.level, 4, k=k, step=step, dtype=torch.float64)
    by_levels, by_sorting = ndcg(ranked, gain, ideal, k=k, step=step), ndcg(ranked, gain, k=k, step=step)
    torch.testing.assert_close(by_levels, by_sorting, equal_nan=True)
    binary = exact(drawn.scores, at_least(drawn.level, 1))
    ap = average_precision_at(binary, drawn.level > 0, k, step=step)
    for query, (s, levels) in enumerate(zip(drawn.scores.tolist(), drawn.level.tolist(), strict=True)):
        positives = reference.positives(levels)
        if not positives:
            assert by_sorting[query].isnan()
            assert ap[query].isnan()
            continue

        def cut(rank):
            return reference.sigmoid((k + 0.5 - rank) / tau)

        gains = reference.exponential_gain(levels)
        rank = {p: reference.rank(p, s, levels) for p in positives}
        dcg = sum(gains[p] * cut(rank[p]) / math.log2(1 + rank[p]) for p in positives)
        best = sum(one * cut(place) / math.log2(1 + place) for place, one in enumerate(sorted(gains, reverse=True), start=1))
        assert by_sorting[query].item() == pytest.approx(dcg / best)
        flat = reference.binary(levels, 1)
        found = [(reference.rank_plus(p, s, flat), reference.rank(p, s, flat)) for p in positives]
        precision = sum(cut(whole) * plus / whole for plus, whole in found)
        assert ap[query].item() == pytest.approx(precision / sum(cut(place + 1) for place in range(len(positives))))
    if tau < 0.01:  # the cut itself
        torch.testing.assert_close(by_sorting, ndcg(ranked, gain, k=k), equal_nan=True)
        torch.testing.assert_close(ap, average_precision_at(binary, drawn.level > 0, k), equal_nan=True)


# Laws


def measures_of(scores, level, minus):
    relevance = tree_relevance(level, depth=4, dtype=scores.dtype)
    found = ranks(scores, level, relevance, minus=minus)
    return {
        "AP": average_precision(found, level > 0),
        "H-AP": hierarchical_average_precision(found, relevance),
        "NDCG": ndcg(found, exponential_gain(level, dtype=scores.dtype)),
    }


@PLENTY
@given(drawn=rankings(), minus=st.sampled_from([SupStep(), SupStep(value_at_delta=1.44), SupStep.saturating(0.1, 0.2)]))
def test_the_surrogate_never_promises_more_than_the_metric(drawn, minus):
    assert minus.bounds_heaviside
    smooth, truth = measures_of(drawn.scores, drawn.level, minus), measures_of(drawn.scores, drawn.level, heaviside)
    for name, value in smooth.items():
        assert torch.equal(value.isnan(), truth[name].isnan())
        assert (value <= truth[name] + 1e-12).logical_or(value.isnan()).all(), name


def test_a_step_that_is_no_bound_can_promise_more_than_the_metric():
    scores, level = torch.tensor([[0.5, 0.5]]), torch.tensor([[0, 1]])
    optimistic = measures_of(scores, level, SupStep(jump=0.0, value_at_delta=1.0))
    assert optimistic["AP"].item() > measures_of(scores, level, heaviside)["AP"].item()


@PLENTY
@given(drawn=rankings(), cut=st.integers(1, 12))
def test_exact_measures_lie_between_zero_and_one(drawn, cut):
    scores, level = drawn
    relevance = tree_relevance(level, dtype=torch.float64)
    found, positive = exact(scores, level, relevance), level > 0
    values = [
        *measures_of(scores, level, heaviside).values(),
        ap_at(scores, level, 1),
        average_precision_at(found, positive, cut),
        recall_at(found, positive, cut),
        hit_rate_at(found, positive, cut),
        hierarchical_recall_at(found, relevance, cut),
        hierarchical_precision_at(found, relevance, cut),
    ]
    for value in values:
        assert ((value >= 0) & (value <= 1 + 1e-12) | value.isnan()).all()
        assert torch.equal(value.isnan(), ~positive.any(-1))


@SOME
@given(drawn=rankings(tied=False, lowest=1))
def test_a_list_without_errors_scores_one(drawn):
    scores = drawn.scores.sort(-1, descending=True).values
    level = drawn.level.sort(-1, descending=True).values
    gain = exponential_gain(level, dtype=torch.float64)
    assert ndcg(exact(scores, level), gain).tolist() == pytest.approx([1.0] * len(scores))
    relevance = level.double()  # decreasing with the level, unlike eq:hierarchy_relevance at some sizes
    found = hierarchical_average_precision(exact(scores, level, relevance), relevance)
    assert found.tolist() == pytest.approx([1.0] * len(scores))


# Edges


def test_every_measure_is_nan_without_positives_and_says_nothing_about_the_other_query():
    scores = torch.tensor([[0.2, 0.1], [0.2, 0.1]], requires_grad=True)
    level = torch.tensor([[0, 0], [0, 1]])
    relevance = tree_relevance(level)
    found, positive = ranks(scores, level, relevance), level > 0
    values = [
        average_precision(found, positive),
        average_precision_at(found, positive, 2),
        recall_at(found, positive, 2, step=Sigmoid(1.0)),
        hit_rate_at(found, positive, 2),
        hierarchical_average_precision(found, relevance),
        hierarchical_recall_at(found, relevance, 2),
        hierarchical_precision_at(found, relevance, 2),
        ndcg(found, exponential_gain(level)),
        ap_at(scores, level, 1),
    ]
    for value in values:
        assert value.isnan().tolist() == [True, False]
        if value.requires_grad:
            (gradient,) = torch.autograd.grad(value[1], scores, retain_graph=True)
            assert gradient.isfinite().all()
            assert (gradient[0] == 0).all()


def test_a_list_of_one_item():
    for own, expected in ((1, 1.0), (0, math.nan), (-1, math.nan)):
        for value in measures_of(torch.tensor([[-0.3]]), torch.tensor([[own]]), heaviside).values():
            assert value.tolist() == pytest.approx([expected], nan_ok=True)


def test_graded_relevance_with_ignored_items_is_accepted_wherever_a_level_is():
    scores = torch.linspace(0.5, -0.5, 5, dtype=torch.float64)[None]
    graded = torch.tensor([[1.0, 0.5, -1.0, 0.0, 0.25]], dtype=torch.float64)  # −1: not in the list
    found = exact(scores, graded, graded)
    kept = [1.0, 0.5, 0.0, 0.0, 0.25]
    s, levels = scores[0].tolist(), graded[0].tolist()
    expected = reference.h_average_precision(s, levels, kept)
    assert hierarchical_average_precision(found, graded).item() == pytest.approx(expected)
    assert hierarchical_recall_at(found, graded, 2).item() == pytest.approx(1.5 / 1.75)
    assert hierarchical_precision_at(found, graded, 2).item() == pytest.approx(1.0)
    assert ndcg(found, graded).item() == pytest.approx(reference.ndcg(s, levels, kept))


def test_relevance_of_an_item_that_is_not_in_the_list_does_not_count():
    scores = torch.tensor([[0.9, 0.8, 0.7]])
    level, relevance = torch.tensor([[-1, 1, 0]]), torch.tensor([[1.0, 1.0, 0.0]])  # the query's own item, still weighed
    found = exact(scores, level, relevance)
    assert hierarchical_average_precision(found, relevance).item() == 1
    assert hierarchical_recall_at(found, relevance, 1).item() == 1
    assert ndcg(found, relevance).item() == 1


def test_measures_of_h_rank_say_when_relevance_was_not_given():
    scores, level = random_ranking(0)
    relevance = tree_relevance(level, dtype=torch.float64)
    for measure in (hierarchical_average_precision, partial(hierarchical_precision_at, k=1)):
        with pytest.raises(ValueError, match=r"no H-rank⁺.*ranks\(scores, level, relevance\)"):
            measure(exact(scores, level), relevance)


def test_at_least_keeps_ignored_items_ignored():
    level = torch.tensor([[3, 2, 1, 0, -1, -256]])
    for current, expected in ((1, [1, 1, 1, 0]), (2, [1, 1, 0, 0]), (3, [1, 0, 0, 0])):
        found = at_least(level, current)[0]
        assert found[:4].tolist() == expected
        assert (found[4:] < 0).all()


def test_float32_ranks_of_a_long_list_are_whole_numbers():
    scores = torch.linspace(1, -1, 5000)[None]
    level = torch.arange(5000)[None] % 2
    found = exact(scores, level)
    assert torch.equal(found.total[0, 1::2], torch.arange(2.0, 5001.0, 2))
    assert average_precision(found, level > 0).item() == pytest.approx(0.5, abs=1e-6)
