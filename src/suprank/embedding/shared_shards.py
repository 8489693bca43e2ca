"""Embedding one collection on several machines that share a folder or a bucket, and need no connection to each other.

    out/run.json              what is embedded, and how: a machine takes part only if all of it is the same
    out/parts/00012.npy       a finished shard; the result, together with the others: they are not joined
    out/broken/00012          an empty file: the shard has rows of NaN, for broken images
    out/claims/00012.json     a process is embedding the shard (see `claims`)

Each process takes shards that are neither finished nor claimed until all are finished, so machines may come, go and be killed
at any time.
"""

from __future__ import annotations

import io
import json
import logging
import time
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.embedding import claims as leases
from suprank.embedding.claims import Claims
from suprank.embedding.shards import BROKEN, ITEMS, RECORD, RESULT, SHARDS, embed_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from suprank.embedding.shards import EmbedRows, ShardLayout
    from suprank.files.storage import Storage

_POLL = 10.0  # seconds at most between two looks at what others do, while there is nothing to do here

_log = logging.getLogger(__name__)


def write_shared(
    embed_rows: EmbedRows,
    layout: ShardLayout,
    storage: Storage,
    folder: str,
    *,
    fingerprint: Mapping[str, Any],
    write_items: Callable[[NDArray[np.int64]], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
    on_shard: Callable[[int, int, int], None] = lambda own, finished, total: None,
) -> None:
    """Embed shards into `folder` of the storage until all are there, by whichever machine.

    `embed_rows` is as in `write_embeddings`, but may be called more than once: shards that another machine gave up come last.
    At the end one of the processes calls `write_items` with the rows of broken images, those of NaN. `progress(done, total)`
    counts the rows of all processes, `on_shard(own, finished, total)` the shards of this one, the finished ones, and all.
    """
    run = _SharedRun(layout, storage, folder)
    run.begin(fingerprint)

    def report() -> None:
        on_shard(run.own, int(run.done.sum()), layout.shards)
        progress(run.rows_done, layout.count)

    def save(shard: int, rows: NDArray[Any]) -> None:
        run.save(shard, rows)
        claims.release(_name(shard))
        report()

    report()
    was_complete = run.is_complete()  # then its items are written again: their labels may be others now
    with Claims(storage, folder, run.refresh) as claims:
        while not run.is_complete():
            claims.look()
            free = run.take_free(claims)
            first = next(free, None)
            if first is None:
                run.wait(claims)
            else:
                embed_shards(
                    layout,
                    embed_rows,
                    chain([first], free),
                    save=save,
                    advance=lambda rows: progress(run.advance(rows), layout.count),
                )
            run.refresh()
            report()
        run.finish(claims, write_items, again=was_complete)


class _SharedRun:
    """The state of a run as this process knows it."""

    def __init__(self, layout: ShardLayout, storage: Storage, folder: str) -> None:
        self.layout, self.storage, self.folder = layout, storage, folder
        self.done = np.zeros(layout.shards, bool)
        self.own = 0
        self._record: bytes | None = None
        self._partial = 0  # rows of shards that are not saved yet
        self._waited = 0
        self._message = ""

    def begin(self, fingerprint: Mapping[str, Any]) -> None:
        """Write the record, or check that the one that is there is of the same run."""
        self._record = (json.dumps(self.layout.record(fingerprint), indent=2) + "\n").encode()
        if not self.storage.create(self._file(RECORD), self._record):
            found = self.storage.read(self._file(RECORD)) or b""
            try:
                self.layout.check_record(found, fingerprint, self.storage.address(self.folder))
                self._record = found
            except ValueError:
                if self._has_work():
                    raise
                self.storage.write(self._file(RECORD), self._record)
        elif self.storage.size(self._file(RESULT)) is not None:
            self.storage.delete(self._file(RECORD))
            raise ValueError(
                f"{self.storage.address(self._file(RESULT))} exists without a {RECORD} that describes it; choose another "
                f"folder."
            )
        has_items = self.storage.size(self._file(ITEMS)) is not None
        self.refresh()
        if has_items and not self.is_complete():  # a shard was lost since: its images may be broken now
            self.storage.delete(self._file(ITEMS))

    def _has_work(self) -> bool:
        """Whether there is work to lose: a run that failed before its first shard leaves only a record."""
        found = self.storage.size(self._file(RESULT)) is not None
        return found or any(self.storage.sizes(self._file(folder)) for folder in (SHARDS, leases.CLAIMS))

    def refresh(self) -> None:
        """Look which shards are finished."""
        found = self.layout.complete(self.storage.sizes(self._file(SHARDS)))
        np.logical_or(self.done, found, out=self.done)  # in place: a thread calls this too

    def is_complete(self) -> bool:
        return bool(self.done.all())

    @property
    def rows_done(self) -> int:
        """The rows of all finished shards, and those of this process that are not saved yet."""
        rows = int(self.done.sum()) * self.layout.shard_rows
        if self.done[-1]:
            rows -= self.layout.shards * self.layout.shard_rows - self.layout.count
        return min(rows + self._partial, self.layout.count)

    def advance(self, rows: int) -> int:
        self._partial += rows
        return self.rows_done

    def take_free(self, claims: Claims) -> Iterator[int]:
        """Claim shards that nobody has, one at a time, until there are none. Each process begins at another place."""
        missing = np.flatnonzero(~self.done)
        others = claims.others()
        start = claims.number % max(1, len(missing))
        for shard in np.roll(missing, -start).tolist():
            name = _name(shard)
            if self.done[shard] or name in others or not claims.take(name):
                continue
            if self.storage.size(self._shard(shard)) == self.layout.file_bytes(shard):
                claims.release(name)  # finished by another since the last look
                continue
            yield shard

    def save(self, shard: int, rows: NDArray[Any]) -> None:
        if self.storage.read(self._file(RECORD)) != self._record:
            raise ValueError(
                f"{self.storage.address(self._file(RECORD))} was deleted or is of another run since this one began; nothing "
                f"more is written. Choose another folder, or start again."
            )
        if np.isnan(rows[:, 0]).any():
            self.storage.write(self._file(f"{BROKEN}/{_name(shard)}"), b"")  # before the shard, so that it is never missing
        content = io.BytesIO()
        np.lib.format.write_array_header_1_0(content, np.lib.format.header_data_from_array_1_0(rows))
        content.write(rows.data.cast("B"))
        self.storage.write(self._shard(shard), content.getvalue())
        self._partial -= len(rows)
        self.done[shard] = True
        self.own, self._waited = self.own + 1, 0

    def wait(self, claims: Claims) -> None:
        """Wait a little for the shards that others have claimed."""
        missing = {_name(shard) for shard in np.flatnonzero(~self.done).tolist()}
        holders = {name: who for name, who in claims.others().items() if name in missing}
        text = ", ".join(sorted(set(holders.values())))
        if text and text != self._message:
            _log.info(
                "waiting for %d %s of %s; a process that is silent for %d s is replaced",
                len(missing),
                "shard" if len(missing) == 1 else "shards",
                text,
                leases.LEASE,
            )
            self._message = text
        time.sleep(min(0.2 * 2 ** min(self._waited, 10), _POLL, leases.LEASE / 10))
        self._waited += 1

    def finish(self, claims: Claims, write_items: Callable[[NDArray[np.int64]], None], *, again: bool) -> None:
        """Write the items, unless another process does: then wait for it."""
        while again or self.storage.size(self._file(ITEMS)) is None:
            claims.look()
            if claims.take(ITEMS):
                if again or self.storage.size(self._file(ITEMS)) is None:
                    write_items(self._broken_rows())
                self.storage.delete_drafts(self._file(SHARDS))
                claims.release(ITEMS)
                return
            self.wait(claims)

    def _broken_rows(self) -> NDArray[np.int64]:
        found = [np.empty(0, np.int64)]
        for name in sorted(self.storage.sizes(self._file(BROKEN))):
            rows = np.load(io.BytesIO(self.storage.read(self._shard(int(name))) or b""), allow_pickle=False)
            found.append(np.flatnonzero(np.isnan(rows[:, 0])) + self.layout.rows(int(name)).start)
        return np.concatenate(found)

    def _file(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def _shard(self, shard: int) -> str:
        return self._file(f"{SHARDS}/{self.layout.file_name(shard)}")


def _name(shard: int) -> str:
    return f"{shard:05d}"
