"""Texts of labels: what makes two spellings one label; and numbers of things in words."""

from __future__ import annotations

import unicodedata


def key_of(text: str) -> str:
    """The text by which labels are told apart: composed accents, one blank between words, no case.

    Example:
        >>> key_of("  Caf\\u0065\\u0301\\u00a0 Bar "), key_of("STRASSE") == key_of("straße")
        ('café bar', True)
    """
    return " ".join(unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).split())


def amount(number: int, thing: str) -> str:
    """So many of a thing whose plural ends in s.

    Example:
        >>> amount(1, "label"), amount(1200, "label")
        ('1 label', '1,200 labels')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
