"""The step `embed`: active labels to vectors, in a file that never changes; and reading such a file back."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.files.atomic import writing_atomically
from suprank.hierarchy.encoders import Precomputed, encoded_text, encoder_of, prompt_for, unit_rows
from suprank.hierarchy.errors import MalformedError
from suprank.hierarchy.project import as_json, digest_of, record_step
from suprank.hierarchy.text import amount

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from suprank.hierarchy.encoders import Progress
    from suprank.hierarchy.project import Project

FOLDER = "embeddings"


@dataclass(frozen=True)
class Label:
    """An active label."""

    id: int
    key: str
    text: str
    description: str
    weight: int


@dataclass(frozen=True)
class EmbedOutcome:
    """What came of a run. `fresh` where vectors were made; else they were there, of the same labels by the same encoder."""

    fingerprint: str
    file: Path
    labels: int
    dim: int
    without_signal: int
    """Labels whose vector is all zeros: the encoder knows nothing of their texts."""

    encoder: dict[str, Any]
    fresh: bool


@dataclass(frozen=True)
class Embedded:
    """Vectors of labels, of length 1 or all zeros. `labels` are ids, ascending."""

    labels: NDArray[np.int64]
    vectors: NDArray[np.float32]

    def rows(self, ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of these labels, in their order; zeros for labels it does not have."""
        wanted = np.asarray(ids, np.int64)
        found = np.zeros((len(wanted), self.vectors.shape[1]), np.float32)
        if len(self.labels):
            places = np.minimum(np.searchsorted(self.labels, wanted), len(self.labels) - 1)
            there = self.labels[places] == wanted
            found[there] = self.vectors[places[there]]
        return found


def embed_labels(
    project: Project,
    encoder: str | None = None,
    *,
    prompt: str | None = None,
    with_description: bool = False,
    batch_size: int = 256,
    device: str | None = None,
    progress: Progress = lambda done, total: None,
) -> EmbedOutcome:
    """Encode the active labels of a project; what is not given is as in its recipe.

    The file is written before the row that names it: after a crash there may be a file that no row names, which the next run
    writes again. What was encoded once, by the same encoder and of the same texts, is not encoded again.
    """
    recipe = project.recipe.embed
    written = encoder or recipe.encoder
    with project.reading() as db:
        labels = active_labels(db)
    inputs = _step_before(project, labels)
    chosen = encoder_of(written, batch_size=batch_size, device=device)
    around = prompt_for(chosen, prompt, recipe.prompt, with_description=with_description)
    settings: dict[str, Any] = {"prompt": around, "strip": list(recipe.strip), "with_description": with_description}
    texts = [encoded_text(one.text, recipe.strip, one.description if with_description else "", around) for one in labels]
    made_by = chosen.fingerprint()
    if not isinstance(chosen, Precomputed):
        made_by |= settings
    read = labels_digest(labels)
    fingerprint = digest_of([made_by, read, [] if isinstance(chosen, Precomputed) else texts])
    file = project.folder / FOLDER / f"{fingerprint}.npz"
    known = file.is_file() and _is_there(project, fingerprint)
    if known:
        vectors = read_file(file)[1]
    elif isinstance(chosen, Precomputed):
        vectors = chosen.rows_of([(label.key, label.text) for label in labels])
    else:
        vectors = chosen.encode(texts, progress)
    if not known:
        _check(vectors, labels)
        vectors = unit_rows(vectors)
        _write(file, labels, vectors, made_by)
    blank = int((~vectors.any(axis=1)).sum())
    last = project.steps().get("embed")
    if not known or last is None or (last.result["digest"], last.inputs) != (fingerprint, inputs):
        result = {"labels": len(labels), "dim": vectors.shape[1], "without_signal": blank, "encoder": made_by}
        settings |= {"encoder": written, "batch_size": batch_size, "device": device}
        with project.writing() as db:
            if labels_digest(active_labels(db)) != read:
                raise ValueError("the labels were changed while they were encoded; nothing was saved. Run the step again.")
            row = (fingerprint, as_json(made_by), read, vectors.shape[1], file.name)
            db.execute(
                "INSERT OR IGNORE INTO embedding (fingerprint, encoder_json, labels, dim, file) VALUES (?, ?, ?, ?, ?)", row
            )
            record_step(db, "embed", settings, inputs=inputs, result=result, digest=fingerprint)
    return EmbedOutcome(fingerprint, file, len(labels), vectors.shape[1], blank, made_by, fresh=not known)


