"""The demo's experiment: a drawn collection in memory, a network small enough for any machine, exact metrics."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import nn

from suprank.data import ImageDataset, Manifest, MPerClassSampler, collated
from suprank.evaluation import evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from suprank.losses import Combined

SIDE = 32  # pixels: enough to tell an emoji, and quick on one core
IMAGES_PER_CLASS = 4  # in a batch
WIDTH, EMBEDDING = 32, 128
RATE, PROXY_RATE = 2e-3, 2e-2
SHIFT = 3  # pixels that a training batch is moved by at most
METRICS = ("H-AP", "AP", "R@1")


class Images(NamedTuple):
    """Images `[N, 3, SIDE, SIDE]` in bytes, and their labels `[N, L]`, finest first, numbered 0, 1, 2, ... in each level."""

    pixels: Tensor
    labels: Tensor

    @property
    def classes(self) -> int:
        return int(self.labels[:, 0].max()) + 1


def collection(name: str, progress: Callable[[int, int], None]) -> Manifest:
    """The manifest called `emoji` or `glyphs`, made on the first call, or the one in a file of that name."""
    if name == "glyphs":
        from suprank.data.importers import glyphs

        return glyphs.read(progress=progress)
    if name == "emoji":
        from suprank.data.importers import emoji

        return emoji.read(progress=progress)
    return Manifest.read(name)


def first_choice() -> str:
    """`emoji`, which has colours, where they can be had; else `glyphs`, which needs nothing."""
    from suprank.data.importers import emoji

    return "emoji" if emoji.available() else "glyphs"


def images(manifest: Manifest, progress: Callable[[int, int], None]) -> Images:
    """All images of a manifest, made square and small, in memory."""
    dataset = ImageDataset(manifest, _small, at_least=SIDE)
    pixels = torch.empty(len(dataset), 3, SIDE, SIDE, dtype=torch.uint8)
    for row in range(len(dataset)):
        pixels[row] = collated([dataset[row]]).images[0]
        progress(row + 1, len(dataset))
    numbered = [np.unique(column, return_inverse=True)[1] for column in manifest.labels.T]
    return Images(pixels, torch.from_numpy(np.stack(numbered, axis=1)))


def _small(image: Image.Image) -> Tensor:
    resized = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=2)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def embedder() -> nn.Sequential:
    """A network of four convolutions, from pixels to an embedding."""
    layers: list[nn.Module] = []
    channels = (3, WIDTH, 2 * WIDTH, 4 * WIDTH, 4 * WIDTH)
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * (SIDE // 16) ** 2, EMBEDDING))


def batches(images: Images, batch_size: int, seed: int) -> Iterator[Images]:
    """Batches without end: `IMAGES_PER_CLASS` images of each of as many classes as fit."""
    sampler = MPerClassSampler(images.labels.numpy(), batch_size, IMAGES_PER_CLASS, seed=seed)
    return (Images(images.pixels[rows], images.labels[rows]) for _ in iter(int, 1) for rows in sampler)


def unit(pixels: Tensor) -> Tensor:
    """Bytes as numbers from −1 to 1."""
    return pixels.float() / 127.5 - 1


def training(model: nn.Module, loss: Combined, stream: Iterator[Images], steps: int, seed: int) -> Iterator[float]:
    """The loss of each step, as the model is trained; each batch is moved by a few pixels."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW([{"params": model.parameters()}, {"params": loss.parameters()}])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [RATE, PROXY_RATE], total_steps=steps)
    model.train()
    for _ in range(steps):
        batch = next(stream)
        moved = torch.randint(-SHIFT, SHIFT + 1, (2,), generator=generator).tolist()
        value = loss(model(torch.roll(unit(batch.pixels), moved, (2, 3))), batch.labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
        yield value.item()


@torch.no_grad()
def embeddings(model: nn.Module, images: Images) -> Tensor:
    """What the model makes of all images, a row each."""
    model.eval()
    return torch.cat([model(unit(some)) for some in images.pixels.split(256)])


def exact_metrics(embeddings: Tensor, images: Images) -> dict[str, float]:
    """H-AP, AP and R@1 with every image a query against all the others."""
    report = evaluate(embeddings, images.labels, metrics=METRICS, device="cpu", progress=False)
    return {name: report[name] for name in METRICS}
