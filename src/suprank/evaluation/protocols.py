"""The protocols under which retrieval numbers are published, by name: their conventions, metrics, and how they evaluate.

No metric is computed here: a protocol chooses what is query and gallery, what is left out of a list, the metrics and their k,
and hands them to `ranking_report`, `evaluate_run`, `revisited` or `landmark_map`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from suprank.evaluation.arguments import check_ks
from suprank.evaluation.landmarks import check_relevant, landmark_map
from suprank.evaluation.metrics import mean_over_queries
from suprank.evaluation.nearest_neighbors import top_k
from suprank.evaluation.overlap import QueryInGalleryWarning
from suprank.evaluation.ranking_report import ranking_report
from suprank.evaluation.report import Report
from suprank.evaluation.revisited import GroundTruth, listed_places, revisited
from suprank.evaluation.runs import Qrels, evaluate_run
from suprank.evaluation.search import Search, choose_device
from suprank.evaluation.units import query_classes
from suprank.system.progress import progress_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from suprank.evaluation.retrieval_data import Items, RetrievalData
    from suprank.evaluation.truth import Solution, Truth
    from suprank.system.progress import Progress

_RANKED_AT_ONCE = 1 << 24  # items of the lists that are ranked together: 0.4 GB; a task of mteb has 453,000 queries
_LISTED_AT_ONCE = 1 << 20  # items of the lists that are named and evaluated together


@dataclass(frozen=True)
class Protocol:
    """The conventions of a protocol, each in a few words, and its metrics: `R@k` stands for one metric for each of `ks`."""

    name: str
    title: str
    metrics: tuple[str, ...]
    ks: tuple[int, ...]
    gallery: str
    self_match: str
    average_precision: str
    no_positives: str
    ties: str
    truth: str = ""  # what it takes, instead of labels or beside them
    quoted: tuple[str, ...] = ()  # the metrics to print first; () for all

    def conventions(self, self_match: str | None = None) -> str:
        """All conventions in one line. `self_match` is given where it depends on the task."""
        return (
            f"{self.gallery}; the query itself {self_match or self.self_match}; {self.average_precision}; "
            f"queries without positives {self.no_positives}; ties: {self.ties}"
        )

    def metric_names(self, ks: Sequence[int] | None = None) -> list[str]:
        """The metrics at these k, by default the protocol's own."""
        cut_offs = check_ks(self.ks if ks is None else ks)
        names = [name.replace("@k", f"@{k}") for name in self.metrics for k in (cut_offs if name.endswith("@k") else [0])]
        return list(dict.fromkeys(names))


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            name="dml",
            title="deep metric learning (Musgrave et al., ECCV 2020; pytorch-metric-learning)",
            metrics=("R@k", "P@1", "R-P", "mAP@R"),
            ks=(1, 2, 4, 8),
            gallery="every image against all others",
            self_match="left out by its row",
            average_precision="AP over the first R places, divided by R",
            no_positives="left out",
            ties="the worse item first",
        ),
        Protocol(
            name="mieb",
            title="image retrieval tasks of mteb (MIEB, Xiao et al., ICCV 2025)",
            metrics=("NDCG-linear@k", "AP-all@k", "recall-all@k", "P@k", "MRR@k", "R@k"),
            ks=(1, 3, 5, 10, 20, 100, 1000),
            gallery="queries against the corpus, lists of 1,000 items",
            self_match="by the task",
            average_precision="AP@k divided by all relevant items",
            no_positives="left out without judgments, 0 with zeros only",
            ties="the larger id first",
            truth="qrels",
            quoted=("R@1", "NDCG-linear@10", "AP-all@5", "MRR@10", "recall-all@10"),
        ),
        Protocol(
            name="revisited",
            title="revisited Oxford and Paris (Radenović et al., CVPR 2018)",
            metrics=(),
            ks=(1, 5, 10),
            gallery="queries against the gallery, junk removed from each list",
            self_match="not in the gallery",
            average_precision="AP by trapezoids, divided by all positives",
            no_positives="left out of the protocol (easy, medium or hard)",
            ties="the worse item first",
            truth="a revisited ground truth",
        ),
        Protocol(
            name="gldv2",
            title="Google Landmarks v2 retrieval (Weyand et al., CVPR 2020)",
            metrics=("mAP@k",),
            ks=(100,),
            gallery="queries against the index with its distractors, without train images",
            self_match="kept",
            average_precision="AP@100 divided by min(100, all positives)",
            no_positives="left out",
            ties="the worse item first",
            truth="a solution",
        ),
    )
}
"""The protocols by their name in `suprank evaluate --protocol`."""

