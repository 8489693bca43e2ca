"""Places in the total order, and their sums: every way of finding them against plain Python, on scores made to trip them."""

import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.ranking import hierarchical_average_precision
from suprank.ranking.exact import Places, Top, choose_ordering, compiled, numba_loops, plain
from suprank.ranking.exact.tables import ideal_discount
from tests import reference
from tests.ranking.random_rankings import PLENTY

ORDERINGS = pytest.mark.parametrize("ordering", [plain, compiled], ids=["plain", "compiled"])
SETTINGS = settings(PLENTY, max_examples=60)
PER_LEVEL = ("precision", "precision_in_r", "found_in_r", "intersection", "first", "discount")
PER_QUERY = ("hierarchical", "graded_intersection")

TINY = float(np.finfo(np.float32).smallest_subnormal)
POOLS = {
    "heavy ties": [-0.0, 0.0, 0.5, -0.5, 1.0],
    "all equal": [0.25],
    "two zeros": [-0.0, 0.0],
    "neighbors": [float(np.float32(0.5) + np.float32(i) * np.float32(2**-24)) for i in range(-4, 5)],
    "subnormal": [i * TINY for i in range(-3, 4)],
    "huge range": [1e30, -1e30, 1e-30, -1e-30, 1.0, 0.0, TINY, -TINY, 1.5e38],
    "one far away": [1e30, *(float(np.float32(1 + i * 2**-23)) for i in range(20))],  # many in one bucket
    "ordinary": [],
}


def drawn_scores(rng, pool, shape):
    values = POOLS[pool]
    return torch.from_numpy(rng.choice(values, shape).astype(np.float32) if values else rng.standard_normal(shape, np.float32))


class Lists(NamedTuple):
    """Scores of queries' items, which of them are wanted, at which level, and in what order; −∞ and level 0 pad."""

    scores: torch.Tensor  # [queries, items]
    thresholds: torch.Tensor  # [queries, positives], falling
    level: torch.Tensor  # int8, of the thresholds


@st.composite
def lists(draw, positives=30):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pool = draw(st.sampled_from(sorted(POOLS)))
    queries, items, wanted = draw(st.integers(1, 4)), draw(st.integers(1, 70)), draw(st.integers(0, positives))
    scores, taken = drawn_scores(rng, pool, (queries, items)), drawn_scores(rng, pool, (queries, wanted))
    level = torch.from_numpy(rng.integers(1, draw(st.sampled_from([1, 2, 5, 127])) + 1, (queries, wanted)).astype(np.int8))
    if draw(st.booleans()):  # items that are ignored, or padding
        scores[torch.from_numpy(rng.random((queries, items)) < 0.3)] = -torch.inf
    if draw(st.booleans()):
        padding = torch.from_numpy(rng.random((queries, wanted)) < rng.random((queries, 1)))
        taken[padding], level[padding] = -torch.inf, 0
    return Lists(scores, taken, level)


def expected_order(scores, level):
    rows = [
        sorted(zip(s, own, strict=True), key=lambda pair: (-pair[0], pair[1]))
        for s, own in zip(scores.tolist(), level.tolist(), strict=True)
    ]
    return [[pair[0] for pair in row] for row in rows], [[pair[1] for pair in row] for row in rows]


@ORDERINGS
@SETTINGS
@given(drawn=lists())
def test_positives_stand_by_score_then_by_level(ordering, drawn):
    before = drawn.thresholds.clone(), drawn.level.clone()
    falling, level = ordering.sort_positives(drawn.thresholds, drawn.level)
    assert level.dtype == torch.int8
    expected = expected_order(drawn.thresholds, drawn.level)
    assert (falling.tolist(), level.tolist()) == expected
    assert torch.equal(drawn.thresholds, before[0])
    assert torch.equal(drawn.level, before[1])


