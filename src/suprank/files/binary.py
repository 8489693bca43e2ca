"""Open .npy, .npz and Parquet files that anybody may have made: what their headers declare is checked before it is read."""

from __future__ import annotations

import zipfile
from contextlib import contextmanager
from io import SEEK_END, BytesIO
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from suprank.files.atomic import atomic_writer, own_file
from suprank.files.reading import reading

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

FREE_BYTES, MOST_TIMES = 2**29, 100
"""A file may declare 512 MiB of content, and 100 times its own size beyond: a bomb of 1 MB would fill gigabytes."""

_BYTE_ARRAY, _FOUR_BYTES, _DICTIONARY_PAGE = 6, (1, 4), 2  # numbers of types in the Parquet format
_WIDTHS = {1: 1, 2: 1, 3: 1, 7: 8}  # bytes of truth values in lists, bytes and floats in Thrift
_PAGE_HEADER = 2**16  # bytes; it holds the smallest and the largest value, of which writers cut long ones


def check_declared(name: str, size: int, declared: int) -> None:
    """Refuse a file of `size` bytes that declares more content than such a file can honestly hold."""
    if not 0 <= declared <= FREE_BYTES + MOST_TIMES * size:
        raise ValueError(
            f"{name} has {size:,} bytes and declares {declared:,}, more than {FREE_BYTES:,} and {MOST_TIMES} times its size; "
            f"if that is right, write it again without compression and dictionaries."
        )


def open_npy(path: Path, name: str | None = None) -> NDArray[Any]:
    """The array of a .npy file, memory-mapped; errors call it `name`, in which the path is."""
    name = name or str(path)
    with reading(name, ".npy file (np.save writes one)"), path.open("rb") as file:
        _check_npy(file, name, path.stat().st_size)
        return np.load(path, mmap_mode="r", allow_pickle=False)


def write_npy(path: Path, array: NDArray[Any]) -> None:
    """Write the .npy file that np.save writes, atomically, and with an error if the disk is full: np.save may tell nothing."""
    rows = np.ascontiguousarray(array)
    with atomic_writer(own_file(path)) as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(rows))
        file.write(rows.reshape(-1).view(np.uint8).data)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz archive."""
    with reading(path, ".npz archive of plain arrays (np.savez writes one)"):
        with zipfile.ZipFile(path) as archive:
            check_declared(str(path), path.stat().st_size, sum(member.file_size for member in archive.infolist()))
            for member in (one for one in archive.infolist() if one.filename.endswith(".npy")):
                with archive.open(member) as file:
                    _check_npy(file, f"{path} ({member.filename})", member.file_size)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}


def _check_npy(file: IO[bytes], name: str, size: int) -> None:
    """Refuse an array that is larger than its file, or of Python objects: reading them would run their code."""
    if (version := np.lib.format.read_magic(file)) not in ((1, 0), (2, 0)):
        raise ValueError(f"it has version {version} of the format")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise TypeError(f"{name} holds Python objects, which could run code when read; save an array of numbers.")
    needed, rest = int(np.prod(shape, dtype=object)) * dtype.itemsize, size - file.tell()
    if rest < needed:
        raise ValueError(
            f"{name}: the file is cut short: shape {shape} takes {needed} bytes, and {rest} are left; copy it again."
        )


@contextmanager
def open_parquet(path: Path, name: str | None = None, *, content: bytes | None = None, **options: Any) -> Iterator[Any]:
    """The `pyarrow.parquet.ParquetFile` with these options; errors, also of the block, call it `name`, in which the path is.

    `content` is that of the file, if it was read already. Text in dictionaries is read as such: see `read_columns`.
    """
    name = name or str(path)
    try:
        import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
        import pyarrow.parquet as pq  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(f'{name}: reading .parquet needs pyarrow; pip install "suprank[vision]"', name="pyarrow") from error
    source = path if content is None else pa.py_buffer(content)
    with reading(name, "Parquet file"):
        with BytesIO(content) if content is not None else path.open("rb") as raw, pq.ParquetFile(source) as file:
            coded = _check_parquet(name, raw, file.metadata)
            metadata, schema = file.metadata, file.schema_arrow
        for twice in (column for column in schema.names if schema.names.count(column) > 1):
            raise ValueError(f"{name} has two columns called {twice!r}; rename one.")
        text = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
        text = [column for column in text if column in coded]
        with pq.ParquetFile(source, metadata=metadata, read_dictionary=text, **options) as file:
            yield file


def _check_parquet(name: str, file: IO[bytes], metadata: Any) -> set[str]:
    """Check the declared sizes, and what pyarrow ends the process for when its metadata of a column are looked at.

    Return the columns with dictionaries.
    """
    size = file.seek(-8, SEEK_END) + 8
    length = int.from_bytes(file.read(4), "little")
    file.seek(size - 8 - length)
    footer, _ = read_struct(file.read(length), 0)
    leaves = [metadata.schema.column(column) for column in range(metadata.num_columns)]
    types = [element[1] for element in footer[2] if 1 in element and not element.get(5)]
    if metadata.num_rows != sum(group[3] for group in footer[4]):
        raise ValueError("its row groups have another number of rows than it says")
    declared, coded = 0 if leaves else 8 * metadata.num_rows, set()
    for group in footer[4]:
        if len(group[1]) != len(leaves):
            raise ValueError(f"a row group has {len(group[1])} columns, and the table {len(leaves)}")
        for chunk, leaf, kind in zip(group[1], leaves, types, strict=True):
            about = chunk[3]
            sizes = about.get(16, {})
            levels = (leaf.max_repetition_level, leaf.max_definition_level)
            counts = [len(sizes.get(field, ())) in (0, most + 1) for field, most in zip((2, 3), levels, strict=True)]
            if about[1] != kind or 8 in chunk or not all(counts) or (1 in sizes and kind != _BYTE_ARRAY):
                raise ValueError(f"what it says of column {leaf.path} is not of its type")
            numbers = [group[3], (4 if kind in _FOUR_BYTES else 8) * about[5], about[6], sizes.get(1, 0)]
            declared += max(numbers) if min(numbers) >= 0 else -(2**200)
            if kind == _BYTE_ARRAY and leaf.path not in coded and _has_dictionary(file, about):
                coded.add(leaf.path)
    check_declared(name, size, declared)
    return coded


def _has_dictionary(file: IO[bytes], chunk: dict[int, Any]) -> bool:
    """Whether one of the pages of a column's chunk is a dictionary, whatever the metadata says; True if they cannot be read."""
    first, dictionary = chunk[9], chunk.get(11, 0)
    at = dictionary if 0 < dictionary < first else first  # some writers say 0 where there is none
    end = at + chunk[7]
    while at < end:
        file.seek(at)
        try:
            header, length = read_struct(file.read(_PAGE_HEADER), 0)
        except (IndexError, ValueError):
            return True
        if header.get(1) in (None, _DICTIONARY_PAGE) or header.get(3, -1) < 0:
            return True
        at += length + header[3]
    return False


