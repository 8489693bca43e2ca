"""Which of an item's types is its label, and why none is: the rules of a recipe, without files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from suprank.hierarchy.recipe import CleanRecipe
from suprank.hierarchy.text import key_of

NOT_LOOKED_UP = "no type was looked up yet"
SEVERAL = "several types"
ENDED = "the type has ended"


@dataclass(frozen=True)
class Type:
    """What a source says an item is."""

    text: str
    qid: str | None = None
    ended: bool = False

    @cached_property  # asked for ten times an item, of hundreds of thousands of items and a few thousand types
    def key(self) -> str:
        """The QID, or the normalized text without one: types with one key are one label."""
        return self.qid or key_of(self.text)


Outcome = Type | str
"""The type that is an item's label, or the reason why it has none."""

Chooser = Callable[[Sequence[Type]], Sequence[Type]]
"""Of an item's different types, two or more, those that remain: one is the label."""


def allowed(types: Sequence[Type], removal: Callable[[Type], str | None]) -> list[Type] | str:
    """The types that are not removed, each once, in their order; or, where there are none, why the first was removed."""
    found: dict[str, Type] = {}
    first = None
    for one in types:
        reason = removal(one)
        if reason is None:
            found.setdefault(one.key, one)
        else:
            first = first or reason
    return list(found.values()) or first or NOT_LOOKED_UP


def removal(one: Type, rules: CleanRecipe) -> str | None:
    """Why a type is not a label, or None: its QID, its text, or that it has ended."""
    stopped = next((stop.reason for stop in rules.stop if stop.qid == one.qid), None) or text_removal(one.text, rules)
    return stopped or (ENDED if one.ended and rules.ended == "drop" else None)


def text_removal(text: str, rules: CleanRecipe) -> str | None:
    """Why a text is not a label, whatever its case and blanks."""
    key = key_of(text)
    for stop in rules.stop_text:
        if stop.begins is not None:
            # "Wikimedia " ends in a blank so that "Wikimedian" stays; the key has lost blanks at the ends.
            begins = re.escape(key_of(stop.begins)) + (r"(\s|$)" if stop.begins != stop.begins.rstrip() else "")
            if re.match(begins, key):
                return stop.reason
        elif stop.equals is not None and key == key_of(stop.equals):
            return stop.reason
    return None


def choosers(items: Iterable[Sequence[Type]], above: Mapping[str, Iterable[str]]) -> dict[str, Chooser]:
    """The rules for items of several types, by their names in recipes.

    `items` are the allowed types of all items: the frequencies that `most-frequent` goes by. `above` is P279: QID → classes
    that it is a subclass of.
    """
    counts = Counter(one.key for types in items for one in types)
    cache: dict[str, frozenset[str]] = {}

    def most_specific(types: Sequence[Type]) -> Sequence[Type]:
        higher = {one.key: ancestors(one.key, above, cache) for one in types}
        return [
            one
            for one in types
            # In a cycle each is above the other, and neither goes.
            if not any(one.key in higher[other.key] and other.key not in higher[one.key] for other in types)
        ]

    return {
        "single-only": lambda types: types,
        "first": lambda types: types[:1],
        "most-specific": most_specific,
        "most-frequent": lambda types: [max(types, key=lambda one: counts[one.key])],
    }


def ancestors(qid: str, above: Mapping[str, Iterable[str]], cache: dict[str, frozenset[str]] | None = None) -> frozenset[str]:
    """All classes above one, however far. In a cycle a class is above itself.

    Example:
        >>> sorted(ancestors("chapel", {"chapel": ["church"], "church": ["building"], "building": ["church"]}))
        ['building', 'church']
    """
    if cache is not None and qid in cache:
        return cache[qid]
    found: set[str] = set()
    waiting = list(above.get(qid, ()))
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting.extend(above.get(one, ()))
    if cache is not None:
        cache[qid] = frozenset(found)
    return frozenset(found)


def outcome(types: Sequence[Type] | str, chooser: Chooser) -> Outcome:
    """The label of an item with these allowed types, or the reason why it has none."""
    if isinstance(types, str):
        return types
    left = types if len(types) == 1 else chooser(types)
    return left[0] if len(left) == 1 else SEVERAL
