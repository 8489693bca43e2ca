"""How often a server is asked, and how long one waits when it says: later."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Pace:
    """Lets requests through one after the other, at most `rate` a minute: all of them, whichever server they go to.

    They are spaced evenly: no minute, wherever it begins, sees more than the rate, but for the one that falls on its edge.
    """

    def __init__(
        self, rate: float, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"a rate of {rate} requests a minute is none; Wikimedia allows 200 to those who say who they are.")
        self.rate, self.clock, self.sleep = rate, clock, sleep
        self._next = -math.inf

    def turn(self) -> None:
        """Return when the next request may go out."""
        while (left := self._next - self.clock()) > 0:
            self.sleep(left)
        self._next = self.clock() + 60 / self.rate

    def pause(self, seconds: float) -> None:
        """Let nothing through for so long."""
        until = self.clock() + seconds
        while (left := until - self.clock()) > 0:
            self.sleep(left)


def retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """The seconds a `Retry-After` asks for: a number, whole or not, or a date. None where it says nothing of use.

    Example:
        >>> [retry_after(text) for text in ("7", "1.5", "soon", None)]
        [7.0, 1.5, None, None]
    """
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            date = parsedate_to_datetime(header)
        except ValueError:
            return None
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        seconds = (date - (now or datetime.now(UTC))).total_seconds()
    return None if math.isnan(seconds) else max(seconds, 0.0)