def read_columns(file: Any, columns: list[str] | None = None, *, dictionaries: Collection[str] = ()) -> Any:
    """The table of a ParquetFile, checked: text that is not UTF-8 would fail wherever it is used.

    A few bytes can stand for one long text in millions of rows, whatever the file says. So text that the file has in
    dictionaries is read as such, and becomes plain text when its size is known, except in the columns `dictionaries`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

    table = file.read(columns=columns)
    table.validate(full=True)
    plain = file.metadata.schema.to_arrow_schema()
    fields = [table.schema.field(name) if name in dictionaries else plain.field(name) for name in table.column_names]
    chunks = [chunk for field in fields if table[field.name].type != field.type for chunk in table[field.name].chunks]
    lengths = [pc.binary_length(chunk.dictionary).cast(pa.int64()).take(chunk.indices) for chunk in chunks]
    check_declared("its text", table.nbytes, sum(pc.sum(one).as_py() or 0 for one in lengths))
    return table.cast(pa.schema(fields, table.schema.metadata))


def read_struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """The fields of a structure in Thrift's compact protocol, by number, and where it ends; text, bytes and floats are None.

    Parquet files describe themselves in it.

    Raises IndexError or ValueError for bytes that are no structure, or not a whole one.
    """
    fields: dict[int, Any] = {}
    number = 0
    while data[at]:
        step, kind = data[at] >> 4, data[at] & 15
        if not step:
            raise ValueError("a number of a field is not that of the next ones")
        number, at = number + step, at + 1
        fields[number], at = (kind == 1, at) if kind in (1, 2) else _value(data, at, kind)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in _WIDTHS:
        return None, at + _WIDTHS[kind]
    if kind in (4, 5, 6):
        value, at = _varint(data, at)
        return value >> 1 ^ -(value & 1), at
    if kind == 8:
        length, at = _varint(data, at)
        return None, at + length
    if kind == 12:
        return read_struct(data, at)
    if kind != 9:
        raise ValueError(f"there is no kind {kind} of values")
    count, inner = data[at] >> 4, data[at] & 15
    count, at = _varint(data, at + 1) if count == 15 else (count, at + 1)
    values = []
    for _ in range(count):
        value, at = _value(data, at, inner)
        values.append(value)
    return values, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1
