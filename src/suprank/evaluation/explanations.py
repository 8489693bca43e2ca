"""What each metric measures, in one plain sentence: for pages and terminals, where the metric stands."""

from __future__ import annotations

from suprank.evaluation.metric_names import MEAN_OF_LEVELS, OVERALL, Metric, parse_metric

INTERVAL = (
    "95 % interval: where the number would lie with other classes of the same kind, in 95 of 100 cases; images of a class rise "
    "and fall together. A narrow interval means that it would change little."
)
P_VALUE = (
    "p: how often chance alone would make a difference at least this large, if the two were equally good. Below 0.05 it is "
    "called significant; a larger p does not show that the two are equal."
)

_FIRST = "Share of queries whose first item has the query's {label}."
_EQUAL_AT_1 = ("R", "TR", "P", "mAP", "MRR")
_AT_K = {
    "R": "Share of queries with at least one item of the query's {label} among the first {k}.",
    "TR": "How many of the items of the query's {label} are among the first {k}, as a share of those that could be.",
    "recall-all": "Share of all items of the query's {label} that are found among the first {k}.",
    "P": "Share of the first {k} items that have the query's {label}.",
    "mAP": "AP of the first {k} items only; items of the query's {label} that come later count as not found.",
    "AP-all": "The same as mAP@{k}, but divided by all items of the query's {label}, even if there are more than {k}.",
    "MRR": "1 / position of the first item of the query's {label}, 0 if it is not among the first {k}; averaged over queries.",
    "NDCG": "How close the order of the first {k} items is to the ideal one, the most relevant items first; gain 2^level − 1.",
    "NDCG-linear": "How close the order of the first {k} items is to the ideal one, the most relevant items first; gain level.",
    "H-P": "Precision of the first {k} items; an item of a related class counts in part, by the levels that it shares.",
    "H-R": "Recall of the first {k} items; an item of a related class counts in part, by the levels that it shares.",
}
_FULL = {
    "AP": "Average precision of the whole ranking; 100 if all items of the query's {label} come before all others.",
    "mAP@R": "AP of the first R items only, R being the number of items of the query's {label}; stricter than AP.",
    "R-P": "Share of the first R items that have the query's {label}, R being the number of such items.",
    "MRR": "1 / position of the first item of the query's {label}, averaged over queries.",
    "H-AP": "AP with all levels at once; an item of a related class counts in part, so near mistakes cost less than far ones.",
    "wAP": "Mean of the APs at all levels, weighted by level.",
    "NDCG": "How close the order is to the ideal one, the most relevant items first; the top of the list counts most.",
    "NDCG-linear": "NDCG whose gain is the level itself instead of 2^level − 1: the most relevant items count less than there.",
    "ASI": "Overlap of the first n items with the n items that should come first, averaged over n.",
}
_MEANS = {
    OVERALL: " Averaged over the levels for each query, then over queries.",
    MEAN_OF_LEVELS: " Averaged over queries at each level, then over levels.",
}


def explain_metric(key: str) -> str:
    """What a metric measures, in a plain sentence that ends with a period; any spelling of `parse_metric`.

    Example:
        >>> explain_metric("R@1/genus")
        "Share of queries whose first item has the query's genus."
        >>> explain_metric("R@10")
        "Share of queries with at least one item of the query's class among the first 10."
    """
    metric = parse_metric(key)
    label = "class" if metric.level is None or metric.level in _MEANS else metric.level
    return _template(metric).format(label=label, k=metric.k) + _MEANS.get(metric.level or "", "")


def _template(metric: Metric) -> str:
    if metric.k == 1:
        text = _AT_K[metric.name].replace("first {k} items", "first item").replace("among the first {k}", "in the first place")
        return _FIRST if metric.name in _EQUAL_AT_1 else text
    return _FULL[metric.name] if metric.k is None else _AT_K[metric.name]
