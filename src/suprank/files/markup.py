"""Tables as text: in Markdown, and in LaTeX for a paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LATEX = str.maketrans(
    {
        **{special: f"\\{special}" for special in "&%$#_{}"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\n": " ", "\r": " "},
    }
)


def markdown_table(lines: Sequence[Sequence[str]], labels: int = 1) -> str:
    """Cells in Markdown, the head first; the first columns are labels, the others numbers.

    Example:
        >>> print(markdown_table([["loss", "R@1"], ["a|b", "62.2"]]), end="")
        | loss | R@1 |
        | --- | ---: |
        | a\\|b | 62.2 |
    """
    rule = ["---" if place < labels else "---:" for place in range(len(lines[0]))]
    every = (lines[0], rule, *lines[1:])
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in every)


def latex_escaped(text: str) -> str:
    """Text as LaTeX prints it, on one line.

    Example:
        >>> print(latex_escaped("R@1_50%"))
        R@1\\_50\\%
    """
    return text.translate(_LATEX)


def latex_line(cells: Iterable[str]) -> str:
    """One line of a LaTeX table."""
    return rf"{' & '.join(cells)} \\"


def latex_table(
    shape: str, heads: Sequence[Sequence[str]], lines: Iterable[str], *, comments: Iterable[str], packages: str = "booktabs"
) -> str:
    """A booktabs tabular of this shape (`lrr`): the lines of its head, and those below, which may be rules. Comments that are
    not empty come first, and what the table needs."""
    return "\n".join(
        [
            *(f"% {' '.join(text.split())}" for text in (*comments, rf"Needs \usepackage{{{packages}}}.") if text),
            rf"\begin{{tabular}}{{{shape}}}",
            r"\toprule",
            *map(latex_line, heads),
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )
