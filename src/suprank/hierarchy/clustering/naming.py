"""Names to choose from for a group of labels. A person takes one, or writes a better one; none is taken silently."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.hierarchy.text import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

MOST = 3
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_BRACKETS = re.compile(r"\([^()]*\)")
_AFTER_HEAD = frozenset({"at", "by", "for", "from", "in", "of", "on", "to", "with", "de", "du", "des", "di", "von"})
_NO_NAME = _AFTER_HEAD | {"a", "an", "and", "or", "the", "la", "le", "les", "der", "die", "das", "el"}


@dataclass(frozen=True)
class WordCounts:
    """How often each word stands in all labels of a project, and how many words a group has on average."""

    counts: Counter[str]
    per_group: float

    @classmethod
    def of(cls, texts: Iterable[str], groups: int) -> WordCounts:
        counts = Counter(word for text in texts for word in words(text))
        return cls(counts, counts.total() / max(1, groups))


def suggested_names(
    texts: Sequence[str], counts: WordCounts, vectors: NDArray[np.float32], weights: NDArray[Any] | Sequence[int]
) -> list[str]:
    """Up to three names of a group: its most telling word, its most common head word, and its most central label.

    Every label counts once; where two words or labels are equal, the heavier ones win, then the shorter, then the alphabet.
    What two ways suggest is there once. A group without a word in any label has its central label alone.
    """
    mass = [float(weight) for weight in weights]
    suggestions = (telling_word(texts, counts, mass), head_word(texts, mass), medoid(texts, vectors, mass))
    names: dict[str, str] = {}
    for name in suggestions:
        if name:
            names.setdefault(key_of(name), name)
    return list(names.values())[:MOST]


def telling_word(texts: Sequence[str], counts: WordCounts, weights: Sequence[float]) -> str | None:
    """The word of the largest class-based TF-IDF: often in this group, seldom elsewhere.

    share of the group's words that are w  ·  log(1 + words a group has on average / how often w stands in all labels)
    """
    within = Counter(word for text in texts for word in words(text))
    total = within.total()
    score = {
        word: count / total * math.log1p(counts.per_group / max(counts.counts[word], count)) for word, count in within.items()
    }
    return _best(score, _mass(((word for word in words(text)), weight) for text, weight in zip(texts, weights, strict=True)))


def head_word(texts: Sequence[str], weights: Sequence[float]) -> str | None:
    """The most common last word before a preposition and outside brackets: that of `quarter of Hamburg` is `quarter`.

    None where no two labels share one: then none is common. A single label's is its own.
    """
    heads = [_head(text) for text in texts]
    common = Counter(head for head in heads if head)
    score = {word: float(count) for word, count in common.items() if count > 1 or len(texts) == 1}
    return _best(score, _mass(([head] if head else [], weight) for head, weight in zip(heads, weights, strict=True)))


def medoid(texts: Sequence[str], vectors: NDArray[np.float32], weights: Sequence[float]) -> str | None:
    """The label with the largest mean cosine to all of the group, tidied of blanks; None where there is none with a vector."""
    if not len(texts):
        return None
    closeness = np.round((vectors @ vectors.sum(axis=0, dtype=np.float64)) / len(vectors), 6)  # rounding breaks no ties
    order = sorted(range(len(texts)), key=lambda at: (-closeness[at], -weights[at], len(texts[at]), texts[at]))
    return " ".join(texts[order[0]].split()) or None


def words(text: str) -> list[str]:
    """The words of a label in lower case, without numbers; articles and prepositions only where there is nothing else.

    Example:
        >>> words("Church of the Holy-Cross (1172–1954)"), words("of the")
        (['church', 'holy-cross'], ['of', 'the'])
    """
    found = _all_words(text)
    return [word for word in found if word not in _NO_NAME] or found


def _all_words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFC", text).lower())


def _head(text: str) -> str | None:
    found = _all_words(_BRACKETS.sub(" ", text)) or _all_words(text)
    end = next((at for at, word in enumerate(found) if at and word in _AFTER_HEAD), len(found))
    return found[end - 1] if found else None


def _mass(of: Iterable[tuple[Iterable[str], float]]) -> dict[str, float]:
    """The weight of the labels that have a word."""
    mass: dict[str, float] = {}
    for found, weight in of:
        for word in set(found):
            mass[word] = mass.get(word, 0.0) + weight
    return mass


def _best(score: dict[str, float], mass: dict[str, float]) -> str | None:
    return min(score, key=lambda word: (-round(score[word], 9), -mass[word], len(word), word), default=None)