SELF_MATCHES: dict[str, str] = {
    "first": "left out as the first result, whatever it is",
    "id": "left out by its id",
    "keep": "kept",
}

_MTEB_METRICS = {
    **{"ndcg": "NDCG-linear", "map": "AP-all", "recall": "recall-all", "precision": "P", "mrr": "MRR"},
    **{"hit_rate": "R", "cv_recall": "R"},
}


def mteb_metric(name: str) -> str:
    """The key of a score of mteb: `map_at_5` is AP-all@5, where `parse_metric` reads mAP@5, divided by min(5, R).

    Example:
        >>> mteb_metric("ndcg_at_10"), mteb_metric("hit_rate_at_1"), mteb_metric("accuracy")
        ('NDCG-linear@10', 'R@1', 'recall-all@1')
    """
    base, _, k = ("recall_at_1" if name == "accuracy" else name).rpartition("_at_")
    if base not in _MTEB_METRICS or not k.isdigit():
        raise ValueError(
            f"{name!r} is no score of mteb's rankings; known are {', '.join(f'{one}_at_k' for one in _MTEB_METRICS)}."
        )
    return f"{_MTEB_METRICS[base]}@{k}"


def find_protocol(name: str | None, truth: Truth | None) -> Protocol | None:
    """The protocol of this name, or of the ground truth; None if neither is given. Both must go together."""
    implied = None if truth is None else _kind(truth)
    if name is not None and name not in PROTOCOLS:
        raise ValueError(f"protocol={name!r} is not one of {', '.join(PROTOCOLS)}.")
    if implied is not None and name not in (None, implied.name):
        raise ValueError(f"truth is {implied.truth}, for protocol {implied.name!r} and not {name!r}; leave out one of them.")
    if name == "revisited" and implied is None:
        raise ValueError("protocol='revisited' needs its truth, such as gnd_roxford5k.pkl.")
    return implied if name is None else PROTOCOLS[name]


def _kind(truth: Truth) -> Protocol:
    if isinstance(truth, Qrels):
        return PROTOCOLS["mieb"]
    return PROTOCOLS["gldv2" if isinstance(truth, Mapping) else "revisited"]


def with_protocol(report: Report, protocol: Protocol, **settings: Any) -> Report:
    """The report with the protocol and its conventions in its settings."""
    line = protocol.conventions(SELF_MATCHES.get(settings.get("self_match", "")))
    return replace(report, settings={**report.settings, "protocol": protocol.name, "conventions": line, **settings})


def protocol_report(
    protocol: Protocol, data: RetrievalData, truth: Truth | None, *, ks: Sequence[int] | None = None, **options: Any
) -> Report:
    """The report by a protocol, with the values of each query.

    `dml` ranks every image against all others and leaves out the query by its row, whatever the ids; with a gallery (In-Shop)
    nothing is left out, unless the gallery begins with the queries. Labels are those of the finest level.

    `mieb` ranks a corpus for queries by the rules of mteb: lists of 1,000 items, relevance by `Qrels`, or else by equal labels;
    the values are trec_eval's. `Qrels.self_match` is that of the task: "first" drops the first result, which is mteb's
    `skip_first_result`; "id" drops the item with the query's id, mteb's `ignore_identical_ids`; "keep" drops nothing. By
    default it is "first" if the queries are in the corpus, and else "keep".

    `revisited` finds the images of its ground truth by their names, if the data have ids, and by their numbers if not. `gldv2`
    needs a gallery, and relevant items by a solution, or by equal labels.
    """
    if ks is not None and not check_ks(ks):
        raise ValueError(f"ks is empty; leave it out for those of protocol={protocol.name!r}, {protocol.ks}.")
    by_name: dict[str, Callable[..., Report]] = {"dml": _dml, "mieb": _mieb, "revisited": _revisited, "gldv2": _gldv2}
    return by_name[protocol.name](protocol, data, truth, ks, options)


