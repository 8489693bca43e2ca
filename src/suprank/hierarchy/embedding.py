"""The step `embed`: encode the active labels, write the vectors to a file that never changes, and read it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.files.atomic import atomic_writer
from suprank.files.binary import read_npz
from suprank.hierarchy.encoders import build_encoder, encoder_input, resolve_prompt, unit_rows
from suprank.hierarchy.errors import MalformedError
from suprank.hierarchy.precomputed import PrecomputedVectors
from suprank.hierarchy.project import canonical_json, digest_rows, record_step
from suprank.hierarchy.text import pluralize

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from suprank.hierarchy.encoders import Progress
    from suprank.hierarchy.project import Project

FOLDER = "embeddings"


@dataclass(frozen=True)
class ActiveLabel:
    """A label that cleaning has not removed."""

    id: int
    key: str
    text: str
    description: str
    weight: int


@dataclass(frozen=True)
class EmbedResult:
    """The vectors of a run. `fresh` is false if they existed already, for the same labels by the same encoder."""

    fingerprint: str
    file: Path
    labels: int
    dim: int
    without_signal: int
    """Labels whose vector is all zeros, because the encoder knows nothing of their texts."""

    encoder: dict[str, Any]
    fresh: bool


@dataclass(frozen=True)
class LabelEmbeddings:
    """Vectors of labels, of length 1 or all zeros. `labels` are ids in ascending order."""

    labels: NDArray[np.int64]
    vectors: NDArray[np.float32]

    def rows(self, ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of these labels, in the order given; zeros for unknown labels."""
        wanted = np.asarray(ids, np.int64)
        vectors = np.zeros((len(wanted), self.vectors.shape[1]), np.float32)
        if len(self.labels):
            rows = np.minimum(np.searchsorted(self.labels, wanted), len(self.labels) - 1)
            known = self.labels[rows] == wanted
            vectors[known] = self.vectors[rows[known]]
        return vectors


def embed_labels(
    project: Project,
    encoder: str | None = None,
    *,
    prompt: str | None = None,
    with_description: bool = False,
    batch_size: int = 256,
    device: str | None = None,
    progress: Progress = lambda done, total: None,
) -> EmbedResult:
    """Encode the active labels of a project, by default as it was done the last time, or else by the recipe.

    If the same encoder has encoded the same labels before, nothing is encoded. The file is written before the row that names
    it, so a crash can leave a file without a row, which the next run overwrites.
    """
    recipe = project.recipe.embed
    last = project.steps().get("embed")
    name = encoder or recipe.encoder
    if encoder is None and last is not None:
        name, prompt = last.settings["encoder"], prompt or last.settings["prompt"]
        with_description = with_description or last.settings["with_description"]
    with project.snapshot() as db:
        labels = active_labels(db)
    inputs = _previous_digest(project, labels)
    built = build_encoder(name, batch_size=batch_size, device=device)
    template = resolve_prompt(built, prompt, recipe.prompt, with_description=with_description)
    settings: dict[str, Any] = {"prompt": template, "strip": list(recipe.strip), "with_description": with_description}
    texts = [
        encoder_input(label.text, recipe.strip, label.description if with_description else "", template) for label in labels
    ]
    made_by = built.fingerprint()
    if not isinstance(built, PrecomputedVectors):
        made_by |= settings
    content = labels_digest(labels)
    fingerprint = digest_rows([made_by, content, [] if isinstance(built, PrecomputedVectors) else texts])
    file = project.folder / FOLDER / f"{fingerprint}.npz"
    exists = file.is_file() and _is_recorded(project, fingerprint)
    if exists:
        vectors = read_vectors(file)[1]
    elif isinstance(built, PrecomputedVectors):
        vectors = built.lookup([(label.key, label.text) for label in labels])
    else:
        vectors = built.encode(texts, progress)
    if not exists:
        _check(vectors, labels)
        vectors = unit_rows(vectors)
        _write(file, labels, vectors, made_by)
    blank = int((~vectors.any(axis=1)).sum())
    if not exists or last is None or (last.result["digest"], last.inputs) != (fingerprint, inputs):
        result = {"labels": len(labels), "dim": vectors.shape[1], "without_signal": blank, "encoder": made_by}
        settings |= {"encoder": name, "batch_size": batch_size, "device": device}
        with project.transaction() as db:
            if labels_digest(active_labels(db)) != content:
                raise ValueError("the labels were changed while they were encoded; nothing was saved. Run the step again.")
            row = (fingerprint, canonical_json(made_by), content, vectors.shape[1], file.name)
            db.execute(
                "INSERT OR IGNORE INTO embedding (fingerprint, encoder_json, labels, dim, file) VALUES (?, ?, ?, ?, ?)", row
            )
            record_step(db, "embed", settings, inputs=inputs, result=result, digest=fingerprint)
    return EmbedResult(fingerprint, file, len(labels), vectors.shape[1], blank, made_by, fresh=not exists)


