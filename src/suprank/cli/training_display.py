"""Training as a user sees it on stderr: a bar in a terminal, a line now and then in a file or pipe."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from suprank.cli.terminal import escaped
from suprank.training.callbacks import Callback, StepValues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.progress import TaskID

    from suprank.evaluation import Report

MAIN = ("R@1", "mAP@R", "AP", "H-AP", "NDCG")
BETWEEN = 30.0  # seconds between lines where there is no terminal


class TrainingDisplay(Callback):
    """Shows the loss and its parts, learning rates, speed and time left, and the main metrics of each evaluation.

    `quiet` shows what is said alone: warnings. To be used as a context, which takes the bar away at its end.
    """

    def __init__(
        self, *, quiet: bool = False, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quiet, self._clock = quiet, clock
        self._console = console or Console(stderr=True)
        self._bars = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=self._console)
        self._training: TaskID | None = None
        self._beside: dict[str, TaskID] = {}
        self._details = Text()
        self._live: Live | None = None
        self._steps = 0
        self._told = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def preparing(self, what: str, done: int, total: int) -> None:
        self._show()
        self._advance(what, done, total)

    def begin(self, done: int, steps: int, about: str) -> None:
        self._forget_beside()
        if self._quiet:
            return
        self._print(about)
        self._steps, self._told = steps, self._clock()
        self._show()
        if self._live is not None:
            self._training = self._bars.add_task("training", total=steps, completed=done)

    def step(self, at: StepValues) -> None:
        if self._training is not None:
            self._bars.update(self._training, completed=at.step, description=f"epoch {max(1, math.ceil(at.epoch))}")
            self._details = Text(escaped(step_line(at)))
        elif self._is_due():
            self._print(f"epoch {at.epoch:.2f}  step {at.step}/{self._steps}  {step_line(at)}")

    def evaluating(self, name: str, done: int, total: int) -> None:
        self._advance(f"evaluating {name}", done, total)

    def judged(self, epoch: int, reports: Mapping[str, Report]) -> None:
        self._forget_beside()
        if not self._quiet:
            for name, report in reports.items():
                self._print(f"epoch {epoch}{f' {name}' if len(reports) > 1 else ''}: {metrics_line(report)}")

    def say(self, text: str) -> None:
        self._print(text)

    def _picture(self) -> Group:
        return Group(self._bars, self._details)

    def _show(self) -> None:
        """Bars, where there is a terminal for them, and they are wanted."""
        if self._live is None and self._console.is_terminal and not self._quiet:
            self._live = Live(get_renderable=self._picture, console=self._console, transient=True)
            self._live.start()

    def _advance(self, what: str, done: int, total: int) -> None:
        """The bar of what is not training itself: there is one at a time."""
        if self._live is not None:
            if what not in self._beside:
                self._forget_beside()
                self._beside[what] = self._bars.add_task(what, total=total)
            self._bars.update(self._beside[what], completed=done)
        elif self._is_due():
            self._print(f"{what}  {done}/{total}")

    def _forget_beside(self) -> None:
        for task in self._beside.values():
            self._bars.remove_task(task)
        self._beside = {}

    def _is_due(self) -> bool:
        """Whether it is time for a line, where lines are wanted."""
        now = self._clock()
        if self._quiet or now - self._told < BETWEEN:
            return False
        self._told = now
        return True

    def _print(self, text: str) -> None:
        self._console.print(Text(escaped(text)), soft_wrap=True)


def step_line(at: StepValues) -> str:
    """`loss 0.3102  surrogate 0.41  lr 1e-05  512 images/s  0:12:34 left`"""
    parts = [f"{name} {value:.4g}" for name, value in at.values.items()]
    rates = {name: f"{rate:.3g}" for name, rate in at.rates.items()}
    if len(set(rates.values())) == 1:
        parts.append(f"lr {next(iter(rates.values()))}")
    elif rates:
        parts.append(f"lr {', '.join(f'{name} {rate}' for name, rate in rates.items())}")
    parts.append(f"{at.images_per_second:,.0f} images/s")
    if math.isfinite(at.seconds_left):
        parts.append(f"{timedelta(seconds=round(at.seconds_left))} left")
    return "  ".join(parts)


def metrics_line(report: Report) -> str:
    """`R@1 73.42  AP 41.10  H-AP 51.30`: the main metrics that the report has, in percent, of the finest level."""
    keys = {name: (name, *(f"{name}/{level}" for level in report.levels[:1])) for name in MAIN}
    shown = {name: report[key] for name, spelt in keys.items() for key in spelt[::-1] if key in report}
    if not shown:  # a recipe may ask for others
        shown = dict(list(report.values.items())[: len(MAIN)])
    return "  ".join(f"{name} {'--' if math.isnan(value) else f'{100 * value:.2f}'}" for name, value in shown.items())
