"""`gather`: the rows of all processes, with gradients, so that a loss ranks the batch of all of them."""

from __future__ import annotations

import math
import os
import sys
from inspect import signature
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import distributed, nn
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

_OF_QUERIES = ("ids", "self_index", "relevance")  # arguments of a loss that have a row for each query, as labels have
_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)


@overload
def gather(loss: nn.Module, /, *, equal_sizes: bool = False, group: ProcessGroup | None = None) -> nn.Module: ...
@overload
def gather(tensor: Tensor, /, *, equal_sizes: bool = False, group: ProcessGroup | None = None) -> Tensor: ...
@overload
def gather(
    tensor: Tensor, other: Tensor, /, *more: Tensor, equal_sizes: bool = False, group: ProcessGroup | None = None
) -> tuple[Tensor, ...]: ...
def gather(*tensors: Any, equal_sizes: bool = False, group: ProcessGroup | None = None) -> Any:
    """The rows of every process in the order of ranks, the same in all of them, with gradients: one tensor, or a tuple; of a
    loss, the loss that gathers what it is called with.

    In a loop for several processes, call it between the model and the loss. Without `torch.distributed`, or in one process, it
    returns what it was given:

        embeddings, labels = gather(model(images), labels)
        criterion(embeddings, labels).backward()

    or wrap the loss: `criterion = gather(SupAP())`, and `criterion(model(images), labels)`. It gathers what has a row for each
    query (embeddings, labels, `ids`, `self_index`, `relevance`), and passes references on, which have to be the same in all
    processes. `gather(EmbeddingMemory(4096, 512, loss=SupAP()))` fills the same memory in all of them. Parameters of the loss
    are those of `criterion.parameters()`.

    Gradients are summed over the processes and return to the process that has the row. DDP and FSDP then average the
    gradients of parameters, which makes them the gradient of the mean of the processes' losses. If all compute the loss of all
    rows, as above, that is the gradient of one process with the whole batch. A loop that adds up gradients itself has to
    divide by the number of processes, as DDP does. Integers, such as labels and ids, have no gradient.

    Processes may have different numbers of rows, also none. They tell each other how many first, and a GPU is waited for; with
    `equal_sizes=True` they do not, and must have as many each. All processes have to call this, and then `backward`. `group`
    is the process group, by default that of all processes, on any backend that can all-gather bytes and all-reduce floats, such
    as NCCL and gloo.

    Example:
        >>> embeddings, labels = gather(torch.eye(3), torch.tensor([0, 0, 1]))  # one process
        >>> labels
        tensor([0, 0, 1])
    """
    if len(tensors) == 1 and isinstance(tensors[0], nn.Module):
        return GatheredLoss(tensors[0], equal_sizes, group)
    _check(tensors)
    size = distributed.get_world_size(group) if distributed.is_available() and distributed.is_initialized() else 1
    if group is None:
        _check_launchers(size)
    if size > 1:
        counts = [len(tensors[0])] * size if equal_sizes else _exchange_sizes(tensors, size, group)
        tensors = tuple(_Gather.apply(tensor, counts, group) for tensor in tensors)
    return tensors[0] if len(tensors) == 1 else tensors


class GatheredLoss(nn.Module):
    """A loss of the rows of all processes."""

    def __init__(self, loss: nn.Module, equal_sizes: bool, group: ProcessGroup | None) -> None:
        super().__init__()
        self.loss, self.equal_sizes, self.group = loss, equal_sizes, group

    @property
    def log(self) -> dict[str, Tensor]:
        """The log of the loss."""
        return getattr(self.loss, "log", {})

    def forward(self, embeddings: Tensor, labels: Tensor | None = None, *more: Any, **options: Any) -> Tensor:
        if more:  # by position, as a memory takes ids
            _, _, *names = signature(self.loss.forward).bind(embeddings, labels, *more, **options).arguments
            options |= zip(names, more, strict=False)
        given = {"embeddings": embeddings, "labels": labels, **{name: options.pop(name, None) for name in _OF_QUERIES}}
        own = {name: value for name, value in given.items() if value is not None}
        rows = gather(*own.values(), equal_sizes=self.equal_sizes, group=self.group)
        named = dict(zip(own, rows if isinstance(rows, tuple) else (rows,), strict=True))
        loss: Tensor = self.loss(named.pop("embeddings"), named.pop("labels", None), **named, **options)
        return loss


