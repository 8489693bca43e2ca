"""Small collections to evaluate, drawn by hypothesis, with every query's list of scores and levels worked out in plain Python.

Embeddings come from grids on which float32 products are exact, normalized or not, so that a tie is a tie for everyone.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st

from suprank.evaluation import Report, evaluate
from suprank.ranking.exact import compiled, plain
from tests import reference

PLENTY = settings(deadline=None, max_examples=80)
SOME = settings(deadline=None, max_examples=25)
KS = (1, 2, 3, 5, 100)
ORDERINGS = pytest.mark.parametrize("ordering", [plain, compiled], ids=["plain", "compiled"])


@dataclass
class Collection:
    """What `evaluate` is called with; lists of numbers, so that a failure prints as what to type."""

    embeddings: list[list[float]]
    labels: list[list[int]]
    gallery: list[list[float]] | None = None
    gallery_labels: list[list[int]] | None = None
    self_index: list[int] | None = None
    ids: list[Any] | None = None
    gallery_ids: list[Any] | None = None
    ignored: list[list[int]] | None = None
    normalize: bool = True

    @property
    def depth(self) -> int:
        return len(self.labels[0])

    @property
    def names(self) -> list[str]:
        return [f"label{column}" for column in range(self.depth)]

    def evaluated(self, **settings: Any) -> Report:
        chosen: dict[str, Any] = {"ks": KS, "per_query": True, "progress": False, "device": "cpu"}
        chosen |= {"self_index": self.self_index, "ids": self.ids, "gallery_ids": self.gallery_ids, "ignored": self.ignored}
        if "metrics" in settings:
            del chosen["ks"]
        return evaluate(
            torch.tensor(self.embeddings),
            self.labels,
            None if self.gallery is None else torch.tensor(self.gallery),
            self.gallery_labels,
            **{**chosen, "normalize": self.normalize, **settings},
        )

    def hidden(self, query: int) -> set[int]:
        """The items that are not in the query's list, read off the documentation of `evaluate`."""
        hidden = set() if self.ignored is None else set(self.ignored[query])
        if self.self_index is not None:
            return hidden | {self.self_index[query]}
        theirs = self.ids if self.gallery is None else self.gallery_ids
        if self.ids is not None and theirs is not None:
            return hidden | {item for item, name in enumerate(theirs) if name == self.ids[query]}
        return hidden | {query} if self.gallery is None else hidden

    def lists(self) -> list[tuple[list[float], list[int]]]:
        """Scores and levels of every query's items, −1 for those that are not in its list."""
        items, labels = self.gallery or self.embeddings, self.gallery_labels or self.labels
        lists = []
        for query, (embedding, own) in enumerate(zip(self.embeddings, self.labels, strict=True)):
            scores = [self._score(embedding, item) for item in items]
            hidden = self.hidden(query)
            level = [-1 if j in hidden else reference.known_level(own, other) for j, other in enumerate(labels)]
            lists.append((scores, level))
        return lists

    def expected(self, ks=KS, **meaning: Any) -> list[dict[str, float]]:
        """Every metric of every query, by the loops."""
        return [reference.listed_metrics(reference.from_the_top(*one), self.names, ks, **meaning) for one in self.lists()]

    def _score(self, one: list[float], other: list[float]) -> float:
        if self.normalize:
            return reference.cosine(one, other)
        return sum(a * b for a, b in zip(one, other, strict=True))


def vectors(normalize: bool) -> st.SearchStrategy[list[float]]:
    """Four dimensions. Normalized: lengths are powers of two and cosines multiples of ¼. Otherwise small integers, 0 too."""
    if not normalize:
        return st.lists(st.integers(-2, 2).map(float), min_size=4, max_size=4)
    sign = st.sampled_from([-1.0, 1.0])
    axis = st.tuples(st.integers(0, 3), sign).map(lambda drawn: [drawn[1] * (i == drawn[0]) for i in range(4)])
    corner = st.lists(sign, min_size=4, max_size=4)
    scale = st.sampled_from([2.0**-40, 0.5, 1.0, 8.0, 2.0**40])
    return st.tuples(axis | corner, scale).map(lambda drawn: [drawn[1] * value for value in drawn[0]])


