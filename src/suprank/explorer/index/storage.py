"""The files of a local index. `meta.json` names the current files and is replaced last, so there is always a complete set.

    meta.json           dim, kind, counts, recall, ...; and which of the other files belong to it, with their sizes
    index.N.faiss       the vectors
    items.N.parquet     ids, paths, splits and labels, in the order of the vectors

A change writes files with the next number N, then `meta.json`, then deletes the old files. A process killed meanwhile leaves
the old set intact, and files that `meta.json` does not name, which the next change deletes. Readers keep the files they opened.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from suprank.data.columns import decode_dictionaries
from suprank.explorer.index.protocol import IndexItem
from suprank.files.atomic import atomic_writer, write_atomically
from suprank.files.locking import lock_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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
    columns: dict[str, Any] = {ID: pa.array(ids), PATH: empty, SPLIT: empty, REMOVED: pa.array(np.zeros(len(ids), bool))}
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


def append_rows(one: pa.Table, other: pa.Table) -> pa.Table:
    """The rows of both tables; a level that one of them lacks is null there."""
    return pa.concat_tables([decode_dictionaries(one), decode_dictionaries(other)], promote_options="default").combine_chunks()


def levels_in(names: Sequence[str]) -> tuple[str, ...]:
    """The levels among these column names."""
    return tuple(name.removeprefix(LABEL) for name in names if name.startswith(LABEL))


def matching_rows(table: pa.Table, where: Where | None) -> NDArray[np.bool_]:
    """Mask of the rows that are not removed and match the filter."""
    mask = ~np.asarray(table[REMOVED].to_numpy(), bool)
    for key, names in (where or {}).items():
        column = table[SPLIT if key == SPLIT else LABEL + key].combine_chunks()
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


META, VERSION = "meta.json", 1
_FILES = {"index": "faiss", "items": "parquet"}
_TYPES: dict[str, type] = {
    "version": int,
    "number": int,
    "dim": int,
    "kind": str,
    "vectors": int,
    "removed": int,
    "next_id": int,
    "files": dict,
}


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
        return self.path.is_dir() and any(self._unnamed_files({}))

    def read_meta(self) -> dict[str, Any]:
        """Read and check `meta.json`; raise if the folder has no index, or if its files are missing or have other sizes."""
        if not self.exists:
            way_out = "its build was interrupted; build it again" if self.has_leftovers else "`suprank index build` makes one"
            raise FileNotFoundError(f"{self.path} holds no index (it has no {META}); {way_out}.")
        try:
            meta = json.loads((self.path / META).read_bytes())
            valid = all(type(meta[key]) is kind for key, kind in _TYPES.items()) and set(meta["files"]) == set(_FILES)
        except (ValueError, KeyError, TypeError):
            valid, meta = False, {}
        if not valid:
            raise ValueError(f"{self.path / META} is damaged; build the index again.")
        if meta["version"] != VERSION:
            raise ValueError(
                f"{self.path} is an index of version {meta['version']}, but this suprank reads {VERSION}; update suprank."
            )
        for name, size in meta["files"].values():
            file = self.path / name
            actual = file.stat().st_size if file.is_file() else None
            if actual != size:
                problem = "is missing" if actual is None else f"has {actual:,} bytes instead of {size:,}"
                raise ValueError(f"{self.path} is damaged: {name} {problem}; copy the index again, or build it again.")
        return dict(meta)

    def last_number(self) -> int:
        """The largest N of the existing files, 0 without any; also works for a damaged index that is to be replaced."""
        matches = (re.fullmatch(r"(?:index|items)\.(\d+)\.(?:faiss|parquet)", path.name) for path in self.path.glob("*.*.*"))
        return max((int(match[1]) for match in matches if match is not None), default=0)

    def file(self, meta: Mapping[str, Any], which: str) -> Path:
        """The file of vectors (`index`) or of items (`items`) that `meta` names."""
        return self.path / str(meta["files"][which][0])

    def write(
        self,
        meta: Mapping[str, Any],
        *,
        index: Callable[[IO[bytes]], None] | None = None,
        items: pa.Table | None = None,
    ) -> dict[str, Any]:
        """Write new files and return the new meta. None keeps the present file; `index` is a function that writes to a file."""
        self.path.mkdir(parents=True, exist_ok=True)
        number = int(meta.get("number", 0)) + 1
        files: dict[str, Any] = dict(meta.get("files", {}))
        if index is not None:
            with atomic_writer(self._numbered_file("index", number)) as file:
                index(file)
            files["index"] = self._name_and_size("index", number)
        if items is not None:
            with atomic_writer(self._numbered_file("items", number)) as file:
                pq.write_table(items, file, compression="zstd", row_group_size=2**17)
            files["items"] = self._name_and_size("items", number)
        written = {**meta, "version": VERSION, "number": number, "files": files}
        write_atomically(self.path / META, json.dumps(written, indent=2, ensure_ascii=False).encode())
        for unnamed in list(self._unnamed_files(files)):
            with suppress(PermissionError):  # Windows keeps a file that somebody searches; the next write removes it
                unnamed.unlink(missing_ok=True)
        return written

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing at the same time: for them, an OSError. The lock ends with the process."""
        with lock_folder(self.path, "writing to", "wait for it to end"):
            yield

    def open_items(self, meta: Mapping[str, Any]) -> pq.ParquetFile:
        """Open the table of items, to be read in part or whole; labels are dictionary-encoded, which saves memory."""
        file = self.file(meta, "items")
        try:
            names = pq.read_schema(file).names
            labels = [name for name in names if name == SPLIT or name.startswith(LABEL)]
            items_file = pq.ParquetFile(file, read_dictionary=labels)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{file} is damaged ({error}); build the index again.") from error
        if items_file.metadata.num_rows != meta["vectors"] or not {ID, PATH, SPLIT, REMOVED} <= set(names):
            raise ValueError(f"{file} does not hold the {meta['vectors']:,} items of the index; build the index again.")
        return items_file

    def _numbered_file(self, which: str, number: int) -> Path:
        return self.path / f"{which}.{number}.{_FILES[which]}"

    def _name_and_size(self, which: str, number: int) -> list[Any]:
        file = self._numbered_file(which, number)
        return [file.name, file.stat().st_size]

    def _unnamed_files(self, files: Mapping[str, Any]) -> Iterator[Path]:
        """Index files that `meta.json` does not name: old ones, and those of a killed process."""
        named = {name for name, _ in files.values()}
        for which, extension in _FILES.items():
            yield from (path for path in self.path.glob(f"{which}.*.{extension}") if path.name not in named)
            yield from self.path.glob(f".{which}.*.{extension}.*.tmp")
        yield from self.path.glob(f".{META}.*.tmp")
