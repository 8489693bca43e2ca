"""What vectors of labels tell about groups: which are near each other, and how one would be split."""

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

    from suprank.hierarchy.embedding import Embedded
    from suprank.hierarchy.project import Project
    from suprank.hierarchy.review.branch import Branch


@dataclass(frozen=True)
class Halves:
    """A suggested split: the labels that would leave, and names for them."""

    leaving: tuple[int, ...]
    names: tuple[str, ...]


class Vectors:
    """The vectors of a project, read when they are first needed, and centers of a branch's groups, kept until it changes."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._lock = threading.Lock()
        self._read: dict[int | None, Embedded] = {}
        self._centers: dict[int, tuple[int, NDArray[np.int64], NDArray[np.float32]]] = {}

    def prepare(self, branches: Iterable[Branch]) -> None:
        """Read and import now what the first page of a group, and the first suggested split, would wait a second for."""
        for branch in branches:
            with suppress(OSError, ValueError):
                self._centers_of(branch)
        for name in ("scipy.cluster.hierarchy", "sklearn.cluster"):
            import_module(name)

    def of(self, branch: Branch) -> Embedded:
        """The vectors that the branch's clusters were made of; an OSError or ValueError says why there are none."""
        from suprank.hierarchy.embedding import read_embedding

        with self._lock:
            if branch.clustering not in self._read:
                self._read[branch.clustering] = read_embedding(self._project, branch.clustering)
            return self._read[branch.clustering]

    def nearest(self, branch: Branch, group: int, most: int = 5) -> list[tuple[int, float]]:
        """The groups nearest to a group by the cosine of their mean vectors, with the cosine; none without vectors."""
        try:
            ids, centers = self._centers_of(branch)
        except (OSError, ValueError):
            return []
        at = np.flatnonzero(ids == group)
        if not len(at) or not centers[at[0]].any():
            return []
        cosines = centers @ centers[at[0]]
        order = np.argsort(-cosines, kind="stable")
        return [(int(ids[one]), float(cosines[one])) for one in order if one != at[0] and centers[one].any()][:most]

    def halves(self, branch: Branch, labels: Sequence[int]) -> Halves:
        """How these labels fall apart, the smaller half to leave. A ValueError says why they do not."""
        from suprank.hierarchy.clustering import WordCounts, suggested_names, suggested_split

        if len(labels) < 2:
            raise ValueError("a group of one label cannot be split.")
        vectors = self.of(branch).rows(labels)
        parts = suggested_split(vectors)
        leaving = parts == 1
        if not leaving.any():
            raise ValueError("the vectors of these labels are all the same.")
        with self._project.reading() as db:
            known = {row[0]: (row[1], row[2]) for row in db.execute("SELECT id, text, weight FROM label")}
            groups = db.execute('SELECT count(*) FROM "group" WHERE branch = ? AND level = 1', (branch.id,)).fetchone()[0]
        chosen = [label for label, goes in zip(labels, leaving.tolist(), strict=True) if goes]
        counts = WordCounts.of([text for text, _ in known.values()], groups)
        weights = [known[label][1] for label in chosen]
        names = suggested_names([known[label][0] for label in chosen], counts, vectors[leaving], weights)
        return Halves(tuple(chosen), tuple(names))

    def _centers_of(self, branch: Branch) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        from suprank.hierarchy.clustering.centers import centers_of

        embedded = self.of(branch)
        with self._project.reading() as db:
            newest = db.execute("SELECT max(seq) FROM event WHERE branch = ?", (branch.id,)).fetchone()[0]
            kept = self._centers.get(branch.id)
            if kept is not None and kept[0] == newest:
                return kept[1], kept[2]
            rows = db.execute(
                'SELECT label, "group" FROM member WHERE branch = ? AND "group" IS NOT NULL', (branch.id,)
            ).fetchall()
        if not rows:
            raise ValueError("no group holds a label.")
        labels, groups = np.array([tuple(row) for row in rows], np.int64).T
        ids, places = np.unique(groups, return_inverse=True)
        found = centers_of(embedded.rows(labels), places.astype(np.int64))
        self._centers[branch.id] = (newest, ids, found)
        return ids, found
