"""`EmbeddingMemory`: embeddings of earlier batches as further items to rank (XBM, Wang et al., CVPR 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from suprank.losses.base import RetrievalLoss
from suprank.ranking.hyper_parameters import check_sizes, is_number
from suprank.ranking.relevance import is_integral

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """A memory of the last `size` embeddings that were added, with their labels and ids, in float32; or a loss with a memory.

    With a `loss` it is called as that is, and adds each batch by itself:

        criterion = EmbeddingMemory(size=4096, dim=512, loss=SupAP()).to(device)
        for images, labels, ids in loader:                        # ids [B]: the number of each image
            criterion(model(images), labels, ids).backward()

    The value is (1 − w)·L(batch, batch) + w·L(batch, memory), w = `weight`; with w = 1 it is what pytorch-metric-learning's
    `CrossBatchMemory` computes. The batch enters the memory before that is read, as in the authors' code. Each query, and its
    older copies, are recognized by the id of the image and left out of its own list. Without ids every row is an image of its
    own, so that an image of an earlier epoch is one more positive. Gradients reach the batch and the loss's own parameters,
    `criterion.parameters()`. After a call `log` has the parts of the loss, and the value "against memory".

    Without a `loss`, `add` a batch, and give the `contents` to any loss as `ref_emb`, `ref_labels` and `ref_ids`.

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

    def __init__(
        self,
        size: int,
        dim: int,
        levels: int = 1,
        *,
        loss: RetrievalLoss | None = None,
        weight: float = 0.5,
        max_labels: int | None = None,
        per_item: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(size=size, dim=dim, levels=levels, max_labels=max_labels)
        if loss is not None and not (isinstance(loss, RetrievalLoss) and loss.ranks_items):
            raise TypeError(
                f"loss is a {type(loss).__name__}, but must be a loss of suprank that compares images with each other, such as "
                f"SupAP: others have no use of a memory, or cannot be called with ids."
            )
        if not (is_number(weight) and 0 <= weight <= 1):
            raise ValueError(f"weight={weight!r} must be between 0 and 1: the share of the loss against the memory.")
        self.size, self.per_item = size, per_item
        self.loss, self.weight = loss, weight
        self.log: dict[str, Tensor] = {}
        self._ids_given: bool | None = None
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
        weight = "" if self.loss is None else f", weight={self.weight}"
        return _describe(self.stored_embeddings, self.stored_labels, per_item=self.per_item) + weight

    def __len__(self) -> int:
        return self._filled

    def forward(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Integer[Tensor, "batch ..."],
        ids: Integer[Tensor, " batch"] | None = None,
        *,
        use_memory: bool = True,
    ) -> Float[Tensor, ""]:
        """The loss of the batch and of the batch against the memory; with `use_memory=False` the memory is only filled."""
        if self.loss is None:
            raise TypeError("this memory has no loss to call; make it with loss=SupAP(), or use add and contents.")
        if self._ids_given not in (None, ids is not None):
            raise ValueError("ids were given at some calls and not at others; give them always, or never.")
        self._ids_given = ids is not None
        if ids is None:
            if self.per_item:
                raise ValueError("ids are missing, but with per_item each image has the place of its id; give ids.")
            ids = torch.arange(self._added, self._added + len(embeddings), device=embeddings.device)
        value, self.log = loss_with_memory(self.loss, self, self.weight, embeddings, labels, ids, use_memory=use_memory)
        return value

    @torch.no_grad()
    def add(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Integer[Tensor, "batch ..."],
        ids: Integer[Tensor, " batch"],
    ) -> None:
        """Add a batch to the memory. Tensors that `contents` returned before may change with it."""
        labels = labels[:, None] if labels.ndim == 1 else labels
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


def loss_with_memory(
    loss: Callable[..., Tensor],
    memory: EmbeddingMemory | None,
    weight: float,
    embeddings: Float[Tensor, "batch dim"],
    labels: Integer[Tensor, "batch ..."],
    ids: Integer[Tensor, " batch"],
    *,
    use_memory: bool = True,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """(1 − w)·L(batch, batch) + w·L(batch, memory), after the batch has entered the memory; and its parts, for a log."""
    value = loss(embeddings, labels)
    parts = {name: part for name, part in getattr(loss, "log", {}).items() if name != "loss"}
    if memory is not None:
        memory.add(embeddings, labels, ids)
        if use_memory:
            stored = memory.contents()
            against_memory = loss(
                embeddings, labels, ref_emb=stored.embeddings, ref_labels=stored.labels, ids=ids, ref_ids=stored.ids
            )
            value = (1 - weight) * value + weight * against_memory
            parts["against memory"] = against_memory.detach()
    return value, {"loss": value.detach(), **parts}


def _describe(embeddings: Tensor, labels: Tensor, *, per_item: bool) -> str:
    sets = f"max_labels={labels.shape[2]}, " if labels.ndim == 3 else ""
    return f"size={len(embeddings)}, dim={embeddings.shape[1]}, levels={labels.shape[1]}, {sets}per_item={per_item}"
