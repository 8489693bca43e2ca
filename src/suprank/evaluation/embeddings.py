"""One view on embeddings wherever they are: in memory, on a GPU, or in a file larger than memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
import torch

from suprank.files.plain_pickle import why_unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

Source: TypeAlias = "Embeddings | Tensor | NDArray[Any] | str | os.PathLike[str]"
"""What `Embeddings.of` takes."""

BLOCK_BYTES = 4 * 2**20  # read at once: large enough for a disk, small beside any memory budget
_NAMED = 5  # rows that an error names before it only counts
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
_KINDS = "a float tensor, a float numpy array, or the path of a .npy, .parquet or .pt file"


class Embeddings:
    """Embeddings `[n, dim]` that are read a few rows at a time, as float32 whatever they are stored in.

    Build it with `of`, which takes a torch tensor (it stays on a CPU or CUDA device), a numpy array or `np.memmap`, or a path:

    - `.npy`: memory-mapped, never loaded whole;
    - `.pt`: one tensor, saved by `torch.save`; memory-mapped, and no code of the file is run;
    - `.parquet`: the column `embedding`, or the only column of float lists, or else all columns if all are floats. Parquet
      has no random access, so it is copied, one record batch at a time, to a file without a name in the folder TMPDIR says
      (float16 stays float16, the rest becomes float32). The system removes it with the object or the process, however
      that ends. Where /tmp is kept in memory, point TMPDIR to a disk.

    Example:
        >>> source = Embeddings.of(np.eye(3, dtype=np.float16))
        >>> len(source), source.dim
        (3, 3)
        >>> source.rows(torch.tensor([2, 0]))
        tensor([[0., 0., 1.],
                [1., 0., 0.]])
    """

    def __init__(self, stored: Tensor | NDArray[Any], name: str, *, on_disk: bool = False, path: Path | None = None) -> None:
        self.name = name
        self.path = path
        self.dim = int(stored.shape[1])
        self.device = stored.device if isinstance(stored, torch.Tensor) else torch.device("cpu")
        self._count = int(stored.shape[0])
        self.on_disk = on_disk
        self._stored: Tensor | NDArray[Any] | None = stored

    @classmethod
    def of(
        cls,
        source: Source,
        name: str = "embeddings",
        *,
        column: str | None = None,
    ) -> Embeddings:
        """The checked view; errors call it `name`. `column` picks a column of a Parquet file with several."""
        if isinstance(source, Embeddings):
            return source
        stored: Tensor | NDArray[Any]
        if isinstance(source, str | os.PathLike):
            path = Path(source)
            name = f"{name} ({path})"
            stored = _opened(path, name, column)
            _check(stored, name)
            return cls(stored, name, on_disk=True, path=path)
        if not isinstance(source, np.ndarray | torch.Tensor):
            raise TypeError(f"{name} is {type(source)}, but must be {_KINDS}.")
        stored = source.detach() if isinstance(source, torch.Tensor) else source
        _check(stored, name)
        if isinstance(stored, torch.Tensor):
            # Apple's GPUs (mps) have no float64, in which norms and metrics are summed.
            return cls(stored if stored.device.type in ("cpu", "cuda") else stored.cpu(), name)
        on_disk = _is_mapped(stored)
        return cls(stored if on_disk else _shared(stored), name, on_disk=on_disk)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"Embeddings({self.name}: {self._count} × {self.dim})"

    def __enter__(self) -> Embeddings:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the memory or the temporary file. Nothing can be read afterwards."""
        self._stored = None

    def rows(self, index: slice | Tensor) -> Float[Tensor, "rows dim"]:
        """The rows of a slice or of a 1-D integer tensor (any order, repeats welcome), in float32, where the source lives.

        Rows of a tensor may share its memory: do not write to them. Scattered rows of a file are read in file order.
        """
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if step == 1:
                return self._read(slice(start, max(start, stop)))
            index = torch.arange(*(start, stop, step) if (stop - start) * step > 0 else (0, 0, 1))
        index = self._checked_index(index)
        if not self.on_disk:
            return self._read(index)
        order = index.argsort()
        found = torch.empty(len(index), self.dim)
        for some in order.split(self._block):
            found[some] = self._read(index[some])
        return found

    def part(self, rows: slice, columns: Tensor) -> Float[Tensor, "rows columns"]:
        """Some columns of some rows on the CPU, in float32; of embeddings in memory, the others are not read."""
        if self.on_disk or not isinstance(self._stored, torch.Tensor):
            return self._read(rows)[:, columns]
        return self._stored[rows][:, columns.to(self.device)].float().cpu()

    def is_same(self, other: Embeddings) -> bool:
        """Whether both are views of one tensor, array or file, row by row."""
        if self is other:
            return True
        if self.path is not None and other.path is not None:
            return self.path.resolve() == other.path.resolve()
        mine, theirs = self._stored, other._stored
        if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
            return mine.data_ptr() == theirs.data_ptr() and mine.stride() == theirs.stride() and mine.dtype == theirs.dtype
        if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray):
            return mine.ctypes.data == theirs.ctypes.data and mine.strides == theirs.strides and mine.dtype == theirs.dtype
        return False

    def norms(self, *, zero_allowed: bool = False) -> Float[Tensor, " rows"]:
        """The L2 norm of every row, summed in float64, in one pass that holds a few MB.

        Rows with NaN, infinity or a length beyond float32 are refused, and so are rows of zeros unless allowed, or of a length
        that float32 holds with few digits: a cosine needs a direction.
        """
        norms = torch.empty(self._count, device=self.device)
        for start in range(0, self._count, self._block):
            stop = min(start + self._block, self._count)
            norms[start:stop] = torch.linalg.vector_norm(self._read(slice(start, stop)), dim=-1, dtype=torch.float64)
        endless = ~norms.isfinite()
        if endless.any():
            raise ValueError(
                f"{self.name}: {_which(endless)} NaN, infinity or numbers too large for float32, but ranks need finite scores; "
                f"look for an overflow in half precision upstream, or remove the rows, and their labels."
            )
        too_short = norms < torch.finfo(norms.dtype).tiny
        if not zero_allowed and too_short.any():
            zeros = "" if not norms[too_short].any() else ", or numbers too small for float32 (below 1.2e-38)"
            raise ValueError(
                f"{self.name}: {_which(too_short)} nothing but zeros{zeros}, and a vector without a direction has no cosine; "
                f"remove the rows, and their labels: keep = np.linalg.norm(embeddings, axis=1) > {1.2e-38 if zeros else 0}."
            )
        return norms

    @property
    def _block(self) -> int:
        return max(1, BLOCK_BYTES // (4 * self.dim))

    def _read(self, which: slice | Tensor) -> Tensor:
        if self._stored is None:
            raise ValueError(f"{self.name} was closed; read before close(), or open it again.")
        if isinstance(self._stored, torch.Tensor):
            return self._stored[which].float()
        with np.errstate(all="ignore"):  # a float64 beyond float32 becomes infinity, which `norms` reports
            chosen = which if isinstance(which, slice) else which.numpy()
            return torch.from_numpy(np.array(self._stored[chosen], dtype=np.float32, order="C"))

    def _checked_index(self, index: Tensor) -> Tensor:
        if not isinstance(index, torch.Tensor) or index.ndim != 1 or index.dtype not in _INTEGERS:
            found = f"{index.dtype} of shape {tuple(index.shape)}" if isinstance(index, torch.Tensor) else type(index)
            raise TypeError(f"index is {found}, but must be a slice or a 1-D integer tensor of row numbers.")
        index = index.to(self.device, torch.int64)
        # On a GPU the device checks bounds itself; reading the extremes here would make every call wait for it.
        if not index.is_cuda and len(index) and not 0 <= int(index.min()) <= int(index.max()) < self._count:
            wrong = index[(index < 0) | (index >= self._count)][0].item()
            raise IndexError(f"index holds {wrong}, but {self.name} has rows 0 to {self._count - 1}.")
        return index


def _which(bad: Tensor) -> str:
    """How many rows and the first of them, up to the verb: `2 of 9 rows (4, 7) hold`."""
    first = [str(row) for row in bad.nonzero()[:_NAMED, 0].tolist()]
    count = int(bad.sum())
    return f"{count} of {len(bad)} rows ({', '.join(first)}{', ...' if count > len(first) else ''}) hold"


def _check(stored: Tensor | NDArray[Any], name: str) -> None:
    if isinstance(stored, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, but every entry of an embedding counts; fill it in with .filled(value).")
    if isinstance(stored, torch.Tensor):
        if stored.layout != torch.strided:
            raise ValueError(f"{name} is a {stored.layout} tensor, but must be dense; use .to_dense().")
        real = stored.dtype.is_floating_point
    else:
        real = stored.dtype.kind == "f"
    if not real:
        raise TypeError(
            f"{name} holds {stored.dtype}, but embeddings are floating-point numbers (float16, float32 or float64); "
            f"convert them, or look whether another file was meant (labels are integers)."
        )
    shape = tuple(stored.shape)
    if len(shape) != 2:
        raise ValueError(f"{name} has shape {shape}, but must be 2-D, [rows, dim]: one embedding a row.")
    if shape[0] == 0:
        raise ValueError(f"{name} is empty, shape {shape}: with no queries or an empty gallery there is nothing to rank.")
    if shape[1] == 0:
        raise ValueError(f"{name} has shape {shape}: embeddings of 0 dimensions cannot be compared; give at least one.")


def _is_mapped(array: NDArray[Any]) -> bool:
    """Whether the array is a view, however indirect, of a memory-mapped file."""
    base: object = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return False


def _shared(array: NDArray[Any]) -> Tensor | NDArray[Any]:
    """The tensor that shares the array's memory; the array itself where torch has none (read-only, reversed, swapped bytes)."""
    fits = array.flags.writeable and array.dtype.isnative and array.dtype.itemsize <= 8 and min(array.strides) >= 0
    return torch.from_numpy(array) if fits else array


def _opened(path: Path, name: str, column: str | None) -> Tensor | NDArray[Any]:
    extension = path.suffix.lower()
    if extension not in (".npy", ".pt", ".parquet"):
        raise ValueError(
            f"{name}: {path.suffix or 'no extension'!r} cannot be read; save the embeddings as .npy, .parquet or .pt."
        )
    check_file(path, name)
    if extension == ".parquet":
        return _parquet(path, name, column)
    return npy(path, name) if extension == ".npy" else _pt(path, name)


def check_file(path: Path, name: str) -> None:
    """Raise unless `path` is a file."""
    if not path.exists():
        raise FileNotFoundError(f"{name}: there is no such file; check the path (the working folder is {Path.cwd()}).")
    if not path.is_file():
        raise IsADirectoryError(f"{name}: this is a folder, or no file; name a file.")


def npy(path: Path, name: str) -> NDArray[Any]:
    """The array of a .npy file, memory-mapped. Arrays of Python objects are refused: reading them would run their code."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, _, dtype = header[version](file)
            size = path.stat().st_size - file.tell()
    except (ValueError, KeyError) as error:
        raise ValueError(f"{name}: this is no .npy file of numbers ({error}); write it with np.save.") from error
    if dtype.hasobject:
        raise TypeError(f"{name} holds Python objects, which could run code when read; save an array of numbers.")
    needed = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if size < needed:
        raise ValueError(
            f"{name}: the file is cut short: shape {shape} takes {needed} bytes, and {size} are there; copy it again."
        )
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _pt(path: Path, name: str) -> Tensor:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle fails in any way it likes
        reason = why_unread(error)
        raise ValueError(f"{name}: torch cannot read it ({reason}); save one tensor with torch.save(tensor, path).") from error
    if not isinstance(loaded, torch.Tensor):
        raise TypeError(f"{name} holds a {type(loaded).__name__}, but must hold one tensor; torch.save(the tensor, path).")
    return loaded.detach()


def open_parquet(path: Path, name: str) -> Any:
    """The `pyarrow.parquet.ParquetFile`, to be closed. Column chunks are read through a small buffer, not whole."""
    try:
        import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(f'{name}: reading .parquet needs pyarrow; pip install "suprank[cli]"', name="pyarrow") from error
    try:
        file = pyarrow.parquet.ParquetFile(path, buffer_size=2**20)
    except ValueError as error:  # ArrowInvalid among them
        raise ValueError(f"{name}: this is no complete Parquet file ({error}); write or copy it again.") from error
    columns = file.schema_arrow.names
    for twice in (column for column in columns if columns.count(column) > 1):
        file.close()
        raise ValueError(f"{name} has two columns called {twice!r}; rename one.")
    return file


def _parquet(path: Path, name: str, column: str | None) -> NDArray[Any]:
    """The rows of a Parquet file as a memory map of a temporary file, which no name leads to."""
    with open_parquet(path, name) as file:
        columns = _embedding_columns(file.schema_arrow, name, column)
        count = file.metadata.num_rows
        if count == 0:
            return np.empty((0, 1), np.float32)  # refused in `_check`, in the words for all sources
        matrices = _matrices(file, columns, name)
        first = next(matrices)
        shape, needed = (count, first.shape[1]), count * first.shape[1] * first.dtype.itemsize
        if not needed:
            return np.empty(shape, np.float32)
        folder = tempfile.gettempdir()
        room = (
            f"{name} takes {needed / 2**30:.2f} GiB as a memory-mapped copy, which does not fit in {folder} "
            f"({{}}); make room, or point TMPDIR to a larger disk."
        )
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise OSError(room.format(f"{free / 2**30:.2f} GiB free"))
        with tempfile.TemporaryFile(dir=folder) as copy:
            try:
                _write(copy, first)
                for matrix in matrices:
                    _write(copy, matrix)
                copy.flush()
            except OSError as error:  # written rather than mapped, because a full disk kills who writes to a map
                raise OSError(room.format(error.strerror or error)) from error
            return np.memmap(copy, first.dtype, "r", shape=shape)


def _write(copy: BinaryIO, matrix: NDArray[Any]) -> None:
    copy.write(np.ascontiguousarray(matrix).data.cast("B"))


def _embedding_columns(schema: Any, name: str, column: str | None) -> list[str]:
    """The column of float lists that was meant; else all columns, if they are floats."""
    import pyarrow.types as kinds  # type: ignore[import-untyped, unused-ignore]

    def is_vector(kind: Any) -> bool:
        listed = kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)
        return bool(listed and kinds.is_floating(kind.value_type))

    fields = [field for field in schema if field.name != "__index_level_0__"]  # what pandas adds
    found = ", ".join(f"{field.name} ({field.type})" for field in fields[:20]) or "no columns"
    vectors = [field.name for field in fields if is_vector(field.type)]
    if column is not None:
        if column in vectors or any(field.name == column and kinds.is_floating(field.type) for field in fields):
            return [column]
        raise ValueError(f"{name}: {column!r} is no column of float lists; there are {found}.")
    if "embedding" in vectors or len(vectors) == 1:
        return ["embedding"] if "embedding" in vectors else vectors
    if vectors:
        raise ValueError(f"{name}: {', '.join(vectors)} are all float lists; call the one that is meant `embedding`.")
    if fields and all(kinds.is_floating(field.type) for field in fields):
        return [field.name for field in fields]
    raise ValueError(
        f"{name} has {found}, but must have a column of float lists, best called `embedding`, or nothing but float columns, "
        f"one a dimension."
    )


def _matrices(file: Any, columns: list[str], name: str) -> Iterator[NDArray[Any]]:
    """Blocks of rows, as float16 if all is float16 and float32 otherwise; each of one record batch."""
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

    metadata = file.metadata
    inside = tuple(f"{column}." for column in columns)  # a list's numbers are the leaf `embedding.list.element`
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    chosen = [index for index, path in enumerate(paths) if path in columns or path.startswith(inside)]
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    values = sum(group.column(index).num_values for group in groups for index in chosen)
    rows = max(1, BLOCK_BYTES // (4 * max(1, values // metadata.num_rows)))
    kinds = [file.schema_arrow.field(column).type for column in columns]
    half = all((kind if pa.types.is_floating(kind) else kind.value_type) == pa.float16() for kind in kinds)
    start, dim = 0, None
    try:
        for batch in file.iter_batches(batch_size=rows, columns=columns):
            if not len(batch):  # of a row group without rows
                continue
            matrix = _matrix(batch, columns, dim, start, name)
            with np.errstate(all="ignore"):
                yield matrix.astype(np.float16 if half else np.float32, copy=False)
            start, dim = start + len(matrix), matrix.shape[1]
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{name}: the file cannot be read to its end ({error}); write or copy it again.") from error


def _matrix(batch: Any, columns: list[str], dim: int | None, start: int, name: str) -> NDArray[Any]:
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
            f"but all embeddings need one dimension."
        )
    values = array.flatten()
    if values.null_count:
        row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]) // dim
        raise ValueError(f"{name}, column {columns[0]}: row {start + row} has a null among its numbers; {_NO_NULLS}")
    return values.to_numpy(zero_copy_only=False).reshape(len(array), dim)


_NO_NULLS = "fill it in, or remove the row, and its label."


def _check_no_null(array: Any, start: int, name: str) -> None:
    if array.null_count:
        row = start + int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueError(f"{name}: row {row} is null; {_NO_NULLS}")
