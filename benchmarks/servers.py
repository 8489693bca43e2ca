"""An index and a server side by side: time to build, disk, memory, recall@10 and the time of a query, on the same vectors.

python benchmarks/servers.py --out benchmarks/results/cpu/index/servers.json     100,000 × 256, about 10 minutes on 2 cores

The vectors are those of benchmarks/index.py, and so are the queries, which are not in the index and are searched one by one.
Each index is built and searched in a process of its own. The Milvus server is the one of the PyPI package `milvus`, started by
tests/milvus_server.py, whose relay a request goes through. Memory is what the process grew by, mapped files included, plus that
of the server.
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
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from index import PER_CLASS, PER_GROUP, clustered_vectors, draw_collection
from numpy.typing import NDArray

from suprank.data.manifest import Manifest
from suprank.evaluation import top_k
from suprank.explorer import Index
from suprank.explorer.images import matching_rows
from suprank.explorer.milvus import MilvusIndex

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.milvus_server import MilvusServer

SECONDS = 20
LOCAL = ("exact", "ivf", "hnsw")
TARGETS = (*LOCAL, "milvus-server")
PACKAGES = ("suprank", "faiss-cpu", "numpy", "pymilvus", "milvus")


def main() -> None:
    arguments = _arguments()
    if arguments.measure:
        print(json.dumps(_measure(arguments.measure, arguments.folder)))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="servers", dir=arguments.folder) as name:
        folder = Path(name)
        embeddings, manifest = draw_collection(folder / "embeddings.npy", arguments.items, arguments.dim)
        manifest.save(folder / "manifest.parquet")
        classes = np.random.default_rng(7).integers(arguments.items // PER_CLASS, size=arguments.queries)
        queries = clustered_vectors(classes, arguments.items // PER_GROUP, arguments.dim, 8)
        np.save(folder / "queries.npy", queries)
        np.save(folder / "best.npy", top_k(queries, embeddings, 10, progress=False).rows)
        for target in arguments.target or TARGETS:
            command = [sys.executable, __file__, "--measure", target, "--folder", name]
            rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
            print(json.dumps(rows[-1]), flush=True)
            if arguments.out:
                _write(arguments, rows)


def _write(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Write what there is so far: an interrupted run keeps it."""
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "items": arguments.items,
        "dim": arguments.dim,
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--target", action="append", choices=TARGETS, help="default: all")
    parser.add_argument("--folder", type=Path, help="where everything is made, and deleted")
    parser.add_argument("--out", type=Path, help="a JSON file for all numbers")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # in a process of its own
    return parser.parse_args()


def _measure(target: str, folder: Path) -> dict[str, Any]:
    manifest, embeddings = Manifest.read(folder / "manifest.parquet"), np.load(folder / "embeddings.npy", mmap_mode="r")
    place = folder / target
    if target in LOCAL:
        return _build_and_search(target, partial(Index.cached, embeddings, place, target), place, manifest, folder)
    with MilvusServer(place) as server:
        address = f"http://127.0.0.1:{server.port}/items"

        def upload() -> MilvusIndex:
            collection = MilvusIndex(address)
            collection.upload(embeddings, manifest)
            return collection

        return _build_and_search(target, upload, place / "data", manifest, folder, server.pid)


def _build_and_search(
    target: str, build: Callable[[], Any], place: Path, manifest: Manifest, folder: Path, server: int | None = None
) -> dict[str, Any]:
    queries, best = np.load(folder / "queries.npy"), np.load(folder / "best.npy")
    where = {"group": ["7"]}
    chosen = {"where": where} if server is not None else {"rows": matching_rows(manifest, where, "the items")}
    before, began, cpu = _memory(), time.perf_counter(), _cpu(server)
    index = build()
    built, built_cpu = time.perf_counter() - began, _cpu(server) - cpu

    plain, found = _times(lambda one: index.search(one, 10), queries)
    filtered, _ = _times(lambda one: index.search(one, 10, **chosen), queries)
    measured = {
        "index": target,
        "build_s": round(built, 1),
        "build_cpu_s": round(built_cpu, 1),
        "disk_mib": round(sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) / 2**20),
        "recall_at_10": round(sum(len(np.intersect1d(*pair)) for pair in zip(found, best, strict=False)) / found.size, 4),
        "query_ms": plain,
        "query_where_ms": filtered,
        "memory_mib": _memory() - before + (0 if server is None else _memory(server)),
    }
    return measured


def _times(call: Any, queries: NDArray[np.float32]) -> tuple[dict[str, float], NDArray[np.int64]]:
    """Milliseconds of a query, as many as are done within SECONDS after three to warm up; and the ids that they found."""
    for one in queries[:3]:
        call(one[None])
    times, found, end = [], [], time.perf_counter() + SECONDS
    for one in queries:
        began = time.perf_counter()
        found.append(call(one[None]).rows[0])
        times.append(1e3 * (time.perf_counter() - began))
        if time.perf_counter() > end:
            break
    p50, p95 = np.percentile(times, [50, 95])
    return {"p50": round(float(p50), 2), "p95": round(float(p95), 2), "queries": len(times)}, np.array(found)


def _memory(process: int | str = "self") -> int:
    """MiB of a process in memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) // 1024


def _cpu(server: int | None) -> float:
    """CPU seconds of this process and of the server so far."""
    if server is None:
        return time.process_time()
    user, system = Path(f"/proc/{server}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return time.process_time() + (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
