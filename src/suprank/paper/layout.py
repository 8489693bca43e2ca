"""A table of the paper, laid out like the paper's: our numbers, the paper's beside them, and the difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from suprank.experiments.results import Outcome
from suprank.experiments.tables import Statistic
from suprank.files.markup import latex_escaped, latex_line, latex_table, markdown_table
from suprank.files.spreadsheets import csv_text
from suprank.paper.contents import Columns, Row, TableItem, metric_title
from suprank.paper.runs import Results, Training, level_metrics, share_of

DIGITS = 1  # behind the point, as in the paper's tables
EMPTY = "–"
TEST = "Welch's t-test over trainings, on these test classes, p < 0.05 after Holm's correction over the table"


class WelchDifference(NamedTuple):
    """The difference of two means over seeds, its 95 % interval, and the two-sided p-value."""

    difference: float
    low: float
    high: float
    p_value: float


def welch(first: Statistic, second: Statistic) -> WelchDifference:
    """Welch's t-test of two methods with two seeds or more each. Without any spread, the interval has no width.

    Example:
        >>> one, other = Statistic(50.0, 1.0, 3), Statistic(48.0, 1.0, 3)
        >>> [round(number, 3) for number in welch(one, other)]
        [2.0, -0.267, 4.267, 0.07]
    """
    from suprank.evaluation.statistics import student_p_value, student_quantile

    difference = first.mean - second.mean
    parts = [((one.deviation or 0) ** 2 / one.seeds, one.seeds - 1) for one in (first, second)]
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return WelchDifference(difference, difference, difference, 1.0 if difference == 0 else 0.0)
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    error = variance**0.5
    half = error * student_quantile(0.975, freedom)
    return WelchDifference(difference, difference - half, difference + half, student_p_value(difference / error, freedom))


class Cell(NamedTuple):
    """Our number of a method, in percent, and the paper's; None where there is none."""

    ours: Statistic | None
    paper: float | None

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.paper is None else self.ours.mean - self.paper

    @property
    def printed(self) -> str:
        """Our mean as the table prints it, by which numbers are compared."""
        return "" if self.ours is None else f"{self.ours.mean:.{DIGITS}f}"