class _Gather(torch.autograd.Function):
    """Concatenate the rows of all processes; backward, sum the gradients of all processes and return those of the own rows."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, counts: Sequence[int], group: ProcessGroup | None) -> Tensor:
        ctx.counts, ctx.group = counts, group
        shape = local.shape[1:]
        if not max(counts) * math.prod(shape):
            return local.new_empty(sum(counts), *shape)
        # Sent as bytes, because NCCL knows no int16 and gloo no bool; shorter parts are filled up.
        rows = local.detach().reshape(len(local), math.prod(shape)).contiguous().view(torch.uint8)
        sent = rows.new_zeros(max(counts), rows.shape[1])
        sent[: len(rows)] = rows
        parts = [torch.empty_like(sent) for _ in counts]
        distributed.all_gather(parts, sent, group=group)
        received = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        return received.view(local.dtype).reshape(-1, *shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        # In float32 at least: a sum in 16 bits would lose digits, and not every backend has one.
        total = gradient.to(
            torch.promote_types(gradient.dtype, torch.float32), memory_format=torch.contiguous_format, copy=True
        )
        if total.numel():
            distributed.all_reduce(total, group=ctx.group)
        rank = distributed.get_rank(ctx.group)
        own = total.narrow(0, sum(ctx.counts[:rank]), ctx.counts[rank])
        return own.to(gradient.dtype), None, None


def _check_launchers(size: int) -> None:
    """Refuse processes that their launcher counts otherwise: images of the batch would be missing, or be there twice."""
    accelerate = sys.modules.get("accelerate.state")
    known = {
        "WORLD_SIZE": os.environ.get("WORLD_SIZE") if size == 1 else size,
        "accelerate's num_processes": accelerate and accelerate.PartialState._shared_state.get("num_processes"),
    }
    for name, count in known.items():
        if count and int(count) != size:
            raise RuntimeError(
                f"{name} is {count}, but torch.distributed knows of {size}, and images would be missing or be there twice; "
                f"call torch.distributed.init_process_group() first, or start accelerate by `accelerate launch --multi_gpu`, "
                f"on a CPU by ACCELERATE_USE_CPU=true torchrun."
            )


def _check(tensors: Sequence[Tensor]) -> None:
    """Refuse tensors whose rows do not belong together, before the processes exchange anything."""
    if not tensors:
        raise TypeError("gather needs tensors: gather(embeddings, labels).")
    for place, tensor in enumerate(tensors, 1):
        if tensor.ndim == 0 or tensor.dtype not in _DTYPES:
            raise ValueError(
                f"argument {place} of gather is {tensor.dtype} of shape {tuple(tensor.shape)}, but must be real numbers with a "
                f"row for each image."
            )
        if len(tensor) != len(tensors[0]):
            raise ValueError(
                f"argument {place} of gather has {len(tensor)} rows and the first has {len(tensors[0])}; give a row for each "
                f"image."
            )
        if tensor.device != tensors[0].device:
            raise ValueError(
                f"argument {place} of gather is on {tensor.device} and the first on {tensors[0].device}; move it there with "
                f".to({str(tensors[0].device)!r})."
            )


def _exchange_sizes(tensors: Sequence[Tensor], size: int, group: ProcessGroup | None) -> list[int]:
    """The number of rows of each process. Where tensors differ in more than that, all processes raise the same error."""
    own = [len(tensors[0])]
    for tensor in tensors:
        own += [_DTYPES.index(tensor.dtype), math.prod(tensor.shape[1:]), int(tensor.requires_grad and torch.is_grad_enabled())]
    sent = torch.tensor(own, device=tensors[0].device)
    parts = [torch.empty_like(sent) for _ in range(size)]
    distributed.all_gather(parts, sent, group=group)
    counts, *columns = zip(*torch.stack(parts).tolist(), strict=True)
    for number, values in enumerate(columns):
        place, kind = divmod(number, 3)
        different = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if different is not None:
            first, other = (_describe(kind, values[rank]) for rank in (0, different))
            raise ValueError(
                f"argument {place + 1} of gather {first} in process 0 and {other} in process {different}, but may differ in "
                f"the number of rows only."
            )
    return list(counts)


def _describe(kind: int, value: int) -> str:
    if kind == 0:
        return f"is {_DTYPES[value]}"
    if kind == 1:
        return f"has {value} values in a row"
    return "requires a gradient" if value else "requires none"
