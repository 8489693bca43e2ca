"""`top_k`: the best items of every query, in order, by their names."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.evaluation import top_k
from tests.evaluation.random_collections import ORDERINGS, PLENTY, collections, random_collection, using

# Drawn queries and galleries share rows, and a query may be left in its own list on purpose; test_overlap.py has the warning.
pytestmark = pytest.mark.filterwarnings("ignore::suprank.evaluation.QueryInGalleryWarning")


def found(collection, k, **settings):
    gallery = None if collection.gallery is None else torch.tensor(collection.gallery)
    return top_k(
        torch.tensor(collection.embeddings),
        gallery,
        k,
        self_index=collection.self_index,
        ignored=collection.ignored,
        normalize=collection.normalize,
        progress=False,
        **{"device": "cpu", **settings},
    )


def test_the_nearest_come_first_and_the_query_is_not_among_them():
    run = top_k(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), k=2)
    assert run.rows.tolist() == [[1, 2], [0, 2], [1, 0]]
    assert run.scores[0].tolist() == pytest.approx([0.8, 0.0])
    assert list(run.query_ids) == [0, 1, 2]


@ORDERINGS
@PLENTY
@given(collection=collections(), k=st.integers(1, 14))
def test_any_list_is_the_loops(ordering, collection, k):
    collection.ids = collection.gallery_ids = None  # names must differ in a run
    with using(ordering):
        run = found(collection, k)
    for query, (scores, level) in enumerate(collection.lists()):
        kept = [j for j, own in enumerate(level) if own >= 0]
        expected = sorted(kept, key=lambda j: (-scores[j], j))[:k]
        item, score = run.rows[query].tolist(), run.scores[query].tolist()
        number = len(expected)
        assert score[:number] == [scores[j] for j in expected]
        assert score[number:] == [-math.inf] * (len(score) - number)
        assert item[number:] == [-1] * (len(item) - number)
        # Of equal scores at the end of the list, any may be there; those that are stand in the items' order.
        last = scores[expected[-1]] if expected else 0.0
        certain = [j for j in expected if scores[j] > last]
        assert item[: len(certain)] == certain
        rest = item[len(certain) : number]
        assert rest == sorted(set(rest))
        assert all(scores[j] == last and j in kept for j in rest)


@pytest.mark.parametrize("budget", [1, 2**16, 2**20])
def test_the_memory_budget_changes_nothing(budget):
    collection = random_collection(0, 40, 700, 19)
    assert list(found(collection, 30, memory_budget=budget)) == list(found(collection, 30))


def test_which_of_equal_items_make_the_list_does_not_depend_on_the_budget():
    gallery = torch.ones(300, 4)
    runs = [top_k(torch.ones(1, 4), gallery, 5, memory_budget=budget) for budget in (None, 1)]
    assert runs[0].rows.tolist() == runs[1].rows.tolist() == [[0, 1, 2, 3, 4]], "equal scores stand in the order of items"


def test_a_k_beyond_the_gallery_gives_shorter_lists():
    run = top_k(torch.eye(3), k=100)
    assert run.rows.shape == (3, 3)
    assert run.rows[:, -1].tolist() == [-1] * 3
    assert run.scores[:, -1].tolist() == [-math.inf] * 3


def test_items_are_called_by_their_ids():
    run = top_k(torch.eye(3)[:2], torch.eye(3), 2, ids=["q", "b"], gallery_ids=["a", "b", "c"])
    assert {query: [item for item, _ in items] for query, items in run} == {"q": ["a", "b"], "b": ["a", "c"]}
    assert run.run().to_dict() == {query: dict(items) for query, items in run}


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint8, np.uint32, np.uint64, str])
def test_ids_of_any_kind_pad_short_lists(kind):
    ids = np.array([5, 6, 7]).astype(kind)
    run = top_k(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), k=10, ids=ids)
    expected = {ids[0]: [ids[1], ids[2]], ids[1]: [ids[0], ids[2]], ids[2]: [ids[1], ids[0]]}
    assert {query: [item for item, _ in items] for query, items in run} == expected
    assert list(run.run().to_dict()) == [str(one) for one in ids]


def test_ids_may_be_python_objects_also_where_lists_are_short():
    names = np.array(["a", "b", "c"], dtype=object)  # as pandas gives them
    run = top_k(torch.eye(3), k=100, ids=names)
    assert run.run() == top_k(torch.eye(3), k=100, ids=names.tolist()).run()
    assert [len(items) for _, items in run] == [2, 2, 2]


def test_progress_ends_at_the_total():
    calls = []
    collection = random_collection(0, 40, 300)
    top_k(
        torch.tensor(collection.embeddings),
        torch.tensor(collection.gallery),
        memory_budget=2**16,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert len(calls) > 1
    assert calls[-1] == (40, 40)


@pytest.mark.parametrize(
    ("settings", "kind", "match"),
    [
        ({"k": 0}, ValueError, "k=0 must be an integer of at least 1"),
        ({"k": -3}, ValueError, "k=-3"),
        ({"gallery": torch.eye(4)}, ValueError, "embeddings have 3 dimensions and the gallery 4"),
        ({"self_index": [0, 1, 3]}, ValueError, "item 3 is to be left out"),
        ({"ids": ["a"]}, ValueError, "1 ids for 3 rows"),
        ({"gallery_ids": ["a"] * 3}, ValueError, "without a gallery"),
        ({"ignored": [[]]}, ValueError, "ignored has 1 lists for 3 queries"),
        ({"ids": ["a", "a", "b"]}, ValueError, "ids hold 'a' more than once"),
    ],
)
def test_bad_input_is_refused(settings, kind, match):
    with pytest.raises(kind, match=match):
        top_k(torch.eye(3), **settings)