class Line(NamedTuple):
    """A row of the laid out table: the paper's row, and its cells by dataset and metric."""

    row: Row
    cells: dict[tuple[str, str], Cell]


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper with our numbers.

    On small sets the columns are those of the small sets, where the paper has no numbers; the paper's numbers on its own
    datasets, in the metric `item.order_by`, follow after them, so that the order of the methods can be compared.
    """

    item: TableItem
    columns: tuple[Columns, ...]
    lines: tuple[Line, ...]
    small: bool
    notes: tuple[str, ...] = ()

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Dataset and metric of each column of numbers."""
        return [(columns.preset, metric) for columns in self.columns for metric in columns.metrics]

    @property
    def grouped(self) -> bool:
        """Whether the first column has the groups of the methods."""
        return any(line.row.group for line in self.lines)

    @property
    def label_columns(self) -> int:
        """The number of columns before those of numbers."""
        return self.grouped + len(self.item.heads)

    def peers(self, line: Line) -> list[Line]:
        """The lines that a line is compared with: all, or those of its group."""
        return [one for one in self.lines if not self.item.best_in_group or one.row.group == line.row.group]

    @property
    def tested(self) -> bool:
        """Whether every number has two seeds or more, so that chance can be told from more."""
        return all(cell.ours is None or cell.ours.seeds > 1 for line in self.lines for cell in line.cells.values())

    @cached_property
    def better_than_chance(self) -> frozenset[tuple[str, tuple[str, str]]]:
        """Column, and group where methods are compared within groups, in which the best is better than every other method
        by more than chance: Welch's t-test over seeds, p < 0.05 after Holm's correction for all of these tests of the table."""
        from suprank.evaluation.report_comparison import SIGNIFICANT
        from suprank.evaluation.statistics import holm

        found: list[tuple[tuple[str, tuple[str, str]], float]] = []
        for group in dict.fromkeys(self._compared_group(line) for line in self.lines):
            for key in self.keys:
                cells = [line.cells[key].ours for line in self.lines if self._compared_group(line) == group]
                ours = sorted((one for one in cells if one is not None), key=lambda one: one.mean, reverse=True)
                found += [((group, key), welch(ours[0], other).p_value) for other in ours[1:]]
        p_values = holm(np.array([p for _, p in found]))
        chance = {where for (where, _), p in zip(found, p_values, strict=True) if not p < SIGNIFICANT}
        return frozenset(where for where, _ in found) - chance

    def _compared_group(self, line: Line) -> str:
        return line.row.group if self.item.best_in_group else ""

    def mark(self, line: Line, key: tuple[str, str]) -> int:
        """1 for bold, 2 for underlined, else 0: the best of a column is bold if it is better than all others by more than
        chance, and else underlined, as it is with one seed, which says nothing about chance. Equal ones are marked alike."""
        printed = [text for one in self.peers(line) if (text := one.cells[key].printed)]
        if len(set(printed)) < 2 or line.cells[key].printed != max(printed, key=float):
            return 0
        return 1 if self.tested and (self._compared_group(line), key) in self.better_than_chance else 2

    def caption(self) -> str:
        """A sentence on what the numbers are."""
        seeds = sorted({cell.ours.seeds for line in self.lines for cell in line.cells.values() if cell.ours})
        if not seeds:
            return "No run is finished yet; the numbers behind the slash are the paper's."
        counts = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        several = f"mean ± standard deviation (n − 1) over {counts} seeds" if seeds[-1] > 1 else "of one seed"
        what = "" if self.small else "; behind the slash the paper's number, and the difference to it"
        where = "of a column in each group" if self.item.best_in_group else "of a column"
        begin = f"On {self.columns[0].title}, in" if len(self.columns) == 1 else "In"
        marks = f"The best {where} is underlined; one training says nothing about others."
        if self.tested:
            marks = (
                f"The best {where} is bold if it is better than all others by more than chance ({TEST}), and else underlined."
            )
        return f"{begin} percent, after the last epoch, {several}{what}. {marks}"

    def order_sentences(self) -> list[str]:
        """For each dataset of the paper: how many pairs of methods are in the paper's order, on each dataset here."""
        sentences = []
        for columns in self.item.columns:
            place = columns.metrics.index(self.item.order_by) if self.item.order_by in columns.metrics else None
            if place is None:
                continue
            counts = []
            for ours in self.columns:
                both = [
                    (cell.ours.mean, theirs, line.row.group if self.item.best_in_group else "")
                    for line in self.lines
                    if (cell := line.cells.get((ours.preset, self.item.order_by))) and cell.ours
                    if (theirs := line.row.paper[columns.preset][place]) is not None
                ]
                if len(both) > 1:
                    counts.append(f"{ours.title} {order_agreement(both)}")
            if counts:
                metric = metric_title(self.item.order_by)
                sentences.append(f"Pairs of methods in the paper's order by {columns.title} {metric}: {', '.join(counts)}.")
        return sentences


def lay_out(
    item: TableItem,
    columns: Sequence[Columns],
    results: Results,
    training: Callable[[str, Row], Training | None],
    *,
    small: bool = False,
    notes: Sequence[str] = (),
) -> PaperTable:
    """The table of an item with these columns. `training` names what is trained for a row on a preset.

    `AP/*` in columns is replaced by the AP of each coarser level that the runs measured. Rows that the paper quotes are left
    out on small sets, where they would be empty.
    """
    columns = [_named_levels(one, item, results, training) for one in columns]
    lines, unmeasured = [], set()
    for row in item.rows:
        if small and not row.methods:
            continue
        cells = {}
        for one in columns:
            wanted = training(one.preset, row)
            outcomes = _finished(results, wanted)
            for place, metric in enumerate(one.metrics):
                shares = [share for outcome in outcomes if (share := share_of(outcome, metric)) is not None]
                if len(shares) < len(outcomes):
                    unmeasured.add(f"{one.preset}: {metric}")
                paper = None if small else row.paper[one.preset][place]
                cells[one.preset, metric] = Cell(Statistic.from_shares(shares), paper)
        lines.append(Line(row, cells))
    notes = [*item.notes, *notes]
    if unmeasured:
        notes.append(f"Some runs did not measure {', '.join(sorted(unmeasured))}.")
    return PaperTable(item, tuple(columns), tuple(lines), small, tuple(notes))