@ORDERINGS
@SETTINGS
@given(drawn=lists())
def test_scores_that_reach_a_threshold_are_counted(ordering, drawn):
    falling, _ = plain.sort_positives(drawn.thresholds, drawn.level)
    before = drawn.scores.clone()
    counts = ordering.count_at_or_above(falling, drawn.scores)
    assert counts.dtype == torch.int32
    assert counts.tolist() == [
        [sum(score >= threshold for score in row) for threshold in thresholds]
        for thresholds, row in zip(falling.tolist(), drawn.scores.tolist(), strict=True)
    ]
    assert torch.equal(drawn.scores, before)


@ORDERINGS
@pytest.mark.parametrize("pool", sorted(POOLS))
@pytest.mark.parametrize("wanted", [8, 9, 300])
def test_counts_are_right_over_many_scores(ordering, pool, wanted):
    rng = np.random.default_rng(wanted)
    scores, thresholds = drawn_scores(rng, pool, (3, 2500)), drawn_scores(rng, pool, (3, wanted))
    thresholds[1, wanted // 2 :] = -torch.inf
    thresholds[2] = -torch.inf
    falling = thresholds.sort(descending=True).values
    expected = (scores[:, None, :] >= falling[:, :, None]).sum(-1, dtype=torch.int32)
    assert torch.equal(ordering.count_at_or_above(falling, scores), expected)


@ORDERINGS
def test_a_score_the_last_bit_below_a_threshold_does_not_reach_it(ordering):
    falling = torch.linspace(1, -1, 200)[None]
    below = torch.nextafter(falling, torch.tensor(-torch.inf))
    assert torch.equal(ordering.count_at_or_above(falling, falling), torch.arange(1, 201, dtype=torch.int32)[None])
    assert torch.equal(ordering.count_at_or_above(falling, below), torch.arange(200, dtype=torch.int32)[None])


@pytest.mark.parametrize("pool", sorted(POOLS))
def test_counts_are_right_where_scores_are_divided_into_buckets_first(pool):
    rng = np.random.default_rng(0)
    wanted = 2 * numba_loops._MANY
    scores, thresholds = drawn_scores(rng, pool, (3, 9000)), drawn_scores(rng, pool, (3, wanted))
    thresholds[1, numba_loops._MANY - 1 :] = -torch.inf  # one too few
    falling = thresholds.sort(descending=True).values
    assert torch.equal(compiled.count_at_or_above(falling, scores), plain.count_at_or_above(falling, scores))


class CountedReads:
    """An array that counts how often one of its numbers is read."""

    def __init__(self, array):
        self.array, self.reads = array, 0

    def __len__(self):
        return len(self.array)

    def __getitem__(self, at):
        self.reads += 1
        return self.array[at]


@pytest.mark.parametrize("pool", ["ordinary", "one far away", "heavy ties"])
def test_a_score_is_compared_with_a_few_thresholds_however_many_there_are(pool, monkeypatch):
    rng = np.random.default_rng(0)
    fill, scores, reads = numba_loops._fill_bucket.py_func, drawn_scores(rng, pool, (1, 4000)).numpy(), {}
    for number in (1000, numba_loops._MANY - 1, numba_loops._MANY):
        thresholds = drawn_scores(rng, pool, (1, number)).sort(descending=True).values
        falling = np.append(thresholds.numpy()[0], np.float32(-np.inf))
        counted = []

        def counting(falling, *others, counted=counted):
            counted.append(CountedReads(falling))
            fill(counted[-1], *others)

        monkeypatch.setattr(numba_loops, "_fill_bucket", counting)
        gap, room = np.empty(number + 1, np.int32), numba_loops._gap_room(number, scores.size)
        numba_loops._fill_gaps.py_func(falling, number, scores[0], scores[0, :0], gap, room)
        reads[number] = sum(array.reads for array in counted) / scores.size
        expected = plain.count_at_or_above(thresholds, torch.from_numpy(scores))
        assert gap[:number].cumsum().tolist() == expected[0].tolist()
    assert max(reads.values()) < 6, reads  # halving all thresholds would read log2(number) of them, 10 to 14


def test_thresholds_further_apart_than_float32_reaches_do_not_crash(forked):
    # In a process of its own, which a wild write would kill.
    script = """
import torch
from suprank.ranking.exact import compiled
falling = torch.tensor([[3e38] * 3 + [1.0] * 3 + [-3e38] * 6])
scores = torch.tensor([[3e38, 1e38, 0.0, -1e38, -3e38, -3.2e38, -torch.inf]])
print(compiled.count_at_or_above(falling, scores).tolist())
"""
    code, output, errors = forked.script(script).end(timeout=120)
    assert code == 0, errors or "killed"
    assert output.strip() == str([[1] * 3 + [2] * 3 + [5] * 6])


# Taking items out of the scores


@st.composite
def takes(draw):
    """Scores in chunks, and wanted items, the same for all queries or not, some −1."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    queries, items, wanted = draw(st.integers(1, 4)), draw(st.integers(1, 40)), draw(st.integers(0, 12))
    shape = (wanted,) if draw(st.booleans()) else (queries, wanted)
    wanted = min(wanted, items)
    item = rng.random((*shape[:-1], items)).argsort(-1)[..., :wanted]  # each at most once
    if len(shape) == 2 and draw(st.booleans()):
        item[rng.random(item.shape) < 0.3] = -1
    chunk = draw(st.integers(1, items))
    kind = draw(st.sampled_from([np.int64, np.int32]))
    return torch.from_numpy(rng.standard_normal((queries, items), np.float32)), torch.from_numpy(item.astype(kind)), chunk


@ORDERINGS
@SETTINGS
@given(drawn=takes())
def test_wanted_items_are_taken_from_every_chunk(ordering, drawn):
    scores, item, chunk = drawn
    into = torch.full((len(scores), item.shape[-1]), 7.0)
    left = scores.clone()
    for first in range(0, scores.shape[1], chunk):
        ordering.take(left[:, first : first + chunk], item, first, into)
    expected = scores.tolist()
    for query, row in enumerate(item.expand(len(scores), -1).tolist()):
        for column, wanted in enumerate(row):
            assert into[query, column].item() == (7.0 if wanted < 0 else scores[query, wanted].item())
            if wanted >= 0:
                expected[query][wanted] = -np.inf
    assert left.tolist() == expected


@ORDERINGS
def test_an_item_beyond_the_chunk_leaves_all_as_it_was(ordering):
    for item in (torch.tensor([0, 9, 14]), torch.tensor([[0, 9, 14], [-1, 3, 15]])):
        scores, into = torch.ones(2, 4), torch.full((2, 3), 7.0)
        ordering.take(scores, item, 10, into)
        assert into.tolist() == [[7.0] * 3] * 2
        assert scores.tolist() == [[1.0] * 4] * 2


@ORDERINGS
def test_padding_in_a_chunk_that_begins_late_is_no_item(ordering):
    scores, into = torch.ones(1, 4), torch.full((1, 1), 7.0)
    ordering.take(scores, torch.tensor([[-1]]), 0, into)
    assert into.item() == 7
    assert (scores == 1).all()


# Strides and empty rows


@ORDERINGS
def test_inputs_need_not_be_contiguous(ordering):
    rng = np.random.default_rng(0)
    scores, taken = drawn_scores(rng, "heavy ties", (50, 6)).T, drawn_scores(rng, "ordinary", (20, 6)).T
    level = torch.from_numpy(rng.integers(1, 4, (20, 6)).astype(np.int8)).T
    falling, levels = ordering.sort_positives(taken, level)
    assert (falling.tolist(), levels.tolist()) == expected_order(taken, level)
    expected = (scores[:, None, :] >= falling[:, :, None]).sum(-1, dtype=torch.int32)
    assert torch.equal(ordering.count_at_or_above(falling.T.contiguous().T, scores), expected)
    part = torch.ones(3, 20)[:, ::2]
    into = torch.zeros(3, 8)[:, ::4]
    ordering.take(part, torch.tensor([1, 4]), 0, into)
    assert into.tolist() == [[1.0, 1.0]] * 3
    assert part.isinf().nonzero().tolist() == [[query, item] for query in range(3) for item in (1, 4)]


@ORDERINGS
@pytest.mark.parametrize("queries", [0, 1, 3])
def test_queries_that_want_nothing(ordering, queries):
    nothing, level = torch.empty(queries, 0), torch.empty(queries, 0, dtype=torch.int8)
    falling, levels = ordering.sort_positives(nothing, level)
    assert falling.shape == levels.shape == (queries, 0)
    assert ordering.count_at_or_above(nothing, torch.ones(queries, 5)).shape == (queries, 0)
    ordering.take(torch.ones(queries, 5), torch.empty(0, dtype=torch.long), 0, nothing)
    places = Places(level, torch.empty(queries, 0, dtype=torch.int32))
    sizes, relevance = torch.zeros(queries, 2, dtype=torch.int32), torch.zeros(queries, 2, dtype=torch.float64)
    sums = ordering.ranking_sums(places, sizes, relevance)
    assert sums.first.tolist() == [[float("inf")] * 2] * queries
    for name in ("precision", "precision_in_r", "found_in_r", "intersection"):
        assert getattr(sums, name).tolist() == [[0.0] * 2] * queries
    for name in PER_QUERY:
        assert getattr(sums, name).tolist() == [0.0] * queries
    top = ordering.top_sums(places, relevance, [1, 3])
    assert top.found.tolist() == top.precision.tolist() == [[[0.0] * 2] * 2] * queries
    assert top.relevance.tolist() == top.hierarchical.tolist() == [[0.0] * 2] * queries


@ORDERINGS
def test_threads_share_the_queries(ordering):
    rng = np.random.default_rng(0)
    scores, taken = drawn_scores(rng, "heavy ties", (11, 90)), drawn_scores(rng, "heavy ties", (11, 20))
    level = torch.from_numpy(rng.integers(1, 4, (11, 20)).astype(np.int8))
    falling, levels = ordering.sort_positives(taken, level)
    counts = ordering.count_at_or_above(falling, scores)
    try:
        torch.set_num_threads(4)
        again = ordering.sort_positives(taken, level)
        assert torch.equal(again[0], falling)
        assert torch.equal(again[1], levels)
        assert torch.equal(ordering.count_at_or_above(falling, scores), counts)
    finally:
        torch.set_num_threads(1)


# Sums


class Listed(NamedTuple):
    levels: list[list[int]]  # of every item, from the top
    places: Places
    sizes: torch.Tensor
    relevance: torch.Tensor


def listed(levels, relevance, extra=0):
    """Places of the positives of lists given by the levels of their items from the top."""
    depth = len(relevance[0])
    rows = [[(own, place) for place, own in enumerate(row, start=1) if own > 0] for row in levels]
    width = max(len(row) for row in rows) + extra
    rows = [row + [(0, 100_000)] * (width - len(row)) for row in rows]  # in the padding any place
    parts = torch.tensor(rows, dtype=torch.int32).reshape(len(rows), width, 2)
    sizes = torch.tensor(
        [[sum(own >= current for own in row) for current in range(1, depth + 1)] for row in levels], dtype=torch.int32
    )
    places = Places(parts[..., 0].to(torch.int8).contiguous(), parts[..., 1].contiguous())
    return Listed(levels, places, sizes, torch.tensor(relevance, dtype=torch.float64))


@st.composite
def listings(draw, deepest=5):
    depth = draw(st.sampled_from([1, 2, 3, deepest]))
    row = st.lists(st.integers(0, depth), min_size=1, max_size=14)
    levels = draw(st.lists(row, min_size=1, max_size=4))
    weight = st.lists(st.sampled_from([0.25, 1 / 3, 0.5, 1.0]), min_size=depth, max_size=depth)  # not always monotone
    return listed(levels, draw(st.lists(weight, min_size=len(levels), max_size=len(levels))), draw(st.integers(0, 2)))


def relevance_of(row, relevance):
    return [0.0 if own == 0 else relevance[own - 1] for own in row]


@ORDERINGS
@SETTINGS
@given(drawn=listings())
def test_sums_over_the_full_ranking_equal_the_loops(ordering, drawn):
    sums = ordering.ranking_sums(drawn.places, drawn.sizes, drawn.relevance)
    assert all(column.dtype == torch.float64 for column in sums)
    for query, (row, relevance) in enumerate(zip(drawn.levels, drawn.relevance.tolist(), strict=True)):
        for current, size in enumerate(drawn.sizes[query].tolist(), start=1):
            hits = reference.flat(row, current)
            expected = [0, 0, 0, 0, float("inf"), 0]
            if size:
                shares = reference.listed_ap(hits), reference.listed_ap(hits, size), reference.listed_precision(hits, size)
                intersection = reference.listed_intersection([int(hit) for hit in hits])
                expected = [size * share for share in (*shares, intersection)]
                expected.append(1 / reference.listed_reciprocal_rank(hits))
                expected.append(sum(1 / np.log2(1 + place) for place, hit in enumerate(hits, start=1) if hit))
            found = [getattr(sums, name)[query, current - 1].item() for name in PER_LEVEL]
            assert found == pytest.approx(expected, abs=1e-10)
        weights = relevance_of(row, relevance)
        any_positive = drawn.sizes[query, 0].item()
        expected = [
            reference.listed_h_ap(weights) * sum(weights) if any_positive else 0,
            any_positive * reference.listed_intersection(row) if any_positive else 0,
        ]
        assert [getattr(sums, name)[query].item() for name in PER_QUERY] == pytest.approx(expected, abs=1e-10)


@ORDERINGS
@SETTINGS
@given(drawn=listings(), ks=st.lists(st.integers(1, 16), min_size=1, max_size=3, unique=True).map(sorted))
def test_sums_over_the_first_k_equal_the_loops(ordering, drawn, ks):
    top = ordering.top_sums(drawn.places, drawn.relevance, ks)
    # Positives beyond the largest k may be missing.
    short = Places(drawn.places.level[:, : max(ks)].contiguous(), drawn.places.place[:, : max(ks)].contiguous())
    for part, again in zip(top, ordering.top_sums(short, drawn.relevance, ks), strict=True):
        assert part.dtype == torch.float64
        assert torch.equal(part, again)
    for query, (row, relevance) in enumerate(zip(drawn.levels, drawn.relevance.tolist(), strict=True)):
        weights = relevance_of(row, relevance)
        for at, k in enumerate(ks):
            for current in range(1, drawn.sizes.shape[1] + 1):
                hits = reference.flat(row, current)
                assert top.found[query, at, current - 1].item() == sum(hits[:k])
                precision = sum(reference.listed_precision(hits, n) for n in range(1, min(k, len(row)) + 1) if hits[n - 1])
                assert top.precision[query, at, current - 1].item() == pytest.approx(precision, abs=1e-10)
                discounts = [1 / np.log2(1 + place) for place, hit in enumerate(hits[:k], start=1) if hit]
                assert top.discount[query, at, current - 1].item() == pytest.approx(sum(discounts), abs=1e-10)
                first = max((1 / place for place, hit in enumerate(hits[:k], start=1) if hit), default=0)
                assert top.reciprocal[query, at, current - 1].item() == first
            assert top.relevance[query, at].item() == pytest.approx(sum(weights[:k]), abs=1e-10)
            assert top.hierarchical[query, at].item() == pytest.approx(reference.listed_h_precision(weights, k), abs=1e-10)


@ORDERINGS
def test_no_k_at_all(ordering):
    drawn = listed([[2, 0, 1], [0, 1, 0]], [[0.5, 1.0]] * 2)
    top = ordering.top_sums(drawn.places, drawn.relevance, [])
    assert [tuple(part.shape) for part in top] == [(2, 0, 2)] * 4 + [(2, 0)] * 2


@ORDERINGS
def test_a_deep_tree_neither_overflows_nor_mixes_levels(ordering):
    levels = [[127, 0, 1, 126, 127, 64]]
    drawn = listed(levels, [[current / 127 for current in range(1, 128)]])
    sums = ordering.ranking_sums(drawn.places, drawn.sizes, drawn.relevance)
    discounts = [1 / np.log2(1 + place) for place in (1, 3, 4, 5, 6)]
    assert sums.discount[0, [0, 1, 64, 126]].tolist() == pytest.approx(
        [sum(discounts), sum(discounts) - discounts[1], discounts[0] + discounts[2] + discounts[3], discounts[0] + discounts[3]]
    )
    assert sums.graded_intersection.item() == pytest.approx(5 * reference.listed_intersection(levels[0]))
    assert sums.precision[0, 126].item() == pytest.approx(1 + 2 / 5)
    assert sums.precision[0, 0].item() == pytest.approx(1 + 2 / 3 + 3 / 4 + 4 / 5 + 5 / 6)


@ORDERINGS
def test_places_far_down_a_long_list(ordering):
    places = Places(torch.tensor([[1, 1]], dtype=torch.int8), torch.tensor([[3, 5_000_000]], dtype=torch.int32))
    sizes = torch.tensor([[2]], dtype=torch.int32)
    sums = ordering.ranking_sums(places, sizes, torch.ones(1, 1, dtype=torch.float64))
    assert sums.precision.item() == pytest.approx(1 / 3 + 2 / 5_000_000, rel=1e-14)
    assert sums.discount.item() == pytest.approx(1 / 2 + 1 / np.log2(5_000_001), rel=1e-14)
    assert sums.found_in_r.item() == sums.intersection.item() == 0


@st.composite
def arranged(draw):
    """Scores, nested ranges of positives, ignored items, and a relevance: what `one_pass_sums` takes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    queries, items, depth = draw(st.integers(1, 4)), draw(st.integers(1, 40)), draw(st.integers(1, 4))
    scores = drawn_scores(rng, draw(st.sampled_from(sorted(POOLS))), (queries, items))
    bounds = np.sort(rng.integers(0, items + 1, (queries, 2 * depth)), axis=1)
    start, end = bounds[:, :depth].copy(), bounds[:, : depth - 1 : -1].copy()
    ignored = np.full((queries, draw(st.integers(0, 3))), -1)
    for row in ignored:
        some = rng.permutation(items)[: len(row)]
        row[: len(some)] = np.where(rng.random(len(some)) < 0.7, some, -1)
    return scores, *map(torch.from_numpy, (start, end, ignored, rng.random((queries, depth))))


@SETTINGS
@given(drawn=arranged(), ks=st.lists(st.integers(1, 45), max_size=3, unique=True).map(sorted))
def test_one_pass_equals_the_sums_over_the_lists(drawn, ks):
    scores, start, end, ignored, relevance = drawn
    levels = []
    for query, row in enumerate(scores.tolist()):
        level = [sum(bool(b <= item < e) for b, e in zip(start[query], end[query], strict=True)) for item in range(len(row))]
        for item in ignored[query].tolist():
            if item >= 0:
                level[item] = -1
        levels.append(reference.from_the_top(row, level))
    expected = listed([row or [0] for row in levels], relevance.tolist())
    whole, top = compiled.one_pass_sums(scores.clone(), start, end, ignored, expected.sizes, relevance, ks)
    parts = [*whole, *top] if ks else whole
    wanted = plain.ranking_sums(expected.places, expected.sizes, relevance)
    for part, other in zip(parts, [*wanted, *(plain.top_sums(expected.places, relevance, ks) if ks else ())], strict=True):
        torch.testing.assert_close(part, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pool", ["heavy ties", "ordinary"])
def test_one_pass_over_many_positives_equals_the_sums_over_their_places(pool):
    rng = np.random.default_rng(0)
    items, many = 50_000, numba_loops._MANY
    scores = drawn_scores(rng, pool, (2, items))
    start, end = torch.tensor([[100, 2000, 3000], [0, 0, 500]]), torch.tensor([[100 + many, 9000, 3010], [2 * many, 7000, 500]])
    ignored = torch.tensor([[50, 2001, -1], [20_000, 40_000, 3]])
    level = torch.zeros(2, items, dtype=torch.int8)
    for query in range(2):
        for current in range(3):
            level[query, start[query, current] : end[query, current]] = current + 1
        level[query, ignored[query][ignored[query] >= 0]] = 0
    sizes = torch.stack([(level > current).sum(1, dtype=torch.int32) for current in range(3)], 1)
    relevance = torch.from_numpy(rng.random((2, 3)))
    kept = scores.clone()
    for query in range(2):
        kept[query, ignored[query][ignored[query] >= 0]] = -torch.inf
    falling, levels = plain.sort_positives(kept.where(level > 0, -torch.inf), level)
    place = plain.count_at_or_above(falling, kept.where(level == 0, -torch.inf)) + torch.arange(1, items + 1, dtype=torch.int32)
    places = Places(levels, place)
    whole, top = compiled.one_pass_sums(scores, start, end, ignored, sizes, relevance, [1, 1000])
    expected = [*plain.ranking_sums(places, sizes, relevance), *plain.top_sums(places, relevance, [1, 1000])]
    for part, other in zip([*whole, *top], expected, strict=True):
        torch.testing.assert_close(part, other, rtol=1e-12, atol=1e-12)


@ORDERINGS
@SETTINGS
@given(drawn=lists(), k=st.integers(1, 80), chunk=st.integers(1, 70))
def test_the_top_is_merged_from_chunk_to_chunk(ordering, drawn, k, chunk):
    best: Top | None = None
    for first in range(0, drawn.scores.shape[1], chunk):
        best = ordering.top(drawn.scores[:, first : first + chunk], k, first, best)
    assert best is not None
    for row, scores, items in zip(drawn.scores.tolist(), best.scores.tolist(), best.item.tolist(), strict=True):
        expected = sorted(range(len(row)), key=lambda item: -row[item])[:k]
        assert scores == [row[item] for item in expected]
        listed = [item for item in items if row[item] > -np.inf]  # which of the items at −∞ come is left open
        assert listed == [item for item in expected if row[item] > -np.inf]


# Places as ranks


@pytest.mark.parametrize(("levels", "h_ap"), [((2, 3, 0, 1, 3), 0.7833), ((1, 3, 0, 2, 3), 0.6722)])
def test_the_papers_two_lists(levels, h_ap):
    drawn = listed([list(levels)], [[1 / 3, 2 / 3, 1.0]], extra=1)
    graded = drawn.places.graded_ranks(drawn.relevance)
    weights = drawn.places.relevances(drawn.relevance)
    assert hierarchical_average_precision(graded, weights).item() == pytest.approx(h_ap, abs=5e-5)
    for ordering in (plain, compiled):
        sums = ordering.ranking_sums(drawn.places, drawn.sizes, drawn.relevance)
        assert sums.hierarchical.item() / weights.sum().item() == pytest.approx(h_ap, abs=5e-5)
        assert sums.precision[0, 2].item() / 2 == pytest.approx(0.45)  # (1/2 + 2/5) / 2


@SETTINGS
@given(drawn=listings())
def test_ranks_of_places_are_the_definitions(drawn):
    graded = drawn.places.graded_ranks(drawn.relevance)
    for query, (row, relevance) in enumerate(zip(drawn.levels, drawn.relevance.tolist(), strict=True)):
        falling = [-float(place) for place in range(len(row))]
        weights = relevance_of(row, relevance)
        wanted = reference.positives(row)
        for column, k in enumerate(wanted):
            assert graded.plus[query, column].item() == reference.rank_plus(k, falling, row)
            assert graded.minus[query, column].item() == reference.rank_minus(k, falling, row)
            assert graded.hierarchical[query, column].item() == pytest.approx(reference.h_rank(k, falling, row, weights))
        padding = slice(len(wanted), None)
        assert (graded.plus[query, padding] == 0).all()
        assert (graded.minus[query, padding] == torch.inf).all()
        for current in range(1, len(relevance) + 1):
            flat, binary = drawn.places.ranks(current), reference.binary(row, current)
            for column, k in enumerate(wanted):
                kept = row[k] >= current
                assert flat.plus[query, column].item() == (reference.rank_plus(k, falling, binary) if kept else 0)
                assert flat.minus[query, column].item() == (reference.rank_minus(k, falling, binary) if kept else torch.inf)


def test_a_cpu_gets_the_compiled_way_where_there_is_much_to_do_and_other_devices_the_plain_one():
    assert choose_ordering(torch.device("cpu"), 10**9) is compiled
    assert choose_ordering(torch.device("cpu"), 1000) is plain
    assert choose_ordering(torch.device("cpu"), 2**23) is plain
    assert choose_ordering(torch.device("cpu"), 2**23, positives=2**21) is compiled  # a positive is more work than a score
    assert choose_ordering(torch.device("mps"), 10**9) is plain


@pytest.mark.parametrize(("name", "module"), [("plain", plain), ("compiled", compiled)])
def test_an_ordering_can_be_named_or_given(name, module):
    for device, scores in ((torch.device("cpu"), 10), (torch.device("cpu"), 10**9), (torch.device("cuda"), 10)):
        assert choose_ordering(device, scores, using=name) is module
        assert choose_ordering(device, scores, using=module) is module


def test_an_unknown_ordering_is_refused_with_the_names():
    with pytest.raises(ValueError, match="using='fast' is not a way to order; choose from 'plain', 'compiled', 'fused'"):
        choose_ordering(torch.device("cpu"), 10, using="fast")


def test_a_named_ordering_whose_library_is_missing_says_so(monkeypatch):
    monkeypatch.setattr("suprank.ranking.exact.dispatch.find_spec", lambda name: None)
    for name, library in (("compiled", "numba"), ("fused", "triton")):
        with pytest.raises(ModuleNotFoundError, match=f"using='{name}' needs {library}.*use 'plain'"):
            choose_ordering(torch.device("cpu"), 10, using=name)


def test_a_numba_that_cannot_be_imported_is_replaced_with_a_warning(monkeypatch):
    monkeypatch.delattr("suprank.ranking.exact.compiled")
    monkeypatch.setitem(sys.modules, "suprank.ranking.exact.compiled", None)
    with pytest.warns(UserWarning, match="numba is installed but cannot be used"):
        assert choose_ordering(torch.device("cpu"), 10**9) is plain


def test_a_device_without_a_compiler_gets_the_plain_way(monkeypatch):
    monkeypatch.setattr("suprank.ranking.exact.dispatch.find_spec", lambda name: None)
    assert choose_ordering(torch.device("cpu"), 10**9) is plain
    assert choose_ordering(torch.device("cuda"), 10**9) is plain


def test_tables_and_orders_are_made_where_the_scores_are_whatever_the_default_device():
    scores = torch.rand(3, 40)
    with torch.device("meta"):
        found, discount = compiled.top(scores, 5), ideal_discount(2**17, torch.device("cpu"))
    assert torch.equal(found.item, compiled.top(scores, 5).item)
    assert discount[2].item() == pytest.approx(1 + 1 / np.log2(3))
