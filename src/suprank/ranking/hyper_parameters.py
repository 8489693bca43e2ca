"""What a hyper-parameter may be, so that a wrong type has the same sentence as a wrong value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any


def is_number(value: Any) -> bool:
    """Whether this is a finite number, and no text, tensor or truth value."""
    return isinstance(value, (int, float, Real)) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Whether this is a whole number, and no truth value."""
    return isinstance(value, (int, Integral)) and not isinstance(value, bool)


def as_tuple(values: Any) -> tuple[Any, ...]:
    """A tuple of the values, or of the one that was given; text stays whole, so that an error can say it."""
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else (values,)


def check_finite(**values: float) -> None:
    """Raise if a hyper-parameter is not a finite number."""
    for name, value in values.items():
        if not is_number(value):
            raise ValueError(f"{name}={value!r} must be a finite number.")


def check_above_zero(**values: float) -> None:
    """Raise if a hyper-parameter is not a finite number above 0."""
    for name, value in values.items():
        if not (is_number(value) and value > 0):
            raise ValueError(f"{name}={value!r} must be a finite number above 0.")


def check_sizes(**values: int | None) -> None:
    """Raise if a size is given that is not a whole number from 1 on."""
    for name, value in values.items():
        if value is not None and not (is_whole(value) and value >= 1):
            raise ValueError(f"{name}={value!r} must be a whole number from 1 on.")
