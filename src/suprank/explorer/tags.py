"""Tags: words that people give to images, kept in a CSV file beside a run, and exported as a column of the manifest.

    check_tag(text)                   the tag as it is stored; ValueError if it cannot be one
    with_tags(manifest, "tags.csv")   the manifest with a column `tags`, such as "blurry;wrong label"
    TagFile(file)                     reads and changes the file
    tags.of(manifest, row)            the tags of an image
    tags.row_tags(manifest)           the tags of all images of a manifest, as numbers of sets
    tags.change(manifest, rows, add="blurry")

An image is recognized by its id, or if its manifest has no ids by its path and box. So tags stay when it is embedded again.
"""

from __future__ import annotations

import threading
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.data.manifest import box_text, path_key
from suprank.explorer.shared_table import NotSavedError, SharedTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest

TAGS = "tags"
"""The column of a manifest with the tags of each image, joined by `SEPARATOR`."""

SEPARATOR = ";"
MAX_LENGTH = 60
"""The longest tag, in characters."""

COLUMNS = ("id", "path", "box", TAGS)
_FIRST = "=+-@'＝＋－＠"  # a spreadsheet would run the cell as a formula
_BREAKS = ("Cc", "Cs", "Zl", "Zp")


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


class ImageIdentity(NamedTuple):
    """The id of an image (empty if its manifest has none), its path, and its box as text. Tags are stored under these."""

    id: str
    path: str
    box: str


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

    If the file does not exist yet, the tags are those in the column `tags` of the `initial` manifests; the first change then
    writes them all. Safe to call from several threads.
    """

    def __init__(self, file: Path | None, *, initial: Sequence[Manifest] = ()) -> None:
        self.file = file
        self._table = None if file is None else SharedTable(file, COLUMNS)
        self._initial = [row for manifest in initial for row in _rows_of_column(manifest)]
        self._read: tuple[object, _Tagged] | None = None
        self._row_tags: WeakKeyDictionary[Manifest, tuple[_Tagged, RowTags, Any]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @property
    def version(self) -> object:
        """A value that differs after every change."""
        return None if self._table is None else self._table.version

    def of(self, manifest: Manifest, row: int) -> tuple[str, ...]:
        """The tags of an image, in alphabetical order."""
        (image,) = identities(manifest, [row])
        tagged = self._tagged()
        at = tagged.find(image)
        return () if at is None else tagged.sets[tagged.codes[at]]

    def row_tags(self, manifest: Manifest) -> RowTags:
        """The tags of every row of a manifest."""
        tagged, table = self._tagged(), manifest.table
        found = self._row_tags.get(manifest)
        if found is not None and found[0] is tagged:
            return found[1]
        has_ids = "id" in table.column_names
        # Keys of before, if there are any: those of a million boxes take seconds.
        keys = found[2] if found is not None else table["id"] if has_ids else pa.array(manifest.keys, pa.string())
        known = [image.id or None if has_ids else path_key(image.path, image.box) for image in tagged.images]
        at = np.asarray(pc.fill_null(pc.index_in(keys, value_set=pa.array(known, pa.string()), skip_nulls=True), -1), np.int64)
        row_tags = RowTags(np.append(np.asarray(tagged.codes, np.int64), 0)[at], tuple(tagged.sets))
        self._row_tags[manifest] = (tagged, row_tags, keys)
        return row_tags

    def add_column(self, manifest: Manifest) -> Manifest:
        """The manifest with the column `tags`."""
        found = self.row_tags(manifest)
        texts = pa.array([SEPARATOR.join(tags) for tags in found.sets], pa.string())
        return manifest.with_columns(**{TAGS: texts.take(pa.array(found.codes))})

    def change(
        self, manifest: Manifest, rows: Sequence[int] | NDArray[np.int64], *, add: str | None = None, remove: str | None = None
    ) -> None:
        """Give a tag to images, or take one from them, and save. ValueError for a bad tag, NotSavedError if it fails."""
        if self._table is None:
            raise NotSavedError("there is no file to keep tags in; start `suprank explore DATA --tags FILE`.")
        added = None if add is None else check_tag(add)
        table, images = self._table, identities(manifest, rows)
        tagged = _Tagged(())

        def changed(records: list[list[str]]) -> list[list[str]]:
            nonlocal tagged
            tagged = _Tagged(self._initial if table.version is None else records)
            tagged.change(images, added, remove)
            return tagged.records()

        version = table.update(changed)
        with self._lock:
            self._read = (version, tagged)

    def _tagged(self) -> _Tagged:
        with self._lock:
            version = self.version
            if self._read is None or self._read[0] != version:
                rows = self._initial if version is None or self._table is None else self._table.rows()
                self._read = (version, _Tagged(rows))
            return self._read[1]


class _Tagged:
    """The rows of a file of tags, found by id or by path and box. The first of two rows for one image counts."""

    def __init__(self, rows: Iterable[Sequence[str]]) -> None:
        self.images: list[ImageIdentity] = []
        self.codes: list[int] = []
        self.sets: list[tuple[str, ...]] = [()]
        self._codes_of_sets: dict[tuple[str, ...], int] = {(): 0}
        self._codes_of_texts: dict[str, int] = {}
        self._by_id: dict[str, int] = {}
        self._by_path: dict[tuple[str, str], int] = {}
        for image_id, path, box, text in rows:
            if text not in self._codes_of_texts:
                self._codes_of_texts[text] = self._code(tag.strip() for tag in text.split(SEPARATOR))
            self._add(ImageIdentity(image_id, path, box), self._codes_of_texts[text])

    def find(self, image: ImageIdentity) -> int | None:
        """The position of an image; None if it has no tags."""
        return self._by_id.get(image.id) if image.id else self._by_path.get((image.path, image.box))

    def change(self, images: Iterable[ImageIdentity], add: str | None, remove: str | None) -> None:
        new_codes: dict[int, int] = {}
        for image in images:
            at = self.find(image)
            code = 0 if at is None else self.codes[at]
            if code not in new_codes:
                new_codes[code] = self._code(tag for tag in (*self.sets[code], add or "") if tag != remove)
            if at is not None:
                self.codes[at] = new_codes[code]
            elif new_codes[code]:
                self._add(image, new_codes[code])

    def records(self) -> list[list[str]]:
        """The rows to write: those with tags."""
        texts = [SEPARATOR.join(tags) for tags in self.sets]
        return [[*image, texts[code]] for image, code in zip(self.images, self.codes, strict=True) if code]

    def _add(self, image: ImageIdentity, code: int) -> None:
        if self.find(image) is not None:
            return
        at = len(self.images)
        self.images.append(image)
        self.codes.append(code)
        if image.id:
            self._by_id[image.id] = at
        self._by_path.setdefault((image.path, image.box), at)

    def _code(self, tags: Iterable[str]) -> int:
        chosen = tuple(sorted({tag for tag in tags if tag}, key=tag_order))
        if chosen not in self._codes_of_sets:
            self._codes_of_sets[chosen] = len(self.sets)
            self.sets.append(chosen)
        return self._codes_of_sets[chosen]


def identities(manifest: Manifest, rows: Sequence[int] | NDArray[np.int64]) -> list[ImageIdentity]:
    """What identifies these images of a manifest."""
    chosen = pa.array(np.asarray(rows, np.int64))
    names = [name for name in ("id", "path", "box") if name in manifest.table.column_names]
    cells = {name: manifest.table[name].take(chosen).to_pylist() for name in names}
    blank = [""] * len(chosen)
    boxes = [box_text(box) for box in cells["box"]] if "box" in cells else blank
    return [ImageIdentity(*one) for one in zip(cells.get("id", blank), cells["path"], boxes, strict=True)]


def _rows_of_column(manifest: Manifest) -> list[list[str]]:
    """Rows for a file of tags, from the column `tags` of a manifest."""
    if TAGS not in manifest.table.column_names:
        return []
    texts = manifest.table[TAGS].to_pylist()
    rows = [row for row, text in enumerate(texts) if isinstance(text, str) and text.strip()]
    return [[*image, texts[row]] for row, image in zip(rows, identities(manifest, rows), strict=True)]
