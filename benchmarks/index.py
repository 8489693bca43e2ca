"""Costs of an index: time and memory to build it, its size, its recall, and the time of a query.

python benchmarks/index.py --out benchmarks/results/cpu/index/million.json          1,000,000 × 512, IVF
python benchmarks/index.py --items 100000 --kind exact --kind ivf --kind hnsw       compare the kinds
python benchmarks/index.py --dim 256 --kind exact --kind ivf --peer                 with faiss's IVFFlat in the same run

Embeddings are drawn around class centers that lie in 64 dimensions, five classes of ten near each other, with
noise in all dimensions. Queries are drawn in the same way and are not in the index; recall of these is by exact search. A fresh
process opens the index after its files were dropped from the page cache, and reports what its first search read. Queries are
searched one by one; on a busy machine the CPU time is the most reliable, then p50. `--peer` searches the same cells with
faiss's IVFFlat, which compares float32 numbers, visiting as few of them as give the recall that ours has.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suprank.data.manifest import Manifest
from suprank.evaluation import top_k
from suprank.explorer import Index
from suprank.explorer.faiss_search import cells_in

PER_GROUP, PER_CLASS, LATENT, BLOCK = 50, 10, 64, 20_000


def main() -> None:
    arguments = _arguments()
    if arguments.measure:
        print(json.dumps(_measure(arguments.measure, (arguments.kind or ["ivf"])[0])))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="index", dir=arguments.folder) as name:
        folder = Path(name)
        embeddings, _ = draw_collection(folder / "embeddings.npy", arguments.items, arguments.dim)
        classes = np.random.default_rng(7).integers(arguments.items // PER_CLASS, size=arguments.queries)
        queries = clustered_vectors(classes, arguments.items // PER_GROUP, arguments.dim, 8)
        np.save(folder / "queries.npy", queries)
        best = top_k(queries, embeddings, 10, progress=False).rows
        for kind in arguments.kind or ["ivf"]:
            rows.append(_row(folder, embeddings, best, kind, arguments))
            print(json.dumps(rows[-1]), flush=True)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(_report(arguments, rows), indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--kind", action="append", choices=("exact", "ivf", "hnsw"))
    parser.add_argument("--folder", type=Path, help="where the embeddings and indexes are made, and deleted")
    parser.add_argument("--out", type=Path, help="a JSON file for all numbers")
    parser.add_argument("--peer", action="store_true", help="measure faiss's IVFFlat beside ivf")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)  # in a process of its own
    return parser.parse_args()


def clustered_vectors(classes: NDArray[np.int64], groups: int, dim: int, seed: int) -> NDArray[np.float32]:
    """One vector for each given class, around the class center, near its group."""
    fixed = np.random.default_rng(0)
    spread = fixed.normal(size=(LATENT, dim)).astype(np.float32) / np.sqrt(LATENT)
    centers = fixed.normal(size=(groups, LATENT)).astype(np.float32)
    own = np.random.default_rng(seed)
    vectors = np.empty((len(classes), dim), np.float32)
    for start in range(0, len(classes), BLOCK):
        some = classes[start : start + BLOCK]
        # A class is where a generator seeded by its number would put it, so that blocks need not hold all classes.
        offsets = _class_offsets(some)
        latent = centers[some % groups] + 0.7 * offsets + 0.7 * own.normal(size=offsets.shape).astype(np.float32)
        vectors[start : start + BLOCK] = latent @ spread + own.normal(size=(len(some), dim)).astype(np.float32)
    return vectors


def _class_offsets(classes: NDArray[np.int64]) -> NDArray[np.float32]:
    """Normal numbers `[classes, LATENT]` that depend on the class alone (a hash of class and place, by Box and Muller)."""
    with np.errstate(over="ignore"):
        key = classes.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15) + np.arange(2 * LATENT, dtype=np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            key = (key ^ (key >> np.uint64(shift))) * np.uint64(factor)
    uniform = ((key >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53
    radius, angle = np.sqrt(-2 * np.log(uniform[:, :LATENT])), 2 * np.pi * uniform[:, LATENT:]
    return (radius * np.cos(angle)).astype(np.float32)


def draw_collection(file: Path, items: int, dim: int) -> tuple[NDArray[Any], Manifest]:
    """Write embeddings to a file, and return them memory-mapped with their manifest."""
    classes, groups = np.arange(items) // PER_CLASS, items // PER_GROUP
    written = np.lib.format.open_memmap(file, "w+", np.float32, (items, dim))
    for start in range(0, items, BLOCK):
        written[start : start + BLOCK] = clustered_vectors(classes[start : start + BLOCK], groups, dim, 1_000_000 + start)
    written.flush()
    manifest = Manifest.from_columns(
        {
            "path": [f"{one % groups}/{one}/{place}.jpg" for place, one in enumerate(classes)],
            "split": ["gallery"] * items,
            "label_class": classes.astype(str),
            "label_group": (classes % groups).astype(str),
        },
        root=".",
    )
    return np.load(file, mmap_mode="r"), manifest


def _row(
    folder: Path, embeddings: NDArray[Any], best: NDArray[Any], kind: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    place = folder / kind
    began, cpu = time.perf_counter(), time.process_time()
    with _Peak() as peak:
        index = Index.cached(embeddings, place, kind)
    built, built_cpu = time.perf_counter() - began, time.process_time() - cpu
    queries = np.load(folder / "queries.npy")
    recall = _recall(index.search(queries, 10).rows, best)
    peer = {"faiss_ivfflat": _peer(index, embeddings, queries, best, recall)} if arguments.peer and kind == "ivf" else {}
    for file in place.glob("*"):  # a small exact index has none
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [sys.executable, __file__, "--measure", str(folder), "--kind", kind]
    measured: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {
        "kind": kind,
        "items": arguments.items,
        "dim": arguments.dim,
        "build_s": round(built, 1),
        "build_cpu_s": round(built_cpu, 1),
        "build_own_memory_mib": peak.most,
        "bytes": sum(file.stat().st_size for file in place.glob("*")),
        "effort": index._probe.effort,
        "recall_at_10_of_items": index.recall,
        "recall_at_10_of_new_queries": recall,
        **measured,
        **peer,
    }


def _recall(found: NDArray[Any], best: NDArray[Any]) -> float:
    hits = sum(len(np.intersect1d(one, other)) for one, other in zip(found, best, strict=True))
    return round(hits / best.size, 4)


def _peer(
    ours: Index, embeddings: NDArray[Any], queries: NDArray[np.float32], best: NDArray[Any], wanted: float
) -> dict[str, Any]:
    """A query of faiss's IVFFlat with the cells of our index, at a recall that is at least ours."""
    import faiss

    cells: Any = cells_in(ours._index)
    index = faiss.IndexIVFFlat(cells.quantizer, cells.d, cells.nlist, faiss.METRIC_INNER_PRODUCT)
    for start in range(0, len(embeddings), BLOCK):
        index.add(_unit(embeddings[start : start + BLOCK]))
    units, low, high = _unit(queries), 0, cells.nlist
    while high - low > 1:
        index.nprobe = (low + high) // 2
        low, high = (low, index.nprobe) if _recall(index.search(units, 10)[1], best) >= wanted else (index.nprobe, high)
    index.nprobe = high
    recall = _recall(index.search(units, 10)[1], best)
    return {"nprobe": high, "recall_at_10_of_new_queries": recall, "query_ms": _times(lambda one: index.search(one, 10), units)}


