"""GLDv2's retrieval score, mAP@100, by the rules of its own scorer (DELF), from lists or from its files.

The paper's H-GLDv2 tables use the same formula with other positives: the index images of the same landmark, and only
landmarks with a hierarchical label take part. Say which of the two a number is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation.metric_names import Metric
from suprank.evaluation.rankings import RankingRun
from suprank.evaluation.rankings.prediction_csv import csv_rows, prediction_rows, split_ids
from suprank.evaluation.report import Report
from suprank.evaluation.units import classes_of_positives

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from os import PathLike

    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.evaluation.rankings.item_ids import Id

    Predictions = RankingRun | Mapping[Any, Sequence[Any] | NDArray[Any] | Tensor]

_USAGES = ("Public", "Private", "Ignored")


@dataclass(frozen=True)
class LandmarkScore:
    """mAP@k, and the AP@k of every query of the solution. `float(score)` is the mean.

    `unanswered` is the number of queries without a prediction, which count as 0 in the mean.
    """

    mean: float
    per_query: dict[Id, float]
    unanswered: int
    k: int
    items: int  # distinct images that the solution or the first k predictions name
    classes: Mapping[str, NDArray[np.int64]] = field(repr=False, compare=False)  # queries that share a relevant image

    def __float__(self) -> float:
        return self.mean

    def report(self) -> Report:
        """The same as a `Report`, under `mAP@<k>`, to save, to compare query by query and to add intervals to."""
        key = str(Metric("mAP", self.k))
        return Report(
            {key: self.mean},
            n_queries=len(self.per_query),
            n_items=self.items,
            levels=("landmark",),
            without_positives={"landmark": 0},
            settings={"ks": [self.k], "unanswered": self.unanswered},
            per_query={key: np.array(list(self.per_query.values()))},
            query_ids=np.array(list(self.per_query)),
            classes=self.classes,
        )


def landmark_map(predictions: Predictions, solution: Mapping[Any, Collection[Any]], k: int = 100) -> LandmarkScore:
    """mAP@k = 1/|solution| · Σ_q 1/min(m_q, k) · Σ_{i=1..min(n_q, k)} [item i is new and relevant] · hits(i)/i.

    m_q is the number of relevant images, n_q the length of the predicted list, hits(i) how many of the first i items are new
    and relevant. `predictions` are ranked ids, best first; `solution` the relevant ids of each query.

    Edges, all as in DELF: a query without prediction (or with an empty list) counts as 0; a repeated prediction scores
    nothing, but takes up its place; a prediction for a query that is not in the solution is an error. An empty ground
    truth, where DELF divides by zero, is refused here, and so is an image that it names twice.

    Over a full ranking of distinct items it is `suprank.ranking.average_precision_at`, except that the mean there leaves out
    queries without positives.

    Example:
        >>> landmark_map({"q": ["a", "a", "b"]}, {"q": {"a", "b"}, "unanswered": {"c"}}).per_query
        {'q': 0.8333333333333333, 'unanswered': 0.0}
    """
    if not isinstance(predictions, RankingRun | Mapping):
        raise TypeError(
            f"predictions is a {type(predictions)}, but must be a RankingRun or a mapping from query id to ranked ids."
        )
    if k < 1:
        raise ValueError(f"k={k} must be 1 or more; GLDv2 takes 100.")
    if not solution:
        raise ValueError(
            "the solution has no queries, so there is no mean; check its usage, and whether every query is ignored."
        )
    relevant = {query: check_relevant(query, items) for query, items in solution.items()}
    _check_id_types(predictions, relevant)
    per_query: dict[Id, float] = dict.fromkeys(relevant, 0.0)
    images: set[Id] = set().union(*relevant.values())
    answered = 0
    for query, predicted in _ranked_lists(predictions):
        if isinstance(predicted, str):
            raise TypeError(
                f"the prediction for {query!r} is the text {predicted!r}, but a sequence of ids is expected; split it."
            )
        if not len(predicted):
            continue
        if query not in relevant:
            raise ValueError(
                f"query {query!r} is predicted but not in the solution; predict its {len(relevant)} queries only, or score "
                f"files with landmark_map_from_files, which leaves out the ids that the solution file marks as ignored."
            )
        per_query[query] = _average_precision(predicted, relevant[query], k)
        images.update(predicted[:k])
        answered += 1
    mean = math.fsum(per_query.values()) / len(per_query)
    classes = classes_of_positives(relevant[query] for query in per_query)
    return LandmarkScore(mean, per_query, len(per_query) - answered, k, len(images), classes)


def landmark_map_from_files(
    predictions: str | PathLike[str], solution: str | PathLike[str], *, usage: str | None = None, k: int = 100
) -> LandmarkScore:
    """mAP@k of a prediction file against GLDv2's solution file, as the challenge scored it.

    Predictions for queries that the solution file lists under another usage, or as ignored, are left out; a query that it does
    not list at all is an error. `usage` is "Public", "Private" (the challenge's final score) or None for both together.
    """
    listed = {query for _, query, _, _ in _solution_rows(Path(solution))}
    relevant = read_solution(solution, usage)
    predicted = read_predictions(predictions)
    for query in predicted:
        if query not in listed:
            raise ValueError(
                f"{predictions}: query {query!r} is not in {solution}; is it an index image, or another version's?"
            )
    return landmark_map({query: items for query, items in predicted.items() if query in relevant}, relevant, k)


def read_solution(path: str | PathLike[str], usage: str | None = None) -> dict[str, list[str]]:
    """The relevant images of each query in `retrieval_solution_v2.1.csv`: columns `id,images,Usage`.

    `usage` selects "Public" or "Private"; None takes both. Queries that are `Ignored`, or whose images are the literal
    `None`, are left out. A usage we do not know, a query twice, or a query without images is an error.
    """
    if usage not in (None, *_USAGES[:2]):
        raise ValueError(f"usage={usage!r} must be 'Public', 'Private' or None for both.")
    solution: dict[str, list[str]] = {}
    for number, query, images, marked in _solution_rows(Path(path)):
        if marked == "Ignored" or images == "None" or usage not in (None, marked):
            continue
        relevant = split_ids(images, f"{path}:{number}")
        if not relevant or len(set(relevant)) < len(relevant):
            raise ValueError(
                f"{path}:{number}: query {query!r} has {len(relevant)} relevant images, {len(set(relevant))} of them distinct; "
                f"AP divides by their number. Mark it 'None' and 'Ignored', or drop the repetitions."
            )
        solution[query] = relevant
    return solution


def read_predictions(path: str | PathLike[str]) -> dict[str, list[str]]:
    """The ranked images of each query in a prediction file: header `id,images`, images separated by single blanks, best first.

    Blank lines are skipped, one trailing blank is allowed, and a query with an empty second field has no prediction: it is
    left out. A query twice is an error. An image twice is not: `landmark_map` scores it as 0 (`RankingRun.load` refuses it).
    """
    predictions: dict[str, list[str]] = {}
    seen: set[str] = set()
    for number, query, images in prediction_rows(Path(path)):
        if query in seen:
            raise ValueError(f"{path}:{number}: query {query!r} is repeated, but only one list can be scored; drop the others.")
        seen.add(query)
        if images:
            predictions[query] = images
    return predictions


def _average_precision(predicted: Sequence[Id], relevant: frozenset[Id], k: int) -> float:
    hits: set[Id] = set()
    total = 0.0
    for place, item in enumerate(predicted[:k], 1):
        if item in relevant and item not in hits:
            hits.add(item)
            total += len(hits) / place
    return total / min(len(relevant), k)


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


def _ranked_lists(predictions: Predictions) -> Iterator[tuple[Id, Sequence[Id]]]:
    if isinstance(predictions, RankingRun):
        yield from ((query, [item for item, _ in ranked]) for query, ranked in predictions)
    else:
        for query, ids in predictions.items():
            yield query, ids.tolist() if hasattr(ids, "tolist") else ids  # elements of a tensor are equal to no id


def _check_id_types(predictions: Predictions, relevant: Mapping[Id, frozenset[Id]]) -> None:
    """Refuse indices where the solution has names: they would score 0 everywhere, and look like a poor model."""
    predicted = next((items[0] for _, items in _ranked_lists(predictions) if len(items)), None)
    named = next(iter(next(iter(relevant.values()))))
    if predicted is not None and isinstance(predicted, str) != isinstance(named, str):
        raise TypeError(
            f"predicted ids look like {predicted!r} and those of the solution like {named!r}, so none can match; "
            f"RankingRun.named(item_names=...) turns indices into names."
        )


def _solution_rows(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """(line number, query, images as text, usage) of every row, checked."""
    seen: set[str] = set()
    for number, (query, images, marked) in csv_rows(path, ("id", "images", "Usage")):
        if marked not in _USAGES:
            raise ValueError(
                f"{path}:{number}: query {query!r} has Usage {marked!r}, which must be one of {', '.join(_USAGES)}."
            )
        if query in seen:
            raise ValueError(f"{path}:{number}: query {query!r} is repeated; a solution file has one row for each.")
        seen.add(query)
        yield number, query, images, marked
