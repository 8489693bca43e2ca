"""GLDv2's retrieval score, mAP@100, by the rules of its own scorer (DELF), from lists or from its files.

The paper's H-GLDv2 tables use the same formula with other positives: the index images of the same landmark, and only
landmarks with a hierarchical label take part. Say which of the two a number is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation.id_lists import read_id_lists
from suprank.evaluation.metric_names import Metric
from suprank.evaluation.report import Report
from suprank.evaluation.runs import Run
from suprank.evaluation.units import classes_of_positives

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from os import PathLike

    from numpy.typing import NDArray
    from torch import Tensor

    Id = str | int
    Predictions = Run | Mapping[Any, Sequence[Any] | NDArray[Any] | Tensor]

USAGES = ("Public", "Private")
_SOLUTION = ("id", "images", "Usage")


def landmark_map(predicted: Predictions, solution: Mapping[Any, Collection[Any]], k: int = 100) -> Report:
    """mAP@k = 1/|solution| · Σ_q 1/min(m_q, k) · Σ_{i=1..min(n_q, k)} [item i is new and relevant] · hits(i)/i.

    m_q is the number of relevant images, n_q the length of the predicted list, hits(i) how many of the first i items are new
    and relevant. `predicted` are ranked ids, best first; `solution` the relevant ids of each query. The report has the value of
    each query, and the number of queries without a prediction as `unanswered` in its settings.

    Edges, all as in DELF: a query without prediction (or with an empty list) counts as 0; a repeated prediction scores
    nothing, but takes up its place; a prediction for a query that is not in the solution is an error. An empty ground
    truth, where DELF divides by zero, is refused here, and so is an image that it names twice.

    Over a full ranking of distinct items it is `suprank.ranking.average_precision_at`, except that the mean there leaves out
    queries without positives.

    Example:
        >>> landmark_map({"q": ["a", "a", "b"]}, {"q": {"a", "b"}, "unanswered": {"c"}}).per_query
        {'mAP@100': array([0.83333333, 0.        ])}
    """
    if not isinstance(predicted, Run | Mapping):
        raise TypeError(f"predictions is a {type(predicted)}, but must be a Run or a mapping from query id to ranked ids.")
    if k < 1:
        raise ValueError(f"k={k} must be 1 or more; GLDv2 takes 100.")
    if not solution:
        raise ValueError(
            "the solution has no queries, so there is no mean; check its usage, and whether every query is ignored."
        )
    relevant = {query: check_relevant(query, items) for query, items in solution.items()}
    values: dict[Id, float] = dict.fromkeys(relevant, 0.0)
    images: set[Id] = set().union(*relevant.values())
    named = next(iter(images))
    answered = 0
    for query, items in _ranked_lists(predicted):
        if isinstance(items, str):
            raise TypeError(f"the prediction for {query!r} is the text {items!r}, but a sequence of ids is expected; split it.")
        if not len(items):
            continue
        if isinstance(items[0], str) != isinstance(named, str):  # would score 0 everywhere, and look like a poor model
            raise TypeError(
                f"predicted ids look like {items[0]!r} and those of the solution like {named!r}, so none can match; "
                f"write both as text."
            )
        if query not in relevant:
            raise ValueError(
                f"query {query!r} is predicted but not in the solution; predict its {len(relevant)} queries only, or score "
                f"files with landmark_map_from_files, which leaves out the ids that the solution file marks as ignored."
            )
        values[query] = _average_precision(items, relevant[query], k)
        images.update(items[:k])
        answered += 1
    key = str(Metric("mAP", k))
    return Report(
        {key: math.fsum(values.values()) / len(values)},
        n_queries=len(values),
        n_items=len(images),
        levels=("landmark",),
        without_positives={"landmark": 0},
        settings={"ks": [k], "unanswered": len(values) - answered},
        per_query={key: np.array(list(values.values()))},
        query_ids=np.array(list(values)),
        classes=classes_of_positives(relevant[query] for query in values),
    )


def landmark_map_from_files(
    predicted: str | PathLike[str], solution: str | PathLike[str], *, usage: str | None = None, k: int = 100
) -> Report:
    """mAP@k of a prediction file against GLDv2's solution file, as the challenge scored it.

    Predictions for queries that the solution file lists under another usage, or as ignored, are left out; a query that it does
    not list at all is an error. `usage` is "Public", "Private" (the challenge's final score) or None for both together.
    """
    listed = set(read_id_lists(Path(solution), *_SOLUTION)[0].column("id").to_pylist())
    relevant = read_solution(solution, usage)
    found = read_predictions(predicted)
    for query in found:
        if query not in listed:
            raise ValueError(f"{predicted}: query {query!r} is not in {solution}; is it an index image, or another version's?")
    return landmark_map({query: items for query, items in found.items() if query in relevant}, relevant, k)


def read_solution(path: str | PathLike[str], usage: str | None = None) -> dict[str, list[str]]:
    """The relevant images of each query in `retrieval_solution_v2.1.csv`: columns `id,images,Usage`.

    `usage` selects "Public" or "Private"; None takes both. Queries that are `Ignored`, or whose images are the literal
    `None`, are left out. A usage we do not know, a query twice, or a query without images is an error.
    """
    if usage not in (None, *USAGES):
        raise ValueError(f"usage={usage!r} must be 'Public', 'Private' or None for both.")
    table, images = read_id_lists(Path(path), *_SOLUTION)
    queries, usages = table.column("id").to_pylist(), table.column("Usage").to_pylist()
    known = (*USAGES, "Ignored")
    table.refuse(
        np.array([marked not in known for marked in usages]),
        lambda row: f"query {queries[row]!r} has Usage {usages[row]!r}, which must be one of {', '.join(known)}.",
    )
    wanted = [marked in ((usage,) if usage else USAGES) and one != ["None"] for marked, one in zip(usages, images, strict=True)]
    table.refuse(
        np.array([take and not len(set(one)) == len(one) > 0 for take, one in zip(wanted, images, strict=True)]),
        lambda row: (
            f"query {queries[row]!r} has {len(images[row])} relevant images, {len(set(images[row]))} of them distinct; "
            f"AP divides by their number. Mark it 'None' and 'Ignored', or drop the repetitions."
        ),
    )
    return {query: one for query, one, take in zip(queries, images, wanted, strict=True) if take}


def read_predictions(path: str | PathLike[str]) -> dict[str, list[str]]:
    """The ranked images of each query in a prediction file: header `id,images`, images separated by single blanks, best first.

    One trailing blank is allowed, and a query with an empty second field has no prediction: it is left out. A query twice is an
    error. An image twice is not: `landmark_map` scores it as 0 (`Run.load` refuses it).
    """
    table, images = read_id_lists(Path(path), "id", "images")
    return {query: one for query, one in zip(table.column("id").to_pylist(), images, strict=True) if one}


def check_relevant(query: Id, items: Collection[Id]) -> frozenset[Id]:
    """The relevant items of a query; refused if there are none, or one twice."""
    if isinstance(items, str):
        raise TypeError(f"the solution of {query!r} is the text {items!r}, but a collection of ids is expected; split it.")
    relevant = frozenset(items)
    if not relevant or len(relevant) < len(items):
        raise ValueError(
            f"the solution of query {query!r} has {len(items)} images, {len(relevant)} of them distinct, but AP divides by "
            f"their number; leave out queries without relevant images, and drop repetitions."
        )
    return relevant


def _average_precision(predicted: Sequence[Id], relevant: frozenset[Id], k: int) -> float:
    hits: set[Id] = set()
    total = 0.0
    for place, item in enumerate(predicted[:k], 1):
        if item in relevant and item not in hits:
            hits.add(item)
            total += len(hits) / place
    return total / min(len(relevant), k)


def _ranked_lists(predicted: Predictions) -> Iterator[tuple[Id, Sequence[Id]]]:
    if isinstance(predicted, Run):
        yield from ((query, [item for item, _ in ranked]) for query, ranked in predicted)
    else:
        for query, ids in predicted.items():
            yield query, ids.tolist() if hasattr(ids, "tolist") else ids  # elements of a tensor are equal to no id
