"""The value that training minimizes: the loss within the batch and, if there is a memory, against that too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from suprank.losses import ReplayedLoss

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from suprank.losses.memory import EmbeddingMemory


class LossWithMemory(nn.Module):
    """The mean of the loss within the batch and the loss of the batch against a memory.

        L = (1 − w)·L(batch, batch) + w·L(batch, memory),    w = `memory_weight`

    The batch enters the memory before the memory is read, as in the authors' code; no image is in its own list, whether it
    entered now or earlier. Gradients reach the batch, and never the memory. After a call `log` holds the parts, detached.
    With `replay` both losses are replayed from CUDA graphs where that is possible (see `ReplayedLoss`).
    """

    def __init__(
        self, loss: nn.Module, memory: EmbeddingMemory | None = None, memory_weight: float = 0.5, *, replay: bool = False
    ) -> None:
        super().__init__()
        self.loss, self.memory, self.memory_weight = loss, memory, memory_weight
        self.replayed = ReplayedLoss(loss) if replay else None
        self.log: dict[str, Tensor] = {}

    def forward(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Int[Tensor, "batch levels *set"],
        ids: Int[Tensor, " batch"],
        *,
        use_memory: bool = True,
    ) -> Float[Tensor, ""]:
        """The loss; with `use_memory=False` the memory is filled but not read."""
        loss = self.loss if self.replayed is None else self.replayed
        value = loss(embeddings, labels)
        parts = {name: part for name, part in getattr(loss, "log", {}).items() if name != "loss"}
        if self.memory is not None:
            self.memory.add(embeddings, labels, ids)
            if use_memory:
                stored = self.memory.contents()
                against_memory = loss(
                    embeddings, labels, ref_emb=stored.embeddings, ref_labels=stored.labels, ids=ids, ref_ids=stored.ids
                )
                value = (1 - self.memory_weight) * value + self.memory_weight * against_memory
                parts["against memory"] = against_memory.detach()
        self.log = {"loss": value.detach(), **parts}
        return value


def gradients(value: Float[Tensor, ""], embeddings: Tensor, parameters: list[nn.Parameter]) -> tuple[Tensor, list[Tensor]]:
    """The gradients of the loss with respect to the embeddings and to its own parameters, the proxies.

    A parameter that the value does not depend on has a gradient of 0.
    """
    of_embeddings, *of_parameters = torch.autograd.grad(
        value, [embeddings, *parameters], allow_unused=True, materialize_grads=True
    )
    return of_embeddings, of_parameters
