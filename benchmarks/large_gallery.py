"""Exact evaluation of queries against a gallery in a memory-mapped float16 file: time and peak memory.

python benchmarks/large_gallery.py --items 10000000 --out benchmarks/results/h200/large-gallery.json     a file of 2.4 GiB
python benchmarks/large_gallery.py --items 1000000 --device cpu

Embeddings are drawn around the centers of their classes, 10 images each, in 100 coarse classes; four of five items are
distractors without a label, as in ILIAS. Beside it, in the same run: a plain loop over the same file that only finds the 100
best items (read, convert, multiply, `torch.topk`), as brute-force search does.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from suprank.evaluation import evaluate

PER_CLASS, COARSE, LABELED, BLOCK = 10, 100, 5, 1_000_000


def draw(folder: Path, items: int, queries: int, dim: int, device: str) -> tuple[Path, np.ndarray, torch.Tensor, np.ndarray]:
    """The file of the gallery, its labels, and queries of its classes with theirs."""
    classes = max(COARSE, items // LABELED // PER_CLASS)
    generator = torch.Generator(device).manual_seed(0)
    centers = torch.randn(classes, dim, generator=generator, device=device)
    path = folder / "gallery.npy"
    gallery = np.lib.format.open_memmap(path, "w+", np.float16, (items, dim))
    fine = np.full(items, -1)
    fine[: classes * PER_CLASS] = np.arange(classes * PER_CLASS) % classes
    np.random.default_rng(0).shuffle(fine)
    for start in range(0, items, BLOCK):
        block = torch.from_numpy(fine[start : start + BLOCK]).to(device)
        around = centers[block.clamp(min=0)] * (block >= 0)[:, None]
        drawn = around + 1.5 * torch.randn(len(block), dim, generator=generator, device=device)
        gallery[start : start + BLOCK] = drawn.half().cpu().numpy()
    gallery.flush()
    own = np.arange(queries) * (classes // queries)
    vectors = centers[torch.from_numpy(own).to(device)] + 1.5 * torch.randn(queries, dim, generator=generator, device=device)
    return path, _with_coarse(fine), vectors, _with_coarse(own)


def _with_coarse(fine: np.ndarray) -> np.ndarray:
    return np.stack([fine, np.where(fine >= 0, fine % COARSE, -1)], 1)


def brute_force(path: Path, queries: torch.Tensor, device: str, k: int = 100) -> float:
    """Seconds to find the k best items of every query, reading the file once."""
    gallery = np.load(path, mmap_mode="r")
    start = time.perf_counter()
    queries = torch.nn.functional.normalize(queries, dim=1)
    best, numbers = queries.new_full((len(queries), k), -2), torch.zeros(len(queries), k, dtype=torch.int64, device=device)
    chunk = 2**18
    for first in range(0, len(gallery), chunk):
        block = torch.from_numpy(np.array(gallery[first : first + chunk])).to(device).float()
        scores = queries @ torch.nn.functional.normalize(block, dim=1).T
        values, at = scores.topk(min(k, scores.shape[1]), dim=1)
        best, order = torch.cat([best, values], 1).topk(k, dim=1)
        numbers = torch.cat([numbers, at + first], 1).gather(1, order)
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(items: int, arguments: argparse.Namespace) -> dict[str, Any]:
    device = arguments.device
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        path, labels, queries, own = draw(Path(name), items, arguments.queries, arguments.dim, device)
        row: dict[str, Any] = {
            "items": items,
            "queries": len(queries),
            "dim": arguments.dim,
            "GiB": path.stat().st_size / 2**30,
        }
        evaluate(queries[:64], own[:64], device=device, progress=False)  # compiles kernels
        row["brute force, 100 best, s"] = brute_force(path, queries, device)
        for title, metrics in (("R@k, s", ["R@1", "R@10", "mAP@100"]), ("every metric, s", None)):
            if device.startswith("cuda"):
                torch.cuda.reset_peak_memory_stats()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            start = time.perf_counter()
            report = evaluate(
                queries, own, path, labels, metrics=metrics, device=device, progress=False, memory_budget=arguments.budget
            )
            row[title] = time.perf_counter() - start
            row[title.replace(", s", ", host MiB")] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            if device.startswith("cuda"):
                row[title.replace(", s", ", device MiB")] = torch.cuda.max_memory_allocated() / 2**20
        row |= {"AP": report["AP"], "AP/label1": report["AP/label1"], "R@1": report["R@1"]}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, action="append")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--budget", type=int, help="memory_budget in bytes")
    parser.add_argument("--folder", type=Path, help="where the file is written (default: TMPDIR)")
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
