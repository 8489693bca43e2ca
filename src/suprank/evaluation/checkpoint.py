"""Checkpoints of a long evaluation: after a kill, the same call goes on with the queries that have no values yet.

    folder/run.json            what is evaluated: the folder is used only if all of it is the same
    folder/values-0-3.npz      values of finished blocks of queries, written by process 0
    folder/.lock               keeps a second evaluation out; it stays, and means nothing by itself

Any number of processes may go on.
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

from suprank.files.atomic import TEMPORARY_FILE, atomic_writer, own_file, write_atomically
from suprank.files.locking import LOCK, lock_folder
from suprank.files.records import differences

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray
    from torch import Tensor

RECORD, FORMAT = "run.json", 1
INTERVAL = 30.0
"""Seconds between two saves, at least."""

_log = logging.getLogger(__name__)

_ROWS = 2**18  # of labels that are digested at once


class Checkpoint:
    """The folder of one evaluation, in one of the processes that share the work."""

    def __init__(self, folder: Path, *, rank: int = 0) -> None:
        self.folder, self.rank = folder, rank
        self._saved = time.monotonic()

    def lock(self) -> AbstractContextManager[Any]:
        """Keep other evaluations out while the block runs."""
        return lock_folder(self.folder, "evaluating with the checkpoint", "wait for it to end, or choose another folder")

    def begin(self, fingerprint: Mapping[str, Any]) -> None:
        """Write the record; or raise a ValueError that names the differences, if the folder has another evaluation."""
        record = json.loads(json.dumps({"format": FORMAT, **fingerprint}))  # tuples are lists in JSON
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / RECORD
        unfinished = [file for file in map(own_file, self.folder.iterdir()) if TEMPORARY_FILE.fullmatch(file.name)]
        if not path.exists() or not any(self.folder.glob("values-*.npz")):
            if not path.exists() and {file.name for file in self.folder.iterdir()} - {LOCK, *(one.name for one in unfinished)}:
                raise ValueError(
                    f"{self.folder} has other files and no {RECORD}, so it is no checkpoint; name a new or an empty folder."
                )
            write_atomically(path, (json.dumps(record, indent=2) + "\n").encode())
        try:
            found = dict(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
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
            queries = saved.get("queries", known)
            inside = queries.dtype == np.int64 and np.isin(queries, np.arange(len(known))).all()
            if inside and "values" in saved and saved["values"].shape == (len(values), *queries.shape):
                values[:, queries] = saved["values"]
                known[queries] = True
        return known

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the last save."""
        return time.monotonic() - self._saved >= INTERVAL

    def save(self, queries: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Save the values `[metrics, queries]` of finished queries; of a query that comes twice, the second counts."""
        names = (self.folder / f"values-{self.rank}-{number}.npz" for number in count())
        with atomic_writer(next(path for path in names if not path.exists())) as file:
            np.savez(file, queries=queries, values=values)
        self._saved = time.monotonic()


def digest_integers(values: Tensor) -> str:
    """A hash of integers of any shape, whatever their type."""
    found = hashlib.sha256(repr(tuple(values.shape)).encode())
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
