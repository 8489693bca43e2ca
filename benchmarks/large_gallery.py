"""Exact evaluation of queries against a gallery in memory-mapped float16 files: time, peak memory, estimate, and resume.

python benchmarks/large_gallery.py --items 10000000 --out benchmarks/results/h200/large-gallery.json     files of 2.4 GiB
python benchmarks/large_gallery.py --items 1000000 --items 10000000 --device cpu --resume --no-brute-force
python benchmarks/large_gallery.py --in-memory --coarse 4 --labeled 1 --device cpu     with faiss beside it

Embeddings are drawn around the centers of their classes, 10 images each, in 100 coarse classes; four of five items are
distractors without a label, as in ILIAS. Beside it, in the same run: a plain loop over the same files that only finds the 100
best items (read, convert, multiply, `torch.topk`), as brute-force search does. With `--in-memory` the gallery is a float32
array instead, and the search beside it is that of faiss (`IndexFlatIP`, k = 100; pip install faiss-cpu). CPU-seconds are of
the whole process, all threads: on a shared machine, they are what can be compared.

With --resume, `suprank evaluate --checkpoint` is killed (SIGKILL) after half of the estimated time, up to three times, and
started again; the digits of its report are compared with those of an evaluation in one go. 100,000,000 items are not measured:
time grows with the number of items, and "100M, linear" is the time of every metric multiplied by 100,000,000 / items.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from suprank.evaluation import Report, evaluate

PER_CLASS, BLOCK, MOST_KILLS = 10, 1_000_000, 3
SOME_METRICS = ["R@1", "R@10", "mAP@100"]  # for which only the top of the list is ranked


def draw(folder: Path, items: int, arguments: argparse.Namespace) -> None:
    """Write the shards of a gallery, its labels, and queries of its classes with theirs."""
    queries, dim, shards, device = arguments.queries, arguments.dim, arguments.shards, arguments.device
    classes = max(arguments.coarse, items // arguments.labeled // PER_CLASS)
    generator = torch.Generator(device).manual_seed(0)
    centers = torch.randn(classes, dim, generator=generator, device=device)
    fine = np.full(items, -1, np.int32)
    fine[: classes * PER_CLASS] = np.arange(classes * PER_CLASS) % classes
    np.random.default_rng(0).shuffle(fine)
    (folder / "shards").mkdir()
    for number, part in enumerate(np.array_split(fine, shards)):
        path = folder / "shards" / f"{number:03d}.npy"
        gallery = np.lib.format.open_memmap(path, "w+", np.float16, (len(part), dim))
        for start in range(0, len(part), BLOCK):
            block = torch.from_numpy(part[start : start + BLOCK]).to(device)
            around = centers[block.clamp(min=0)] * (block >= 0)[:, None]
            drawn = around + 1.5 * torch.randn(len(block), dim, generator=generator, device=device)
            gallery[start : start + BLOCK] = drawn.half().cpu().numpy()
        gallery.flush()
    own = (np.arange(queries) * (classes // queries)).astype(np.int32)
    vectors = centers[torch.from_numpy(own).to(device)] + 1.5 * torch.randn(queries, dim, generator=generator, device=device)
    np.save(folder / "labels.npy", _with_coarse(fine, arguments.coarse))
    np.save(folder / "queries.npy", vectors.cpu().numpy())
    np.save(folder / "query-labels.npy", _with_coarse(own, arguments.coarse))


def _with_coarse(fine: np.ndarray, classes: int) -> np.ndarray:
    return np.stack([fine, np.where(fine >= 0, fine % classes, -1)], 1)


class Timer:
    """Wall and CPU-seconds since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def results(self, title: str) -> dict[str, float]:
        return {f"{title}, s": time.perf_counter() - self.wall, f"{title}, CPU s": time.process_time() - self.cpu}


def faiss_search(gallery: np.ndarray, queries: torch.Tensor, k: int = 100) -> dict[str, float]:
    """Seconds that faiss takes for the k best items of every query; the index is filled before."""
    import faiss

    index = faiss.IndexFlatIP(gallery.shape[1])
    index.add(gallery / np.linalg.norm(gallery, axis=1, keepdims=True))
    wanted = torch.nn.functional.normalize(queries, dim=1).cpu().numpy()
    timer = Timer()
    index.search(wanted, k)
    return timer.results("faiss, 100 best")


