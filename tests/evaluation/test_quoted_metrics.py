"""The six metrics that are printed, and those that equal another one by definition."""

import numpy as np
import pytest

from suprank.evaluation import Report, evaluate
from suprank.evaluation.quoted_metrics import distinct_keys, equal_names, metric_name, quoted_keys
from suprank.experiments.results import METRICS as COMPARISON_METRICS


def evaluated(levels=2, **options):
    draw = np.random.default_rng(0)
    fine = np.arange(40) // 4
    labels = np.stack([fine, fine // 2, fine // 4][:levels], axis=1)
    return evaluate(draw.normal(size=(40, 8)).astype(np.float32), labels, progress=False, **options)


def names(keys):
    return list(dict.fromkeys(map(metric_name, keys)))


def test_with_several_levels_they_are_those_that_compare_shows():
    found = quoted_keys(evaluated(levels=3))
    assert sorted(names(found)) == sorted(COMPARISON_METRICS)
    assert not [key for key in found if key.endswith("/overall")]
    assert [key for key in found if key.startswith("AP")] == ["AP", "AP/label0", "AP/label1", "AP/label2"]


@pytest.mark.parametrize(
    ("ks", "chosen", "expected"),
    [
        ((1, 10, 100), None, ["R@1", "R@10", "R@100", "mAP@R", "AP", "R-P"]),
        ((1, 2, 4, 8), None, ["R@1", "R@2", "R@4", "R@8", "mAP@R", "AP"]),
        ((1,), None, ["R@1", "mAP@R", "AP", "R-P", "NDCG", "MRR"]),
        ((1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32), ["R@1", "R@2", "R@4", "R@8", "R@16", "R@32", "mAP@R", "AP"]),
    ],
)
def test_with_one_level_they_are_those_of_flat_benchmarks(ks, chosen, expected):
    assert names(quoted_keys(evaluated(levels=1, ks=ks), chosen)) == expected


def test_the_cut_offs_that_the_user_chose_are_all_shown():
    found = names(quoted_keys(evaluated(ks=(5, 20)), (5, 20)))
    assert found == ["R@5", "R@20", "mAP@R", "AP", "H-AP", "NDCG", "ASI"]


def test_a_short_report_is_shown_whole():
    report = evaluated(metrics=["MRR", "AP/label1", "AP/overall", "P@3"])
    assert quoted_keys(report) == ["MRR", "AP/label1", "AP/overall", "P@3"]


@pytest.mark.parametrize("levels", [1, 2])
def test_metrics_that_are_equal_by_definition_are_equal_for_every_query(levels):
    report = evaluated(levels, per_query=True, decay=2.0)
    pairs = equal_names(report)
    expected = {"TR@1": "R@1", "P@1": "R@1", "mAP@1": "R@1", **({"H-AP": "AP", "wAP": "AP"} if levels == 1 else {})}
    assert pairs == expected
    for name, equal in pairs.items():
        np.testing.assert_allclose(report.per_query[name], report.per_query[equal], atol=1e-12)
    assert set(names(report)) - set(names(distinct_keys(report))) == set(expected)


def test_equal_values_alone_are_no_reason_to_drop_a_metric():
    perfect = evaluate(np.eye(4, dtype=np.float32)[[0, 0, 1, 1]], np.array([0, 0, 1, 1]), progress=False)
    assert perfect["AP"] == perfect["mAP@R"] == perfect["R@1"] == 1
    assert {"AP", "mAP@R", "R@1", "MRR"} <= set(distinct_keys(perfect))


def test_a_metric_that_the_report_has_at_other_levels_is_kept():
    report = Report({"R@1": 0.5, "P@1/genus": 0.5, "P@1": 0.5}, n_queries=2, n_items=2, levels=("species", "genus"))
    assert equal_names(report) == {}
