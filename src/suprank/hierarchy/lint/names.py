"""Checks on names: of one level, or of the siblings under one parent; with enough English to recognize plurals."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence

from suprank.hierarchy.lint.findings import ERROR, WARNING, Finding
from suprank.hierarchy.recipe import LintRecipe
from suprank.hierarchy.text import label_key

PAIRS_UP_TO = 1000
"""Up to this many siblings are compared pairwise; among more, only equal keys are noticed."""

_FEW = 0.1  # plurals are unusual up to this share of the siblings


def name_findings(level: str, names: Sequence[str]) -> Iterator[Finding]:
    """Check all names of a level for stray blanks, spellings that differ only in case or blanks, and slashes."""
    spellings: dict[str, set[str]] = defaultdict(set)
    for name in set(names):
        spellings[label_key(name)].add(name)
        if (problem := _stray_blank(name)) is not None:
            yield Finding("blanks", ERROR, level, (name,), f"{level} {name!r} {problem}")
        if "/" in name:
            yield Finding("slash", WARNING, level, (name,), f"{level} {name!r}: choose one name, or make two groups")
    for variants in spellings.values():
        if len(variants) > 1:
            both = tuple(sorted(variants))
            yield Finding("case", ERROR, level, both, f"{level} {_quote_all(both)} differ only in case or blanks; merge them")


def _stray_blank(name: str) -> str | None:
    if name != name.rstrip():
        return "ends in a blank"
    if name != name.lstrip():
        return "begins with a blank"
    if any(letter.isspace() and letter != " " for letter in name):
        return "contains an unusual blank (a tab, a line break, a no-break space)"
    if "  " in name:
        return "contains two blanks in a row"
    if any(unicodedata.category(letter) in ("Cf", "Cc") for letter in name):
        return "contains an invisible character"
    return None


def sibling_findings(level: str, names: Sequence[str], parent: str | None, rules: LintRecipe) -> Iterator[Finding]:
    """Check the names under one parent for plurals, near duplicates, and names with nearly the same meaning."""
    distinct = sorted(set(names))
    under = "" if parent is None else f" under {parent!r}"
    yield from _plurals(level, distinct, under)
    yield from _meanings(level, distinct, under, rules)
    if len(distinct) <= PAIRS_UP_TO:
        yield from _pairs(level, distinct, under, rules)


def label_findings(level: str, names: Sequence[str], parent: str, rules: LintRecipe) -> Iterator[Finding]:
    """Check the labels in one group for plurals and names with nearly the same meaning; similar names belong together here."""
    distinct = sorted(set(names))
    yield from _plurals(level, distinct, f" under {parent!r}")
    yield from _meanings(level, distinct, f" under {parent!r}", rules)
    forms: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for name in distinct:
        forms[singular_name(name)].add(name)
    for form, variants in forms.items():
        if form and len({name_words(name) for name in variants}) > 1:
            both = tuple(sorted(variants))
            message = f"{level} {_quote_all(both)} under {parent!r}: one name in the plural?"
            yield Finding("plural-twin", WARNING, level, both, message)


def _plurals(level: str, names: Sequence[str], under: str) -> Iterator[Finding]:
    plurals = [name for name in names if is_plural(head(name))]
    if len(names) >= 3 and plurals and len(plurals) <= max(1, _FEW * len(names)):
        for name in plurals:
            message = f"{level} {name!r}{under} is a plural, and the other {len(names) - len(plurals):,} are not"
            yield Finding("lone-plural", WARNING, level, (name,), message)


def _meanings(level: str, names: Sequence[str], under: str, rules: LintRecipe) -> Iterator[Finding]:
    """Names that are, or end in, words which overlap according to the recipe."""
    for same in rules.overlaps:
        forms = {singular_name(word) for word in same}
        alike = tuple(name for name in names if singular_name(name) in forms or (singular(head(name)),) in forms)
        if len(alike) > 1:
            yield Finding("overlap", WARNING, level, alike, f"{level} {_quote_all(alike)}{under} overlap in meaning")


def _pairs(level: str, names: Sequence[str], under: str, rules: LintRecipe) -> Iterator[Finding]:
    from rapidfuzz import fuzz

    keys = {name: label_key(name) for name in names}
    bare = {name: re.sub(r"\d+", "", key) for name, key in keys.items()}  # "train 7" and "train 8" are numbered, not alike
    forms = {name: singular_name(name) for name in names}
    sets = {name: frozenset(form) for name, form in forms.items()}
    for one, other in sorted(_candidate_pairs([keys[name] for name in names], [sets[name] for name in names], rules.alike)):
        both = first, second = names[one], names[other]
        if keys[first] == keys[second]:
            continue  # reported as "case"
        if forms[first] and forms[first] == forms[second] and name_words(first) != name_words(second):
            yield Finding("plural-twin", WARNING, level, both, f"{level} {_quote_all(both)}{under}: one name in the plural?")
        elif sets[first] and sets[second] and (sets[first] < sets[second] or sets[second] < sets[first]):
            few, many = sorted(both, key=lambda name: len(sets[name]))
            message = f"{level} {few!r} and {many!r}{under}: is the second a kind of the first?"
            yield Finding("overlap", WARNING, level, both, message)
        elif bare[first] != bare[second] and fuzz.ratio(keys[first], keys[second], score_cutoff=100 * rules.alike):
            yield Finding("alike", WARNING, level, both, f"{level} {_quote_all(both)}{under} are nearly the same name")


def _candidate_pairs(keys: Sequence[str], sets: Sequence[frozenset[str]], alike: float) -> set[tuple[int, int]]:
    """Index pairs of names that are alike, or of which one contains all words of the other."""
    import numpy as np
    from rapidfuzz import fuzz, process

    ratios = np.triu(process.cdist(keys, keys, scorer=fuzz.ratio, score_cutoff=100 * alike), 1)
    pairs = {(int(one), int(other)) for one, other in np.argwhere(ratios > 0)}
    names_with: dict[str, set[int]] = defaultdict(set)
    for index, words in enumerate(sets):
        for word in words:
            names_with[word].add(index)
    for index, words in enumerate(sets):
        others = set.intersection(*(names_with[word] for word in words)) if words else set()
        pairs |= {(min(index, other), max(index, other)) for other in others if other != index}
    return pairs


def _quote_all(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:-1]) + f" and {names[-1]!r}"


NO_SINGULAR = frozenset(
    re.findall(
        r"\w+",
        "barracks gallows gasworks glasses grounds headquarters ironworks jeans leggings lens means news outskirts pants "
        "pliers premises remains ruins scissors series shorts species stairs steelworks tights trousers waterworks works",
    )
)
"""Words that look like plurals but have no other form."""

VERBS = frozenset(
    re.findall(
        r"\w+",
        "accepts adds allows appears applies becomes begins belongs brings carries combines comes computes connects "
        "consists contains creates defines denies depends derives describes differs divides does eats enters equals "
        "estimates exceeds excludes exists extends follows gives goes grows happens implies includes intersects involves "
        "knows makes multiplies occurs owns performs precedes prevents produces proves receives refers rejects removes "
        "replaces represents requires says seems sees sends separates serves sings sits sleeps speaks stays subtracts "
        "succeeds swims takes teaches tells thinks wants wears writes",
    )
)
"""Verbs in the third person, which end in s as plurals do; none that is more often a noun, such as maps or falls."""

_NO_PLURAL = re.compile(r"(ss|us|is|ics|as|os|wards)$")


def is_plural(word: str) -> bool:
    """Whether a word looks like the plural of another.

    Example:
        >>> [word for word in ("parks", "cross", "ruins", "campus", "boxes", "divides", "park") if is_plural(word)]
        ['parks', 'boxes']
    """
    if len(word) <= 3 or not word.endswith("s") or _NO_PLURAL.search(word):
        return False
    return word not in NO_SINGULAR and word not in VERBS


def singular(word: str) -> str:
    """The singular of a plural; any other word as it is.

    Example:
        >>> singular("parks"), singular("galleries"), singular("churches"), singular("houses"), singular("cross")
        ('park', 'gallery', 'church', 'house', 'cross')
    """
    if not is_plural(word):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-2] if re.search(r"(ch|sh|x|z|ss)es$", word) else word[:-1]


def name_words(name: str) -> tuple[str, ...]:
    """The words of a name in lower case, without the contents of brackets.

    Example:
        >>> name_words("Church building (1172–1954)")
        ('church', 'building')
    """
    return tuple(re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", re.sub(r"\([^()]*\)", " ", label_key(name))))


def head(name: str) -> str:
    """The word that says what a name is a kind of: the last one, or the one before "of", "in", "for", "with", "on" or "at".

    Example:
        >>> head("stave church"), head("quarter of Hamburg"), head("")
        ('church', 'quarter', '')
    """
    words = name_words(name)
    for index, word in enumerate(words):
        if index and word in ("of", "in", "for", "with", "on", "at"):
            return words[index - 1]
    return words[-1] if words else ""


def singular_name(name: str) -> tuple[str, ...]:
    """The words of a name in the singular: equal for "parks" and "park"."""
    return tuple(singular(word) for word in name_words(name))
