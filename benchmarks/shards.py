"""Speed of reading images in the random order of class-balanced batches: loose files, .zip, .tar shards, Parquet and Arrow.

python benchmarks/shards.py                       6,000 JPEGs of 500 × 375, made for the run; 100 .tar shards
python benchmarks/shards.py --repeats 1 --batches 20 --out benchmarks/results/cpu/shards.json

Three numbers for each place: milliseconds of CPU to read one image without decoding it; images per second, and milliseconds of
CPU per image, of a loader with forked workers that decodes, crops to 224 pixels and batches. Loaders take turns, and the best
of each counts; on a busy machine trust the CPU time. Files are in the page cache, so no disk is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import tempfile
import time
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from suprank.data import BalancedBatchSampler, ImageDataset, Manifest, collate, train_transform
from suprank.data.export import export_manifest
from suprank.data.importers.hf import import_hf
from suprank.data.workers import loader_batches

CLASSES = 100


def main() -> None:
    options = _arguments()
    with tempfile.TemporaryDirectory(prefix="shards") as name:
        places = _places(Path(name), options)
        results: dict[str, dict[str, float]] = {place: {} for place in places}
        for place, manifest in places.items():
            begun = time.process_time()
            ImageDataset(manifest)
            results[place]["listing, s of CPU"] = time.process_time() - begun
            results[place]["reading, ms of CPU per image"] = _reading(manifest)
        for _ in range(options.repeats):
            for place, manifest in places.items():
                rate, cpu = _loading(manifest, options)
                best = results[place]
                best["images per second"] = max(rate, best.get("images per second", 0))
                best["loading, ms of CPU per image"] = min(cpu, best.get("loading, ms of CPU per image", 1e9))
    for place, values in results.items():
        print(f"{place}: " + ", ".join(f"{what} {value:,.3g}" for what, value in values.items()))
    if options.out:
        about = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "torch": torch.__version__,
            "options": {key: str(value) for key, value in vars(options).items()},
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=3, help="turns of each loader, of which the best counts")
    parser.add_argument("--batches", type=int, default=80, help="batches of 64 images in a turn")
    parser.add_argument("--out", type=Path, help="file for the numbers (.json)")
    return parser.parse_args()


def _places(root: Path, options: argparse.Namespace) -> dict[str, Manifest]:
    """The same images in every place, as manifests."""
    draw = np.random.default_rng(0)
    different = [_jpeg(draw) for _ in range(64)]
    (root / "files").mkdir()
    paths = [f"{row}.jpg" for row in range(options.images)]
    for row, name in enumerate(paths):
        (root / "files" / name).write_bytes(different[row % len(different)])
    labels = [f"class {row % CLASSES:03d}" for row in range(options.images)]
    columns = {"path": paths, "split": ["train"] * options.images, "label_class": labels}
    files = Manifest.from_columns(columns, root=root / "files")
    size = sum(path.stat().st_size for path in (root / "files").iterdir())
    export_manifest(files, root / "tars", format="webdataset", shard_size=size // 100)
    export_manifest(files, root / "tar", format="webdataset")
    export_manifest(files, root / "parquet")
    datasets.config.HF_DATASETS_CACHE = root / "cache"
    datasets.load_dataset(str(root / "parquet")).save_to_disk(root / "saved")
    places = {"loose files": files}
    places |= {f"{len(list((root / name).glob('*/*.tar')))} .tar": _imported(root / name) for name in ("tar", "tars")}
    return places | {
        "Arrow (save_to_disk)": _imported(root / "saved"),
        "Parquet, in the Arrow cache": _imported(root / "parquet"),
    }


def _jpeg(draw: np.random.Generator) -> bytes:
    coarse = Image.fromarray(draw.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
    noisy = np.asarray(coarse).astype(np.int16) + draw.integers(-12, 13, (375, 500, 3))
    file = BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def _imported(folder: Path) -> Manifest:
    return import_hf(folder).manifests[""]


def _reading(manifest: Manifest, count: int = 300) -> float:
    """Milliseconds of CPU to read an image, in random order."""
    dataset, rows = ImageDataset(manifest), np.random.default_rng(1).integers(0, len(manifest), count)
    paths = [manifest.paths[int(row)].as_py() for row in rows]
    begun = time.process_time()
    for path in paths:
        dataset.files.read(path)
    return (time.process_time() - begun) / count * 1e3


def _loading(manifest: Manifest, options: argparse.Namespace) -> tuple[float, float]:
    """Images per second of some batches, and milliseconds of CPU per image of this process and its workers."""
    sampler = BalancedBatchSampler(manifest.labels, batch_size=64, images_per_class=4, seed=0, batches=options.batches)
    dataset = ImageDataset(manifest, train_transform(224, mean=None))
    settings: dict[str, Any] = {"num_workers": options.workers, "multiprocessing_context": "fork"} if options.workers else {}
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, **settings)
    begun, cpu = time.perf_counter(), _cpu()
    images = sum(len(batch.indices) for batch in loader_batches(loader))
    return images / (time.perf_counter() - begun), (_cpu() - cpu) / images * 1e3


def _cpu() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


if __name__ == "__main__":
    main()
