"""Vectors made elsewhere, such as by a CLIP model on another machine.

A `.npz` file holds, without pickled objects:

- `labels`       `[n]`     texts or keys (QIDs) of labels, as strings
- `embeddings`   `[n, d]`  a row of numbers each, of any length
- `fingerprint`            optional: a string, JSON or not, that says what made them

    np.savez("clip.npz", labels=np.array(labels), embeddings=rows, fingerprint="ViT-L-14 laion2b_s32b_b82k, A picture of a {}")

So do the files in a project's folder `embeddings`. A `.npy` file of rows goes with a `.txt` file beside it, of the same name,
with one label a line. Labels that the project does not have are passed over.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.hierarchy.errors import MalformedError
from suprank.hierarchy.text import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_SHOWN = 20  # missing labels in a message


class Precomputed:
    """Vectors by label, from a file."""

    prompted = False  # whatever stood around the labels is in the vectors

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        if not self.file.is_file():
            raise FileNotFoundError(f"there is no file {self.file} of vectors; check the path.")
        self._made_by: Any = None
        if self.file.suffix == ".npy":
            labels, self._rows = _beside(self.file), _array(self.file)
        else:
            labels, self._rows, self._made_by = _npz(self.file)
        _check(self.file, labels, self._rows)
        self._places = _places(self.file, labels, self._rows)
        self.count = len(labels)

    def fingerprint(self) -> dict[str, Any]:
        digest = hashlib.sha256(f"{self._rows.dtype} {self._rows.shape[1]}".encode())
        for label, place in sorted(self._places.items()):  # the order of the file does not matter
            digest.update(label.encode() + b"\0" + self._rows[place].tobytes())
        return {"name": "precomputed", "sha256": digest.hexdigest(), "made_by": self._made_by}

    def rows_of(self, labels: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """The rows of labels (key, text): by the key, else by the text, else by the text whatever its case and blanks."""
        found = [next((self._places[n] for n in (key, text, key_of(text)) if n in self._places), None) for key, text in labels]
        missing = [text for (_, text), place in zip(labels, found, strict=True) if place is None]
        if missing:
            more = f" and {len(missing) - _SHOWN:,} more" if len(missing) > _SHOWN else ""
            raise MalformedError(
                f"{self.file} lacks {len(missing):,} of {len(labels):,} labels: "
                f"{', '.join(map(repr, missing[:_SHOWN]))}{more}; make vectors of these too."
            )
        return self._rows[np.array(found, np.int64)]


def _npz(file: Path) -> tuple[list[str], NDArray[np.float32], Any]:
    if not zipfile.is_zipfile(file):  # numpy would take it for a pickle
        raise MalformedError(f"{file} cannot be read as .npz (it is no archive); write it with np.savez.")
    try:
        # Opened here: np.load forgets to close a file that is no archive.
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as held:
            lacking = {"labels", "embeddings"} - set(held.files)
            if lacking:
                raise MalformedError(f"{file} has no array {' and no '.join(sorted(lacking))}, but {', '.join(held.files)}.")
            labels, rows = held["labels"], held["embeddings"]
            said = str(held["fingerprint"]) if "fingerprint" in held.files else None
    except (zipfile.BadZipFile, EOFError, TypeError, ValueError) as error:  # TypeError: one array, no archive
        if isinstance(error, MalformedError):
            raise
        raise MalformedError(
            f"{file} cannot be read as .npz with plain arrays ({error}); pickled ones are never read."
        ) from error
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8")
    if labels.ndim != 1 or labels.dtype.kind != "U":
        raise MalformedError(f"{file}: labels is {labels.dtype} {labels.shape}, and must be strings, one a row of embeddings.")
    try:
        made_by = None if said is None else json.loads(said)
    except json.JSONDecodeError:
        made_by = said
    return labels.tolist(), rows, made_by


def _beside(file: Path) -> list[str]:
    beside = file.with_suffix(".txt")
    if not beside.is_file():
        raise FileNotFoundError(f"{file} needs its labels, one a line, in {beside}.")
    try:
        return beside.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise MalformedError(f"{beside} is not UTF-8 text ({error}); write it again.") from None


def _array(file: Path) -> NDArray[np.float32]:
    try:
        return np.asarray(np.load(file, allow_pickle=False))
    except (EOFError, ValueError) as error:
        raise MalformedError(f"{file} cannot be read as .npy ({error}); pickled arrays are never read.") from error


def _check(file: Path, labels: list[str], rows: NDArray[Any]) -> None:
    if rows.ndim != 2 or rows.dtype.kind not in "fiu" or rows.shape[1] == 0:
        raise MalformedError(f"{file}: embeddings is {rows.dtype} {rows.shape}, and must be numbers, [labels, dimensions].")
    if len(labels) != len(rows):
        raise MalformedError(f"{file} has {len(labels):,} labels and {len(rows):,} rows; they must be as many.")
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise MalformedError(f"{file}: row {bad[0]} ({labels[bad[0]]!r}) is not finite, and {len(bad) - 1:,} more; mend it.")


def _places(file: Path, labels: list[str], rows: NDArray[Any]) -> dict[str, int]:
    """The row of each label as it is written; then of its normalized text, the first label's where several have it."""
    places: dict[str, int] = {}
    for place, label in enumerate(labels):
        first = places.setdefault(label, place)
        if not np.array_equal(rows[first], rows[place]):
            raise MalformedError(f"{file} has {label!r} twice, rows {first} and {place}, with different vectors; keep one.")
    for place, label in enumerate(labels):
        places.setdefault(key_of(label), place)
    return places
