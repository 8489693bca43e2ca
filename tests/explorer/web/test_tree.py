"""The label tree and what is measured of its nodes."""

import numpy as np
import pytest

from suprank.data import Manifest
from suprank.evaluation import evaluate
from suprank.explorer.web import ImageId, Node
from suprank.explorer.web.tree import LABEL_ORDERS, NodeMetrics, Tree
from tests.explorer.runs import of_arrays
from tests.explorer.web import drawn


def test_a_walk_from_the_top_to_the_images(one):
    tree = one.tree
    top = tree.children(None)
    assert [(label.name, label.images) for label in top.labels] == [
        ("flower", 24),
        ("polygon", 24),
        ("star", 24),
        ("wheel", 24),
    ]
    flower = top.labels[0].node
    kinds = tree.children(flower)
    assert [(label.name, label.images) for label in kinds.labels] == [("clover", 8), ("nine petals", 8), ("six petals", 8)]
    clover = kinds.labels[0].node
    assert tree.children(clover).labels == ()
    assert tree.ancestors(clover) == [flower]
    assert [tree.name(node) for node in tree.label_path(one.data.items.labels[50])] == ["flower", "clover"]


def test_values_of_a_node_are_the_means_of_its_queries(two):
    report = evaluate(two.runs[1].data, metrics=["AP/kind", "R@1/kind", "AP/family"], per_query=True)
    wheel = two.data.names["family"].index("wheel")
    inside = two.data.items.labels[:, 1] == wheel
    label = two.tree.summary(Node(1, wheel))
    assert label.finest[1].ap == pytest.approx(report.per_query["AP/kind"][inside].mean())
    assert label.finest[1].r1 == pytest.approx(report.per_query["R@1/kind"][inside].mean())
    assert label.own[1].ap == pytest.approx(report.per_query["AP/family"][inside].mean())
    assert label.finest[1].queries == 24
    assert two.tree.children(None).labels[3] == label
    own = two.image_metrics.of_image(ImageId(0, "gallery", 50), 1)
    assert own.ap == pytest.approx(report.per_query["AP/kind"][50])
    assert own.result == ("right" if report.per_query["R@1/kind"][50] else "wrong")


def test_orders(two):
    def found(order):
        return [label.finest[0].ap for label in two.tree.children(None, order=order).labels]

    assert found("worst") == sorted(found("name"))
    assert found("best") == sorted(found("name"), reverse=True)
    assert [label.name for label in two.tree.children(None, order="images", offset=1, limit=2).labels] == [
        "polygon",
        "star",
    ]
    gaps = {order: [label.difference() for label in two.tree.children(None, order=order).labels] for order in LABEL_ORDERS}
    assert gaps["name"] == [label.finest[0].ap - label.finest[1].ap for label in two.tree.children(None).labels]
    assert gaps["first_better"] == sorted(gaps["name"], reverse=True)
    assert gaps["second_better"] == sorted(gaps["name"])
    label = two.tree.children(None).labels[0]
    assert label.difference(own=True) == label.own[0].ap - label.own[1].ap


def test_a_label_is_found_by_number_and_by_name(one):
    tree, star = one.tree, Node(1, one.data.names["family"].index("star"))
    assert tree.address(star) == "family:star"
    assert [tree.find(text) for text in ("family:star", str(star), "family:none", "genus:star", "7.1", "star")] == [
        star,
        star,
        None,
        None,
        None,
        None,
    ]
    assert tree.class_sizes(1).tolist() == [24] * 4


def test_a_second_run_may_number_its_labels_otherwise(one, images):
    few = images.take(np.arange(48, 96))
    other = drawn.data(Manifest.from_columns(few.table, root=few.root, names=None), drawn.by_pixels, "few")
    metrics = NodeMetrics(other)
    metrics.measure()
    tree = Tree(one.data, [one.node_metrics[0], metrics])
    by_name = {label.name: label for label in tree.children(None).labels}
    own = other.names["family"].index("wheel")
    assert by_name["wheel"].finest[1] == pytest.approx(metrics.for_labels(1, np.array([own]), 0)[0])
    assert by_name["star"].finest[1].queries == 0


def test_a_label_under_two_others_is_listed_under_both_and_what_is_wrong_is_said():
    columns = {
        "path": list("abcd"),
        "split": ["test"] * 4,
        "label_kind": ["x", "x", "y", "y"],
        "label_family": ["f", "g", "g", "g"],
    }
    data = of_arrays("knot", np.eye(4, dtype=np.float32), Manifest.from_columns(columns, root="."))
    metrics = NodeMetrics(data)
    metrics.measure()
    tree = Tree(data, [metrics])
    f, g = (label.node for label in tree.children(None).labels)
    assert [label.name for label in tree.children(f).labels] == ["x"]
    assert [label.name for label in tree.children(g).labels] == ["x", "y"]
    assert metrics.done
    if metrics.problem:
        assert tree.children(f).labels[0].finest == (None,)


def test_of_many_queries_some_are_measured_and_their_values_are_exact(one):
    some = NodeMetrics(one.data, max_pairs=10 * 96)
    some.measure()
    assert some.sampled
    assert len(some.rows) == 10
    found, expected = some.per_query(0), one.node_metrics[0].per_query(0)
    for values, exact in zip(found, expected, strict=True):
        assert values[some.rows] == pytest.approx(exact[some.rows])
        assert np.isnan(values).sum() == 86
    assert len(NodeMetrics(one.data, max_pairs=1).rows) == 1, "one query, however large the gallery"


def test_images_without_labels_have_no_metrics():
    rows = {"path": ["a", "b"], "split": ["test"] * 2}
    metrics = NodeMetrics(of_arrays("plain", np.eye(2, dtype=np.float32), Manifest.from_columns(rows, root=".", levels=())))
    metrics.measure()
    assert (metrics.done, metrics.for_labels(0, np.array([0]), 0)) == (True, None)
    assert Tree(metrics.data, [metrics]).children(None).labels == ()
