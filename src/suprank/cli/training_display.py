"""The display of training on stderr: progress bars in a terminal, a line now and then in a file or pipe."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from suprank.cli.experiments import ParallelTrainingDisplay
from suprank.cli.terminal import escaped
from suprank.training.callbacks import Callback, StepValues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rich.progress import TaskID

    from suprank.evaluation import Report

MAIN_METRICS = ("R@1", "mAP@R", "AP", "H-AP", "NDCG")
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


class ParallelReportDisplay(ParallelTrainingDisplay):
    """Also prints the main metrics of each evaluation, read from the folders of the runs; once for the untrained network."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        super().__init__()
        self._folders, self._printed = folders, set[str]()

    def run_progress(self, name: str, done: int, steps: int, loss: float | None) -> None:
        super().run_progress(name, done, steps, loss)
        from suprank.evaluation import Report

        for file in sorted((self._folders[name] / "reports").glob("*-epoch-*.json")):
            epoch = int(file.stem.rpartition("-")[2])
            what = f"{name}, epoch {epoch}" if epoch else "untrained"
            if what not in self._printed:
                self._printed.add(what)
                self.note(f"{what}: {metrics_line(Report.load(file))}")


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
