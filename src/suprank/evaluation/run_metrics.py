"""`evaluate_run`: the metrics of ranked lists, from a search of any kind, against graded relevance judgments."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch

from suprank.evaluation.metric_names import Metric, parse_metric
from suprank.evaluation.metrics import MetricSettings, QuerySums, metric_values
from suprank.evaluation.rankings.formats import read_qrels, read_run
from suprank.evaluation.rankings.pair_table import PairTable
from suprank.evaluation.rankings.qrels import Qrels
from suprank.evaluation.rankings.ranking_run import RankingRun
from suprank.evaluation.report import Report
from suprank.evaluation.report_comparison import LABELS
from suprank.evaluation.statistics import mean_over_queries
from suprank.files.label_digest import label_digests
from suprank.ranking.exact import Places, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

RUN_METRICS = ("NDCG@10", "NDCG-linear@10", "AP", "MRR", "MRR@10", "P@10", "R@10", "recall-all@10", "recall-all@100")
"""What `evaluate_run` computes unless metrics are named."""

MAX_GRADES = 127
"""Different grades above 0 that judgments may have: levels are 8-bit integers."""

MAX_NDCG_GRADE = 1000
"""Highest grade of NDCG: sums of the gain 2^grade − 1 stay finite up to there."""

_NEED_LABELS = ("H-AP", "wAP", "ASI", "H-P", "H-R")
_PLACES_AT_ONCE = 1 << 20  # padded places × grades whose sums are computed together: some 100 MB of temporary arrays

Rule = Literal["zero", "skip"]


def evaluate_run(
    run: str | PathLike[str] | RankingRun | Mapping[Any, Mapping[Any, float]],
    qrels: str | PathLike[str] | Qrels | Mapping[Any, Mapping[Any, int]],
    metrics: Sequence[str] | None = None,
    *,
    relevance_threshold: int = 1,
    missing: Rule = "zero",
    no_positives: Rule = "zero",
    per_query: bool = False,
    intervals: bool = False,
) -> Report:
    """Compute metrics of ranked lists against graded judgments, with the values of trec_eval: for text, products, anything.

    `run` is `{query: {item: score}}`, a `RankingRun`, or a file: TREC (`query Q0 item rank score tag`) or ranx's JSON or
    Parquet. `qrels` is `{query: {item: grade}}`, `Qrels`, or a file: TREC (`query 0 item grade`) or ranx's. Ids are compared as
    text. TREC and JSON files may be gzipped; other extensions are read as TREC.

    A list is sorted by score, equal scores by item id in descending order, as trec_eval does; the rank column is not used. An
    item that was not judged, or has a grade of 0 or less, is not relevant. Metrics of binary relevance (AP, MRR, R@k, P@k,
    recall-all@k, ...) take items of grade `relevance_threshold` or more for relevant (trec_eval's -l). NDCG and NDCG@k use all
    grades above 0, with gain 2^grade − 1, as in the paper and ranx's `ndcg_burges`; NDCG-linear and NDCG-linear@k have the
    grade itself for a gain, as trec_eval's `ndcg` and `ndcg_cut` and ranx's `ndcg` do. Names of trec_eval are accepted:
    `ndcg_cut_10`, `recip_rank`, `recall_100`, `P_5`, `success_1`, `map_cut_10`. H-AP, wAP, ASI, H-P@k and H-R@k need labels:
    see `evaluate`.

    All queries with a judgment are averaged. One that the run does not have counts as 0 (trec_eval's -c), or is left out with
    `missing="skip"` (trec_eval without -c). One without a relevant item counts as 0, as in trec_eval and ranx, or is left out
    with `no_positives="skip"`, as in `evaluate`. Queries of the run without judgments are ignored. `Report.settings` has the
    numbers of all three, and the grades above 0 that occur.

    `per_query` keeps each query's values, in the order of the judgments, NaN where it is left out; `intervals` adds 95 %
    intervals for new queries, which are taken as independent of one another. `Report.compare` tests the difference of two runs.

    Example:
        >>> qrels = {"q1": {"a": 2, "b": 1, "c": 0}, "q2": {"d": 1}}
        >>> report = evaluate_run({"q1": {"b": 0.9, "a": 0.8, "x": 0.1}}, qrels, ["AP", "NDCG@10", "ndcg_cut_10"])
        >>> {key: round(value, 4) for key, value in report.items()}
        {'AP': 0.5, 'NDCG@10': 0.3984, 'NDCG-linear@10': 0.4299}
        >>> evaluate_run({"q1": {"b": 0.9, "a": 0.8}}, qrels, ["AP"], missing="skip")["AP"]
        1.0
    """
    chosen = _check_metrics(metrics)
    threshold = _check_threshold(relevance_threshold)
    for name, rule in (("missing", missing), ("no_positives", no_positives)):
        if rule not in get_args(Rule):
            raise ValueError(f"{name}={rule!r} must be 'zero' or 'skip'.")
    judgments = _Judgments.from_table(_table(qrels, "qrels", "q"))
    ranked = _table(run, "run", "d")
    level = int(np.searchsorted(judgments.grades, threshold)) + 1  # of the lowest grade that is relevant
    if level > len(judgments.grades):
        best = int(judgments.grades[-1]) if len(judgments.grades) else None
        raise ValueError(
            f"no judgment of {judgments.source} reaches relevance_threshold={threshold}; "
            + ("none is above 0." if best is None else f"the highest grade is {best}.")
        )
    if judgments.grades[-1] > MAX_NDCG_GRADE and any(metric.name == "NDCG" for metric in chosen):
        raise ValueError(
            f"{judgments.source} has grade {judgments.grades[-1]}, too high for the gain 2^grade − 1 of NDCG, which takes "
            f"grades up to {MAX_NDCG_GRADE}; choose NDCG-linear, whose gain is the grade."
        )
    places, in_run = _positions(ranked, judgments)
    settings = MetricSettings((), 1.0, (), grades=tuple(judgments.grades.tolist()), flat_level=level)
    values = _values(chosen, places, judgments.sizes(), settings)
    without = judgments.sizes()[:, level - 1] == 0
    if no_positives == "zero":
        values[np.isnan(values)] = 0
    if missing == "skip":
        values[:, ~in_run] = np.nan
    name = f"relevance ≥ {threshold}"
    report = Report(
        means={str(metric): mean_over_queries(column) for metric, column in zip(chosen, values, strict=True)},
        n_queries=len(judgments.levels),
        n_items=len(set(ranked.item_ids)),
        levels=(name,),
        without_positives={name: int(without.sum()) if no_positives == "skip" else 0},
        settings={
            "ks": sorted({metric.k for metric in chosen if metric.k is not None}),
            "grades": judgments.grades.tolist(),
            "relevance_threshold": threshold,
            "missing": missing,
            "no_positives": no_positives,
            LABELS: judgments.digest(),
            "queries_missing": int((~in_run).sum()),
            "queries_without_positives": int(without.sum()),
            "queries_not_judged": len(ranked.queries) - int(in_run.sum()),
        },
        per_query=dict(zip(map(str, chosen), values, strict=True)) if per_query or intervals else None,
        query_ids=np.array(judgments.queries),
    )
    if intervals:
        report = report.with_intervals()
    return report if per_query else report.without_queries()


# Arguments


def _check_metrics(metrics: Sequence[str] | None) -> list[Metric]:
    if isinstance(metrics, str):
        raise TypeError(f"metrics={metrics!r} must be a sequence of names; write [{metrics!r}].")
    chosen = list(dict.fromkeys(map(parse_metric, RUN_METRICS if metrics is None else metrics)))
    if not chosen:
        raise ValueError("metrics is empty; name at least one, or leave it out.")
    for metric in chosen:
        if metric.name in _NEED_LABELS or metric.level is not None:
            raise ValueError(
                f"{metric} needs labels, which a run and its judgments do not have; choose from NDCG, NDCG-linear, AP, MRR, "
                f"R-P, mAP@R, or with a k from NDCG, NDCG-linear, MRR, P, R, recall-all, TR, mAP, AP-all, such as NDCG@10."
            )
    return chosen


def _check_threshold(threshold: int) -> int:
    if isinstance(threshold, bool) or int(threshold) != threshold or threshold < 1:
        raise ValueError(f"relevance_threshold={threshold!r} must be an integer of at least 1: the lowest relevant grade.")
    return int(threshold)


def _table(source: Any, name: str, typecode: str) -> PairTable:
    """The triples of a file, a mapping, a `RankingRun` or `Qrels`, with ids as text."""
    if isinstance(source, str | PathLike):
        return (read_run if name == "run" else read_qrels)(source)
    lists: Iterator[tuple[Any, Any]]
    if isinstance(source, Mapping):
        for query, pairs in source.items():
            if not isinstance(pairs, Mapping):
                raise TypeError(f"{name}[{query!r}] is {type(pairs).__name__}, but must be a mapping of items to numbers.")
        lists = ((query, pairs.items()) for query, pairs in source.items())
    elif isinstance(source, RankingRun if name == "run" else Qrels):
        lists = iter(source)
    else:
        kind = "RankingRun" if name == "run" else "Qrels"
        raise TypeError(f"{name} is {type(source).__name__}, but must be a path, a mapping of mappings, or {kind}.")
    table = PairTable(name, typecode)
    for query, pairs in lists:
        table.add_list(str(query), ((str(item), value) for item, value in pairs))
    return table


# Judgments and lists


@dataclass(frozen=True)
class _Judgments:
    """The relevant items of every judged query, with their levels: the grades above 0 are numbered from the lowest."""

    source: str
    levels: dict[str, dict[str, int]]
    grades: NDArray[np.int64]  # that occur, rising

    @classmethod
    def from_table(cls, table: PairTable) -> _Judgments:
        query, _, grade = table.checked_triples()
        if not len(query):
            raise ValueError(f"{table.source} has no judgments; every line is `query 0 item grade`.")
        grades = np.unique(grade[grade > 0])
        if len(grades) > MAX_GRADES:
            raise ValueError(
                f"{table.source} has {len(grades)} different grades above 0, but at most {MAX_GRADES} are possible; round them."
            )
        queries = list(table.queries)
        levels: dict[str, dict[str, int]] = {}
        numbers = np.where(grade > 0, np.searchsorted(grades, grade) + 1, 0)
        for number, item, level in zip(query.tolist(), table.item_ids, numbers.tolist(), strict=True):
            items = levels.setdefault(str(queries[number]), {})
            if level:
                items[str(item)] = level
        return cls(table.source, levels, grades)

    @property
    def queries(self) -> list[str]:
        return list(self.levels)

    def digest(self) -> dict[str, str]:
        """What tells other judgments: see `suprank.evaluation.report_comparison.LABELS`."""
        grades = [0, *self.grades.tolist()]
        relevant = [[f"{grades[level]} {item}" for item, level in items.items()] for items in self.levels.values()]
        return label_digests(self.queries, {"judgments": relevant})

    def sizes(self) -> NDArray[np.int64]:
        """`[queries, depth]`: how many items have level l or a higher one, column 0 being level 1."""
        depth = len(self.grades)
        counts = [np.bincount(list(items.values()), minlength=depth + 1)[1:] for items in self.levels.values()]
        return np.array(counts, np.int64)[:, ::-1].cumsum(1)[:, ::-1]


def _positions(run: PairTable, judgments: _Judgments) -> tuple[list[NDArray[np.int64]], NDArray[np.bool_]]:
    """Query, level and place of every relevant item that the run lists, by query and place; and which queries it has."""
    score = run.finite_values()
    index = {name: number for number, name in enumerate(judgments.queries)}
    judged = np.array([index.get(str(name), -1) for name in run.queries], np.int64)
    if not len(run.queries):
        raise ValueError(f"{run.source} has no lines; give a run with at least one.")
    if not (judged >= 0).any():
        raise ValueError(
            f"{run.source} and {judgments.source} share no query: the run has {_some(run.queries)}, the judgments "
            f"{_some(judgments.queries)}; check the ids."
        )
    query = judged[np.asarray(run.query)]
    order = _rank_order(run, query, score)
    if run.check_ranks:
        run.warn_of_ranks(order, "equal scores by item id", strictly=True)
    ranked: list[Any] = run.item_ids
    if (order[1:] < order[:-1]).any():
        ranked = [run.item_ids[row] for row in order.tolist()]
    bounds = np.searchsorted(query[order], np.arange(len(index) + 1)).tolist()
    found: list[tuple[int, int, int]] = []
    for number, levels in enumerate(judgments.levels.values()):
        items = ranked[bounds[number] : bounds[number + 1]]
        place = dict(zip(items, range(1, len(items) + 1), strict=True))
        if len(place) < len(items):
            run.checked_triples()  # names the item that is listed twice, and its line
        found += sorted((number, place[item], level) for item, level in levels.items() if item in place)
    if not found and any(judgments.levels.values()):
        relevant = [item for items in judgments.levels.values() for item in items]
        warnings.warn(
            f"no relevant item of {judgments.source} is in the lists of {run.source}: the judgments have {_some(relevant)}, "
            f"the run {_some(run.item_ids)}; check the ids.",
            stacklevel=3,
        )
    in_run = np.zeros(len(index), bool)
    in_run[judged[judged >= 0]] = True
    queries, places, levels_found = np.array(found, np.int64).reshape(len(found), 3).T
    return [queries, levels_found, places], in_run


def _rank_order(run: PairTable, query: NDArray[np.int64], score: NDArray[np.float64]) -> NDArray[np.int64]:
    """Rows by query, then by score descending, then by item id descending."""
    same_query, falls = query[1:] == query[:-1], score[1:] <= score[:-1]
    is_sorted = ((query[1:] > query[:-1]) | (same_query & falls)).all()  # as most files are
    order = np.arange(len(query)) if is_sorted else np.lexsort((-score, query))
    query, score = query[order], score[order]
    equal = (query[1:] == query[:-1]) & (score[1:] == score[:-1])
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    if len(tied):
        # Only the ids of items in ties are compared. Text is in the order of its code points, which is that of its UTF-8 bytes.
        names = [str(run.item_ids[row]) for row in order[tied].tolist()]
        number = {name: place for place, name in enumerate(sorted(set(names), reverse=True))}
        by_name, group = np.array([number[name] for name in names]), np.append(0, (~equal).cumsum())[tied]
        order[tied] = order[tied[np.lexsort((by_name, group))]]
    return order


def _some(ids: Any) -> str:
    """The first ids, for an error."""
    first = [repr(name) for name, _ in zip(ids, range(3), strict=False)]
    return ", ".join(first) + (", ..." if len(ids) > len(first) else "")


# Values


def _values(
    metrics: Sequence[Metric], places: list[NDArray[np.int64]], sizes: NDArray[np.int64], settings: MetricSettings
) -> NDArray[np.float64]:
    """The value of every metric for every query, `[metrics, queries]`; NaN without relevant items."""
    query, level, place = places
    ks = sorted({metric.k for metric in metrics if metric.k is not None})
    values = np.empty((len(metrics), len(sizes)))
    counts = np.bincount(query, minlength=len(sizes))
    begin = counts.cumsum() - counts
    for some in _blocks(counts, _PLACES_AT_ONCE // sizes.shape[1]):
        width = int(counts[some].max())
        column = np.arange(width)
        rows = (begin[some, None] + column).clip(max=max(len(query) - 1, 0))
        padding = column >= counts[some, None]
        listed = Places(
            torch.from_numpy(np.where(padding, 0, level[rows]).astype(np.int8) if width else np.zeros(rows.shape, np.int8)),
            torch.from_numpy(np.where(padding, 1, place[rows]).astype(np.int32) if width else np.ones(rows.shape, np.int32)),
        )
        size = torch.from_numpy(sizes[some])
        relevance = torch.zeros(size.shape, dtype=torch.float64)  # of hierarchical metrics, which are not computed here
        full = plain.ranking_sums(listed, size, relevance) if any(metric.full_ranking for metric in metrics) else None
        sums = QuerySums(size, full, plain.top_sums(listed, relevance, ks))
        values[:, some] = metric_values(metrics, sums, ks, settings).numpy()
    return values


def _blocks(counts: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    """Queries, those with few relevant items first, in blocks of `most` padded places at most, or of one query."""
    order = np.argsort(counts, kind="stable")
    start = 0
    for stop in range(1, len(order) + 1):
        if stop == len(order) or (stop + 1 - start) * max(int(counts[order[stop]]), 1) > most:
            yield order[start:stop]
            start = stop
