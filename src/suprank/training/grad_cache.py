"""The forward pass of a batch, and the backward pass of its embeddings' gradients, at once or in chunks (GradCache).

The graph is cut at the embeddings: a rank loss needs those of the whole batch, over all processes, and returns a gradient for
each of them. So a batch may go through the network at once, or in chunks twice (Gao et al., "Scaling deep contrastive learning
batch size under memory limited setup"): first without a graph, to have the embeddings, then with one, chunk by chunk, to
propagate their gradients. The second way needs the memory of a chunk instead of a batch, and about a third more computation;
the sum is the gradient of the whole batch.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from lightning.fabric import Fabric
    from torch import Tensor


class ForwardPass(NamedTuple):
    """Embeddings `[batch, dim]`, detached, and the function that propagates their gradient back through the network."""

    embeddings: Tensor
    backward: Callable[[Tensor], None]


class ForwardFunction(Protocol):
    """Computes embeddings of images. `prepare` turns images into the network's input; `last` says that gradients are complete
    after this batch, so that processes should exchange them."""

    def __call__(
        self, fabric: Fabric, model: Any, images: Tensor, prepare: Callable[[Tensor], Tensor], *, last: bool
    ) -> ForwardPass: ...


def forward_at_once(
    fabric: Fabric, model: Any, images: Tensor, prepare: Callable[[Tensor], Tensor], *, last: bool = True
) -> ForwardPass:
    """Pass the whole batch through the network at once."""
    with fabric.no_backward_sync(model, enabled=not last):
        embeddings = model(prepare(images))
    return forward_pass(fabric, embeddings, partial(fabric.no_backward_sync, model, enabled=not last))


def forward_pass(
    fabric: Fabric, embeddings: Tensor, backward_context: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> ForwardPass:
    """The pass that returned these embeddings, attached to their graph; its backward pass runs in `backward_context`."""

    def backward(gradient: Tensor) -> None:
        if embeddings.requires_grad:  # not if the network is frozen, and only the loss has parameters to train
            with backward_context():
                fabric.backward(embeddings, gradient=gradient.to(embeddings.dtype))

    return ForwardPass(embeddings.detach(), backward)


def forward_in_chunks(chunk: int) -> ForwardFunction:
    """Pass the batch through the network in chunks, twice, with the same random numbers (dropout, stochastic depth) both times.

    An embedding must depend on its own image only: a BatchNorm that is not frozen would see the chunk instead of the batch.
    """

    def forward(
        fabric: Fabric, model: Any, images: Tensor, prepare: Callable[[Tensor], Tensor], *, last: bool = True
    ) -> ForwardPass:
        chunks, states, embeddings = images.split(chunk), [], []
        with torch.no_grad():
            for part in chunks:
                states.append(_random_state(fabric.device))
                embeddings.append(model(prepare(part)))
        state_after = _random_state(fabric.device)

        def backward(gradient: Tensor) -> None:
            for number, (part, state, share) in enumerate(zip(chunks, states, gradient.split(chunk), strict=True)):
                _set_random_state(fabric.device, state)
                with fabric.no_backward_sync(model, enabled=not last or number < len(chunks) - 1):
                    again = model(prepare(part))
                    if again.requires_grad:
                        fabric.backward(again, gradient=share.to(again.dtype))
            _set_random_state(fabric.device, state_after)

        return ForwardPass(torch.cat(embeddings), backward)

    return forward


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
