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
    indices = files.member_indices(paths)
    threads, stop = workers or os.cpu_count() or 1, Event()
    size = _TASK if decode else min(_TASK_WITHOUT_DECODING, len(paths) // threads + 1)

    def task(begin: int) -> list[_FileResult]:
        names = [] if stop.is_set() else paths[begin : begin + size].to_pylist()
        places = zip(names, indices[begin : begin + size].tolist(), strict=bool(names))
        return [_scan_file(files, name, index, decode, hashes) for name, index in places if not stop.is_set()]

    row = 0
    with ThreadPoolExecutor(threads) as pool:
        try:
            for results in _results(pool, task, range(0, len(paths), size), ahead=_AHEAD * threads):
                _record(scan, row, results)
                row += len(results)
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


def _scan_file(files: ImageFiles, path: str, index: int, decode: bool, hashes: bool) -> _FileResult:
    digest = None
    try:
        data = files.read(path, index)
        if hashes:  # also of a broken file: it may be a duplicate
            digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
        return _FileResult(digest, inspect_image(data, path) if decode else None)
    except (OSError, ValueError) as error:
        return _FileResult(digest, reason=str(error).removeprefix(f"{path}: "))


def _record(scan: FileScan, begin: int, results: list[_FileResult]) -> None:
    """Enter the results of one task, whose first row is `begin`."""
    digests = b"".join(result.digest or _NO_DIGEST for result in results)
    scan.digests[begin : begin + len(results)] = np.frombuffer(digests, np.uint64).reshape(-1, 2)
    for row, result in enumerate(results, begin):
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
