"""One plain sentence for every metric that `evaluate` can report."""

import re

import numpy as np
import pytest

from suprank.evaluation import evaluate
from suprank.evaluation.explanations import explain_metric
from suprank.evaluation.metric_names import AT_K, LEVEL_MEANS, parse_metric


@pytest.mark.parametrize("levels", [("species",), ("species", "{genus}")])
def test_every_metric_of_a_report_is_explained_in_one_plain_sentence(levels):
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 3)[:, None] // [1, 2][: len(levels)]
    report = evaluate(draw.normal(size=(12, 4)), labels, levels=levels, ks=(1, 5))
    assert len(report) > 10
    for key in report:
        metric, text = parse_metric(key), explain_metric(key)
        assert re.fullmatch(r"[A-Z1][^\n]{20,200}\.", text), key
        assert "{label}" not in text
        assert "{k}" not in text
        if metric.level in levels and metric.name != "ASI":
            assert f"query's {metric.level}" in text, key
        if metric.level in LEVEL_MEANS:
            assert "over the levels" in text or "then over levels" in text
        if metric.k == 5:
            assert re.search(r"\b5\b", text), key
        assert "first 1" not in text, key


@pytest.mark.parametrize("name", AT_K)
def test_every_metric_at_k_is_explained_also_at_1(name):
    for k in (1, 5):
        text = explain_metric(f"{name}@{k}")
        assert re.fullmatch(r"[A-Z1][^\n{}]{20,200}\.", text)
        assert "first 1" not in text
        assert k == 1 or re.search(r"\b5\b", text)


def test_metrics_that_differ_are_explained_differently_and_equal_ones_alike():
    names = ("AP", "mAP@R", "R-P", "MRR", "H-AP", "wAP", "NDCG", "ASI", "R@5", "TR@5", "P@5", "mAP@5", "H-P@5", "H-R@5")
    names += ("NDCG-linear", "NDCG@5", "NDCG-linear@5", "MRR@5", "recall-all@5", "AP-all@5")
    assert len({explain_metric(name) for name in names}) == len(names)
    assert len({explain_metric(f"{name}@1") for name in ("R", "TR", "P", "mAP", "MRR")}) == 1, "the five are equal at k = 1"
    assert explain_metric("precision_at_1") == explain_metric("P@1")
    with pytest.raises(ValueError, match="unknown metric"):
        explain_metric("F1")
