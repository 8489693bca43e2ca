"""Writing the embeddings of millions of images into one `.npy`, shard by shard, so that an interruption costs one shard.

    out/run.json               what is embedded, and how: a run is resumed only if all of it is the same
    out/parts/00012.npy        a finished shard; removed once all are joined
    out/parts/3-of-16.json     the record of the process that embeds every 16th shard, from the third on
    out/embeddings.npy         the result, which exists only when it is complete
    out/.lock                  keeps a second process out while one is embedding; it stays, and means nothing by itself
    out/parts/.lock-3-of-16    keeps a second process out of these shards

Under torchrun the shards are distributed among the processes; machines without a connection embed a fixed share each; on a
cluster that moves work, each shard is a task for whichever machine is free. A shard does not depend on the process that
computes it, so a run may be resumed with another number of processes.
"""

from __future__ import annotations

import json
import logging
import platform
import shutil
import signal
import time
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from suprank.evaluation.provenance import RECORD, RESULT
from suprank.executors.local import Crashed, ExperimentStopped, Task
from suprank.files.atomic import atomic_writer, own_file, write_atomically
from suprank.files.binary import open_npy, write_npy
from suprank.files.locking import LOCK, lock_folder
from suprank.files.records import differences

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from suprank.executors.local import Answer

    EmbedRows = Callable[[Iterator[NDArray[np.int64]]], Generator[NDArray[Any]]]
    RunTasks = Callable[[Callable[[int], list[str]], list[Task]], Generator[tuple[Task, Answer]]]

SHARDS, ITEMS = "parts", "items.parquet"
_WAY_OUT = "wait for it to end, or choose another folder"
_SECONDS = 60  # for others to begin: each holds the lock of the folder for a moment
_SECONDS_TO_SEE = 90  # what other machines have written: network file systems remember for a minute that a file is not there

_log = logging.getLogger(__name__)


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
    shard: tuple[int, int] | None = None,
    run_tasks: RunTasks | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    note: Callable[[str], object] = _log.info,
) -> Path:
    """Write the embeddings of rows 0 to `count` − 1 into `out/embeddings.npy`, `[count, dim]`, and return its path.

    `embed_rows(shards)` is called once in each process with the rows left to it, an array for each shard, ascending, and yields
    their embeddings in that order, in arrays of any length; too few or too many rows are an error, so an image that cannot be
    embedded must raise or get a vector. After an interruption the same call computes only the missing shards; after the end it
    returns at once. If the batches of `embed_rows` end with the shards, the result does not depend on where it was interrupted.

    `fingerprint` is whatever makes embeddings comparable (model, manifest, precision, ...), in JSON's types. If `out` has a run
    with another fingerprint, a ValueError says which entries differ; if another process is embedding into it, a BlockingIOError
    says so at once. float16 rounds the finished embeddings, and halves the file.

    Under torchrun, give `rank`, `world_size` and a `barrier`, and the same `out` in each process. `shard=(3, 16)` embeds every
    16th shard, from the third on, and joins nothing: 16 such calls may run at once, on machines that see one folder or copy
    their folders into one, and the call without it embeds what is missing and joins. With `run_tasks`, such as
    `suprank.executors.RayCluster.run`, each missing shard is a task, and `embed_rows` is pickled; all machines see `out`.
    `progress(done, total)` counts the rows of this process and of its tasks, including those of earlier runs, and `note` gets a
    sentence on how many shards were there, if any was.
    """
    first, step = check_shard(shard)
    layout = ShardLayout(count, dim, shard_rows, np.dtype(dtype))
    run = _ShardedRun(Path(out), layout, layout.record(fingerprint))
    shards = range(first, layout.shards, step)
    # The processes of one torchrun share the folder: rank 0 holds the lock for all of them.
    with run.begun(shard) if rank == 0 else nullcontext():
        there = 0 if rank != 0 or run.finished() else len(shards) - len(run.missing(shards))
        barrier()  # the others wait for the record
        if rank != 0:
            run.check_record(run.out / RECORD)
        if not run.finished():
            embed = _embed_shards if run_tasks is None else partial(_embed_in_tasks, run_tasks=run_tasks)
            _embed_missing(run, embed_rows, shards[rank::world_size], progress, embed)
            barrier()  # the parts of all are written
            if rank == 0 and shard is None:
                run.join()
            if rank == 0 and (there or shard is not None):
                which, joined = ("", ", joined") if shard is None else (f" of {shard[0]}/{shard[1]}", "")
                counts = f"{there:,} of {len(shards):,} shards{which} were there, {len(shards) - there:,} computed now"
                note(f"{run.out}: {counts}{joined}.")
        barrier()  # the result is there for all
        if rank == 0 and run.finished():
            shutil.rmtree(run.out / SHARDS, ignore_errors=True)
    return run.out / RESULT


