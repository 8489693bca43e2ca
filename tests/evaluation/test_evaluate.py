"""`evaluate`: lists checked by hand, every metric against the loops, laws that hold for any collection, edges and bad input."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.evaluation import Report, evaluate, memory_plan
from suprank.evaluation.embeddings import Embeddings
from suprank.ranking import Sigmoid, hierarchical_average_precision, ranks, tree_relevance
from suprank.ranking.exact import Places, compiled, plain
from tests import reference
from tests.evaluation.random_collections import (
    KS,
    ORDERINGS,
    PLENTY,
    SOME,
    Collection,
    assert_same,
    collections,
    mean,
    random_collection,
    using,
)

# Drawn queries and galleries share rows, and a query may be left in its own list on purpose; test_overlap.py has the warning.
pytestmark = [
    pytest.mark.filterwarnings("ignore::suprank.evaluation.QueryInGalleryWarning"),
    pytest.mark.filterwarnings("ignore:most images are there twice"),  # a small draw with copies
]

FLAT_AT_K = ["R@{}", "TR@{}", "P@{}", "mAP@{}"]
NAMED_AT_K = ["NDCG@{}", "NDCG-linear@{}", "MRR@{}", "recall-all@{}", "AP-all@{}"]  # computed where they are named
FLAT = ["AP", "mAP@R", "R-P", "MRR"]


def query_and_list(*levels, ties=(), depth=None):
    """One query and its gallery, best first, except that the items in `ties` score as the item before them does.

    Level l at depth L is l coarse columns of the query's own label, 0, and others of their own.
    """
    depth = max(*levels, 1) if depth is None else depth
    angles, angle = [], 0.0
    for item in range(len(levels)):
        angle += 0 if item in ties else 0.1
        angles.append(angle)
    gallery = torch.tensor([[math.cos(angle), math.sin(angle)] for angle in angles])
    labels = [
        [0 if depth - column <= own else 10 * item + 1 + column for column in range(depth)] for item, own in enumerate(levels)
    ]
    return {"data": torch.tensor([[1.0, 0.0]]), "labels": [[0] * depth], "gallery": gallery, "gallery_labels": labels}


def one(report: Report, *keys: str):
    return [report[key] for key in keys]


# Worked examples


def test_a_list_by_hand():
    report = evaluate(**query_and_list(1, 0, 1, 0, 0, 1), ks=(1, 2, 4))
    assert report["AP"] == pytest.approx((1 / 1 + 2 / 3 + 3 / 6) / 3)
    assert one(report, "R@1", "R@2", "R@4") == [1, 1, 1]
    assert one(report, "TR@1", "TR@2", "TR@4") == pytest.approx([1, 1 / 2, 2 / 3])
    assert one(report, "P@1", "P@2", "P@4") == pytest.approx([1, 1 / 2, 2 / 4])
    assert one(report, "mAP@1", "mAP@2", "mAP@4") == pytest.approx([1, 1 / 2, (1 + 2 / 3) / 3])
    assert report["mAP@R"] == pytest.approx((1 + 2 / 3) / 3)
    assert report["R-P"] == pytest.approx(2 / 3)
    assert report["MRR"] == 1
    assert report["ASI"] == pytest.approx((1 + 1 / 2 + 2 / 3) / 3)
    dcg = 1 + 1 / math.log2(4) + 1 / math.log2(7)
    assert report["NDCG"] == pytest.approx(dcg / (1 + 1 / math.log2(3) + 1 / math.log2(4)))


def test_a_negative_that_ties_with_two_positives_stands_above_them():
    report = evaluate(**query_and_list(1, 1, 0, ties=(1, 2)))
    assert report["AP"] == pytest.approx((1 / 2 + 2 / 3) / 2)  # 0.583
    assert report["MRR"] == 0.5


@pytest.mark.parametrize(("levels", "h_ap"), [((2, 3, 0, 1, 3), 0.7833), ((1, 3, 0, 2, 3), 0.6722)])
def test_the_papers_two_lists_have_one_ap_and_two_h_aps(levels, h_ap):
    # The paper weighs an item by its level alone; `evaluate` also divides by how many items share the level.
    listed = Places(
        torch.tensor([[own for own in levels if own]], dtype=torch.int8), torch.tensor([[1, 2, 4, 5]], dtype=torch.int32)
    )
    relevance = torch.tensor([[1 / 3, 2 / 3, 1]], dtype=torch.float64)
    value = hierarchical_average_precision(listed.graded_ranks(relevance), listed.relevances(relevance))
    assert value.item() == pytest.approx(h_ap, abs=5e-5)
    report = evaluate(**query_and_list(*levels))
    assert report["AP"] == pytest.approx(0.45)
    counted = reference.tree_relevance(levels, depth=3)
    assert report["H-AP"] == pytest.approx(reference.listed_h_ap(counted))
    assert report["H-AP"] != pytest.approx(h_ap, abs=5e-3)


def test_h_ap_prefers_coarse_items_first_where_they_are_few():
    # A fine item weighs 1/20, a coarse one ½/3. Coarse items at places 21, 22, 23 count the 20 fine ones above with 1/20 each.
    perfect = evaluate(**query_and_list(*[2] * 20, *[1] * 3))
    assert perfect["H-AP"] == pytest.approx((1 + (1 + 1 / 6) / 21 + (1 + 2 / 6) / 22 + (1 + 3 / 6) / 23) / 1.5)
    assert round(perfect["H-AP"], 3) == 0.788
    # The other way around every item counts all above it with its own weight.
    inverted = evaluate(**query_and_list(*[1] * 3, *[2] * 20))
    assert inverted["H-AP"] == pytest.approx(1)
    for key in ("NDCG", "wAP", "ASI", "AP"):
        assert inverted[key] < perfect[key] == pytest.approx(1), key


def test_where_h_ap_prefers_coarse_items_its_upper_bound_moves_fine_items_up_and_the_sigmoids_do_not():
    level = torch.tensor([[1] * 3 + [2] * 20])
    relevance = tree_relevance(level, dtype=torch.float64)
    moved = {}
    for name, steps in (("sup", {}), ("smooth", {"plus": Sigmoid(), "minus": Sigmoid()})):
        scores = torch.linspace(0.9, 0.8, 23, dtype=torch.float64)[None].requires_grad_()
        hierarchical_average_precision(ranks(scores, level, relevance, **steps), relevance).sum().backward()
        moved[name] = (scores.grad[0, :3].sum().item(), scores.grad[0, 3:].sum().item())  # coarse, fine
    assert moved["sup"][0] < 0 < moved["sup"][1]
    assert moved["smooth"][1] < 0 < moved["smooth"][0]


def test_asi_by_hand():
    report = evaluate(**query_and_list(1, 2, 0, 2))  # ideal 2 2 1: SI(1) = 0, SI(2) = 1/2, SI(3) = 2/3
    assert report["ASI"] == pytest.approx((0 + 1 / 2 + 2 / 3) / 3)
    assert report["ASI/label0"] == pytest.approx((0 + 1 / 2) / 2)
    assert report["ASI/label1"] == pytest.approx((1 + 1 + 2 / 3) / 3)
    assert report["ASI/overall"] == pytest.approx((report["ASI/label0"] + report["ASI/label1"]) / 2)


def test_a_perfect_list_with_ties_has_ndcg_and_asi_one():
    report = evaluate(**query_and_list(3, 3, 2, 2, 2, 1, 0, 0, ties=(1, 3, 4, 7)))
    assert one(report, "NDCG", "ASI", "AP", "AP/label1", "AP/label2", "mAP@R", "R-P") == pytest.approx([1] * 7)


def test_a_tie_of_levels_is_no_error_for_the_coarse_level_and_one_for_the_fine_level():
    report = evaluate(**query_and_list(2, 1, ties=(1,)))
    assert one(report, "AP/label1", "AP/label0") == pytest.approx([1, 1 / 2])
    assert report["ASI"] == pytest.approx((0 + 1) / 2)


def test_weights_come_by_name_or_the_finest_first():
    lists = query_and_list(1, 2)  # AP of the finest level 1/2, of the coarse one 1
    assert evaluate(**lists, weights=[3, 1])["wAP"] == pytest.approx((3 * 0.5 + 1) / 4)
    assert evaluate(**lists, weights={"label1": 1})["wAP"] == pytest.approx(1)
    named = evaluate(**lists, weights={"fine": 3, "coarse": 1}, levels=["fine", "coarse"])
    assert named["wAP"] == pytest.approx((3 * 0.5 + 1) / 4)


def test_decay_grades_the_coarse_levels_down():
    lists = query_and_list(1, 2)
    values = [evaluate(**lists, decay=decay)["H-R@1"] for decay in (0, 1, 3)]
    assert values == pytest.approx([1 / 2, 0.5 / 1.5, 0.125 / 1.125])


# The loops


@ORDERINGS
@PLENTY
@given(collection=collections(), decay=st.sampled_from([0.0, 0.5, 1.0, 3.0]), data=st.data())
def test_every_metric_of_every_query_equals_the_loops(ordering, collection, decay, data):
    weights = data.draw(st.lists(st.integers(0, 3), min_size=collection.depth, max_size=collection.depth).filter(any))
    with using(ordering):
        report = collection.evaluated(decay=decay, weights=weights)
        named = collection.evaluated(
            metrics=["AP", "NDCG-linear", *(name.format(k) for name in NAMED_AT_K for k in (1, 3, 100))]
        )
    report = replace(report, means=report.means | named.means, per_query=report.per_query | named.per_query)
    expected = collection.expected(decay=decay, weights=weights)
    for query, values in enumerate(expected):
        found = {key: report.per_query[key][query] for key in report}
        assert found == pytest.approx({key: values[key] for key in report}, abs=1e-9, rel=0, nan_ok=True)
    for key in report:
        assert report[key] == pytest.approx(mean([values[key] for values in expected]), abs=1e-9, nan_ok=True)
    for column, name in enumerate(collection.names):
        level = collection.depth - column
        without = sum(max(levels, default=0) < level for _, levels in collection.lists())
        assert report.without_positives[name] == without


@ORDERINGS
@SOME
@given(collection=collections())
def test_metrics_at_k_alone_equal_the_loops_also_where_equal_scores_straddle_k(ordering, collection):
    names = [*FLAT_AT_K, *NAMED_AT_K, "H-P@{}", "H-R@{}"]
    expected = collection.expected()
    for ks in ((1,), (2,), (3, 1), (100, 5)):
        keys = [name.format(k) for name in names for k in ks]
        keys += [f"{name.format(ks[0])}/{level}" for name in FLAT_AT_K for level in [*collection.names, "overall"]]
        with using(ordering):
            report = collection.evaluated(metrics=keys)
        assert list(report) == keys
        for query, values in enumerate(expected):
            found = {key: report.per_query[key][query] for key in keys}
            assert found == pytest.approx({key: values[key] for key in keys}, abs=1e-9, rel=0, nan_ok=True)


@pytest.mark.parametrize("items", [0, 150])
@pytest.mark.parametrize("seed", range(3))
def test_ordinary_floats_equal_the_loops(seed, items):
    collection = random_collection(seed, queries=21, items=items, depth=3)
    lists = collection.lists()
    gaps = [np.diff(np.sort(scores)).min() for scores, _ in lists]
    if min(gaps) < 1e-6:  # float32 may see the two the other way round
        lists = [one for one, gap in zip(lists, gaps, strict=True) if gap >= 1e-6]
        assert len(lists) > 10
    report = collection.evaluated()
    expected = collection.expected()
    for query, values in enumerate(expected):
        if gaps[query] >= 1e-6:
            found = {key: report.per_query[key][query] for key in report}
            assert found == pytest.approx({key: values[key] for key in report}, abs=1e-9, rel=0, nan_ok=True)


# Laws


def shuffled(collection: Collection, seed: int) -> tuple[Collection, list[int]]:
    """The same collection with its gallery and its queries in another order, and where each query went."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randperm(len(collection.embeddings), generator=generator).tolist()
    items = torch.randperm(len(collection.gallery), generator=generator).tolist()
    moved = Collection(
        [collection.embeddings[i] for i in queries],
        [collection.labels[i] for i in queries],
        [collection.gallery[i] for i in items],
        [collection.gallery_labels[i] for i in items],
        normalize=collection.normalize,
    )
    return moved, queries


