"""Callbacks: how a program follows training while it runs."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from suprank.evaluation import Report

MAIN_METRICS = ("R@1", "mAP@R", "AP", "H-AP", "NDCG")


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


def step_line(step: StepValues, width: float = math.inf) -> str:
    """`loss 0.3102  surrogate 0.41  lr 1e-05  512 images/s  0:12:34 left`

    If that is wider than `width`, values after the loss are left out, the last ones first, and then rates after the first.
    """
    values = [f"{name} {value:.4g}" for name, value in step.values.items()]
    rates = {name: f"{rate:.3g}" for name, rate in step.rates.items()}
    if len(set(rates.values())) == 1:
        rates = {"": next(iter(rates.values()))}
    end = [f"{step.images_per_second:,.0f} images/s"]
    if math.isfinite(step.seconds_left):
        end.append(f"{timedelta(seconds=round(step.seconds_left))} left")
    while True:
        lr = [f"lr {', '.join(f'{name} {rate}'.strip() for name, rate in rates.items())}"] if rates else []
        line = "  ".join([*values, *lr, *end])
        if len(line) <= width or not (values[1:] or len(rates) > 1):
            return line
        if values[1:]:
            values.pop()
        else:
            rates.popitem()


def metrics_line(report: Report) -> str:
    """`R@1 73.42  AP 41.10  H-AP 51.30`: the main metrics that the report has, in percent, of the finest level."""
    keys = {name: (name, *(f"{name}/{level}" for level in report.levels[:1])) for name in MAIN_METRICS}
    shown = {name: report[key] for name, spellings in keys.items() for key in spellings[::-1] if key in report}
    if not shown:  # a recipe may choose others
        shown = dict(list(report.items())[: len(MAIN_METRICS)])
    return "  ".join(f"{name} {'--' if math.isnan(value) else f'{100 * value:.2f}'}" for name, value in shown.items())
