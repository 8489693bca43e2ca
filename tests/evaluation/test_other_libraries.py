"""Every metric that another library has, against that library, on embeddings whose scores do not tie.

Where definitions differ, the test says how: mostly in what a sum is divided by.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from suprank.evaluation import evaluate
from tests.evaluation.plain_ranx import uncompiled
from tests.evaluation.random_collections import random_collection

KS = (1, 3, 10)
NAMED = ["AP", "NDCG-linear", *(f"{name}@{k}" for name in ("NDCG", "NDCG-linear", "MRR", "recall-all", "AP-all") for k in KS)]
SEEDS = pytest.mark.parametrize("seed", range(2))


@cache
def judged(seed, items=90, depth=1):
    """A collection, its report, and for each query its scores and its levels, without the items that are not in its list."""
    collection = random_collection(seed, queries=24, items=items, dim=8, classes=7, depth=depth)
    collection.labels = [[max(own, 0) for own in row] for row in collection.labels]
    report, named = collection.evaluated(ks=KS), collection.evaluated(metrics=NAMED)
    report = replace(report, means=report.means | named.means, per_query=report.per_query | named.per_query)
    lists = []
    for scores, level in collection.lists():
        kept = [j for j, own in enumerate(level) if own >= 0]
        assert len(set(scores)) == len(scores)
        lists.append((np.array([scores[j] for j in kept]), np.array([level[j] for j in kept])))
    return collection, report, lists


def with_positives(report, lists):
    """The number, the scores and the levels of every query that has positives; others have no value here, and 0 elsewhere."""
    for query, (scores, levels) in enumerate(lists):
        if levels.max() == 0:
            assert np.isnan(report.per_query["NDCG"][query])
        else:
            yield query, scores, levels


# scikit-learn


@SEEDS
@pytest.mark.parametrize("depth", [1, 3])
def test_ndcg_is_scikit_learns_over_the_whole_list_with_gains_for_relevance(seed, depth):
    metrics = pytest.importorskip("sklearn.metrics")
    _, report, lists = judged(seed, depth=depth)
    for query, scores, levels in with_positives(report, lists):
        gains = (2.0**levels - 1)[None]
        assert report.per_query["NDCG"][query] == pytest.approx(metrics.ndcg_score(gains, scores[None]), abs=1e-12)
        ideal = metrics.dcg_score(gains, gains)
        assert report.per_query["NDCG"][query] * ideal == pytest.approx(metrics.dcg_score(gains, scores[None]), abs=1e-9)
        for name, theirs in (("NDCG", gains), ("NDCG-linear", levels[None])):
            for k in KS:
                expected = metrics.ndcg_score(theirs, scores[None], k=k)
                assert report.per_query[f"{name}@{k}"][query] == pytest.approx(expected, abs=1e-12)


@SEEDS
def test_ap_at_each_level_is_scikit_learns_of_the_items_at_that_level_or_deeper(seed):
    metrics = pytest.importorskip("sklearn.metrics")
    collection, report, lists = judged(seed, depth=3)
    for column, name in enumerate(collection.names):
        for query, (scores, levels) in enumerate(lists):
            positive = levels >= 3 - column
            if positive.any():
                theirs = metrics.average_precision_score(positive, scores)
                assert report.per_query[f"AP/{name}"][query] == pytest.approx(theirs, abs=1e-12)


# pytorch-metric-learning


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # faiss's binding, on import
@SEEDS
@pytest.mark.parametrize("items", [0, 90])
def test_means_are_pytorch_metric_learnings(seed, items):
    pytest.importorskip("faiss")
    calculators = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    collection, report, _ = judged(seed, items)
    names = {
        "precision_at_1": "P@1",
        "r_precision": "R-P",
        "mean_average_precision": "AP",
        "mean_average_precision_at_r": "mAP@R",
        "mean_reciprocal_rank": "MRR",
    }
    calculator = calculators.AccuracyCalculator(include=tuple(names), k=None, device=torch.device("cpu"))
    # By inner product of normalized embeddings, which orders as their distance does.
    queries = torch.nn.functional.normalize(torch.tensor(collection.embeddings))
    arguments = [queries, torch.tensor(collection.labels)[:, 0]]
    if items:
        gallery = torch.nn.functional.normalize(torch.tensor(collection.gallery))
        arguments += [gallery, torch.tensor(collection.gallery_labels)[:, 0]]
    theirs = calculator.get_accuracy(*arguments)
    for name, key in names.items():
        assert report[key] == pytest.approx(theirs[name], rel=1e-5), name
        assert report[name] == report[key]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # faiss's binding, on import
def test_the_protocol_dml_is_pytorch_metric_learnings_with_its_default_k():
    pytest.importorskip("faiss")
    calculators = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    collection, _, _ = judged(0, items=0)
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = calculators.AccuracyCalculator(include=names, device=torch.device("cpu"))
    labels = torch.tensor(collection.labels)[:, 0]
    labels[3] = labels.max() + 1  # a query without positives
    unit = torch.nn.functional.normalize(torch.tensor(collection.embeddings))
    theirs = calculator.get_accuracy(unit, labels, unit, labels, ref_includes_query=True)
    report = evaluate(torch.tensor(collection.embeddings), labels, progress=False, protocol="dml")
    assert {name: report[name] for name in names} == pytest.approx(theirs, rel=1e-5)


# ranx


def ranx_values(ranx, lists, gains, metrics):
    """ranx's value of each metric for each query that has positives."""
    with uncompiled():
        qrels = {
            f"q{query}": {f"d{j}": int(gain) for j, gain in enumerate(gains(levels)) if gain} for query, _, levels in lists
        }
        run = {f"q{query}": {f"d{j}": float(s) for j, s in enumerate(scores)} for query, scores, _ in lists}
        found = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), metrics, return_mean=False, make_comparable=True)
    order = sorted(qrels)
    return {name: dict(zip(order, found[name], strict=True)) for name in metrics}


