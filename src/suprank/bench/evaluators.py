"""What is timed: our evaluation, peers that evaluate, and two floors that only search or only multiply."""

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

    from suprank.bench.retrieval import Embedded

Kind = Literal["ours", "peer", "floor"]

TOP = 100  # length of the lists that the search returns
HEADLINES = ("R@1", "AP", "mAP@R", "mAP@100", "H-AP")  # what is reported, where an evaluator gives it
FOUND_AP = "AP of found"  # torchmetrics' on a top-100 list: it divides by the positives found there, so it is too high
_CPU_TILE = 1024, 16_384  # queries × items of a product: 64 MiB
_CUDA_TILE = 4096, 65_536  # 1 GiB


@dataclass(frozen=True)
class Evaluator:
    """Something to time. `run` is what is measured; `values` reads the metrics off what it returned, at no cost."""

    name: str
    kind: Kind
    run: Callable[[Embedded], Any]
    values: Callable[[Embedded, Any], dict[str, float]] = lambda embedded, found: {}
    on_gpu: bool = False


def _suprank(metrics: tuple[str, ...] | None) -> Callable[[Embedded], Any]:
    def run(embedded: Embedded) -> Any:
        from suprank.evaluation import evaluate

        return evaluate(*embedded, device=embedded.queries.device, metrics=metrics, progress=False)

    return run


def _reported(_: Embedded, report: Any) -> dict[str, float]:
    return {name: report.values[name] for name in HEADLINES if name in report.values}


def _search(embedded: Embedded) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores and positions of the best items. An item finds itself too, so it asks for one more."""
    faiss = importlib.import_module("faiss")
    index = faiss.IndexFlatIP(embedded.items.shape[1])
    index.add(embedded.items.numpy())
    among = embedded.gallery is None
    scores, positions = index.search(embedded.queries.numpy(), min(TOP + among, len(embedded.items)))
    return scores, positions


def _hits(embedded: Embedded, positions: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which of the listed items share the query's finest class, and which are the query itself."""
    fine, item_fine = embedded.labels[:, 0].numpy(), embedded.item_labels[:, 0].numpy()
    own = np.zeros(positions.shape, bool) if embedded.gallery is not None else positions == np.arange(len(positions))[:, None]
    return (item_fine[positions] == fine[:, None]) & ~own, own


def _first_hits(embedded: Embedded, positions: NDArray[np.int64]) -> dict[str, float]:
    """R@1: whether the first of the list, other than the query, is positive; over the queries that have a positive."""
    hits, own = _hits(embedded, positions)
    first = np.argmin(own[:, :2], 1)
    counts = np.bincount(embedded.item_labels[:, 0].numpy(), minlength=int(embedded.labels[:, 0].max()) + 1)
    answerable = counts[embedded.labels[:, 0].numpy()] > (embedded.gallery is None)
    return {"R@1": float(hits[np.arange(len(hits)), first][answerable].mean())}


def _torchmetrics(embedded: Embedded) -> tuple[float, NDArray[np.int64]]:
    with suppress(ImportError):  # torchmetrics imports torchvision, where there is one
        torchvision_operators.declare()
    retrieval = importlib.import_module("torchmetrics.retrieval")
    scores, positions = _search(embedded)
    hits, own = _hits(embedded, positions)
    asking = np.broadcast_to(np.arange(len(positions))[:, None], positions.shape)
    metric = retrieval.RetrievalMAP()
    metric.update(*(torch.from_numpy(part[~own]) for part in (scores, hits)), indexes=torch.from_numpy(asking[~own]))
    return metric.compute().item(), positions


def _pytorch_metric_learning(embedded: Embedded) -> dict[str, float]:
    device = embedded.queries.device
    calculators = importlib.import_module("pytorch_metric_learning.utils.accuracy_calculator")
    calculator = calculators.AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision_at_r"),
        k="max_bin_count",
        device=device,
        knn_func=_neighbors(device),
    )
    found: dict[str, float] = calculator.get_accuracy(
        embedded.queries, embedded.labels[:, 0], embedded.items, embedded.item_labels[:, 0], embedded.gallery is None
    )
    return found


def _neighbors(device: torch.device) -> Any:
    """Its search with faiss, as by default; on a GPU its search with torch, because faiss is built for CPUs there."""
    inference = importlib.import_module("pytorch_metric_learning.utils.inference")
    if device.type == "cuda":
        distances = importlib.import_module("pytorch_metric_learning.distances")
        return inference.CustomKNN(distances.CosineSimilarity(), batch_size=_CUDA_TILE[0])
    importlib.import_module("faiss")  # theirs fails with a NameError
    return inference.FaissKNN()


def _precisions(_: Embedded, found: dict[str, float]) -> dict[str, float]:
    return {"R@1": found["precision_at_1"], "mAP@R": found["mean_average_precision_at_r"]}


def _product(embedded: Embedded) -> None:
    """Every score, computed and thrown away, a tile at a time."""
    queries, items = embedded.queries, embedded.items
    if queries.is_cuda:
        _tiles(queries, items, torch.empty(_tile(embedded, _CUDA_TILE), device=queries.device), torch.mm)
    else:
        _tiles(queries.numpy(), items.numpy(), np.empty(_tile(embedded, _CPU_TILE), np.float32), np.matmul)


def _tile(embedded: Embedded, most: tuple[int, int]) -> tuple[int, int]:
    return min(most[0], len(embedded.queries)), min(most[1], len(embedded.items))


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
        Evaluator("faiss", "floor", _search, lambda embedded, found: _first_hits(embedded, found[1])),
        Evaluator("suprank", "ours", _suprank(None), _reported, on_gpu=True),
        Evaluator("suprank, top-k metrics only", "ours", _suprank(("R@1", "R@10", "mAP@100")), _reported, on_gpu=True),
        Evaluator("pytorch-metric-learning", "peer", _pytorch_metric_learning, _precisions, on_gpu=True),
        Evaluator(
            "torchmetrics",
            "peer",
            _torchmetrics,
            lambda embedded, found: {FOUND_AP: found[0], **_first_hits(embedded, found[1])},
        ),
    ]
}
