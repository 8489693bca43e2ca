"""Speed of image loading: ImageDataset compared with torchvision's ImageFolder, in one run, on the same files and transforms.

python benchmarks/loading.py                          JPEG files of two sizes and a zip, made for the run; CUB if present
python benchmarks/loading.py --files-only             without the zip and CUB
python benchmarks/loading.py --backbone resnet50      also a backbone: how fast it is, and how fast the loader feeds it
python benchmarks/loading.py --against ../before      this checkout and another one, from a folder, a zip and a tar

A loader reads, decodes, transforms and batches every image of an epoch in its workers. Loaders take turns, and the best epoch
of each counts, because others may use the machine too; the CPU time is then more reliable. Numbers in parentheses are speeds
relative to ImageFolder. Files are in the page cache, so the disk is not measured. "In bytes" leaves the normalization to the
device, where it is part of the backbone's time. "Turbo" is the decoder of that name (needs `suprank[vision]`), in bytes too,
with the same pixels; "decoded smaller" is a fraction of the size where the transform needs no more.

`--against` measures in fresh processes, in turns, and keeps the best of each: opening, the time until the first batch,
decoding, decoding and embedding, and the memory that only a worker has; of archives with `--members` members too.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from suprank.data.datasets import ImageDataset, collate
from suprank.data.jpeg import Decoder
from suprank.data.manifest import Manifest
from suprank.data.transforms import Normalize, eval_transform, min_short_side, train_transform
from suprank.system import torchvision_operators

torchvision_operators.declare()
from torchvision.datasets import ImageFolder  # noqa: E402

CUB = Path(__file__).parents[2] / "shared" / "data" / "cub200_s128.zip"
DIFFERENT = 64  # images that are made once and written many times, which makes no difference to the loaders


class Speed(NamedTuple):
    """Images per second, and milliseconds of CPU per image, of workers and main process together (None without /proc).

    The first is what a model gets; the second is more reliable on a shared machine.
    """

    rate: float
    cpu: float | None

    def compared_with(self, other: Speed) -> str:
        cpu = "" if self.cpu is None or other.cpu is None else f", {self.cpu:.2f} ms of CPU ({other.cpu / self.cpu:.2f})"
        return f"{self.rate:,.0f} images/s ({self.rate / other.rate:.2f}){cpu}"


class Row(NamedTuple):
    """The speeds on one collection. `smaller` decodes JPEGs at a fraction of their size if the transform needs no more.

    The last three are in bytes. None stands for JPEGs that are too small for a fraction, and for what is no JPEG.
    """

    images: str
    transform: str
    image_folder: Speed
    ours: Speed
    in_bytes: Speed
    smaller: Speed | None
    turbo: Speed | None
    turbo_smaller: Speed | None

    def __str__(self) -> str:
        loaders = {
            "ImageFolder": self.image_folder,
            "ImageDataset": self.ours,
            "ImageDataset, in bytes": self.in_bytes,
            "ImageDataset, in bytes, decoded smaller": self.smaller,
            "ImageDataset, turbo": self.turbo,
            "ImageDataset, turbo, decoded smaller": self.turbo_smaller,
        }
        lines = [f"  {name}: {speed.compared_with(self.image_folder)}" for name, speed in loaders.items() if speed is not None]
        return "\n".join([f"{self.images}, {self.transform}", *lines])


def main() -> None:
    options = _arguments()
    if options.measure:
        print(json.dumps(_measure_source(options.measure, options)))
        return
    if options.against:
        _save(options, _compare_checkouts(options))
        return
    transforms = {
        "train": partial(train_transform, options.size),
        "test": partial(eval_transform, options.size, resize=round(options.size / 0.875)),
    }
    with tempfile.TemporaryDirectory(prefix="loading") as name:
        rows = []
        for images, folder, manifest in _collections(Path(name), options):
            for title, transform in transforms.items() if not options.backbone_only else ():
                rows.append(_compare_loaders(images, title, folder, manifest, transform, options))
                print(rows[-1], flush=True)
        model = _measure_backbone(Path(name), transforms, options) if options.backbone else {}
    _save(
        options, {"loaders": [{name: _plain(value) for name, value in row._asdict().items()} for row in rows], "model": model}
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--images", type=int, default=2000, help="files of 500 × 375; a quarter as many of 1600 × 1200")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="loader processes")
    parser.add_argument("--files-only", action="store_true", help="skip the zip and CUB")
    parser.add_argument("--size", type=int, default=224, help="side of the model's input, in pixels")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3, help="epochs of each loader")
    parser.add_argument("--backbone", help="a timm name; measured in bf16, on the GPU if there is one")
    parser.add_argument("--backbone-only", action="store_true", help="skip the comparison of loaders")
    parser.add_argument("--steps", type=int, default=60, help="batches of the backbone without a loader")
    parser.add_argument("--against", type=Path, help="another checkout, to compare with")
    parser.add_argument("--members", type=int, default=100_000, help="members of the archives that --against lists")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="a JSON file for all numbers")
    return parser.parse_args()


# Images


def _collections(root: Path, options: argparse.Namespace) -> Iterator[tuple[str, Path, Manifest]]:
    """Name, a folder for ImageFolder, and a manifest of the same images in the same order."""
    images = options.images
    for width, height, count in ((500, 375, images), (1600, 1200, max(images // 4, 1))):
        folder = root / f"{width}x{height}"
        _write(folder, width, height, count)
        yield f"{count:,} JPEG files of {width} × {height}", folder, _manifest(folder, root, f"{folder.name}/")
        if width == 500 and not options.files_only:
            _pack(folder, root / "pack.zip")
            yield f"the same {count:,} in a zip", folder, _manifest(folder, root, "pack.zip::")
    if CUB.is_file() and not options.files_only:
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
    """A JPEG with detail at every scale, with about as many bytes per pixel as a photograph: 100 kB at 500 × 375."""
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
    return Manifest.from_columns(columns | {"label_class": [path.split("/")[0] for path in inner]}, root=root)


# Loaders


def _compare_loaders(
    images: str, title: str, folder: Path, manifest: Manifest, build_transform: Callable[..., Any], options: argparse.Namespace
) -> Row:
    transform, in_bytes = build_transform(), build_transform(mean=None)
    datasets: dict[str, Dataset[Any]] = {
        "image_folder": ImageFolder(folder, transform),
        "ours": ImageDataset(manifest, transform),
        "in_bytes": ImageDataset(manifest, in_bytes),
    }
    short = min_short_side(transform)
    if manifest.paths[0].as_py().endswith(".jpg"):
        if short is not None and _short_side(folder) >= 2 * short:
            datasets["smaller"] = ImageDataset(manifest, in_bytes, min_short_side=short)
        datasets["turbo"] = ImageDataset(manifest, in_bytes, decoder="turbo")
        if _short_side(folder) >= 2 * options.size:
            datasets["turbo_smaller"] = ImageDataset(manifest, in_bytes, min_short_side=short, decoder="turbo")
    loaders = [_loader(dataset, None if name == "image_folder" else collate, options) for name, dataset in datasets.items()]
    speeds = dict(zip(datasets, _speeds(loaders, options.repeats), strict=True))
    return Row(images, title, **{name: speeds.get(name) for name in Row._fields[2:]})


def _short_side(folder: Path) -> int:
    with Image.open(next(folder.rglob("*.jpg"))) as picture:
        return min(picture.size)


def _loader(dataset: Dataset[Any], collate: Any, options: argparse.Namespace, **extra: Any) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=options.batch,
        num_workers=options.workers,
        collate_fn=collate,
        persistent_workers=options.workers > 0,
        **extra,
    )


def _speeds(loaders: list[DataLoader[Any]], repeats: int) -> list[Speed]:
    """The best of several epochs of each loader, in turns, after an untimed one that starts the workers."""
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
    """CPU time of this process and its living children: the workers of all loaders, of which one loader's are busy."""
    total = time.process_time()
    for child in multiprocessing.active_children() if _PROC.is_dir() else ():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


