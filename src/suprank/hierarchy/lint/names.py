"""Names that a reader would stumble over: of one level, or of the siblings under one parent."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence

from suprank.hierarchy.lint.findings import ERROR, WARNING, Finding
from suprank.hierarchy.lint.words import head, is_plural, singular, singular_name, words
from suprank.hierarchy.recipe import LintRecipe
from suprank.hierarchy.text import key_of

PAIRS_UP_TO = 1000
"""Siblings that are compared with each other; under one parent with more, only equal keys are looked for."""

_FEW = 0.1  # plurals up to this share of the siblings are strangers among them


def name_findings(level: str, names: Sequence[str]) -> Iterator[Finding]:
    """Of all names of a level: stray blanks, spellings that differ in case or blanks only, a slash."""
    spellings: dict[str, set[str]] = defaultdict(set)
    for name in set(names):
        spellings[key_of(name)].add(name)
        if (what := _blanks(name)) is not None:
            yield Finding("blanks", ERROR, level, (name,), f"{level} {name!r} {what}")
        if "/" in name:
            yield Finding("slash", WARNING, level, (name,), f"{level} {name!r}: choose one name, or make two groups")
    for found in spellings.values():
        if len(found) > 1:
            both = tuple(sorted(found))
            yield Finding("case", ERROR, level, both, f"{level} {_listed(both)} differ in case or blanks only; merge them")


def _blanks(name: str) -> str | None:
    if name != name.rstrip():
        return "ends in a blank"
    if name != name.lstrip():
        return "begins with a blank"
    if any(letter.isspace() and letter != " " for letter in name):
        return "holds a blank that is none of the usual (a tab, a line break, a no-break space)"
    if "  " in name:
        return "holds two blanks in a row"
    if any(unicodedata.category(letter) in ("Cf", "Cc") for letter in name):
        return "holds a character that cannot be seen"
    return None


def sibling_findings(level: str, names: Sequence[str], parent: str | None, rules: LintRecipe) -> Iterator[Finding]:
    """Of the names under one parent: plurals, near doubles, and names that mean much the same."""
    distinct = sorted(set(names))
    under = "" if parent is None else f" under {parent!r}"
    yield from _plurals(level, distinct, under)
    yield from _meanings(level, distinct, under, rules)
    if len(distinct) <= PAIRS_UP_TO:
        yield from _pairs(level, distinct, under, rules)


def label_findings(level: str, names: Sequence[str], parent: str, rules: LintRecipe) -> Iterator[Finding]:
    """Of the labels in one group: plurals, and names that mean much the same. That they are alike is why they are together."""
    distinct = sorted(set(names))
    yield from _plurals(level, distinct, f" under {parent!r}")
    yield from _meanings(level, distinct, f" under {parent!r}", rules)
    forms: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for name in distinct:
        forms[singular_name(name)].add(name)
    for form, found in forms.items():
        if form and len({words(name) for name in found}) > 1:
            both = tuple(sorted(found))
            yield Finding(
                "plural-twin", WARNING, level, both, f"{level} {_listed(both)} under {parent!r}: one name in the plural?"
            )


def _plurals(level: str, names: Sequence[str], under: str) -> Iterator[Finding]:
    plurals = [name for name in names if is_plural(head(name))]
    if len(names) >= 3 and plurals and len(plurals) <= max(1, _FEW * len(names)):
        for name in plurals:
            said = f"{level} {name!r}{under} is a plural, and the other {len(names) - len(plurals):,} are not"
            yield Finding("lone-plural", WARNING, level, (name,), said)


def _meanings(level: str, names: Sequence[str], under: str, rules: LintRecipe) -> Iterator[Finding]:
    """Names that are, or end in, words which the recipe says overlap."""
    for same in rules.overlaps:
        forms = {singular_name(word) for word in same}
        found = tuple(name for name in names if singular_name(name) in forms or (singular(head(name)),) in forms)
        if len(found) > 1:
            yield Finding("overlap", WARNING, level, found, f"{level} {_listed(found)}{under} overlap in meaning")


def _pairs(level: str, names: Sequence[str], under: str, rules: LintRecipe) -> Iterator[Finding]:
    from rapidfuzz import fuzz

    keys = {name: key_of(name) for name in names}
    bare = {name: re.sub(r"\d+", "", key) for name, key in keys.items()}  # "train 7" and "train 8" are numbered, not alike
    forms = {name: singular_name(name) for name in names}
    sets = {name: frozenset(form) for name, form in forms.items()}
    for one, other in sorted(_worth_a_look([keys[name] for name in names], [sets[name] for name in names], rules.alike)):
        both = first, second = names[one], names[other]
        if keys[first] == keys[second]:
            continue  # told as "case"
        if forms[first] and forms[first] == forms[second] and words(first) != words(second):
            yield Finding("plural-twin", WARNING, level, both, f"{level} {_listed(both)}{under}: one name in the plural?")
        elif sets[first] and sets[second] and (sets[first] < sets[second] or sets[second] < sets[first]):
            few, many = sorted(both, key=lambda name: len(sets[name]))
            said = f"{level} {few!r} and {many!r}{under}: is the second a kind of the first?"
            yield Finding("overlap", WARNING, level, both, said)
        elif bare[first] != bare[second] and fuzz.ratio(keys[first], keys[second], score_cutoff=100 * rules.alike):
            yield Finding("alike", WARNING, level, both, f"{level} {_listed(both)}{under} are nearly the same name")


def _worth_a_look(keys: Sequence[str], sets: Sequence[frozenset[str]], alike: float) -> set[tuple[int, int]]:
    """Places (first, second) of names that are alike, or of which one holds all words of the other: few of all pairs."""
    import numpy as np
    from rapidfuzz import fuzz, process

    near = np.triu(process.cdist(keys, keys, scorer=fuzz.ratio, score_cutoff=100 * alike), 1)
    found = {(int(one), int(other)) for one, other in np.argwhere(near > 0)}
    holding: dict[str, set[int]] = defaultdict(set)
    for place, some in enumerate(sets):
        for word in some:
            holding[word].add(place)
    for place, some in enumerate(sets):
        others = set.intersection(*(holding[word] for word in some)) if some else set()
        found |= {(min(place, other), max(place, other)) for other in others if other != place}
    return found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:-1]) + f" and {names[-1]!r}"