def _ids(items: Items) -> list[str]:
    """The ids as text; the numbers of the rows where there are none."""
    return list(map(str, range(len(items)) if items.ids is None else np.asarray(items.ids).tolist()))


def _queries_first(data: RetrievalData) -> bool:
    """Whether the queries are in the gallery, where they come first: test images with distractors."""
    known = data.gallery is None or (data.queries.ids is not None and data.gallery.ids is not None)
    return known and _ids(data.items)[: len(data.queries)] == _ids(data.queries)


def _need_labels(protocol: Protocol, data: RetrievalData, instead: str = "") -> None:
    if not data.levels:
        raise ValueError(f"protocol={protocol.name!r} needs labels of the queries and of the gallery{instead}.")


def _need_unique_ids(protocol: Protocol, data: RetrievalData) -> None:
    for name, side in zip(("queries", "the gallery"), data.sides, strict=False):
        if len(set(_ids(side))) < len(side):
            raise ValueError(
                f"protocol={protocol.name!r} finds items by their ids, but those of {name} are not unique; rename some."
            )


def _by_labels(
    protocol: Protocol, data: RetrievalData, metrics: list[str], options: dict[str, Any], self_index: Any = None
) -> Report:
    """The report at the finest level, by rows and not by ids, which are beside the values."""
    finest = data.at_levels(data.levels[:1]).map_sides(lambda side: replace(side, ids=None))
    report = ranking_report(finest, metrics=metrics, self_index=self_index, **options, stacklevel=7)
    ids = data.queries.ids
    return with_protocol(report if ids is None else replace(report, query_ids=np.asarray(ids)), protocol)


def _dml(protocol: Protocol, data: RetrievalData, truth: None, ks: Sequence[int] | None, options: dict[str, Any]) -> Report:
    _need_labels(protocol, data)
    own = None
    if data.gallery is not None:
        first = _queries_first(data)
        own = np.arange(len(data.queries)) if first else None
        rule = protocol.self_match if first else "not left out"
        protocol = replace(protocol, gallery="queries against the gallery", self_match=rule)
    if ks is None and data.origin.recipe is not None:  # of a run's settings, the cut-offs are a matter of the dataset
        ks = data.defaults.ks
    return _by_labels(protocol, data, protocol.metric_names(ks), options, own)


def _revisited(
    protocol: Protocol, data: RetrievalData, truth: Any, ks: Sequence[int] | None, options: dict[str, Any]
) -> Report:
    if data.gallery is None:
        raise ValueError("protocol='revisited' needs a gallery.")
    if isinstance(truth, GroundTruth) and data.queries.ids is not None and data.gallery.ids is not None:
        data, truth = _in_order(data, truth)
    cut_offs = protocol.ks if ks is None else check_ks(ks)
    sides = data.queries.embeddings, data.items.embeddings
    return with_protocol(revisited(*sides, truth, ks=cut_offs, **options), protocol)


def _in_order(data: RetrievalData, truth: GroundTruth) -> tuple[RetrievalData, GroundTruth]:
    """The queries in the order of the ground truth, which then judges the rows of the gallery that have its images."""
    rows = []
    for side, names, what in ((data.queries, truth.queries, "queries"), (data.items, truth.items, "gallery")):
        row_of = {name: row for row, name in enumerate(_ids(side))}
        missing = [name for name in names if name not in row_of]
        if missing or (what == "queries" and len(side) != len(names)):
            which = f"{missing[0]!r} is missing" if missing else f"there are {len(side):,}"
            raise ValueError(
                f"the {what} of {data.name} are not the {len(names):,} images of the ground truth, all whole: {which}; embed a "
                f"manifest that `suprank data import` roxford5k or rparis6k made from this very file."
            )
        rows.append(np.array([row_of[name] for name in names], np.int64))
    ordered = data if (rows[0] == np.arange(len(rows[0]))).all() else data.take(rows[0])
    judged = [{kind: rows[1][lists] for kind, lists in one.items()} for one in truth.judgments]
    return ordered, replace(truth, items=tuple(_ids(data.items)), judgments=judged)


