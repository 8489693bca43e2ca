"""The display of training on stderr: progress bars in a terminal, a line now and then in a file or pipe."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from suprank.cli.terminal import escaped
from suprank.training.callbacks import Callback, StepValues, metrics_line, step_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.progress import TaskID

    from suprank.evaluation import Report

SECONDS_BETWEEN_LINES = 30.0  # without a terminal


class TrainingDisplay(Callback):
    """Shows the loss and its parts, learning rates, speed and time left, and the main metrics of each evaluation.

    `quiet` shows messages only. Use it as a context manager, which removes the bars at its end.
    """

    def __init__(
        self, *, quiet: bool = False, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quiet, self._clock = quiet, clock
        self._console = console or Console(stderr=True)
        self._bars = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=self._console)
        self._training: TaskID | None = None
        self._side_bars: dict[str, TaskID] = {}
        self._details = Text()
        self._live: Live | None = None
        self._steps = 0
        self._last_line = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def on_prepare_progress(self, what: str, done: int, total: int) -> None:
        self._start_bars()
        self._advance(what, done, total)

    def on_train_start(self, done: int, steps: int, description: str) -> None:
        self._remove_side_bars()
        if self._quiet:
            return
        self._print(description)
        self._steps, self._last_line = steps, self._clock()
        self._start_bars()
        if self._live is not None:
            self._training = self._bars.add_task("training", total=steps, completed=done)

    def on_step_end(self, step: StepValues) -> None:
        if self._training is not None:
            self._bars.update(self._training, completed=step.step, description=f"epoch {max(1, math.ceil(step.epoch))}")
            self._details = Text(escaped(step_line(step, self._console.width)), no_wrap=True, overflow="ellipsis")
        elif self._is_due():
            self._print(f"epoch {step.epoch:.2f}  step {step.step}/{self._steps}  {step_line(step)}")

    def on_evaluation_progress(self, name: str, done: int, total: int) -> None:
        self._advance(f"evaluating {name}", done, total)

    def on_evaluation_end(self, epoch: int, reports: Mapping[str, Report]) -> None:
        self._remove_side_bars()
        if not self._quiet:
            for name, report in reports.items():
                self._print(f"epoch {epoch}{f' {name}' if len(reports) > 1 else ''}: {metrics_line(report)}")

    def on_message(self, text: str) -> None:
        self._print(text)

    def _bars_and_details(self) -> Group:
        """Two lines: the bar of training, and the details of its last step or the bar of what goes on beside it."""
        return Group(self._bars) if self._side_bars else Group(self._bars, self._details)

    def _start_bars(self) -> None:
        """Show the bars, if there is a terminal and they are wanted."""
        if self._live is None and self._console.is_terminal and not self._quiet:
            self._live = Live(get_renderable=self._bars_and_details, console=self._console, transient=True)
            self._live.start()

    def _advance(self, what: str, done: int, total: int) -> None:
        """Advance the bar of something beside training, such as an evaluation; there is one at a time."""
        if self._live is not None:
            if what not in self._side_bars:
                self._remove_side_bars()
                self._side_bars[what] = self._bars.add_task(what, total=total)
            self._bars.update(self._side_bars[what], completed=done)
        elif self._is_due():
            self._print(f"{what}  {done}/{total}")

    def _remove_side_bars(self) -> None:
        for task in self._side_bars.values():
            self._bars.remove_task(task)
        self._side_bars = {}

    def _is_due(self) -> bool:
        """Whether it is time to print a line."""
        now = self._clock()
        if self._quiet or now - self._last_line < SECONDS_BETWEEN_LINES:
            return False
        self._last_line = now
        return True

    def _print(self, text: str) -> None:
        self._console.print(Text(escaped(text)), soft_wrap=True)
