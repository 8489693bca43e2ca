"""Numbers as the pages show them: with a minus sign instead of a hyphen, and a dash for NaN."""

from __future__ import annotations

import math

_NAN = "–"


def percent(value: float, *, sign: bool = False) -> str:
    """A fraction in percent with one decimal.

    Example:
        >>> percent(0.1234), percent(-0.1234, sign=True), percent(-0.0001, sign=True), percent(math.nan)
        ('12.3', '−12.3', '+0.0', '–')
    """
    return _NAN if math.isnan(value) else f"{100 * value:{'+' if sign else ''}z.1f}".replace("-", "−")


def p_value(value: float) -> str:
    """A p-value in two or three decimals."""
    from suprank.evaluation.report_text import short_p_value  # here, because `evaluation` imports torch

    return short_p_value(value, _NAN)
