"""A little English: plurals and head words of names, well enough to ask a person."""

from __future__ import annotations

import re

from suprank.hierarchy.text import key_of

_ALIKE = (
    "works",
    "waterworks",
    "gasworks",
    "steelworks",
    "ironworks",
    "barracks",
    "headquarters",
    "gallows",
    "series",
    "species",
)
_PAIRS = ("glasses", "jeans", "leggings", "pants", "pliers", "scissors", "shorts", "tights", "trousers")
NO_SINGULAR = frozenset(
    (*_ALIKE, *_PAIRS, "grounds", "lens", "means", "news", "outskirts", "premises", "remains", "ruins", "stairs")
)
"""Words that look like plurals and are none, or have no other form."""

_NO_PLURAL = re.compile(r"(ss|us|is|ics|as|os)$")


def is_plural(word: str) -> bool:
    """Whether a word looks like the plural of another.

    Example:
        >>> [word for word in ("parks", "cross", "ruins", "campus", "boxes", "park") if is_plural(word)]
        ['parks', 'boxes']
    """
    return len(word) > 3 and word.endswith("s") and word not in NO_SINGULAR and not _NO_PLURAL.search(word)


def singular(word: str) -> str:
    """A word without its plural ending; a word that is no plural as it is.

    Example:
        >>> singular("parks"), singular("galleries"), singular("churches"), singular("houses"), singular("cross")
        ('park', 'gallery', 'church', 'house', 'cross')
    """
    if not is_plural(word):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-2] if re.search(r"(ch|sh|x|z|ss)es$", word) else word[:-1]


def words(name: str) -> tuple[str, ...]:
    """The words of a name in lower case, without what stands in brackets.

    Example:
        >>> words("Church building (1172–1954)")
        ('church', 'building')
    """
    return tuple(re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", re.sub(r"\([^()]*\)", " ", key_of(name))))


def head(name: str) -> str:
    """The word that says what a name is a kind of: the last one, or the last before "of", "in", "for" or "with".

    Example:
        >>> head("stave church"), head("quarter of Hamburg"), head("")
        ('church', 'quarter', '')
    """
    found = words(name)
    for place, word in enumerate(found):
        if place and word in ("of", "in", "for", "with", "on", "at"):
            return found[place - 1]
    return found[-1] if found else ""


def singular_name(name: str) -> tuple[str, ...]:
    """The words of a name, each in the singular: what "parks" and "park" share."""
    return tuple(singular(word) for word in words(name))
