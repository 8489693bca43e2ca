"""BatchNorm with frozen statistics whose backward keeps the memory format of its input.

In evaluation mode, torch's own backward on a GPU stores the gradient of the input in the contiguous format, also if input and
gradient are in channels_last. The strided stores, and the copies back before the backward of every convolution, took a third of
the GPU time of a training step (tf_efficientnet_lite0 at 112 pixels in bfloat16 on an H200: 4.9 of 14.9 ms).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm

from suprank.system import torchvision_operators

torchvision_operators.declare()  # timm imports torchvision

from timm.layers.norm_act import BatchNormAct2d  # noqa: E402

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

DEVICE_TYPES = ("cuda",)
"""Devices on which the layers below replace torch's own backward; on a CPU all results are torch's, to the bit."""


def frozen_batch_norm(
    x: Float[Tensor, "batch channels height width"],
    mean: Float[Tensor, " channels"],
    var: Float[Tensor, " channels"],
    weight: Float[Tensor, " channels"] | None,
    bias: Float[Tensor, " channels"] | None,
    eps: float,
) -> Float[Tensor, "batch channels height width"]:
    """y = (x − mean) / √(var + eps) · weight + bias, with torch's kernel; the gradient of x is in the memory format of x.

    `weight` and `bias` are both given or both None. Gradients are computed in float32 (float64 for float64) and returned in the
    dtypes of x, weight and bias. `mean` and `var` are constants, and there are no second derivatives.
    """
    return _FrozenBatchNorm.apply(x, mean, var, weight, bias, eps)


class _FrozenBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        _, _, _, weight_grad, bias_grad, _ = ctx.needs_input_grad
        ctx.eps = eps
        channels_last = x.is_contiguous(memory_format=torch.channels_last)
        ctx.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        # The bias alone could do without x, but the kernel that sums both gradients reads it.
        ctx.save_for_backward(x if weight_grad or bias_grad else None, mean, var, weight)
        return batch_norm(x, mean, var, weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, var, weight = ctx.saved_tensors
        x_grad, _, _, weight_grad, bias_grad, _ = ctx.needs_input_grad
        grad = grad.contiguous(memory_format=ctx.memory_format)  # a copy only if another format came from above
        accumulate = torch.promote_types(grad.dtype, torch.float32)
        mean, var = mean.to(accumulate), var.to(accumulate)
        inverse_std = torch.rsqrt(var + ctx.eps)
        # `batch_norm_elemt` and `batch_norm_backward_reduce` are those of SyncBatchNorm, for GPUs only.
        on_gpu = grad.is_cuda
        dx = dweight = dbias = None
        if x_grad:
            dx = (_scale_cuda if on_gpu else _scale)(grad, inverse_std, weight)
        if weight_grad or bias_grad:
            sums = (_sums_cuda if on_gpu else _sums)(grad, x, mean, inverse_std, weight)
            dweight, dbias = (total.to(weight.dtype) for total in sums)  # torch requires the same dtype of both
        return (
            dx,
            None,
            None,
            dweight if weight_grad else None,
            dbias if bias_grad else None,
            None,
        )


def _scale(grad: Tensor, inverse_std: Tensor, weight: Tensor | None) -> Tensor:
    """grad · weight / √(var + eps), rounded once, to the dtype of `grad`."""
    scale = inverse_std if weight is None else inverse_std * weight
    return torch.mul(grad, scale.view(1, -1, 1, 1), out=torch.empty_like(grad))


def _scale_cuda(grad: Tensor, inverse_std: Tensor, weight: Tensor | None) -> Tensor:
    """`_scale` by the kernel of BatchNorm's forward, with mean 0; `torch.mul` of bfloat16 and float32 is a generic one."""
    return torch.batch_norm_elemt(grad, weight, None, torch.zeros_like(inverse_std), inverse_std, 0.0)


def _sums(grad: Tensor, x: Tensor, mean: Tensor, inverse_std: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradients of weight and bias: Σ grad · (x − mean) / √(var + eps) and Σ grad, over images and positions."""
    centered = x - mean.view(1, -1, 1, 1)
    return (grad * centered).sum((0, 2, 3)) * inverse_std, grad.sum((0, 2, 3), dtype=mean.dtype)


def _sums_cuda(grad: Tensor, x: Tensor, mean: Tensor, inverse_std: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """`_sums` in one pass. It has a kernel for channels_last if both `grad` and `x` are in that format."""
    *_, dweight, dbias = torch.batch_norm_backward_reduce(grad, x, mean, inverse_std, weight, True, True, True)
    return dweight, dbias


class FrozenStatsBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` that computes `frozen_batch_norm` where it can: in evaluation mode, with gradients, on a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        return _apply(self, x) if _is_applicable(self, x) else super().forward(x)


class FrozenStatsBatchNormAct2d(BatchNormAct2d):
    """timm's `BatchNormAct2d`, likewise; its dropout and activation follow, as in timm."""

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(_apply(self, x))) if _is_applicable(self, x) else super().forward(x)


def _apply(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    assert norm.running_mean is not None and norm.running_var is not None
    return frozen_batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.eps)


def _is_applicable(norm: nn.BatchNorm2d, x: Tensor) -> bool:
    """Whether the layer uses its statistics, and torch's backward would be slow: in channels_last. The kernels need at least
    one element.

    A compiler writes its own backward from torch's operator, and an exporter knows only that one.
    """
    return (
        not norm.training
        and norm.running_mean is not None
        and norm.running_var is not None
        and torch.is_grad_enabled()
        and x.device.type in DEVICE_TYPES
        and x.ndim == 4
        and x.numel() > 0
        and x.is_contiguous(memory_format=torch.channels_last)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]
    )


FROZEN: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm2d: FrozenStatsBatchNorm2d,
    BatchNormAct2d: FrozenStatsBatchNormAct2d,
}


def keep_memory_format(module: nn.Module) -> None:
    """Let a BatchNorm layer with frozen statistics keep the memory format in its backward; other modules stay as they are.

    The class of the module is replaced by a subclass. The module remains the same object with the same parameters, buffers and
    hooks, is an instance of its former class, and is copied and pickled by the name of its class. A `forward` of the instance
    would still refer to the first module after a deepcopy, and a replaced `torch.nn.functional.batch_norm` would affect other
    models and threads. Subclasses that are not listed may do anything in their `forward`, and keep it.
    """
    if type(module) in FROZEN:
        module.__class__ = FROZEN[type(module)]