def _gldv2(protocol: Protocol, data: RetrievalData, solution: Any, ks: Sequence[int] | None, options: dict[str, Any]) -> Report:
    cut_offs = check_ks(protocol.ks if ks is None else ks)
    if len(cut_offs) != 1:
        raise ValueError(f"protocol='gldv2' takes one k, not {len(cut_offs)}; leave ks out for 100.")
    if data.gallery is None:
        raise ValueError("protocol='gldv2' ranks an index that the queries are not part of; give a gallery.")
    if solution is None:
        _need_labels(protocol, data, ", or a solution with the relevant images of each query")
        return _by_labels(protocol, data, protocol.metric_names(cut_offs), options)
    _need_unique_ids(protocol, data)
    relevant = {str(query): [*map(str, check_relevant(query, items))] for query, items in solution.items()}
    ids = _ids(data.queries)
    judged = np.array([query in relevant for query in ids])
    if not judged.any():
        raise ValueError(
            f"no query of {data.name} is in the solution: they have {ids[0]!r}, the solution {next(iter(relevant), None)!r}; "
            f"check the ids."
        )
    report = landmark_map(_relevant_in_place(data, relevant, cut_offs[0], **options), relevant, cut_offs[0])
    known = {**report.settings, "queries_not_judged": int((~judged).sum())}
    return with_protocol(replace(report, n_items=len(data.items), settings=known), protocol)


def _relevant_in_place(
    data: RetrievalData,
    relevant: Solution,
    k: int,
    *,
    normalize: bool = True,
    device: Any = None,
    memory_budget: int | None = None,
    progress: bool | Progress = True,
) -> dict[str, list[str]]:
    """The first k places of each query of the solution, with the relevant items where they are, and "" for any other item.

    The best k items would not do: of equal scores, the relevant items are to come last.
    """
    queries, items = data.queries.embeddings, data.items.embeddings
    device = choose_device(device, queries)
    search = Search(queries, items, device=device, memory_budget=memory_budget, normalize=normalize)
    ids, item_ids = _ids(data.queries), _ids(data.items)
    row = {item: number for number, item in enumerate(item_ids)}
    positives = [[row[item] for item in relevant.get(query, ()) if item in row] for query in ids]
    show = progress_function(progress, "evaluating")
    places = listed_places(search, positives, [[]] * len(positives), lambda done: show(done, len(positives)))
    lists = {}
    for query, own, reached in zip(ids, positives, places, strict=True):
        if query in relevant:
            lists[query] = [""] * min(k, len(items))
            for number, place in zip(own, reached.tolist(), strict=True):  # which of them is where makes no difference
                if place <= k:
                    lists[query][place - 1] = item_ids[number]
    return lists


# MIEB


