"""PCA and whitening as a linear projection, computed from batches of features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

RANK_TOLERANCE = 1e-12  # a variance below this share of the largest is rounding


@dataclass(eq=False)
class Moments:
    """Number, mean and scatter Σ (x − mean)(x − mean)ᵀ of feature vectors, in float64, updated batch by batch.

    Each batch is centered on its own mean and then merged (Chan et al., 1983), so that a mean far from 0 costs no digits. Parts
    computed by several processes are combined by `merge`; the order of the parts matters to rounding only.

    Example:
        >>> moments = Moments.zeros(2)
        >>> moments.update(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
        >>> moments.update(torch.tensor([[1.0, 3.0]]))
        >>> moments.count, moments.mean.tolist()
        (3, [1.0, 1.0])
        >>> moments.covariance().tolist()
        [[1.0, 0.0], [0.0, 3.0]]
    """

    count: int
    mean: NDArray[np.float64]
    scatter: NDArray[np.float64]

    @classmethod
    def zeros(cls, width: int) -> Self:
        """The moments of no vectors, of this width."""
        return cls(0, np.zeros(width), np.zeros((width, width)))

    @classmethod
    def merge(cls, parts: Iterable[Moments]) -> Self:
        """The moments of the vectors of all parts together; of at least one part."""
        first, *others = parts
        moments = cls(first.count, first.mean.copy(), first.scatter.copy())
        for part in others:
            moments._add(part)
        return moments

    def update(self, features: Float[Tensor, "batch width"] | NDArray[np.floating]) -> None:
        """Add these vectors. Anything but finite `[batch, width]` is refused; an empty batch changes nothing."""
        values = np.asarray(features.detach().cpu() if isinstance(features, torch.Tensor) else features, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != len(self.mean):
            raise ValueError(f"features are {list(values.shape)}; give [batch, {len(self.mean)}], as in earlier batches.")
        if not np.isfinite(values).all():
            raise ValueError("features hold NaN or infinity; a single one would make the whole projection NaN.")
        if len(values):
            mean = values.mean(0)
            centered = values - mean
            self._add(Moments(len(values), mean, centered.T @ centered))

    def covariance(self) -> NDArray[np.float64]:
        """scatter / (count − 1), as in scikit-learn; of two vectors or more."""
        if self.count < 2:
            raise ValueError(f"a covariance needs two vectors or more, and {self.count} were counted.")
        return self.scatter / (self.count - 1)

    def _add(self, other: Moments) -> None:
        if len(other.mean) != len(self.mean):
            raise ValueError(f"moments of vectors of width {len(self.mean)} and {len(other.mean)} cannot be merged.")
        if other.count:
            count = self.count + other.count
            shift = other.mean - self.mean
            self.scatter += other.scatter + np.outer(shift, shift) * (self.count * other.count / count)
            self.mean += shift * (other.count / count)
            self.count = count


def pca_projection(
    moments: Moments, dim: int, *, whiten: bool = False
) -> tuple[Float[Tensor, "dim width"], Float[Tensor, " dim"]]:
    """Weight and bias of the linear layer x ↦ W (x − mean) onto the `dim` directions of largest variance, float32.

    Rows of W are unit vectors by descending variance; with `whiten`, each is divided by the standard deviation along it, so
    that all outputs have variance 1. The sign of a row, which is arbitrary for eigenvectors, makes its largest entry positive.

    `dim` above the rank of the covariance is refused: directions without variance are arbitrary, and cannot be whitened. The
    rank is below the number of vectors, and after LayerNorm below the width, since such features sum to 0.
    """
    if dim < 1:
        raise ValueError(f"dim={dim} must be 1 or more.")
    variances, directions = np.linalg.eigh(moments.covariance())  # ascending
    rank = min(int((variances > RANK_TOLERANCE * variances[-1]).sum()), moments.count - 1)
    if dim > rank:
        raise ValueError(
            f"dim={dim} is more than the {rank} directions in which {moments.count} features of width {len(moments.mean)} "
            f"vary; take more images or a dim of at most {rank}."
        )
    weight = directions[:, ::-1][:, :dim].T
    weight = weight * np.sign(np.take_along_axis(weight, np.abs(weight).argmax(1)[:, None], axis=1))
    if whiten:
        weight = weight / np.sqrt(variances[::-1][:dim, None])
    return torch.from_numpy(weight.astype(np.float32)), torch.from_numpy((-weight @ moments.mean).astype(np.float32))
