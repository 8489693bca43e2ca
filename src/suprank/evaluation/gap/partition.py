"""The batches of the decomposability gap: a partition of the items, given in one of three ways."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    Batches = int | Tensor | ArrayLike | Iterable[Tensor | ArrayLike]

_NAMED = 5  # items that an error names before it only counts


def partition_items(batches: Batches, items: int, seed: int) -> list[NDArray[np.int64]]:
    """The item numbers of each batch; every item is in exactly one.

    `batches` is a batch size, for items shuffled with `seed`; or arrays of item numbers; or a batch number for each item.
    """
    if isinstance(batches, int | np.integer) and not isinstance(batches, bool):
        if batches < 1:
            raise ValueError(f"batches={batches} is a batch size and must be 1 or more; try 256.")
        shuffled = np.random.default_rng(seed).permutation(items)
        return [shuffled[start : start + int(batches)] for start in range(0, items, int(batches))]
    if not isinstance(batches, Iterable):
        raise TypeError(
            f"batches={batches!r} must be a batch size, arrays of item numbers, or an integer for each item, its batch."
        )
    given: Any = batches if isinstance(batches, np.ndarray | torch.Tensor) else list(batches)
    if len(given) and np.ndim(as_numpy(given[0])) == 0:
        return _group_by_number(_integers(given, "batches"), items)
    parts = [_integers(part, f"batches[{number}]") for number, part in enumerate(given)]
    for number, part in enumerate(parts):
        if part.ndim != 1 or not len(part):
            raise ValueError(f"batches[{number}] has shape {part.shape}, but must be a list of item numbers, at least one.")
    together = np.concatenate(parts) if parts else np.empty(0, np.int64)
    outside = np.unique(together[(together < 0) | (together >= items)])
    if len(outside):
        raise ValueError(f"batches hold {_name_items(outside)}, but items are numbered 0 to {items - 1}.")
    times = np.bincount(together, minlength=items)
    repeated, missing = np.flatnonzero(times > 1), np.flatnonzero(times == 0)
    if len(repeated) or len(missing):
        wrong = f"hold {_name_items(repeated)} more than once" if len(repeated) else f"lack {_name_items(missing)}"
        raise ValueError(
            f"batches must hold each of {items} items once, but {wrong}; a sampler that repeats or drops items does not "
            f"partition them: give a batch size, or leave those items out of the embeddings too."
        )
    return parts


def _group_by_number(number: NDArray[np.int64], items: int) -> list[NDArray[np.int64]]:
    if len(number) != items:
        raise ValueError(f"batches holds {len(number)} batch numbers for {items} items; give one for each.")
    if number.min() < 0:
        raise ValueError(f"batches holds {number.min()} for item {int(number.argmin())}, but batches are numbered from 0 on.")
    order = np.argsort(number, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(number[order])) + 1)


def as_numpy(values: object) -> NDArray[Any]:
    """A tensor or array-like as a numpy array."""
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _integers(values: object, name: str) -> NDArray[np.int64]:
    array = as_numpy(values)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {array.dtype}, but must hold integers: item numbers, or a batch number for each item.")
    return array.astype(np.int64)


def _name_items(numbers: NDArray[np.int64]) -> str:
    """`item 3`, `items 3, 7`, or the first of many and how many."""
    first = ", ".join(str(number) for number in numbers[:_NAMED].tolist())
    more = f", ... ({len(numbers)} of them)" if len(numbers) > _NAMED else ""
    return f"item{'s' if len(numbers) > 1 else ''} {first}{more}"
