"""Embedding batches of images, on any device and in any precision, at one scale or several."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn.functional import interpolate, normalize

from suprank.system.cpu_features import avoid_amx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.models.config import Precision
    from suprank.models.embedder import Embedder

SCALES = (1.0, 2**-0.5, 0.5)  # the authors' for landmarks
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class IndexedImages(Protocol):
    """What `embed` needs of a batch: images, and their rows in the manifest. `suprank.data.ImageBatch` has both."""

    @property
    def images(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...


def embed(
    embedder: Embedder,
    batches: Iterable[IndexedImages],
    *,
    device: torch.device | str | None = None,
    precision: Precision | None = None,
    forward: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield, batch by batch, the indices of the images and their embeddings, float32 `[batch, dim]`.

    The embedder is moved to `device` (default: it stays where it is) and runs in evaluation mode, without gradients, under
    autocast unless `precision` is "fp32" (default: the model's own); its mode is restored at the end. `forward` replaces the
    embedder's own: give `embedder.features` for a PCA, or `functools.partial(multiscale, embedder)` for several scales. A batch
    without images (all of them broken, and skipped) yields nothing.
    """
    dtype = PRECISIONS.get(precision or embedder.config.precision or "fp32")
    if dtype is None:
        raise ValueError(f"precision={precision!r} must be 'fp32', 'bf16' or 'fp16', or None for the model's own.")
    where = torch.device(device) if device is not None else next(embedder.parameters()).device
    if dtype == torch.bfloat16 and where.type == "cpu":
        avoid_amx()
    training = embedder.training
    embedder.to(where).eval()
    embedder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a third faster, on a CPU too
    try:
        for batch in batches:
            if len(batch.images):
                images = batch.images.to(where, non_blocking=True, memory_format=torch.channels_last)
                yield batch.indices.numpy(), _embed_batch(forward or embedder, images, dtype)
    finally:
        embedder.train(training)


@torch.inference_mode()  # a separate function: in a generator it would affect the caller between batches
def _embed_batch(forward: Callable[[Tensor], Tensor], images: Tensor, dtype: torch.dtype) -> NDArray[np.float32]:
    half = dtype != torch.float32
    with torch.autocast(images.device.type, dtype=dtype if half else None, enabled=half):
        return forward(images).float().cpu().numpy()


def multiscale(
    embedder: Embedder, images: Float[Tensor, "batch 3 height width"], scales: Sequence[float] = SCALES
) -> Float[Tensor, "batch dim"]:
    """The mean of the embeddings at several scales, normalized to length 1, and then through the head, if there is one.

    Images are resized (bilinear, antialiased), each side to the nearest multiple of the backbone's patch. The mean is over unit
    vectors, so that all scales count equally. The authors take a generalized mean of projected vectors, whose negative entries
    have no fractional power: theirs gives NaN.
    """
    if not scales or min(scales) <= 0:
        raise ValueError(f"scales={tuple(scales)} must be one or more numbers above 0, for example {SCALES}.")
    patch_size = embedder.backbone.patch_size
    at_scales = [embedder.before_head(_resize(images, scale, patch_size)) for scale in scales]
    return embedder.head(normalize(torch.stack(at_scales).mean(0), dim=-1))


def at_scales(embedder: Embedder, scales: Sequence[float]) -> Callable[[Tensor], Tensor]:
    """What embeds images at these scales: `multiscale`, or for the image as it is the embedder."""
    return embedder if tuple(scales) == (1.0,) else partial(multiscale, embedder, scales=scales)


def _resize(images: Tensor, scale: float, patch_size: tuple[int, int]) -> Tensor:
    sides = zip(images.shape[-2:], patch_size, strict=True)
    size = tuple(max(round(side * scale / multiple), 1) * multiple for side, multiple in sides)
    if size == tuple(images.shape[-2:]):
        return images
    return interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)
