"""`Embeddings`: rows that are read as float32 from memory, a GPU, or a file larger than memory."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from suprank.evaluation.embedding_files import BLOCK_BYTES, ParquetRows, find_shards, open_embeddings, open_shards
from suprank.files.sharded_array import Shards

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Sequence

    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

EmbeddingSource: TypeAlias = (
    "Embeddings | Tensor | NDArray[Any] | Shards | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
)
"""What `Embeddings.from_source` takes."""

_NAMED = 5  # rows that an error names before it only counts
_GPU_BLOCKS = 16  # blocks whose norms a GPU computes at once
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
_KINDS = "a float tensor, a float numpy array, the path of a .npy, .parquet or .pt file, or a list of such paths"


class Embeddings:
    """Embeddings `[n, dim]` that are read a few rows at a time, as float32 whatever they are stored in.

    Build it with `from_source`, which takes a torch tensor (it stays on its CPU or CUDA device), a numpy array or
    `np.memmap`, or a path:

    - `.npy`: memory-mapped, never loaded as a whole;
    - `.pt`: one tensor, saved by `torch.save`; memory-mapped, and no code in the file is run;
    - `.parquet`: the column `embedding`, or the only column of float lists, or else all columns if all are floats (float16
      stays float16, the rest becomes float32). Parquet has no random access, so it is copied, one record batch at a time, to
      an unnamed temporary file in the folder TMPDIR. The system removes it with the object or the process, however that
      ends. If /tmp is in memory, point TMPDIR to a disk. With `sequential` there is no copy: it is read from the file each
      time, which is as fast in the order of the rows and slow in any other.

    A list of paths, or a pattern such as `shards/*.npy`, is one collection in several files, whose rows follow each other.

    Example:
        >>> source = Embeddings.from_source(np.eye(3, dtype=np.float16))
        >>> len(source), source.dim
        (3, 3)
        >>> source.rows(torch.tensor([2, 0]))
        tensor([[0., 0., 1.],
                [1., 0., 0.]])
    """

    def __init__(
        self,
        stored: Tensor | NDArray[Any] | Shards | ParquetRows,
        name: str,
        *,
        on_disk: bool = False,
        paths: Sequence[Path] = (),
    ) -> None:
        self.name = name
        self.paths = paths
        self.dim = int(stored.shape[1])
        self.device = stored.device if isinstance(stored, torch.Tensor) else torch.device("cpu")
        self._count = int(stored.shape[0])
        self.on_disk = on_disk
        self._stored: Tensor | NDArray[Any] | Shards | ParquetRows | None = stored

    @classmethod
    def from_source(
        cls, source: EmbeddingSource, name: str = "embeddings", *, column: str | None = None, sequential: bool = False
    ) -> Embeddings:
        """Open and check embeddings; errors call them `name`. `column` picks a column of a Parquet file with several.

        `sequential` says that rows will be read in their order, as those of a gallery are, so that Parquet is not copied.
        """
        if isinstance(source, Embeddings):
            return source
        stored: Tensor | NDArray[Any] | Shards | ParquetRows
        if isinstance(source, str | os.PathLike | list | tuple) and (paths := find_shards(source)) is not None:
            stored = open_shards(paths, name, column, sequential=sequential)
            name = f"{name} ({len(paths)} files, {paths[0]} to {paths[-1].name})"
            _check(stored, name)
            return cls(stored, name, on_disk=True, paths=paths)
        if isinstance(source, Shards):
            _check(source, name)
            return cls(source, name, on_disk=True, paths=source.paths)
        if isinstance(source, str | os.PathLike):
            path = Path(source)
            name = f"{name} ({path})"
            stored = open_embeddings(path, name, column, sequential=sequential)
            _check(stored, name)
            return cls(stored, name, on_disk=True, paths=[path])
        if not isinstance(source, np.ndarray | torch.Tensor):
            raise TypeError(f"{name} is {type(source)}, but must be {_KINDS}.")
        stored = source.detach() if isinstance(source, torch.Tensor) else source
        _check(stored, name)
        if isinstance(stored, torch.Tensor):
            # Apple's GPUs (mps) have no float64, in which norms and metrics are summed.
            return cls(stored if stored.device.type in ("cpu", "cuda") else stored.cpu(), name)
        if not _is_memory_mapped(stored):
            return cls(_as_tensor(stored), name)
        file: Any = getattr(stored, "filename", None) if isinstance(stored.base, mmap.mmap) else None  # not of a part of it
        return cls(stored, name, on_disk=True, paths=[] if file is None else [Path(file)])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, which: int | slice | NDArray[np.int64] | Sequence[int]) -> NDArray[np.float32]:
        """Rows as a numpy array in float32: one by its number, or several by a slice or their numbers."""
        index = which if isinstance(which, slice) else torch.from_numpy(np.atleast_1d(np.asarray(which, np.int64)))
        rows: NDArray[np.float32] = self.rows(index).cpu().numpy()
        return rows[0] if isinstance(which, int) else rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return self._count, self.dim

    def __repr__(self) -> str:
        return f"Embeddings({self.name}: {self._count} × {self.dim})"

    def __enter__(self) -> Embeddings:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the memory or the temporary file. Nothing can be read afterwards."""
        self._stored = None

    def rows(self, index: slice | Tensor, device: torch.device | None = None) -> Float[Tensor, "rows dim"]:
        """The rows of a slice or of a 1-D integer tensor (any order, repeats allowed), in float32.

        They are on `device`, by default that of the source. Rows of a tensor may share its memory: do not write to them.
        Scattered rows of a file are read in file order.
        """
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if step == 1:
                return self._read(slice(start, max(start, stop)), device)
            index = torch.arange(*(start, stop, step) if (stop - start) * step > 0 else (0, 0, 1))
        index = self._check_index(index)
        if not self.on_disk:
            return self._read(index, device)
        order = index.argsort()
        rows = torch.empty(len(index), self.dim, device=device)
        for some in order.split(self._block):
            rows[some if device is None else some.to(device)] = self._read(index[some], device)
        return rows

    def read_into(self, index: slice | Tensor, out: Float[Tensor, "rows dim"]) -> None:
        """Write the rows of a slice or of row numbers, all of which must exist, to `out`, in float32.

        Rows of a float32 tensor on the CPU are copied by the calling thread alone, and without a copy in between.
        """
        stored = self._stored
        if not isinstance(stored, torch.Tensor) or stored.is_cuda or stored.dtype != torch.float32 or out.is_cuda:
            out.copy_(self.rows(index, out.device))
        elif isinstance(index, slice):
            np.copyto(out.numpy(), stored[index].numpy())
        else:
            np.take(stored.numpy(), index.numpy(), axis=0, out=out.numpy(), mode="clip")

    def part(self, rows: slice, columns: Tensor) -> Float[Tensor, "rows columns"]:
        """Some columns of some rows, in float32 on the CPU; of embeddings in memory, the other columns are not read."""
        if self.on_disk or not isinstance(self._stored, torch.Tensor):
            return self._read(rows)[:, columns]
        return self._stored[rows][:, columns.to(self.device)].float().cpu()

    def is_same(self, other: Embeddings) -> bool:
        """Whether both are views of one tensor, array or file, row by row."""
        if self is other:
            return True
        if self.paths and other.paths:
            return [path.resolve() for path in self.paths] == [path.resolve() for path in other.paths]
        mine, theirs = self._stored, other._stored
        if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
            return mine.data_ptr() == theirs.data_ptr() and mine.stride() == theirs.stride() and mine.dtype == theirs.dtype
        if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray):
            return mine.ctypes.data == theirs.ctypes.data and mine.strides == theirs.strides and mine.dtype == theirs.dtype
        return mine is theirs and mine is not None

    def norms(
        self, *, zero_allowed: bool = False, device: torch.device | None = None, digest: hashlib._Hash | None = None
    ) -> Float[Tensor, " rows"]:
        """The L2 norm of every row, summed in float64, in one pass that holds a few MB; on `device`, or else the source's.

        Rows with NaN, infinity or a length beyond float32 are refused. So are, unless allowed, rows of zeros, and rows so short
        that float32 has few digits for them: a cosine needs a direction. A `digest` is updated with the embeddings: equal
        float32 values, on any device and in any file, give equal digests.
        """
        norms = torch.empty(self._count, device=device or self.device)
        odd = np.random.default_rng(0).integers(2**31, size=self.dim, dtype=np.int32) | 1
        weights = torch.from_numpy(odd).to(norms.device)
        block = self._block if norms.device.type == "cpu" else _GPU_BLOCKS * self._block
        for start in range(0, self._count, block):
            part = slice(start, min(start + block, self._count))
            values = self._read(part, device)
            norms[part] = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64)
            if digest is not None:  # Σ bits · weight, in integers: the same however it is added up
                digest.update((values.contiguous().view(torch.int32) * weights).sum(1).cpu().numpy().data)
            del values  # before the next block is read
        not_finite = ~norms.isfinite()
        if not_finite.any():
            raise ValueError(
                f"{self.name}: {_name_rows(not_finite)} NaN, infinity or numbers too large for float32, but scores must be "
                f"finite; look for an overflow in half precision upstream, or remove the rows and their labels."
            )
        too_short = norms < torch.finfo(norms.dtype).tiny
        if not zero_allowed and too_short.any():
            zeros = "" if not norms[too_short].any() else ", or numbers too small for float32 (below 1.2e-38)"
            raise ValueError(
                f"{self.name}: {_name_rows(too_short)} nothing but zeros{zeros}, and these have no cosine; "
                f"remove the rows and their labels: keep = np.linalg.norm(embeddings, axis=1) > {1.2e-38 if zeros else 0}."
            )
        return norms

    @property
    def nbytes(self) -> int:
        """The size of all embeddings as they are stored; of a Parquet file, when decoded."""
        if self._stored is None:
            return 0
        return self._count * self.dim * self._stored.dtype.itemsize

    @property
    def _block(self) -> int:
        return max(1, BLOCK_BYTES // (4 * self.dim))

    def _read(self, which: slice | Tensor, device: torch.device | None = None) -> Tensor:
        if self._stored is None:
            raise ValueError(f"{self.name} is closed; read before close(), or open it again.")
        if isinstance(self._stored, torch.Tensor):
            return self._stored[which].to(device).float()
        chosen = self._stored[which if isinstance(which, slice) else which.numpy()]
        # float16 travels to a GPU as it is, and torch converts it ten times as fast as numpy.
        half = chosen.dtype == np.float16 and chosen.dtype.isnative
        with np.errstate(all="ignore"):  # a float64 beyond float32 becomes infinity, which `norms` reports
            copied = np.array(chosen, dtype=np.float16 if half else np.float32, order="C")
        return torch.from_numpy(copied).to(device).float()

    def _check_index(self, index: Tensor) -> Tensor:
        if not isinstance(index, torch.Tensor) or index.ndim != 1 or index.dtype not in _INTEGERS:
            given = f"{index.dtype} of shape {tuple(index.shape)}" if isinstance(index, torch.Tensor) else type(index)
            raise TypeError(f"index is {given}, but must be a slice or a 1-D integer tensor of row numbers.")
        index = index.to(self.device, torch.int64)
        # On a GPU the device checks bounds itself; reading the extremes here would make every call wait for it.
        if not index.is_cuda and len(index) and not 0 <= int(index.min()) <= int(index.max()) < self._count:
            wrong = index[(index < 0) | (index >= self._count)][0].item()
            raise IndexError(f"index holds {wrong}, but {self.name} has rows 0 to {self._count - 1}.")
        return index


def _name_rows(bad: Tensor) -> str:
    """The beginning of an error message: `2 of 9 rows (4, 7) hold`."""
    first = [str(row) for row in bad.nonzero()[:_NAMED, 0].tolist()]
    count = int(bad.sum())
    return f"{count} of {len(bad)} rows ({', '.join(first)}{', ...' if count > len(first) else ''}) hold"


def _check(stored: Tensor | NDArray[Any] | Shards | ParquetRows, name: str) -> None:
    # Whoever has a masked array has imported this, and nobody else need wait for it.
    if "numpy.ma" in sys.modules and isinstance(stored, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, but embeddings have no missing entries; fill them in with .filled(value).")
    if isinstance(stored, torch.Tensor):
        if stored.layout != torch.strided:
            raise ValueError(f"{name} is a {stored.layout} tensor, but must be dense; use .to_dense().")
        real = stored.dtype.is_floating_point
    else:
        real = stored.dtype.kind == "f"
    if not real:
        raise TypeError(
            f"{name} holds {stored.dtype}, but embeddings are floating-point numbers (float16, float32 or float64); "
            f"convert them, or check whether this is the right file (labels are integers)."
        )
    shape = tuple(stored.shape)
    if len(shape) != 2:
        raise ValueError(f"{name} has shape {shape}, but must be 2-D, [rows, dim]: one embedding per row.")
    if shape[0] == 0:
        raise ValueError(f"{name} is empty, shape {shape}: with no queries or an empty gallery there is nothing to rank.")
    if shape[1] == 0:
        raise ValueError(f"{name} has shape {shape}: embeddings of 0 dimensions cannot be compared; give at least one.")


def _is_memory_mapped(array: NDArray[Any]) -> bool:
    """Whether the array is a view, however indirect, of a memory-mapped file."""
    base: object = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return False


def _as_tensor(array: NDArray[Any]) -> Tensor | NDArray[Any]:
    """A tensor that shares the array's memory; the array itself if torch cannot (read-only, reversed, swapped bytes)."""
    fits = array.flags.writeable and array.dtype.isnative and array.dtype.itemsize <= 8 and min(array.strides) >= 0
    return torch.from_numpy(array) if fits else array
