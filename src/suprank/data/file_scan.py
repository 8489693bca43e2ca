"""Scan the content of many files in threads: is each a complete image, how large is it, and what is its hash?"""

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

from suprank.data.image_files import ImageFiles
from suprank.data.images import ImageInfo, inspect_image

if TYPE_CHECKING:
    from numpy.typing import NDArray

Progress = Callable[[int, int], None]
"""Called with (files done, files in all)."""

_TASK, _TASK_WITHOUT_DECODING = 32, 256  # files a thread takes at a time
_DIGEST_BYTES = 16
_NO_DIGEST = bytes(_DIGEST_BYTES)
_AHEAD = 4  # tasks per thread in the queue: millions would fill the memory


@dataclass(frozen=True)
class FileScan:
    """One row per path, of 24 bytes, so that four million fit into memory. Rows of unreadable files are 0.

    `digests` are 16 bytes of BLAKE2b as two numbers, `sizes` widths and heights as stored, `kinds` counts such as
    {"JPEG RGB": 12}, and `broken` maps rows to the reason why they could not be read.
    """

    digests: NDArray[np.uint64]
    sizes: NDArray[np.int32]
    kinds: Counter[str]
    broken: dict[int, str]


def scan_files(
    files: ImageFiles,
    paths: pa.Array,
    indices: NDArray[np.int64],
    *,
    decode: bool = True,
    hashes: bool = True,
    workers: int | None = None,
    progress: Progress = lambda done, total: None,
) -> FileScan:
    """Read all files, with their indices from `find_files`. Threads suffice, because decoding, inflating and hashing release
    Python's lock.

    Ctrl-C ends it after the images that are being decoded.
    """
    scan = FileScan(np.zeros((len(paths), 2), np.uint64), np.zeros((len(paths), 2), np.int32), Counter(), {})
    threads, stop = workers or os.cpu_count() or 1, Event()
    size = _TASK if decode else min(_TASK_WITHOUT_DECODING, len(paths) // threads + 1)

    def task(begin: int) -> _Scanned:
        names = [] if stop.is_set() else paths[begin : begin + size].to_pylist()
        scanned = _Scanned([_NO_DIGEST] * len(names), {}, {})
        for place, content in files.read_each(names, indices[begin : begin + len(names)].tolist()):
            if stop.is_set():
                break
            try:
                if not isinstance(content, bytes):
                    raise content
                if hashes:  # also of a broken file: it may be a duplicate
                    scanned.digests[place] = hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
                if decode:
                    scanned.infos[place] = inspect_image(content, names[place])
            except (OSError, ValueError) as error:
                scanned.reasons[place] = str(error).removeprefix(f"{names[place]}: ")
        return scanned

    row = 0
    with ThreadPoolExecutor(threads) as pool:
        try:
            for scanned in _results(pool, task, range(0, len(paths), size), ahead=_AHEAD * threads):
                _record(scan, row, scanned)
                row += len(scanned.digests)
                progress(row, len(paths))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return scan


class _Scanned(NamedTuple):
    """The results of a task by place: a digest for each file, 0 if it could not be read, and what is known of some."""

    digests: list[bytes]
    infos: dict[int, ImageInfo]
    reasons: dict[int, str]


def _record(scan: FileScan, begin: int, scanned: _Scanned) -> None:
    """Enter the results of one task, whose first row is `begin`."""
    digests = np.frombuffer(b"".join(scanned.digests), np.uint64).reshape(-1, 2)
    scan.digests[begin : begin + len(digests)] = digests
    for place, info in sorted(scanned.infos.items()):
        scan.sizes[begin + place] = info.width, info.height
        scan.kinds[f"{info.format} {info.mode}"] += 1
    scan.broken.update((begin + place, reason) for place, reason in sorted(scanned.reasons.items()))


def _results(
    pool: ThreadPoolExecutor, task: Callable[[int], _Scanned], begins: Iterable[int], ahead: int
) -> Iterator[_Scanned]:
    """The results in order, with no more than `ahead` tasks waiting."""
    waiting: deque[Future[_Scanned]] = deque()
    for begin in begins:
        waiting.append(pool.submit(task, begin))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
