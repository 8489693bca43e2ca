"""The label tree and what is measured of its nodes."""

import numpy as np
import pytest

from suprank.data import Manifest
from suprank.explorer import Source
from suprank.explorer.web import Node
from suprank.explorer.web.tree import NodeMetrics, Tree
from tests.explorer.web import drawn


def test_a_walk_from_the_top_to_the_images(one):
    tree = one.tree
    top = tree.children(None)
    assert [(branch.name, branch.images) for branch in top.branches] == [
        ("flower", 24),
        ("polygon", 24),
        ("star", 24),
        ("wheel", 24),
    ]
    flower = top.branches[0].node
    kinds = tree.children(flower)
    assert [(branch.name, branch.images) for branch in kinds.branches] == [("clover", 8), ("nine petals", 8), ("six petals", 8)]
    clover = kinds.branches[0].node
    assert tree.children(clover).branches == ()
    assert tree.ancestors(clover) == [flower]
    assert [tree.name(node) for node in tree.label_path(one.source.gallery.labels[50])] == ["flower", "clover"]


def test_values_of_a_node_are_the_means_of_its_queries(two):
    report = two.runs[1].source.evaluate(metrics=["AP/kind", "R@1/kind", "AP/family"], per_query=True)
    wheel = two.source.names["family"].index("wheel")
    inside = two.source.gallery.labels[:, 1] == wheel
    branch = two.tree.branch(Node(1, wheel))
    assert branch.finest[1].ap == pytest.approx(report.per_query["AP/kind"][inside].mean())
    assert branch.finest[1].r1 == pytest.approx(report.per_query["R@1/kind"][inside].mean())
    assert branch.own[1].ap == pytest.approx(report.per_query["AP/family"][inside].mean())
    assert branch.finest[1].queries == 24
    assert two.tree.children(None).branches[3] == branch
    assert two.node_metrics[1].for_query(50).ap == pytest.approx(report.per_query["AP/kind"][50])


def test_orders(two):
    def found(order):
        return [branch.finest[0].ap for branch in two.tree.children(None, order=order).branches]

    assert found("worst") == sorted(found("name"))
    assert found("best") == sorted(found("name"), reverse=True)
    assert [branch.name for branch in two.tree.children(None, order="images", offset=1, limit=2).branches] == [
        "polygon",
        "star",
    ]


def test_a_second_run_may_number_its_labels_otherwise(one, images):
    few = images.take(np.arange(48, 96))
    other = drawn.source(Manifest.from_columns(few.table, root=few.root, names=None), drawn.by_pixels, "few")
    judged = NodeMetrics(other)
    judged.measure()
    tree = Tree(one.source, [one.node_metrics[0], judged])
    by_name = {branch.name: branch for branch in tree.children(None).branches}
    own = other.names["family"].index("wheel")
    assert by_name["wheel"].finest[1] == pytest.approx(judged.for_labels(1, np.array([own]), 0)[0])
    assert by_name["star"].finest[1].queries == 0


def test_a_label_under_two_others_is_listed_under_both_and_what_is_wrong_is_said():
    columns = {
        "path": list("abcd"),
        "split": ["test"] * 4,
        "label_kind": ["x", "x", "y", "y"],
        "label_family": ["f", "g", "g", "g"],
    }
    source = Source.from_arrays("knot", np.eye(4, dtype=np.float32), Manifest.from_columns(columns, root="."))
    judged = NodeMetrics(source)
    judged.measure()
    tree = Tree(source, [judged])
    f, g = (branch.node for branch in tree.children(None).branches)
    assert [branch.name for branch in tree.children(f).branches] == ["x"]
    assert [branch.name for branch in tree.children(g).branches] == ["x", "y"]
    assert judged.done
    if judged.problem:
        assert tree.children(f).branches[0].finest == (None,)


def test_of_many_queries_some_are_judged_and_their_values_are_exact(one):
    some = NodeMetrics(one.source, most_pairs=10 * 96)
    some.measure()
    assert some.sampled
    assert len(some.rows) == 10
    for row in some.rows:
        assert some.for_query(row) == pytest.approx(one.node_metrics[0].for_query(row))
    assert some.for_query(1) is None
    assert len(NodeMetrics(one.source, most_pairs=1).rows) == 1, "one query, however large the gallery"


def test_images_without_labels_are_not_judged():
    rows = {"path": ["a", "b"], "split": ["test"] * 2}
    judged = NodeMetrics(
        Source.from_arrays("plain", np.eye(2, dtype=np.float32), Manifest.from_columns(rows, root=".", levels=()))
    )
    judged.measure()
    assert (judged.done, judged.for_labels(0, np.array([0]), 0)) == (True, None)
    assert Tree(judged.source, [judged]).children(None).branches == ()
