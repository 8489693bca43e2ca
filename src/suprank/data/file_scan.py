"""One pass over the content of many files, by threads: is each a whole picture, how large, and what is its hash?"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from suprank.data.files import Files
from suprank.data.images import Facts, facts

if TYPE_CHECKING:
    from numpy.typing import NDArray

Progress = Callable[[int, int], None]
"""Called with (files done, files in all)."""

_TASK = 32  # files a thread takes at a time
_AHEAD = 4  # tasks a thread that wait for it: no more, for millions would fill the memory


@dataclass(frozen=True)
class Contents:
    """What was found, a row a path: 24 bytes each, so that four million fit. Rows that could not be read are 0.

    `digests` are 16 bytes of BLAKE2b as two numbers, `sizes` widths and heights as stored, `kinds` counts such as
    {"JPEG RGB": 12}, and `broken` says why for the rows that are.
    """

    digests: NDArray[np.uint64]
    sizes: NDArray[np.int32]
    kinds: Counter[str]
    broken: dict[int, str]


def contents(
    files: Files,
    paths: pa.Array,
    *,
    decode: bool = True,
    hashes: bool = True,
    workers: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Contents:
    """What the files hold. Threads suffice: decoding, inflating and hashing let go of Python's lock.

    Ctrl-C ends it after the images that are being decoded.
    """
    found = Contents(np.zeros((len(paths), 2), np.uint64), np.zeros((len(paths), 2), np.int32), Counter(), {})
    threads, stop = workers or os.cpu_count() or 1, Event()

    def task(begin: int) -> list[_Seen]:
        names = [] if stop.is_set() else paths[begin : begin + _TASK].to_pylist()
        return [_seen(files, name, decode, hashes) for name in names if not stop.is_set()]

    row = 0
    with ThreadPoolExecutor(threads) as pool:
        try:
            for some in _results(pool, task, range(0, len(paths), _TASK), ahead=_AHEAD * threads):
                for seen in some:
                    _note(found, row, seen)
                    row += 1
                progress(row, len(paths))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


class _Seen(NamedTuple):
    digest: bytes | None = None
    facts: Facts | None = None
    reason: str | None = None


def _seen(files: Files, path: str, decode: bool, hashes: bool) -> _Seen:
    digest = None
    try:
        data = files.read(path)
        if hashes:  # of a broken one too: a copy is a copy
            digest = hashlib.blake2b(data, digest_size=16).digest()
        return _Seen(digest, facts(data, path) if decode else None)
    except (OSError, ValueError) as error:
        return _Seen(digest, reason=str(error).removeprefix(f"{path}: "))


def _note(found: Contents, row: int, seen: _Seen) -> None:
    if seen.digest is not None:
        found.digests[row] = np.frombuffer(seen.digest, np.uint64)
    if seen.facts is not None:
        found.sizes[row] = seen.facts.width, seen.facts.height
        found.kinds[f"{seen.facts.format} {seen.facts.mode}"] += 1
    if seen.reason is not None:
        found.broken[row] = seen.reason


def _results(
    pool: ThreadPoolExecutor, task: Callable[[int], list[_Seen]], begins: Iterable[int], ahead: int
) -> Iterator[list[_Seen]]:
    """The results in order, with no more than `ahead` tasks waiting."""
    waiting: deque[Future[list[_Seen]]] = deque()
    for begin in begins:
        waiting.append(pool.submit(task, begin))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
