"""An index finds what brute force finds, is kept beside the embeddings, and is built again when they are others."""

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faiss
import numpy as np
import pytest

from suprank.evaluation import Embeddings, top_k
from suprank.explorer import Index, faiss_search, index
from suprank.explorer.faiss_search import build_faiss, exact_neighbors, measure_recall, search_faiss, tune_probe
from suprank.files.sharded_array import NpyFile, Shards
from tests.disks import disk_of
from tests.explorer.vectors import DIM, best, drawn

KINDS = ("exact", "ivf", "hnsw")


@pytest.fixture(autouse=True)
def one_thread():
    faiss.omp_set_num_threads(1)


@pytest.fixture(autouse=True)
def large(monkeypatch, tmp_path):
    """IVF has short codes and exact indexes are stored, as if these were large; and the cache is a folder of the test's own."""
    monkeypatch.setattr(faiss_search, "_SHORT_CODES_ABOVE", 0)
    monkeypatch.setattr(index, "EXACT_NUMBERS", 0)
    monkeypatch.setenv("SUPRANK_CACHE", str(tmp_path / "cache"))


def share(found, expected):
    """Of the expected rows, how many are found."""
    return np.mean([len(np.intersect1d(one, other)) / len(other) for one, other in zip(found, expected, strict=True)])


def nothing(done, total):
    pass


# Searching


def test_exact_search_is_brute_force_and_top_k():
    vectors, queries = drawn(500), drawn(30, seed=1)
    built = Index.build(vectors)
    assert (built.kind, built.dim, len(built), built.description) == ("exact", DIM, 500, "exact search")
    found = built.search(queries, 10)
    rows, scores = best(queries, vectors, 10)
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_allclose(found.scores, scores, atol=1e-6)
    run = top_k(queries, vectors, 10, progress=False)
    np.testing.assert_array_equal(found.rows, run.rows)
    np.testing.assert_allclose(found.scores, run.scores, atol=1e-6)


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_an_approximate_index_finds_on_the_same_queries_what_it_says(kind):
    vectors = drawn(2000, classes=200)
    built = Index.build(vectors, kind)
    assert 0.9 < built.recall < 1.0001
    assert built.description == f"approximate search ({kind}, finds {built.recall:.1%} of the 10 nearest)"
    known = exact_neighbors(vectors)
    np.testing.assert_array_equal(known.best, _others(best(vectors[known.rows], vectors, 11)[0], known.rows))
    found = _others(built.search(vectors[known.rows], 11).rows, known.rows)
    assert share(found, known.best) >= built.recall - 5e-5  # it is rounded
    queries = drawn(20, seed=5, classes=200)
    rows, scores = best(queries, vectors, 10)
    hits = built.search(queries, 10)
    assert share(hits.rows, rows) > 0.8
    np.testing.assert_allclose(hits.scores[:, 0], scores[:, 0], atol=0.02)


