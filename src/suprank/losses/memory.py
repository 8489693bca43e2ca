"""`EmbeddingMemory`: embeddings of earlier batches as further items to rank (XBM, Wang et al., CVPR 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from suprank.ranking.relevance import is_integral

if TYPE_CHECKING:
    from jaxtyping import Float, Integer
    from torch import Tensor

EMPTY = -1
"""The id of a place that nothing was written to, in a memory with a place for each item."""


class MemoryContents(NamedTuple):
    """The items of a memory, without gradients."""

    embeddings: Float[Tensor, "items dim"]
    labels: Integer[Tensor, "items levels *set"]
    ids: Integer[Tensor, " items"]


class EmbeddingMemory(nn.Module):
    """A memory of the last `size` embeddings that were added, with their labels and ids, in float32.

    In a training loop, add each batch first and rank it against the memory then, as the authors' code does. The memory holds
    the batch too; the loss recognizes each query, and its older copies, by the id of the image:

        memory = EmbeddingMemory(size=4096, dim=512, levels=2).to(device)
        for images, labels, ids in loader:                        # labels [B, 2], ids [B]: the number of each image
            embeddings = model(images)
            memory.add(embeddings, labels, ids)
            items = memory.contents()
            against_memory = loss(
                embeddings, labels, ref_emb=items.embeddings, ref_labels=items.labels, ids=ids, ref_ids=items.ids
            )
            (0.5 * loss(embeddings, labels) + 0.5 * against_memory).backward()

    Embeddings are stored as they come (losses normalize) and carry no gradient. The oldest make room for the new, and of a
    batch larger than the memory the last `size` rows stay, so that it does not matter how images are divided into batches.
    With `per_item=True` every id from 0 to `size` − 1 has a place of its own, so that no image is stored twice; where a batch
    holds an id twice, the last row stays. With `max_labels` labels are sets `[batch, levels, max_labels]`. The memory is
    saved in `state_dict()`, bit for bit. Processes that add the same batches hold the same memory.

    Example:
        >>> memory = EmbeddingMemory(size=3, dim=2, levels=1)
        >>> memory.add(torch.eye(2), torch.tensor([[0], [1]]), ids=torch.tensor([7, 8]))
        >>> memory.add(torch.eye(2), torch.tensor([[1], [0]]), ids=torch.tensor([9, 7]))
        >>> memory.contents().ids
        tensor([7, 8, 9])
    """

    stored_embeddings: Tensor
    stored_labels: Tensor
    stored_ids: Tensor
    added: Tensor

    def __init__(self, size: int, dim: int, levels: int, *, max_labels: int | None = None, per_item: bool = False) -> None:
        super().__init__()
        for name, value in (("size", size), ("dim", dim), ("levels", levels), ("max_labels", max_labels)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be 1 or more.")
        self.size, self.per_item = size, per_item
        shape = (size, levels) if max_labels is None else (size, levels, max_labels)
        self.register_buffer("stored_embeddings", torch.zeros(size, dim, dtype=torch.float32))
        self.register_buffer("stored_labels", torch.zeros(shape, dtype=torch.int64))
        self.register_buffer("stored_ids", torch.full((size,), EMPTY, dtype=torch.int64))
        if not per_item:
            self.register_buffer("added", torch.zeros((), dtype=torch.int64))
        # Counted on the host too: reading the buffer would wait for the GPU at every step.
        self._added = 0
        self._filled = 0

    def extra_repr(self) -> str:
        return _describe(self.stored_embeddings, self.stored_labels, per_item=self.per_item)

    def __len__(self) -> int:
        return self._filled

    @torch.no_grad()
    def add(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Integer[Tensor, "batch levels *set"],
        ids: Integer[Tensor, " batch"],
    ) -> None:
        """Add a batch to the memory. Tensors that `contents` returned before may change with it."""
        self._check(embeddings, labels, ids)
        if not len(ids):
            return
        rows = embeddings.detach(), labels, ids
        if self.per_item:
            self._add_by_id(*(values.to(self.stored_ids.device) for values in rows))
        else:
            self._add_to_ring(*rows)

    def contents(self) -> MemoryContents:
        """The items of the memory, by place: views of its buffers, or a copy where places between are empty."""
        stored = MemoryContents(self.stored_embeddings, self.stored_labels, self.stored_ids)
        if self._filled == self.size:
            return stored
        if not self.per_item:
            return MemoryContents(*(values[: self._filled] for values in stored))
        filled = (self.stored_ids != EMPTY).nonzero()[:, 0]
        return MemoryContents(*(values[filled] for values in stored))

    def _add_to_ring(self, *rows: Tensor) -> None:
        count = len(rows[0])
        first = max(0, count - self.size)  # above 0 only for a batch larger than the memory
        place = (self._added + first) % self.size
        wrap = first + self.size - place  # the row that goes into place 0
        for stored, values in zip((self.stored_embeddings, self.stored_labels, self.stored_ids), rows, strict=True):
            to_the_end, from_the_start = values[first:wrap], values[wrap:]
            stored[place : place + len(to_the_end)] = to_the_end
            stored[: len(from_the_start)] = from_the_start
        self.added += count
        self._added += count
        self._filled = min(self._added, self.size)

    def _add_by_id(self, embeddings: Tensor, labels: Tensor, ids: Tensor) -> None:
        lowest, highest = torch.stack(torch.aminmax(ids)).tolist()
        if lowest < 0 or highest >= self.size:
            raise ValueError(
                f"ids span {lowest}..{highest}, but with per_item each id is a place from 0 to {self.size - 1}; "
                f"number the training images from 0, and make size their number."
            )
        ids = ids.long()
        # A GPU writes equal ids in any order. Every row is replaced by the last of its id, so that the order does not matter.
        rows = torch.arange(len(ids), device=ids.device)
        last = torch.zeros_like(self.stored_ids).scatter_reduce(0, ids, rows, "amax")[ids]
        self.stored_embeddings[ids] = embeddings[last].to(self.stored_embeddings.dtype)
        self.stored_labels[ids] = labels[last].long()
        self.stored_ids[ids] = ids
        self._count()

    def _count(self) -> None:
        """Update the counts on the host from the buffers."""
        if not self.per_item:
            self._added = int(self.added)
            self._filled = min(self._added, self.size)
        elif self._filled < self.size:  # a full memory stays full
            self._filled = int((self.stored_ids != EMPTY).sum())

    def _check(self, embeddings: Tensor, labels: Tensor, ids: Tensor) -> None:
        dim, each = self.stored_embeddings.shape[1], tuple(self.stored_labels.shape[1:])
        if embeddings.ndim != 2 or embeddings.shape[1] != dim or not embeddings.dtype.is_floating_point:
            raise ValueError(
                f"embeddings are {embeddings.dtype} of shape {tuple(embeddings.shape)}, but this memory holds floating-point "
                f"[batch, {dim}]; make it with dim={embeddings.shape[-1] if embeddings.ndim else 1}."
            )
        if labels.shape != (len(embeddings), *each) or not is_integral(labels):
            sets = ", and sets of max_labels" if len(each) > 1 else ""
            raise ValueError(
                f"labels are {labels.dtype} of shape {tuple(labels.shape)}, but must be integers "
                f"{[len(embeddings), *each]}: a row for each embedding, and a column for each level of this memory{sets}."
            )
        if ids.shape != (len(embeddings),) or not is_integral(ids):
            raise ValueError(
                f"ids are {ids.dtype} of shape {tuple(ids.shape)}, but must be {len(embeddings)} integers: the images' numbers."
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        embeddings, labels = (state_dict.get(f"{prefix}stored_{name}") for name in ("embeddings", "labels"))
        if embeddings is not None and labels is not None:  # torch itself reports what is missing
            saved = _describe(embeddings, labels, per_item=f"{prefix}added" not in state_dict)
            own = _describe(self.stored_embeddings, self.stored_labels, per_item=self.per_item)
            if saved != own:
                raise ValueError(f"the saved memory has {saved}, but this one has {own}; make it as the saved one was.")
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._filled = 0
        self._count()


def _describe(embeddings: Tensor, labels: Tensor, *, per_item: bool) -> str:
    sets = f"max_labels={labels.shape[2]}, " if labels.ndim == 3 else ""
    return f"size={len(embeddings)}, dim={embeddings.shape[1]}, levels={labels.shape[1]}, {sets}per_item={per_item}"
