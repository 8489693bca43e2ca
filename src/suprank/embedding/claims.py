"""Claims on shards, with which machines that share nothing but a folder or a bucket divide the work.

    claims/00012.json    a process embeds shard 12; it writes the file anew every half minute, and deletes it at the end

A claim that has not changed for `LEASE` seconds, by the clock of the process that looks, belongs to a process that was killed,
and another takes it over: clocks of machines need not agree. If two processes embed one shard after all (a machine slept, a
store let both create the file), both write the same rows, and nothing is lost but time.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from suprank.files.storage import Storage

LEASE = 300.0
"""Seconds after which a claim that is not renewed may be taken over."""
CLAIMS = "claims"
_RENEWALS = 10  # in the time of a lease

_log = logging.getLogger(__name__)


class Claims:
    """The claims of this process, renewed by a thread while the block runs and given back at its end, however that comes.

    `refresh` is called by the thread too, each time before it renews.
    """

    def __init__(self, storage: Storage, folder: str, refresh: Callable[[], None] = lambda: None) -> None:
        self._storage, self._folder, self._refresh = storage, f"{folder}/{CLAIMS}", refresh
        self._owner = {"host": platform.node(), "process": os.getpid(), "owner": uuid.uuid4().hex}
        self._beat = 0
        self._lock = threading.Lock()
        self._own: dict[str, bytes] = {}
        self._seen: dict[str, tuple[bytes, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_renewing, name="suprank-claims", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for name in list(self._own):
            try:
                self.release(name)
            except Exception as error:  # it expires, and why the block ended is not to be hidden
                _log.warning("the claim on %s cannot be given back (%s); it expires in %d s", name, error, LEASE)

    @property
    def number(self) -> int:
        """A number of this process that no other has, to begin somewhere else than the others."""
        return int(str(self._owner["owner"]), 16)

    def take(self, name: str) -> bool:
        """Claim `name`, if it is free or its claim has expired."""
        content = self._content()
        with self._lock:  # the thread must not renew it yet
            self._own[name] = content  # before the file is there: a signal may end this process right after it is written
            if not self._storage.create(self._file(name), content):
                if not self._has_expired(name):
                    del self._own[name]
                    return False
                _log.info("%s is taken over from %s, which is silent", name, self._describe(name))
                self._storage.write(self._file(name), content)
            self._seen.pop(name, None)
        return True

    def release(self, name: str) -> None:
        """Give a claim back, unless another process has taken it over."""
        with self._lock:  # the thread must not write it again
            content = self._own.get(name)
            if content is not None and self._storage.read(self._file(name)) == content:
                self._storage.delete(self._file(name))
            self._own.pop(name, None)  # after the file is gone: a signal may come in between

    def others(self) -> dict[str, str]:
        """What other processes have claimed, with a description of the process: "process 12 on host"."""
        return {name: self._describe(name) for name in list(self._seen) if not self._has_expired(name)}

    def look(self) -> None:
        """Look at the claims of others, to notice which have expired and which are free."""
        names = [file.removesuffix(".json") for file in self._storage.sizes(self._folder)]
        for name in set(names) - set(self._own):
            content = self._storage.read(self._file(name))
            if content is not None and self._seen.get(name, (None,))[0] != content:
                self._seen[name] = (content, time.monotonic())
        for name in set(self._seen) - set(names):
            self._seen.pop(name, None)

    def _keep_renewing(self) -> None:
        while not self._ended.wait(LEASE / _RENEWALS):
            try:
                self._refresh()
                self.look()
                self._renew()
            except Exception as error:  # the storage may be back at the next time, long before a claim expires
                _log.warning("claims cannot be renewed now (%s); trying again", error)

    def _renew(self) -> None:
        self._beat += 1
        for name in list(self._own):
            with self._lock:
                content = self._own.get(name)
                if content is None or self._storage.read(self._file(name)) not in (content, None):
                    continue  # given back, or taken over by another process
                self._own[name] = self._content()
                self._storage.write(self._file(name), self._own[name])

    def _has_expired(self, name: str) -> bool:
        content, since = self._seen.get(name, (b"", float("inf")))
        return time.monotonic() - since > LEASE and self._storage.read(self._file(name)) in (content, None)

    def _describe(self, name: str) -> str:
        content, _ = self._seen.get(name, (b"", 0.0))
        try:
            claim: dict[str, Any] = json.loads(content)
            return f"process {claim['process']} on {claim['host']}"
        except (ValueError, KeyError, TypeError):
            return "another process"

    def _content(self) -> bytes:
        return json.dumps({**self._owner, "renewed": self._beat}).encode()

    def _file(self, name: str) -> str:
        return f"{self._folder}/{name}.json"
