"""How fast images reach a model: ImageDataset beside torchvision's ImageFolder, in one run, on the same files and transforms.

python benchmarks/feeding.py                          JPEG files of two sizes and a zip, made for the run; CUB where it is
python benchmarks/feeding.py --backbone resnet50      and, on a GPU, what a backbone could take, and what it is given

The loader alone: every image of an epoch, read, decoded, transformed and batched by the workers. Loaders take turns, and the
best epoch of each counts, because others may use the machine too; then believe the CPU time. Numbers in parentheses are times
as fast as ImageFolder. Files are in the page cache: no disk is measured. "In bytes" leaves the normalization to the device,
where it is part of the backbone's time.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from suprank.data.datasets import ImageDataset, collated
from suprank.data.manifest import Manifest
from suprank.data.transforms import Normalize, at_least, eval_transform, train_transform
from suprank.system import torchvision_operators

torchvision_operators.declare()
from torchvision.datasets import ImageFolder  # noqa: E402

CUB = Path(__file__).parents[2] / "shared" / "data" / "cub200_s128.zip"
DIFFERENT = 64  # pictures are made once and written many times: the loaders cannot know


class Speed(NamedTuple):
    """Images a second, and milliseconds of CPU an image, of workers and the main process together (None without /proc).

    The first is what a model gets; the second says more on a machine that others use.
    """

    rate: float
    cpu: float | None

    def beside(self, other: Speed) -> str:
        cpu = "" if self.cpu is None or other.cpu is None else f", {self.cpu:.2f} ms of CPU ({other.cpu / self.cpu:.2f})"
        return f"{self.rate:,.0f} images/s ({self.rate / other.rate:.2f}){cpu}"


class Row(NamedTuple):
    """`smaller` decodes JPEGs at a fraction of their size where the transform needs no more."""

    images: str
    transform: str
    image_folder: Speed
    ours: Speed
    in_bytes: Speed
    smaller: Speed | None

    def __str__(self) -> str:
        loaders = {
            "ImageFolder": self.image_folder,
            "ImageDataset": self.ours,
            "ImageDataset, in bytes": self.in_bytes,
            "ImageDataset, in bytes, decoded smaller": self.smaller,
        }
        lines = [f"  {name}: {speed.beside(self.image_folder)}" for name, speed in loaders.items() if speed is not None]
        return "\n".join([f"{self.images}, {self.transform}", *lines])


def main() -> None:
    asked = _arguments()
    transforms = {
        "train": partial(train_transform, asked.size),
        "test": partial(eval_transform, asked.size, resize=round(asked.size / 0.875)),
    }
    with tempfile.TemporaryDirectory(prefix="feeding") as name:
        rows = []
        for images, folder, manifest in _collections(Path(name), asked.images):
            for title, transform in transforms.items() if not asked.backbone_only else ():
                rows.append(_measured(images, title, folder, manifest, transform, asked))
                print(rows[-1], flush=True)
        model = _fed(Path(name), train_transform(asked.size, mean=None), asked) if asked.backbone else {}
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(_report(asked, rows, model), indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--images", type=int, default=2000, help="files of 500 × 375; a quarter as many of 1600 × 1200")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that load")
    parser.add_argument("--size", type=int, default=224, help="pixels of a side that the model takes")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3, help="epochs of each loader")
    parser.add_argument("--backbone", help="a timm name; measured in bf16, on the GPU if there is one")
    parser.add_argument("--backbone-only", action="store_true", help="leave the comparison of loaders out")
    parser.add_argument("--steps", type=int, default=60, help="batches of the backbone on tensors that are there")
    parser.add_argument("--out", type=Path, help="a JSON file for all numbers")
    return parser.parse_args()


# Images


def _collections(root: Path, images: int) -> Iterator[tuple[str, Path, Manifest]]:
    """Name, a folder for ImageFolder, and a manifest of the same images in the same order."""
    for width, height, count in ((500, 375, images), (1600, 1200, max(images // 4, 1))):
        folder = root / f"{width}x{height}"
        _write(folder, width, height, count)
        yield f"{count:,} JPEG files of {width} × {height}", folder, _manifest(folder, root, f"{folder.name}/")
        if width == 500:
            _pack(folder, root / "pack.zip")
            yield f"the same {count:,} in a zip", folder, _manifest(folder, root, "pack.zip::")
    if CUB.is_file():
        folder = root / "cub"
        with zipfile.ZipFile(CUB) as archive:
            members = [name for name in archive.namelist() if name.endswith(".webp")]
            archive.extractall(folder, members[:images])
        yield (
            f"{min(len(members), images):,} of CUB at 128 px, WebP, in a zip",
            folder / "images",
            _manifest(folder / "images", CUB.parent, f"{CUB.name}::images/"),
        )


def _write(folder: Path, width: int, height: int, count: int) -> None:
    pictures = [_photograph(width, height, seed) for seed in range(min(DIFFERENT, count))]
    for number in range(count):
        file = folder / f"class{number % 10}" / f"{number:06}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pictures[number % len(pictures)])


def _photograph(width: int, height: int, seed: int) -> bytes:
    """A JPEG with detail at every scale, of about as many bytes a pixel as a photograph: 100 kB at 500 × 375."""
    generator = np.random.default_rng(seed)
    total = np.full((height, width, 3), 128.0)
    for cells, strength in ((4, 60), (16, 30), (64, 18), (256, 12)):
        noise = generator.normal(0, strength, (cells * height // width + 1, cells, 3)).astype(np.float32)
        channels = [Image.fromarray(noise[..., one]).resize((width, height), Image.Resampling.BICUBIC) for one in range(3)]
        total += np.stack([np.asarray(channel) for channel in channels], -1)
    file = BytesIO()
    Image.fromarray(total.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=92)
    return file.getvalue()


def _pack(folder: Path, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*.jpg")):
            archive.write(file, file.relative_to(folder))


def _manifest(folder: Path, root: Path, prefix: str) -> Manifest:
    """In the order of ImageFolder: classes by name, then files by name."""
    inner = [Path(path).relative_to(folder).as_posix() for path, _ in ImageFolder(folder).samples]
    columns = {"path": [prefix + path for path in inner], "split": ["train"] * len(inner)}
    return Manifest.of(columns | {"label_class": [path.split("/")[0] for path in inner]}, root=root)


# The loader alone


def _measured(
    images: str, title: str, folder: Path, manifest: Manifest, made: Callable[..., Any], asked: argparse.Namespace
) -> Row:
    transform, in_bytes = made(), made(mean=None)
    sides: list[tuple[Dataset[Any], Any]] = [
        (ImageFolder(folder, transform), None),
        (ImageDataset(manifest, transform), collated),
        (ImageDataset(manifest, in_bytes), collated),
    ]
    short = at_least(transform)
    jpeg = manifest.paths[0].as_py().endswith(".jpg")
    if short is not None and jpeg and _short_side(folder) >= 2 * short:
        sides.append((ImageDataset(manifest, in_bytes, at_least=short), collated))
    speeds = _speeds([_loader(dataset, collate, asked) for dataset, collate in sides], asked.repeats)
    return Row(images, title, *speeds[:3], speeds[3] if len(speeds) > 3 else None)


def _short_side(folder: Path) -> int:
    with Image.open(next(folder.rglob("*.jpg"))) as picture:
        return min(picture.size)


def _loader(dataset: Dataset[Any], collate: Any, asked: argparse.Namespace, **options: Any) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=asked.batch,
        num_workers=asked.workers,
        collate_fn=collate,
        persistent_workers=asked.workers > 0,
        **options,
    )


def _speeds(loaders: list[DataLoader[Any]], repeats: int) -> list[Speed]:
    """The best of several epochs of each, in turn, after one that starts workers and does not count."""
    seconds, cpu = ([float("inf")] * len(loaders) for _ in range(2))
    for epoch in range(repeats + 1):
        for place, loader in enumerate(loaders):
            began, used = time.perf_counter(), _cpu_seconds()
            for _ in loader:
                pass
            if epoch:
                seconds[place] = min(seconds[place], time.perf_counter() - began)
                cpu[place] = min(cpu[place], _cpu_seconds() - used)
    counts = [len(loader.dataset) for loader in loaders]  # type: ignore[arg-type]
    return [
        Speed(count / best, 1e3 * least / count if _PROC.is_dir() else None)
        for count, best, least in zip(counts, seconds, cpu, strict=True)
    ]


_PROC = Path("/proc/self")


def _cpu_seconds() -> float:
    """Of this process and its children that live: the workers of all loaders, of which one loader's are busy at a time."""
    total = time.process_time()
    for child in multiprocessing.active_children() if _PROC.is_dir() else ():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


