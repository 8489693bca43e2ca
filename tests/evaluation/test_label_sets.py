"""Images with several labels at a level: an item is a positive where the sets meet."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.evaluation import Qrels, evaluate
from suprank.evaluation import positives as positives_module
from suprank.evaluation.positives import SetPositives
from suprank.ranking.exact import compiled, plain
from suprank.ranking.relevance import common_level
from tests import reference
from tests.evaluation.random_collections import assert_same, using


def sets(*rows):
    """Labels `[N, 1, M]` from rows of labels at one level."""
    most = max(map(len, rows))
    return torch.tensor([[[*row, *[-1] * (most - len(row))]] for row in rows])


def random_sets(items, depth=1, classes=5, most=3, seed=0):
    """Sets that form a tree: class c of a level has the parent c // 2; some images have no label at the finest level."""
    random = np.random.default_rng(seed)
    labels = np.full((items, depth, most), -1)
    for row in labels:
        members = random.choice(classes, random.integers(0, most + 1), replace=False)
        if not len(members) and depth > 1:
            row[1:, 0] = random.integers(classes) // 2 ** np.arange(1, depth)
        for column in range(depth):
            row[column, : len(members)] = members // 2**column
    return torch.from_numpy(labels)


def plain_lists(embeddings, labels):
    """(scores, levels) of each query in the slowest way, in float64; the query itself has level −1."""
    vectors = embeddings.double().numpy()
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    members = [[set(column) - {-1} for column in row] for row in labels.tolist()]
    lists = []
    for query, own in enumerate(members):
        level = []
        for item, other in enumerate(members):
            shared = 0
            for mine, theirs in zip(reversed(own), reversed(other), strict=True):
                if not mine & theirs:
                    break
                shared += 1
            level.append(-1 if item == query else shared)
        lists.append(((vectors @ vectors[query]).tolist(), level))
    return lists


def test_an_image_of_two_classes_is_a_positive_of_both():
    dog, person, both, cat = [0], [1], [0, 1], [2]
    labels = sets(dog, person, both, cat)
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.1], [1.0, 0.9]])
    report = evaluate(embeddings, labels, per_query=True, progress=False)
    # The dog: cat 0.74 before both 0.67; the person: both first; both: cat, then the person, then the dog; the cat has none.
    assert report.per_query["AP"][:3].tolist() == [1 / 2, 1, (1 / 2 + 2 / 3) / 2]
    assert np.isnan(report.per_query["AP"][3])
    assert report.without_positives == {"label0": 1}
    assert report["R@1"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("depth", [1, 3])
def test_every_metric_equals_a_plain_loop(depth):
    torch.manual_seed(depth)
    embeddings, labels = torch.randn(60, 4), random_sets(60, depth, classes=9)
    report = evaluate(embeddings, labels, per_query=True, progress=False, ks=(1, 5))
    names = [f"label{column}" for column in range(depth)]
    for query, (scores, level) in enumerate(plain_lists(embeddings, labels)):
        expected = reference.listed_metrics(reference.from_the_top(scores, level), names, (1, 5))
        for key in report:
            assert report.per_query[key][query] == pytest.approx(expected[key], abs=1e-12, nan_ok=True), key


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), depth=st.integers(1, 3), extra=st.integers(1, 2))
def test_sets_of_one_label_are_that_label(seed, depth, extra):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(12, 3, generator=generator)
    fine = torch.randint(-1, 6, (12,), generator=generator)
    labels = torch.stack([fine.where(fine < 0, fine >> column) for column in range(depth)], 1)
    padded = torch.nn.functional.pad(labels[..., None], (0, extra), value=-1)
    expected = evaluate(embeddings, labels, per_query=True, progress=False)
    assert_same(evaluate(embeddings, padded, per_query=True, progress=False), expected, 1e-15)
    assert_same(evaluate(embeddings, labels[..., None], per_query=True, progress=False), expected)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), depth=st.integers(1, 3))
def test_order_and_repeats_of_labels_do_not_matter(seed, depth):
    labels = random_sets(12, depth, seed=seed)
    embeddings = torch.randn(12, 3, generator=torch.Generator().manual_seed(seed))
    order = torch.randperm(3, generator=torch.Generator().manual_seed(seed))
    repeated = torch.cat([labels[..., order], labels], -1)
    expected = evaluate(embeddings, labels, per_query=True, progress=False)
    assert_same(evaluate(embeddings, repeated, per_query=True, progress=False), expected)


