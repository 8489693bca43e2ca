"""Evaluation by a published protocol: `evaluate_protocol` sets its conventions.

No metric is computed here: a protocol chooses what is query and gallery, what is left out of a list, the metrics and their k,
and hands them to `evaluate`, `evaluate_run`, `revisited` or `landmark_map`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch

from suprank.evaluation.arguments import as_array, check_ks, check_level_names
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.evaluate import evaluate
from suprank.evaluation.landmarks import check_relevant, landmark_map, read_solution
from suprank.evaluation.nearest_neighbors import top_k
from suprank.evaluation.overlap import QueryInGalleryWarning
from suprank.evaluation.progress import progress_function
from suprank.evaluation.protocols import Protocol, SelfMatch, check_inputs, find_protocol, with_protocol
from suprank.evaluation.report import Report
from suprank.evaluation.revisited import GroundTruth, listed_places, read_ground_truth, revisited
from suprank.evaluation.runs import Qrels, evaluate_run
from suprank.evaluation.search import Search, check_dimensions, choose_device
from suprank.evaluation.statistics import mean_over_queries
from suprank.evaluation.units import query_classes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.evaluation.progress import Progress

    Judgments = str | PathLike[str] | Qrels | Mapping[Any, Mapping[Any, int]]

_RANKED_AT_ONCE = 1 << 24  # items of the lists that are ranked together: 0.4 GB; a task of mteb has 453,000 queries
_LISTED_AT_ONCE = 1 << 20  # items of the lists that are named and evaluated together


def evaluate_protocol(
    protocol: str,
    embeddings: EmbeddingSource,
    labels: Tensor | ArrayLike | None = None,
    gallery: EmbeddingSource | None = None,
    gallery_labels: Tensor | ArrayLike | None = None,
    *,
    ids: Sequence[Any] | NDArray[Any] | None = None,
    gallery_ids: Sequence[Any] | NDArray[Any] | None = None,
    qrels: Judgments | None = None,
    self_match: SelfMatch | None = None,
    ground_truth: str | PathLike[str] | GroundTruth | Sequence[Mapping[str, Any]] | None = None,
    solution: str | PathLike[str] | Mapping[Any, Collection[Any]] | None = None,
    usage: str | None = None,
    ks: Sequence[int] | None = None,
    level_names: Sequence[str] | None = None,
    classes: Mapping[str, Any] | None = None,
    **options: Any,
) -> Report:
    """Evaluate embeddings by the conventions of a published protocol: `dml`, `mieb`, `revisited` or `gldv2`.

    `dml` ranks every image against all others and leaves out the query by its row, whatever the ids; with a gallery (In-Shop)
    nothing is left out, unless the gallery begins with the queries. Labels are those of the finest level. R@k for k = 1, 2, 4,
    8, or `ks`; P@1, R-P and mAP@R.

    `mieb` ranks a corpus for queries by the rules of mteb: lists of 1,000 items, relevance by `qrels` (`{query: {item:
    grade}}`, `Qrels` or a file, by `ids` and `gallery_ids`), or else by equal labels; the values are trec_eval's.
    `self_match` is that of the task: "first" drops the first result, which is mteb's `skip_first_result`; "id" drops the item
    with the query's id, mteb's `ignore_identical_ids`; "keep" drops nothing. By default it is "first" if the queries are in the
    corpus, and else "keep".

    `revisited` needs `ground_truth`: see `suprank.evaluation.revisited`. `gldv2` needs a gallery, and relevant items by
    `solution` (`{query: ids}`, or GLDv2's file, of which `usage` chooses Public or Private) or by equal labels.

    `Report.settings` has the protocol and its conventions. `classes` are those of `evaluate`, by
    default all levels of `labels`. `options` are `normalize`, `per_query`, `intervals`, `device`, `memory_budget` and
    `progress` of `evaluate`; the metrics are the protocol's.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]])
        >>> report = evaluate_protocol("dml", embeddings, torch.tensor([0, 1, 0, 1]))
        >>> report["R@2"], report["mAP@R"], report.settings["protocol"]
        (0.75, 0.0, 'dml')
    """
    chosen = find_protocol(protocol)
    given = {"qrels": qrels, "self_match": self_match, "ground_truth": ground_truth, "solution": solution, "usage": usage}
    check_inputs(chosen, [name for name, value in given.items() if value is not None])
    if wrong := sorted(set(options) & {"metrics", "decay", "weights", "ignored", "self_index"}):
        raise ValueError(f"{wrong[0]} cannot be combined with protocol={protocol!r}, which has its own; leave it out.")
    if ks is not None and not check_ks(ks):
        raise ValueError(f"ks is empty; leave it out for those of protocol={protocol!r}, {chosen.ks}.")
    if chosen.name == "revisited":
        if labels is not None or gallery_labels is not None:
            raise ValueError("protocol='revisited' has its positives from ground_truth; leave out labels and gallery_labels.")
        return _revisited(chosen, embeddings, gallery, ground_truth, ks, options)
    data = _QueryGallery(embeddings, labels, gallery, gallery_labels, ids, gallery_ids, level_names)
    data.classes = data.classes if classes is None else classes
    if chosen.name == "dml":
        return _dml(chosen, data, ks, options)
    if chosen.name == "mieb":
        return _mieb(chosen, data, qrels, self_match, ks, options)
    return _gldv2(chosen, data, solution, usage, ks, options)


class _QueryGallery:
    """Queries and gallery with the labels of the finest level, and ids as text."""

    def __init__(
        self, embeddings: Any, labels: Any, gallery: Any, gallery_labels: Any, ids: Any, gallery_ids: Any, level_names: Any
    ) -> None:
        if gallery is None and gallery_ids is not None:
            raise ValueError("gallery_ids were given without a gallery; give the gallery's embeddings too, or leave them out.")
        self.queries = Embeddings.from_source(embeddings, "embeddings")
        self.gallery = None if gallery is None else Embeddings.from_source(gallery, "gallery")
        self.labels, self.gallery_labels = _finest(labels), _finest(gallery_labels)
        self.level_names = list(level_names[:1]) if level_names else None
        self.classes: Mapping[str, Any] | None = None
        if self.labels is not None:
            array = labels if hasattr(labels, "ndim") else np.asarray(labels)
            columns = [array] if array.ndim == 1 else [array[:, level] for level in range(array.shape[1])]
            self.classes = dict(zip(check_level_names(level_names, len(columns)), columns, strict=True))
        self.given_ids = None if ids is None else as_array(ids)
        self.ids = _texts(ids, len(self.queries))
        self.gallery_ids = self.ids if self.gallery is None else _texts(gallery_ids, len(self.gallery))
        # Test images that are ranked against themselves and against distractors come first in the gallery.
        self.known_ids = self.gallery is None or (ids is not None and gallery_ids is not None)
        self.queries_in_gallery = self.known_ids and self.gallery_ids[: len(self.queries)] == self.ids

    def need_labels(self, protocol: Protocol, instead: str = "") -> None:
        if self.labels is None or (self.gallery is not None and self.gallery_labels is None):
            raise ValueError(f"protocol={protocol.name!r} needs labels of the queries and of the gallery{instead}.")

    def need_unique_ids(self, protocol: Protocol) -> None:
        for name, names in (("queries", self.ids), ("the gallery", self.gallery_ids)):
            if len(set(names)) < len(names):
                raise ValueError(
                    f"protocol={protocol.name!r} finds items by their ids, but those of {name} are not unique; rename some."
                )

    def with_ids(self, report: Report) -> Report:
        """The report with the ids of the queries beside their values, where there are any."""
        known = report.per_query is not None and self.given_ids is not None
        return replace(report, query_ids=self.given_ids) if known else report


def _texts(ids: Any, count: int) -> list[str]:
    if ids is None:
        return [str(row) for row in range(count)]
    if len(ids) != count:
        raise ValueError(f"there are {len(ids)} ids for {count} embeddings; give one for each.")
    return [str(one) for one in as_array(ids).tolist()]


def _finest(labels: Any) -> Any:
    if labels is None:
        return None
    array = labels if hasattr(labels, "ndim") else np.asarray(labels)
    if array.ndim > 1 and array.shape[1] == 0:
        return None
    return array if array.ndim < 2 else array[:, :1]


def _dml(protocol: Protocol, data: _QueryGallery, ks: Sequence[int] | None, options: dict[str, Any]) -> Report:
    data.need_labels(protocol)
    own = np.arange(len(data.queries)) if data.gallery is not None and data.queries_in_gallery else None
    if data.gallery is not None:
        rule = protocol.self_match if data.queries_in_gallery else "not left out"
        protocol = replace(protocol, gallery="queries against the gallery", self_match=rule)
    report = evaluate(
        data.queries,
        data.labels,
        data.gallery,
        data.gallery_labels,
        metrics=protocol.metric_names(ks),
        level_names=data.level_names,
        classes=data.classes,
        self_index=own,
        **options,
    )
    return with_protocol(data.with_ids(report), protocol)


def _revisited(
    protocol: Protocol, queries: Any, gallery: Any, ground_truth: Any, ks: Sequence[int] | None, options: dict[str, Any]
) -> Report:
    if ground_truth is None or gallery is None:
        missing = "its ground_truth, such as gnd_roxford5k.pkl" if ground_truth is None else "a gallery"
        raise ValueError(f"protocol='revisited' needs {missing}.")
    truth = read_ground_truth(ground_truth) if isinstance(ground_truth, str | PathLike) else ground_truth
    return with_protocol(
        revisited(queries, gallery, truth, ks=protocol.ks if ks is None else check_ks(ks), **options), protocol
    )


def _gldv2(
    protocol: Protocol, data: _QueryGallery, solution: Any, usage: str | None, ks: Sequence[int] | None, options: dict[str, Any]
) -> Report:
    cut_offs = check_ks(protocol.ks if ks is None else ks)
    if len(cut_offs) != 1:
        raise ValueError(f"protocol='gldv2' takes one k, not {len(cut_offs)}; leave ks (--k) out for 100.")
    if data.gallery is None:
        raise ValueError("protocol='gldv2' ranks an index that the queries are not part of; give a gallery (--gallery).")
    if solution is None:
        if usage is not None:
            raise ValueError("usage chooses queries of a solution; give solution, or leave usage out.")
        data.need_labels(protocol, ", or a solution with the relevant images of each query")
        report = evaluate(
            data.queries,
            data.labels,
            data.gallery,
            data.gallery_labels,
            metrics=protocol.metric_names(cut_offs),
            level_names=data.level_names,
            classes=data.classes,
            **options,
        )
        return with_protocol(data.with_ids(report), protocol)
    data.need_unique_ids(protocol)
    finish = _finisher(protocol, options)
    relevant = read_solution(solution, usage) if isinstance(solution, str | PathLike) else solution
    relevant = {str(query): [*map(str, check_relevant(query, items))] for query, items in relevant.items()}
    judged = np.array([query in relevant for query in data.ids])
    if not judged.any():
        raise ValueError(
            f"no query of the embeddings is in the solution: they have {data.ids[0]!r}, the solution "
            f"{next(iter(relevant), None)!r}; check the ids (--id)."
        )
    report = landmark_map(_relevant_in_place(data, relevant, cut_offs[0], **options), relevant, cut_offs[0])
    report = replace(
        report, n_items=len(data.gallery), settings={**report.settings, "queries_not_judged": int((~judged).sum())}
    )
    return finish(report)


def _relevant_in_place(
    data: _QueryGallery,
    relevant: Mapping[str, Sequence[str]],
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
    assert data.gallery is not None, "checked above"
    check_dimensions(data.queries, data.gallery)
    search = Search(
        data.queries,
        data.gallery,
        device=choose_device(device, data.queries),
        memory_budget=memory_budget,
        normalize=normalize,
    )
    row = {item: number for number, item in enumerate(data.gallery_ids)}
    positives = [[row[item] for item in relevant.get(query, ()) if item in row] for query in data.ids]
    show = progress_function(progress, "evaluating")
    places = listed_places(search, positives, [[]] * len(positives), lambda done: show(done, len(positives)))
    lists = {}
    for query, own, reached in zip(data.ids, positives, places, strict=True):
        if query in relevant:
            lists[query] = [""] * min(k, len(data.gallery))
            for number, place in zip(own, reached.tolist(), strict=True):  # which of them is where makes no difference
                if place <= k:
                    lists[query][place - 1] = data.gallery_ids[number]
    return lists


def _finisher(protocol: Protocol, options: dict[str, Any]) -> Callable[..., Report]:
    """Take the options of a report with values per query out of `options`; return a function that applies them to it."""
    per_query, intervals = options.pop("per_query", False), options.pop("intervals", False)

    def finish(report: Report, **settings: Any) -> Report:
        if intervals:
            report = report.with_intervals()
        return with_protocol(report if per_query else report.without_queries(), protocol, **settings)

    return finish


# MIEB


def _mieb(
    protocol: Protocol,
    data: _QueryGallery,
    qrels: Judgments | None,
    self_match: str | None,
    ks: Sequence[int] | None,
    options: dict[str, Any],
) -> Report:
    if self_match not in (None, *get_args(SelfMatch)):
        raise ValueError(f"self_match={self_match!r} must be one of {', '.join(get_args(SelfMatch))}.")
    if self_match == "id" and not data.known_ids:
        raise ValueError("self_match='id' drops the item with the query's id; give ids and gallery_ids (--id).")
    data.need_unique_ids(protocol)
    rule = self_match or ("first" if data.queries_in_gallery else "keep")
    cut_offs = check_ks(protocol.ks if ks is None else ks)
    finish = _finisher(protocol, options)
    judgments = _judgments(protocol, data, qrels)
    rows_judged = [row for row, query in enumerate(data.ids) if query in judgments]
    judged = [data.ids[row] for row in rows_judged]
    relevant = {query for query in judged if max(judgments[query].values()) > 0}
    if not relevant:
        compared = f"judgments have {next(iter(judgments), None)!r}, queries {data.ids[0]!r}; check the ids (--id)"
        raise ValueError(f"no query has a relevant item: {'all labels differ' if qrels is None else compared}.")
    # As many as mteb lists, also for a small k: which of equal scores are listed, and so have a place, depends on it.
    listed = max(cut_offs[-1], protocol.ks[-1])
    metrics = protocol.metric_names(cut_offs)
    values = np.zeros((len(metrics), len(judged)))
    place = {query: number for number, query in enumerate(judged)}
    rows = [row for row, query in enumerate(data.ids) if query in relevant]
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
    report = Report(
        means={metric: mean_over_queries(column) for metric, column in zip(metrics, values, strict=True)},
        n_queries=len(judged),
        n_items=len(data.queries if data.gallery is None else data.gallery),
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
        classes=None
        if data.classes is None
        else {level: own[rows_judged] for level, own in query_classes(data.classes, len(data.queries)).items()},
    )
    return finish(report, self_match=rule)


def _judgments(protocol: Protocol, data: _QueryGallery, qrels: Judgments | None) -> dict[str, dict[str, int]]:
    """The grades of each query's judged items: those given, or 1 for the items of its label, without the query itself."""
    if qrels is not None:
        given = Qrels.load(qrels) if isinstance(qrels, str | PathLike) else qrels
        given = given if isinstance(given, Qrels) else Qrels.from_dict(given)
        return {str(query): {str(item): grade for item, grade in judged} for query, judged in given if judged}
    data.need_labels(protocol, ", or qrels with the relevant items of each query")
    found = Qrels.from_labels(data.labels, data.gallery_labels, data.ids, None if data.gallery is None else data.gallery_ids)
    judgments = found.to_dict()
    if data.queries_in_gallery:
        for query in judgments:
            judgments[query].pop(query, None)
    return {query: judged for query, judged in judgments.items() if judged}


def _ranked_lists(
    data: _QueryGallery, rows: Sequence[int], k: int, places: int, *, progress: bool | Progress = True, **options: Any
) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """The queries in these rows by id, each with its best items by id and their scores; the query itself is one of them.

    k items are listed, and of these the first `places` returned, with those that tie with the last.
    """
    show = progress_function(progress, "searching")
    gallery = data.queries if data.gallery is None else data.gallery
    step = max(1, _RANKED_AT_ONCE // k)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QueryInGalleryWarning)
            run = top_k(data.queries.rows(torch.tensor(some)), gallery, k, progress=_shifted(show, start, len(rows)), **options)
        for row, (_, ranked) in zip(some, run, strict=True):
            last = ranked[min(places, len(ranked)) - 1][1]
            yield data.ids[row], [(data.gallery_ids[int(item)], score) for item, score in ranked if score >= last]


def _shifted(show: Progress, before: int, total: int) -> Progress:
    return lambda done, _: show(before + done, total)


def _without_self(query: str, ranked: list[tuple[str, float]], rule: str) -> dict[str, float]:
    if rule == "first" and ranked:
        # Of items that tie for the first place, the one with the larger id is first, as in trec_eval.
        first = max(ranked, key=lambda pair: (pair[1], pair[0]))[0]
        return {item: score for item, score in ranked if item != first}
    return {item: score for item, score in ranked if rule != "id" or item != query}
