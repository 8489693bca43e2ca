"""The inputs of the losses: random embeddings under a label tree of three levels, the same for every loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

DIM = 512
IMAGES_PER_CLASS = 4
CLASSES_PER_GROUP = 4  # fine classes in a middle class
COARSE_IN_BATCH = 4
COARSE_IN_MEMORY = 12  # with 60,000 items: 5,000 positives per query
_SEED = 0


class LossInputs(NamedTuple):
    """Arguments of a loss. Labels are `[N, 3]`, finest first; only `embeddings` need gradients."""

    embeddings: Tensor
    labels: Tensor
    ref_emb: Tensor | None
    ref_labels: Tensor | None


@dataclass(frozen=True)
class LossWorkload:
    """`queries` embeddings ranked against each other, or against a memory of `memory` items if that is above 0."""

    queries: int
    memory: int = 0

    def __post_init__(self) -> None:
        for name, value in (("queries" if self.memory else "batch", self.queries), ("memory", self.memory)):
            if value % IMAGES_PER_CLASS or value < 0 or not self.queries:
                nearest = max(IMAGES_PER_CLASS, value - value % IMAGES_PER_CLASS)
                raise ValueError(
                    f"{name}={value} must be a positive multiple of {IMAGES_PER_CLASS}, because every class has "
                    f"{IMAGES_PER_CLASS} images; try {nearest}."
                )

    @property
    def items(self) -> int:
        """How many items each query ranks (itself included, within a batch)."""
        return self.memory or self.queries

    @property
    def series(self) -> str:
        """Workloads of one series differ in size only."""
        return "memory" if self.memory else "batch"

    @property
    def size(self) -> str:
        return str(self.items)

    @property
    def classes(self) -> int:
        """How many fine classes there are."""
        return self.items // IMAGES_PER_CLASS

    @property
    def miniature(self) -> LossWorkload:
        """A tiny workload of the same kind, to load libraries and start threads."""
        return LossWorkload(16, 48 if self.memory else 0)

    def inputs(self, device: torch.device) -> LossInputs:
        """The tensors, drawn on the CPU so that every device gets the same; items of a class are contiguous."""
        generator = torch.Generator().manual_seed(_SEED)
        embeddings = torch.randn(self.queries, DIM, generator=generator).to(device).requires_grad_()
        fine = torch.arange(self.items) // IMAGES_PER_CLASS
        if not self.memory:
            return LossInputs(embeddings, self._tree(fine, COARSE_IN_BATCH).to(device), None, None)
        ref_emb = torch.randn(self.memory, DIM, generator=generator).to(device)
        query_classes = torch.randint(self.classes, (self.queries,), generator=generator)
        labels, ref_labels = (self._tree(ids, COARSE_IN_MEMORY).to(device) for ids in (query_classes, fine))
        return LossInputs(embeddings, labels, ref_emb, ref_labels)

    def _tree(self, fine: Tensor, coarse_classes: int) -> Tensor:
        middle = fine // CLASSES_PER_GROUP
        middle_classes = -(-self.classes // CLASSES_PER_GROUP)
        return torch.stack([fine, middle, middle * coarse_classes // middle_classes], 1)