@ORDERINGS
@pytest.mark.parametrize(("queries", "items", "dim"), [(1, 1, 1), (5, 63, 3), (67, 130, 17), (70, 333, 40)])
def test_the_order_of_items_and_of_queries_is_irrelevant(ordering, queries, items, dim):
    collection = random_collection(3, queries, items, dim, depth=3, copies=items // 3)
    moved, order = shuffled(collection, 1)
    with using(ordering):
        before, after = collection.evaluated(), moved.evaluated()
    for key in before:
        np.testing.assert_array_equal(after.per_query[key], before.per_query[key][order], err_msg=key)
        assert after[key] == pytest.approx(before[key], rel=1e-12, nan_ok=True)


@SOME
@given(collection=collections(), data=st.data())
def test_names_of_labels_are_irrelevant(collection, data):
    new = data.draw(st.lists(st.integers(0, 2**62), min_size=4, max_size=4, unique=True))

    def renamed(rows):
        return rows and [[-1 if own < 0 else new[own] for own in row] for row in rows]

    other = Collection(**{**vars(collection), "labels": renamed(collection.labels)})
    other.gallery_labels = renamed(collection.gallery_labels)
    assert_same(other.evaluated(), collection.evaluated())


@pytest.mark.parametrize("seed", range(3))
def test_distractors_never_raise_a_metric_and_leave_far_ones_without_effect(seed):
    collection = random_collection(seed, 20, 90, depth=2)
    generator = torch.Generator().manual_seed(seed)
    before = collection.evaluated()
    more = torch.randn(40, 7, generator=generator).tolist()
    crowded = Collection(
        collection.embeddings, collection.labels, collection.gallery + more, collection.gallery_labels + [[-1, -1]] * 40
    )
    after = crowded.evaluated()
    # H-P@k may rise: a distractor at the k-th place takes the place of an item whose relevance bounds the others'.
    for key in [key for key in before if not key.startswith("H-P")]:
        assert not (after.per_query[key] > before.per_query[key] + 1e-12).any(), key
    assert after["AP"] < before["AP"]


def test_the_length_of_an_embedding_is_irrelevant():
    collection = random_collection(1, 30, 100, 9)
    before = collection.evaluated()
    generator = torch.Generator().manual_seed(0)
    scale = 2.0 ** torch.randint(-60, 60, (130, 1), generator=generator)
    scaled = Collection(**vars(collection))
    scaled.embeddings = (torch.tensor(collection.embeddings) * scale[:30]).tolist()
    scaled.gallery = (torch.tensor(collection.gallery) * scale[30:]).tolist()
    assert_same(scaled.evaluated(), before)


@SOME
@given(collection=collections(deepest=1))
def test_h_ap_and_wap_are_ap_where_there_is_one_level(collection):
    report = collection.evaluated(decay=2.0)
    for key in ("H-AP", "wAP"):
        np.testing.assert_allclose(report.per_query[key], report.per_query["AP"], rtol=1e-12)


@SOME
@given(collection=collections())
def test_wap_is_the_mean_of_ap_over_the_levels_unless_weighted(collection):
    report = collection.evaluated(metrics=["wAP", "AP/overall"])
    np.testing.assert_allclose(report.per_query["wAP"], report.per_query["AP/overall"], rtol=1e-12)


def test_metrics_without_a_level_are_those_of_the_finest():
    report = random_collection(0).evaluated()
    for key in [*FLAT, *(name.format(k) for name in FLAT_AT_K for k in KS)]:
        np.testing.assert_array_equal(report.per_query[key], report.per_query[f"{key}/label0"])


@ORDERINGS
@pytest.mark.parametrize("budget", [1, 64 * 2**10])
@pytest.mark.parametrize(("queries", "items", "dim"), [(37, 0, 7), (65, 350, 19), (3, 1030, 130)])
@pytest.mark.parametrize("readings", [2, 0], ids=["rows whole", "rows in pieces"])
def test_the_memory_budget_changes_no_bit(readings, ordering, budget, queries, items, dim, monkeypatch):
    collection = random_collection(5, queries, items, dim, classes=9, copies=(items or queries) // 3)
    collection.ignored = [[query % 3, (7 * query) % (items or queries)] for query in range(queries)]
    keys = ["R@1", "TR@5", "P@10", "mAP@10/overall", "H-P@3", "H-R@10"]
    with using(ordering):
        expected, expected_top = collection.evaluated(), collection.evaluated(metrics=keys)
        monkeypatch.setattr("suprank.evaluation.memory_plan._READINGS", readings)
        assert_same(collection.evaluated(memory_budget=budget), expected)
        assert_same(collection.evaluated(metrics=keys, memory_budget=budget), expected_top)


@ORDERINGS
@pytest.mark.parametrize("readings", [2, 0], ids=["rows whole", "rows in pieces"])
def test_a_gallery_in_a_file_is_judged_as_one_in_memory(readings, ordering, monkeypatch, tmp_path):
    collection = random_collection(6, 30, 500, 9, classes=7, copies=100)
    np.save(tmp_path / "gallery.npy", np.array(collection.gallery, np.float32))
    given = {"ks": KS, "per_query": True, "progress": False, "device": "cpu"}
    with using(ordering):
        expected = collection.evaluated()
        monkeypatch.setattr("suprank.evaluation.memory_plan._READINGS", readings)
        found = evaluate(
            torch.tensor(collection.embeddings),
            collection.labels,
            tmp_path / "gallery.npy",
            collection.gallery_labels,
            memory_budget=2**14,
            **given,
        )
    assert_same(found, expected)


def test_the_memory_budget_may_be_written_as_a_float():
    collection = random_collection(5, 3, 3000, 130)
    assert_same(collection.evaluated(memory_budget=1.5e6), collection.evaluated(memory_budget=1_500_000))


@pytest.mark.parametrize("budget", [None, 2**16])
def test_plain_ordering_gives_what_the_compiled_one_does(budget):
    collection = random_collection(7, 40, 500, 6, classes=5, depth=3, copies=200)
    collection.ignored = [[query, 3 * query, 499] for query in range(40)]
    reports = []
    for ordering in (plain, compiled):
        with using(ordering):
            reports.append(collection.evaluated(memory_budget=budget))
    assert_same(*reports, tolerance=1e-12)


@ORDERINGS
def test_the_number_of_threads_changes_no_bit(ordering):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    collection = random_collection(2, 140, 600, 33, depth=3, copies=100)
    with using(ordering):
        before = collection.evaluated()
        try:
            for threads in (2, 3):
                torch.set_num_threads(threads)
                with threadpoolctl.threadpool_limits(threads, user_api="blas"):
                    assert_same(collection.evaluated(), before)
        finally:
            torch.set_num_threads(1)


def test_when_metrics_look_at_the_top_only_nothing_else_is_ranked(monkeypatch):
    collection = random_collection(0)
    for ordering in (plain, compiled):
        monkeypatch.setattr(ordering, "count_at_or_above", lambda *_: pytest.fail("counted what stands above a positive"))
    keys = ["R@1", "H-R@5", "P@3/label1"]
    assert list(collection.evaluated(metrics=keys)) == keys


# Which items are in the list


def test_without_a_gallery_the_query_is_not_in_its_list_and_its_copy_is():
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    report = evaluate(embeddings, [0, 0, 1], per_query=True, ks=(1,))
    assert report.per_query["R@1"].tolist() == pytest.approx([1, 1, math.nan], nan_ok=True)
    assert report.without_positives == {"label0": 1}


def test_ids_may_be_python_objects():
    embeddings, labels = torch.eye(3), [0, 0, 0]
    objects = np.array(list("abc"), dtype=object)  # as pandas gives them
    expected = evaluate(embeddings, labels, embeddings, labels, self_index=[0, 1, 2])
    assert evaluate(embeddings, labels, embeddings, labels, ids=objects, gallery_ids=list("abc")).means == expected.means


def test_with_a_gallery_the_query_is_in_its_list_unless_told():
    embeddings, labels = torch.eye(3), [0, 1, 2]
    assert evaluate(embeddings, labels, embeddings, labels)["R@1"] == 1
    output = [{"self_index": [0, 1, 2]}, {"ids": list("abc"), "gallery_ids": list("abc")}, {"ignored": [[0], [1], [2]]}]
    for settings in output:
        report = evaluate(embeddings, labels, embeddings, labels, **settings)
        assert math.isnan(report["R@1"])
        assert report.without_positives == {"label0": 3}


def test_an_opened_source_may_be_both_the_queries_and_the_gallery():
    embeddings, labels = Embeddings.from_source(torch.eye(3)), [0, 1, 2]
    assert evaluate(embeddings, labels, embeddings, labels)["R@1"] == 1


def test_self_index_may_point_nowhere_also_without_a_gallery():
    report = evaluate(torch.eye(2), [0, 1], self_index=torch.tensor([-1, 1]), per_query=True, ks=(1,))
    assert report.per_query["R@1"].tolist() == pytest.approx([1, math.nan], nan_ok=True)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ([7, 8], [8, 7, 7]),
        (["x", "yy"], ["yy", "x", "x"]),
        (np.array([7, 8], np.uint8), np.array([8, 7, 7], np.int64)),
        (torch.tensor([7, 8]), [8, 7, 7]),
    ],
)
def test_every_item_of_the_querys_id_is_left_out(mine, theirs):
    report = evaluate(torch.eye(2), [0, 0], torch.ones(3, 2), [0, 0, 0], ids=mine, gallery_ids=theirs, per_query=True, ks=(1,))
    assert report.per_query["P@1"].tolist() == [1, 1]
    assert evaluate(torch.eye(2), [0, 0], torch.ones(3, 2), [0, 0, 0], ids=mine, gallery_ids=theirs, ks=(5,))[
        "P@5"
    ] == pytest.approx((1 + 2) / 2 / 5)


