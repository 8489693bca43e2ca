"""The evaluators that are timed: ours, other libraries', and two lower bounds that only search or only multiply."""

from __future__ import annotations

import importlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from suprank.system import torchvision_operators

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from bench.synthetic_collections import EmbeddedCollection

Kind = Literal["ours", "peer", "floor"]

TOP = 100  # length of the lists that a search returns
HEADLINES = ("R@1", "AP", "mAP@R", "mAP@100", "H-AP")  # reported if an evaluator computes them
FOUND_AP = "AP of found"  # torchmetrics' AP of a top-100 list: divided by the positives found there, so too high
_CPU_TILE = 1024, 16_384  # queries × items of a product: 64 MiB
_CUDA_TILE = 4096, 65_536  # 1 GiB


@dataclass(frozen=True)
class Evaluator:
    """An evaluator to time. `run` is timed; `values` extracts the metrics from its result, untimed."""

    name: str
    kind: Kind
    run: Callable[[EmbeddedCollection], Any]
    values: Callable[[EmbeddedCollection, Any], dict[str, float]] = lambda collection, result: {}
    on_gpu: bool = False


def _suprank(metrics: tuple[str, ...] | None) -> Callable[[EmbeddedCollection], Any]:
    def run(collection: EmbeddedCollection) -> Any:
        from suprank.evaluation import evaluate

        return evaluate(*collection, device=collection.queries.device, metrics=metrics, progress=False)

    return run


def _report_values(_: EmbeddedCollection, report: Any) -> dict[str, float]:
    return {name: report[name] for name in HEADLINES if name in report}


def _search(collection: EmbeddedCollection) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores and positions of the best items. A query that is an item finds itself, so its list is one longer."""
    faiss = importlib.import_module("faiss")
    index = faiss.IndexFlatIP(collection.items.shape[1])
    index.add(collection.items.numpy())
    among = collection.gallery is None
    scores, positions = index.search(collection.queries.numpy(), min(TOP + among, len(collection.items)))
    return scores, positions


def _hits(collection: EmbeddedCollection, positions: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which of the listed items have the query's finest class, and which are the query itself."""
    fine, item_fine = collection.labels[:, 0].numpy(), collection.item_labels[:, 0].numpy()
    own = np.zeros(positions.shape, bool) if collection.gallery is not None else positions == np.arange(len(positions))[:, None]
    return (item_fine[positions] == fine[:, None]) & ~own, own


def _first_hits(collection: EmbeddedCollection, positions: NDArray[np.int64]) -> dict[str, float]:
    """R@1: whether the first item other than the query is positive, over the queries that have a positive."""
    hits, own = _hits(collection, positions)
    first = np.argmin(own[:, :2], 1)
    counts = np.bincount(collection.item_labels[:, 0].numpy(), minlength=int(collection.labels[:, 0].max()) + 1)
    has_positive = counts[collection.labels[:, 0].numpy()] > (collection.gallery is None)
    return {"R@1": float(hits[np.arange(len(hits)), first][has_positive].mean())}


def _torchmetrics(collection: EmbeddedCollection) -> tuple[float, NDArray[np.int64]]:
    with suppress(ImportError):  # torchmetrics imports torchvision, where there is one
        torchvision_operators.declare()
    retrieval = importlib.import_module("torchmetrics.retrieval")
    scores, positions = _search(collection)
    hits, own = _hits(collection, positions)
    query = np.broadcast_to(np.arange(len(positions))[:, None], positions.shape)
    metric = retrieval.RetrievalMAP()
    metric.update(*(torch.from_numpy(part[~own]) for part in (scores, hits)), indexes=torch.from_numpy(query[~own]))
    return metric.compute().item(), positions


def _pytorch_metric_learning(collection: EmbeddedCollection) -> dict[str, float]:
    device = collection.queries.device
    calculators = importlib.import_module("pytorch_metric_learning.utils.accuracy_calculator")
    calculator = calculators.AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision_at_r"),
        k="max_bin_count",
        device=device,
        knn_func=_nearest_neighbors(device),
    )
    accuracies: dict[str, float] = calculator.get_accuracy(
        collection.queries, collection.labels[:, 0], collection.items, collection.item_labels[:, 0], collection.gallery is None
    )
    return accuracies


def _nearest_neighbors(device: torch.device) -> Any:
    """Its default search with faiss; on a GPU its search with torch, because faiss-cpu has no GPU support."""
    inference = importlib.import_module("pytorch_metric_learning.utils.inference")
    if device.type == "cuda":
        distances = importlib.import_module("pytorch_metric_learning.distances")
        return inference.CustomKNN(distances.CosineSimilarity(), batch_size=_CUDA_TILE[0])
    importlib.import_module("faiss")  # else it fails with a NameError
    return inference.FaissKNN()


def _accuracies(_: EmbeddedCollection, result: dict[str, float]) -> dict[str, float]:
    return {"R@1": result["precision_at_1"], "mAP@R": result["mean_average_precision_at_r"]}


def _product(collection: EmbeddedCollection) -> None:
    """Every score, computed and discarded, one tile at a time."""
    queries, items = collection.queries, collection.items
    if queries.is_cuda:
        _tiles(queries, items, torch.empty(_tile(collection, _CUDA_TILE), device=queries.device), torch.mm)
    else:
        _tiles(queries.numpy(), items.numpy(), np.empty(_tile(collection, _CPU_TILE), np.float32), np.matmul)


def _tile(collection: EmbeddedCollection, most: tuple[int, int]) -> tuple[int, int]:
    return min(most[0], len(collection.queries)), min(most[1], len(collection.items))


def _tiles(queries: Any, items: Any, scores: Any, product: Callable[..., Any]) -> None:
    rows, columns = scores.shape
    for start in range(0, len(queries), rows):
        some = queries[start : start + rows]
        for begin in range(0, len(items), columns):
            others = items[begin : begin + columns]
            product(some, others.T, out=scores[: len(some), : len(others)])


EVALUATORS: dict[str, Evaluator] = {
    evaluator.name: evaluator
    for evaluator in [
        Evaluator("similarity product alone", "floor", _product, on_gpu=True),
        Evaluator("faiss", "floor", _search, lambda collection, result: _first_hits(collection, result[1])),
        Evaluator("suprank", "ours", _suprank(None), _report_values, on_gpu=True),
        Evaluator("suprank, top-k metrics only", "ours", _suprank(("R@1", "R@10", "mAP@100")), _report_values, on_gpu=True),
        Evaluator("pytorch-metric-learning", "peer", _pytorch_metric_learning, _accuracies, on_gpu=True),
        Evaluator(
            "torchmetrics",
            "peer",
            _torchmetrics,
            lambda collection, result: {FOUND_AP: result[0], **_first_hits(collection, result[1])},
        ),
    ]
}