def brute_force(folder: Path, queries: torch.Tensor, device: str, k: int = 100) -> float:
    """Seconds to find the k best items of every query, reading the files once."""
    start = time.perf_counter()
    queries = torch.nn.functional.normalize(queries, dim=1)
    best, numbers = queries.new_full((len(queries), k), -2), torch.zeros(len(queries), k, dtype=torch.int64, device=device)
    chunk, before = 2**18, 0
    for path in sorted((folder / "shards").iterdir()):
        gallery = np.load(path, mmap_mode="r")
        for first in range(0, len(gallery), chunk):
            block = torch.from_numpy(np.array(gallery[first : first + chunk])).to(device).float()
            scores = queries @ torch.nn.functional.normalize(block, dim=1).T
            values, at = scores.topk(min(k, scores.shape[1]), dim=1)
            best, order = torch.cat([best, values], 1).topk(k, dim=1)
            numbers = torch.cat([numbers, at + first + before], 1).gather(1, order)
        before += len(gallery)
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start


def resume(folder: Path, device: str, budget: int | None, seconds: float, expected: Report) -> dict[str, Any]:
    """Kill the command after half of the time, again and again, until it ends; compare its digits."""
    command = [sys.executable, "-m", "suprank", "evaluate", "queries.npy", "--labels", "query-labels.npy", "--device", device]
    command += ["--gallery", "shards/*.npy", "--gallery-labels", "labels.npy", "--checkpoint", "checkpoint", "--quiet"]
    command += ["--out", "report.json", *([] if budget is None else ["--memory-budget", str(budget)])]
    start, kills = time.perf_counter(), 0
    while True:
        began = subprocess.Popen(command, cwd=folder)
        try:
            code = began.wait(max(20, seconds / 2) if kills < MOST_KILLS else None)
            break
        except subprocess.TimeoutExpired:
            began.kill()
            began.wait()
            kills += 1
    assert code == 0, f"the command ended with {code}"
    same = Report.load(folder / "report.json").means == expected.means
    return {"kills": kills, "with kills, s": time.perf_counter() - start, "same digits": same}


def measure(items: int, arguments: argparse.Namespace) -> dict[str, Any]:
    device = arguments.device
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        draw(folder, items, arguments)
        queries, own = torch.from_numpy(np.load(folder / "queries.npy")).to(device), np.load(folder / "query-labels.npy")
        gallery: Any = str(folder / "shards" / "*.npy")
        labels = np.load(folder / "labels.npy", mmap_mode="r")
        if arguments.in_memory:
            parts = [np.load(path) for path in sorted((folder / "shards").iterdir())]
            gallery = np.concatenate(parts).astype(np.float32)
        row: dict[str, Any] = {
            "items": items,
            "queries": len(queries),
            "dim": arguments.dim,
            "files": arguments.shards,
            "GiB": sum(path.stat().st_size for path in (folder / "shards").iterdir()) / 2**30,
            "positives of the first query": int((labels[:, 1] == own[0, 1]).sum()),
        }
        options = {"device": device, "memory_budget": arguments.budget, "levels": ["0", "1"]}  # as the command names them
        for metrics in (SOME_METRICS, None):  # compiles what is timed below, which depends on the number of pairs
            evaluate(queries[:2], own[:2], gallery, labels, metrics=metrics, progress=False, **options)
        if arguments.in_memory:
            row |= faiss_search(gallery, queries)
        elif arguments.brute_force:
            row["brute force, 100 best, s"] = brute_force(folder, queries, device)
        for title, metrics in (("R@k", SOME_METRICS), ("every metric", None)):
            if device.startswith("cuda"):
                torch.cuda.reset_peak_memory_stats()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            timer = Timer()
            report = evaluate(queries, own, gallery, labels, metrics=metrics, progress=False, **options)
            row |= timer.results(title)
            row[f"{title}, host MiB"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            if device.startswith("cuda"):
                row[f"{title}, device MiB"] = torch.cuda.max_memory_allocated() / 2**20
        row["100M, linear, s"] = row["every metric, s"] * 100_000_000 / items
        if arguments.resume:
            row |= resume(folder, device, arguments.budget, row["every metric, s"], report)
        row |= {"AP": report["AP"], "AP/label1": report["AP/1"], "R@1": report["R@1"]}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, action="append")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--shards", type=int, default=4, help="files that the gallery is written to")
    parser.add_argument("--no-brute-force", dest="brute_force", action="store_false")
    parser.add_argument("--resume", action="store_true", help="kill the command halfway, go on, and compare the digits")
    parser.add_argument("--coarse", type=int, default=100, help="number of coarse classes")
    parser.add_argument("--labeled", type=int, default=5, help="one of so many items has a label")
    parser.add_argument("--in-memory", action="store_true", help="a float32 array in place of the file, with faiss beside it")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--budget", type=int, help="memory_budget in bytes")
    parser.add_argument("--folder", type=Path, help="where files are written (default: TMPDIR)")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for items in arguments.items or [1_000_000]:
        rows.append(measure(items, arguments))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        machine = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else platform.processor()
        arguments.out.write_text(json.dumps({"device": machine, "torch": torch.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