def read_embedding(project: Project, clustering_id: int | None = None) -> Embedded:
    """The vectors that a clustering was made of: of the last one, or, where there is none, those that were embedded last."""
    with project.reading() as db:
        if clustering_id is None:
            clustering_id = db.execute("SELECT max(id) FROM clustering").fetchone()[0]
        if clustering_id is None:
            last = "SELECT json_extract(result_json, '$.digest') FROM step WHERE name = 'embed' ORDER BY id DESC LIMIT 1"
            row = db.execute(f"SELECT file FROM embedding WHERE fingerprint = ({last})").fetchone()
        else:
            of = "SELECT embedding FROM clustering WHERE id = ?"
            row = db.execute(f"SELECT file FROM embedding WHERE id = ({of})", (clustering_id,)).fetchone()
        if row is None:
            what = "no embedding" if clustering_id is None else f"no clustering {clustering_id}"
            run = "embed" if clustering_id is None else "cluster"
            raise ValueError(f"{project.folder} has {what}; run `suprank hierarchy {run} {project.folder}` first.")
        ids = {key: number for number, key in db.execute("SELECT id, key FROM label")}
    keys, vectors = read_file(project.folder / FOLDER / row["file"])
    known = [place for place, key in enumerate(keys) if key in ids]
    found_ids = np.array([ids[keys[place]] for place in known], np.int64)
    order = np.argsort(found_ids)
    return Embedded(found_ids[order], vectors[np.array(known, np.int64)[order]])


def read_file(file: Path) -> tuple[list[str], NDArray[np.float32]]:
    """Keys and vectors of an embedding, in the order of the keys."""
    try:
        # Opened here: np.load forgets to close a file that is no archive.
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as held:
            return held["labels"].tolist(), held["embeddings"]
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} is gone; `suprank hierarchy embed` with the same settings makes it again.") from None
    except (zipfile.BadZipFile, KeyError, EOFError, TypeError, ValueError) as error:
        said = f"{file} is damaged ({error}); delete it, and `suprank hierarchy embed` with the same settings makes it again."
        raise MalformedError(said) from error


def active_labels(db: sqlite3.Connection) -> list[Label]:
    """The labels that are not removed, in the order of their keys: vectors and clusters do not depend on their numbers."""
    rows = db.execute("SELECT id, key, text, description, weight FROM label WHERE state = 'active' ORDER BY key")
    return [Label(*row) for row in rows]


def labels_digest(labels: Iterable[Label]) -> str:
    """What tells an embedding of these labels from one of others."""
    return digest_of((label.key, label.text) for label in labels)


def _step_before(project: Project, labels: list[Label]) -> str:
    """The digest of the last step before this one."""
    steps = project.steps()
    if not labels:
        with project.reading() as db:
            items = db.execute("SELECT count(*) FROM item").fetchone()[0]
            typed = db.execute("SELECT count(*) FROM item_type").fetchone()[0]
            removed = db.execute("SELECT count(*) FROM label").fetchone()[0]
        if removed:
            raise ValueError(f"cleaning removed all {amount(removed, 'label')} of {project.folder}; clean with other rules.")
        run = "run `suprank hierarchy clean` first" if typed else "run `suprank hierarchy scrape` first"
        begin = "make another with --items, --labels or --manifest, or give it items with `scrape --from-csv`"
        raise ValueError(f"{project.folder} has no labels to embed; {run if items else begin}.")
    return next((steps[name].result["digest"] for name in ("clean", "scrape", "new") if name in steps), "")


def _is_there(project: Project, fingerprint: str) -> bool:
    with project.reading() as db:
        return db.execute("SELECT 1 FROM embedding WHERE fingerprint = ?", (fingerprint,)).fetchone() is not None


def _write(file: Path, labels: list[Label], vectors: NDArray[np.float32], made_by: dict[str, Any]) -> None:
    file.parent.mkdir(exist_ok=True)
    with writing_atomically(file) as opened:
        keys = np.array([label.key for label in labels])
        np.savez(opened, labels=keys, embeddings=vectors, fingerprint=np.array(as_json(made_by)))


def _check(vectors: NDArray[Any], labels: list[Label]) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        said = f"the vector of {labels[bad[0]].text!r} is not finite, nor are those of {len(bad) - 1:,} more labels"
        raise ValueError(f"{said}; check the encoder and its weights.")
