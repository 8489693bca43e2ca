"""The table of a comparison: a row for each recipe, in the order given, and what a reader must know of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from suprank.experiments import sweep
from suprank.experiments.sweep import RECIPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.experiments.sweep import Outcomes, Table

DEFAULT_METRICS = ("R@1", "mAP@R", "AP", "H-AP", "ASI", "NDCG")


def table(found: Outcomes, metrics: Sequence[str] = ()) -> Table:
    """Means over seeds, by default of R@1, mAP@R, AP, H-AP, ASI and NDCG as far as they were measured."""
    made = sweep.table(found, metrics, default=DEFAULT_METRICS)
    order = list(dict.fromkeys(run[RECIPE] for run in found))  # also where all of them are numbers
    return replace(made, rows=tuple(sorted(made.rows, key=lambda row: order.index(dict(row.setting)[RECIPE]))))


def what_it_shows(table: Table) -> str:
    """What the numbers are."""
    counts = sorted({row.finished for row in table.rows if row.finished})
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    several = f"mean ± standard deviation (n − 1) over {seeds} seeds"
    return f"In percent, after the last epoch, {several if counts[-1] > 1 else 'of one seed'}."


def markdown(table: Table, notes: Sequence[str] = ()) -> str:
    """The table with the best of each column in bold and, in the last column, the seconds of a run; below it what the numbers
    are, and the notes."""
    said = f"{what_it_shows(table)} s: seconds that the training steps of a run took."
    return "\n".join([table.markdown(seconds=True), " ".join([said, *notes]), ""])
