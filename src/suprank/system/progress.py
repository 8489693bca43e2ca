"""Progress of long work: a bar of tqdm on a terminal or in a notebook, or the caller's own function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Progress = Callable[[int, int], None]
StageProgress = Callable[[str, int, int], None]

DELAY = 1  # seconds; shorter work shows nothing


def progress_function(progress: bool | Progress, title: str) -> Progress:
    """The function to call with (done, total): the caller's own, one that draws a bar, or one that does nothing."""
    if callable(progress):
        return progress
    show = stage_progress(progress)
    return lambda done, total: show(title, done, total)


def stage_progress(progress: bool | StageProgress) -> StageProgress:
    """The function to call with (what, done, total), which draws a bar for each stage of the work unless it is the caller's."""
    if callable(progress):
        return progress
    if not progress or not (sys.stderr.isatty() or "ipykernel" in sys.modules):  # no bar in a log file
        return _silent
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError:
        return _silent
    bars: dict[str, Any] = {}

    def show(what: str, done: int, total: int) -> None:
        if done < total or what in bars:
            bar = bars.get(what) or bars.setdefault(what, tqdm(desc=what, total=total, delay=DELAY))
            bar.update(done - bar.n)
            if done >= total:
                bars.pop(what).close()

    return show


def _silent(what: str, done: int, total: int) -> None:
    pass