def _unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def _measure(folder: Path, kind: str) -> dict[str, Any]:
    """In a fresh process: opening, the first search from disk, then queries one by one."""
    queries, embeddings = np.load(folder / "queries.npy"), np.load(folder / "embeddings.npy", mmap_mode="r")
    before = _read_bytes()
    began = time.perf_counter()
    index = Index.cached(embeddings, folder / kind, kind)
    opened = time.perf_counter() - began
    index.search(queries[:1], 10)
    first = time.perf_counter() - began
    read = _read_bytes() - before
    group = np.arange(len(embeddings)) // PER_CLASS % (len(embeddings) // PER_GROUP) == 7
    return {
        "open_ms": round(1e3 * opened, 1),
        "open_and_first_search_ms": round(1e3 * first, 1),
        "read_mib_until_then": round(read / 2**20, 1),
        "own_memory_mib_then": _memory(),
        "query_ms": _times(lambda one: index.search(one, 10), queries),
        "query_of_100_ms": _times(lambda one: index.search(one, 100), queries),
        "query_where_ms": _times(lambda one: index.search(one, 10, group), queries[:100]),
    }


def _times(call: Any, queries: NDArray[np.float32]) -> dict[str, float]:
    times, spent = [], []
    for turn in range(2):  # the first turn loads the pages
        for one in queries:
            began, cpu = time.perf_counter(), time.process_time()
            call(one[None])
            if turn:
                times.append(1e3 * (time.perf_counter() - began))
                spent.append(1e3 * (time.process_time() - cpu))
    p50, p95 = (round(float(np.percentile(times, percent)), 2) for percent in (50, 95))
    return {"p50": p50, "p95": p95, "cpu_p50": round(float(np.percentile(spent, 50)), 2)}


class _Peak:
    """The peak of the process's own memory inside a `with` block, in MiB: `most`."""

    def __enter__(self) -> _Peak:
        self.most, self._ended = _memory(), threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.most = max(self.most, _memory())

    def _poll(self) -> None:
        while not self._ended.wait(0.02):
            self.most = max(self.most, _memory())


def _memory() -> int:
    """MiB of this process, without mapped files, whose pages the system can reclaim."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) // 1024


def _read_bytes() -> int:
    """Bytes that this process made the disk read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


def _report(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in ("suprank", "faiss-cpu", "numpy", "torch")}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "load_at_the_end": os.getloadavg(),
        "versions": versions,
        "rows": rows,
    }


if __name__ == "__main__":
    main()