def is_embedded(project: Project) -> bool:
    """Whether the last embedding is of the labels as they are now."""
    last = "SELECT json_extract(result_json, '$.digest') FROM step WHERE name = 'embed' ORDER BY id DESC LIMIT 1"
    with project.snapshot() as db:
        row = db.execute(f"SELECT labels, file FROM embedding WHERE fingerprint = ({last})").fetchone()
        return (
            row is not None
            and row["labels"] == labels_digest(active_labels(db))
            and (project.folder / FOLDER / row["file"]).is_file()
        )


def read_embedding(project: Project, clustering_id: int | None = None) -> LabelEmbeddings:
    """Read the vectors of a clustering: of the last one by default, or the last embedding if there is no clustering."""
    with project.snapshot() as db:
        if clustering_id is None:
            clustering_id = db.execute("SELECT max(id) FROM clustering").fetchone()[0]
        if clustering_id is None:
            last = "SELECT json_extract(result_json, '$.digest') FROM step WHERE name = 'embed' ORDER BY id DESC LIMIT 1"
            row = db.execute(f"SELECT file FROM embedding WHERE fingerprint = ({last})").fetchone()
        else:
            embedding = "SELECT embedding FROM clustering WHERE id = ?"
            row = db.execute(f"SELECT file FROM embedding WHERE id = ({embedding})", (clustering_id,)).fetchone()
        if row is None:
            missing = "no embedding" if clustering_id is None else f"no clustering {clustering_id}"
            raise ValueError(f"{project.folder} has {missing}; run `suprank hierarchy cluster {project.folder}` first.")
        ids = {key: number for number, key in db.execute("SELECT id, key FROM label")}
    keys, vectors = read_vectors(project.folder / FOLDER / row["file"])
    known = [row for row, key in enumerate(keys) if key in ids]
    known_ids = np.array([ids[keys[row]] for row in known], np.int64)
    order = np.argsort(known_ids)
    return LabelEmbeddings(known_ids[order], vectors[np.array(known, np.int64)[order]])


def read_vectors(file: Path) -> tuple[list[str], NDArray[np.float32]]:
    """The keys and vectors of an embedding file, in the order of the keys."""
    try:
        archive = read_npz(file)
        return archive["labels"].tolist(), archive["embeddings"]
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} is gone; `suprank hierarchy cluster` makes it again.") from None
    except (KeyError, TypeError, ValueError) as error:
        repair = "delete it, and `suprank hierarchy cluster` makes it again"
        raise MalformedError(f"{file} is damaged ({error}); {repair}.") from error


def active_labels(db: sqlite3.Connection) -> list[ActiveLabel]:
    """The labels that are not removed, ordered by key, so that vectors and clusters do not depend on their ids."""
    rows = db.execute("SELECT id, key, text, description, weight FROM label WHERE state = 'active' ORDER BY key")
    return [ActiveLabel(*row) for row in rows]


def labels_digest(labels: Iterable[ActiveLabel]) -> str:
    """The digest of the keys and texts of labels, which an embedding belongs to."""
    return digest_rows((label.key, label.text) for label in labels)


def _previous_digest(project: Project, labels: list[ActiveLabel]) -> str:
    """The digest of the last step before this one. It is an error if there are no labels to embed."""
    steps = project.steps()
    if not labels:
        with project.snapshot() as db:
            items = db.execute("SELECT count(*) FROM item").fetchone()[0]
            removed = db.execute("SELECT count(*) FROM label").fetchone()[0]
        if removed:
            raise ValueError(f"cleaning removed all {pluralize(removed, 'label')} of {project.folder}; clean with other rules.")
        verb = "run `suprank hierarchy types` first"
        start = "make another from items, labels or a manifest, or give it items: `suprank hierarchy types --from-csv FILE`"
        raise ValueError(f"{project.folder} has no labels to embed; {verb if items else start}.")
    return next((steps[name].result["digest"] for name in ("clean", "types", "new") if name in steps), "")


def _is_recorded(project: Project, fingerprint: str) -> bool:
    with project.snapshot() as db:
        return db.execute("SELECT 1 FROM embedding WHERE fingerprint = ?", (fingerprint,)).fetchone() is not None


def _write(file: Path, labels: list[ActiveLabel], vectors: NDArray[np.float32], made_by: dict[str, Any]) -> None:
    file.parent.mkdir(exist_ok=True)
    with atomic_writer(file) as opened:
        keys = np.array([label.key for label in labels])
        np.savez(opened, labels=keys, embeddings=vectors, fingerprint=np.array(canonical_json(made_by)))


def _check(vectors: NDArray[Any], labels: list[ActiveLabel]) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        others = f", nor are those of {len(bad) - 1:,} more" if len(bad) > 1 else ""
        raise ValueError(f"the vector of {labels[bad[0]].text!r} is not finite{others}; check the encoder and its weights.")
