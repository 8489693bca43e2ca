"""`evaluate`: every metric of embeddings and labels, or those of a published protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from suprank.evaluation.arguments import as_array
from suprank.evaluation.protocols import find_protocol, protocol_report
from suprank.evaluation.ranking_report import ranking_report
from suprank.evaluation.report_comparison import LABELS
from suprank.evaluation.retrieval_data import RetrievalData
from suprank.evaluation.truth import read_truth
from suprank.evaluation.units import TRAINING

if TYPE_CHECKING:
    import os

    import torch
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.evaluation.report import Report
    from suprank.evaluation.truth import TruthSource
    from suprank.system.progress import Progress

PROVENANCE = "embeddings"
"""Key of a report's settings under which it says which model made the embeddings, and how it read the images."""

HEAD = "head"
"""Key of a report's settings with the fingerprint of the head that was applied to the embeddings."""


def evaluate(
    data: RetrievalData | EmbeddingSource,
    labels: Tensor | ArrayLike | None = None,
    gallery: EmbeddingSource | None = None,
    gallery_labels: Tensor | ArrayLike | None = None,
    *,
    truth: TruthSource | None = None,
    protocol: str | None = None,
    levels: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    ks: Sequence[int] | None = None,
    decay: float | None = None,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    ids: Sequence[Any] | NDArray[Any] | None = None,
    gallery_ids: Sequence[Any] | NDArray[Any] | None = None,
    self_index: Tensor | ArrayLike | None = None,
    ignored: Sequence[Sequence[int]] | None = None,
    classes: Mapping[str, Tensor | ArrayLike] | None = None,
    normalize: bool = True,
    per_query: bool = False,
    intervals: bool = False,
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    distributed: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | Progress = True,
) -> Report:
    """Rank the gallery for every query by cosine similarity, and compute every metric of the ranking, exactly.

    `data` are `RetrievalData`, or embeddings with `labels`: tensors, numpy arrays, or paths of ``.npy``, ``.pt`` or
    ``.parquet`` files, which may be larger than memory; several files, as a list or a pattern, are one collection.
    Labels are `[N]` or `[N, L]`, column 0 the finest, and must form a tree; −1 is no label: such an item is a positive of no
    query and a negative of all. Labels `[N, L, M]` are sets of up to M labels at each level, padded with −1, or truth values
    of M classes: an item is a positive where its set meets the query's. Without a gallery, the queries are ranked against each
    other. `levels` names the columns of labels in an array, finest first, and chooses levels of `RetrievalData`.

    The query itself is left out of its list: the item `self_index` (−1 for none), or the items with the query's id; without a
    gallery and ids, the item of the same number. So are the items in `ignored[query]`. An exact copy of the query under
    another number is an item like any other; but if most queries have one in the gallery that is not left out, a
    `QueryInGalleryWarning` is raised, and without a gallery a warning too.

    Items are in a total order: score descending, on equal scores the lower level first. Scores are float32 whatever the
    embeddings are stored in. Products are computed in whole tiles, so that exact copies of an item get the same score
    wherever they are in the gallery; on one CPU every value is the same to the last bit for any memory budget and number of
    processes.

    Metrics: R@k (is a positive in the top k?), TR@k (the share of the positives that could be there), P@k (always divided
    by k), mAP@k (divided by min(k, |Ω⁺|)), AP, mAP@R, R-P (precision at R), MRR, ASI, at the finest level and, as
    ``AP/<level>``, at every level. ``AP/overall`` is the mean over queries of each query's mean over the levels at which it
    has positives. If you name it in `metrics`, ``AP/mean-of-levels`` is the mean over levels of their means over queries, as
    in the authors' code; the two differ where queries lack positives at some level. These use all levels: H-AP with relevance
    (l/L)^decay / |Ω^(l)|, wAP with `weights` (by level name, or a sequence, finest level first), NDCG with gain 2^l − 1, ASI,
    H-P@k and H-R@k. `ks`, `decay` and `weights` are by default those of the data: of a run's recipe, or (1, 10, 100), 1 and
    equal weights. `metrics` chooses some, by these names or by pytorch-metric-learning's, and `ks` is then ignored; if all
    of them have a k, only the top k is ranked. A query without positives at a level is left out of the means there and
    counted in `Report.without_positives`. A k beyond the gallery is allowed: the missing places count as wrong.

    Under torch.distributed each process ranks a share of the queries, and all return the same report; with
    `distributed=False` each process evaluates its own data. `memory_budget` is about how many bytes are used in addition to
    the embeddings and labels given, up to 30 bytes per item for the label tree, and 8 bytes per metric and query: by default
    256 MiB for each of torch's threads (512 MiB at least), on a GPU 4 GiB. A gallery that does not fit into it is read again
    for every block of queries. `progress` is a function of (done, total), or whether to show a bar on a terminal.

    `protocol` evaluates by the conventions of published numbers, with their own metrics: `dml`, `mieb`, `revisited` or `gldv2`
    (`suprank.evaluation.PROTOCOLS`). `truth` says what is relevant in place of labels, and by its kind which protocol is meant:
    judgments (`Qrels`, `{query: {item: grade}}`) for `mieb`, the ground truth of revisited Oxford and Paris, GLDv2's solution
    (`{query: ids}`), or a file with one of them. Items are found by their ids.

    `per_query` keeps each query's values, and `intervals` adds 95 % confidence intervals for new classes: queries of a class
    are not independent of one another (`Report.units`). `classes` are the labels of the queries at every level that you have,
    by name, finest first, also at those that are not evaluated; by default `labels`.

    `checkpoint` is a folder, in which the values of finished blocks of queries are saved every 30 seconds: after a kill the
    same call goes on with the others, with any number of processes, and gives the same digits. If the folder is of another
    evaluation (other embeddings, labels or settings), a ValueError says what differs. It stays, and a later call returns once
    it has checked the embeddings; delete it when you have the report.

    Example:
        >>> report = evaluate(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]]), torch.tensor([0, 1, 0, 1]))
        >>> report["R@1"], report["AP"]
        (0.0, 0.4583333333333333)
        >>> data = RetrievalData.from_arrays(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]]), [0, 1, 0, 1])
        >>> report = evaluate(data, protocol="dml")
        >>> report["R@2"], report["mAP@R"], report.settings["protocol"]
        (0.75, 0.0, 'dml')
    """
    arrays: dict[str, Any] = {"labels": labels, "gallery": gallery, "gallery_labels": gallery_labels}
    arrays |= {"ids": ids, "gallery_ids": gallery_ids, "classes": classes}
    if not isinstance(data, RetrievalData):
        data = RetrievalData.from_arrays(data, **arrays, levels=levels)
    elif given := [name for name, one in arrays.items() if one is not None]:
        raise ValueError(f"{given[0]} is for embeddings in arrays, and {data!r} has its own; leave it out.")
    elif levels:
        data = data.at_levels(levels)
    judged = None if truth is None else read_truth(truth)
    chosen = None if judged is None and protocol is None else find_protocol(protocol, judged)
    ranking: dict[str, Any] = {"metrics": metrics, "decay": decay, "weights": weights, "ignored": ignored}
    ranking |= {"self_index": self_index, "checkpoint": checkpoint}
    search: dict[str, Any] = {"normalize": normalize, "device": device, "memory_budget": memory_budget, "progress": progress}
    if chosen is None:
        data.require_labels()
        report = ranking_report(data, ks=ks, distributed=distributed, **ranking, **search)
    else:
        if given := [name for name, one in ranking.items() if one is not None]:
            raise ValueError(f"{given[0]} cannot be combined with protocol={chosen.name!r}, which has its own; leave it out.")
        report = protocol_report(chosen, data, judged, ks=ks, **search)
    return _finish(report, data, per_query=per_query, intervals=intervals)


def _finish(report: Report, data: RetrievalData, *, per_query: bool, intervals: bool) -> Report:
    """The report with what is known of the data, its intervals, and the values of each query, as asked."""
    origin = data.origin
    known: dict[str, Any] = {
        LABELS: data.digests or None,
        PROVENANCE: None if origin.made_by is None else origin.made_by.asdict(),
        TRAINING: None if origin.training is None else dict(origin.training),
        HEAD: origin.head,
    }
    report = replace(report, settings={**report.settings, **{key: one for key, one in known.items() if one is not None}})
    if per_query and report.query_ids is None and data.queries.keys is not None and report.n_queries == len(data.queries):
        report = replace(report, query_ids=as_array(data.queries.keys))
    if intervals:  # after the settings, because their sentence is about the training too
        report = report.with_intervals()
    return report if per_query else report.without_queries()