def test_flat_metrics_are_ranxs(ranx):
    _, report, lists = judged(1)
    lists = list(with_positives(report, lists))
    same = {"map": "AP", "mrr": "MRR", "r-precision": "R-P"} | {f"mrr@{k}": f"MRR@{k}" for k in KS}
    same |= {f"hit_rate@{k}": f"R@{k}" for k in KS} | {f"precision@{k}": f"P@{k}" for k in KS}
    other = [f"recall@{k}" for k in KS] + [f"map@{k}" for k in KS]
    theirs = ranx_values(ranx, lists, lambda levels: levels, [*same, *other])
    for query, _, levels in lists:
        for name, key in same.items():
            assert report.per_query[key][query] == pytest.approx(theirs[name][f"q{query}"], abs=1e-9), name
        number = int(levels.sum())
        for k in KS:
            # ranx divides recall@k and map@k by all positives, we by those that fit into k.
            fitting = number / min(k, number)
            assert report.per_query[f"TR@{k}"][query] == pytest.approx(fitting * theirs[f"recall@{k}"][f"q{query}"], abs=1e-9)
            assert report.per_query[f"mAP@{k}"][query] == pytest.approx(fitting * theirs[f"map@{k}"][f"q{query}"], abs=1e-9)
            assert report.per_query[f"recall-all@{k}"][query] == pytest.approx(theirs[f"recall@{k}"][f"q{query}"], abs=1e-9)
            assert report.per_query[f"AP-all@{k}"][query] == pytest.approx(theirs[f"map@{k}"][f"q{query}"], abs=1e-9)


def test_ndcg_is_ranxs_burges_with_levels_and_its_ndcg_with_gains(ranx):
    _, report, lists = judged(2, depth=3)
    lists = list(with_positives(report, lists))
    metrics = [name + at for name in ("ndcg_burges", "ndcg") for at in ("", "@3", "@10")]
    by_level = ranx_values(ranx, lists, lambda levels: levels, metrics)
    by_gain = ranx_values(ranx, lists, lambda levels: 2**levels - 1, metrics)
    for query, _, _ in lists:
        assert report.per_query["NDCG"][query] == pytest.approx(by_level["ndcg_burges"][f"q{query}"], abs=1e-9)
        assert report.per_query["NDCG"][query] == pytest.approx(by_gain["ndcg"][f"q{query}"], abs=1e-9)
        for at in ("", "@3", "@10"):
            expected = by_level[f"ndcg_burges{at}"][f"q{query}"], by_level[f"ndcg{at}"][f"q{query}"]
            found = report.per_query[f"NDCG{at}"][query], report.per_query[f"NDCG-linear{at}"][query]
            assert found == pytest.approx(expected, abs=1e-9)


# torchmetrics


@SEEDS
def test_flat_metrics_are_torchmetrics(seed):
    retrieval = pytest.importorskip("torchmetrics.functional.retrieval")
    _, report, lists = judged(seed, items=40)
    for query, scores, levels in with_positives(report, lists):
        preds, target = torch.tensor(scores) - scores.min() + 1, torch.tensor(levels)  # it drops items of score 0 or less
        number = int(target.sum())
        expected = {
            "AP": retrieval.retrieval_average_precision(preds, target),
            "MRR": retrieval.retrieval_reciprocal_rank(preds, target),
            "R-P": retrieval.retrieval_r_precision(preds, target),
        }
        for k in KS:
            expected[f"R@{k}"] = retrieval.retrieval_hit_rate(preds, target, top_k=k)
            expected[f"P@{k}"] = retrieval.retrieval_precision(preds, target, top_k=k)
            expected[f"recall-all@{k}"] = retrieval.retrieval_recall(preds, target, top_k=k)
            expected[f"MRR@{k}"] = retrieval.retrieval_reciprocal_rank(preds, target, top_k=k)
            expected[f"NDCG@{k}"] = retrieval.retrieval_normalized_dcg(preds, target, top_k=k)
            expected[f"TR@{k}"] = retrieval.retrieval_recall(preds, target, top_k=k) * number / min(k, number)
            found = min(k, int(target[preds.argsort(descending=True)[:k]].sum()))
            # Its AP of a top k divides by the positives found there.
            expected[f"mAP@{k}"] = retrieval.retrieval_average_precision(preds, target, top_k=k) * found / min(k, number)
        for key, value in expected.items():
            assert report.per_query[key][query] == pytest.approx(float(value), abs=1e-6), key