def test_large_ids_of_two_integer_types_are_told_apart():
    mine, theirs = np.array([2**60 + 1], np.uint64), np.array([2**60, 2**60 + 1], np.int64)  # one number in float64
    report = evaluate(torch.ones(1, 2), [0], torch.ones(2, 2), [0, 1], ids=mine, gallery_ids=theirs)
    assert report["AP"] == 1


def test_ids_beyond_int64_are_refused_rather_than_mixed_up():
    ids = [2**63 + 1, 2**63 + 2, 5]  # hashes; numpy makes float64 of such a list, in which the first two are one
    with pytest.raises(ValueError, match="float64.*convert them with str"):
        evaluate(torch.ones(3, 2), [0, 0, 0], ids=ids)


def test_junk_named_twice_or_being_the_query_is_left_out_once():
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [1.0, 0.3]])
    report = evaluate(embeddings, [0, 0, 0, 1], ignored=[[0, 1, 1, -1], [], [], []], per_query=True, ks=(1,))
    assert report.per_query["AP"][0] == 1
    assert report.per_query["P@1"].tolist()[:3] == [1, 1, 0]
    assert report.per_query["TR@1"][0] == 1


def test_a_query_all_of_whose_items_are_ignored_has_no_value():
    report = evaluate(torch.eye(3), [0, 0, 0], ignored=[[0, 1, 2], [], []], per_query=True)
    for values in report.per_query.values():
        assert np.isnan(values).tolist() == [True, False, False]
    assert report.without_positives == {"label0": 1}
    top = evaluate(torch.eye(3), [0, 0, 0], ignored=[[0, 1, 2], [], []], per_query=True, metrics=["R@1", "H-P@2", "H-R@1"])
    for values in top.per_query.values():
        assert np.isnan(values).tolist() == [True, False, False]


