"""Heads to begin with: the principal directions of the training embeddings, which rank as the embeddings themselves do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from suprank.models.head import Head, HeadConfig
from suprank.models.normalization import NORMALIZATIONS
from suprank.models.pca import Moments

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROWS = 16_384  # embeddings that are converted to float64 at a time


def principal_heads(embeddings: NDArray[np.float32], config: HeadConfig) -> dict[str, Head]:
    """Heads that project on the principal directions: `centered` (PCA), and `uncentered`, those of the mean of x xᵀ.

    The uncentered head is a projection without a bias. If it is as wide as the embeddings it is a rotation, which keeps every
    cosine of the normalized embeddings, so that it ranks as they do. `pca_projection` refuses directions in which the
    embeddings do not vary; here they are of use, because other embeddings may.
    """
    moments = Moments.zeros(config.in_features)
    for start in range(0, len(embeddings), _ROWS):
        block = torch.from_numpy(np.array(embeddings[start : start + _ROWS], np.float32))
        moments.update(NORMALIZATIONS[config.normalization](block))
    around_zero = moments.scatter + moments.count * np.outer(moments.mean, moments.mean)
    centered, uncentered = (_principal_directions(one, config.out_features) for one in (moments.scatter, around_zero))
    return {
        "centered": _linear_head(config, centered, -centered @ moments.mean),
        "uncentered": _linear_head(config, uncentered, np.zeros(config.out_features)),
    }


def _principal_directions(scatter: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """The orthonormal directions `[count, width]` of the largest scatter, in descending order."""
    return np.linalg.eigh(scatter)[1][:, ::-1][:, :count].T


def _linear_head(config: HeadConfig, weight: NDArray[np.float64], bias: NDArray[np.float64]) -> Head:
    head = Head(config)
    with torch.no_grad():
        head.linear.weight.copy_(torch.from_numpy(weight.copy()))
        head.linear.bias.copy_(torch.from_numpy(bias))
    return head
