"""Checkpoints of a long evaluation: after a kill, the same call goes on where it was.

    folder/run.json            what is evaluated: the folder is used only if all of it is the same
    folder/values-0-3.npz      values of finished queries, written by process 0
    folder/block-1f0c....npz   the state of a block of queries for which the gallery was being read; removed with its end
    folder/.lock               keeps a second evaluation out; it stays, and means nothing by itself

A file is written at most every 30 seconds, and saving takes at most a twentieth of the time. Any number of processes may go on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from suprank.files.atomic import TEMPORARY_FILE, atomic_writer, own_file, write_atomically
from suprank.files.locking import LOCK, lock_folder
from suprank.files.records import differences

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray
    from torch import Tensor

RECORD, FORMAT = "run.json", 1
INTERVAL = 30.0
"""Seconds between two saves, at least."""

_log = logging.getLogger(__name__)

_SHARE = 20  # saving takes at most one part in so many of the time
_ROWS = 2**18  # of labels that are digested at once


class Checkpoint:
    """The folder of one evaluation, in one of the processes that share the work."""

    def __init__(self, folder: Path, *, rank: int = 0) -> None:
        self.folder, self.rank = folder, rank
        self._unsaved: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
        self._finished: list[Path] = []  # states of blocks whose values are not saved yet
        self._saved, self._wait = time.monotonic(), INTERVAL

    def lock(self) -> AbstractContextManager[Any]:
        """Keep other evaluations out while the block runs."""
        return lock_folder(self.folder, "evaluating with the checkpoint", "wait for it to end, or choose another folder")

    def begin(self, fingerprint: Mapping[str, Any]) -> None:
        """Write the record; or raise a ValueError that names the differences, if the folder has another evaluation."""
        record = json.loads(json.dumps({"format": FORMAT, **fingerprint}))  # tuples are lists in JSON
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / RECORD
        unfinished = [file for file in map(own_file, self.folder.iterdir()) if TEMPORARY_FILE.fullmatch(file.name)]
        if not path.exists() or not any(self.folder.glob("*-*.npz")):
            if not path.exists() and {file.name for file in self.folder.iterdir()} - {LOCK, *(one.name for one in unfinished)}:
                raise ValueError(
                    f"{self.folder} has other files and no {RECORD}, so it is no checkpoint; name a new or an empty folder."
                )
            write_atomically(path, (json.dumps(record, indent=2) + "\n").encode())
        try:
            found = dict(json.loads(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read ({error}); delete the folder or choose another.") from error
        if text := differences(record, found):
            raise ValueError(
                f"{self.folder} is the checkpoint of another evaluation: {text}. Choose another folder, or delete it to start "
                f"again."
            )
        for file in unfinished if self.rank == 0 else ():  # the other processes may be writing by now
            file.unlink(missing_ok=True)

    def load_values(self, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Fill in the values `[metrics, queries]` of finished queries, and return which these are."""
        known = np.zeros(values.shape[1], bool)
        for path in sorted(self.folder.glob("values-*.npz")):
            saved = _read(path)
            if saved.keys() == {"queries", "values"} and saved["values"].shape == (len(values), len(saved["queries"])):
                values[:, saved["queries"]] = saved["values"]
                known[saved["queries"]] = True
        return known

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the last save."""
        return time.monotonic() - self._saved >= self._wait

    def add(self, queries: NDArray[np.int64], values: NDArray[np.float64], *, save: bool) -> None:
        """Add the values `[metrics, queries]` of finished queries; of a query that comes twice, the second counts."""
        self._unsaved.append((queries, values))
        if not save:
            return
        rows = np.concatenate([rows for rows, _ in self._unsaved])
        every = np.concatenate([some for _, some in self._unsaved], axis=1)
        names = (self.folder / f"values-{self.rank}-{number}.npz" for number in count())
        self._write(next(path for path in names if not path.exists()), {"queries": rows, "values": every})
        self._unsaved = []
        for path in self._finished:
            path.unlink(missing_ok=True)
        self._finished = []

    def open_block(self, queries: NDArray[np.int64]) -> BlockCheckpoint:
        """The state of a block of these queries."""
        return BlockCheckpoint(self, self._block_path(queries))

    def finish_blocks(self, blocks: Sequence[NDArray[np.int64]]) -> None:
        """Remove the states of these blocks of queries, once their values are saved."""
        self._finished += map(self._block_path, blocks)

    def _block_path(self, queries: NDArray[np.int64]) -> Path:
        return self.folder / f"block-{hashlib.blake2b(queries.tobytes(), digest_size=12).hexdigest()}.npz"

    def _write(self, path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
        start = time.monotonic()
        with atomic_writer(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type, unused-ignore]
        self._saved = time.monotonic()
        self._wait = max(INTERVAL, _SHARE * (self._saved - start))


class BlockCheckpoint:
    """The state of a block of queries while the gallery is read for it: tensors of each stage, and the next item to read."""

    def __init__(self, checkpoint: Checkpoint, path: Path) -> None:
        self._checkpoint, self.path = checkpoint, path
        self._saved = _read(path) if path.exists() else {}
        self._stages: dict[str, tuple[int, Sequence[Tensor]]] = {}

    def load(self, stage: str, state: Sequence[Tensor]) -> int:
        """Fill the tensors with the state of this stage, and return the item to go on with; 0 if there is none."""
        arrays = [self._saved.pop(f"{stage}-{number}", None) for number in range(len(state))]
        next_item = int(self._saved.pop(f"{stage}-next", 0))
        if all(array is not None and array.shape == tuple(one.shape) for array, one in zip(arrays, state, strict=True)):
            for array, one in zip(arrays, state, strict=True):
                one.copy_(torch.from_numpy(array))
        else:
            next_item = 0
        self._stages[stage] = (next_item, state)
        return next_item

    def maybe_save(self, stage: str, next_item: int, state: Sequence[Tensor]) -> None:
        """Save all stages, if a save is due."""
        self._stages[stage] = (next_item, state)
        if not self._checkpoint.is_due:
            return
        arrays = dict(self._saved)  # of stages to come, or past: if all queries of a block have ties, two blocks share a file
        for name, (item, tensors) in self._stages.items():
            arrays[f"{name}-next"] = np.array(item)
            arrays |= {f"{name}-{number}": tensor.cpu().numpy() for number, tensor in enumerate(tensors)}
        self._checkpoint._write(self.path, arrays)


def digest() -> hashlib._Hash:
    """The hash that fingerprints are made with."""
    return hashlib.sha256()


def digest_integers(values: Tensor) -> str:
    """A hash of integers of any shape, whatever their type."""
    found = digest()
    found.update(repr(tuple(values.shape)).encode())
    for first in range(0, len(values), _ROWS):
        found.update(values[first : first + _ROWS].cpu().long().contiguous().numpy().data)
    return found.hexdigest()


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file; none if it cannot be read, so that the work is done again."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
            return {name: saved[name] for name in saved.files}
    except Exception as error:  # a damaged zip file can raise anything
        _log.warning("%s cannot be read (%s); what it held is computed again", path, error)
        return {}