# Edges


@pytest.mark.parametrize("labels", [[[0]], [[-1]], [[3, 4]], [[-1, -1]], [[-1, 2]]])
def test_one_item_ranked_against_itself_has_no_value(labels):
    report = evaluate(torch.ones(1, 1), labels)
    assert all(math.isnan(value) for value in report.values())
    assert set(report.without_positives.values()) == {1}


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("metrics", [None, ["R@1", "H-P@1", "H-R@1", "P@1/overall"]])
def test_queries_without_any_positive_have_no_value_and_are_counted(depth, metrics):
    gallery_labels = [[7] * depth, [8] * depth]
    for labels in ([[1] * depth] * 3, [[-1] * depth] * 3):
        report = evaluate(torch.ones(3, 2), labels, torch.ones(2, 2), gallery_labels, per_query=True, metrics=metrics)
        assert all(math.isnan(value) for value in report.values())
        assert all(np.isnan(values).all() for values in report.per_query.values())
        assert list(report.without_positives.values()) == [3] * depth


def test_a_query_labeled_at_the_coarse_level_only_is_judged_there():
    labels, gallery_labels = [[-1, 0]], [[-1, 0], [3, 0], [4, 1], [-1, -1]]
    report = evaluate(torch.ones(1, 2), labels, torch.ones(4, 2), gallery_labels)
    assert math.isnan(report["AP"])
    assert report["AP/label1"] == report["AP/overall"] == report["wAP"] == pytest.approx((1 / 3 + 2 / 4) / 2)
    assert report.without_positives == {"label0": 1, "label1": 0}