@st.composite
def label_rows(draw, number: int, depth: int):
    """Rows of a random tree, finest first; some lose their finest labels, or all of them, to −1."""
    parents = [draw(st.lists(st.integers(0, 2), min_size=4, max_size=4)) for _ in range(depth - 1)]
    rows = []
    for _ in range(number):
        row = [draw(st.integers(0, 3))]
        for column in parents:
            row.append(column[row[-1]])
        unknown = draw(st.sampled_from([0, 0, 0, 0, *range(1, depth + 1)]))
        rows.append([-1] * unknown + row[unknown:])
    return rows


@st.composite
def collections(draw, *, queries: int = 5, items: int = 11, deepest: int = 4, normalize: bool | None = None):
    """Queries ranked against each other, or against a gallery that may hold them, with junk or without."""
    normalize = draw(st.booleans()) if normalize is None else normalize
    kind = draw(st.sampled_from(["one set", "one set, ids", "one set, self_index", "gallery", "self_index", "ids"]))
    depth = draw(st.integers(1, deepest))
    alone = kind.startswith("one set")
    rows = draw(st.integers(1, items if alone else queries))
    columns = rows if alone else draw(st.integers(1, items))
    vector = st.just(draw(vectors(normalize))) if draw(st.integers(0, 9)) == 0 else vectors(normalize)  # all equal, at times
    labels = draw(label_rows(rows if alone else rows + columns, depth))
    embeddings = draw(st.lists(vector, min_size=len(labels), max_size=len(labels)))
    found = Collection(embeddings[:rows], labels[:rows], normalize=normalize)
    if not alone:
        found.gallery, found.gallery_labels = embeddings[rows:], labels[rows:]
    if kind.endswith("self_index"):
        found.self_index = draw(st.lists(st.integers(-1, columns - 1), min_size=rows, max_size=rows))
    if kind.endswith("ids"):
        name = draw(st.sampled_from([st.integers(-3, 4), st.sampled_from(["a", "b", "cc", "", "é"])]))
        found.ids = draw(st.lists(name, min_size=rows, max_size=rows))
        if not alone:
            found.gallery_ids = draw(st.lists(name, min_size=columns, max_size=columns))
    if draw(st.booleans()):
        junk = st.lists(st.integers(0, columns - 1), max_size=columns)
        found.ignored = draw(st.lists(junk, min_size=rows, max_size=rows))
    return found


def random_collection(
    seed: int, queries: int = 37, items: int = 0, dim: int = 7, classes: int = 6, depth: int = 2, copies: int = 0
) -> Collection:
    """Ordinary floats under labels of a tree, a tenth of them −1; without `items`, queries are ranked against each other.

    `copies` items are exact copies of other items under labels of their own.
    """
    generator = torch.Generator().manual_seed(seed)
    number = queries + items
    embeddings = torch.randn(number, dim, generator=generator)
    if copies:
        pick = torch.randint(queries if items else 0, number, (2, copies), generator=generator)
        embeddings[pick[0]] = embeddings[pick[1]]
    fine = torch.randint(0, classes, (number,), generator=generator)
    labels = torch.stack([fine >> column for column in range(depth)], 1)
    labels[torch.rand(number, generator=generator) < 0.1] = -1
    found = Collection(embeddings[:queries].tolist(), labels[:queries].tolist())
    if items:
        found.gallery, found.gallery_labels = embeddings[queries:].tolist(), labels[queries:].tolist()
    return found


@contextmanager
def using(ordering):
    """Evaluate by this way of ordering, however small the collection."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("suprank.evaluation.search.choose_ordering", lambda *_, **__: ordering)
        yield


def assert_same(found: Report, expected: Report, tolerance: float = 0.0) -> None:
    """The same metrics with the same values for every query, NaN in the same places."""
    assert list(found) == list(expected)
    for key in expected:
        mine, theirs = torch.tensor(found.per_query[key]), torch.tensor(expected.per_query[key])
        torch.testing.assert_close(
            mine, theirs, rtol=0, atol=tolerance, equal_nan=True, msg=lambda text, key=key: f"{key}: {text}"
        )


def mean(values: list[float]) -> float:
    """Over the queries that have a value."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