def test_a_gallery_may_have_one_label_an_image_where_queries_have_several():
    queries, gallery = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.1], [1.0, 0.2], [1.0, 0.3]])
    report = evaluate(queries, sets([0, 1]), gallery, torch.tensor([2, 1, 0]), per_query=True, progress=False)
    assert report.per_query["AP"].tolist() == [(1 / 2 + 2 / 3) / 2]
    turned = evaluate(gallery, torch.tensor([2, 1, 0]), queries, sets([0, 1]), progress=False)
    assert turned["R@1"] == 1
    assert turned.without_positives == {"label0": 1}


@pytest.mark.parametrize("ordering", [plain, compiled])
def test_blocks_chunks_and_the_way_of_ordering_change_nothing(ordering, monkeypatch):
    torch.manual_seed(0)
    embeddings, labels = torch.randn(150, 8), random_sets(150, 2, classes=7)
    embeddings[100:120] = embeddings[:20]  # ties
    expected = evaluate(embeddings, labels, per_query=True, progress=False)
    monkeypatch.setattr(positives_module, "_PAIRS", 1000)
    with using(ordering):
        for budget in (20_000, None):
            found = evaluate(embeddings, labels, per_query=True, progress=False, memory_budget=budget)
            assert_same(found, expected, 1e-12)
        top = evaluate(embeddings, labels, metrics=["R@1", "P@10", "H-P@5"], per_query=True, progress=False)
    for key in top:
        reference_values = evaluate(embeddings, labels, metrics=[key, "AP"], per_query=True, progress=False).per_query[key]
        np.testing.assert_allclose(top.per_query[key], reference_values, atol=1e-12)


def test_levels_are_those_of_the_definition():
    queries, gallery = random_sets(20, 3, classes=9), random_sets(30, 3, classes=9, seed=1)
    excluded = torch.full((20, 1), -1)
    excluded[3] = 7
    expected = common_level(queries, gallery)
    found = SetPositives(queries, gallery, excluded)
    every = torch.arange(30).expand(20, -1)
    assert torch.equal(found.levels(torch.arange(20), every), expected)
    assert found.levels(torch.arange(20), torch.full((20, 1), -1)).sum() == 0
    expected[3, 7] = 0
    listed = found.items_of(np.arange(20))
    dense = torch.zeros(20, 31, dtype=torch.int8).scatter(1, listed.item.where(listed.item >= 0, 30), listed.level)[:, :30]
    assert torch.equal(dense, expected)
    assert found.sizes(torch.tensor([3]))[0].tolist() == [[int((expected[3] >= level).sum()) for level in (1, 2, 3)]]


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), depth=st.integers(1, 3))
def test_in_a_tree_the_level_is_that_of_the_closest_pair_of_labels(seed, depth):
    random = np.random.default_rng(seed)
    paths = [[[one >> column for column in range(depth)] for one in random.choice(9, 3, replace=False)] for _ in range(8)]
    found = common_level(torch.tensor(paths).transpose(1, 2))
    assert found.tolist() == [
        [max(reference.common_level(mine, theirs) for mine in own for theirs in other) for other in paths] for own in paths
    ]


def test_judgments_are_the_levels_of_the_sets():
    judged = Qrels.from_labels(sets([0, 1], [1], [2]))
    assert judged.to_dict() == {"0": {"1": 1}, "1": {"0": 1}}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(3, 1, 0, dtype=torch.int64), r"\[N, L, M\] if an item has up to M labels"),
        (torch.zeros(3, 1, 2, 2, dtype=torch.int64), r"shape \(3, 1, 2, 2\)"),
        (torch.tensor([[[0, -2]], [[0, 1]], [[1, 1]]]), "labels hold -2 in row 0"),
        (
            torch.tensor([[[0, 1], [-1, -1]], [[0, 1], [0, 0]], [[1, 1], [0, 0]]]),
            "a label of label0, but none",
        ),
        (
            torch.tensor([[[0, 1], [0, 1]], [[0, -1], [2, -1]], [[1, 1], [0, 1]]]),
            "label0 0 has no parent, because",
        ),
    ],
)
def test_labels_that_are_no_sets_or_no_tree_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        evaluate(torch.randn(3, 2), labels, progress=False)


@pytest.mark.parametrize("given", [torch.Tensor.bool, lambda one: one.bool().numpy(), lambda one: one.bool().tolist()])
def test_truth_values_of_classes_are_the_sets_of_the_true_ones(given):
    hot = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 0, 1], [0, 0, 0], [0, 0, 1]])[:, None]
    embeddings = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    expected = evaluate(embeddings, sets([0, 1], [1], [0, 2], [], [2]), per_query=True)
    assert_same(evaluate(embeddings, given(hot), per_query=True), expected)
    assert evaluate(embeddings, given(hot), embeddings.flip(0), hot.bool().flip(0), self_index=range(4, -1, -1))["AP"] == (
        pytest.approx(expected["AP"])
    )