def test_embeddings_that_are_all_equal_put_the_worst_items_first():
    report = evaluate(torch.ones(5, 3), [0, 0, 1, 1, 1], per_query=True, ks=(2,))
    assert report.per_query["AP"].tolist() == pytest.approx([1 / 4, 1 / 4, *[(1 / 3 + 2 / 4) / 2] * 3])
    assert report.per_query["R@2"].tolist() == [0] * 5


def test_the_two_zeros_are_one_score():
    gallery = torch.tensor([[0.0, 1.0], [-0.0, -1.0], [0.0, 1.0]])
    report = evaluate(torch.tensor([[1.0, 0.0]]), [0], gallery, [0, 1, 0])
    assert report["AP"] == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_labels_come_in_any_form():
    embeddings = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    labels = [0, 1, 0, 1, 0, 1]
    forms = [
        labels,
        tuple(labels),
        np.array(labels, np.int8),
        np.array([(7, own) for own in labels], [("id", np.int32), ("label", np.int64)])["label"],
        np.array(labels[::-1])[::-1],
        torch.tensor(labels, dtype=torch.uint8),
        [[own] for own in labels],
    ]
    reports = [evaluate(embeddings, form, per_query=True) for form in forms]
    assert all(report == reports[0] for report in reports)


def test_inputs_are_left_as_they_were():
    collection = random_collection(0, 9, 80)
    embeddings, gallery = torch.tensor(collection.embeddings), torch.tensor(collection.gallery)
    labels, index = torch.tensor(collection.labels), np.zeros(9, np.int64)
    copies = embeddings.clone(), gallery.clone(), labels.clone(), index.copy()
    evaluate(embeddings, labels, gallery, collection.gallery_labels, self_index=index, normalize=False)
    assert torch.equal(embeddings, copies[0])
    assert torch.equal(gallery, copies[1])
    assert torch.equal(labels, copies[2])
    assert (index == copies[3]).all()


def test_a_k_beyond_the_gallery_counts_missing_places_as_wrong():
    lists = query_and_list(0, 1, 1)
    for settings in ({"ks": (4, 1000)}, {"metrics": [f"{name}@{k}" for name in ("R", "TR", "P", "mAP") for k in (4, 1000)]}):
        report = evaluate(**lists, **settings)
        assert one(report, "R@4", "R@1000") == [1, 1]
        assert one(report, "TR@4", "TR@1000") == [1, 1]
        assert one(report, "P@4", "P@1000") == pytest.approx([2 / 4, 2 / 1000])
        assert one(report, "mAP@4", "mAP@1000") == pytest.approx([(1 / 2 + 2 / 3) / 2] * 2)


@pytest.mark.parametrize("settings", [{"ks": (10_000,)}, {"metrics": ["P@10000", "H-P@10000"]}])
def test_a_k_beyond_the_gallery_takes_no_more_room_than_the_gallery(monkeypatch, settings):
    widths, ranks_of = [], Places.ranks
    monkeypatch.setattr(Places, "ranks", lambda self, *given: widths.append(self.level.shape[1]) or ranks_of(self, *given))
    collection = random_collection(0, 5, 70)
    report = collection.evaluated(**settings)
    assert report["P@10000"] < 1e-2
    assert max(widths) <= 128


def test_many_levels():
    depth = 127
    labels = np.zeros((3, depth), np.int64)
    labels[1, :100] = 1  # shares the 27 coarsest
    labels[2] = 2
    report = evaluate(torch.eye(3), labels, metrics=["AP/label126", "AP/label100", "NDCG", "H-AP", "ASI"], per_query=True)
    assert report.without_positives["label0"] == 3
    assert report.without_positives["label100"] == 1
    assert np.isnan(report.per_query["H-AP"]).tolist() == [False, False, True]
    assert report.per_query["AP/label100"][:2].tolist() == [0.5, 0.5]


# Progress and the report


@pytest.mark.parametrize("metrics", [None, ["R@1"]])
def test_progress_is_told_and_ends_at_the_total(metrics):
    calls = []
    collection = random_collection(0, 40, 300)
    collection.evaluated(
        progress=lambda done, total: calls.append((done, total)), memory_budget=2**16, metrics=metrics or ["AP"]
    )
    assert len(calls) > 1
    assert calls[-1] == (40, 40)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_progress_never_goes_back_where_ties_are_ranked_again(monkeypatch):
    monkeypatch.setitem(memory_plan._LEAST_STREAMED, "cpu", 64)
    calls, embeddings, labels = [], torch.ones(1200, 8), torch.arange(1200) // 2
    options = {"metrics": ["R@1"], "memory_budget": 30_000, "progress": lambda done, total: calls.append(done)}
    evaluate(embeddings[:200], labels[:200], embeddings, labels, self_index=range(200), **options)
    assert calls == sorted(calls)
    assert calls[-1] == 200
    assert len(set(calls)) > 10