# A model behind the loader


def _measure_backbone(
    root: Path, transforms: dict[str, Callable[..., Any]], options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Images per second of the model on a tensor that is on the device already, and on batches of a loader by decoder."""
    import timm

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = root / "500x375"
    manifest = _manifest(folder, root, f"{folder.name}/")
    model = timm.create_model(options.backbone, num_classes=512).to(memory_format=torch.channels_last).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    normalize = Normalize()

    def train_step(images: torch.Tensor) -> None:
        images = images.to(device, memory_format=torch.channels_last, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(normalize(images)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    @torch.inference_mode()
    def inference_step(images: torch.Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            model(normalize(images.to(device, memory_format=torch.channels_last, non_blocking=True)))

    constant = torch.randint(0, 256, (options.batch, 3, options.size, options.size), dtype=torch.uint8, device=device)
    rates = {}
    for name, step, transform in (("training", train_step, "train"), ("inference", inference_step, "test")):
        model.train(name == "training")
        without_loader = _rate(step, lambda: itertools.repeat(constant, options.steps))
        rates[name] = {"tensors that are there": without_loader}
        print(f"{options.backbone} at {options.size} px in bf16, {name}: {without_loader:,.0f} images/s without a loader")
        for decoder in get_args(Decoder):
            dataset = ImageDataset(manifest, transforms[transform](mean=None), decoder=decoder)
            loader = _loader(dataset, collate, options, pin_memory=device.type == "cuda")
            fed = _rate(step, partial(_images, loader))
            alone = _speeds([loader], options.repeats)[0].rate
            rates[name] |= {f"fed by the loader, {decoder}": fed, f"the loader alone, {decoder}": alone}
            print(
                f"  {decoder}: {fed:,.0f} with {options.workers} workers ({fed / without_loader:.2f}); the loader alone "
                f"{alone:,.0f} ({alone / without_loader:.2f})",
                flush=True,
            )
    return rates


def _images(loader: DataLoader[Any]) -> Iterator[torch.Tensor]:
    return (batch.images for batch in loader)


def _rate(step: Callable[[torch.Tensor], None], batches: Callable[[], Iterator[torch.Tensor]]) -> float:
    """Images per second over all batches, after an untimed pass, in which kernels are chosen and workers start."""
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


# Another checkout


def _compare_checkouts(options: argparse.Namespace) -> dict[str, Any]:
    """Checkout → source → measure → the best of all repeats. Archives of many members are opened twice: listed, and cached."""
    checkouts = {"this": Path(__file__).parents[1], "other": options.against.resolve()}
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in checkouts}
    with tempfile.TemporaryDirectory(prefix="loading") as name:
        root = Path(name)
        sources = _sources(root, options)
        for turn, source in itertools.product(range(options.repeats), sources):
            for who in sorted(checkouts, reverse=bool(turn % 2)):
                environment = {"PYTHONPATH": str(checkouts[who] / "src"), "SUPRANK_CACHE": str(root / f"{who}-{turn}")}
                for title in (f"{source.stem}, listed", f"{source.stem}, cached") if "many" in source.stem else (source.stem,):
                    best = found[who].setdefault(title, {})
                    for measure, value in _measure_in_child(source, environment, options).items():
                        better = max if measure.endswith("images_per_s") else min
                        best[measure] = better(value, best.get(measure, value))
    for title, best in found["this"].items():
        for measure, value in best.items():
            other = found["other"][title][measure]
            print(f"{title}, {measure}: {value:,.3f}, the other {other:,.3f} ({value / other:.2f})")
    return found


def _measure_in_child(source: Path, environment: dict[str, str], options: argparse.Namespace) -> dict[str, float]:
    words = ["--measure", source, "--workers", options.workers, "--batch", options.batch, "--size", options.size]
    words += ["--backbone", options.backbone] if options.backbone else []
    command = [sys.executable, __file__, *map(str, words)]
    found: dict[str, float] = json.loads(subprocess.check_output(command, env=os.environ | environment, text=True))
    return found


def _sources(root: Path, options: argparse.Namespace) -> list[Path]:
    """Manifests of JPEGs in a folder, a zip and a tar, and of archives with many members, of which a batch is used."""
    _write(root / "500x375", 500, 375, options.images)
    files = sorted((root / "500x375").rglob("*.jpg"))
    small = BytesIO()
    Image.new("RGB", (8, 8)).save(small, "JPEG")
    inside = [file.relative_to(root / "500x375").as_posix() for file in files]
    many = [f"photos/{number // 100:05}/{number:07}.jpg" for number in range(options.members)]
    packs = {"a": (inside, [file.read_bytes() for file in files]), "many": (many, itertools.repeat(small.getvalue()))}
    for pack, (names, contents) in packs.items():
        with zipfile.ZipFile(root / f"{pack}.zip", "w") as zipped, tarfile.open(root / f"{pack}.tar", "w") as tarred:
            for name, content in zip(names, contents, strict=False):
                zipped.writestr(name, content)
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tarred.addfile(member, BytesIO(content))
    first = many[: options.batch]
    used = {"folder": ("500x375/", inside), "zip": ("a.zip::", inside), "tar": ("a.tar::", inside)}
    used |= {"many-zip": ("many.zip::", first), "many-tar": ("many.tar::", first)}
    for source, (prefix, names) in used.items():
        columns = {"path": [prefix + name for name in names], "split": ["train"] * len(names)}
        Manifest.from_columns(columns, root=root, levels=()).save(root / f"{source}.parquet")
    time.sleep(2.1)  # archives of just now were not cached by every version
    return [root / f"{source}.parquet" for source in used]


def _measure_source(file: Path, options: argparse.Namespace) -> dict[str, float]:
    """What this process, which has the code of one checkout, measures on one manifest."""
    manifest = Manifest.read(file)
    began, used = time.perf_counter(), time.process_time()
    loader = _loader(ImageDataset(manifest, train_transform(options.size, mean=None)), collate, options)
    measures = {
        "open_cpu_s": time.process_time() - used,
        "open_peak_mib": _status_mib("VmHWM"),
    }
    next(iter(loader))
    measures["first_batch_s"] = time.perf_counter() - began
    if len(manifest) > options.batch:
        speed = _speeds([loader], 1)[0]
        measures |= {"images_per_s": speed.rate, "cpu_ms_an_image": speed.cpu or 0.0}
        workers = [Path(f"/proc/{child.pid}/smaps_rollup").read_text() for child in multiprocessing.active_children()]
        own = [sum(map(int, re.findall(r"^Private_\w+:\s+(\d+)", text, re.MULTILINE))) / 1024 for text in workers]
        measures["worker_own_mib"] = max(own, default=0.0)
        if options.backbone:
            import timm

            model, normalize = timm.create_model(options.backbone, num_classes=0).eval(), Normalize()
            with torch.inference_mode():
                measures["embedded_images_per_s"] = _rate(lambda images: model(normalize(images)), partial(_images, loader))
    return measures


def _status_mib(name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


# Report


def _save(options: argparse.Namespace, numbers: dict[str, Any]) -> None:
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(_report(options) | numbers, indent=1) + "\n")


def _report(options: argparse.Namespace) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    chip = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    card = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    packages = ("suprank", "torchvision", "pillow", "simplejpeg", "pyarrow", "timm")
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "hardware": f"{chip}, {os.cpu_count()} cores{card}",
        "versions": {"Python": platform.python_version(), "torch": str(torch.__version__)} | _versions(packages),
        "method": f"best of {options.repeats} epochs, {options.workers} workers, batch {options.batch}; images/s, CPU ms/image",
    }


def _plain(value: Any) -> Any:
    return value._asdict() if isinstance(value, Speed) else value


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    there = {name for names in importlib.metadata.packages_distributions().values() for name in names}
    return {name: importlib.metadata.version(name) for name in packages if name in there}


if __name__ == "__main__":
    main()
