"""What every encoder is, and what all share: vectors of length 1, and a hash of a model's weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

Progress = Callable[[int, int], None]
"""Told how many are done, and of how many."""


class Encoder(Protocol):
    """Texts to vectors."""

    prompted: bool
    """Whether a sentence around the label helps; where it does not, labels come as they are."""

    def fingerprint(self) -> dict[str, Any]:
        """All that decides the vectors of given texts: name, version of the library, weights, settings. JSON can write it."""
        ...

    def encode(self, texts: Sequence[str], progress: Progress) -> NDArray[np.float32]:
        """Vectors `[text, dimension]`, of any length; a row of zeros where nothing is known of a text."""
        ...


def unit_rows(vectors: NDArray[Any], least: float = 0.0) -> NDArray[np.float32]:
    """Rows of length 1. Those of length `least` or less, which say nothing, become zeros."""
    rows = np.asarray(vectors, np.float64)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, length, out=np.zeros_like(rows), where=length > least).astype(np.float32)


def weights_hash(weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    """The sha256 of named weights: the same for the same model, wherever it was loaded from."""
    import torch

    found = hashlib.sha256()
    for name, value in sorted(weights, key=lambda one: one[0]):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def in_batches(texts: Sequence[str], size: int, progress: Progress) -> Iterable[list[str]]:
    """The texts in their order, `size` at a time; `progress` hears of those that are dealt with."""
    for start in range(0, len(texts), size):
        yield list(texts[start : start + size])
        progress(min(start + size, len(texts)), len(texts))
