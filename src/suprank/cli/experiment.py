"""The demo's experiment: images of a generated label tree, an embedder small enough for any machine, exact metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.nn.functional import normalize

from suprank import ranking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from suprank.losses import Combined

GROUPS, FAMILIES, CLASSES = 5, 4, 8  # the tree: children of the root, of a group, of a family
SEEN = 6  # classes of each family to train on; the others are for testing
IMAGES = 12  # of each class
IMAGES_PER_CLASS = 4  # in a batch
CONTENT, STYLE, PIXELS, HIDDEN, EMBEDDING = 12, 24, 128, 256, 64
RATE, PROXY_RATE = 1e-3, 1e-2


class Images(NamedTuple):
    """Images as vectors of "pixels" `[N, PIXELS]`, and their labels `[N, 3]`: class, family, group."""

    pixels: Tensor
    labels: Tensor

    @property
    def classes(self) -> int:
        return len(self.labels[:, 0].unique())


def train_and_test(seed: int) -> tuple[Images, Images]:
    """Two sets of images that share groups and families but no class.

    An image is content, which its class, family and group decide, and style, which is larger and decided by nothing,
    mixed by a random non-linear map. Pixels alone therefore rank poorly; an embedder that learns to look past style
    ranks classes it has never seen.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    tree = GROUPS, FAMILIES, CLASSES, IMAGES
    content = normal(GROUPS, 1, 1, 1, CONTENT) + 0.8 * normal(GROUPS, FAMILIES, 1, 1, CONTENT)
    content = content + 0.6 * normal(GROUPS, FAMILIES, CLASSES, 1, CONTENT) + 0.3 * normal(*tree, CONTENT)
    style = 1.5 * normal(*tree, STYLE)
    mixed = torch.tanh(torch.cat([content, style], -1) @ normal(CONTENT + STYLE, PIXELS) / (CONTENT + STYLE) ** 0.5)
    pixels = torch.tanh(2 * mixed @ normal(PIXELS, PIXELS) / PIXELS**0.5) + 0.05 * normal(*tree, PIXELS)

    group, family, fine = (ids.expand(tree) for ids in torch.meshgrid(*map(torch.arange, tree), indexing="ij")[:3])
    family = group * FAMILIES + family
    # Classes to train on are numbered first, because proxies stand for 0, 1, 2, ...
    fine = torch.where(fine < SEEN, family * SEEN + fine, GROUPS * FAMILIES * CLASSES + family * CLASSES + fine)
    labels = torch.stack([fine, family, group], -1)
    seen, unseen = slice(None, SEEN), slice(SEEN, None)
    return _flat(pixels[:, :, seen], labels[:, :, seen]), _flat(pixels[:, :, unseen], labels[:, :, unseen])


def _flat(pixels: Tensor, labels: Tensor) -> Images:
    return Images(pixels.flatten(0, -2), labels.flatten(0, -2))


def embedder() -> nn.Sequential:
    """A network of three layers, from pixels to an embedding."""
    return nn.Sequential(
        nn.Linear(PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, EMBEDDING)
    )


def batches(images: Images, batch_size: int, seed: int) -> Iterator[Images]:
    """Batches without end: as many classes as fit, `IMAGES_PER_CLASS` different images of each."""
    largest = images.classes * IMAGES_PER_CLASS
    if batch_size % IMAGES_PER_CLASS or not 2 * IMAGES_PER_CLASS <= batch_size <= largest:
        nearest = min(max(batch_size - batch_size % IMAGES_PER_CLASS, 2 * IMAGES_PER_CLASS), largest)
        raise ValueError(
            f"{batch_size} must be a multiple of {IMAGES_PER_CLASS} from {2 * IMAGES_PER_CLASS} to {largest}, because a batch "
            f"holds {IMAGES_PER_CLASS} images of each of 2 to {images.classes} classes; try {nearest}."
        )
    return _batches(images, batch_size // IMAGES_PER_CLASS, torch.Generator().manual_seed(seed))


def _batches(images: Images, classes: int, generator: torch.Generator) -> Iterator[Images]:
    while True:
        chosen = torch.randperm(images.classes, generator=generator)[:classes]
        shuffled = torch.rand(classes, IMAGES, generator=generator).argsort(-1)[:, :IMAGES_PER_CLASS]
        index = (chosen[:, None] * IMAGES + shuffled).flatten()
        yield Images(images.pixels[index], images.labels[index])


def training(model: nn.Module, loss: Combined, stream: Iterator[Images], steps: int) -> Iterator[float]:
    """The loss of each step, as the model is trained."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    optimizer.add_param_group({"params": loss.parameters(), "lr": PROXY_RATE})
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        batch = next(stream)
        value = loss(model(batch.pixels), batch.labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
        yield value.item()


@torch.no_grad()
def exact_metrics(model: nn.Module, images: Images) -> dict[str, float]:
    """H-AP, AP and R@1 with every image a query against all the others."""
    unit = normalize(model(images.pixels), dim=-1)
    scores, exact = unit @ unit.T, ranking.heaviside
    level = ranking.ignoring(ranking.common_level(images.labels), torch.arange(len(unit)))
    relevance = ranking.tree_relevance(level)
    graded = ranking.ranks(scores, level, relevance, plus=exact, minus=exact)
    fine = ranking.at_least(level, images.labels.shape[1])
    binary = ranking.ranks(scores, fine, plus=exact, minus=exact)
    return {
        "H-AP": ranking.hierarchical_average_precision(graded, relevance).mean().item(),
        "AP": ranking.average_precision(binary, fine > 0).mean().item(),
        "R@1": ranking.hit_rate_at(binary, fine > 0, 1).mean().item(),
    }
