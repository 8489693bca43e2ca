"""How an experiment goes: one line for each run, the same in a terminal, in a notebook and in a log."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from suprank.experiments.tables import Table

SECONDS_BETWEEN_UPDATES = 0.5
SECONDS_BETWEEN_LINES = 60.0  # without a terminal
MOST_LINES = 30  # of a notebook


class Display:
    """A base class whose methods do nothing: override those that you want to show. `ProgressDisplay` shows everything."""

    def begin(self, names: Sequence[str], metric: str = "") -> None:
        """These runs are about to be run; `metric` is what `run_ended` gets the value of."""

    def run_added(self, name: str) -> None:
        """There is a further run, whose settings depend on earlier ones."""

    def run_started(self, name: str) -> None:
        """A run was started."""

    def run_progress(self, name: str, done: int, steps: int, loss: float | None) -> None:
        """`done` of the `steps` of a run are done."""

    def run_ended(self, name: str, failure: str = "", value: float | None = None) -> None:
        """A run ended; `failure` is empty if it left a result, in which the metric has this value, as a share of 1."""

    def end(self) -> None:
        """No run is left; follows every `begin`, also after an error."""

    def skipped(self, finished: int, total: int) -> None:
        """`finished` of `total` runs were finished before, and are not run again."""

    def note(self, text: str) -> None:
        """Something that a user should know."""

    def table(self, table: Table, *, seconds: bool = False) -> None:
        """A table of results; called also if the table cannot be written. `seconds` asks for the column of times."""


@dataclass
class _Run:
    """What is known of a run: `began` is empty while it waits, and `text` while it has not ended."""

    began: float | None = None
    share: float = 0.0
    loss: float | None = None
    text: str = ""
    failed: bool = False


class ProgressDisplay(Display):
    """Shows which runs are done, running and failed, the time left, and the best so far, on stderr.

    A terminal and a notebook have a line for each run, which is updated; a file has a line whenever a run ends, and every
    minute. With `quiet` only notes are shown.
    """

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet, self._clock = quiet, clock
        self._runs: dict[str, _Run] = {}
        self._area: Any = None

    def begin(self, names: Sequence[str], metric: str = "") -> None:
        self._runs = {name: _Run() for name in names}
        self._metric, self._best = metric, ("", -1.0)
        self._began = self._shown = self._clock()
        self._area = _open_area(self.lines) if names and not self._quiet else None

    def run_added(self, name: str) -> None:
        self._runs[name] = _Run()

    def run_started(self, name: str) -> None:
        self._runs[name].began = self._clock()
        self._update()

    def run_progress(self, name: str, done: int, steps: int, loss: float | None) -> None:
        run = self._runs[name]
        run.share, run.loss = done / max(1, steps), loss
        self._update()

    def run_ended(self, name: str, failure: str = "", value: float | None = None) -> None:
        run = self._runs[name]
        metric = "" if value is None else f"  {self._metric} {100 * value:.2f}"
        run.text, run.failed = "failed" if failure else f"done{metric}", bool(failure)
        if run.began is not None:
            run.text += f"  {_time(self._clock() - run.began)}"
        if value is not None and value > self._best[1]:
            self._best = (name, value)
        if self._area is not None:
            self._update(now=True)
        elif not self._quiet:
            self._print(f"{name}: {run.text}  ({self.summary()})")

    def end(self) -> None:
        if self._area is not None:
            area, self._area = self._area, None
            area.close()

    def skipped(self, finished: int, total: int) -> None:
        if not self._quiet:
            self._print(f"{finished} of {total} runs are finished already.")

    def note(self, text: str) -> None:
        self._print(text)

    def summary(self) -> str:
        """`3 of 12 done, 2 running, 1 failed, about 0:12:30 left, best so far: R@1 64.20 (roadmap,seed=1)`"""
        runs = list(self._runs.values())
        ended, failed = sum(bool(run.text) for run in runs), sum(run.failed for run in runs)
        running = sum(run.began is not None and not run.text for run in runs)
        words = [f"{ended - failed} of {len(runs)} done", f"{running} running", f"{failed} failed"]
        share = sum(1.0 if run.text else run.share for run in runs) / max(1, len(runs))
        if 0 < share < 1:
            words.append(f"about {_time((self._clock() - self._began) * (1 - share) / share)} left")
        if self._best[0]:
            words.append(f"best so far: {self._metric} {100 * self._best[1]:.2f} ({self._best[0]})")
        return ", ".join(words)

    def lines(self) -> list[str]:
        """The summary, and a line for each run that is running or has ended."""
        width = max(map(len, self._runs), default=0)
        lines = [self.summary()]
        for name, run in self._runs.items():
            if run.began is not None or run.text:
                loss = "" if run.loss is None else f"  loss {run.loss:.4g}"
                lines.append(f"  {name:{width}}  {run.text or f'running  {100 * run.share:.0f} %{loss}'}")
        return [self.escape(line) for line in lines]

    def escape(self, text: str) -> str:
        """Text for a terminal; names may have control characters."""
        return text

    def _update(self, *, now: bool = False) -> None:
        wait = SECONDS_BETWEEN_LINES if self._area is None else SECONDS_BETWEEN_UPDATES
        if not self._quiet and (now or self._clock() - self._shown >= wait):
            self._shown = self._clock()
            if self._area is None:
                self._print(self.summary())
            else:
                self._area.update()

    def _print(self, text: str) -> None:
        """Print a line, above those that are updated."""
        if self._area is None:
            print(self.escape(text), file=sys.stderr, flush=True)
        else:
            self._area.print(self.escape(text))


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _open_area(lines: Callable[[], list[str]]) -> Any:
    """Where lines can be updated: in a notebook, or in a terminal; None elsewhere."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    if shell is not None and hasattr(shell, "kernel"):
        return _NotebookArea(lines)
    return _TerminalArea(lines) if sys.stderr.isatty() else None


class _TerminalArea:
    def __init__(self, lines: Callable[[], list[str]]) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        def text() -> Text:
            # The end of a long list: what runs now is there.
            head, *rest = lines()
            return Text("\n".join([head, *rest[-max(1, console.height - 2) :]]), no_wrap=True, overflow="ellipsis")

        console, self._lines = Console(stderr=True), lines
        self._live = Live(get_renderable=text, console=console, transient=True, refresh_per_second=2)
        self._live.start()

    def update(self) -> None:
        self._live.refresh()

    def print(self, text: str) -> None:
        self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()
        self._live.console.print("\n".join(self._lines()), highlight=False, markup=False, soft_wrap=True)


class _NotebookArea:
    def __init__(self, lines: Callable[[], list[str]]) -> None:
        from IPython.display import display  # type: ignore[import-not-found]  # in a notebook it is there

        self._lines = lines
        self._handle = display(self._text(), display_id=True)

    def _text(self) -> Any:
        from IPython.display import Pretty

        head, *rest = self._lines()
        return Pretty("\n".join([head, *rest[-MOST_LINES:]]))

    def update(self) -> None:
        self._handle.update(self._text())

    def print(self, text: str) -> None:
        print(text, file=sys.stderr)

    def close(self) -> None:
        self.update()