# A model behind it


def _fed(root: Path, transform: Callable[..., Any], asked: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Images a second: of the model on tensors that are on the GPU already, and when the loader feeds it."""
    import timm

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = root / "500x375"
    dataset = ImageDataset(_manifest(folder, root, f"{folder.name}/"), transform)
    model = timm.create_model(asked.backbone, num_classes=512).to(memory_format=torch.channels_last).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    normalize = Normalize()

    def trained(images: torch.Tensor) -> None:
        images = images.to(device, memory_format=torch.channels_last, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(normalize(images)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    @torch.inference_mode()
    def embedded(images: torch.Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            model(normalize(images.to(device, memory_format=torch.channels_last, non_blocking=True)))

    still = torch.randint(0, 256, (asked.batch, 3, asked.size, asked.size), dtype=torch.uint8, device=device)
    found = {}
    for name, step in (("training", trained), ("inference", embedded)):
        model.train(name == "training")
        loader = _loader(dataset, collated, asked, pin_memory=device.type == "cuda")
        possible = _rate(step, lambda: itertools.repeat(still, asked.steps))
        fed = _rate(step, partial(_images, loader))
        alone = _speeds([loader], asked.repeats)[0].rate
        found[name] = {"tensors that are there": possible, "fed by the loader": fed, "the loader alone": alone}
        print(
            f"{asked.backbone} at {asked.size} px in bf16, {name}: images/s: {possible:,.0f} on tensors that are there, "
            f"{fed:,.0f} fed by {asked.workers} workers ({fed / possible:.2f}); the loader alone {alone:,.0f} "
            f"({alone / possible:.2f})"
        )
    return found


def _images(loader: DataLoader[Any]) -> Iterator[torch.Tensor]:
    return (batch.images for batch in loader)


def _rate(step: Callable[[torch.Tensor], None], batches: Callable[[], Iterator[torch.Tensor]]) -> float:
    """Images a second over all batches, after a pass over them that warms up: kernels are chosen, workers start."""
    seconds, count = 0.0, 0
    for _ in range(2):
        began, count = time.perf_counter(), 0
        for images in batches():
            step(images)
            count += len(images)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return count / seconds


# Report


def _report(asked: argparse.Namespace, rows: list[Row], model: dict[str, dict[str, float]]) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    chip = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    card = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    packages = ("suprank", "torchvision", "pillow", "pyarrow", "timm")
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "hardware": f"{chip}, {os.cpu_count()} cores{card}",
        "versions": {"Python": platform.python_version(), "torch": str(torch.__version__)} | _versions(packages),
        "method": f"best of {asked.repeats} epochs, {asked.workers} workers, batch {asked.batch}; images/s, CPU ms an image",
        "loaders": [{name: _plain(value) for name, value in row._asdict().items()} for row in rows],
        "model": model,
    }


def _plain(value: Any) -> Any:
    return value._asdict() if isinstance(value, Speed) else value


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    there = {name for names in importlib.metadata.packages_distributions().values() for name in names}
    return {name: importlib.metadata.version(name) for name in packages if name in there}


if __name__ == "__main__":
    main()
