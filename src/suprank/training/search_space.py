"""The values among which a setting may be tuned: declared beside a key of a loss spec, or in the class of a loss of your own.

    tau: Annotated[Positive, FloatRange(0.002, 0.1, log=True)] = 0.01      # in a spec

    class MyLoss(nn.Module):                                              # in your own code
        search_space = {"margin": FloatRange(0.0, 0.5)}

`suprank compare --tune` searches them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Value = bool | int | float | str


@dataclass(frozen=True)
class FloatRange:
    """Numbers from `low` to `high`, both included; with `log` every power of ten is drawn equally often."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"a range from {self.low:g} to {self.high:g} is empty; give the smaller number first.")
        if self.log and self.low <= 0:
            raise ValueError(f"a logarithmic range from {self.low:g} must begin above 0.")

    def including(self, value: float) -> FloatRange:
        """This range, widened to `value` if that lies outside."""
        log = self.log and value > 0
        return FloatRange(min(self.low, value), max(self.high, value), log)

    @property
    def ends(self) -> tuple[float, float]:
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.low:g}:{self.high:g}" + ":log" * self.log


@dataclass(frozen=True)
class Choices:
    """One of some values."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2 or len(set(self.values)) < len(self.values):
            raise ValueError(f"choices {list(self.values)} must be two or more different values.")

    def including(self, value: Value) -> Choices:
        """These values, and `value` if it is not among them."""
        return self if value in self.values else Choices((value, *self.values))

    @property
    def ends(self) -> tuple[Value, ...]:
        return self.values

    def __str__(self) -> str:
        return ",".join(map(str, self.values))


SearchRange = FloatRange | Choices
SearchSpace = dict[str, SearchRange]
"""Ranges by the dotted names of settings, such as `loss.tau`."""
