"""Writing the embeddings of millions of images into one `.npy`, shard by shard, so that an interruption costs one shard.

    out/run.json           what is embedded, and how: a run is resumed only if all of it is the same
    out/parts/00012.npy    a finished shard; removed once all are joined
    out/embeddings.npy     the result, which exists only when it is complete
    out/.lock              keeps a second process out while one is embedding; it stays, and means nothing by itself

Under torchrun the shards are distributed among the processes. A shard does not depend on the process that computes it, so a run
may be resumed with another number of processes.
"""

from __future__ import annotations

import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from suprank.files.atomic import atomic_writer, write_atomically
from suprank.files.locking import lock_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from os import PathLike

    from numpy.typing import NDArray

    EmbedRows = Callable[[NDArray[np.int64]], Iterator[NDArray[Any]]]

RESULT, RECORD, SHARDS = "embeddings.npy", "run.json", "parts"
OLDER_RECORDS = {"decoder": "pil", "head": None}  # what records of versions without a choice of decoder and heads do not say


def write_embeddings(
    embed_rows: EmbedRows,
    count: int,
    dim: int,
    out: str | PathLike[str],
    *,
    fingerprint: Mapping[str, Any],
    shard_rows: int = 8192,
    dtype: Literal["float32", "float16"] = "float32",
    rank: int = 0,
    world_size: int = 1,
    barrier: Callable[[], None] = lambda: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write the embeddings of rows 0 to `count` − 1 into `out/embeddings.npy`, `[count, dim]`, and return its path.

    `embed_rows(rows)` is called once in each process with the rows left to it, ascending, and yields their embeddings in that
    order, in arrays of any length; too few or too many rows are an error, so an image that cannot be embedded must raise or get
    a vector. Each `shard_rows` of them are written as a shard. After an interruption the same call computes only the missing
    shards; after the end it returns at once. The result does not depend on where it was interrupted, as long as `embed_rows`
    does not depend on how rows are batched: if the batch size divides `shard_rows`, batches are the same.

    `fingerprint` is whatever makes embeddings comparable (model, manifest, precision, ...), in JSON's types. If `out` has a run
    with another fingerprint, a ValueError says which entries differ; if another process is embedding into it, a BlockingIOError
    says so at once. float16 rounds the finished embeddings, and halves the file.

    Under torchrun, give `rank`, `world_size` and a `barrier`, and the same `out` in each process. `progress(done, total)`
    counts the rows of this process, including those of earlier runs.
    """
    run = _ShardedRun(Path(out), count, dim, shard_rows, np.dtype(dtype))
    run.record(fingerprint)  # refuses what is impossible, before a folder is made
    way_out = "wait for it to end, or choose another folder"
    # The processes of one run share the folder: rank 0 holds the lock for all of them.
    with lock_folder(run.out, "embedding into", way_out) if rank == 0 else nullcontext():
        if rank == 0:
            run.begin(fingerprint)
        barrier()  # the others wait for the record
        if rank != 0:
            run.check_record(fingerprint)
        if not run.finished():
            _embed_missing(run, embed_rows, range(rank, run.shards, world_size), progress)
            barrier()  # the parts of all are written
            if rank == 0:
                run.join()
        barrier()  # the result is there for all
        if rank == 0:
            shutil.rmtree(run.out / SHARDS, ignore_errors=True)
    return run.out / RESULT


@dataclass(frozen=True)
class _ShardedRun:
    """The folder of one run, and the names and sizes of what it holds."""

    out: Path
    count: int
    dim: int
    shard_rows: int
    dtype: np.dtype[Any]

    def __post_init__(self) -> None:
        for name in ("count", "dim", "shard_rows"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}={value} must be 1 or more.")
        if self.dtype not in (np.dtype("float32"), np.dtype("float16")):
            raise ValueError(f"dtype={self.dtype} must be float32 or float16.")

    @property
    def shards(self) -> int:
        return -(-self.count // self.shard_rows)

    def rows(self, shard: int) -> range:
        return range(shard * self.shard_rows, min((shard + 1) * self.shard_rows, self.count))

    def part(self, shard: int) -> Path:
        return self.out / SHARDS / f"{shard:05d}.npy"

    def begin(self, fingerprint: Mapping[str, Any]) -> None:
        """Create the folder and its record, or check that they are of the same run."""
        record = self.record(fingerprint)
        if (self.out / RESULT).exists() and not (self.out / RECORD).exists():
            raise ValueError(f"{self.out / RESULT} exists without a {RECORD} that describes it; choose another folder.")
        (self.out / SHARDS).mkdir(parents=True, exist_ok=True)
        if (self.out / RECORD).exists() and self._has_results():
            self.check_record(fingerprint)
        else:
            write_atomically(self.out / RECORD, (json.dumps(record, indent=2) + "\n").encode())
        for draft in self.out.glob(".*.tmp"):  # of a process that was killed
            draft.unlink()

    def _has_results(self) -> bool:
        """Whether there is work to lose: a run that was refused or stopped before its first shard leaves only a record."""
        return (self.out / RESULT).exists() or any((self.out / SHARDS).glob("*.npy"))

    def check_record(self, fingerprint: Mapping[str, Any]) -> None:
        """Raise a ValueError that names the differences if the folder's record is of another run."""
        try:
            found = dict(json.loads((self.out / RECORD).read_bytes()))
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.out / RECORD} cannot be read ({error}); delete the folder or choose another.") from error
        wanted = self.record(fingerprint)
        if "decoder" in wanted:
            found = OLDER_RECORDS | found
        if "amp" in found and "precision" in wanted:
            raise ValueError(
                f"{self.out} was embedded by an older suprank, whose record does not say how images were loaded. Choose "
                f"another folder, or delete this one to start again; `suprank evaluate` reads it as it is, if it is complete."
            )
        differ = [key for key in {**wanted, **found} if found.get(key) != wanted.get(key)]
        if differ:
            text = "; ".join(f"{key} is {_short(wanted.get(key))} and was {_short(found.get(key))}" for key in differ)
            raise ValueError(
                f"{self.out} has the embeddings of another run: {text}. Choose another folder, or delete it to start again."
            )

    def finished(self) -> bool:
        return _is_complete(self.out / RESULT, (self.count, self.dim), self.dtype)

    def missing(self, shards: range) -> list[int]:
        """The shards that are not complete."""
        return [i for i in shards if not _is_complete(self.part(i), (len(self.rows(i)), self.dim), self.dtype)]

    def join(self) -> None:
        """Concatenate all shards."""
        if missing := self.missing(range(self.shards)):
            raise RuntimeError(
                f"{self.out / SHARDS} lacks {len(missing)} shards, the first {self.part(missing[0]).name}; run again."
            )
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (self.count, self.dim)}
        with atomic_writer(self.out / RESULT) as file:
            np.lib.format.write_array_header_1_0(file, header)
            for shard in range(self.shards):
                file.write(np.load(self.part(shard), allow_pickle=False).tobytes())

    def record(self, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
        """The content of run.json, as JSON gives it back (tuples are lists), to compare it with a file."""
        own = {"count": self.count, "dim": self.dim, "dtype": self.dtype.name, "shard_rows": self.shard_rows}
        if taken := own.keys() & fingerprint.keys():
            raise ValueError(f"fingerprint has the entries {sorted(taken)}, which the run adds itself; rename them.")
        try:
            return dict(json.loads(json.dumps({**own, **fingerprint})))
        except TypeError as error:
            raise TypeError(f"fingerprint must hold text, numbers, lists and dictionaries of them ({error}).") from error


def _short(value: Any) -> str:
    """The first digits of a hash; anything else as it is."""
    digits = isinstance(value, str) and re.fullmatch(r"[0-9a-f]{40,}", value)
    return f"{value[:12]}..." if digits else repr(value)


def _embed_missing(run: _ShardedRun, embed_rows: EmbedRows, shards: range, progress: Callable[[int, int], None]) -> None:
    total, missing = sum(len(run.rows(i)) for i in shards), run.missing(shards)
    done = total - sum(len(run.rows(i)) for i in missing)
    progress(done, total)
    if not missing:
        return
    rows = np.concatenate([np.arange(run.rows(i).start, run.rows(i).stop) for i in missing])
    stream = _Stream(embed_rows(rows), run.dim)
    for shard in missing:
        part = np.empty((len(run.rows(shard)), run.dim), run.dtype)
        filled = 0
        while filled < len(part):
            taken = stream.take(len(part) - filled)
            part[filled : filled + len(taken)] = taken
            filled += len(taken)
            done += len(taken)
            progress(done, total)
        with atomic_writer(run.part(shard)) as file:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(part))
            file.write(part.data.cast("B"))  # np.save does not report a full disk as such
    stream.close()


class _Stream:
    """Takes rows, as many as wanted, from arrays of any length."""

    def __init__(self, arrays: Iterator[NDArray[Any]], dim: int):
        self.arrays, self.dim = iter(arrays), dim
        self.rest: NDArray[Any] = np.empty((0, dim))

    def take(self, at_most: int) -> NDArray[Any]:
        """From 1 to `at_most` rows."""
        while not len(self.rest):
            try:
                self.rest = next(self.arrays)
            except StopIteration:
                raise ValueError(
                    f"embed_rows stopped {at_most} rows or more before the end; it must yield one embedding for each row."
                ) from None
            if self.rest.ndim != 2 or self.rest.shape[1] != self.dim:
                raise ValueError(f"embed_rows yielded an array {list(self.rest.shape)}; give [rows, {self.dim}].")
        taken, self.rest = self.rest[:at_most], self.rest[at_most:]
        return taken

    def close(self) -> None:
        """Check that all rows were taken."""
        if len(self.rest) or any(len(array) for array in self.arrays):
            raise ValueError("embed_rows yielded too many rows; it must yield one embedding for each row.")


def _is_complete(path: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> bool:
    """Whether the file is a complete array of this shape and type, and not truncated."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False
    return array.shape == shape and array.dtype == dtype
