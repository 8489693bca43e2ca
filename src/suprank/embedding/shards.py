"""Writing the embeddings of millions of images into one `.npy`, shard by shard, so that an interruption costs one shard.

    out/run.json           what is embedded, and how: a run is resumed only if all of it is the same
    out/parts/00012.npy    a finished shard; removed once all are joined
    out/embeddings.npy     the result, which exists only when it is complete
    out/.lock              keeps a second process out while one is embedding; it stays, and means nothing by itself

Under torchrun the shards are distributed among the processes. A shard does not depend on the process that computes it, so a run
may be resumed with another number of processes. Machines without a connection share a run by `shared_shards`.
"""

from __future__ import annotations

import io
import json
import shutil
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from suprank.embedding.claims import CLAIMS
from suprank.files.atomic import atomic_writer, own_file, write_atomically
from suprank.files.binary import open_npy
from suprank.files.locking import lock_folder
from suprank.files.records import differences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from os import PathLike

    from numpy.typing import NDArray

    EmbedRows = Callable[[Iterator[NDArray[np.int64]]], Iterator[NDArray[Any]]]

RESULT, RECORD, SHARDS, BROKEN, ITEMS = "embeddings.npy", "run.json", "parts", "broken", "items.parquet"
OLDER_RECORDS = {"decoder": "pil", "head": None, "fingerprint": None}  # what records of older versions do not say


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

    `embed_rows(shards)` is called once in each process with the rows left to it, an array for each shard, ascending, and yields
    their embeddings in that order, in arrays of any length; too few or too many rows are an error, so an image that cannot be
    embedded must raise or get a vector. After an interruption the same call computes only the missing shards; after the end it
    returns at once. If the batches of `embed_rows` end with the shards, the result does not depend on where it was interrupted.

    `fingerprint` is whatever makes embeddings comparable (model, manifest, precision, ...), in JSON's types. If `out` has a run
    with another fingerprint, a ValueError says which entries differ; if another process is embedding into it, a BlockingIOError
    says so at once. float16 rounds the finished embeddings, and halves the file.

    Under torchrun, give `rank`, `world_size` and a `barrier`, and the same `out` in each process. `progress(done, total)`
    counts the rows of this process, including those of earlier runs.
    """
    run = _ShardedRun(Path(out), ShardLayout(count, dim, shard_rows, np.dtype(dtype)))
    run.layout.record(fingerprint)  # refuses what is impossible, before a folder is made
    way_out = "wait for it to end, or choose another folder"
    # The processes of one run share the folder: rank 0 holds the lock for all of them.
    with lock_folder(run.out, "embedding into", way_out) if rank == 0 else nullcontext():
        if rank == 0:
            run.begin(fingerprint)
        barrier()  # the others wait for the record
        if rank != 0:
            run.check_record(fingerprint)
        if not run.finished():
            _embed_missing(run, embed_rows, range(rank, run.layout.shards, world_size), progress)
            barrier()  # the parts of all are written
            if rank == 0:
                run.join()
        barrier()  # the result is there for all
        if rank == 0:
            for leftover in (SHARDS, BROKEN, CLAIMS):
                shutil.rmtree(run.out / leftover, ignore_errors=True)
    return run.out / RESULT


@dataclass(frozen=True)
class ShardLayout:
    """The rows of each shard, the names of the files, and the record of a run."""

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

    def file_name(self, shard: int) -> str:
        return f"{shard:05d}.npy"

    def file_bytes(self, shard: int) -> int:
        """The size of the file of a shard that is complete."""
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": self.shape(shard)}
        sink = io.BytesIO()
        np.lib.format.write_array_header_1_0(sink, header)
        return sink.tell() + len(self.rows(shard)) * self.dim * self.dtype.itemsize

    def shape(self, shard: int) -> tuple[int, int]:
        return len(self.rows(shard)), self.dim

    def complete(self, sizes: Mapping[str, int]) -> NDArray[np.bool_]:
        """Which shards are there as a whole, by the sizes of the files."""
        found = np.zeros(self.shards, bool)
        full, last = self.file_bytes(0), self.file_bytes(self.shards - 1)
        for shard in range(self.shards):
            found[shard] = sizes.get(self.file_name(shard)) == (last if shard == self.shards - 1 else full)
        return found

    def record(self, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
        """The content of run.json, as JSON gives it back (tuples are lists), to compare it with a file."""
        own = {"count": self.count, "dim": self.dim, "dtype": self.dtype.name, "shard_rows": self.shard_rows}
        if taken := own.keys() & fingerprint.keys():
            raise ValueError(f"fingerprint has the entries {sorted(taken)}, which the run adds itself; rename them.")
        try:
            return dict(json.loads(json.dumps({**own, **fingerprint})))
        except TypeError as error:
            raise TypeError(f"fingerprint must hold text, numbers, lists and dictionaries of them ({error}).") from error

    def check_record(self, content: bytes, fingerprint: Mapping[str, Any], folder: str) -> None:
        """Raise a ValueError that names the differences if the record of the folder is of another run."""
        try:
            found = dict(json.loads(content))
        except ValueError as error:
            raise ValueError(f"{folder}/{RECORD} cannot be read ({error}); delete the folder or choose another.") from error
        wanted = self.record(fingerprint)
        if "decoder" in wanted:
            found = OLDER_RECORDS | found | {"fingerprint": wanted.get("fingerprint")}  # another one has another "model" too
        if "amp" in found and "precision" in wanted:
            raise ValueError(
                f"{folder} was embedded by an older suprank, whose record does not say how images were loaded. Choose "
                f"another folder, or delete this one to start again; `suprank evaluate` reads it as it is, if it is complete."
            )
        if text := differences(wanted, found):
            raise ValueError(
                f"{folder} has the embeddings of another run: {text}. Choose another folder, or delete it to start again."
            )


@dataclass(frozen=True)
class _ShardedRun:
    """The folder of one run, and the names and sizes of what it holds."""

    out: Path
    layout: ShardLayout

    def part(self, shard: int) -> Path:
        return self.out / SHARDS / self.layout.file_name(shard)

    def begin(self, fingerprint: Mapping[str, Any]) -> None:
        """Create the folder and its record, or check that they are of the same run."""
        record = self.layout.record(fingerprint)
        for file in (*self.out.iterdir(), *(self.out / SHARDS).glob("*")):
            own_file(file)
        if any((self.out / CLAIMS).glob("*.json")):
            raise BlockingIOError(
                f"other machines are embedding into {self.out}: it has claims in {self.out / CLAIMS}. Add --shared to take "
                f"part, or wait for them; if none is running any more, delete that folder."
            )
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
            content = (self.out / RECORD).read_bytes()
        except OSError as error:
            raise ValueError(f"{self.out / RECORD} cannot be read ({error}); delete the folder or choose another.") from error
        self.layout.check_record(content, fingerprint, str(self.out))

    def finished(self) -> bool:
        return _is_complete(self.out / RESULT, (self.layout.count, self.layout.dim), self.layout.dtype)

    def missing(self, shards: range) -> list[int]:
        """The shards that are not complete."""
        return [i for i in shards if not _is_complete(self.part(i), self.layout.shape(i), self.layout.dtype)]

    def join(self) -> None:
        """Concatenate all shards."""
        layout = self.layout
        if missing := self.missing(range(layout.shards)):
            raise RuntimeError(
                f"{self.out / SHARDS} lacks {len(missing)} shards, the first {self.part(missing[0]).name}; run again."
            )
        shape = (layout.count, layout.dim)
        header = {"descr": np.lib.format.dtype_to_descr(layout.dtype), "fortran_order": False, "shape": shape}
        with atomic_writer(self.out / RESULT) as file:
            np.lib.format.write_array_header_1_0(file, header)
            for shard in range(layout.shards):
                file.write(np.load(self.part(shard), allow_pickle=False).tobytes())

    def save(self, shard: int, rows: NDArray[Any]) -> None:
        if np.isnan(rows[:, 0]).any():  # if machines share the rest, they look for broken images in the marked shards only
            (self.out / BROKEN).mkdir(exist_ok=True)
            (self.out / BROKEN / f"{shard:05d}").touch()
        with atomic_writer(self.part(shard)) as file:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(rows))
            file.write(rows.data.cast("B"))  # np.save does not report a full disk as such


def _embed_missing(run: _ShardedRun, embed_rows: EmbedRows, shards: range, progress: Callable[[int, int], None]) -> None:
    total, missing = sum(len(run.layout.rows(i)) for i in shards), run.missing(shards)
    done = total - sum(len(run.layout.rows(i)) for i in missing)
    progress(done, total)

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        progress(done, total)

    if missing:
        embed_shards(run.layout, embed_rows, missing, save=run.save, advance=advance)


def embed_shards(
    layout: ShardLayout,
    embed_rows: EmbedRows,
    shards: Iterable[int],
    *,
    save: Callable[[int, NDArray[Any]], None],
    advance: Callable[[int], None],
) -> None:
    """Embed one shard after the other and `save` each; `shards` may be decided while others are embedded.

    `embed_rows` may ask for the rows of further shards before it yields those of the first, so that images are loaded ahead.
    `advance(rows)` counts rows as they come.
    """
    waiting: deque[int] = deque()
    remaining = iter(shards)

    def handed_out() -> Iterator[NDArray[np.int64]]:
        for shard in remaining:
            waiting.append(shard)
            yield np.arange(layout.rows(shard).start, layout.rows(shard).stop)

    stream = _Stream(embed_rows(handed_out()), layout.dim)
    while stream.has_rows():
        if not waiting:
            raise ValueError("embed_rows yielded too many rows; it must yield one embedding for each row.")
        shard = waiting.popleft()
        rows = np.empty(layout.shape(shard), layout.dtype)
        filled = 0
        while filled < len(rows):
            taken = stream.take(len(rows) - filled)
            rows[filled : filled + len(taken)] = taken
            filled += len(taken)
            advance(len(taken))
        save(shard, rows)
    waiting.extend(islice(remaining, 1))
    if waiting:
        raise _too_few(sum(len(layout.rows(shard)) for shard in waiting))


def _too_few(rows: int) -> ValueError:
    return ValueError(f"embed_rows stopped {rows} rows or more before the end; it must yield one embedding for each row.")


class _Stream:
    """Takes rows, as many as wanted, from arrays of any length."""

    def __init__(self, arrays: Iterator[NDArray[Any]], dim: int):
        self.arrays, self.dim = iter(arrays), dim
        self.rest: NDArray[Any] = np.empty((0, dim))

    def has_rows(self) -> bool:
        """Whether there is a row to take."""
        while not len(self.rest):
            try:
                self.rest = next(self.arrays)
            except StopIteration:
                return False
            if self.rest.ndim != 2 or self.rest.shape[1] != self.dim:
                raise ValueError(f"embed_rows yielded an array {list(self.rest.shape)}; give [rows, {self.dim}].")
        return True

    def take(self, at_most: int) -> NDArray[Any]:
        """From 1 to `at_most` rows."""
        if not self.has_rows():
            raise _too_few(at_most)
        taken, self.rest = self.rest[:at_most], self.rest[at_most:]
        return taken


def _is_complete(path: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> bool:
    """Whether the file is a complete array of this shape and type, and not truncated."""
    try:
        array = open_npy(path)
    except (OSError, TypeError, ValueError):
        return False
    return array.shape == shape and array.dtype == dtype
