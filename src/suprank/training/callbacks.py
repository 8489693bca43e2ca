"""What training tells about itself while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suprank.evaluation import Report


class StepValues(NamedTuple):
    """What a step was like."""

    step: int
    """Steps that are done, this one included."""

    epoch: float
    """Epochs that are done, with the part of the present one."""

    values: dict[str, float]
    """The loss, and then its parts."""

    rates: dict[str, float]
    """The learning rate of each group."""

    images_per_second: float
    seconds_left: float
    """Until the last step, without evaluations."""


class Callback:
    """Is told how training goes, and does nothing; a display overrides what it shows."""

    def begin(self, done: int, steps: int, about: str) -> None:
        """Training begins, with `done` of its `steps` done before; `about` says in a line what is trained."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Before training begins: `done` of `total` images are drawn, or decoded to be held."""

    def step(self, at: StepValues) -> None:
        """A step is done."""

    def evaluating(self, name: str, done: int, total: int) -> None:
        """`done` of `total` images of this test set are embedded."""

    def judged(self, epoch: int, reports: Mapping[str, Report]) -> None:
        """The test sets were evaluated after this many epochs."""

    def say(self, text: str) -> None:
        """Something that a user should know."""
