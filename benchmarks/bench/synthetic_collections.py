"""Synthetic collections to evaluate: embeddings under a label tree, with the counts of well-known datasets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from bench.loss_workload import DIM

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

_SEED = 0
_BLOCK = 8192  # rows drawn at a time, to save memory
_ANCESTOR = 0.5  # length of an ancestor's share in a class center; the class's own is 1
_SKEW = 0.5  # of the Dirichlet distribution of a class's share among its children: below 1, a few take most


def _even(random: np.random.Generator, classes: int) -> NDArray[np.float64]:
    return random.random(classes)


def _heavy_tailed(sigma: float) -> Callable[[np.random.Generator, int], NDArray[np.float64]]:
    return lambda random, classes: random.lognormal(sigma=sigma, size=classes)


@dataclass(frozen=True)
class CollectionShape:
    """The counts of a dataset: items, classes at each level, finest first, and how unequal these are."""

    name: str
    dataset: str  # its name in the tables
    items: int
    classes: tuple[int, ...]
    roots: tuple[float, ...]  # share of each coarsest class among the finest ones
    smallest: int  # items of the smallest class
    weights: Callable[[np.random.Generator, int], NDArray[np.float64]]  # distribute the other items over the classes
    noise: float  # length of the noise around the class center: decides how hard retrieval is
    queries: int | None = None  # None: every item is a query against all the others


SHAPES: dict[str, CollectionShape] = {
    shape.name: shape
    for shape in [
        CollectionShape("sop", "Stanford Online Products, test", 60_502, (11_316, 12), tuple(range(6, 18)), 2, _even, 2.35),
        CollectionShape(
            "inat",
            "iNaturalist 2018, test, species to kingdom",
            136_093,
            (2_452, 1_640, 620, 190, 45, 18, 3),
            (0.55, 0.43, 0.02),
            2,
            _heavy_tailed(1.0),
            3.7,
        ),
        CollectionShape(
            "gldv2",
            "Google Landmarks v2, index",
            761_757,
            (55_529, 78, 2),
            (0.85, 0.15),
            1,
            _heavy_tailed(1.6),
            2.5,
            queries=1_129,
        ),
        CollectionShape(
            "million", "a gallery of a million", 1_000_000, (100_000, 1_000, 20), (1,) * 20, 1, _heavy_tailed(1.0), 2.5, 1_000
        ),
    ]
}


class EmbeddedCollection(NamedTuple):
    """Unit embeddings, and labels `[N, L]`, finest first. Without a gallery, the queries are ranked against each other."""

    queries: Tensor
    labels: Tensor
    gallery: Tensor | None
    gallery_labels: Tensor | None

    @property
    def items(self) -> Tensor:
        """The embeddings that are searched."""
        return self.queries if self.gallery is None else self.gallery

    @property
    def item_labels(self) -> Tensor:
        return self.labels if self.gallery_labels is None else self.gallery_labels

    def to(self, device: torch.device) -> EmbeddedCollection:
        gallery, labels = (part if part is None else part.to(device) for part in (self.gallery, self.gallery_labels))
        return EmbeddedCollection(self.queries.to(device), self.labels.to(device), gallery, labels)


class ClassAssignment(NamedTuple):
    """The ancestors of every fine class, `[classes, levels]`, itself first, and the fine classes of items and queries."""

    tree: NDArray[np.int64]
    items: NDArray[np.int64]
    queries: NDArray[np.int64]


@dataclass(frozen=True)
class SyntheticCollection:
    """`queries` ranked against `items` of a shape; without `queries`, every item against all the others.

    A smaller collection has fewer classes of the same sizes: whole classes are left out, and the last one is cut to fit.
    Queries are drawn in addition to the items, from their classes, so that the gallery is the same for any number of them.
    """

    shape: str
    items: int
    queries: int | None = None

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"there is no shape {self.shape!r}; choose from {', '.join(SHAPES)}.")
        if not 2 <= self.items <= SHAPES[self.shape].items:
            raise ValueError(
                f"items={self.items} must be from 2 to {SHAPES[self.shape].items}, which is all of {self.shape}; "
                f"try {min(max(self.items, 2), SHAPES[self.shape].items)}."
            )
        if self.queries is not None and self.queries < 1:
            raise ValueError(f"queries={self.queries} must be at least 1; leave it out to make every item a query.")

    @classmethod
    def full_size(cls, name: str) -> SyntheticCollection:
        """The full size of a shape, with its own number of queries."""
        return cls(name, SHAPES[name].items, SHAPES[name].queries)

    @property
    def series(self) -> str:
        """Collections of one series differ in size only."""
        return f"{self.shape} with queries" if self.queries else self.shape

    @property
    def size(self) -> str:
        return f"{self.shape} {self.query_count:,} × {self.items:,}"

    @property
    def query_count(self) -> int:
        """How many queries there are."""
        return self.queries or self.items

    @property
    def levels(self) -> int:
        return len(SHAPES[self.shape].classes)

    @property
    def miniature(self) -> SyntheticCollection:
        """A tiny collection of the same shape, to load libraries, start threads and compile kernels."""
        return SyntheticCollection(self.shape, min(self.items, 300), self.queries and min(self.queries, 20))

    def assign_classes(self) -> ClassAssignment:
        """The classes of items and queries. Items are shuffled."""
        shape, random = SHAPES[self.shape], np.random.default_rng(_SEED)
        tree, sizes = _tree(shape, random), _sizes(shape, random)
        order = random.permutation(len(sizes))
        items = random.permutation(np.repeat(order, sizes[order])[: self.items])
        return ClassAssignment(tree, items, items if self.queries is None else random.choice(items, self.queries))

    def embed(self) -> EmbeddedCollection:
        """The tensors, on the CPU: the same in every process and for every device."""
        tree, item_class, query_class = self.assign_classes()
        noise, generator = SHAPES[self.shape].noise, torch.Generator().manual_seed(_SEED)
        used, row = np.unique(item_class, return_inverse=True)
        centers = _centers(tree[used], generator)
        items = _around(centers, torch.from_numpy(row), noise, generator)
        item_labels = torch.from_numpy(tree[item_class])
        if self.queries is None:
            return EmbeddedCollection(items, item_labels, None, None)
        queries = _around(centers, torch.from_numpy(np.searchsorted(used, query_class)), noise, generator)
        return EmbeddedCollection(queries, torch.from_numpy(tree[query_class]), items, item_labels)


def _tree(shape: CollectionShape, random: np.random.Generator) -> NDArray[np.int64]:
    """The ancestors of every fine class, `[classes, levels]`, itself first. Every class of every level has a child.

    A class has children in proportion to its share, which is divided among them by a Dirichlet distribution.
    """
    share = np.asarray(shape.roots) / np.sum(shape.roots)
    path = np.arange(len(share))[:, None]
    for count in reversed(shape.classes[:-1]):
        children = 1 + random.multinomial(count - len(share), share)
        parent = np.repeat(np.arange(len(share)), children)
        within = random.gamma(_SKEW, size=count) + 1e-9
        share = share[parent] * within / np.bincount(parent, within)[parent]
        share /= share.sum()
        path = np.concatenate([np.arange(count)[:, None], path[parent]], 1)
    return path


def _sizes(shape: CollectionShape, random: np.random.Generator) -> NDArray[np.int64]:
    """How many items each fine class has; they sum to the shape's items."""
    classes = shape.classes[0]
    weights = shape.weights(random, classes)
    exact = np.cumsum(weights / weights.sum()) * (shape.items - shape.smallest * classes)
    upto = np.rint(exact).astype(np.int64)  # rounding the running sum keeps the total
    return shape.smallest + np.diff(upto, prepend=0)


def _centers(tree: NDArray[np.int64], generator: torch.Generator) -> Tensor:
    """The center of each class: its own random direction plus those of its ancestors, nearly orthogonal."""
    centers = _directions(len(tree), generator)
    for column in range(1, tree.shape[1]):
        used, row = np.unique(tree[:, column], return_inverse=True)
        centers += _ANCESTOR * _directions(len(used), generator)[torch.from_numpy(row)]
    return centers


def _directions(count: int, generator: torch.Generator) -> Tensor:
    return torch.randn(count, DIM, generator=generator) / DIM**0.5


def _around(centers: Tensor, row: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Unit vectors around the centers, computed in place, one block at a time."""
    items = torch.empty(len(row), DIM)
    for start in range(0, len(row), _BLOCK):
        block = items[start : start + _BLOCK]
        block.normal_(generator=generator).mul_(noise / DIM**0.5).add_(centers[row[start : start + _BLOCK]])
        block.div_(block.norm(dim=-1, keepdim=True))
    return items
