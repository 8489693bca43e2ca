"""Progress of a long evaluation: a bar on the terminal, or the caller's own function."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Progress = Callable[[int, int], None]


def progress_function(progress: bool | Progress, title: str) -> Progress:
    """The function to call with (done, total): the caller's own, a bar on a terminal's stderr, or one that does nothing."""
    if callable(progress):
        return progress
    return _Bar(title) if progress and sys.stderr.isatty() else lambda done, total: None


class _Bar:
    """One line, rewritten at most ten times a second and closed at the end; work of less than a second shows nothing."""

    def __init__(self, title: str):
        self.title, self.began, self.shown = title, time.monotonic(), 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.began < 1 or (now - self.shown < 0.1 and done < total):
            return
        self.shown = now
        filled = round(30 * done / max(total, 1))
        left = (now - self.began) * (total - done) / max(done, 1)
        end = "\n" if done >= total else ""
        print(
            f"\r{self.title} {'━' * filled}{'╌' * (30 - filled)} {done}/{total}  {left:4.0f} s left", end=end, file=sys.stderr
        )
        sys.stderr.flush()
