"""Callbacks: how a program follows training while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from suprank.evaluation import Report


class StepValues(NamedTuple):
    """The values of one training step."""

    step: int
    """Steps done, this one included."""

    epoch: float
    """Epochs done, with the fraction of the current one."""

    values: dict[str, float]
    """The loss, and then its parts."""

    rates: dict[str, float]
    """The learning rate of each parameter group."""

    images_per_second: float
    seconds_left: float
    """Estimated time until the last step, without evaluations."""


class Callback:
    """A base class whose methods do nothing: override those you need. They are called on the first process only."""

    def on_prepare_progress(self, what: str, done: int, total: int) -> None:
        """Before training, `done` of `total` images have been drawn, or decoded for the cache."""

    def on_train_start(self, done: int, steps: int, description: str) -> None:
        """Training starts, with `done` of its `steps` already done; `description` says in a line what is trained."""

    def on_step_end(self, step: StepValues) -> None:
        """A training step has ended."""

    def on_evaluation_progress(self, name: str, done: int, total: int) -> None:
        """`done` of `total` images and queries of the test set `name` have been evaluated."""

    def on_evaluation_end(self, epoch: int, reports: Mapping[str, Report]) -> None:
        """The test sets have been evaluated after this many epochs."""

    def on_message(self, text: str) -> None:
        """There is something that the user should know."""


class CallbackList(Callback):
    """Calls each of several callbacks, in order."""

    def __init__(self, callbacks: Callback | Sequence[Callback] | None) -> None:
        self.callbacks = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
        for one in self.callbacks:
            if not isinstance(one, Callback):
                raise TypeError(f"callbacks has a {type(one).__name__}; derive it from suprank.training.Callback.")

    def on_prepare_progress(self, what: str, done: int, total: int) -> None:
        for one in self.callbacks:
            one.on_prepare_progress(what, done, total)

    def on_train_start(self, done: int, steps: int, description: str) -> None:
        for one in self.callbacks:
            one.on_train_start(done, steps, description)

    def on_step_end(self, step: StepValues) -> None:
        for one in self.callbacks:
            one.on_step_end(step)

    def on_evaluation_progress(self, name: str, done: int, total: int) -> None:
        for one in self.callbacks:
            one.on_evaluation_progress(name, done, total)

    def on_evaluation_end(self, epoch: int, reports: Mapping[str, Report]) -> None:
        for one in self.callbacks:
            one.on_evaluation_end(epoch, reports)

    def on_message(self, text: str) -> None:
        for one in self.callbacks:
            one.on_message(text)
