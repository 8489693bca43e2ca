"""From images to embeddings and, once the loss has said how they should move, back into the network.

The graph is cut at the embeddings: a loss on ranks needs those of the whole batch, over all processes, and gives a gradient on
each of them; how they came to be is no concern of it. So a batch may go through the network at once, or in chunks twice (Gao et
al., "Scaling deep contrastive learning batch size under memory limited setup"): first without a graph, to have the embeddings,
then with one, chunk by chunk, to take their gradients back. The second way needs the memory of a chunk instead of a batch, and
about a third more computing; what it adds up is the gradient of the whole batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.fabric import Fabric
    from torch import Tensor


class Passed(NamedTuple):
    """Embeddings `[batch, dim]`, cut off their graph, and the function that takes a gradient on them back into the network."""

    embeddings: Tensor
    back: Callable[[Tensor], None]


class Pass(Protocol):
    """Images → embeddings, and a way back. `prepare` makes of images what the network takes; `last` is whether gradients are
    complete after this batch, so that processes should exchange them."""

    def __call__(
        self, fabric: Fabric, model: Any, images: Tensor, prepare: Callable[[Tensor], Tensor], *, last: bool
    ) -> Passed: ...


def one_pass(fabric: Fabric, model: Any, images: Tensor, prepare: Callable[[Tensor], Tensor], *, last: bool = True) -> Passed:
    """The whole batch at once."""
    with fabric.no_backward_sync(model, enabled=not last):
        embeddings = model(prepare(images))

    def back(gradient: Tensor) -> None:
        if embeddings.requires_grad:  # or else all that is trained lies behind the embeddings
            with fabric.no_backward_sync(model, enabled=not last):
                fabric.backward(embeddings, gradient=gradient.to(embeddings.dtype))

    return Passed(embeddings.detach(), back)


def two_passes(chunk: int) -> Pass:
    """The batch in chunks, twice. Random numbers (dropout, stochastic depth) are the same both times.

    Each image must have an embedding of its own: a BatchNorm that looks at the batch would look at the chunk instead, so it has
    to be frozen.
    """

    def passed(fabric: Fabric, model: Any, images: Tensor, prepare: Callable[[Tensor], Tensor], *, last: bool = True) -> Passed:
        parts, states, found = images.split(chunk), [], []
        with torch.no_grad():
            for part in parts:
                states.append(_random_state(fabric.device))
                found.append(model(prepare(part)))
        after = _random_state(fabric.device)

        def back(gradient: Tensor) -> None:
            for number, (part, state, share) in enumerate(zip(parts, states, gradient.split(chunk), strict=True)):
                _set_random_state(fabric.device, state)
                with fabric.no_backward_sync(model, enabled=not last or number < len(parts) - 1):
                    embeddings = model(prepare(part))
                    if embeddings.requires_grad:
                        fabric.backward(embeddings, gradient=share.to(embeddings.dtype))
            _set_random_state(fabric.device, after)

        return Passed(torch.cat(found), back)

    return passed


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
