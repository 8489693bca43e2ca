"""What the paper's figures of trained models share: the figure with its facts, and how runs are opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from suprank.evaluation.retrieval_data import RetrievalData
from suprank.workflows.opening import open_data

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from matplotlib.figure import Figure

    Run = str | PathLike[str] | RetrievalData


class ModelFigure(NamedTuple):
    """A figure, the numbers that belong to it, and a description for readers who cannot see it."""

    figure: Figure
    facts: dict[str, float | str]
    alt: str


def open_run(run: Run) -> RetrievalData:
    """The run's test images with their embeddings; they are embedded first if they are not yet."""
    return run if isinstance(run, RetrievalData) else open_data(run)


def choose_coarse_level(levels: Sequence[str], level: str | None, about: str) -> str:
    """The coarse level to show: the given one, or the coarsest."""
    if level is not None and level not in levels[1:]:
        raise ValueError(f"level={level!r} is not a coarse level of {about}; choose from {', '.join(levels[1:]) or 'none'}.")
    return level or levels[-1]


def shorten(name: str, most: int = 28) -> str:
    """The name, cut if it has more characters."""
    return name if len(name) <= most else f"{name[: most - 1]}…"
