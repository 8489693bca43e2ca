"""Tags: words that people give to images, kept in a CSV file beside a run, and exported as a column of the manifest.

An image is recognized by its id, or if its manifest has no ids by its path and box. So tags stay when it is embedded again.
"""

from __future__ import annotations

import threading
import unicodedata
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.data.manifest import box_text, path_key
from suprank.files.atomic import DiskFullError, own_file, write_atomically
from suprank.files.locking import lock_folder
from suprank.files.spreadsheets import csv_bytes, original_text
from suprank.files.tables import MalformedError, parse_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest

TAGS = "tags"
"""The column of a manifest with the tags of each image, joined by `SEPARATOR`."""

SEPARATOR = ";"
MAX_LENGTH = 60
"""The longest tag, in characters."""

COLUMNS = ("id", "path", "box", TAGS)
WAIT_SECONDS = 10.0
"""How long a change waits for another process that is changing the file."""

_FIRST = "=+-@'＝＋－＠"  # a spreadsheet would run the cell as a formula
_BREAKS = ("Cc", "Cs", "Zl", "Zp")


class NotSavedError(OSError):
    """A change was not saved. The message says why, and what to do."""


def check_tag(text: str) -> str:
    """The tag without white space around it; a ValueError says why a text cannot be a tag.

    Example:
        >>> check_tag(" blurry ")
        'blurry'
        >>> check_tag("a;b")
        Traceback (most recent call last):
        ...
        ValueError: a tag may not contain ';', which separates tags; give two tags one after the other.
    """
    tag = unicodedata.normalize("NFC", text.strip())
    if not tag:
        raise ValueError("a tag is a word or a few; write one.")
    if len(tag) > MAX_LENGTH:
        raise ValueError(f"a tag has at most {MAX_LENGTH} characters, and this one has {len(tag):,}; write a shorter one.")
    if SEPARATOR in tag:
        raise ValueError(f"a tag may not contain {SEPARATOR!r}, which separates tags; give two tags one after the other.")
    if any(unicodedata.category(letter) in _BREAKS for letter in tag):
        raise ValueError("a tag may not contain line breaks or control characters; write it on one line.")
    if tag[0] in _FIRST:
        raise ValueError(f"a tag may not begin with {tag[0]!r}; spreadsheets take that for a formula. Begin with a letter.")
    return tag


def tag_order(tag: str) -> tuple[str, str]:
    """Sort key of tags: alphabetical, whatever the case."""
    return tag.casefold(), tag


def with_tags(manifest: Manifest, file: str | PathLike[str]) -> Manifest:
    """The manifest with a column `tags`, from a file of tags of `suprank explore`: the tags of each image joined by `;`.

    Images without tags have an empty text. A column `tags` that the manifest has already is replaced.
    """
    if not Path(file).is_file():
        raise FileNotFoundError(f"there is no file {file}; `suprank explore RUN` writes RUN/tags.csv when you tag an image.")
    return TagFile(Path(file)).add_column(manifest)


@dataclass(frozen=True, eq=False)
class RowTags:
    """The tags of each row: `sets[codes[row]]`. The first set is empty, and few different sets occur among many rows."""

    codes: NDArray[np.int64]
    sets: tuple[tuple[str, ...], ...]

    def mask(self, tag: str) -> NDArray[np.bool_]:
        """Which rows have this tag."""
        return np.isin(self.codes, [code for code, tags in enumerate(self.sets) if tag in tags])

    @property
    def tagged(self) -> NDArray[np.bool_]:
        """Which rows have any tag."""
        return self.codes > 0

    def counts(self) -> dict[str, int]:
        """Tag → number of rows, in alphabetical order."""
        rows = np.bincount(self.codes, minlength=len(self.sets))
        found: dict[str, int] = {}
        for code, tags in enumerate(self.sets):
            for tag in tags:
                found[tag] = found.get(tag, 0) + int(rows[code])
        return {tag: found[tag] for tag in sorted(found, key=tag_order) if found[tag]}


