"""Statistics of a clustering, and suggested names for a group of labels."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.hierarchy.text import label_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

SILHOUETTE_SAMPLE = 5_000
"""The silhouette uses at most this many labels, because it needs all their distances."""

MAX_NAMES = 3
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_BRACKETS = re.compile(r"\([^()]*\)")
_PREPOSITIONS = frozenset({"at", "by", "for", "from", "in", "of", "on", "to", "with", "de", "du", "des", "di", "von"})
_STOP_WORDS = _PREPOSITIONS | {"a", "an", "and", "or", "the", "la", "le", "les", "der", "die", "das", "el"}


def silhouette(vectors: NDArray[np.float32], clusters: NDArray[np.int64]) -> float | None:
    """Mean silhouette by the cosine, from −1 to 1, of a fixed sample of at most 5,000 labels.

    None if it is undefined: there are fewer than two clusters, or no cluster has two labels.
    """
    if len(vectors) > SILHOUETTE_SAMPLE:
        sample = np.sort(np.random.default_rng(0).choice(len(vectors), SILHOUETTE_SAMPLE, replace=False))
        vectors, clusters = vectors[sample], clusters[sample]
    if not 2 <= len(np.unique(clusters)) < len(clusters):
        return None
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(vectors, clusters, metric="cosine"))


def size_statistics(clusters: NDArray[np.int64]) -> dict[str, Any]:
    """Labels per cluster: the median, the largest number, and how many clusters hold a single label."""
    counts = np.bincount(clusters)
    return {"median": float(np.median(counts)), "largest": int(counts.max()), "singletons": int((counts == 1).sum())}


def seed_agreement(clusters: NDArray[np.int64], others: Sequence[NDArray[np.int64]]) -> dict[str, Any] | None:
    """Adjusted Rand index of a run with each run by another seed: 1 if they are the same, about 0 if they agree by chance."""
    if not others:
        return None
    from sklearn.metrics import adjusted_rand_score

    scores = [float(adjusted_rand_score(clusters, other)) for other in others]
    return {"mean": float(np.mean(scores)), "least": min(scores), "most": max(scores), "runs": len(scores)}


def stability(clusters: NDArray[np.int64], others: Sequence[NDArray[np.int64]]) -> NDArray[np.float64] | None:
    """How well the other runs reproduce each cluster C, from 0 to 1.

        stability(C) = mean over runs r of  max over clusters D of r of  |C ∩ D| / |C ∪ D|

    It is 1 if every run has the same cluster, and small if each run groups its labels differently.
    """
    if not others:
        return None
    from scipy.sparse import coo_array

    sizes = np.bincount(clusters)
    total = np.zeros(len(sizes))
    for other in others:
        common = coo_array((np.ones(len(clusters)), (clusters, other))).tocsr().tocoo()  # which sums equal coordinates
        first, second = common.coords
        overlap = common.data / (sizes[first] + np.bincount(other)[second] - common.data)
        best = np.zeros(len(sizes))
        np.maximum.at(best, first, overlap)
        total += best / len(others)
    return total


@dataclass(frozen=True)
class WordCounts:
    """How often each word occurs in all labels of a project, and the average number of words per group."""

    counts: Counter[str]
    per_group: float

    @classmethod
    def from_texts(cls, texts: Iterable[str], groups: int) -> WordCounts:
        """Count the words of all labels, which are in this many groups."""
        counts = Counter(word for text in texts for word in label_words(text))
        return cls(counts, counts.total() / max(1, groups))


def suggested_names(
    texts: Sequence[str], counts: WordCounts, vectors: NDArray[np.float32], weights: NDArray[Any] | Sequence[int]
) -> list[str]:
    """Up to three different names for a group: its most distinctive word, its most common head word, its most central label.

    Every label counts once. Ties go to the heavier word or label, then the shorter, then the first in the alphabet. A group
    without words gets its central label only. The names are suggestions: a person accepts one or writes a better one.
    """
    mass = [float(weight) for weight in weights]
    suggestions = (distinctive_word(texts, counts, mass), head_word(texts, mass), central_label(texts, vectors, mass))
    names: dict[str, str] = {}
    for name in suggestions:
        if name:
            names.setdefault(label_key(name), name)
    return list(names.values())[:MAX_NAMES]


def distinctive_word(texts: Sequence[str], counts: WordCounts, weights: Sequence[float]) -> str | None:
    """The word w with the largest class-based TF-IDF: frequent in this group, rare elsewhere.

    share of the group's words that are w  ·  log(1 + average words per group / occurrences of w in all labels)
    """
    words = [label_words(text) for text in texts]
    within = Counter(word for some in words for word in some)
    total = within.total()
    score = {
        word: count / total * math.log1p(counts.per_group / max(counts.counts[word], count)) for word, count in within.items()
    }
    return _best(score, _word_weights(zip(words, weights, strict=True)))


def head_word(texts: Sequence[str], weights: Sequence[float]) -> str | None:
    """The most common head word, which is the last word before a preposition and outside brackets.

    That of `quarter of Hamburg` is `quarter`. None if no two labels share one; the head word of a single label is its own.
    """
    heads = [_head(text) for text in texts]
    common = Counter(head for head in heads if head)
    score = {word: float(count) for word, count in common.items() if count > 1 or len(texts) == 1}
    return _best(score, _word_weights(([head] if head else [], weight) for head, weight in zip(heads, weights, strict=True)))


def central_label(texts: Sequence[str], vectors: NDArray[np.float32], weights: Sequence[float]) -> str | None:
    """The label with the largest mean cosine to all labels of the group, with single blanks; None if there is none."""
    if not len(texts):
        return None
    closeness = np.round(
        (vectors @ vectors.sum(axis=0, dtype=np.float64)) / len(vectors), 6
    )  # so that rounding errors break no ties
    order = sorted(range(len(texts)), key=lambda row: (-closeness[row], -weights[row], len(texts[row]), texts[row]))
    return " ".join(texts[order[0]].split()) or None


def label_words(text: str) -> list[str]:
    """The words of a label in lower case, without numbers; articles and prepositions only if there are no other words.

    Example:
        >>> label_words("Church of the Holy-Cross (1172–1954)"), label_words("of the")
        (['church', 'holy-cross'], ['of', 'the'])
    """
    words = _all_words(text)
    return [word for word in words if word not in _STOP_WORDS] or words


def _all_words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFC", text).lower())


def _head(text: str) -> str | None:
    words = _all_words(_BRACKETS.sub(" ", text)) or _all_words(text)
    end = next((at for at, word in enumerate(words) if at and word in _PREPOSITIONS), len(words))
    return words[end - 1] if words else None


def _word_weights(labels: Iterable[tuple[Iterable[str], float]]) -> dict[str, float]:
    """Word → the weight of the labels that contain it; `labels` are (words, weight)."""
    mass: dict[str, float] = {}
    for words, weight in labels:
        for word in set(words):
            mass[word] = mass.get(word, 0.0) + weight
    return mass


def _best(score: dict[str, float], mass: dict[str, float]) -> str | None:
    return min(score, key=lambda word: (-round(score[word], 9), -mass[word], len(word), word), default=None)
