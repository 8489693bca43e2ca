"""Small text functions: the key of a label, counts with their noun, and reasons spelled out."""

from __future__ import annotations

import unicodedata

REASON_TEXTS = {
    "no_item": "category without a Wikidata item",
    "missing": "category that does not exist",
    "invalid": "source that is not a category",
    "redirect_loop": "too many redirects",
    "item_missing": "Wikidata item that does not exist",
    "category_item_without_topic": "category item without a main topic",
    "topic_loop": "main topics that form a circle",
    "no_type": "Wikidata item without a type",
    "failed": "failed request",
    "not_asked": "not requested yet",
    "not_listed": "not in the file",
    "empty": "no type in the file",
}
"""Why an item has no type, by the code that the project stores."""


def label_key(text: str) -> str:
    """Normalize a text so that spellings of one label compare equal: composed accents, single blanks, no case.

    Example:
        >>> label_key("  Caf\\u0065\\u0301\\u00a0 Bar "), label_key("STRASSE") == label_key("straße")
        ('café bar', True)
    """
    return " ".join(unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).split())


def pluralize(number: int, noun: str) -> str:
    """The number with its noun, which gets a plural s unless the number is 1.

    Example:
        >>> pluralize(1, "label"), pluralize(1200, "label")
        ('1 label', '1,200 labels')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def reason_text(reason: str) -> str:
    """Spell out the code of a reason, and keep the code in brackets. Other reasons are sentences already.

    Example:
        >>> reason_text("no_item"), reason_text("several types")
        ('category without a Wikidata item (no_item)', 'several types')
    """
    return f"{REASON_TEXTS[reason]} ({reason})" if reason in REASON_TEXTS else reason
