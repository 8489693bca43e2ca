"""Time of a training step and of embedding an image, for every network of the recipes: `suprank paper --plan` computes with it.

python benchmarks/step_times.py --out src/suprank/paper/step_times.json       on a GPU, in under 4 minutes
python benchmarks/step_times.py --quick                                       small images and batches, to see that it works

A step is what `suprank train` does with a batch: forward, loss, backward, and the optimizers of the network and the proxies, on
random images that are on the device already. Data loading is not included: decoding, augmentation, copies to the device. Nor
is a memory of earlier batches. The weights are random; the loss is the recipe's, with 11,318 classes. This needs timm and
pydantic, but not pyarrow or Lightning.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import platform
import statistics
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from suprank.losses import skip_value_checks
from suprank.models import Embedder
from suprank.models.config import EmbedderConfig
from suprank.system.cpu_features import avoid_amx
from suprank.training.optimizers import network_optimizer, proxies_optimizer
from suprank.training.recipe import read_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from suprank.training.config import TrainConfig

RECIPES = (  # each has a network or an image size of its own
    "sop/roadmap",
    "sop/roadmap-memory",
    "cub/roadmap",
    "dyml-vehicle/happier",
    "hgldv2/happier",
    "sop/roadmap-deit",
    "inat-base/roadmap-vit",
)
BATCHES = (32, 64, 128, 256)  # small ones do not fill a GPU: their time is not in proportion
START = EmbedderConfig(backbone="resnet101", pooling="gem", normalization="l2", dim=2048, freeze_batchnorm=True)  # of hgldv2
CLASSES = 11_318  # SOP's: as many proxies
MEASURED = (
    "Median of whole, synchronized steps (forward, loss, backward, optimizers) and of embedding in evaluation mode, on random "
    "images that are on the device already. Data loading is not included (decoding, augmentation, copies to the device), nor "
    "is a memory of earlier batches."
)


class Scale(NamedTuple):
    """How much is measured: sides and batches of the recipes, or small ones."""

    batches: tuple[int, ...]
    embedded: int
    steps: int
    warmup: int
    side: int | None = None


FULL = Scale(BATCHES, embedded=64, steps=20, warmup=5)
QUICK = Scale((8,), embedded=8, steps=2, warmup=1, side=64)


class Training:
    """The network of a recipe, its loss and its optimizers on a device."""

    def __init__(self, config: TrainConfig, side: int, device: torch.device) -> None:
        settings = START if config.model.start is not None else config.embedder
        self.device, self.precision = device, config.engine.precision
        self.embedder = Embedder(settings.model_copy(update={"image_size": (side, side)})).to(device)
        self.embedder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.loss = config.loss.build(labels_of_classes(), self.embedder.dim).to(device)
        self.optimizer = network_optimizer(config.optimizer, self.embedder.parameter_groups())
        self.proxies_optimizer = proxies_optimizer(config.proxies, list(self.loss.parameters()))

    def step(self, images: Tensor, labels: Tensor) -> float:
        """One step; reading the loss waits for the device, as training does."""
        embeddings = self._embed(images)
        with skip_value_checks():
            loss = self.loss(embeddings.float(), labels)
        loss.backward()
        for optimizer in (self.optimizer, self.proxies_optimizer):
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
        return loss.item()

    @torch.inference_mode()
    def embed(self, images: Tensor) -> None:
        self._embed(images)

    def _embed(self, images: Tensor) -> Tensor:
        mean, std = (
            torch.tensor(colors, device=self.device).view(3, 1, 1)
            for colors in (self.embedder.input.mean, self.embedder.input.std)
        )
        normalized = ((images / 255 - mean) / std).to(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision != "fp32"):
            return self.embedder(normalized)


def labels_of_classes() -> Tensor:
    """Three levels."""
    fine = torch.arange(CLASSES)
    return torch.stack([fine, fine // 100, fine // 1000], 1)


def random_batch(size: int, side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Four images each of random classes, and their labels."""
    images = torch.randint(256, (size, 3, side, side), dtype=torch.uint8, device=device)
    return images, labels_of_classes()[torch.randperm(CLASSES)[: size // 4].repeat_interleave(4)].to(device)


def median_seconds(call: Callable[[], Any], device: torch.device, scale: Scale) -> float:
    """The median time of synchronized calls, without the first few."""
    seconds = []
    for _ in range(scale.warmup + scale.steps):
        _wait(device)
        begin = time.perf_counter()
        call()
        _wait(device)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[scale.warmup :])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(recipe: str, scale: Scale, device: torch.device) -> Iterator[dict[str, Any]]:
    """Rows of the table: the network of a recipe with batches of every size."""
    config = read_recipe(recipe)
    side = scale.side or config.images.size
    training = Training(config, side, device)
    embedder = training.embedder.eval()
    images, _ = random_batch(scale.embedded, side, device)
    embedding = median_seconds(partial(training.embed, images), device, scale) / scale.embedded
    embedder.train()
    for size in scale.batches:
        images, labels = random_batch(size, side, device)
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        yield {
            "recipe": recipe,
            "backbone": embedder.config.backbone,
            "pooling": embedder.config.pooling,
            "image_size": side,
            "batch_size": size,
            "precision": config.engine.precision,
            "loss": config.loss.name,
            "step_seconds": median_seconds(partial(training.step, images, labels), device, scale),
            "embedding_seconds": embedding,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
        }


def measure_all(scale: Scale, device: torch.device) -> list[dict[str, Any]]:
    """Every network with every batch size; prints each row as it comes."""
    print("| recipe | network | pixels | batch | ms per step | images/s | ms per embedded image | peak GiB |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    rows = []
    for recipe in RECIPES:
        for row in measure(recipe, scale, device):
            rows.append(row)
            size, step = row["batch_size"], row["step_seconds"]
            peak = "" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}"
            print(
                f"| {recipe} | {row['backbone']}, {row['pooling']} | {row['image_size']} | {size} | {1e3 * step:.1f} | "
                f"{size / step:.0f} | {1e3 * row['embedding_seconds']:.3f} | {peak} |",
                flush=True,
            )
        gc.collect()
    return rows


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small images and batches, and two steps of each")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        avoid_amx()
    torch.manual_seed(0)
    begin = time.perf_counter()
    content = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(device),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "timm")},
        "command": " ".join(["python", "benchmarks/step_times.py", *sys.argv[1:]]),
        "measured": MEASURED,
        "networks": measure_all(QUICK if given.quick else FULL, device),
    }
    print(f"\n{content['hardware']}, torch {torch.__version__}, in {time.perf_counter() - begin:.0f} s")
    print(MEASURED)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