def _others(rows, own):
    return [row[row != one][:10] for row, one in zip(rows, own, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_leaves_what_brute_force_leaves(kind):
    vectors, queries = drawn(1200), drawn(10, seed=1)
    built = Index.build(vectors, kind)
    for mask in (np.arange(1200) % 12 // 3 == 2, np.arange(1200) % 12 == 5, np.arange(1200) % 12 > 0):
        rows, found = np.flatnonzero(mask), built.search(queries, 5, mask).rows
        assert share(found, rows[best(queries, vectors[rows], 5)[0]]) > (0.999 if kind == "exact" else 0.9)
        assert np.isin(found, rows).all()
    assert (built.search(queries, 5, np.zeros(1200, bool)).rows == -1).all()


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
@pytest.mark.parametrize("numbers", [10, 10**9])  # a selection is searched approximately, or compared item by item
def test_the_scores_of_an_approximate_index_are_exact_and_sorted(kind, numbers, monkeypatch):
    monkeypatch.setattr(faiss_search, "EXACT_NUMBERS", numbers)
    vectors, query = drawn(3000).astype(np.float16), drawn(1, seed=4)
    found = Index.build(vectors, kind).search(query, 20, np.arange(3000) % 3 > 0)
    truth = best(query, vectors, 3000)
    scores = dict(zip(truth[0][0].tolist(), truth[1][0].tolist(), strict=True))
    assert found.scores[0] == pytest.approx([scores[row] for row in found.rows[0].tolist()], abs=1e-6)
    assert (np.diff(found.scores[0]) <= 0).all()


def test_deep_lists_fall_beyond_the_scores_that_are_exact():
    vectors = drawn(1500)
    found = Index.build(vectors, "ivf").search(vectors[5], 600)
    assert found.rows[0, 0] == 5
    assert len(set(found.rows[0].tolist())) == 600
    assert (np.diff(found.scores[0]) <= 0).all()


def test_equal_scores_stand_in_the_order_of_rows_and_lists_end_early():
    found = Index.build(np.repeat(drawn(1), 3, axis=0)).search(drawn(1)[0], 5)
    assert found.rows.tolist() == [[0, 1, 2, -1, -1]]
    assert found.scores[0, 3:].tolist() == [-np.inf, -np.inf]


def test_of_equal_scores_at_the_end_of_a_list_the_first_rows_remain_with_a_filter_too():
    same = np.random.default_rng(0).integers(0, 6, 300)
    built, mask = Index.build(drawn(6)[same]), (np.arange(300) >= 60) | (np.arange(300) % 2 == 1)
    live = np.flatnonzero(mask)
    nearest, _ = best(drawn(6), drawn(6), 6)
    for query, order in enumerate(nearest):
        rank = np.argsort(order)[same[live]]
        expected = live[np.lexsort((live, rank))][:70]  # all of the best vector, and some of the second best
        np.testing.assert_array_equal(built.search(drawn(6)[query], 70, mask).rows[0], expected)


def test_a_longer_list_begins_with_the_shorter_one_among_copies():
    vectors = np.full((300, 2), [1, 0], np.float32)
    vectors[::7] = [1, 1]
    built, query = Index.build(vectors), np.array([1, 0], np.float32)
    whole = built.search(query, 300).rows[0].tolist()
    assert whole == sorted(range(300), key=lambda row: (row % 7 == 0, row))
    for k in (1, 48, 96, 258, 270):
        assert built.search(query, k).rows[0].tolist() == whole[:k]


def test_items_of_zeros_score_nothing():
    vectors = np.array([[1, 0], [0, 0], [2, 0], [0, 1], [3, 0], [-1, 0]], np.float32)
    found = Index.build(vectors).search(np.array([1, 0], np.float32), 6)
    assert found.rows.tolist() == [[0, 2, 4, 1, 3, 5]]
    assert found.scores.tolist() == [[1, 1, 1, 0, 0, -1]]


@pytest.mark.parametrize("queries", [1, 30])  # faiss computes 20 and more as a matrix product
def test_what_is_left_is_found_where_everything_near_is_filtered_out(queries):
    vectors = drawn(800)
    near = best(vectors[:1], vectors, 230)[0][0]
    live = np.setdiff1d(np.arange(800), near)
    found = Index.build(vectors).search(vectors[:queries], 10, np.isin(np.arange(800), live))
    rows, scores = best(vectors[:queries], vectors[live], 10)
    np.testing.assert_array_equal(found.rows, live[rows])
    np.testing.assert_allclose(found.scores, scores, atol=1e-6)


def test_threads_may_search_at_once(tmp_path):
    vectors, mask = drawn(400), np.arange(400) % 2 == 0
    Index.cached(vectors, tmp_path, "ivf")
    opened = Index.cached(vectors, tmp_path, "ivf")
    alone = Index.cached(vectors, tmp_path, "ivf").search(drawn(64, seed=1), 5, mask).rows
    with ThreadPoolExecutor(8) as threads:
        for row, found in enumerate(threads.map(lambda row: opened.search(drawn(64, seed=1)[row], 5, mask).rows[0], range(64))):
            np.testing.assert_array_equal(found, alone[row])


def test_a_search_works_beside_pytorch_metric_learning(forked):
    script = """
import faiss.contrib.torch_utils  # as `import pytorch_metric_learning.losses` does: it changes the search of every index
import numpy as np
from suprank.explorer import Index
print(Index.build(np.eye(2, dtype=np.float32)).search(np.eye(2, dtype=np.float32), 1).rows.ravel().tolist())
"""
    code, output, errors = forked.script(script).end(timeout=120)
    assert (code, output) == (0, "[0, 1]\n"), errors


# Recall


def test_a_higher_recall_is_bought_with_more_effort():
    vectors = drawn(3000, classes=300, noise=1)
    little, much = (Index.build(vectors, "ivf", recall) for recall in (0.4, 0.99))
    assert little._probe.effort < much._probe.effort
    assert 0.4 <= little.recall < 0.99 <= much.recall


def test_short_codes_miss_little_of_what_the_long_ones_find_and_more_are_rescored_if_needed():
    """Vectors without any structure are the worst case: 500 candidates by short codes are too few for 99 % of the best."""
    vectors = np.random.default_rng(0).normal(size=(20_000, 64)).astype(np.float32)
    built = build_faiss("ivf", vectors, nothing)
    known = exact_neighbors(vectors, 10, 32)
    tuned = tune_probe(built, "ivf", known, 0.99)
    assert tuned.value >= 0.99
    assert tuned.probe.rescored > 500
    assert measure_recall(built, tuned.probe._replace(rescored=500), known).value < 0.99
    little = tune_probe(built, "ivf", known, 0.5)
    assert little.value - 2 * little.error >= 0.5
    less = measure_recall(built, little.probe._replace(effort=little.probe.effort * 3 // 4), known)
    assert less.value - 2 * less.error < 0.5
    assert 1 < little.probe.rescored < 500
    fewer = measure_recall(built, little.probe._replace(rescored=little.probe.rescored // 2), known)
    assert fewer.value - 2 * fewer.error < 0.5


def test_a_small_ivf_index_has_no_short_codes_and_new_queries_find_the_share_that_was_wanted(monkeypatch):
    monkeypatch.setattr(faiss_search, "_SHORT_CODES_ABOVE", faiss_search.EXACT_NUMBERS)
    rng = np.random.default_rng(3)
    centers = rng.normal(size=(200, DIM))
    vectors = (centers[rng.integers(0, 200, 7000)] + rng.normal(size=(7000, DIM))).astype(np.float32)
    built = Index.build(vectors[:6000], "ivf")
    assert not hasattr(built._index, "base_index")
    assert built.recall > 0.95
    queries = vectors[6000:]
    assert share(built.search(queries, 10).rows, best(queries, vectors[:6000], 10)[0]) >= 0.95


def test_queries_that_find_fewer_than_k_are_compared_with_all(monkeypatch):
    monkeypatch.setattr(faiss_search, "EXACT_NUMBERS", 10)
    monkeypatch.setattr(faiss_search, "_PER_HIT", 0)
    vectors = drawn(1200)
    built = build_faiss("ivf", vectors, nothing)
    far = ~np.isin(np.arange(1200), best(drawn(4, seed=1), vectors, 300)[0])
    _, found = search_faiss(built, faiss_search.Probe("ivf"), drawn(4, seed=1), int(far.sum()), far)
    assert (np.sort(found, axis=1) == np.flatnonzero(far)).all()


# What is kept


def built_count(monkeypatch):
    """The kinds that are built from now on."""
    built = []
    monkeypatch.setattr(index, "build_faiss", lambda kind, *rest: built.append(kind) or build_faiss(kind, *rest))
    return built


def names(folder):
    return sorted(path.name.partition("-")[0] for path in folder.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_is_built_once_and_found_again_and_built_anew_for_other_vectors(tmp_path, monkeypatch, kind):
    built, folder = built_count(monkeypatch), tmp_path / "index"
    first = Index.cached(drawn(300), folder, kind)
    again = Index.cached(drawn(300), folder, kind)
    assert built == [kind]
    assert again.description == first.description
    np.testing.assert_array_equal(again.search(drawn(5)).rows, first.search(drawn(5)).rows)
    others = drawn(300)
    others[7] *= -1
    assert Index.cached(others, folder, kind).search(others[7], 1).rows.tolist() == [[7]]
    assert built == [kind, kind]
    assert names(folder) == [kind, f"{kind}.json"], "the index of the old vectors is deleted"


def test_several_kinds_and_recalls_are_kept_side_by_side(tmp_path, monkeypatch):
    built, vectors, folder = built_count(monkeypatch), drawn(3000, classes=300, noise=1), tmp_path / "index"
    for _ in range(2):
        for kind, recall in (("ivf", 0.4), ("hnsw", 0.95), ("ivf", 0.99)):
            assert Index.cached(vectors, folder, kind, recall).recall >= recall
    assert built == ["ivf", "hnsw"]
    assert set(json.loads((folder / "ivf.json").read_text())["tuned"]) == {"0.4", "0.99"}


def test_of_embeddings_in_a_file_nothing_is_read_again_while_the_file_stays_as_it_is(tmp_path, monkeypatch):
    built, file, folder = built_count(monkeypatch), tmp_path / "e.npy", tmp_path / "index"
    np.save(file, drawn(50))
    Index.cached(np.load(file, mmap_mode="r"), folder)
    with monkeypatch.context() as patch:
        patch.setattr(index.hashlib, "sha256", None)  # which the name of the cache needs, too
        with pytest.raises(TypeError):
            Index.cached(drawn(50), folder)
        assert index.identity(Embeddings.from_source(file), json.loads((folder / "exact.json").read_text()))
    os.utime(file, (1, 1))  # a copy
    Index.cached(np.load(file, mmap_mode="r"), folder)
    Index.cached(np.load(file, mmap_mode="r")[:40], folder)
    assert built == ["exact", "exact"], "the first 40 rows of a file are not the file"
    np.save(file, -drawn(50))
    assert Index.cached(np.load(file, mmap_mode="r"), folder).search(-drawn(50)[3], 1).rows.tolist() == [[3]]


def test_embeddings_in_several_files_are_indexed_as_in_one(tmp_path, monkeypatch):
    vectors, files, calls = drawn(50).astype(np.float16), [], []
    for number, rows in enumerate((slice(0, 20), slice(20, 50))):
        np.save(tmp_path / f"{number}.npy", vectors[rows])
        files.append(NpyFile(tmp_path / f"{number}.npy", vectors[rows].shape, vectors.dtype))
    monkeypatch.setattr(faiss_search, "_BLOCK_BYTES", 4 * DIM * 7)
    found = Index.cached(Shards(files), tmp_path / "index", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 50) for done in (*range(0, 50, 7), 50)]
    np.testing.assert_array_equal(found.search(drawn(50), 1).rows.ravel(), np.arange(50))
    assert Index.cached(vectors, tmp_path / "index", progress=False).kind == "exact", "the same vectors, so nothing is built"


def test_a_small_exact_index_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "EXACT_NUMBERS", 50 * DIM)
    Index.cached(drawn(50), tmp_path / "index")
    assert list(tmp_path.iterdir()) == []
    Index.cached(drawn(51), tmp_path / "index")
    assert names(tmp_path / "index") == ["exact", "exact.json"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_stay_on_disk_until_a_search_needs_them(tmp_path, kind):
    opened = Index.cached(drawn(400), tmp_path, kind)
    assert f"{tmp_path}/{kind}-" in Path("/proc/self/maps").read_text()
    del opened
    assert f"{tmp_path}/{kind}-" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"digest": 3}', '{"digest": "x", "stamp": null, "bytes": 1}'])
def test_damaged_files_are_made_again(tmp_path, text):
    expected = Index.cached(drawn(40), tmp_path).search(drawn(3)).rows
    (file,) = tmp_path.glob("*.faiss")
    whole = file.read_bytes()
    for damage in (whole[:-7], b"x" * len(whole)):
        file.write_bytes(damage)
        np.testing.assert_array_equal(Index.cached(drawn(40), tmp_path).search(drawn(3)).rows, expected)
        assert file.read_bytes() == whole
    (tmp_path / "exact.json").write_text(text)
    np.testing.assert_array_equal(Index.cached(drawn(40), tmp_path).search(drawn(3)).rows, expected)


SCRIPT = """
import os, signal, sys
from pathlib import Path
import numpy as np
from suprank.explorer import Index, index
from tests.explorer.vectors import drawn

index.EXACT_NUMBERS = 0
plain = Path.replace
for name in (".faiss", ".json"):
    def replace(self, target):
        if str(target).endswith(name):
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, target)

    child = os.fork()
    if not child:
        Path.replace = replace
        Index.cached(-drawn(40), Path(sys.argv[1]) / name)
        os._exit(0)
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_process_killed_while_writing_leaves_an_index_that_is_whole_or_none(forked, tmp_path):
    for name in (".faiss", ".json"):
        Index.cached(drawn(40), tmp_path / name)
    code, output, errors = forked.script(SCRIPT, tmp_path).end(timeout=120)
    assert (code, output.split()) == (0, [".faiss", str(-signal.SIGKILL), ".json", str(-signal.SIGKILL)]), errors
    for name in (".faiss", ".json"):
        assert any(path.name.endswith(".tmp") for path in (tmp_path / name).iterdir())
        for sign in (1, -1):
            found = Index.cached(sign * drawn(40), tmp_path / name).search(sign * drawn(40)[:9], 1)
            np.testing.assert_array_equal(found.rows.ravel(), np.arange(9))
        assert names(tmp_path / name) == ["exact", "exact.json"], "what was left is cleared up"


def test_where_the_embeddings_cannot_be_written_the_index_is_in_the_cache(tmp_path, monkeypatch):
    built = built_count(monkeypatch)
    (tmp_path / "index").write_text("a file in its place")
    for _ in range(2):
        Index.cached(drawn(40), tmp_path / "index", warn=None)
    assert built == ["exact"]
    (folder,) = (tmp_path / "cache" / "index").iterdir()
    assert names(folder) == ["exact", "exact.json"]


def test_where_nothing_can_be_stored_that_is_said_and_the_index_stays_in_memory(tmp_path):
    warned = []
    with disk_of(1000):
        found = Index.cached(drawn(100), tmp_path / "index", warn=warned.append)
    np.testing.assert_array_equal(found.search(drawn(9), 1).rows.ravel(), np.arange(9))
    assert "no index can be stored, so the next search builds it again: " in warned[0]
    assert "exact-" in warned[0]
    assert list((tmp_path / "index").iterdir()) == []


# What is refused


def test_wrong_arguments_are_refused(tmp_path):
    built, poisoned = Index.build(drawn(20)), drawn(20)
    poisoned[13] = np.nan
    for wrong, match in (
        (lambda: built.search(drawn(2, dim=5)), r"shape \[2, 5\].*have 16 dimensions"),
        (lambda: built.search(np.ones((2, DIM), int)), "int64"),
        (lambda: built.search(np.zeros((2, DIM))), "row 0 is all zeros, so it has no cosine"),
        (lambda: built.search(np.full((1, DIM), np.inf)), "row 0 contains NaN or infinity"),
        (lambda: built.search(drawn(1), 0), "k=0 must be"),
        (lambda: built.search(drawn(1), rows=np.ones(19, bool)), r"rows has shape \(19,\) and type bool; give a mask of 20"),
        (lambda: built.search(drawn(1), rows=np.arange(20)), "type int64; give a mask"),
        (lambda: Index.build(drawn(5), "lsh"), "no index kind 'lsh'"),
        (lambda: Index.build(drawn(5), recall=95), "recall=95"),
        (lambda: Index.build(poisoned), "row 13 contains NaN"),
        (lambda: Index.cached(poisoned, tmp_path), "row 13 contains NaN"),
    ):
        with pytest.raises(ValueError, match=match):
            wrong()
    assert list(tmp_path.iterdir()) == []
