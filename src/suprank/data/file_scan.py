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

_TASK = 32  # files a thread takes at a time
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
    *,
    decode: bool = True,
    hashes: bool = True,
    workers: int | None = None,
    progress: Progress = lambda done, total: None,
) -> FileScan:
    """Read all files. Threads suffice, because decoding, inflating and hashing release Python's lock.

    Ctrl-C ends it after the images that are being decoded.
    """
    scan = FileScan(np.zeros((len(paths), 2), np.uint64), np.zeros((len(paths), 2), np.int32), Counter(), {})
    threads, stop = workers or os.cpu_count() or 1, Event()

    def task(begin: int) -> list[_FileResult]:
        names = [] if stop.is_set() else paths[begin : begin + _TASK].to_pylist()
        return [_scan_file(files, name, decode, hashes) for name in names if not stop.is_set()]

    row = 0
    with ThreadPoolExecutor(threads) as pool:
        try:
            for results in _results(pool, task, range(0, len(paths), _TASK), ahead=_AHEAD * threads):
                for result in results:
                    _record(scan, row, result)
                    row += 1
                progress(row, len(paths))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return scan


class _FileResult(NamedTuple):
    digest: bytes | None = None
    info: ImageInfo | None = None
    reason: str | None = None


def _scan_file(files: ImageFiles, path: str, decode: bool, hashes: bool) -> _FileResult:
    digest = None
    try:
        data = files.read(path)
        if hashes:  # also of a broken file: it may be a duplicate
            digest = hashlib.blake2b(data, digest_size=16).digest()
        return _FileResult(digest, inspect_image(data, path) if decode else None)
    except (OSError, ValueError) as error:
        return _FileResult(digest, reason=str(error).removeprefix(f"{path}: "))


def _record(scan: FileScan, row: int, result: _FileResult) -> None:
    if result.digest is not None:
        scan.digests[row] = np.frombuffer(result.digest, np.uint64)
    if result.info is not None:
        scan.sizes[row] = result.info.width, result.info.height
        scan.kinds[f"{result.info.format} {result.info.mode}"] += 1
    if result.reason is not None:
        scan.broken[row] = result.reason


def _results(
    pool: ThreadPoolExecutor, task: Callable[[int], list[_FileResult]], begins: Iterable[int], ahead: int
) -> Iterator[list[_FileResult]]:
    """The results in order, with no more than `ahead` tasks waiting."""
    waiting: deque[Future[list[_FileResult]]] = deque()
    for begin in begins:
        waiting.append(pool.submit(task, begin))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