def test_progress_is_told_while_a_gallery_is_streamed_for_one_block(monkeypatch):
    monkeypatch.setitem(memory_plan._LEAST_STREAMED, "cpu", 64)
    calls, embeddings = [], torch.randn(1200, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(1200) // 2
    options = {"metrics": ["AP"], "memory_budget": 30_000, "progress": lambda done, total: calls.append((done, total))}
    evaluate(embeddings[:32], labels[:32], embeddings, labels, self_index=range(32), **options)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert len({done for done, _ in calls}) > 10
    assert calls[-1] == (32, 32)
    assert calls[-2][0] < 32


def test_nothing_is_shown_where_there_is_no_terminal(capsys):
    random_collection(0).evaluated(progress=True)
    assert capsys.readouterr() == ("", "")


def test_a_bar_is_closed_at_the_end_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("suprank.system.progress.DELAY", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    random_collection(0, 40, 300).evaluated(progress=True, memory_budget=2**17)
    shown = capsys.readouterr().err
    assert "evaluating: 100%" in shown
    assert "40/40" in shown
    assert shown.endswith("\n")
    assert shown.count("\n") == 1


def test_a_report_of_two_levels_has_these_keys_and_no_others():
    report = evaluate(torch.eye(4), [[0, 0], [0, 0], [1, 0], [2, 1]], ks=(1, 10), levels=["fine", "coarse"])
    levels = ["", "/fine", "/coarse", "/overall"]
    expected = [f"{name}@{k}{level}" for name in ("R", "TR", "P", "mAP") for k in (1, 10) for level in levels]
    expected += [f"{name}{level}" for name in ("AP", "mAP@R", "R-P", "MRR") for level in levels]
    expected += ["ASI", "ASI/fine", "ASI/coarse", "ASI/overall", "H-AP", "wAP", "NDCG"]
    expected += [f"{name}@{k}" for name in ("H-P", "H-R") for k in (1, 10)]
    assert sorted(report) == sorted(expected)
    assert (report.n_queries, report.n_items, report.levels) == (4, 4, ("fine", "coarse"))
    assert report.without_positives == {"fine": 2, "coarse": 1}
    assert report.per_query is None
    assert report.query_ids is None
    assert dict(report.settings) == {"ks": (1, 10), "decay": 1.0, "weights": {"fine": 0.5, "coarse": 0.5}, "normalize": True}


# Means over levels

# Angles on a circle. Items 2 and 5 are of one class, items 2 to 5 of one family; the others have no positives in their class.
SIX = torch.deg2rad(torch.tensor([0.0, 10, 23, 38, 56, 77], dtype=torch.float64))
SIX = torch.stack([SIX.cos(), SIX.sin()], 1)
SIX_LABELS = [[4, 1], [3, 1], [0, 0], [2, 0], [1, 0], [0, 0]]
IN_CLASS = [1 / 5, 1 / 3]  # AP of items 2 and 5, which find each other at places 5 and 3
IN_FAMILY = [1, 1, (1 / 2 + 2 / 4 + 3 / 5) / 3, (1 + 1 + 3 / 5) / 3, 1, 1]


def test_the_mean_over_queries_and_the_mean_of_levels_differ_where_queries_lack_positives():
    keys = ["AP/fine", "AP/coarse", "AP/overall", "AP/mean-of-levels"]
    report = evaluate(SIX, SIX_LABELS, levels=["fine", "coarse"], metrics=keys, per_query=True)
    assert list(report) == keys
    assert report["AP/fine"] == pytest.approx(sum(IN_CLASS) / 2)
    assert report["AP/coarse"] == pytest.approx(sum(IN_FAMILY) / 6)
    assert report["AP/mean-of-levels"] == pytest.approx((sum(IN_CLASS) / 2 + sum(IN_FAMILY) / 6) / 2)
    of_queries = [1, 1, (IN_CLASS[0] + IN_FAMILY[2]) / 2, IN_FAMILY[3], 1, (IN_CLASS[1] + 1) / 2]
    assert report["AP/overall"] == pytest.approx(sum(of_queries) / 6)
    assert (round(report["AP/overall"], 3), round(report["AP/mean-of-levels"], 3)) == (0.817, 0.583)
    assert list(report.per_query) == keys[:3]  # the last is not a mean over queries
    labels = [[row // 2, 0] for row in range(60)]
    many = evaluate(SIX.repeat(10, 1), labels, levels=["fine", "coarse"], metrics=keys, intervals=True)
    assert list(many.intervals) == keys[:3]
    with pytest.raises(ValueError, match="AP/mean-of-levels has no values per query"):
        report.compare(report, ["AP/mean-of-levels"])


def test_the_mean_of_levels_needs_no_other_metric_and_comes_in_reports_and_files(tmp_path):
    options = {"levels": ["fine", "coarse"], "metrics": ["R@1/mean-of-levels", "ASI/mean-of-levels"]}
    report = evaluate(SIX, SIX_LABELS, **options)
    levels = evaluate(SIX, SIX_LABELS, levels=["fine", "coarse"], ks=(1,))
    for name in ("R@1", "ASI"):
        assert report[f"{name}/mean-of-levels"] == (levels[f"{name}/fine"] + levels[f"{name}/coarse"]) / 2
    assert "mean-of-levels" in report.table().splitlines()[3]
    assert "ASI,mean-of-levels," in report.to_csv()
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == report


def test_a_level_without_any_positives_is_left_out_of_the_mean_of_levels():
    options = {"levels": ["fine", "coarse"], "metrics": ["AP/mean-of-levels", "AP/coarse"]}
    report = evaluate(SIX, [[row, coarse] for row, (_, coarse) in enumerate(SIX_LABELS)], **options)
    assert report["AP/mean-of-levels"] == report["AP/coarse"] == pytest.approx(sum(IN_FAMILY) / 6)
    assert math.isnan(evaluate(SIX, [[row, row] for row in range(6)], **options)["AP/mean-of-levels"])


def test_a_report_of_one_level_has_these_keys_and_no_others():
    report = evaluate(torch.eye(3), [0, 0, 1])
    expected = [f"{name}@{k}" for name in ("R", "TR", "P", "mAP") for k in (1, 10, 100)]
    expected += ["AP", "mAP@R", "R-P", "MRR", "ASI", "H-AP", "wAP", "NDCG"]
    assert sorted(report) == sorted(expected)


def test_intervals_are_those_of_the_report_and_need_no_values_per_query():
    collection = random_collection(0)
    found, without = (collection.evaluated(intervals=True, per_query=kept) for kept in (True, False))
    assert found == collection.evaluated(per_query=True).with_intervals()
    assert (without.per_query, without.classes, without.query_ids) == (None, None, None)
    assert without.intervals == found.intervals
    assert without.settings["intervals"] == found.settings["intervals"]


def test_levels_that_are_not_evaluated_decide_the_unit():
    # 40 species in 20 genera and 4 orders, two images each.
    embeddings = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    levels = {"species": torch.arange(80) // 2, "genus": np.arange(80) // 4, "order": (np.arange(80) // 20).tolist()}
    report = evaluate(embeddings, levels["species"], levels=["species"], classes=levels, per_query=True)
    assert report.levels == ("species",)
    assert {level: own.tolist() for level, own in report.classes.items()} == {
        level: np.asarray(own).tolist() for level, own in levels.items()
    }
    assert report.units().level == "genus"
    alone = evaluate(embeddings, levels["species"], levels=["species"], per_query=True)
    assert (alone.units().level, list(alone.classes)) == ("species", ["species"])
    with pytest.raises(ValueError, match=r"classes\['genus'\] have dtype int64 and shape \(3,\)"):
        evaluate(embeddings, levels["species"], classes={"genus": [1, 2, 3]}, per_query=True)


def test_metrics_are_named_as_one_likes():
    report = evaluate(torch.eye(3), [0, 0, 1], metrics=["precision_at_1", "map", "AP", "hit_rate@10"])
    assert list(report) == ["P@1", "AP", "R@10"]
    assert dict(report.settings)["ks"] == (1, 10)


def test_ks_may_be_one_number_or_anything_that_holds_numbers():
    expected = evaluate(torch.eye(3), [0, 0, 1], ks=(2, 5))
    for ks in ([5, 2, 2], np.array([2, 5]), range(2, 6, 3), iter([2, 5])):
        assert evaluate(torch.eye(3), [0, 0, 1], ks=ks) == expected
    assert "R@2" in evaluate(torch.eye(3), [0, 0, 1], ks=2)
    assert "AP" in evaluate(torch.eye(3), [0, 0, 1], ks=())


# Bad input


def refused(match, kind=ValueError, **changes):
    """`evaluate` on three queries and four items, with these changes, says so."""
    given = {
        "data": torch.eye(4)[:3],
        "labels": [[0, 0], [1, 0], [2, 1]],
        "gallery": torch.eye(4),
        "gallery_labels": [[0, 0], [1, 0], [2, 1], [2, 1]],
    }
    with pytest.raises(kind, match=match):
        evaluate(**{**given, **changes})


def test_the_call_that_bad_input_is_made_from_is_good():
    evaluate(torch.eye(4)[:3], [[0, 0], [1, 0], [2, 1]], torch.eye(4), [[0, 0], [1, 0], [2, 1], [2, 1]])


def broken(value, rows=(1, 2), number=4):
    embeddings = torch.eye(4)[:number].clone()
    embeddings[list(rows), 0] = value
    return embeddings


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused_by_row(value):
    refused(r"gallery: 2 of 4 rows \(1, 2\).*NaN.*remove the rows", gallery=broken(value))
    refused(r"embeddings: 1 of 3 rows \(2\).*NaN", data=broken(value, rows=(2,), number=3))
    refused(r"gallery: 2 of 4 rows \(1, 2\).*NaN", gallery=broken(value), normalize=False)


def test_vectors_of_zeros_are_refused_by_row_where_a_direction_is_needed():
    empty = torch.eye(4)
    empty[[0, 3]] = 0
    refused(r"gallery: 2 of 4 rows \(0, 3\) hold nothing but zeros.*remove the rows", gallery=empty)
    refused(r"embeddings: 1 of 3 rows \(0\) hold nothing but zeros", data=empty[:3])
    report = evaluate(torch.eye(4)[:3], [0, 1, 2], empty, [0, 1, 2, 2], normalize=False)
    assert report["AP"] == pytest.approx((1 / 4 + 1 + (1 + 2 / 4) / 2) / 3)


def test_products_beyond_float32_are_refused():
    refused(r"too large|overflow|float32", gallery=1e30 * torch.eye(4), data=1e30 * torch.eye(4)[:3], normalize=False)


@pytest.mark.parametrize(
    ("changes", "kind", "match"),
    [
        ({"data": torch.eye(3)}, ValueError, "embeddings have 3 dimensions and the gallery 4"),
        ({"data": torch.ones(3, 4, dtype=torch.long)}, TypeError, "embeddings holds torch.int64.*floating-point"),
        ({"gallery": torch.empty(0, 4), "gallery_labels": np.empty((0, 2), int)}, ValueError, r"gallery is empty"),
        ({"gallery_labels": None}, ValueError, "a gallery was given without gallery_labels.*give them"),
        ({"gallery": None}, ValueError, "gallery_labels were given without a gallery"),
        ({"labels": [[0, 0]] * 2}, ValueError, "labels have 2 rows and embeddings 3"),
        ({"gallery_labels": [[0, 0]] * 5}, ValueError, "gallery_labels have 5 rows and gallery 4"),
        ({"labels": [0, 1, 2]}, ValueError, r"labels have 1 level\(s\) and gallery_labels 2"),
        ({"labels": torch.zeros(3, 2)}, TypeError, "labels have dtype .*float32, but must be integers"),
        ({"labels": torch.zeros(3, 2, dtype=torch.bool)}, TypeError, "labels have dtype .*bool"),
        ({"labels": [["a", "b"]] * 3}, TypeError, "labels and gallery_labels are of two kinds"),
        ({"labels": np.zeros((3, 2, 1, 1), int)}, ValueError, r"labels have shape \(3, 2, 1, 1\).*\[N, L\]"),
        ({"labels": np.zeros((3, 0), int)}, ValueError, r"labels have shape \(3, 0\).*1 to 127"),
        ({"labels": np.zeros((3, 128), int)}, ValueError, r"labels have shape \(3, 128\).*1 to 127"),
        ({"labels": torch.tensor(0)}, ValueError, r"labels have shape \(\)"),
        ({"gallery_labels": [[0, 0], [0, 0], [-2, 0], [0, 0]]}, ValueError, "gallery_labels hold -2 in row 2"),
        ({"labels": np.array([[2**63, 0]] * 3, np.uint64)}, ValueError, "labels hold 9223372036854775808 in row 0.*below 2"),
        (
            {"gallery_labels": [[0, 1], [1, 0], [2, 1], [2, 1]]},
            ValueError,
            "label0 0 stands under label1 0, and under 1 in row 0 of gallery_labels",
        ),
        ({"gallery_labels": [[0, 0], [1, 0], [2, 1], [3, -1]]}, ValueError, "row 3 of gallery_labels: .* none of label1"),
        ({"device": "meta"}, ValueError, "device='meta' is not supported.*use 'cpu' or 'cuda'"),
        ({"ks": (0,)}, ValueError, r"ks=\(0,\) must be integers of at least 1"),
        ({"ks": (1.5,)}, ValueError, r"ks=\(1.5,\)"),
        ({"ks": (True,)}, ValueError, r"ks=\(True,\)"),
        ({"ks": ("10",)}, ValueError, r"ks=\('10',\)"),
        ({"metrics": "R@1"}, TypeError, r"metrics='R@1' must be a sequence of names; write \['R@1'\]"),
        ({"metrics": []}, ValueError, "metrics is empty"),
        ({"metrics": ["NMI"]}, ValueError, "'NMI' is refused"),
        ({"metrics": ["AP/genus"]}, ValueError, "AP/genus names .*label0, label1"),
        ({"metrics": ["H-AP/label0"]}, ValueError, "H-AP looks at all levels at once"),
        ({"levels": ["a"]}, ValueError, r"levels=\['a'\] must be 2 different name\(s\)"),
        ({"levels": ["a", "a"]}, ValueError, r"levels=\['a', 'a'\] must be 2 different"),
        ({"levels": ["a", "overall"]}, ValueError, "none of them 'overall' or 'mean-of-levels'"),
        ({"levels": ["mean-of-levels", "b"]}, ValueError, "none of them 'overall' or 'mean-of-levels'"),
        ({"levels": "ab"}, ValueError, "levels='ab' must be 2"),
        ({"levels": ["a", ""]}, ValueError, "level name '' must be text"),
        ({"levels": ["a", "b\n"]}, ValueError, "level name 'b.n' must be text of one line"),
        ({"levels": [1, 2]}, ValueError, "level name 1 must be text"),
        ({"weights": [1]}, ValueError, r"there are 1 weights for 2 level\(s\) \(label0, label1\)"),
        ({"weights": [1, -1]}, ValueError, r"weights=\[1, -1\] must be finite, 0 or more"),
        ({"weights": [0, 0]}, ValueError, "at least one above 0"),
        ({"weights": [math.nan, 1]}, ValueError, "must be finite"),
        ({"weights": [math.inf, 1]}, ValueError, "must be finite"),
        ({"weights": {"genus": 1}}, ValueError, "weights name the level 'genus', but the levels are label0, label1"),
        ({"weights": {}}, ValueError, "at least one above 0"),
        ({"decay": -1}, ValueError, "decay=-1 must be 0 or more"),
        ({"decay": math.nan}, ValueError, "decay=nan must be 0 or more"),
        ({"decay": math.inf}, ValueError, "decay"),
        ({"self_index": [0, 1]}, ValueError, r"self_index has shape \(2,\).*3 queries"),
        ({"self_index": [0.0, 1.0, 2.0]}, ValueError, "self_index has.*one integer for each"),
        ({"self_index": [0, 1, 4]}, ValueError, "item 4 is to be left out, but items are numbered 0 to 3"),
        ({"self_index": [0, 1, -2]}, ValueError, "item -2 is to be left out.*−1 stands for none"),
        ({"ids": ["a", "b"]}, ValueError, "there are 2 ids for 3 rows of embeddings"),
        ({"ids": list("abc"), "gallery_ids": list("abc")}, ValueError, "there are 3 ids for 4 rows of gallery"),
        ({"ids": list("abc"), "gallery_ids": [1, 2, 3, 4]}, TypeError, "ids are <U1 and gallery_ids int64.*one type"),
        ({"ids": [1, 2, 3], "gallery_ids": [1.0, 2.0, 3.0, 4.0]}, TypeError, "ids are int64 and gallery_ids float64"),
        (
            {"gallery": None, "gallery_labels": None, "gallery_ids": [1, 2, 3]},
            ValueError,
            "gallery_ids were given without a gallery",
        ),
        ({"ignored": [[0]]}, ValueError, "ignored has 1 lists for 3 queries"),
        ({"ignored": [[0], [], [9]]}, ValueError, "item 9 is to be left out"),
        ({"ignored": [[0], [], [-2]]}, ValueError, "item -2 is to be left out"),
        ({"ignored": torch.zeros(3, 4, dtype=torch.bool)}, TypeError, "ignored"),
        ({"ignored": [[0.5], [], []]}, TypeError, "ignored"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_bad_input_is_refused_with_its_value_and_a_way_out(changes, kind, match):
    refused(match, kind, **changes)


def test_a_fine_label_under_two_parents_is_named_also_across_the_two_sets():
    refused(
        "row 1 of labels: species 1 stands under genus 0, and under 5 in row 1 of gallery_labels",
        gallery_labels=[[0, 0], [1, 5], [2, 1], [2, 1]],
        levels=["species", "genus"],
    )
