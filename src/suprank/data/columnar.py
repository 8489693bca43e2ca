"""Random access to images whose bytes are in a column of a Parquet or Arrow file, as Hugging Face `datasets` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import SEEK_END, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from suprank.files.binary import open_parquet
from suprank.files.reading import reading
from suprank.files.thrift import read_struct

if TYPE_CHECKING:
    from numpy.typing import NDArray

BYTE_RANGE, ROW_GROUP = 0, 1
"""How the value of a row is read: from a range of bytes of the file, or by decoding the row group it is in."""

_PLAIN, _DATA_PAGE, _DATA_PAGE_V2 = 0, 0, 3  # numbers of the Parquet format
_MAX_HEADER = 1 << 16  # bytes; a page header has statistics of up to 4 kB each
_NO_VALUE = -1
_GROUPS_KEPT = 2  # decoded row groups that a process keeps: reading in order decodes each once


@dataclass(frozen=True)
class ColumnRows:
    """Where the values of a column are: for each row either (offset, bytes) in the file, or (row group, row in it).

    Bytes are −1 for a row without a value. This takes 16 bytes a row, which forked workers share.
    """

    method: int
    positions: NDArray[np.int64]  # [rows, 2]

    def __len__(self) -> int:
        return len(self.positions)


class ColumnMembers:
    """The index of a Parquet or Arrow file: its members are `<column>/<row>` for every column with bytes.

    The bytes of a row of an Arrow file, and of a Parquet file whose column is neither compressed nor dictionary-encoded (as
    `datasets` writes images since version 5), are a range of bytes of the file. In other Parquet files the row group of an
    image has to be decoded to read it.
    """

    def __init__(self, columns: dict[str, ColumnRows]) -> None:
        self.columns = columns

    @classmethod
    def from_file(cls, path: Path) -> ColumnMembers:
        """List the columns with bytes of a .parquet or .arrow file."""
        return cls(_parquet_columns(path) if path.suffix.lower() == ".parquet" else _arrow_columns(path))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> ColumnMembers:
        """The members of `to_arrays`."""
        names, methods = arrays["columns"].tolist(), arrays["methods"].tolist()
        positions = [arrays[f"positions {index}"] for index in range(len(names))]
        if any(array.dtype != np.int64 or array.shape[1:] != (2,) for array in positions):
            raise ValueError("these arrays are not those of columns.")
        rows = [ColumnRows(method, array) for method, array in zip(methods, positions, strict=True)]
        return cls(dict(zip(names, rows, strict=True)))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays to save."""
        positions = {f"positions {index}": rows.positions for index, rows in enumerate(self.columns.values())}
        methods = [rows.method for rows in self.columns.values()]
        return {"columns": np.array(list(self.columns), np.str_), "methods": np.array(methods, np.int64)} | positions

    def __len__(self) -> int:
        return sum(map(len, self.columns.values()))

    def __iter__(self) -> Iterator[str]:
        return (f"{column}/{row}" for column, rows in self.columns.items() for row in range(len(rows)))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.entry(name) is not None

    def entry(self, name: str) -> tuple[int, int, int] | None:
        """(method, offset, bytes) or (method, row group, row in it) of a member; None if there is no such row or value."""
        column, _, row = name.rpartition("/")
        rows = self.columns.get(column)
        if rows is None or not (row.isascii() and row.isdecimal()) or int(row) >= len(rows):
            return None
        first, second = rows.positions[int(row)].tolist()
        return None if second == _NO_VALUE else (rows.method, first, second)

    def contain(self, names: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
        """Whether each of these names is a member, as `entry` tells."""
        parts = pc.extract_regex(names, r"(?s)^(?P<column>.*)/0*(?P<row>[0-9]{1,18})$")
        columns, rows = pc.struct_field(parts, "column"), pc.struct_field(parts, "row").cast(pa.int64())
        found = np.zeros(len(names), np.bool_)
        for column, values in self.columns.items():
            inside = pc.and_(pc.equal(columns, column), pc.less(rows, len(values)))
            chosen = np.flatnonzero(pc.fill_null(inside, False))
            found[chosen] = values.positions[np.asarray(rows.take(pa.array(chosen))), 1] != _NO_VALUE
        return found


def holds_bytes(kind: pa.DataType) -> bool:
    """Whether a column of this type holds bytes, or structures with a field `bytes`, as Hugging Face's Image feature does."""
    if pa.types.is_struct(kind):
        index = kind.get_field_index("bytes")
        kind = kind.field(index).type if index >= 0 else pa.null()
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


# Arrow


def _arrow_columns(path: Path) -> dict[str, ColumnRows]:
    with pa.memory_map(str(path)) as file:
        start = file.read_buffer(file.size()).address
        table = read_arrow(path, file)
        names = [field.name for field in table.schema if holds_bytes(field.type)]
        return {name: _arrow_rows(table[name], start, start + file.size()) for name in names}


def read_arrow(path: Path, file: Any = None) -> pa.Table:
    """The table of an Arrow file, streaming or not, mapped into memory, and checked: a forged offset leads out of the file.

    Other libraries crash of such a file, too, so it is checked before they get it.
    """
    with reading(path, "Arrow file"):
        file = file if file is not None else pa.memory_map(str(path))
        file.seek(0)
        seekable = file.read(6) == b"ARROW1"
        file.seek(0)
        table = (pa.ipc.open_file(file) if seekable else pa.ipc.open_stream(file)).read_all()
        table.validate(full=True)
    return table


def _arrow_rows(column: pa.ChunkedArray, start: int, end: int) -> ColumnRows:
    """The positions of the values, from the addresses of their buffers in the mapped file."""
    positions = [np.zeros((0, 2), np.int64)]
    for chunk in column.chunks:
        values = chunk.field("bytes") if pa.types.is_struct(chunk.type) else chunk
        _, bounds, data = values.buffers()
        width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
        edges = np.frombuffer(bounds, width)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        address = data.address if data is not None and data.size else start  # a chunk of blanks has no data
        if not start <= address <= end:
            raise ValueError("it is compressed, so it has no random access; save it again with `save_to_disk`")
        valid = np.asarray(values.is_valid()) & np.asarray(chunk.is_valid())
        positions.append(np.stack([edges[:-1] + address - start, np.where(valid, np.diff(edges), _NO_VALUE)], axis=1))
    return ColumnRows(BYTE_RANGE, np.concatenate(positions))


# Parquet


def _parquet_columns(path: Path) -> dict[str, ColumnRows]:
    with open_parquet(path) as file:
        names = [field.name for field in file.schema_arrow if holds_bytes(field.type)]
        leaves = {leaf: file.metadata.schema.column(leaf) for leaf in range(file.metadata.num_columns)}
        found = {}
        for name in names:
            leaf = next(leaf for leaf, column in leaves.items() if column.path in (name, f"{name}.bytes"))
            found[name] = _parquet_rows(path, file.metadata, leaf, leaves[leaf].max_definition_level)
        return found


def _parquet_rows(path: Path, metadata: Any, leaf: int, levels: int) -> ColumnRows:
    """The byte ranges of the values if they are stored as they are, or else the row group and row of each."""
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    chunks = [group.column(leaf) for group in groups]
    if all(map(_is_plain, chunks)):
        try:
            with path.open("rb", buffering=0) as file:
                positions = [_value_positions(file, chunk, levels > 0) for chunk in chunks]
            return ColumnRows(BYTE_RANGE, np.concatenate([np.zeros((0, 2), np.int64), *positions]))
        except (IndexError, ValueError):  # a writer that does it otherwise: pyarrow can read it
            pass
    sizes = [group.num_rows for group in groups]
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.arange(len(numbers)) - np.repeat(np.cumsum(sizes, dtype=np.int64) - sizes, sizes)
    return ColumnRows(ROW_GROUP, np.stack([numbers, rows], axis=1).astype(np.int64).reshape(-1, 2))


def _is_plain(chunk: Any) -> bool:
    """Whether the values of a column chunk are stored one after the other as they are, without nulls."""
    known = chunk.is_stats_set and chunk.statistics.has_null_count and chunk.statistics.null_count == 0
    return bool(known and chunk.compression == "UNCOMPRESSED" and not chunk.has_dictionary_page)


class _UnexpectedPageError(ValueError):
    """A page of a Parquet file that is not plain values."""


def _value_positions(file: RawIOBase, chunk: Any, has_levels: bool) -> NDArray[np.int64]:
    """(offset, bytes) of each value of an uncompressed column chunk.

    Only headers and lengths are read, some bytes for each value, as for the members of a tar.
    """
    positions: list[tuple[int, int]] = []
    at = chunk.data_page_offset
    end = min(at + chunk.total_compressed_size, file.seek(0, SEEK_END))
    while len(positions) < chunk.num_values and at < end:
        fields, length = read_struct(_read_at(file, _MAX_HEADER, at), 0)
        begin = at + length
        page_end = begin + fields.get(3, 0)
        values, at = _first_value(file, fields, begin, has_levels)
        if not begin <= at <= page_end <= end:  # it would lead back, or out of the file
            raise _UnexpectedPageError
        for _ in range(values):
            if at >= page_end:
                raise _UnexpectedPageError
            size = int.from_bytes(_read_at(file, 4, at), "little")
            positions.append((at + 4, size))
            at += 4 + size
        if at != page_end:
            raise _UnexpectedPageError
    if len(positions) != chunk.num_values:
        raise _UnexpectedPageError
    return np.array(positions, np.int64).reshape(-1, 2)


def _read_at(file: RawIOBase, size: int, at: int) -> bytes:
    file.seek(at)
    return file.read(size) or b""


def _first_value(file: RawIOBase, fields: dict[int, Any], at: int, has_levels: bool) -> tuple[int, int]:
    """The number of values of a page that begins at `at`, and the offset of the first: definition levels come before it."""
    if fields.get(1) == _DATA_PAGE and fields.get(5, {}).get(2) == _PLAIN:
        skipped = 4 + int.from_bytes(_read_at(file, 4, at), "little") if has_levels else 0
        return fields[5].get(1, 0), at + skipped
    if fields.get(1) == _DATA_PAGE_V2 and fields.get(8, {}).get(4) == _PLAIN:
        return fields[8].get(1, 0), at + fields[8].get(5, 0) + fields[8].get(6, 0)
    raise _UnexpectedPageError


def read_from_row_group(path: Path, column: str, group: int, row: int) -> bytes | None:
    """The bytes in a row of a row group; None if it is null. The last row groups are kept, by this process."""
    return _row_group(str(path), path.stat().st_mtime_ns, column, group)[row].as_py()


@lru_cache(maxsize=_GROUPS_KEPT)
def _row_group(path: str, version: int, column: str, group: int) -> pa.ChunkedArray:
    metadata, leaf = _metadata(path, version, column)
    # A reader for each call: one is not safe for threads, and with the metadata given it costs little.
    with pq.ParquetFile(path, metadata=metadata, memory_map=True) as file:
        values = file.read_row_group(group, columns=[leaf], use_threads=False)[column]  # in several chunks beyond 2 GB
    return pc.struct_field(values, "bytes") if pa.types.is_struct(values.type) else values


@lru_cache(maxsize=64)
def _metadata(path: str, version: int, column: str) -> tuple[Any, str]:
    with open_parquet(Path(path)) as file:
        kind = file.schema_arrow.field(column).type
        return file.metadata, f"{column}.bytes" if pa.types.is_struct(kind) else column
