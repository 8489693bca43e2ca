"""The files of a local index, of which there is always one whole set: `meta.json` names it, and is replaced last.

    meta.json           dim, kind, counts, recall, ...; and which of the other files belong to it, with their sizes
    index.N.faiss       the vectors
    items.N.parquet     ids, paths, splits and labels, in the order of the vectors

A change writes files under the next number N, then `meta.json`, then deletes the old ones. Who is killed on the way leaves the
old set whole, and files without a name in `meta.json`, which the next change deletes. Who reads keeps the files it has open.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from suprank.explorer.index.table import ID, LABEL, PATH, REMOVED, SPLIT
from suprank.files.atomic import write_atomically, writing_atomically
from suprank.system.platforms import file_locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

META, LOCK, VERSION = "meta.json", ".lock", 1
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


class Folder:
    """Where a local index lies."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def is_there(self) -> bool:
        return (self.path / META).is_file()

    def meta(self) -> dict[str, Any]:
        """What `meta.json` says; refused where the folder is none of ours, or its files are not those it speaks of."""
        if not self.is_there:
            begun = self.path.is_dir() and any(self._stray({}))
            why = "the build was interrupted; build it again" if begun else "`suprank index build` makes one"
            raise FileNotFoundError(f"{self.path} holds no index ({META} is not there): {why}.")
        try:
            meta = json.loads((self.path / META).read_bytes())
            whole = all(type(meta[key]) is kind for key, kind in _TYPES.items()) and set(meta["files"]) == set(_FILES)
        except (ValueError, KeyError, TypeError):
            whole, meta = False, {}
        if not whole:
            raise ValueError(f"{self.path / META} is damaged; build the index again.")
        if meta["version"] != VERSION:
            raise ValueError(
                f"{self.path} is an index of version {meta['version']}, and this suprank reads {VERSION}; update it."
            )
        for name, size in meta["files"].values():
            file = self.path / name
            found = file.stat().st_size if file.is_file() else None
            if found != size:
                has = "is not there" if found is None else f"has {found:,} bytes"
                raise ValueError(f"{self.path} is damaged: {name} {has} instead of {size:,}; copy it again, or build it again.")
        return dict(meta)

    def last_number(self) -> int:
        """The largest N of the files that are there, 0 without any: also of an index that is damaged, and to be replaced."""
        found = (re.fullmatch(r"(?:index|items)\.(\d+)\.(?:faiss|parquet)", path.name) for path in self.path.glob("*.*.*"))
        return max((int(one[1]) for one in found if one is not None), default=0)

    def file(self, meta: Mapping[str, Any], which: str) -> Path:
        """The file `index` or `items` that belongs to a `meta`."""
        return self.path / str(meta["files"][which][0])

    def write(
        self,
        meta: Mapping[str, Any],
        *,
        index: Callable[[IO[bytes]], None] | None = None,
        items: pa.Table | None = None,
    ) -> dict[str, Any]:
        """Make these the files of the folder, and the meta that is now there. What is None stays; `index` writes to a file."""
        self.path.mkdir(parents=True, exist_ok=True)
        number = int(meta.get("number", 0)) + 1
        files: dict[str, Any] = dict(meta.get("files", {}))
        if index is not None:
            with writing_atomically(self._named("index", number)) as file:
                index(file)
            files["index"] = self._size("index", number)
        if items is not None:
            with writing_atomically(self._named("items", number)) as file:
                pq.write_table(items, file, compression="zstd", row_group_size=2**17)
            files["items"] = self._size("items", number)
        written = {**meta, "version": VERSION, "number": number, "files": files}
        write_atomically(self.path / META, json.dumps(written, indent=2, ensure_ascii=False).encode())
        for stray in list(self._stray(files)):
            stray.unlink(missing_ok=True)
        return written

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Refuses a second process that would write at the same time. The lock ends with the process, however that ends."""
        fcntl = file_locks(self.path)
        if fcntl is None:
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OSError(f"{self.path} is being written to by another process; wait for it to end.") from None
            yield

    def open_items(self, meta: Mapping[str, Any]) -> pq.ParquetFile:
        """The table of rows, to be read in part or whole; labels as numbers into a dictionary, a fraction of the memory."""
        file = self.file(meta, "items")
        try:
            names = pq.read_schema(file).names
            labels = [name for name in names if name == SPLIT or name.startswith(LABEL)]
            opened = pq.ParquetFile(file, read_dictionary=labels)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{file} is damaged ({error}); build the index again.") from error
        if opened.metadata.num_rows != meta["vectors"] or not {ID, PATH, SPLIT, REMOVED} <= set(names):
            raise ValueError(f"{file} does not hold the {meta['vectors']:,} rows of the index; build it again.")
        return opened

    def _named(self, which: str, number: int) -> Path:
        return self.path / f"{which}.{number}.{_FILES[which]}"

    def _size(self, which: str, number: int) -> list[Any]:
        file = self._named(which, number)
        return [file.name, file.stat().st_size]

    def _stray(self, files: Mapping[str, Any]) -> Iterator[Path]:
        """Files of ours that belong to no `meta`: old ones, and those of a process that was killed."""
        named = {name for name, _ in files.values()}
        for which, extension in _FILES.items():
            yield from (path for path in self.path.glob(f"{which}.*.{extension}") if path.name not in named)
            yield from self.path.glob(f".{which}.*.{extension}.*.tmp")
        yield from self.path.glob(f".{META}.*.tmp")
