"""The step `cluster`: the embedded labels into clusters, with figures and names, written in one transaction at the end."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from suprank.hierarchy.clustering.kmeans import MOST_ROUNDS, N_INIT, distinct_rows
from suprank.hierarchy.clustering.run import Clusters, clusters_of
from suprank.hierarchy.embedding import FOLDER, active_labels, labels_digest, read_file
from suprank.hierarchy.project import as_json, digest_of, now, record_step

if TYPE_CHECKING:
    import sqlite3

    from suprank.hierarchy.embedding import Label
    from suprank.hierarchy.encoders import Progress
    from suprank.hierarchy.project import Project

AT_A_GLANCE = 30
"""Labels a cluster, on average, where k is not given; fewer of a short list, which would else have a handful of clusters."""


@dataclass(frozen=True)
class ClusterOutcome:
    """A clustering that was made (`fresh`), or that was there with the same settings, of the same labels and vectors."""

    id: int
    settings: dict[str, Any]
    figures: dict[str, Any]
    fresh: bool


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
) -> ClusterOutcome:
    """Cluster the labels by the vectors that were embedded last; what is not given is as in the project's recipe.

    The run is pinned: seed, settings and versions of the libraries are kept, and the same ones give the same clusters, whatever
    the order of the labels. `seeds` further runs, with the seeds that follow, tell how much of it another seed would change.
    Labels whose vector is zero go into a last cluster of their own, beside the k. Numbers begin with 1, by falling weight.
    `auto_k` lowers a k that is more than there are different vectors, which is an error otherwise.
    """
    recipe = project.recipe.cluster
    with project.reading() as db:
        labels = active_labels(db)
        embedding = _embedding(project, db, labels)
    _, vectors = read_file(project.folder / FOLDER / embedding["file"])
    known = vectors.any(axis=1)
    many = len(distinct_rows(vectors[known])[0])
    asked = recipe.k if k is None else k
    settings: dict[str, Any] = {"method": method, "k": _k(asked, len(labels), many, auto_k), "weighted": weighted}
    settings["versions"] = {name: version(name) for name in ("numpy", "scikit-learn", "scipy")}
    if method == "kmeans":
        of_run = {"seed": recipe.seed if seed is None else seed, "seeds": recipe.seeds if seeds is None else seeds}
        settings |= {**of_run, "n_init": N_INIT, "rounds": MOST_ROUNDS}
    elif weighted or seed is not None or seeds is not None:
        raise ValueError("Ward's tree takes no weights and no seeds; leave --weighted, --seed and --seeds out, or use k-means.")
    read = digest_of((label.key, label.text, label.weight) for label in labels)
    inputs = embedding["fingerprint"]
    if (last := _last(project, settings, inputs, read)) is not None:
        return last
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # the last digits of a sum depend on how many threads share it
        found = clusters_of(labels, vectors, settings, progress)
    with project.writing() as db:
        if digest_of((one.key, one.text, one.weight) for one in active_labels(db)) != read:
            raise ValueError(
                "the labels were changed while they were clustered; nothing was saved. Run `embed` and `cluster` again."
            )
        if (last := _last(project, settings, inputs, read)) is not None:
            return last  # another process was quicker
        number = _write(db, labels, found, embedding["id"], settings, read)
        rows = [(label.key, int(cluster)) for label, cluster in zip(labels, found.clusters, strict=True)]
        digest = digest_of([settings, inputs, rows])
        record_step(db, "cluster", settings, inputs=inputs, result={"clustering": number, **found.figures}, digest=digest)
    return ClusterOutcome(number, settings, found.figures, fresh=True)


def _embedding(project: Project, db: sqlite3.Connection, labels: list[Label]) -> sqlite3.Row:
    """The embedding that was made last, if it is of these labels."""
    of_last = "SELECT json_extract(result_json, '$.digest') FROM step WHERE name = 'embed' ORDER BY id DESC LIMIT 1"
    row: sqlite3.Row | None = db.execute(f"SELECT * FROM embedding WHERE fingerprint = ({of_last})").fetchone()
    run = f"run `suprank hierarchy embed {project.folder}` first."
    if row is None:
        raise ValueError(f"{project.folder} has no embedding to cluster; {run}")
    if labels_digest(labels) != row["labels"]:
        before = set(read_file(project.folder / FOLDER / row["file"])[0])
        new = [label.text for label in labels if label.key not in before]
        gone = len(before) - (len(labels) - len(new))
        shown = f" ({', '.join(map(repr, new[:5]))}{', ...' if len(new) > 5 else ''})" if new else ""
        said = f"{len(new):,} are new{shown}, {gone:,} are gone" if new or gone else "some are spelt otherwise"
        raise ValueError(f"the labels are not those that were embedded: {said}; {run}")
    return row


def _k(asked: int | None, labels: int, different: int, auto: bool) -> int:
    """How many clusters to make of the labels that have a signal."""
    if asked is None:
        return min(max(math.ceil(labels / AT_A_GLANCE), math.isqrt(labels)), different)
    if asked > different and not auto:
        what = f"there are {labels:,} labels with {different:,} different vectors"
        raise ValueError(f"k={asked} is too many: {what}; give a smaller k, or --auto-k to have it lowered.")
    return min(asked, different)


def _last(project: Project, settings: dict[str, Any], inputs: str, read: str) -> ClusterOutcome | None:
    """What the last run gave, if this one would give the same."""
    step = project.steps().get("cluster")
    if step is None or (step.settings, step.inputs) != (settings, inputs):
        return None
    with project.reading() as db:
        row = db.execute("SELECT * FROM clustering WHERE id = ?", (step.result["clustering"],)).fetchone()
    if row["labels"] != read:
        return None
    return ClusterOutcome(row["id"], settings, json.loads(row["figures_json"]), fresh=False)


def _write(
    db: sqlite3.Connection, labels: list[Label], found: Clusters, embedding: int, settings: dict[str, Any], read: str
) -> int:
    row = (embedding, as_json(settings), read, as_json(found.figures), now())
    made = db.execute(
        "INSERT INTO clustering (embedding, settings_json, labels, figures_json, made) VALUES (?, ?, ?, ?, ?)", row
    )
    number = int(made.lastrowid or 0)
    each = zip(found.names, found.tightness, found.stability, strict=True)
    db.executemany(
        "INSERT INTO cluster VALUES (?, ?, ?, ?, ?)",
        ((number, at, as_json(names), tight, stable) for at, (names, tight, stable) in enumerate(each, start=1)),
    )
    rows = zip(labels, (found.clusters + 1).tolist(), found.near.tolist(), found.margin.tolist(), strict=True)
    db.executemany(
        "INSERT INTO cluster_member VALUES (?, ?, ?, ?, ?)",
        ((number, label.id, cluster, near, margin) for label, cluster, near, margin in rows),
    )
    return number
