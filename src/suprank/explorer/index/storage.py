"""The files of a local index. `meta.json` names the current files and is replaced last, so there is always a complete set.

    meta.json           dim, kind, next id, recall, ...; and for each segment its counts and its files with their sizes
    index.N.faiss       the vectors of a segment
    items.N.parquet     their ids, paths, splits and labels, in the order of the vectors
    removed.N.npy       which of them are removed, one bit each; only if there are any

A segment's vectors and items never change. A change writes files with the next number N, then `meta.json`, then deletes files
that no segment has any more. A process killed meanwhile leaves the old set intact, and files that `meta.json` does not name,
which the next change deletes. Readers keep the files they opened.

Version 1 had one set of files, and a column `removed` in the items. It is read as an index of one segment.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from suprank.data.columns import decode_dictionaries
from suprank.explorer.index.protocol import IndexItem
from suprank.files.atomic import atomic_writer, write_atomically
from suprank.files.locking import lock_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.explorer.index.protocol import Where


ID, PATH, SPLIT, REMOVED, LABEL = "id", "path", "split", "removed", "label_"


def item_table(ids: NDArray[np.int64], manifest: Manifest | Sequence[IndexItem] | None) -> pa.Table:
    """A table of items with these ids, and with paths, splits and label names from a manifest or from other items."""
    if manifest is not None and len(manifest) != len(ids):
        raise ValueError(
            f"the manifest has {len(manifest):,} rows for {len(ids):,} embeddings; give the manifest of these embeddings."
        )
    empty = pa.nulls(len(ids), pa.string())
    # Not `pa.array(ids)`: for numpy arrays it imports pandas, which takes a third of a second.
    own = pa.Array.from_buffers(pa.int64(), len(ids), [None, pa.py_buffer(np.ascontiguousarray(ids, np.int64))])
    columns: dict[str, Any] = {ID: own, PATH: empty, SPLIT: empty}
    if isinstance(manifest, Sequence):
        columns[PATH] = pa.array([one.path for one in manifest], pa.string())
        columns[SPLIT] = pa.array([one.split for one in manifest], pa.string())
        for level in dict.fromkeys(level for one in manifest for level in one.labels):
            columns[LABEL + level] = pa.array([one.labels.get(level) for one in manifest], pa.string())
    elif manifest is not None:
        manifest.require_single_labels("an index", "index the embeddings file without a manifest")
        named = [PATH, SPLIT, *(LABEL + level for level in manifest.levels)]
        columns |= {name: manifest.table[name].cast(pa.string()) for name in named}
    return pa.table(columns)


def join_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of these tables; a level that one of them lacks is null there."""
    return pa.concat_tables([decode_dictionaries(one) for one in tables], promote_options="default").combine_chunks()


def filter_rows(table: pa.Table, mask: NDArray[np.bool_]) -> pa.Table:
    """The rows where the mask is true."""
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))  # `pa.array(mask)` would import pandas
    return table.filter(pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits]))


def levels_in(names: Sequence[str]) -> tuple[str, ...]:
    """The levels among these column names."""
    return tuple(name.removeprefix(LABEL) for name in names if name.startswith(LABEL))


def matching_rows(table: pa.Table, where: Where) -> NDArray[np.bool_]:
    """Mask of the rows that match the filter; none does if a level of the filter is missing."""
    mask = np.ones(len(table), bool)
    for key, names in where.items():
        name = SPLIT if key == SPLIT else LABEL + key
        if name not in table.column_names:
            return np.zeros(len(table), bool)
        column = table[name].combine_chunks()
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        # Compare each name once, not every row: there are far fewer names.
        wanted = pc.is_in(coded.dictionary, value_set=pa.array(names, pa.string())).to_numpy(zero_copy_only=False)
        mask &= np.append(wanted, False)[pc.fill_null(coded.indices, -1).to_numpy()]
    return mask


def items_at(table: pa.Table, rows: NDArray[np.int64]) -> list[IndexItem]:
    """The items in these rows."""
    chosen = table.take(pa.array(rows)).to_pylist()
    levels = levels_in(table.column_names)
    return [
        IndexItem(
            row[ID], row[PATH], row[SPLIT], {level: row[LABEL + level] for level in levels if row[LABEL + level] is not None}
        )
        for row in chosen
    ]


