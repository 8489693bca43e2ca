"""A loss of the user's own in training: what it must offer, and how it is called."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from suprank.system import custom_code
from suprank.system.custom_code import CustomCodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jaxtyping import Float, Int
    from torch import Tensor

MEMORY_ARGUMENTS = ("ref_emb", "ref_labels", "ids", "ref_ids")


class CustomLoss(nn.Module):
    """Calls a user's loss: `loss(embeddings, labels)`, and against a memory `loss(embeddings, labels, ref_emb=, ref_labels=,
    ids=, ref_ids=)`. Its parameters, if it is an `nn.Module` that has any, are trained as proxies are."""

    def __init__(self, loss: Callable[..., Tensor], name: str, *, finest_only: bool = False) -> None:
        super().__init__()
        if isinstance(loss, type) or not callable(loss):
            what = (
                f"the class {loss.__name__}; give an instance of it" if isinstance(loss, type) else f"a {type(loss).__name__}"
            )
            raise CustomCodeError(f"{name}: a loss must be an object to call as loss(embeddings, labels), and this is {what}.")
        self.loss, self.name, self.finest_only = loss, name, finest_only

    def forward(
        self, embeddings: Float[Tensor, "batch dim"], labels: Int[Tensor, "batch levels"], **references: Tensor
    ) -> Float[Tensor, ""]:
        """The value of the loss, which must be a tensor with a single number that depends on the embeddings."""
        if self.finest_only:
            labels = labels[:, 0]
            references = {key: value[:, 0] if key == "ref_labels" else value for key, value in references.items()}
        with custom_code.running_user_code(self.name):
            value = self.loss(embeddings, labels, **references)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            what = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            raise CustomCodeError(f"{self.name} must return a tensor with a single number, and it returned {what}.")
        if embeddings.requires_grad and not value.requires_grad:
            raise CustomCodeError(f"{self.name} returned a value without a gradient: it must be computed from the embeddings.")
        return value.reshape(())

    @property
    def log(self) -> dict[str, Tensor]:
        """The single numbers in the loss's own `log`, if it has one, by their names."""
        values = getattr(self.loss, "log", None)
        entries = values.items() if isinstance(values, dict) else ()
        return {str(name): one.detach() for name, one in entries if isinstance(one, torch.Tensor) and one.numel() == 1}

    def check_memory(self) -> None:
        """Refuse a loss that cannot be called with the images of a memory."""
        called = self.loss.forward if isinstance(self.loss, nn.Module) else self.loss
        parameters = inspect.signature(called).parameters
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        missing = [argument for argument in MEMORY_ARGUMENTS if argument not in parameters]
        if missing and not takes_any:
            raise CustomCodeError(
                f"memory.size is set, but {self.name} cannot be called with a memory: it takes no {', '.join(missing)}. Add "
                "them, or set memory.size=0."
            )


def build_custom_loss(
    name: str, arguments: Mapping[str, Any], provided: Mapping[str, Any], *, finest_only: bool = False
) -> CustomLoss:
    """Load the class or function called `name` and build the loss.

    It gets `arguments`, and those of `provided` (`num_classes`, `embedding_size`) that its signature names.
    """
    return CustomLoss(custom_code.call(name, arguments, provided, "loss.arguments"), name, finest_only=finest_only)
