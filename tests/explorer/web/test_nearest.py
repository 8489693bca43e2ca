"""Exact search and an index of the same gallery."""

import numpy as np
import pytest

from suprank.data import Manifest
from suprank.explorer import Source
from suprank.explorer.index import build_index, open_index
from suprank.explorer.index.protocol import Hits
from suprank.explorer.web import ExactSearch, ExplorerRun, ImageId, IndexedSearch
from suprank.explorer.web.searching import Searcher


def gallery(count=400, dim=16, dtype=np.float32, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype(dtype)
    rows = {"path": [str(row) for row in range(count)], "split": ["test"] * count}
    return Source.from_arrays("g", vectors, Manifest.from_columns(rows, root=".", levels=())).gallery


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_exact_is_the_sorted_cosine(dtype):
    images = gallery(dtype=dtype)
    query = images.unit_embeddings([7])[0]
    rows, scores = ExactSearch(images).nearest(query, 25)
    truth = images.unit_embeddings(slice(None)) @ query
    assert rows.tolist() == np.argsort(-truth, kind="stable")[:25].tolist()
    assert scores == pytest.approx(truth[rows], abs=1e-6)
    assert len(ExactSearch(images).nearest(query, 9999)[0]) == 400


def test_equal_scores_stand_in_the_order_of_rows_and_zeros_score_nothing():
    images = gallery(6, 2)
    images.embeddings[:] = [[1, 0], [0, 0], [2, 0], [0, 1], [3, 0], [-1, 0]]
    rows, scores = ExactSearch(images).nearest(np.array([1, 0], np.float32), 6)
    assert rows.tolist() == [0, 2, 4, 1, 3, 5]
    assert scores.tolist() == [1, 1, 1, 0, 0, -1]


def test_a_longer_list_begins_with_the_shorter_one_among_copies():
    images = gallery(300, 2)
    images.embeddings[:] = [1, 0]
    images.embeddings[::7] = [1, 1]
    query = np.array([1, 0], np.float32)
    whole = ExactSearch(images).nearest(query, 300)[0].tolist()
    for k in (1, 48, 96, 258, 270):
        assert ExactSearch(images).nearest(query, k)[0].tolist() == whole[:k]


@pytest.mark.parametrize("kind", ["exact", "ivf"])
def test_an_index_gives_the_exact_scores_of_what_it_finds(tmp_path, kind):
    images = gallery(3000)
    build_index(tmp_path / "i", images.embeddings, kind=kind).close()
    found = IndexedSearch(images, open_index(tmp_path / "i"))
    query = images.unit_embeddings([11])[0]
    rows, scores = found.nearest(query, 20)
    assert rows[0] == 11
    assert scores == pytest.approx(images.unit_embeddings(rows) @ query, abs=1e-6)
    assert len(np.intersect1d(rows, ExactSearch(images).nearest(query, 20)[0])) >= 16
    said = "exact search among 3,000 images" if kind == "exact" else "approximate search (ivf, finds "
    assert found.description.startswith(said)


def test_an_index_of_other_embeddings_is_refused(tmp_path):
    images = gallery(500)
    with pytest.raises(ValueError, match="holds 499 items of 16 dimensions, but the gallery has 500 of 16"):
        IndexedSearch(images, build_index(tmp_path / "short", images.embeddings[:499]))
    with pytest.raises(ValueError, match="was built from other embeddings"):
        IndexedSearch(images, build_index(tmp_path / "other", gallery(500, seed=1).embeddings))


class Few:
    """An index that finds a few, with scores that are off."""

    dim = 16

    def __init__(self, images, most):
        self._images, self._most = images, most

    def __len__(self):
        return len(self._images)

    def info(self):
        return {"kind": "ivf"}

    def search(self, queries, k, where=None):
        scores = queries @ self._images.unit_embeddings(slice(None)).T
        rows = np.argsort(-scores, axis=1)[:, :k]
        found = np.take_along_axis(scores, rows, 1) + 0.01 * np.cos(rows)
        rows[:, self._most :] = -1
        return Hits(rows, found.astype(np.float32))


def test_deep_lists_fall_and_end_where_the_index_does():
    images = gallery(600)
    rows, scores = IndexedSearch(images, Few(images, 500)).nearest(images.unit_embeddings([5])[0], 600)
    assert (len(rows), len(set(rows.tolist()))) == (500, 500)
    assert (np.diff(scores[:257]) <= 0).all()
    assert scores[:256] == pytest.approx(
        np.sort(images.unit_embeddings(slice(None)) @ images.unit_embeddings([5])[0])[::-1][:256], abs=1e-6
    )
    assert scores[256:].max() <= scores[255]
    assert "unknown recall" in IndexedSearch(images, Few(images, 500)).description


def test_a_page_tells_how_far_an_index_got(monkeypatch):
    monkeypatch.setattr("suprank.explorer.web.searching.WHOLE", 100)
    images = gallery(600)
    source = Source.from_arrays("s", images.embeddings, images.manifest)
    look = Searcher([ExplorerRun(source, IndexedSearch(source.gallery, Few(source.gallery, 60)))])
    (first,) = look.neighbors(ImageId(0, "gallery", 5), limit=48)
    assert (len(first.hits), first.total) == (48, 599)
    (last,) = look.neighbors(ImageId(0, "gallery", 5), offset=48, limit=48)
    assert (len(last.hits), last.total, last.depth) == (11, 59, 59)
