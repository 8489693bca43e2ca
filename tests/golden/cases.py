"""What must not change: every loss and gradient, every metric, reports, searches and imported manifests, on drawn data.

`CASES` has a function for each key, which returns numbers and text in lists and dictionaries. When a function of suprank
changes its name or its arguments, change the call here, and no value. Numbers are drawn by PCG64, whose uniform numbers are the
same everywhere. Vectors of signs have a length that is a power of two, so that cosines, and with them ties, are exact on every
machine; no two other scores of a query are closer than `GAP`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from PIL import Image

import suprank
from suprank import evaluation, losses
from suprank.data import Manifest
from suprank.data.importers import BENCHMARKS, CSV, FOLDER
from suprank.models import Head, HeadConfig
from tests.data import miniatures, miniatures_landmarks

SHARED = Path(__file__).parents[2] / "../shared/data"
CASES: dict[str, Callable[[], Any]] = {}
GAP = 1e-6
_QUIET: dict[str, Any] = {"device": "cpu", "progress": False}


def uniform(seed: int, *shape: int) -> np.ndarray:
    """Numbers from −1 to 1 in float64."""
    return np.random.Generator(np.random.PCG64(seed)).random(shape) * 2 - 1


def whole(seed: int, below: int, *shape: int) -> np.ndarray:
    return ((uniform(seed, *shape) + 1) / 2 * below).astype(np.int64)


def signs(seed: int, rows: int, dim: int) -> np.ndarray:
    return np.where(uniform(seed, rows, dim) > 0, 1.0, -1.0)


def digest(rows: Any) -> str:
    return hashlib.sha256(json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()[:16]


# Losses

DIM = 4
_TREE = torch.tensor([[fine, fine // 2, fine // 6] for fine in range(12)])  # classes 0..11 at three levels
_BY_NAME: dict[str, Callable[[torch.Tensor], losses.RetrievalLoss]] = {
    **{
        name: lambda tree, name=name: getattr(losses, name)()
        for name in (
            *("SupAP", "SupRecall", "SupHAP", "SupNDCG", "SupMRR"),
            *("SmoothAP", "SmoothRecall", "SmoothHAP", "SmoothNDCG", "SmoothMRR"),
            *("PairCalibration", "FastAP", "SoftBinAP", "TripletSemiHard", "DistanceWeightedTriplet"),
            *("ContrastiveXBM", "ContrastiveKoLeo", "KoLeo", "MultiSimilarity", "SupCon", "SigLIP", "Circle"),
        )
    },
    **{
        name: lambda tree, name=name: getattr(losses, name)(len(tree), DIM)
        for name in ("ProxySoftmax", "CrossEntropy", "ProxyNCA", "ProxyAnchor", "ArcFace", "CosFace")
    },
    **{
        name: lambda tree, name=name: getattr(losses, name)(len(tree), DIM)
        for name in ("roadmap", "happier", "rod_recall", "rod_ndcg")
    },
    "BlackBoxAP": lambda tree: losses.BlackBoxAP(margin=0.0),
    "CSL": lambda tree: losses.CSL(tree, DIM),
    "SumOverLevels triplets": lambda tree: losses.SumOverLevels([losses.TripletSemiHard(margin=0.3) for _ in tree.T]),
    "SumOverLevels proxies": lambda tree: losses.SumOverLevels(
        [losses.ProxySoftmax(int(level.max()) + 1, DIM) for level in tree.T]
    ),
    "Matryoshka": lambda tree: losses.Matryoshka(losses.roadmap(len(tree), DIM), (2, DIM)),
    "SimilarityMixup": lambda tree: losses.SimilarityMixup(losses.SupAP()),
    "Combined": lambda tree: losses.Combined(losses.SmoothNDCG(), losses.PairCalibration(), 0.3),
    "SupAP include_self": lambda tree: losses.SupAP(include_self=True),
    "SupAP at 2": lambda tree: losses.SupAP(k=2),
    "SupAP wide": lambda tree: losses.SupAP(tau=0.1, rho=3.0, delta=0.2),
    "SupHAP decay": lambda tree: losses.SupHAP(decay=2.0),
    "SupHAP weights": lambda tree: losses.SupHAP(weights=[0.5, 0.3, 0.2][: tree.shape[1]]),
    "SupNDCG at 3": lambda tree: losses.SupNDCG(k=3),
    "PairCalibration violating": lambda tree: losses.PairCalibration(average="violating"),
}

_ITEMS = 12
_FLAT = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 4, 4])
_LEVELS = torch.stack([_FLAT, _FLAT // 2, _FLAT // 4], 1)
_GAPS = _LEVELS.where(torch.tensor([[row not in (2, 6), row != 6, True] for row in range(_ITEMS)]), -1)
_SETS = torch.tensor([[[row % 3, 3 if row % 4 == 0 else -1], [row % 2, -1]] for row in range(_ITEMS)])
_MANY = torch.arange(40) // 20


def _drawn(rows: int = _ITEMS, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(uniform(seed, rows, DIM))


def _corners() -> torch.Tensor:
    """Distinct vectors of signs, whose cosines are multiples of ½: many ties."""
    return torch.tensor([[1.0 if number >> bit & 1 else -1.0 for bit in range(DIM)] for number in range(_ITEMS)]).double()


def _references() -> dict[str, torch.Tensor]:
    return {
        "ref_emb": _drawn(20, 2),
        "ref_labels": torch.arange(20) % 5,
        "self_index": (torch.arange(_ITEMS) - 4).clamp(min=-1),
    }


def _by_id() -> dict[str, torch.Tensor]:
    known = {"ref_emb": torch.cat([_drawn(), _drawn(8, 2)]), "ref_labels": torch.cat([_FLAT, torch.arange(8) % 5])}
    return known | {"ids": torch.arange(_ITEMS), "ref_ids": torch.arange(20) - 2}


_KINDS: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]]] = {
    "flat": lambda: (_drawn(), _FLAT, {}),
    "levels": lambda: (_drawn(), _LEVELS, {}),
    "gaps": lambda: (_drawn(), _GAPS, {}),
    "sets": lambda: (_drawn(), _SETS, {}),
    "ties": lambda: (_corners(), _FLAT, {}),
    "many": lambda: (_drawn(40), _MANY, {}),
    "references": lambda: (_drawn(), _FLAT, _references()),
    "ids": lambda: (_drawn(), _FLAT, _by_id()),
    "relevance": lambda: (_drawn(), _FLAT, {"relevance": torch.from_numpy(whole(3, 4, _ITEMS, _ITEMS) / 3.0)}),
    "float32": lambda: (_drawn().float(), _LEVELS, {}),
}


def _fill_proxies(loss: torch.nn.Module) -> list[tuple[torch.nn.Parameter, bool]]:
    """Draw proxies by class and dimension; return the parameters, and whether they are stored dimension by class."""
    found = []
    with torch.no_grad():
        for number, parameter in enumerate(loss.parameters()):
            turned = parameter.ndim == 2 and parameter.shape[1] != DIM
            shape = tuple(reversed(parameter.shape)) if turned else tuple(parameter.shape)
            values = torch.as_tensor(uniform(100 + number, *shape))
            parameter.copy_(values.T if turned else values)
            found.append((parameter, turned))
    return found


def _loss(name: str, kind: str) -> Any:
    """Value, gradient of the embeddings, gradients of the parameters; or the type of the error where they are refused."""
    embeddings, labels, options = _KINDS[kind]()
    tree = _TREE[:, : 1 if labels.ndim == 1 else labels.shape[1]]
    loss = _BY_NAME[name](tree).to(embeddings.dtype)
    parameters = _fill_proxies(loss)
    leaf = embeddings.requires_grad_()
    torch.manual_seed(0)  # two of them draw: uniform numbers on the host
    try:
        value = loss(leaf, labels, **options)
    except (ValueError, TypeError) as error:
        return f"refused: {type(error).__name__}"
    value.backward()
    return _found(value, leaf, parameters)


def _found(value: torch.Tensor, leaf: torch.Tensor, parameters: list[tuple[torch.nn.Parameter, bool]]) -> dict[str, Any]:
    found = {"value": value.item(), "gradient": leaf.grad.flatten().tolist()}
    gradients = [one.grad.T if turned else one.grad for one, turned in parameters if one.grad is not None]
    return found | ({"parameters": [one.flatten().tolist() for one in gradients]} if gradients else {})


def _in_chunks(name: str) -> Any:
    """`collection_loss`, five queries at a time."""
    loss, leaf = _BY_NAME[name](_TREE).double(), _drawn().requires_grad_()
    parameters = _fill_proxies(loss)
    try:
        value = losses.collection_loss(loss, leaf, _LEVELS, chunk=5)
    except TypeError as error:
        return f"refused: {type(error).__name__}"
    value.backward()
    return value.item(), leaf.grad.abs().sum().item(), [one.grad.abs().sum().item() for one, _ in parameters]


def _from_scores(name: str, graded: bool) -> Any:
    """Lists of eight items, of which ties and padding are a part; grades in integers are levels, in floats gains."""
    scores = torch.from_numpy(np.round(uniform(4, 5, 8) * 8) / 8).requires_grad_()
    grades = torch.from_numpy(whole(5, 3, 5, 8))
    mask = torch.arange(8)[None, :] < torch.tensor([8, 8, 6, 5, 8])[:, None]
    try:
        value = _BY_NAME[name](_TREE[:, :2]).double().from_scores(scores, grades / 2.0 if graded else grades, mask)
    except (ValueError, TypeError) as error:
        return f"refused: {type(error).__name__}"
    value.backward()
    return _found(value, scores, [])


def _memory() -> Any:
    memory = losses.EmbeddingMemory(size=10, dim=DIM, levels=3)
    for seed in (1, 2):
        memory.add(_drawn(7, seed).float(), _LEVELS[:7], torch.arange(7) + 3 * seed)
    found = memory.contents()
    return {"embeddings": found.embeddings.tolist(), "labels": found.labels.tolist(), "ids": found.ids.tolist()}


CASES |= {f"losses/{name}/{kind}": partial(_loss, name, kind) for name in _BY_NAME for kind in _KINDS}
CASES |= {f"losses/{name}/in chunks": partial(_in_chunks, name) for name in _BY_NAME}
CASES |= {f"losses/{name}/from levels": partial(_from_scores, name, False) for name in _BY_NAME}
CASES |= {f"losses/{name}/from gains": partial(_from_scores, name, True) for name in _BY_NAME}
CASES["losses/EmbeddingMemory"] = _memory
CASES["losses/suggest_tau"] = lambda: losses.suggest_tau(torch.from_numpy(uniform(4, 5, 8)))
CASES["losses/scaled_step"] = lambda: dict(losses.scaled_step(0.5))


# Metrics

_AT_K = ("R", "TR", "recall-all", "P", "mAP", "AP-all", "MRR")
_FULL = ("AP", "mAP@R", "R-P", "MRR", "ASI")
_GRADED_AT_K = ("NDCG", "NDCG-linear", "H-P", "H-R")
_GRADED = ("H-AP", "wAP", "NDCG", "NDCG-linear", "ASI")


def _metrics(levels: tuple[str, ...], ks: tuple[int, ...] = (1, 3, 10)) -> list[str]:
    """Every metric, at every level and as both means over levels."""
    places = ["", *(f"/{level}" for level in (*levels, "overall", "mean-of-levels"))]
    flat = [*(f"{name}@{k}" for name in _AT_K for k in ks), *_FULL]
    graded = [*(f"{name}@{k}" for name in _GRADED_AT_K for k in ks), *_GRADED]
    return list(dict.fromkeys([*(name + place for place in places for name in flat), *graded]))


def _separated(queries: np.ndarray, gallery: np.ndarray) -> None:
    unit = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in (queries, gallery)]
    gaps = np.diff(np.sort(unit[0] @ unit[1].T, axis=1), axis=1)
    assert gaps.min() > GAP, "draw another seed: near ties are ranked by rounding errors"


_SPECIES = whole(11, 15, 60)
_KINGDOM = np.stack([_SPECIES, _SPECIES // 3, _SPECIES // 9], 1)
_NAMES = ("species", "genus", "family")


def _with_gaps() -> np.ndarray:
    labels = _KINGDOM.copy()
    labels[::7, 0] = labels[::14, 1] = labels[::28, 2] = -1
    return labels


def _label_sets() -> np.ndarray:
    second = np.where(np.arange(60) % 4 == 0, (_SPECIES + 5) % 15, -1)
    fine = np.stack([_SPECIES, second], 1)
    return np.stack([fine, np.where(fine < 0, -1, fine // 3)], 1)


def _evaluated(*arrays: Any, levels: tuple[str, ...] = _NAMES, per_query: bool = False, **options: Any) -> Any:
    arrays = tuple(array.astype(np.float32) if array.dtype == float else array for array in arrays)
    report = evaluation.evaluate(*arrays, metrics=_metrics(levels), levels=levels, per_query=per_query, **_QUIET, **options)
    return numbers(report)


def numbers(report: Any) -> dict[str, Any]:
    """What a report says in numbers; its sentences may be written anew."""
    found = {
        "values": dict(report),
        "queries": report.n_queries,
        "items": report.n_items,
        "levels": list(report.levels),
        "without_positives": dict(report.without_positives),
        **{key: report.settings[key] for key in ("ks", "decay", "weights") if key in report.settings},
    }
    if report.intervals is not None:
        found["intervals"] = {key: list(bounds) for key, bounds in report.intervals.items()}
    if report.per_query is not None:
        found["per_query"] = {key: report.per_query[key].tolist() for key in ("AP", "R@1", "NDCG") if key in report.per_query}
    return found


def _random(labels: np.ndarray, **options: Any) -> Any:
    embeddings = uniform(12, 60, 16)
    _separated(embeddings, embeddings)
    return _evaluated(embeddings, labels, **options)


def _distractors(**options: Any) -> Any:
    queries, gallery = uniform(13, 20, 16), uniform(14, 70, 16)
    gallery[:20] = queries
    labels = np.concatenate([_KINGDOM, np.full((10, 3), -1)])
    return _evaluated(queries, _KINGDOM[:20], gallery, labels, self_index=np.arange(20), **options)


def _ranked_lists() -> tuple[dict[str, dict[str, float]], dict[str, dict[str, int]]]:
    scores, grades = np.round(uniform(15, 6, 20) * 10) / 10, whole(16, 4, 6, 20) - 1
    run = {f"q{row}": {f"d{item}": float(scores[row, item]) for item in range(20)} for row in range(5)}
    return run, {f"q{row}": {f"d{item}": int(grades[row, item]) for item in range(0, 20, 1 + row % 2)} for row in range(6)}


_RUN_METRICS = [f"{name}@{k}" for name in (*_AT_K, "NDCG", "NDCG-linear") for k in (1, 3, 10)] + [
    *("AP", "mAP@R", "R-P", "MRR", "NDCG", "NDCG-linear")
]


def _landmarks() -> Any:
    ids = [f"i{item}" for item in range(30)]
    predictions = {f"q{row}": [ids[item] for item in np.argsort(uniform(17 + row, 30))[:12]] for row in range(4)}
    solution = {f"q{row}": [ids[item] for item in range(row, 30, 3 + row)] for row in range(4)}
    return [evaluation.landmark_map(predictions, solution, k)[f"mAP@{k}"] for k in (1, 5, 100)]


def _gap() -> Any:
    embeddings = signs(18, 60, 16).astype(np.float32)
    found = {
        metric: evaluation.decomposability_gap(embeddings, _KINGDOM, np.arange(60) % 6, metric, levels=_NAMES, **_QUIET).value
        for metric in ("AP", "H-AP", "R@1", "AP/genus")
    }
    bounds = evaluation.gap_bounds(embeddings, _SPECIES, np.arange(60) % 6, **_QUIET)
    return found | {name: float(np.nanmean(values)) for name, values in bounds.per_query.items()}


def _comparison() -> Any:
    """Means, difference, interval and p-values of two models on the same queries."""
    own, other = (
        evaluation.evaluate(
            np.where(uniform(seed, 60, 16) > 0.3, signs(61, 15, 16)[_SPECIES], signs(seed + 1, 60, 16)).astype(np.float32),
            _KINGDOM,
            levels=_NAMES,
            per_query=True,
            **_QUIET,
        )
        for seed in (62, 64)
    )
    rows = own.compare(other, ["AP", "R@1", "H-AP", "AP/genus"])
    parts = ("mine", "other", "difference", "low", "high", "p_value", "p_holm", "queries")
    return {row.metric: {part: getattr(row, part) for part in parts} for row in rows}


CASES |= {
    "metrics/ties": lambda: _evaluated(signs(10, 60, 16), _KINGDOM, per_query=True),
    "metrics/ties, gaps": lambda: _evaluated(signs(10, 60, 16), _with_gaps()),
    "metrics/ties, sets": lambda: _evaluated(signs(10, 60, 16), _label_sets(), levels=("tag", "group")),
    "metrics/random": lambda: _random(_KINGDOM),
    "metrics/random, gaps": lambda: _random(_with_gaps()),
    "metrics/random, sets": lambda: _random(_label_sets(), levels=("tag", "group")),
    "metrics/random, decay and weights": lambda: _random(_KINGDOM, decay=2.0, weights=[0.5, 0.3, 0.2]),
    "metrics/random, not normalized": lambda: _random(_KINGDOM, normalize=False),
    "metrics/random, intervals": lambda: _random(_KINGDOM, intervals=True),
    "metrics/ids": lambda: _evaluated(signs(10, 60, 16), _KINGDOM, ids=np.arange(60) // 2),
    "metrics/ignored": lambda: _evaluated(signs(10, 60, 16), _KINGDOM, ignored=[[(row + 1) % 60] for row in range(60)]),
    "metrics/small memory": lambda: _evaluated(signs(10, 60, 16), _KINGDOM, memory_budget=20_000),
    "metrics/distractors": _distractors,
    "metrics/run": lambda: numbers(evaluation.evaluate_run(*_ranked_lists(), _RUN_METRICS)),
    "metrics/run, skip": lambda: numbers(
        evaluation.evaluate_run(*_ranked_lists(), _RUN_METRICS, relevance_threshold=2, missing="skip", no_positives="skip")
    ),
    "metrics/landmarks": _landmarks,
    "metrics/gap": _gap,
    "metrics/comparison": _comparison,
}


# Reports of folders, files and protocols


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="suprank-golden-") as folder:
        yield Path(folder)


def _labels_file(path: Path, rows: slice, *, start: int = 0, separator: str = "") -> None:
    """Columns species, genus and family by name, and an id of its own for each row; a second species on every fourth."""
    lines = ["label_species,label_genus,label_family,id"]
    for number, (species, genus, family) in enumerate(_KINGDOM[rows].tolist(), start):
        second = f"{separator}s{species // 3 * 3}" if separator and number % 4 == 0 else ""
        lines.append(f"s{species}{second},g{genus},f{family},image {number}")
    path.write_text("\n".join(lines) + "\n")


def _part(folder: Path, name: str, rows: slice, seed: int, *, split: str | None = None, labeled: bool = True) -> None:
    """A part of a folder of `suprank embed`."""
    (folder / name).mkdir(parents=True)
    labels = _KINGDOM[rows].tolist()
    columns = {
        "path": [f"{name}{row}.png" for row in range(len(labels))],
        "split": [split or name] * len(labels),
        **{
            f"label_{level}": [f"{level} {row[place]}" if labeled else "" for row in labels]
            for place, level in enumerate(_NAMES)
        },
    }
    Manifest.from_columns(columns, root=".").save(folder / name / "items.parquet")
    np.save(folder / name / "embeddings.npy", signs(seed, len(labels), 16).astype(np.float32))


def _files(folder: Path, **options: Any) -> Any:
    np.save(folder / "x.npy", signs(20, 60, 16).astype(np.float32))
    _labels_file(folder / "x.csv", slice(60), separator="|" if "label_separator" in options else "")
    return suprank.evaluate(folder / "x.npy", folder / "x.csv", **options)


def _files_and_gallery(folder: Path, **options: Any) -> Any:
    queries, gallery = signs(21, 20, 16), signs(22, 60, 16)
    gallery[:10] = queries[:10]
    np.save(folder / "q.npy", queries.astype(np.float16))
    torch.save(torch.from_numpy(gallery), folder / "g.pt")
    _labels_file(folder / "q.csv", slice(20))
    _labels_file(folder / "g.csv", slice(60), start=options.pop("start", 0))
    return suprank.evaluate(folder / "q.npy", folder / "q.csv", folder / "g.pt", folder / "g.csv", id_column="id", **options)


def _parquet(folder: Path) -> Any:
    rows = pa.FixedSizeListArray.from_arrays(pa.array(signs(23, 60, 16).astype(np.float32).ravel()), 16)
    pyarrow.parquet.write_table(pa.table({"embedding": rows}), folder / "x.parquet")
    _labels_file(folder / "x.csv", slice(60))
    return suprank.evaluate(folder / "x.parquet", folder / "x.csv", levels=["genus", "family"])


def _folder(folder: Path, **options: Any) -> Any:
    _part(folder, "test", slice(60), 24)
    return suprank.evaluate(folder, **options)


def _folder_with_distractors(folder: Path) -> Any:
    _part(folder, "test", slice(40), 25)
    _part(folder, "gallery", slice(40, 60), 26, split="distractor", labeled=False)
    return suprank.evaluate(folder)


def _folder_of_two_parts(folder: Path, **options: Any) -> Any:
    _part(folder, "query", slice(20), 27)
    _part(folder, "gallery", slice(20, 60), 28)
    return suprank.evaluate(folder, **options)


def _qrels(folder: Path) -> Any:
    grades = whole(29, 3, 20, 60).tolist()
    judged = {
        f"image {row}": {f"image {item + 100}": grade for item, grade in enumerate(own)} for row, own in enumerate(grades)
    }
    (folder / "qrels.json").write_text(json.dumps(judged))
    return _files_and_gallery(folder, start=100, protocol="mieb", truth=folder / "qrels.json")


def _solution(folder: Path) -> Any:
    relevant = [
        f"image {row},{' '.join(f'image_{item}' for item in range(row, 60, 7))},{('Public', 'Private')[row % 2]}"
        for row in range(20)
    ]
    (folder / "solution.csv").write_text("\n".join(["id,images,Usage", *relevant]) + "\n")
    np.save(folder / "q.npy", signs(21, 20, 16).astype(np.float32))
    np.save(folder / "g.npy", signs(22, 60, 16).astype(np.float32))
    (folder / "q.csv").write_text("\n".join(["id,place", *(f"image {row},a" for row in range(20))]) + "\n")
    (folder / "g.csv").write_text("\n".join(["id,place", *(f"image_{row},a" for row in range(60))]) + "\n")
    places = (folder / "q.npy", folder / "q.csv", folder / "g.npy", folder / "g.csv")
    return suprank.evaluate(*places, id_column="id", protocol="gldv2", truth=f"{folder}/solution.csv:Private")


def _revisited(folder: Path) -> Any:
    lists = whole(30, 4, 6, 40)
    truth = [{name: np.flatnonzero(own == place) for place, name in enumerate(("easy", "hard", "junk"))} for own in lists]
    arrays = (signs(31, 6, 16).astype(np.float32), None, signs(32, 40, 16).astype(np.float32))
    return suprank.evaluate(*arrays, protocol="revisited", truth=truth)


def _files_with_head(folder: Path) -> Any:
    embeddings, head = uniform(35, 60, 16), Head(HeadConfig(in_features=16, out_features=8, normalization="l2"))
    with torch.no_grad():
        for number, parameter in enumerate(head.parameters()):
            parameter.copy_(torch.from_numpy(uniform(70 + number, *parameter.shape)))
    after = head.eval().double()(torch.from_numpy(embeddings)).detach().numpy()
    _separated(after, after)
    np.save(folder / "x.npy", embeddings.astype(np.float32))
    _labels_file(folder / "x.csv", slice(60))
    return suprank.evaluate(folder / "x.npy", folder / "x.csv", head=head.float())


def _report(write: Callable[[Path], Any]) -> Any:
    """The report as it is saved and loaded again."""
    with temporary_folder() as folder:
        (folder / "of").mkdir()
        report = write(folder / "of")
        report.save(folder / "report.json")
        return numbers(type(report).load(folder / "report.json"))


_REPORTS: dict[str, Callable[[Path], Any]] = {
    "files": _files,
    "files, two levels and metrics": partial(_files, levels=["species", "family"], metrics=["AP", "H-AP"], decay=3.0),
    "files, several labels": partial(_files, levels=["species"], label_separator="|"),
    "files, head": _files_with_head,
    "files, dml": partial(_files, protocol="dml"),
    "files, mieb": partial(_files, id_column="id", protocol="mieb"),
    "files, intervals": partial(_files, intervals=True, per_query=True),
    "files and gallery": _files_and_gallery,
    "files and gallery, mieb": _qrels,
    "files and gallery, gldv2": _solution,
    "parquet": _parquet,
    "folder": _folder,
    "folder, dml": partial(_folder, protocol="dml"),
    "folder, distractors": _folder_with_distractors,
    "folder, two parts": partial(_folder_of_two_parts, levels=["genus"], ks=[1, 5]),
    "arrays, revisited": _revisited,
}
CASES |= {f"reports/{name}": partial(_report, write) for name, write in _REPORTS.items()}


# Searches


def _search(queries: np.ndarray, gallery: np.ndarray | None = None, k: int = 20, **options: Any) -> Any:
    """The first 20 hits of three queries, and a digest of all."""
    found = evaluation.top_k(queries, gallery, k, **_QUIET, **options)
    hits = [[query, [[item, float(score)] for item, score in listed]] for query, listed in found]
    items = [[item for item, _ in listed] for _, listed in hits]
    return {"hits": [[query, listed[:20]] for query, listed in hits[:3]], "items": digest(items)}


def _random_search() -> Any:
    queries, gallery = uniform(41, 10, 16), uniform(42, 80, 16)
    _separated(queries, gallery)
    return _search(queries.astype(np.float32), gallery.astype(np.float32))


_Q, _G = signs(43, 10, 16).astype(np.float32), signs(44, 80, 16).astype(np.float32)
_IDS = [f"image {row}" for row in range(80)]
CASES |= {
    "searches/random": _random_search,
    "searches/ties": lambda: _search(_Q, _G),
    "searches/among themselves": lambda: _search(_G),
    "searches/half precision": lambda: _search(_Q.astype(np.float16), _G.astype(np.float16)),
    "searches/not normalized": lambda: _search(_Q * whole(45, 4, 10, 1), _G * (1 + whole(46, 4, 80, 1)), normalize=False),
    "searches/names": lambda: _search(_G[:10], _G, ids=_IDS[:10], gallery_ids=_IDS),
    "searches/self index": lambda: _search(_G[:10], _G, self_index=np.arange(10)),
    "searches/ignored": lambda: _search(_Q, _G, ignored=[[row, row + 1] for row in range(10)]),
    "searches/beyond the gallery": lambda: _search(_Q, _G[:12], k=30),
    "searches/small memory": lambda: _search(_G, memory_budget=20_000),
}


# Imported manifests

_CARS = ("Acura Integra Type R 2001", "BMW M3 Coupe 2012", "smart fortwo Convertible 2012")


def _table(root: Path) -> Path:
    rows = ["a.png,Train,Wren ,bird,7", "b.png,train,1.0,bird,8", "c.png,test,Élan,deer,7"]
    return miniatures.text(root / "manifest.csv", ["path,split,label_kind,label_group,id", *rows])


def _tree_of_folders(root: Path) -> None:
    for path in ("birds/wren/a.png", "birds/owl/b.JPG", "deer/elk/c.png", "deer/elk/.x.png"):
        miniatures.text(root / "train" / path, [])
    miniatures.text(root / "test/deer/roe/d.webp", [])


def _inat(root: Path) -> None:
    miniatures.inat_names(miniatures.inat(root))


def _hgldv2(root: Path) -> None:
    miniatures_landmarks.gldv2(root)
    miniatures_landmarks.categories(root)
    miniatures_landmarks.hierarchical(root)


def _manifest(manifest: Any) -> dict[str, Any]:
    rows = manifest.table.to_pylist()
    return {"levels": list(manifest.levels), "splits": dict(manifest.splits), "first": rows[:2], "rows": digest(rows)}


def _imported(importer: Any, write: Callable[[Path], Any], **options: Any) -> Any:
    """All manifests of a miniature, read again from the file that the import writes."""
    with temporary_folder() as folder:
        (folder / "of").mkdir()
        write(folder / "of")
        found = importer.read(folder / "of", **options)
        for suffix, manifest in found.items():
            manifest.save(folder / f"m{suffix}.parquet")
        return {suffix or "main": _manifest(Manifest.read(folder / f"m{suffix}.parquet")) for suffix in found}


_IMPORTS: dict[str, tuple[Any, Callable[[Path], Any]]] = {
    **{name: (BENCHMARKS[name], getattr(miniatures, name)) for name in ("sop", "cub", "inshop")},
    "cars": (BENCHMARKS["cars"], lambda root: miniatures.cars(root, _CARS, (1, 2, 3, 2, 1))),
    "inat-base": (BENCHMARKS["inat-base"], miniatures.inat),
    "inat-full": (BENCHMARKS["inat-full"], _inat),
    "dyml-vehicle": (BENCHMARKS["dyml-vehicle"], miniatures.dyml),
    "dyml-product": (BENCHMARKS["dyml-product"], miniatures.dyml_product),
    "gldv2": (BENCHMARKS["gldv2"], miniatures_landmarks.gldv2),
    "hgldv2": (BENCHMARKS["hgldv2"], _hgldv2),
    "roxford5k": (BENCHMARKS["roxford5k"], lambda root: miniatures_landmarks.revisited(root, "roxford5k")),
    "sfm120k": (BENCHMARKS["sfm120k"], miniatures_landmarks.sfm),
    "csv": (CSV, _table),
    "folder": (FOLDER, _tree_of_folders),
}
CASES |= {f"manifests/{name}": partial(_imported, *what) for name, what in _IMPORTS.items()}


# Real labels and drawings


@cache
def _pack(name: str) -> Any:
    return CSV.read(SHARED / f"{name}.zip")[""]


def _real_manifest(name: str) -> Any:
    """Counts and a digest: rows of the data stay out of the repository."""
    found = _manifest(_pack(name))
    del found["first"]
    return found | {"classes": {level: len(names) for level, names in _pack(name).names.items()}}


def _real_labels(name: str, every: int) -> Any:
    """Metrics of some test images, with vectors of signs that each class has a part in."""
    some = _pack(name).split("test")
    some = some.take(range(0, len(some), every))
    fine = some.labels[:, 0]
    own, noise = signs(51, int(fine.max()) + 1, 64)[fine], signs(52, len(some), 64)
    embeddings = np.where(uniform(53, len(some), 64) > 0.2, own, noise).astype(np.float32)
    return numbers(evaluation.evaluate(embeddings, some.labels, levels=some.levels, **_QUIET))


def _real_drawings(every: int) -> Any:
    """Omniglot by its pixels, 0 or 1: products of whole numbers."""
    with zipfile.ZipFile(SHARED / "omniglot35.zip") as archive:
        rows = csv.DictReader(io.StringIO(archive.read("manifest.csv").decode()))
        some = [row for row in rows if row["split"] == "test"][::every]
        pixels = np.stack([np.asarray(Image.open(io.BytesIO(archive.read(row["path"]))).convert("L")) for row in some])
    levels = ("character", "alphabet")
    labels = np.stack([np.unique([row[f"label_{level}"] for row in some], return_inverse=True)[1] for level in levels], 1)
    embeddings = (pixels > 127).reshape(len(some), -1).astype(np.float32)
    return numbers(evaluation.evaluate(embeddings, labels, levels=levels, normalize=False, **_QUIET))


def _real_landmarks() -> Any:
    header, *rows = (SHARED / "hgldv2_index_labels.csv").read_text(encoding="utf-8").splitlines()[:3000]
    with temporary_folder() as folder:
        rows = [f"{number}.jpg,gallery,{row}" for number, row in enumerate(rows)]
        (folder / "manifest.csv").write_text("\n".join([f"path,split,{header}", *rows]), encoding="utf-8")
        found = _manifest(CSV.read(folder, levels=["hierarchical_label", "natural_or_human_made"])[""])
    del found["first"]
    return found


SHARED_CASES = {
    **{f"shared/{name}": partial(_real_manifest, name) for name in ("cub200_s128", "omniglot35", "emoji64")},
    "shared/cub200_s128/metrics": partial(_real_labels, "cub200_s128", 6),
    "shared/emoji64/metrics": partial(_real_labels, "emoji64", 5),
    "shared/omniglot35/metrics": partial(_real_drawings, 12),
    "shared/hgldv2": _real_landmarks,
}