def order_agreement(methods: Sequence[tuple[float, float, str]]) -> str:
    """How many pairs of methods are in the same order by both numbers, of those in one group that differ in the second.

    Example:
        >>> order_agreement([(1.0, 50.0, ""), (2.0, 55.0, ""), (1.5, 60.0, "")])
        '2 of 3'
    """
    pairs = [(one, other) for place, one in enumerate(methods) for other in methods[:place]]
    compared = [(one, other) for one, other in pairs if one[1] != other[1] and one[2] == other[2]]
    same = sum(one[0] != other[0] and (one[0] > other[0]) == (one[1] > other[1]) for one, other in compared)
    return f"{same} of {len(compared)}"


# Writing


def text_cells(table: PaperTable, bold: str = "{}", underline: str = "{}") -> list[list[str]]:
    """The table as text, the head first. `bold` and `underline` are the formats of marked numbers."""
    several = len(table.columns) > 1
    head = [*[""] * table.grouped, *table.item.heads]
    for columns in table.columns:
        head += [f"{columns.title} {metric_title(metric)}" if several else metric_title(metric) for metric in columns.metrics]
    paper = _paper_columns(table) if table.small else []
    head += [f"{title} {metric_title(table.item.order_by)} (paper)" for title, _ in paper]
    rows, group = [head], ""
    for number, line in enumerate(table.lines):
        row = [line.row.group if line.row.group != group else ""] if table.grouped else []
        group = line.row.group
        row += line.row.labels
        for key in table.keys:
            marked = {1: bold, 2: underline}.get(table.mark(line, key), "{}")
            row.append(marked.format(_ours_text(line.cells[key])) + _paper_text(line.cells[key]))
        rows.append(row + [texts[number] for _, texts in paper])
    return rows


def markdown(table: PaperTable, *, notes: bool = True) -> str:
    """The table in Markdown; below it the order of the methods on small sets, and with `notes` the caption and the notes."""
    body = markdown_table(text_cells(table, "**{}**", "<u>{}</u>"), table.label_columns).rstrip()
    order = table.order_sentences() if table.small else []
    return "\n\n".join([body, *([table.caption()] if notes else []), *order, *(table.notes if notes else ())]) + "\n"


def latex(table: PaperTable, command: str = "") -> str:
    """The table as a booktabs tabular with the paper's groups, rules and datasets side by side."""
    grouped, labels = table.grouped, table.label_columns
    shape = "l" * labels + "|".join("r" * len(columns.metrics) for columns in table.columns)
    rules = [*["c|"] * (len(table.columns) - 1), "c"]
    datasets = [
        rf"\multicolumn{{{len(columns.metrics)}}}{{{rule}}}{{{latex_escaped(columns.title)}}}"
        for columns, rule in zip(table.columns, rules, strict=True)
    ]
    heads = [*[""] * grouped, *map(_latex_text, table.item.heads)]
    heads += [_latex_text(metric_title(metric)) for columns in table.columns for metric in columns.metrics]
    lines = []
    for place, line in enumerate(table.lines):
        new_group = place == 0 or line.row.group != table.lines[place - 1].row.group
        if place and (line.row.rule or new_group):
            last = labels + len(table.keys)
            lines.append(r"\midrule" if new_group else rf"\cmidrule{{{1 + grouped}-{last}}}")
        size = sum(one.row.group == line.row.group for one in table.lines)
        name = rf"\multirow{{{size}}}{{*}}{{\rotatebox[origin=c]{{90}}{{{latex_escaped(line.row.group)}}}}}"
        first = [name if new_group and line.row.group else ""] if grouped else []
        texts = [_latex_cell(table, line, key) for key in table.keys]
        lines.append(latex_line([*first, *map(_latex_text, line.row.labels), *texts]))
    comments = [command, f"{table.item.title}.", table.caption(), *table.notes]
    above = [*[""] * labels, *datasets]
    return latex_table(shape, [above, heads], lines, comments=comments, packages="booktabs,multirow,graphicx,amssymb")