META, VERSION = "meta.json", 2
_FILES = {"index": "faiss", "items": "parquet", "removed": "npy"}
_TYPES: dict[str, type] = {"number": int, "dim": int, "kind": str, "next_id": int}


class SegmentFiles(NamedTuple):
    """A segment in `meta.json`: how many vectors it has, how many are removed, and its files."""

    vectors: int
    removed: int
    files: Mapping[str, tuple[str, int]]  # index, items and, if there are removed ones, removed → name and size


class IndexFolder:
    """The folder of a local index."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def exists(self) -> bool:
        return (self.path / META).is_file()

    @property
    def has_leftovers(self) -> bool:
        """Whether an interrupted build has left files of an index."""
        return self.path.is_dir() and any(self._unnamed_files(()))

    def read_meta(self) -> tuple[dict[str, Any], list[SegmentFiles]]:
        """Read and check `meta.json`; raise if the folder has no index, or if its files are missing or have other sizes."""
        if not self.exists:
            way_out = "its build was interrupted; build it again" if self.has_leftovers else "`suprank index build` makes one"
            raise FileNotFoundError(f"{self.path} holds no index (it has no {META}); {way_out}.")
        try:
            meta = json.loads((self.path / META).read_bytes())
            version = meta["version"]
            if type(version) is int and version > VERSION:
                raise _LaterVersionError
            segments = _parse_segments(meta)
            if version not in (1, VERSION) or not all(type(meta[key]) is kind for key, kind in _TYPES.items()) or not segments:
                raise ValueError
        except _LaterVersionError:
            raise ValueError(
                f"{self.path} is an index of version {version}, but this suprank reads {VERSION}; update suprank."
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{self.path / META} is damaged; build the index again.") from None
        for name, size in (file for segment in segments for file in segment.files.values()):
            file = self.path / name
            actual = file.stat().st_size if file.is_file() else None
            if actual != size:
                problem = "is missing" if actual is None else f"has {actual:,} bytes instead of {size:,}"
                raise ValueError(f"{self.path} is damaged: {name} {problem}; copy the index again, or build it again.")
        return {key: value for key, value in meta.items() if key not in ("version", "segments", *_COUNTS)}, segments

    def meta_stamp(self) -> tuple[int, int] | None:
        """What differs once `meta.json` was replaced; None without one."""
        try:
            found = (self.path / META).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def last_number(self) -> int:
        """The largest N of the existing files, 0 without any; also works for a damaged index that is to be replaced."""
        names = (re.fullmatch(r"(?:index|items|removed)\.(\d+)\.\w+", path.name) for path in self.path.glob("*.*.*"))
        return max((int(match[1]) for match in names if match is not None), default=0)

    def write_segment(self, number: int, index: Callable[[IO[bytes]], None], items: pa.Table) -> SegmentFiles:
        """Write the files of a new segment; `index` is a function that writes the vectors to a file."""
        self.path.mkdir(parents=True, exist_ok=True)
        with atomic_writer(self._numbered_file("index", number)) as file:
            index(file)
        with atomic_writer(self._numbered_file("items", number)) as file:
            pq.write_table(items, file, compression="zstd", row_group_size=2**17)
        return SegmentFiles(len(items), 0, {which: self._name_and_size(which, number) for which in ("index", "items")})

    def write_removed(self, number: int, segment: SegmentFiles, removed: NDArray[np.bool_]) -> SegmentFiles:
        """Write which vectors of a segment are removed."""
        with atomic_writer(self._numbered_file("removed", number)) as file:
            np.save(file, np.packbits(removed, bitorder="little"))
        files = {**segment.files, "removed": self._name_and_size("removed", number)}
        return SegmentFiles(segment.vectors, int(np.count_nonzero(removed)), files)

    def commit(self, meta: Mapping[str, Any], segments: Sequence[SegmentFiles]) -> None:
        """Make these the segments of the index, and delete files that belong to none."""
        written = {**meta, "version": VERSION, "segments": [segment._asdict() for segment in segments]}
        write_atomically(self.path / META, json.dumps(written, indent=2, ensure_ascii=False).encode())
        self._delete_unnamed(segments)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing at the same time: for them, an OSError. The lock ends with the process.

        If the block fails, on a full disk say, what it has written is deleted, unless `meta.json` names it.
        """
        with lock_folder(self.path, "writing to", "wait for it to end"):
            try:
                yield
            except BaseException:
                with suppress(ValueError, OSError):  # of an index that is damaged, nothing is deleted
                    self._delete_unnamed(self.read_meta()[1] if self.exists else ())
                raise

    def read_removed(self, segment: SegmentFiles) -> NDArray[np.bool_] | None:
        """Which vectors of a segment are removed, if `meta.json` names a file that says so."""
        if "removed" not in segment.files:
            return None
        file = self.path / segment.files["removed"][0]
        try:
            removed = np.unpackbits(np.load(file), count=segment.vectors, bitorder="little").astype(bool)
        except (ValueError, TypeError, EOFError, OSError) as error:
            raise ValueError(f"{file} is damaged ({error}); build the index again.") from error
        return removed

    def open_items(self, segment: SegmentFiles) -> pq.ParquetFile:
        """Open the table of items, to be read in part or whole; labels are dictionary-encoded, which saves memory."""
        file = self.path / segment.files["items"][0]
        try:
            names = pq.read_schema(file).names
            labels = [name for name in names if name == SPLIT or name.startswith(LABEL)]
            items_file = pq.ParquetFile(file, read_dictionary=labels)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{file} is damaged ({error}); build the index again.") from error
        if items_file.metadata.num_rows != segment.vectors or not {ID, PATH, SPLIT} <= set(names):
            raise ValueError(f"{file} does not hold the {segment.vectors:,} items of the index; build the index again.")
        return items_file

    def stamp(self, segment: SegmentFiles) -> tuple[int, int]:
        """What differs if the folder was deleted and another index built there, whose files may have the same names."""
        found = (self.path / segment.files["index"][0]).stat()
        return found.st_ino, found.st_mtime_ns

    def _numbered_file(self, which: str, number: int) -> Path:
        return self.path / f"{which}.{number}.{_FILES[which]}"

    def _name_and_size(self, which: str, number: int) -> tuple[str, int]:
        file = self._numbered_file(which, number)
        return file.name, file.stat().st_size

    def _delete_unnamed(self, segments: Sequence[SegmentFiles]) -> None:
        for unnamed in list(self._unnamed_files(segments)):
            with suppress(PermissionError):  # Windows keeps a file that somebody searches; the next change removes it
                unnamed.unlink(missing_ok=True)

    def _unnamed_files(self, segments: Sequence[SegmentFiles]) -> Iterator[Path]:
        """Index files that `meta.json` does not name: old ones, and those of a killed process."""
        named = {name for segment in segments for name, _ in segment.files.values()}
        for which, extension in _FILES.items():
            yield from (path for path in self.path.glob(f"{which}.*.{extension}") if path.name not in named)
            yield from self.path.glob(f".{which}.*.{extension}.*.tmp")
        yield from self.path.glob(f".{META}.*.tmp")


_COUNTS = ("vectors", "removed", "files")  # at the top of `meta.json` in version 1, of each segment since


class _LaterVersionError(Exception):
    """The index was written by a later suprank."""


def _parse_segments(meta: Mapping[str, Any]) -> list[SegmentFiles]:
    """The segments in `meta.json`; a ValueError, KeyError or TypeError if something is missing or of another type."""
    segments = []
    for counts in meta["segments"] if meta["version"] == VERSION else [meta]:
        vectors, removed, files = (counts[key] for key in _COUNTS)
        required = {"index", "items"}
        if type(vectors) is not int or type(removed) is not int or not required <= set(files) <= set(_FILES):
            raise ValueError
        segments.append(
            SegmentFiles(vectors, removed, {which: (str(name), int(size)) for which, (name, size) in files.items()})
        )
    return segments