def check_shard(shard: tuple[int, int] | None) -> tuple[int, int]:
    """The first shard of a share and the step to the next: all of them without one."""
    i, n = shard or (1, 1)
    if not 1 <= i <= n:
        raise ValueError(f"shard=({i}, {n}) must be (i, n) with i from 1 to n, such as (3, 16).")
    return i - 1, n


def records(out: Path) -> list[Path]:
    """The files with the record of a run: its own, and those that came with shards that were copied."""
    return [file for file in (out / RECORD,) if file.exists()] + sorted((out / SHARDS).glob("*.json"))


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

    def shape(self, shard: int) -> tuple[int, int]:
        return len(self.rows(shard)), self.dim

    def first_rows(self, out: Path, shard: tuple[int, int] | None) -> list[int]:
        """The first row of each shard that is there, of those of this share."""
        first, step = check_shard(shard)
        there = {file.name for file in (out / SHARDS).glob("*.npy")}
        numbers = range(first, self.shards, step)
        return [self.rows(number).start for number in numbers if self.file_name(number) in there]

    def record(self, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
        """The content of run.json, as JSON gives it back (tuples are lists), to compare it with a file."""
        own = {"count": self.count, "dim": self.dim, "dtype": self.dtype.name, "shard_rows": self.shard_rows}
        if taken := own.keys() & fingerprint.keys():
            raise ValueError(f"fingerprint has the entries {sorted(taken)}, which the run adds itself; rename them.")
        try:
            return dict(json.loads(json.dumps({**own, **fingerprint})))
        except TypeError as error:
            raise TypeError(f"fingerprint must hold text, numbers, lists and dictionaries of them ({error}).") from error


@dataclass(frozen=True)
class _ShardedRun:
    """The folder of one run, the names and sizes of what it holds, and its record."""

    out: Path
    layout: ShardLayout
    record: dict[str, Any]

    def part(self, shard: int) -> Path:
        return self.out / SHARDS / self.layout.file_name(shard)

    @contextmanager
    def begun(self, shard: tuple[int, int] | None) -> Iterator[None]:
        """Hold the lock of the folder, or of a share of the shards, with a record of this run in it."""
        for file in (*self.out.glob("*"), *(self.out / SHARDS).glob("*")):
            own_file(file)
        whole = lock_folder(self.out, "embedding into", _WAY_OUT, seconds=_SECONDS if shard else 1)
        if shard is None:
            with whole:
                self._refuse_shares()
                self._begin()
                yield
            return
        name = f"{shard[0]}-of-{shard[1]}"
        doing, lock = f"embedding shard {shard[0]}/{shard[1]} into", f"{LOCK}-{name}"
        with lock_folder(self.out / SHARDS, doing, "wait for it to end", name=lock, seconds=1):  # others may look now
            with whole:
                self._begin(lock)
                write_atomically(self.out / SHARDS / f"{name}.json", (self.out / RECORD).read_bytes())
            yield

    def _refuse_shares(self, own: str = "") -> None:
        """Raise a BlockingIOError if another process embeds a share of the shards."""
        for lock in (self.out / SHARDS).glob(f"{LOCK}-*"):
            if lock.name != own:
                with lock_folder(lock.parent, "embedding a share of the shards into", _WAY_OUT, name=lock.name):
                    pass

    def _begin(self, own: str = "") -> None:
        """Write the record of the run, or check that those that are there are of the same run."""
        record = (json.dumps(self.record, indent=2) + "\n").encode()
        found = records(self.out)[: 1 if own else None]  # a thousand shares need not read each other's: who joins reads all
        if (self.out / RESULT).exists() or any((self.out / SHARDS).glob("*.npy")):
            if not found:
                raise ValueError(f"{self.out} has embeddings without a {RECORD} that describes it; choose another folder.")
            for file in found:
                self.check_record(file)
        elif any(file.read_bytes() != record for file in found):  # nothing to lose, unless somebody embeds
            self._refuse_shares(own)
            for file in records(self.out):
                file.unlink()
        if not (self.out / RECORD).exists():
            write_atomically(self.out / RECORD, record)
        (self.out / SHARDS).mkdir(exist_ok=True)
        for draft in self.out.glob(".*.tmp"):  # of a process that was killed
            draft.unlink()

    def check_record(self, file: Path) -> None:
        """Raise a ValueError that names the differences if a record is of another run."""
        try:
            found = dict(json.loads(file.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"{file} cannot be read ({error}); delete the folder or choose another.") from error
        if text := differences(self.record, found):
            where = self.out if file.name == RECORD else file
            raise ValueError(
                f"{where} has the embeddings of another run: {text}. Choose another folder, or delete it to start again."
            )

    def finished(self) -> bool:
        return _is_complete(self.out / RESULT, (self.layout.count, self.layout.dim), self.layout.dtype)

    def missing(self, shards: Iterable[int]) -> list[int]:
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
        self.check_record(self.out / RECORD)  # where locks do not hold, the folder may have become that of another run
        write_npy(self.part(shard), rows)


def _embed_missing(
    run: _ShardedRun,
    embed_rows: EmbedRows,
    shards: range,
    progress: Callable[[int, int], None],
    embed: Callable[[_ShardedRun, EmbedRows, Sequence[int], Callable[[int], None]], None],
) -> None:
    total, missing = sum(len(run.layout.rows(i)) for i in shards), run.missing(shards)
    done = total - sum(len(run.layout.rows(i)) for i in missing)
    progress(done, total)

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        progress(done, total)

    if missing:
        embed(run, embed_rows, missing, advance)


def _embed_shards(run: _ShardedRun, embed_rows: EmbedRows, shards: Sequence[int], advance: Callable[[int], None]) -> None:
    """Embed one shard after the other and save each; `advance(rows)` counts rows as they come.

    `embed_rows` may ask for the rows of further shards before it yields those of the first, so that images are loaded ahead.
    """
    layout = run.layout
    rows_of = (np.arange(layout.rows(shard).start, layout.rows(shard).stop) for shard in shards)
    with closing(embed_rows(rows_of)) as arrays:  # a traceback would keep it, and its workers, alive
        stream = _Stream(arrays, layout.dim)
        for place, shard in enumerate(shards):
            rows = np.empty(layout.shape(shard), layout.dtype)
            filled = 0
            while filled < len(rows):
                if not stream.has_rows():
                    left = sum(len(layout.rows(other)) for other in shards[place:]) - filled
                    raise ValueError(
                        f"embed_rows stopped {left} rows before the end; it must yield one embedding for each row."
                    )
                taken = stream.take(len(rows) - filled)
                rows[filled : filled + len(taken)] = taken
                filled += len(taken)
                advance(len(taken))
            run.save(shard, rows)
        if stream.has_rows():
            raise ValueError("embed_rows yielded too many rows; it must yield one embedding for each row.")


def _embed_in_tasks(
    run: _ShardedRun, embed_rows: EmbedRows, shards: Sequence[int], advance: Callable[[int], None], *, run_tasks: RunTasks
) -> None:
    """Have each shard embedded by a task, in any order. What tasks have logged is logged here; the first error ends it."""
    tasks = {Task(run.layout.file_name(shard), (shard,)): shard for shard in shards}
    try:
        with closing(run_tasks(_EmbedShard(run, embed_rows), list(tasks))) as answers:
            for task, answer in answers:
                if isinstance(answer.error, Crashed):
                    raise ChildProcessError(f"the task of shard {task.name} {answer.error}") from answer.error
                if answer.error is not None:
                    raise answer.error
                for message in answer.value:
                    _log.warning(message)
                advance(len(run.layout.rows(tasks[task])))
    except ExperimentStopped as stopped:
        signal.raise_signal(stopped.signal)  # now that no task is left: Ctrl-C is a KeyboardInterrupt again
    end = time.monotonic() + _SECONDS_TO_SEE
    while run.missing(shards) and time.monotonic() < end:
        time.sleep(1)


@dataclass(frozen=True)
class _EmbedShard:
    """The function of the tasks: embeds and saves a shard, wherever it is called, and returns the warnings."""

    run: _ShardedRun
    embed_rows: EmbedRows

    def __call__(self, shard: int) -> list[str]:
        if not (self.run.out / RECORD).exists():
            raise FileNotFoundError(
                f"{platform.node()} does not see {self.run.out}; choose a folder that all machines see under one name."
            )
        with _warnings() as found:  # a shard of a task that died after it was saved is there
            for missing in self.run.missing(range(shard, shard + 1)):
                _embed_shards(self.run, self.embed_rows, [missing], lambda rows: None)
        return found


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect the warnings that this package logs."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("suprank")
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


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
        """From 1 to `at_most` rows, of those that there are."""
        taken, self.rest = self.rest[:at_most], self.rest[at_most:]
        return taken


def _is_complete(path: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> bool:
    """Whether the file is a complete array of this shape and type, and not truncated."""
    try:
        array = open_npy(path)
    except (OSError, TypeError, ValueError):
        return False
    return array.shape == shape and array.dtype == dtype
