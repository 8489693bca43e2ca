"""Random access to images in the rows of an Arrow file, as Hugging Face `datasets` keeps them: a range of bytes for each."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_STORED

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.data.columns import is_list
from suprank.data.members import Entry
from suprank.files.reading import reading

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NO_VALUE = -1
_MAGIC = b"ARROW1"  # of a file with a footer; after 8 bytes it is a stream like the others


class ColumnMembers:
    """The index of an Arrow file: its members are `<column>/<row>` for every column with images or vectors.

    `columns` has (offset, bytes) in the file for each row, bytes −1 for a row without a value. This takes 16 bytes a row, which
    forked workers share. They read rows without `datasets`.
    """

    def __init__(self, columns: dict[str, NDArray[np.int64]]) -> None:
        self.columns = columns

    @classmethod
    def from_file(cls, path: Path) -> ColumnMembers:
        """List the columns with images or vectors of an .arrow file."""
        with pa.memory_map(str(path)) as file:
            start = file.read_buffer(file.size()).address
            table = read_arrow(path, file)
            names = [field.name for field in table.schema if holds_bytes(field.type) or is_vector(field.type)]
            return cls({name: _positions(table[name], start, start + file.size()) for name in names})

    def __len__(self) -> int:
        return sum(map(len, self.columns.values()))

    def __iter__(self) -> Iterator[str]:
        return (f"{column}/{row}" for column, rows in self.columns.items() for row in range(len(rows)))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.entry(name) is not None

    def entry(self, name: str) -> Entry | None:
        """Where a member is; None if there is no such row, or no value in it."""
        column, _, row = name.rpartition("/")
        rows = self.columns.get(column)
        if rows is None or not (row.isascii() and row.isdecimal()) or int(row) >= len(rows):
            return None
        offset, size = rows[int(row)].tolist()
        return None if size == _NO_VALUE else (offset, size, size, -1, ZIP_STORED)

    def contain(self, names: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
        """Whether each of these names is a member, as `entry` tells."""
        parts = pc.extract_regex(names, r"(?s)^(?P<column>.*)/0*(?P<row>[0-9]{1,18})$")
        columns, rows = pc.struct_field(parts, "column"), pc.struct_field(parts, "row").cast(pa.int64())
        found = np.zeros(len(names), np.bool_)
        for column, positions in self.columns.items():
            inside = pc.and_(pc.equal(columns, column), pc.less(rows, len(positions)))
            chosen = np.flatnonzero(pc.fill_null(inside, False))
            found[chosen] = positions[np.asarray(rows.take(pa.array(chosen))), 1] != _NO_VALUE
        return found


def holds_bytes(kind: pa.DataType) -> bool:
    """Whether a column of this type holds bytes, or structures with a field `bytes`, as Hugging Face's Image feature does."""
    if pa.types.is_struct(kind):
        index = kind.get_field_index("bytes")
        kind = kind.field(index).type if index >= 0 else pa.null()
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_vector(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of floats, such as embeddings."""
    return bool(is_list(kind) and pa.types.is_floating(kind.value_type))


def read_arrow(path: Path, file: Any = None) -> pa.Table:
    """The table of an Arrow file, mapped into memory, and checked: anybody may have made it.

    Refused are offsets that lead out of the file, which crash other libraries, and compressed batches, which have no random
    access and may expand to any size.
    """
    with reading(path, "Arrow file"):
        file = file if file is not None else pa.memory_map(str(path))
        file.seek(0)
        start = 8 if file.read(len(_MAGIC)) == _MAGIC else 0
        file.seek(start)
        if any(message.type != "schema" and _is_compressed(message) for message in pa.ipc.MessageReader.open_stream(file)):
            raise ValueError("it is compressed, so it has no random access; save it again with `save_to_disk`")
        file.seek(start)
        table = pa.ipc.open_stream(file).read_all()
        table.validate(full=True)
        if len(set(table.column_names)) < table.num_columns:
            raise ValueError("it has two columns of one name; rename one")
    return table


def _is_compressed(message: Any) -> bool:
    """Whether a batch has the field `compression`, which pyarrow does not tell before it has decompressed everything."""
    data = message.metadata.to_pybytes()

    def follow(table: int, number: int) -> int | None:
        """Where the table is that a field of a table refers to, by the rules of FlatBuffers; None without this field."""
        fields = table - struct.unpack_from("<i", data, table)[0]
        (length,) = struct.unpack_from("<H", data, fields)
        (at,) = struct.unpack_from("<H", data, fields + 4 + 2 * number) if 4 + 2 * number < length else (0,)
        return table + at + struct.unpack_from("<I", data, table + at)[0] if at else None

    try:
        batch = follow(struct.unpack_from("<I", data)[0], 2)  # Message.header
        if batch is not None and message.type == "dictionary":
            batch = follow(batch, 1)  # DictionaryBatch.data
        return batch is not None and follow(batch, 3) is not None  # RecordBatch.compression
    except struct.error as error:
        raise ValueError(f"the header of a batch is damaged ({error})") from error


def _positions(column: pa.ChunkedArray, start: int, end: int) -> NDArray[np.int64]:
    """(offset, bytes) of the values, from the addresses of their buffers in the mapped file."""
    positions = [np.zeros((0, 2), np.int64)]
    for chunk in filter(len, column.chunks):
        values = chunk.field("bytes") if pa.types.is_struct(chunk.type) else chunk
        edges, data, width = _layout(values)
        address = data.address if data is not None and data.size else start  # a chunk of blanks has no data
        if not start <= address <= end:
            raise ValueError("its values are not stored as they are; save it again with `save_to_disk`")
        valid = np.asarray(values.is_valid()) & np.asarray(chunk.is_valid())
        sizes = np.where(valid, np.diff(edges) * width, _NO_VALUE)
        positions.append(np.stack([edges[:-1] * width + address - start, sizes], axis=1))
    return np.concatenate(positions)


def _layout(values: pa.Array) -> tuple[NDArray[np.int64], pa.Buffer | None, int]:
    """Where the elements of each value begin and end, the buffer that they are in, and the bytes of an element."""
    if pa.types.is_fixed_size_list(values.type):
        edges = (np.arange(len(values) + 1) + values.offset) * values.type.list_size
        return edges + values.values.offset, values.buffers()[-1], values.type.value_type.bit_width // 8
    wide = pa.types.is_large_binary(values.type) or pa.types.is_large_list(values.type)
    offsets = np.frombuffer(values.buffers()[1], np.int64 if wide else np.int32)[values.offset :][: len(values) + 1]
    edges = offsets.astype(np.int64)
    if is_list(values.type):
        return edges + values.values.offset, values.buffers()[-1], values.type.value_type.bit_width // 8
    return edges, values.buffers()[2], 1
