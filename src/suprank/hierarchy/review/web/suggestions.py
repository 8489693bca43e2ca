"""Suggestions from the vectors of labels: which groups are near each other, and how to split one."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from suprank.hierarchy.embedding import LabelEmbeddings
    from suprank.hierarchy.project import Project
    from suprank.hierarchy.review.branch import Branch


@dataclass(frozen=True)
class SplitSuggestion:
    """The labels to split off a group, and names for the new group."""

    labels: tuple[int, ...]
    names: tuple[str, ...]


class Suggestions:
    """Reads the vectors of a project when they are first needed, and caches the centers of groups until a branch changes."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._lock = threading.Lock()
        self._embeddings: dict[int | None, LabelEmbeddings] = {}
        self._centers: dict[int, tuple[int, NDArray[np.int64], NDArray[np.float32]]] = {}

    def preload(self, branches: Iterable[Branch]) -> None:
        """Read and import in advance what would delay the first page of a group and the first suggested split by a second."""
        for branch in branches:
            with suppress(OSError, ValueError):
                self._group_centers(branch)
        for name in ("scipy.cluster.hierarchy", "sklearn.cluster"):
            import_module(name)

    def nearest_groups(self, branch: Branch, group: int, limit: int = 5) -> list[tuple[int, float]]:
        """The groups with the nearest mean vectors, each with its cosine; none without vectors."""
        try:
            ids, centers = self._group_centers(branch)
        except (OSError, ValueError):
            return []
        at = np.flatnonzero(ids == group)
        if not len(at) or not centers[at[0]].any():
            return []
        cosines = centers @ centers[at[0]]
        order = np.argsort(-cosines, kind="stable")
        return [(int(ids[one]), float(cosines[one])) for one in order if one != at[0] and centers[one].any()][:limit]

    def split(self, branch: Branch, labels: Sequence[int]) -> SplitSuggestion:
        """Split labels in two, and suggest the smaller part as a new group. A ValueError says why they cannot be split."""
        from suprank.hierarchy.clustering import WordCounts, suggested_names, suggested_split

        if len(labels) < 2:
            raise ValueError("a group with one label cannot be split.")
        vectors = self._embedding(branch).rows(labels)
        parts = suggested_split(vectors)
        smaller = parts == 1
        if not smaller.any():
            raise ValueError("the vectors of these labels are all the same.")
        with self._project.snapshot() as db:
            known = {row[0]: (row[1], row[2]) for row in db.execute("SELECT id, text, weight FROM label")}
            groups = db.execute('SELECT count(*) FROM "group" WHERE branch = ? AND level = 1', (branch.id,)).fetchone()[0]
        chosen = [label for label, is_chosen in zip(labels, smaller.tolist(), strict=True) if is_chosen]
        counts = WordCounts.from_texts([text for text, _ in known.values()], groups)
        weights = [known[label][1] for label in chosen]
        names = suggested_names([known[label][0] for label in chosen], counts, vectors[smaller], weights)
        return SplitSuggestion(tuple(chosen), tuple(names))

    def _embedding(self, branch: Branch) -> LabelEmbeddings:
        """The vectors that the branch's clusters were computed from; an OSError or ValueError says why there are none."""
        from suprank.hierarchy.embedding import read_embedding

        with self._lock:
            if branch.clustering not in self._embeddings:
                self._embeddings[branch.clustering] = read_embedding(self._project, branch.clustering)
            return self._embeddings[branch.clustering]

    def _group_centers(self, branch: Branch) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        from suprank.hierarchy.clustering import cluster_centers

        embedding = self._embedding(branch)
        with self._project.snapshot() as db:
            newest = db.execute("SELECT max(seq) FROM event WHERE branch = ?", (branch.id,)).fetchone()[0]
            cached = self._centers.get(branch.id)
            if cached is not None and cached[0] == newest:
                return cached[1], cached[2]
            rows = db.execute(
                'SELECT label, "group" FROM member WHERE branch = ? AND "group" IS NOT NULL', (branch.id,)
            ).fetchall()
        if not rows:
            raise ValueError("no group has a label.")
        labels, groups = np.array([tuple(row) for row in rows], np.int64).T
        ids, places = np.unique(groups, return_inverse=True)
        centers = cluster_centers(embedding.rows(labels), places.astype(np.int64))
        self._centers[branch.id] = (newest, ids, centers)
        return ids, centers
