"""Files of embeddings: `.npy` and `.pt` are memory-mapped; `.parquet` is read in order, or copied to a temporary file that is.

Several files, the shards of one collection, are read as one matrix.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
import threading
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch

from suprank.files.binary import open_npy, open_parquet
from suprank.files.plain_pickle import explain_load_error
from suprank.files.sharded_array import NpyFile, Shards

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

BLOCK_BYTES = 4 * 2**20  # read at once: large enough for a disk, small beside any memory budget
_BUFFER = 2**20  # through which a column chunk is read
_NO_NULLS = "fill it in, or remove the row and its label."


def open_embeddings(
    path: Path, name: str, column: str | None, *, sequential: bool = False
) -> Tensor | NDArray[Any] | ParquetRows:
    """The matrix in a .npy, .pt or .parquet file, memory-mapped; errors call it `name`.

    `sequential`: rows will be read in their order, so that a Parquet file needs no copy.
    """
    extension = path.suffix.lower()
    if extension not in (".npy", ".pt", ".parquet"):
        raise ValueError(
            f"{name}: {path.suffix or 'no extension'!r} cannot be read; save the embeddings as .npy, .parquet or .pt. The "
            f"images of a manifest are embedded by `suprank embed`."
        )
    check_file(path, name)
    if extension == ".parquet":
        return ParquetRows(path, name, column) if sequential else _copy_parquet(path, name, column)
    return open_npy(path, name) if extension == ".npy" else _open_pt(path, name)


class ParquetRows:
    """The rows of a Parquet file, read from it each time, like an array: by slices and by row numbers.

    Slices that follow each other are read in one go, a few MB at a time; each thread has its own place in the file. Any other
    access decodes the row groups that it needs from their beginnings.
    """

    ndim = 2

    def __init__(self, path: Path, name: str, column: str | None) -> None:
        self._path, self._name, self._place = path, name, threading.local()
        with open_parquet(path, name, buffer_size=_BUFFER) as file:
            self._columns = _embedding_columns(file.metadata.schema.to_arrow_schema(), name, column)
            metadata = file.metadata
            self._ends = np.cumsum([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)])
            first = next(_read_matrices(file, self._columns, name), np.empty((0, 1), np.float32))
        self.shape, self.dtype = (int(metadata.num_rows), int(first.shape[1])), first.dtype

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, which: slice | NDArray[np.int64]) -> NDArray[Any]:
        if isinstance(which, slice):
            start, stop, _ = which.indices(len(self))
            return self._between(start, max(start, stop))
        rows = np.empty((len(which), self.shape[1]), self.dtype)
        group = np.searchsorted(self._ends, which, side="right")
        for number in np.unique(group).tolist():
            here = np.flatnonzero(group == number)
            first, last = int(which[here].min()), int(which[here].max())
            for begin in range(first, last + 1, step := max(1, BLOCK_BYTES // (4 * self.shape[1]))):
                some = here[(which[here] >= begin) & (which[here] < begin + step)]
                if len(some):
                    rows[some] = self._between(begin, min(begin + step, last + 1))[which[some] - begin]
        return rows

    def _between(self, start: int, stop: int) -> NDArray[Any]:
        """Rows `start` to `stop`; the reader of this thread goes on where it stopped, if it is not beyond them."""
        rows = np.empty((stop - start, self.shape[1]), self.dtype)
        filled = 0
        at, rest, matrices = getattr(self._place, "reader", (-1, rows[:0], iter(())))  # `rest` begins with row `at`
        group = int(np.searchsorted(self._ends, start, side="right"))
        begin = int(self._ends[group - 1]) if group else 0
        if not begin <= at <= start and stop > start:
            at, rest, matrices = begin, rows[:0], self._matrices(group)
        while filled < len(rows):
            if not len(rest):
                rest = next(matrices, rest)
                if not len(rest):
                    raise ValueError(f"{self._name} ends before row {start + filled}, of {len(self)}; write or copy it again.")
            skipped = min(start + filled - at, len(rest))
            taken = rest[skipped : skipped + len(rows) - filled]
            rows[filled : filled + len(taken)] = taken
            filled, at, rest = filled + len(taken), at + skipped + len(taken), rest[skipped + len(taken) :]
        self._place.reader = (at, rest, matrices)
        return rows

    def _matrices(self, group: int) -> Iterator[NDArray[Any]]:
        with open_parquet(self._path, self._name, buffer_size=_BUFFER) as file:
            if file.metadata.num_rows != len(self):
                raise ValueError(f"{self._name} has {file.metadata.num_rows} rows, and had {len(self)}; do not change it now.")
            yield from _read_matrices(file, self._columns, self._name, group, self.shape[1])


def find_shards(source: object) -> list[Path] | None:
    """The files of a list of paths, or of a pattern such as `shards/*.npy`, sorted by name; None if it is neither."""
    if isinstance(source, list | tuple) and source and all(isinstance(one, str | os.PathLike) for one in source):
        return [Path(one) for one in source]
    if isinstance(source, str | os.PathLike) and glob.has_magic(os.fspath(source)) and not Path(source).exists():
        pattern = Path(source)
        found = sorted(Path(pattern.anchor or ".").glob(str(pattern.relative_to(pattern.anchor))))
        if not found:
            raise FileNotFoundError(
                f"no file matches {os.fspath(source)!r}; check the pattern (the working folder is {Path.cwd()})."
            )
        for one, other in pairwise(found):
            if _by_number(other) < _by_number(one):
                raise ValueError(
                    f"the files of {os.fspath(source)!r} have no clear order: by name {one.name} comes before {other.name}, by "
                    f"number after it, and a row must have its own label; write numbers with leading zeros, or list the files."
                )
        return found
    return None


def _by_number(path: Path) -> list[tuple[int, str]]:
    """What to sort names by so that part-2 comes before part-10."""
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", str(path))]


def open_shards(paths: Sequence[Path], name: str, column: str | None, *, sequential: bool = False) -> Shards:
    """All files as one matrix; they must have the same width. `sequential`: see `open_embeddings`."""
    parts: list[Any] = []  # arrays, `NpyFile` and `ParquetRows`
    for path in paths:
        about = f"{name} ({path})"
        part = open_embeddings(path, about, column, sequential=sequential)
        if isinstance(part, torch.Tensor):
            if part.dtype == torch.bfloat16:
                raise TypeError(f"{about} holds bfloat16, which numpy does not know; save shards as float16 or float32.")
            part = part.numpy()
        if part.ndim != 2 or (parts and part.shape[1] != parts[0].shape[1]):
            wanted = f"[rows, {parts[0].shape[1]}], as {paths[0].name} has" if parts else "[rows, dim]"
            raise ValueError(f"{about} has shape {part.shape}, but must be {wanted}; all shards come from one model.")
        # Thousands of mapped files are more than a process may have open.
        parts.append(NpyFile(path, part.shape, part.dtype) if path.suffix.lower() == ".npy" else part)
    return Shards(parts)


def check_file(path: Path, name: str) -> None:
    """Raise unless `path` is a file."""
    if not path.exists():
        raise FileNotFoundError(f"{name}: there is no such file; check the path (the working folder is {Path.cwd()}).")
    if not path.is_file():
        raise IsADirectoryError(f"{name}: this is not a file; give the path of a file.")


def _open_pt(path: Path, name: str) -> Tensor:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        reason = explain_load_error(error)
        raise ValueError(f"{name}: torch cannot read it ({reason}); save one tensor with torch.save(tensor, path).") from error
    if not isinstance(loaded, torch.Tensor):
        raise TypeError(
            f"{name} holds a {type(loaded).__name__}, but must hold one tensor; write it with torch.save(tensor, path)."
        )
    return loaded.detach()


def _copy_parquet(path: Path, name: str, column: str | None) -> NDArray[Any]:
    """The rows of a Parquet file, copied to an unnamed temporary file, which is memory-mapped."""
    with open_parquet(path, name, buffer_size=_BUFFER) as file:
        columns = _embedding_columns(file.metadata.schema.to_arrow_schema(), name, column)
        count = file.metadata.num_rows
        if count == 0:
            return np.empty((0, 1), np.float32)  # `Embeddings` refuses it, as it does other empty sources
        matrices = _read_matrices(file, columns, name)
        first = next(matrices)
        return map_matrices(chain([first], matrices), (count, first.shape[1]), first.dtype, name)


def map_matrices(matrices: Iterable[NDArray[Any]], shape: tuple[int, int], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Rows that come in blocks, written to an unnamed temporary file, which is memory-mapped; errors call them `name`."""
    needed = shape[0] * shape[1] * dtype.itemsize
    if not needed:
        return np.empty(shape, np.float32)
    folder = tempfile.gettempdir()
    no_space = (
        f"{name} takes {needed / 2**30:.2f} GiB as a memory-mapped copy, which does not fit in {folder} "
        f"({{}}); free some space, or point TMPDIR to a larger disk."
    )
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(no_space.format(f"{free / 2**30:.2f} GiB free"))
    with tempfile.TemporaryFile(dir=folder) as copy:
        try:
            for matrix in matrices:
                _write(copy, matrix)
            copy.flush()
        except OSError as error:  # written, not mapped: on a full disk, writing to a map kills the process
            raise OSError(no_space.format(error.strerror or error)) from error
        return np.memmap(copy, dtype, "r", shape=shape)