class TagFile:
    """The tags in a file, which other processes may change too; without a file there are none, and none can be given.

    A change appends a row for each image, with all tags that it has from then on: the last row of an image counts. If the file
    does not exist yet, the tags are those in the column `tags` of the `initial` manifests, and the first change writes these
    too. Safe to call from several threads.
    """

    def __init__(self, file: Path | None, *, initial: Sequence[Manifest] = ()) -> None:
        self.file = file
        self._initial = [row for manifest in initial for row in _rows_of_column(manifest)]
        self._read: tuple[object, _Tagged] | None = None
        self._row_tags: WeakKeyDictionary[Manifest, tuple[_Tagged, RowTags]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @property
    def version(self) -> object:
        """A value that differs after every change, by whichever process; None if there is no file."""
        with suppress(OSError):
            if self.file is not None:
                found = self.file.stat()
                return found.st_ino, found.st_mtime_ns, found.st_size
        return None

    def of(self, manifest: Manifest, row: int) -> tuple[str, ...]:
        """The tags of an image, in alphabetical order."""
        found = self.row_tags(manifest)
        return found.sets[found.codes[row]]

    def row_tags(self, manifest: Manifest) -> RowTags:
        """The tags of every row of a manifest; a `MalformedError` says what is wrong with a damaged file."""
        tagged = self._tagged()
        known = self._row_tags.get(manifest)
        if known is not None and known[0] is tagged:
            return known[1]
        if "id" in manifest.table.column_names:
            at = pc.index_in(manifest.table["id"], value_set=tagged.ids, skip_nulls=True)
        else:
            at = pc.index_in(pa.array(manifest.keys, pa.string()), value_set=tagged.keys)
        found = RowTags(np.append(tagged.codes, 0)[np.asarray(pc.fill_null(at, -1), np.int64)], tagged.sets)
        self._row_tags[manifest] = (tagged, found)
        return found

    def add_column(self, manifest: Manifest) -> Manifest:
        """The manifest with the column `tags`."""
        found = self.row_tags(manifest)
        texts = pa.array([SEPARATOR.join(tags) for tags in found.sets], pa.string())
        return manifest.with_columns(**{TAGS: texts.take(pa.array(found.codes))})

    def change(
        self, manifest: Manifest, rows: Sequence[int] | NDArray[np.int64], *, add: str | None = None, remove: str | None = None
    ) -> None:
        """Give a tag to images, or take one from them, and save. ValueError for a bad tag, NotSavedError if it fails."""
        added = None if add is None else check_tag(add)
        chosen = np.asarray(rows, np.int64)
        with self._saving() as file:
            before = self.row_tags(manifest)
            codes = before.codes[chosen]
            sets = {code: {*before.sets[code], added} - {None, remove} for code in np.unique(codes).tolist()}
            changes = np.isin(codes, [code for code, tags in sets.items() if tags != {*before.sets[code]}])
            images = identities(manifest, chosen[changes])
            new = [(*image, _joined(sets[code])) for image, code in zip(images, codes[changes].tolist(), strict=True)]
            if new and self.version is None:
                write_atomically(file, csv_bytes(COLUMNS, [*self._initial, *new]))
            elif new:
                # A file that people edited may have other columns, and no line break at its end.
                header = self._tagged().header
                places = [COLUMNS.index(name) if name in COLUMNS else None for name in header]
                cells = [["" if place is None else row[place] for place in places] for row in new]
                content = file.read_bytes()
                content += b"" if content.endswith(b"\n") else b"\n"
                write_atomically(file, content + csv_bytes(cells[0], cells[1:]))

    @contextmanager
    def _saving(self) -> Iterator[Path]:
        """Hold the lock of the file, which a change needs; an error says why nothing is saved, and what to do."""
        if (file := self.file) is None:
            raise NotSavedError("there is no file to keep tags in; start `suprank explore DATA --tags FILE`.")
        lock = f".{file.name}.lock"
        try:
            with lock_folder(file.parent, "changing tags in", "try again in a moment", name=lock, seconds=WAIT_SECONDS):
                yield file
        except (BlockingIOError, DiskFullError) as error:
            raise NotSavedError(str(error)) from error
        except OSError as error:
            raise NotSavedError(
                f"{file} cannot be written ({error.strerror or error}); start `suprank explore DATA --tags FILE`, in a folder "
                f"that you may write to."
            ) from error

    def _tagged(self) -> _Tagged:
        with self._lock:
            version = self.version
            if self._read is None or self._read[0] != version:
                header, rows = (COLUMNS, self._initial) if version is None or self.file is None else _read_rows(self.file)
                self._read = (version, _Tagged.from_rows(header, rows))
            return self._read[1]


def _read_rows(file: Path) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The columns of a file of tags, and the cells of ours."""
    try:
        content = own_file(file).read_bytes()
    except OSError as error:
        raise MalformedError(f"{file} cannot be read ({error.strerror or error}); move it away.") from error
    names = content.decode("utf-8-sig", "replace").strip().split(",")
    if set(COLUMNS) <= set(names) and not any("\n" in name for name in names):  # all rows were deleted
        return tuple(names), []
    table = parse_table(content, str(file), ".csv")
    columns = [[original_text(cell) for cell in table.column(name).to_pylist()] for name in COLUMNS]
    return tuple(table.names), list(zip(*columns, strict=True))


class _Tagged(NamedTuple):
    """The images in a file of tags, the last row first: their ids (null for none), their keys, and their tags `sets[codes]`."""

    header: tuple[str, ...]
    ids: Any
    keys: Any
    codes: NDArray[np.int64]
    sets: tuple[tuple[str, ...], ...]

    @classmethod
    def from_rows(cls, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> _Tagged:
        codes_of_texts: dict[str, int] = {}
        codes_of_sets: dict[tuple[str, ...], int] = {(): 0}
        for text in dict.fromkeys(row[3] for row in rows):
            tags = tuple(sorted({tag.strip() for tag in text.split(SEPARATOR)} - {""}, key=tag_order))
            codes_of_texts[text] = codes_of_sets.setdefault(tags, len(codes_of_sets))
        last_first = rows[::-1]
        return cls(
            header,
            pa.array([image_id or None for image_id, *_ in last_first], pa.string()),
            pa.array([path_key(path, box) for _, path, box, _ in last_first], pa.string()),
            np.array([codes_of_texts[text] for *_, text in last_first], np.int64),
            tuple(codes_of_sets),
        )


def identities(manifest: Manifest, rows: Sequence[int] | NDArray[np.int64]) -> list[tuple[str, str, str]]:
    """The id of each of these images (empty if the manifest has none), its path, and its box as text."""
    chosen = pa.array(np.asarray(rows, np.int64))
    names = [name for name in ("id", "path", "box") if name in manifest.table.column_names]
    cells = {name: manifest.table[name].take(chosen).to_pylist() for name in names}
    blank = [""] * len(chosen)
    boxes = [box_text(box) for box in cells["box"]] if "box" in cells else blank
    return list(zip(cells.get("id", blank), cells["path"], boxes, strict=True))


def _rows_of_column(manifest: Manifest) -> list[tuple[str, ...]]:
    """Rows for a file of tags, from the column `tags` of a manifest."""
    if TAGS not in manifest.table.column_names:
        return []
    texts = manifest.table[TAGS].to_pylist()
    rows = [row for row, text in enumerate(texts) if isinstance(text, str) and text.strip()]
    return [(*image, texts[row]) for row, image in zip(rows, identities(manifest, rows), strict=True)]


def _joined(tags: Iterable[str]) -> str:
    return SEPARATOR.join(sorted(tags, key=tag_order))
