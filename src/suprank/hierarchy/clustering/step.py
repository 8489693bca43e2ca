"""The step `cluster`: cluster the embedded labels, with statistics and suggested names, and write all in one transaction."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from suprank.hierarchy.clustering import summary
from suprank.hierarchy.clustering.algorithms import (
    BATCH,
    MAX_ITERATIONS,
    N_INIT,
    cluster_centers,
    cosines_and_margins,
    distinct_rows,
    in_batches,
    kmeans_runs,
    ward,
)
from suprank.hierarchy.embedding import FOLDER, active_labels, labels_digest, read_vectors
from suprank.hierarchy.project import canonical_json, digest_rows, record_step, utc_now

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.hierarchy.embedding import ActiveLabel
    from suprank.hierarchy.encoders import Progress
    from suprank.hierarchy.project import Project

LABELS_PER_CLUSTER = 30
"""Average size of a cluster if k is not given; short lists get smaller clusters, or they would have a handful of them."""

NO_SIGNAL = "no text signal"


@dataclass(frozen=True)
class ClusterResult:
    """A clustering. `fresh` is false if it existed already, with the same settings for the same labels and vectors."""

    id: int
    settings: dict[str, Any]
    statistics: dict[str, Any]
    fresh: bool


@dataclass(frozen=True)
class ClusterAssignment:
    """The cluster 0, 1, ... of each label, in order of decreasing weight, with statistics of labels and clusters.

    Labels whose vector is zero are in a last cluster of their own, without statistics.
    """

    clusters: NDArray[np.int64]
    cosines: NDArray[np.float32]
    margins: NDArray[np.float32]
    names: list[list[str]]
    tightness: list[float | None]
    stability: list[float | None]
    statistics: dict[str, Any]


def cluster_labels(
    project: Project,
    *,
    k: int | None = None,
    method: Literal["kmeans", "ward"] = "kmeans",
    seed: int | None = None,
    seeds: int | None = None,
    weighted: bool = False,
    auto_k: bool = False,
    progress: Progress = lambda done, total: None,
) -> ClusterResult:
    """Cluster the labels by the last embedding; defaults come from the project's recipe.

    The run is reproducible: seed, settings and library versions are saved, and the same ones give the same clusters, whatever
    the order of the labels. `seeds` further runs, with the seeds that follow, measure how much another seed would change.
    Labels whose vector is zero go into a last cluster of their own, in addition to the k. Clusters are numbered from 1, in
    order of decreasing weight. `auto_k` lowers a k that exceeds the number of distinct vectors, which is an error otherwise.
    """
    recipe = project.recipe.cluster
    with project.snapshot() as db:
        labels = active_labels(db)
        embedding = _last_embedding(project, db, labels)
    _, vectors = read_vectors(project.folder / FOLDER / embedding["file"])
    distinct = len(distinct_rows(vectors[vectors.any(axis=1)])[0])
    wanted = recipe.k if k is None else k
    settings: dict[str, Any] = {"method": method, "k": _resolve_k(wanted, len(labels), distinct, auto_k), "weighted": weighted}
    settings["versions"] = {name: version(name) for name in ("numpy", "scikit-learn", "scipy")}
    if method == "kmeans":
        settings |= {"seed": recipe.seed if seed is None else seed, "seeds": recipe.seeds if seeds is None else seeds}
        batches = in_batches(distinct, settings["k"])
        settings |= {"n_init": N_INIT, **({"batch": BATCH} if batches else {"rounds": MAX_ITERATIONS})}
    elif weighted or seed is not None or seeds is not None:
        raise ValueError("Ward's method has no weights and no seeds; leave out weighted, seed and seeds, or use k-means.")
    content = _content_digest(labels)
    inputs = embedding["fingerprint"]
    if (last := _last_result(project, settings, inputs, content)) is not None:
        return last
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # the last digits of a sum depend on how many threads share it
        assignment = cluster_vectors(labels, vectors, settings, progress)
    with project.transaction() as db:
        if _content_digest(active_labels(db)) != content:
            raise ValueError("the labels were changed while they were clustered; nothing was saved. Run `cluster` again.")
        if (last := _last_result(project, settings, inputs, content)) is not None:
            return last  # another process was quicker
        number = _write(db, labels, assignment, embedding["id"], settings, content)
        rows = [(label.key, int(cluster)) for label, cluster in zip(labels, assignment.clusters, strict=True)]
        digest = digest_rows([settings, inputs, rows])
        result = {"clustering": number, **assignment.statistics}
        record_step(db, "cluster", settings, inputs=inputs, result=result, digest=digest)
    return ClusterResult(number, settings, assignment.statistics, fresh=True)


def _content_digest(labels: Sequence[ActiveLabel]) -> str:
    return digest_rows((label.key, label.text, label.weight) for label in labels)


def _last_embedding(project: Project, db: sqlite3.Connection, labels: list[ActiveLabel]) -> sqlite3.Row:
    """The last embedding. It is an error if it is not of these labels."""
    last = "SELECT json_extract(result_json, '$.digest') FROM step WHERE name = 'embed' ORDER BY id DESC LIMIT 1"
    row: sqlite3.Row | None = db.execute(f"SELECT * FROM embedding WHERE fingerprint = ({last})").fetchone()
    run = f"encode them first, as `suprank hierarchy cluster {project.folder}` does."
    if row is None:
        raise ValueError(f"{project.folder} has no embedding to cluster; {run}")
    if labels_digest(labels) != row["labels"]:
        embedded = set(read_vectors(project.folder / FOLDER / row["file"])[0])
        new = [label.text for label in labels if label.key not in embedded]
        gone = len(embedded) - (len(labels) - len(new))
        examples = f" ({', '.join(map(repr, new[:5]))}{', ...' if len(new) > 5 else ''})" if new else ""
        change = f"{len(new):,} are new{examples}, {gone:,} are gone" if new or gone else "some are spelled differently"
        raise ValueError(f"the labels are not those that were embedded: {change}; {run}")
    return row


def _resolve_k(wanted: int | None, labels: int, distinct: int, auto: bool) -> int:
    """The number of clusters for the labels that have a signal."""
    if wanted is None:
        return min(max(math.ceil(labels / LABELS_PER_CLUSTER), math.isqrt(labels)), distinct)
    if wanted > distinct and not auto:
        numbers = f"there are {labels:,} labels with {distinct:,} different vectors"
        raise ValueError(f"k={wanted} is too many: {numbers}; give a smaller k, or let auto_k lower it.")
    return min(wanted, distinct)


def _last_result(project: Project, settings: dict[str, Any], inputs: str, content: str) -> ClusterResult | None:
    """The result of the last run, if this run would give the same."""
    step = project.steps().get("cluster")
    if step is None or (step.settings, step.inputs) != (settings, inputs):
        return None
    with project.snapshot() as db:
        row = db.execute("SELECT * FROM clustering WHERE id = ?", (step.result["clustering"],)).fetchone()
    if row["labels"] != content:
        return None
    return ClusterResult(row["id"], settings, json.loads(row["figures_json"]), fresh=False)


def _write(
    db: sqlite3.Connection,
    labels: list[ActiveLabel],
    assignment: ClusterAssignment,
    embedding: int,
    settings: dict[str, Any],
    content: str,
) -> int:
    row = (embedding, canonical_json(settings), content, canonical_json(assignment.statistics), utc_now())
    cursor = db.execute(
        "INSERT INTO clustering (embedding, settings_json, labels, figures_json, made) VALUES (?, ?, ?, ?, ?)", row
    )
    clustering = int(cursor.lastrowid or 0)
    clusters = zip(assignment.names, assignment.tightness, assignment.stability, strict=True)
    db.executemany(
        "INSERT INTO cluster VALUES (?, ?, ?, ?, ?)",
        (
            (clustering, number, canonical_json(names), tightness, stability)
            for number, (names, tightness, stability) in enumerate(clusters, start=1)
        ),
    )
    columns = ((assignment.clusters + 1).tolist(), assignment.cosines.tolist(), assignment.margins.tolist())
    db.executemany(
        "INSERT INTO cluster_member VALUES (?, ?, ?, ?, ?)",
        ((clustering, label.id, *values) for label, *values in zip(labels, *columns, strict=True)),
    )
    return clustering


def cluster_vectors(
    labels: Sequence[ActiveLabel], vectors: NDArray[np.float32], settings: dict[str, Any], progress: Progress
) -> ClusterAssignment:
    """Cluster labels by their vectors, of length 1 or zero, with the settings of the step."""
    known = vectors.any(axis=1)
    mass = np.array([label.weight for label in labels], np.int64)
    clusters = np.full(len(labels), 0, np.int64)
    cosines, margins = np.zeros(len(labels), np.float32), np.zeros(len(labels), np.float32)
    stability: NDArray[np.float64] | None = None
    statistics: dict[str, Any] = {"labels": len(labels), "without_signal": int((~known).sum())}
    if known.any():
        rows, weights = vectors[known], np.maximum(mass[known], 1) if settings["weighted"] else None
        first, *others = _run_seeds(rows, weights, settings, progress)
        clusters[known] = first = _number_by_weight(first, mass[known])
        cosines[known], margins[known] = cosines_and_margins(rows, first, cluster_centers(rows, first, weights))
        stability = summary.stability(first, others)
        sample = min(len(rows), summary.SILHOUETTE_SAMPLE)
        statistics |= {"silhouette": summary.silhouette(rows, first), "silhouette_of": sample}
        statistics |= {"sizes": summary.size_statistics(first), "tightness": float(cosines[known].mean(dtype=np.float64))}
        statistics["agreement"] = summary.seed_agreement(first, others)
    count = int(clusters[known].max()) + 1 if known.any() else 0
    statistics["clusters"] = count
    clusters[~known] = count
    members = _members(clusters)
    texts = [label.text for label in labels]
    word_counts = summary.WordCounts.from_texts(texts, len(members))
    names = [
        summary.suggested_names([texts[row] for row in rows], word_counts, vectors[rows], mass[rows])
        for rows in members[:count]
    ]
    tightness: list[float | None] = [float(cosines[rows].mean(dtype=np.float64)) for rows in members[:count]]
    stabilities: list[float | None] = [None] * count if stability is None else stability.tolist()
    blank = len(members) - count
    return ClusterAssignment(
        clusters,
        cosines,
        margins,
        names + [[NO_SIGNAL]] * blank,
        tightness + [None] * blank,
        stabilities + [None] * blank,
        statistics,
    )


def _run_seeds(
    rows: NDArray[np.float32], weights: NDArray[Any] | None, settings: dict[str, Any], progress: Progress
) -> list[NDArray[np.int64]]:
    """The clusters of the run itself, then those of the runs with other seeds."""
    if settings["method"] == "ward":
        return [ward(rows, settings["k"])]
    seeds = [settings["seed"] + number for number in range(settings["seeds"] + 1)]
    return kmeans_runs(rows, settings["k"], seeds, weights, progress)


def _number_by_weight(clusters: NDArray[np.int64], mass: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number clusters by decreasing weight; ties by the number of labels, then by the first label."""
    _, first, sizes = np.unique(clusters, return_index=True, return_counts=True)
    number = np.empty(len(sizes), np.int64)
    number[np.lexsort((first, -sizes, -np.bincount(clusters, weights=mass)))] = np.arange(len(sizes))
    return number[clusters]


def _members(clusters: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The rows of each cluster."""
    order = np.argsort(clusters, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(clusters[order])) + 1)