def _write(copy: BinaryIO, matrix: NDArray[Any]) -> None:
    copy.write(np.ascontiguousarray(matrix).data.cast("B"))


def table_embeddings(table: Any, name: str) -> NDArray[Any]:
    """The embeddings in a column of an Arrow table, which is chosen as that of a Parquet file is."""
    columns = _embedding_columns(table.schema, name, None)
    blocks: list[NDArray[Any]] = []
    for batch in table.select(columns).to_batches():
        blocks.append(_batch_matrix(batch, columns, blocks[0].shape[1] if blocks else None, sum(map(len, blocks)), name))
    return np.concatenate(blocks)


def _embedding_columns(schema: Any, name: str, column: str | None) -> list[str]:
    """The column of float lists, or else all columns, if they are all floats."""
    import pyarrow.types as kinds  # type: ignore[import-untyped, unused-ignore]

    def is_vector(kind: Any) -> bool:
        listed = kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)
        return bool(listed and kinds.is_floating(kind.value_type))

    fields = [field for field in schema if field.name != "__index_level_0__"]  # what pandas adds
    present = ", ".join(f"{field.name} ({field.type})" for field in fields[:20]) or "no columns"
    vectors = [field.name for field in fields if is_vector(field.type) and field.name != "box"]  # of a manifest
    if column is not None:
        if column in vectors or any(field.name == column and kinds.is_floating(field.type) for field in fields):
            return [column]
        raise ValueError(f"{name}: {column!r} is not a column of float lists; there are {present}.")
    if "embedding" in vectors or len(vectors) == 1:
        return ["embedding"] if "embedding" in vectors else vectors
    if vectors:
        raise ValueError(f"{name}: {', '.join(vectors)} are all float lists; rename the right one to `embedding`.")
    if fields and all(kinds.is_floating(field.type) for field in fields):
        return [field.name for field in fields]
    raise ValueError(
        f"{name} has {present}, but must have a column of float lists, best called `embedding`, or only float columns, "
        f"one per dimension. The images of a manifest are embedded by `suprank embed`."
    )


