"""Vectors computed elsewhere, such as by a CLIP model on another machine.

A `.npz` file, without pickled objects, has the arrays

- `labels`       `[n]`     texts or keys (QIDs) of labels, as strings
- `embeddings`   `[n, d]`  a row of numbers per label, of any length
- `fingerprint`            optional: a string, JSON or not, that says what made the vectors

    np.savez("clip.npz", labels=np.array(labels), embeddings=rows, fingerprint="ViT-L-14 laion2b_s32b_b82k, A picture of a {}")

The files in a project's folder `embeddings` have this format too. Labels that the project does not have are ignored.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.files.binary import read_npz
from suprank.hierarchy.errors import MalformedError
from suprank.hierarchy.text import label_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_MAX_NAMED = 20  # missing labels that a message names


class PrecomputedVectors:
    """Vectors by label, from a file."""

    prompted = False  # a prompt, if there was one, is in the vectors already

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        if not self.file.is_file():
            raise FileNotFoundError(f"there is no file {self.file} of vectors; check the path.")
        labels, self._vectors, self._made_by = _read_npz(self.file)
        _check(self.file, labels, self._vectors)
        self._row_by_label = _rows_by_label(self.file, labels, self._vectors)

    def fingerprint(self) -> dict[str, Any]:
        """The digest of all labels and vectors, whatever their order in the file, and what the file says made them."""
        digest = hashlib.sha256(f"{self._vectors.dtype} {self._vectors.shape[1]}".encode())
        for label, row in sorted(self._row_by_label.items()):
            digest.update(label.encode() + b"\0" + self._vectors[row].tobytes())
        return {"name": "precomputed", "sha256": digest.hexdigest(), "made_by": self._made_by}

    def lookup(self, labels: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """The vectors of labels (key, text), found by the key, else by the text, else by the normalized text."""
        known = self._row_by_label
        rows = [next((known[name] for name in (key, text, label_key(text)) if name in known), None) for key, text in labels]
        missing = [text for (_, text), row in zip(labels, rows, strict=True) if row is None]
        if missing:
            more = f" and {len(missing) - _MAX_NAMED:,} more" if len(missing) > _MAX_NAMED else ""
            raise MalformedError(
                f"{self.file} lacks {len(missing):,} of {len(labels):,} labels: "
                f"{', '.join(map(repr, missing[:_MAX_NAMED]))}{more}; make vectors of these too."
            )
        return self._vectors[np.array(rows, np.int64)]


def _read_npz(file: Path) -> tuple[list[str], NDArray[np.float32], Any]:
    try:
        archive = read_npz(file)
    except (TypeError, ValueError) as error:
        raise MalformedError(str(error)) from error
    if lacking := {"labels", "embeddings"} - set(archive):
        raise MalformedError(f"{file} has no array {' and no '.join(sorted(lacking))}, but {', '.join(archive)}.")
    labels, vectors = archive["labels"], archive["embeddings"]
    text = str(archive["fingerprint"]) if "fingerprint" in archive else None
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8")
    if labels.ndim != 1 or labels.dtype.kind != "U":
        raise MalformedError(f"{file}: labels is {labels.dtype} {labels.shape}; expected strings, one per row of embeddings.")
    try:
        made_by = None if text is None else json.loads(text)
    except json.JSONDecodeError:
        made_by = text
    return labels.tolist(), vectors, made_by


def _check(file: Path, labels: list[str], vectors: NDArray[Any]) -> None:
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or vectors.shape[1] == 0:
        shape = f"{vectors.dtype} {vectors.shape}"
        raise MalformedError(f"{file}: embeddings is {shape}; expected numbers, [labels, dimensions].")
    if len(labels) != len(vectors):
        raise MalformedError(f"{file} has {len(labels):,} labels and {len(vectors):,} rows; they must be as many.")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        others = f", nor are {len(bad) - 1:,} more rows" if len(bad) > 1 else ""
        raise MalformedError(f"{file}: row {bad[0]} ({labels[bad[0]]!r}) is not finite{others}; repair the vectors.")


def _rows_by_label(file: Path, labels: list[str], vectors: NDArray[Any]) -> dict[str, int]:
    """The row of each label as written, then of its normalized text; if several labels share that, the row of the first."""
    rows: dict[str, int] = {}
    for row, label in enumerate(labels):
        first = rows.setdefault(label, row)
        if not np.array_equal(vectors[first], vectors[row]):
            raise MalformedError(f"{file} has {label!r} twice, rows {first} and {row}, with different vectors; keep one.")
    for row, label in enumerate(labels):
        rows.setdefault(label_key(label), row)
    return rows