def _mieb(protocol: Protocol, data: RetrievalData, qrels: Any, ks: Sequence[int] | None, options: dict[str, Any]) -> Report:
    _need_unique_ids(protocol, data)
    rule = None if qrels is None else qrels.self_match
    if rule == "id" and data.gallery is not None and (data.queries.ids is None or data.gallery.ids is None):
        raise ValueError("self_match='id' drops the item with the query's id; give ids of queries and gallery.")
    rule = rule or ("first" if _queries_first(data) else "keep")
    if ks is None:
        ks = None if qrels is None else qrels.ks
    cut_offs = check_ks(protocol.ks if ks is None else ks)
    ids, judgments = _ids(data.queries), _judgments(protocol, data, qrels)
    rows_judged = [row for row, query in enumerate(ids) if query in judgments]
    judged = [ids[row] for row in rows_judged]
    relevant = {query for query in judged if max(judgments[query].values()) > 0}
    if not relevant:
        compared = f"judgments have {next(iter(judgments), None)!r}, queries {ids[0]!r}; check the ids"
        raise ValueError(f"no query has a relevant item: {'all labels differ' if qrels is None else compared}.")
    # As many as mteb lists, also for a small k: which of equal scores are listed, and so have a place, depends on it.
    listed = max(cut_offs[-1], protocol.ks[-1])
    metrics = protocol.metric_names(cut_offs)
    values = np.zeros((len(metrics), len(judged)))
    place = {query: number for number, query in enumerate(judged)}
    rows = [row for row, query in enumerate(ids) if query in relevant]
    ranked_lists = _ranked_lists(data, rows, listed, cut_offs[-1] + 1, **options)  # + 1, because one may be dropped
    lists = ((query, _without_self(query, ranked, rule)) for query, ranked in ranked_lists)
    while block := dict(islice(lists, max(1, _LISTED_AT_ONCE // listed))):
        kept = {query: ranked for query, ranked in block.items() if ranked}
        if not kept:  # of a gallery of one item nothing is left
            continue
        with warnings.catch_warnings():  # that no relevant item was found means little in a block of a few queries
            warnings.filterwarnings("ignore", "no relevant item", UserWarning)
            found = evaluate_run(kept, {query: judgments[query] for query in kept}, metrics, per_query=True)
        assert found.per_query is not None
        values[:, [place[query] for query in kept]] = np.array(list(found.per_query.values()))
    level = "relevance ≥ 1"
    classes = data.classes or dict(zip(data.levels, np.moveaxis(data.queries.labels, 1, 0), strict=True))
    report = Report(
        means={metric: mean_over_queries(column) for metric, column in zip(metrics, values, strict=True)},
        n_queries=len(judged),
        n_items=len(data.items),
        levels=(level,),
        without_positives={level: 0},
        settings={
            "ks": cut_offs,
            "grades": sorted({grade for query in judged for grade in judgments[query].values() if grade > 0}),
            "queries_without_positives": len(judged) - len(relevant),
            "queries_not_judged": len(data.queries) - len(judged),
        },
        per_query=dict(zip(metrics, values, strict=True)),
        query_ids=np.array(judged),
        classes={level: own[rows_judged] for level, own in query_classes(classes, len(data.queries)).items()},
    )
    return with_protocol(report, protocol, self_match=rule)


def _judgments(protocol: Protocol, data: RetrievalData, qrels: Qrels | None) -> dict[str, dict[str, int]]:
    """The grades of each query's judged items: those given, or 1 for the items of its label, without the query itself."""
    if qrels is not None:
        return qrels.to_dict()
    _need_labels(protocol, data, ", or qrels with the relevant items of each query")
    labels = [side.labels[:, :1] for side in data.sides]
    judgments = Qrels.from_labels(labels[0], labels[1] if data.gallery else None, *map(_ids, data.sides)).to_dict()
    if _queries_first(data):
        for query in judgments:
            judgments[query].pop(query, None)
    return {query: judged for query, judged in judgments.items() if judged}


def _ranked_lists(
    data: RetrievalData, rows: Sequence[int], k: int, places: int, *, progress: bool | Progress = True, **options: Any
) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """The queries in these rows by id, each with its best items by id and their scores; the query itself is one of them.

    k items are listed, and of these the first `places` returned, with those that tie with the last.
    """
    show = progress_function(progress, "searching")
    ids, item_ids, queries = _ids(data.queries), _ids(data.items), data.queries.embeddings
    step = max(1, _RANKED_AT_ONCE // k)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        options["progress"] = lambda done, _, start=start: show(start + done, len(rows))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QueryInGalleryWarning)
            found = top_k(queries.rows(torch.tensor(some)), data.items.embeddings, k, **options)
        for row, (_, ranked) in zip(some, found, strict=True):
            last = ranked[min(places, len(ranked)) - 1][1]
            yield ids[row], [(item_ids[item], score) for item, score in ranked if score >= last]


def _without_self(query: str, ranked: list[tuple[str, float]], rule: str) -> dict[str, float]:
    if rule == "first" and ranked:
        # Of items that tie for the first place, the one with the larger id is first, as in trec_eval.
        first = max(ranked, key=lambda pair: (pair[1], pair[0]))[0]
        return {item: score for item, score in ranked if item != first}
    return {item: score for item, score in ranked if rule != "id" or item != query}