def _read_matrices(
    file: Any, columns: list[str], name: str, first_group: int = 0, dim: int | None = None
) -> Iterator[NDArray[Any]]:
    """Blocks of rows, one per record batch, as float16 if all columns are float16 and as float32 otherwise.

    They begin with a row group; `dim` is their dimension, if it is known.
    """
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

    metadata = file.metadata
    inside = tuple(f"{column}." for column in columns)  # a list's numbers are the leaf `embedding.list.element`
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    chosen = [index for index, path in enumerate(paths) if path in columns or path.startswith(inside)]
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    values = sum(group.column(index).num_values for group in groups for index in chosen)
    rows = max(1, BLOCK_BYTES // (4 * max(1, values // max(1, metadata.num_rows))))
    kinds = [file.schema_arrow.field(column).type for column in columns]
    half = all((kind if pa.types.is_floating(kind) else kind.value_type) == pa.float16() for kind in kinds)
    start = sum(group.num_rows for group in groups[:first_group])
    for batch in file.iter_batches(rows, row_groups=range(first_group, len(groups)), columns=columns):
        if not len(batch):  # a row group without rows
            continue
        matrix = _batch_matrix(batch, columns, dim, start, name)
        start, dim = start + len(matrix), matrix.shape[1]
        # Not around the `yield`: it would hold for the caller, and two that are left in the wrong order can crash numpy.
        with np.errstate(all="ignore"):
            matrix = matrix.astype(np.float16 if half else np.float32, copy=False)
        yield matrix


def _batch_matrix(batch: Any, columns: list[str], dim: int | None, start: int, name: str) -> NDArray[Any]:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

    arrays = [batch.column(column) for column in columns]
    for column, array in zip(columns, arrays, strict=True):
        _check_no_null(array, start, f"{name}, column {column}")
    if pa.types.is_floating(arrays[0].type):
        return np.stack([array.to_numpy(zero_copy_only=False) for array in arrays], axis=1)
    (array,) = arrays
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    dim = int(lengths[0]) if dim is None else dim
    for row in np.flatnonzero(lengths != dim)[:1].tolist():
        raise ValueError(
            f"{name}, column {columns[0]}: row {start + row} has {lengths[row]} numbers and the rows before have {dim}, "
            f"but all embeddings need the same dimension."
        )
    values = array.flatten()
    if values.null_count:
        row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]) // dim
        raise ValueError(f"{name}, column {columns[0]}: row {start + row} has a null among its numbers; {_NO_NULLS}")
    return values.to_numpy(zero_copy_only=False).reshape(len(array), dim)


def _check_no_null(array: Any, start: int, name: str) -> None:
    if array.null_count:
        row = start + int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueError(f"{name}: row {row} is null; {_NO_NULLS}")
