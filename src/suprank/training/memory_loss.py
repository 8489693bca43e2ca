"""The value that training minimizes: the loss within the batch and, if there is a memory, against that too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from suprank.losses import ReplayedLoss
from suprank.losses.memory import loss_with_memory

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from suprank.losses.memory import EmbeddingMemory


class LossWithMemory(nn.Module):
    """The mean of the loss within the batch and, if there is a memory, that against it (see `EmbeddingMemory`).

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
        value, self.log = loss_with_memory(
            loss, self.memory, self.memory_weight, embeddings, labels, ids, use_memory=use_memory
        )
        return value


def gradients(value: Float[Tensor, ""], embeddings: Tensor, parameters: list[nn.Parameter]) -> tuple[Tensor, list[Tensor]]:
    """The gradients of the loss with respect to the embeddings and to its own parameters, the proxies.

    A parameter that the value does not depend on has a gradient of 0.
    """
    of_embeddings, *of_parameters = torch.autograd.grad(
        value, [embeddings, *parameters], allow_unused=True, materialize_grads=True
    )
    return of_embeddings, of_parameters