def table_csv(table: PaperTable) -> str:
    """CSV with a row for each number: ours in percent, its deviation and seeds, the paper's, and the difference."""
    heads = [head.lower() for head in table.item.heads]
    header = ["table", "group", *heads, "dataset", "metric", "ours", "deviation", "seeds", "paper", "difference"]
    rows: list[list[object]] = []
    for line in table.lines:
        for (preset, metric), cell in line.cells.items():
            ours = [cell.ours.mean, cell.ours.deviation, cell.ours.seeds] if cell.ours else [None, None, 0]
            labels = [table.item.label, line.row.group, *line.row.labels, preset, metric_title(metric)]
            rows.append([*labels, *ours, cell.paper, cell.difference])
    return csv_text(header, rows)


def _finished(results: Results, training: Training | None) -> list[Outcome]:
    return [one for one in results.get(training, ()) if one is not None] if training else []


def _named_levels(
    columns: Columns, item: TableItem, results: Results, training: Callable[[str, Row], Training | None]
) -> Columns:
    """The columns with `AP/*` replaced by the coarser levels that were measured: none if no run is finished."""
    if "AP/*" not in columns.metrics:
        return columns
    outcome = next((one for row in item.rows for one in _finished(results, training(columns.preset, row))), None)
    levels = level_metrics(next(iter(outcome.metrics.values())), "AP")[1:] if outcome else []
    metrics = [one for metric in columns.metrics for one in (levels if metric == "AP/*" else [metric])]
    return columns._replace(metrics=tuple(metrics))


def _paper_columns(table: PaperTable) -> list[tuple[str, list[str]]]:
    """The paper's numbers in the metric of the order, with their places, of each of its datasets: a title and the texts."""
    found = []
    for columns in table.item.columns:
        if table.item.order_by in columns.metrics:
            place = columns.metrics.index(table.item.order_by)
            texts = []
            for line in table.lines:
                number = line.row.paper[columns.preset][place]
                others = [one.row.paper[columns.preset][place] for one in table.peers(line)]
                better = sum(other > number for other in others if other is not None and number is not None)
                texts.append(EMPTY if number is None else f"{number:.1f} ({1 + better})")
            found.append((columns.title, texts))
    return found


def _ours_text(cell: Cell) -> str:
    if cell.ours is None:
        return EMPTY
    return cell.printed + ("" if cell.ours.deviation is None else f" ± {cell.ours.deviation:.{DIGITS}f}")


def _paper_text(cell: Cell) -> str:
    """` / 81.9 (−0.2)`: the paper's number and the difference."""
    if cell.paper is None:
        return ""
    difference = "" if cell.difference is None else f" ({_signed(cell.difference)})"
    return f" / {cell.paper:.{DIGITS}f}{difference}"


def _signed(number: float) -> str:
    text = f"{number:+.{DIGITS}f}".replace("-", "−")
    return f"{0:.{DIGITS}f}" if float(text.replace("−", "-")) == 0 else text


def _latex_cell(table: PaperTable, line: Line, key: tuple[str, str]) -> str:
    cell = line.cells[key]
    if cell.ours is None:
        text = "--"
    else:
        command = {1: r"\textbf", 2: r"\underline"}.get(table.mark(line, key))
        text = f"{command}{{{cell.printed}}}" if command else cell.printed
        text += "" if cell.ours.deviation is None else rf"$_{{\pm {cell.ours.deviation:.{DIGITS}f}}}$"
    if cell.paper is None:
        return text
    difference = "" if cell.difference is None else f" (${_signed(cell.difference).replace('−', '-')}$)"
    return rf"{text} {{\scriptsize {cell.paper:.{DIGITS}f}{difference}}}"


_LATEX_SIGNS = {"Σ": r"$\Sigma$", "✓": r"$\checkmark$", "✗": r"$\times$", "–": "--"}


def _latex_text(text: str) -> str:
    return "".join(_LATEX_SIGNS.get(sign, latex_escaped(sign)) for sign in text)
