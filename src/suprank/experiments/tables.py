"""The table of an experiment, settings × metrics, and how it is written: as text cells, in Markdown and in LaTeX."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from suprank.experiments.grid import RECIPE, TUNED, Setting
from suprank.files.markup import latex_escaped, latex_line, latex_table, markdown_table

LATEX_DIGITS = 1  # behind the point, as in the paper's tables

Marked = TypeVar("Marked")


class Statistic(NamedTuple):
    """Mean and standard deviation over seeds (with n − 1; None for a single seed), in percent."""

    mean: float
    deviation: float | None
    seeds: int

    @classmethod
    def from_shares(cls, shares: Sequence[float]) -> Statistic | None:
        """The statistic of shares of 1; None if there are none."""
        if not shares:
            return None
        percent = [100 * share for share in shares]
        return cls(statistics.fmean(percent), statistics.stdev(percent) if len(percent) > 1 else None, len(percent))

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ± {self.deviation:.2f}")


class Row(NamedTuple):
    """A setting, how many of its planned seeds are finished, its statistics by column, and the mean time of a run's training
    steps in seconds."""

    setting: Setting
    finished: int
    planned: int
    statistics: dict[str, Statistic | None]
    seconds: float | None

    @property
    def label(self) -> str:
        """The row in words: its recipe, whether that was tuned, and the values of the axes."""
        words = {RECIPE: "{}", TUNED: "tuned"}
        named = [(key, value) for key, value in self.setting if (key, value) != (TUNED, "no")]
        return ", ".join(words.get(key, f"{key}={{}}").format(value) for key, value in named) or "the recipe"


@dataclass(frozen=True)
class Table:
    """Settings × metrics. In a relative table, `base` is what the increases are relative to, such as "loss.weight=0".

    `better` are the columns in which the best is better than every other by more than chance, so that it is marked.
    """

    axes: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    base: str = ""
    better: frozenset[str] = frozenset()

    @property
    def labels(self) -> tuple[str, ...]:
        """The heads of the columns that identify the row; the others are numbers."""
        return self.axes or ("setting",)

    @property
    def ragged(self) -> bool:
        """Whether rows have different numbers of seeds, or fewer finished ones than planned."""
        return len({count for row in self.rows for count in (row.finished, row.planned)}) > 1

    def is_best(self, row: Row, column: str, digits: int = 2) -> bool:
        """Whether the row's mean is the best of the column, as it is printed, and by more than chance (`better`).

        A single mean is not the best of anything.
        """
        if column not in self.better:
            return False
        means = [cell.mean for one in self.rows if (cell := one.statistics[column]) is not None]
        own = row.statistics[column]
        return own is not None and len(means) > 1 and f"{own.mean:.{digits}f}" == f"{max(means):.{digits}f}"

    def cells(self, mark: Callable[[str], Marked], *, seconds: bool = False) -> list[list[str | Marked]]:
        """The table as text, header first; `mark` makes the best of each column stand out; `seconds` adds a column."""
        heads = [column + (", increase" if self.base else "") + ", %" for column in self.columns]
        lines: list[list[str | Marked]] = [[*self.labels, *self.ragged * ["seeds"], *heads, *seconds * ["s"]]]
        for row in self.rows:
            line: list[str | Marked] = [value for _, value in row.setting] or ["the recipe"]
            line += self.ragged * [f"{row.finished} of {row.planned}"]
            for column in self.columns:
                cell = row.statistics[column]
                line.append("–" if cell is None else mark(str(cell)) if self.is_best(row, column) else str(cell))
            line += seconds * ["–" if row.seconds is None else f"{row.seconds:.1f}"]
            lines.append(line)
        return lines

    def markdown(self, *, seconds: bool = False) -> str:
        """The table with the best of each column in bold, if it is better by more than chance."""
        return markdown_table(self.cells(lambda text: f"**{text}**", seconds=seconds), len(self.labels))


def caption(table: Table) -> str:
    """A sentence on what the numbers of a comparison are."""
    counts = sorted({row.finished for row in table.rows if row.finished})
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    several = f"mean ± standard deviation (n − 1) over {seeds} seeds"
    return f"In percent, after the last epoch, {several if counts[-1] > 1 else 'of one seed'}."


def comparison_markdown(table: Table, notes: Sequence[str] = (), further: Sequence[str] = ()) -> str:
    """The table of a comparison with the seconds of a run in the last column; below it, the caption, the notes, and further
    tables."""
    text = f"{caption(table)} s: seconds that the training steps of a run took."
    return "\n".join([table.markdown(seconds=True), " ".join([text, *notes]), "", *(f"{one}" for one in further)])


def comparison_latex(table: Table, command: str = "", notes: Sequence[str] = ()) -> str:
    """The table of a comparison as a booktabs tabular, for a paper: the best of each column, as it is printed, in bold, and
    standard deviations as subscripts. The command that made it, the caption and the notes are comments."""
    heads = ["Method", *table.ragged * ["seeds"], *map(latex_escaped, table.columns)]
    lines = [latex_line(_latex_cells(table, row)) for row in table.rows]
    return latex_table(f"l{'r' * (len(heads) - 1)}", [heads], lines, comments=[command, caption(table), *notes])


def _latex_cells(table: Table, row: Row) -> list[str]:
    cells = [latex_escaped(row.label), *table.ragged * [f"{row.finished}/{row.planned}"]]
    for column in table.columns:
        cell = row.statistics[column]
        if cell is None:
            cells.append("--")
            continue
        mean = f"{cell.mean:.{LATEX_DIGITS}f}"
        mean = rf"\textbf{{{mean}}}" if table.is_best(row, column, LATEX_DIGITS) else mean
        cells.append(mean if cell.deviation is None else rf"{mean}$_{{\pm {cell.deviation:.{LATEX_DIGITS}f}}}$")
    return cells
