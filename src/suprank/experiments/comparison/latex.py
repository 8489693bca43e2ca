"""The table of a comparison in LaTeX, for a paper."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from suprank.experiments.comparison.results import what_it_shows
from suprank.experiments.sweep import RECIPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.experiments.sweep import Row, Table

DIGITS = 1  # behind the point, as in the paper's tables

_ESCAPED = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
}


def latex(table: Table, command: str = "", notes: Sequence[str] = ()) -> str:
    """A tabular of booktabs with the best of each column in bold, as it is printed, and standard deviations as indices. The
    command that made it, and the notes, are comments."""
    heads = ["Method", *table.ragged * ["seeds"], *(escaped(column) for column in table.columns)]
    comments = [command, what_it_shows(table), *notes, r"Needs \usepackage{booktabs}."]
    return "\n".join(
        [
            *(f"% {' '.join(text.split())}" for text in comments if text),
            rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"\toprule",
            _line(heads),
            r"\midrule",
            *(_line(_cells(table, row)) for row in table.rows),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def escaped(text: str) -> str:
    """Text as LaTeX prints it.

    Example:
        >>> print(escaped("R@1_50%"))
        R@1\\_50\\%
    """
    return re.sub(r"[&%$#_{}\\~^<>|]", lambda found: _ESCAPED[found[0]], text)


def _cells(table: Table, row: Row) -> list[str]:
    cells = [escaped(dict(row.setting)[RECIPE]), *table.ragged * [f"{row.finished}/{row.asked}"]]
    for column in table.columns:
        found = row.statistics[column]
        if found is None:
            cells.append("--")
            continue
        mean = f"{found.mean:.{DIGITS}f}"
        mean = rf"\textbf{{{mean}}}" if table.is_best(row, column, DIGITS) else mean
        cells.append(mean if found.deviation is None else rf"{mean}$_{{\pm {found.deviation:.{DIGITS}f}}}$")
    return cells


def _line(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"
