"""Labels → what each query looks for: levels, sizes and ranges, against a matrix of common levels; and what is no tree."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.evaluation.positives import LabelPositives, ListedPositives, pad_lists
from tests import reference
from tests.evaluation.random_collections import PLENTY, label_rows


@st.composite
def targets_and_levels(draw):
    """Targets, and the level of every item for every query: −1 for those ignored."""
    queries, items, depth = draw(st.integers(1, 5)), draw(st.integers(1, 12)), draw(st.integers(1, 4))
    rows = draw(label_rows(queries + items, depth))
    large = draw(st.sampled_from([0, 10**6, 2**61]))  # ids that no table can be made of
    rows = [[own + large if own >= 0 else -1 for own in row] for row in rows]
    junk = [draw(st.lists(st.integers(0, items - 1), max_size=3, unique=True)) for _ in range(queries)]
    level = [
        [-1 if j in junk[q] else reference.known_level(rows[q], rows[queries + j]) for j in range(items)]
        for q in range(queries)
    ]
    mine, theirs = torch.tensor(rows[:queries]), torch.tensor(rows[queries:])
    return LabelPositives(mine, theirs, torch.from_numpy(pad_lists(junk))), level, depth


def check(positives, level, depth, called=lambda item: item):
    """`called` gives an item's own number."""
    assert sorted(positives.queries.tolist()) == list(range(len(level)))
    most = positives.counts()
    for rows in (positives.queries, positives.queries[:1], positives.queries[::-1].copy()):
        wanted = positives.items_of(rows)
        sizes, _ = positives.sizes(torch.from_numpy(rows))
        assert wanted.level.dtype == torch.int8
        item = wanted.item.expand(len(rows), -1)
        assert item.shape == wanted.level.shape
        for row, query in enumerate(rows.tolist()):
            pairs = [(called(j), own) for j, own in zip(item[row].tolist(), wanted.level[row].tolist(), strict=True) if own > 0]
            assert sorted(pairs) == [(j, own) for j, own in enumerate(level[query]) if own > 0]
            assert sizes[row].tolist() == [sum(own >= current for own in level[query]) for current in range(1, depth + 1)]
            assert most[positives.queries.tolist().index(query)] >= len(pairs)
    every = torch.arange(positives.items).expand(len(level), -1)
    rows = torch.arange(len(level))
    found = positives.levels(rows, every).tolist()
    for query, row in enumerate(level):
        for j in range(positives.items):
            assert row[called(j)] in (-1, found[query][j])  # nothing is said on ignored items
    assert (positives.levels(rows, torch.full((len(level), 2), -1)) == 0).all()


@PLENTY
@given(drawn=targets_and_levels())
def test_every_query_wants_the_items_that_share_a_label_with_it(drawn):
    check(*drawn)


@PLENTY
@given(drawn=targets_and_levels())
def test_arranged_targets_call_items_by_their_places_in_the_order_they_give(drawn):
    positives, level, depth = drawn
    order = positives.arrange()
    assert sorted(order.tolist()) == list(range(positives.items))
    check(positives, level, depth, called=lambda item: int(order[item]))


def test_ranges_by_hand():
    labels = torch.tensor([[0, 0], [1, 0], [-1, 1], [-1, -1], [9, 9]])
    gallery = torch.tensor([[1, 0], [2, 1], [0, 0], [-1, 0], [-1, -1], [0, 0]])
    positives = LabelPositives(labels, gallery, torch.empty(5, 0, dtype=torch.long))
    sizes, _ = positives.sizes(torch.arange(5))
    assert sizes.tolist() == [[4, 2], [4, 1], [1, 0], [0, 0], [0, 0]]
    wanted = positives.items_of(np.array([0, 1]))
    assert wanted.item.tolist() == [2, 5, 0, 3], "both want the same, so they are named once; the unlabeled come last"
    assert wanted.level.tolist() == [[2, 2, 1, 1], [1, 1, 2, 1]]


def test_queries_that_want_the_same_items_stand_side_by_side():
    labels = torch.tensor([[0], [1], [0], [-1], [1], [0]])
    positives = LabelPositives(labels, labels, torch.empty(6, 0, dtype=torch.long))
    assert [labels[query].item() for query in positives.queries if labels[query] >= 0] == [0, 0, 0, 1, 1]


def test_listed_targets_want_what_is_listed():
    positives = ListedPositives(torch.tensor([[4, 2, -1], [-1, -1, -1]]), torch.tensor([[0], [-1]]))
    assert positives.counts().tolist() == [2, 0]
    wanted = positives.items_of(np.array([1, 0]))
    assert wanted.item.tolist() == [[-1, -1, -1], [4, 2, -1]]
    assert wanted.level.tolist() == [[0, 0, 0], [1, 1, 0]]
    assert wanted.excluded.tolist() == [[-1], [0]]


def test_lists_are_padded_and_named_once():
    assert pad_lists([[3, 1, 3], [], [2]]).tolist() == [[1, 3], [-1, -1], [2, -1]]
    assert pad_lists([[], []]).shape == (2, 0)
    assert pad_lists(np.array([[5, 5], [-1, 7]])).tolist() == [[5, -1], [-1, 7]]


def test_distractors_are_in_no_order_and_cost_four_bytes():
    labels, gallery = torch.tensor([[3, 1]]), torch.tensor([[3, 1], [7, 2], [4, 1], [-1, -1], [3, 1]])
    positives = LabelPositives(labels, gallery.int(), torch.empty(1, 0, dtype=torch.long))
    assert positives.order.tolist() == [0, 4, 2], "items 1 and 3 share nothing with the query"
    assert positives.position.tolist() == [0, -1, 2, -1, 1]
    assert positives.order.dtype == positives.position.dtype == torch.int32
    assert positives.arrange().tolist() == [0, 4, 2, 1, 3]
