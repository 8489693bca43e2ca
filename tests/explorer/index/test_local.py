"""An index in a folder: it finds what brute force finds, and stays itself through additions, removals and crashes."""

import errno
import json
import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.evaluation import Embeddings, top_k
from suprank.explorer.index import LocalIndex
from suprank.explorer.index import kinds as kinds_module
from suprank.explorer.index import local as module
from suprank.explorer.index import segments as segments_module
from suprank.explorer.index.kinds import SearchSettings, empty_index
from suprank.explorer.index.recall import exact_neighbors, measure_recall, tune_search
from suprank.explorer.index.segments import merge_from
from suprank.explorer.index.storage import IndexFolder
from suprank.files.atomic import DiskFullError
from tests.explorer.index.vectors import DIM, LEVELS, best, drawn, labeled

KINDS = ("exact", "ivf", "hnsw")


@pytest.fixture(autouse=True)
def one_thread():
    faiss.omp_set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def short_codes():
    """IVF has short codes, as if these small indexes were large; `write_version_1` makes IVF indexes without them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds_module, "_SHORT_CODES_ABOVE", 0)
        yield


def share(found, expected):
    """Of the expected rows, how many are found."""
    return np.mean([len(np.intersect1d(one, other)) / len(other) for one, other in zip(found, expected, strict=True)])


def test_exact_search_is_brute_force_and_top_k(tmp_path):
    vectors, queries = drawn(500), drawn(30, seed=1)
    index = LocalIndex.build(tmp_path / "i", vectors)
    assert index.kind == "exact"
    found = index.search(queries, 10)
    rows, scores = best(queries, vectors, 10)
    np.testing.assert_array_equal(found.ids, rows)
    np.testing.assert_allclose(found.scores, scores, atol=1e-6)
    run = top_k(queries, vectors, 10, progress=False)
    np.testing.assert_array_equal(found.ids, run.item_ids)
    np.testing.assert_allclose(found.scores, run.scores, atol=1e-6)


def test_hits_of_one_segment_are_sorted_once(tmp_path, monkeypatch):
    index = LocalIndex.build(tmp_path / "i", drawn(50), kind="ivf")
    expected = index.search(drawn(3), 10)
    monkeypatch.setattr(np, "argsort", None)
    np.testing.assert_array_equal(index.search(drawn(3), 10).ids, expected.ids)


def test_what_was_built_is_what_is_opened(tmp_path):
    built = LocalIndex.build(tmp_path / "i", drawn(100), labeled(100))
    opened = LocalIndex.open(tmp_path / "i")
    assert opened.info() == built.info()
    assert (len(opened), opened.dim, opened.levels) == (100, DIM, LEVELS)
    np.testing.assert_array_equal(opened.search(drawn(5)).ids, built.search(drawn(5)).ids)
    assert opened.items([99])[0].path == "Vögel/3/鳥 99.jpg"
    assert opened.items([99])[0].labels == {LEVELS[0]: 'Häher "3" \\ <b>', LEVELS[1]: "genus 1"}
    assert names(tmp_path / "i") == ["index.1.faiss", "items.1.parquet", "meta.json"]


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
@pytest.mark.parametrize("codes", ["int8", "float16"])
def test_an_approximate_index_finds_on_the_same_queries_what_its_info_says(tmp_path, kind, codes):
    vectors = drawn(2000, classes=200)
    LocalIndex.build(tmp_path / "i", vectors, kind=kind, codes=codes)
    index = LocalIndex.open(tmp_path / "i")
    said = index.info()["recall"]
    assert said["at"] == 10
    assert said["items"] == 2000
    assert 0.9 < said["value"] < 1.0001
    known = exact_neighbors(Embeddings.from_source(vectors), 10)
    np.testing.assert_array_equal(known.best, _others(best(vectors[known.rows], vectors, 11)[0], known.rows))
    found = _others(index.search(vectors[known.rows], 11).ids, known.rows)
    assert share(found, known.best) >= said["value"] - 5e-5  # it is rounded
    settings = SearchSettings(kind, index.info()["effort"], index._meta["rescored"])
    assert measure_recall(index._segments[0].index, settings, known).recall == pytest.approx(said["value"], abs=5e-5)
    rows, scores = best(drawn(20, seed=5, classes=200), vectors, 10)
    hits = index.search(drawn(20, seed=5, classes=200), 10)
    assert share(hits.ids, rows) > 0.8
    np.testing.assert_allclose(hits.scores[:, 0], scores[:, 0], atol=0.02)


def _others(rows, own):
    return [row[row != one][:10] for row, one in zip(rows, own, strict=True)]


def test_a_higher_recall_is_bought_with_more_effort(tmp_path):
    vectors = drawn(3000, classes=300, noise=1)
    little = LocalIndex.build(tmp_path / "little", vectors, kind="ivf", codes="float16", recall=0.4).info()
    much = LocalIndex.build(tmp_path / "much", vectors, kind="ivf", codes="float16", recall=0.99).info()
    assert little["effort"] < much["effort"]
    assert 0.4 <= little["recall"]["value"] < 0.99 <= much["recall"]["value"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_leaves_what_brute_force_leaves(tmp_path, kind):
    vectors, queries = drawn(1200), drawn(10, seed=1)
    index = LocalIndex.build(tmp_path / "i", vectors, labeled(1200), kind=kind)
    for where, rows in (
        ({"genus": ["genus 2"]}, np.flatnonzero(np.arange(1200) % 12 // 3 == 2)),
        (
            {LEVELS[0]: ['Häher "5" \\ <b>', 'Häher "6" \\ <b>'], "split": ["gallery"]},
            np.flatnonzero(np.arange(1200) % 12 == 5),
        ),
        ({LEVELS[0]: ['Häher "7" \\ <b>']}, np.flatnonzero(np.arange(1200) % 12 == 7)),
    ):
        found = index.search(queries, 5, where).ids
        assert share(found, rows[best(queries, vectors[rows], 5)[0]]) > (0.999 if kind == "exact" else 0.9)
        assert np.isin(found, rows).all()
        np.testing.assert_array_equal(index.ids(where), rows)
    assert (index.search(queries, 5, {"genus": ["none such"]}).ids == -1).all()


STEP = st.tuples(st.sampled_from(("add", "remove", "compact", "reopen")), st.integers(1, 60), st.integers(0, 10**6))


@settings(max_examples=14)
@given(
    kind=st.sampled_from(KINDS),
    small=st.sampled_from((1, 10, 1024)),
    steps=st.lists(STEP, min_size=1, max_size=6),
)
def test_it_holds_what_was_added_and_not_removed_whatever_the_order(tmp_path_factory, kind, small, steps):
    """A law: at each moment it answers as brute force over the live items, and never with a removed one. An exact index
    answers bit for bit as one that is built of them anew; each vector is there twice, so that there are ties."""
    vectors = np.repeat(drawn(100), 2, axis=0)
    folder = tmp_path_factory.mktemp("i")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments_module, "SMALL", small)
        patch.setattr(segments_module, "MAX_TAIL", 0.5)
        index = LocalIndex.build(folder / "i", vectors, labeled(200), kind=kind, recall=1.0)
        live = dict(enumerate(vectors))
        for step, count, seed in steps:
            if step == "add":
                new = np.repeat(drawn(count, seed=seed + 1), 2, axis=0)
                live |= dict(zip(index.add(new, labeled(len(new))).tolist(), new, strict=True))
            elif step == "remove" and len(live) > 1:
                gone = np.random.default_rng(seed).choice(list(live), min(count, len(live) - 1), replace=False)
                index.remove(gone)
                live = {one: vector for one, vector in live.items() if one not in set(gone.tolist())}
            elif step == "compact":
                index.compact()
                assert (index.info()["segments"], index.info()["removed"]) == (1, 0)
            elif step == "reopen":
                index = LocalIndex.open(folder / "i")
        assert len(names(folder / "i")) == 1 + sum(len(segment.files.files) for segment in index._segments)
    ids, rows = np.array(list(live)), np.stack(list(live.values()))
    for opened in (index, LocalIndex.open(folder / "i")):
        assert len(opened) == len(live)
        assert opened.ids().tolist() == sorted(live)
        found = opened.search(vectors[:8], 5)
        assert np.isin(found.ids[found.ids >= 0], ids).all()
        if kind == "exact":
            built = LocalIndex.build(folder / "new", rows, ids=ids, kind=kind, overwrite=True)
            np.testing.assert_array_equal(found.ids, built.search(vectors[:8], 5).ids)
            np.testing.assert_array_equal(found.scores, built.search(vectors[:8], 5).scores)
            np.testing.assert_array_equal(opened.vectors(ids), built.vectors(ids))
        assert share(found.ids[:, :4], ids[best(vectors[:8], rows, 4)[0]]) > 0.8  # twins at the end of a list are either one
        np.testing.assert_allclose(found.scores, best(vectors[:8], rows, 5)[1][:, : len(live)], atol=2e-3)
        assert [item.id for item in opened.items(ids)] == ids.tolist()
        where = {"genus": ["genus 1"]}
        expected = (
            [one for one in ids.tolist() if opened.items([one])[0].labels["genus"] == "genus 1"] if len(ids) < 40 else None
        )
        assert expected is None or opened.ids(where).tolist() == sorted(expected)


def test_an_addition_writes_a_segment_and_a_removal_a_bit_for_each_item(tmp_path):
    index = LocalIndex.build(tmp_path, drawn(2000), labeled(2000))
    index.add(drawn(3, seed=2), labeled(3))
    assert names(tmp_path) == ["index.1.faiss", "index.2.faiss", "items.1.parquet", "items.2.parquet", "meta.json"]
    assert (tmp_path / "index.2.faiss").stat().st_size < 4 * 3 * DIM + 100
    index.add(drawn(2, seed=3))  # is merged with the small segment before it
    assert names(tmp_path) == ["index.1.faiss", "index.3.faiss", "items.1.parquet", "items.3.parquet", "meta.json"]
    index.remove([7, 2000])
    assert {"index.1.faiss", "index.3.faiss", "removed.4.npy", "removed.5.npy"} <= set(names(tmp_path))
    assert (tmp_path / "removed.4.npy").stat().st_size == 128 + 2000 // 8
    assert (index.info()["segments"], index.info()["removed"], len(index)) == (2, 2, 2003)
    index.remove([2001, 2002, 2003, 2004])  # nothing is left of the segment
    assert names(tmp_path) == ["index.1.faiss", "items.1.parquet", "meta.json", "removed.4.npy"]
    assert index.add(drawn(1)).tolist() == [2005]
    index.compact()
    assert len(names(tmp_path)) == 3
    assert (index.info()["segments"], index.info()["removed"], len(index)) == (1, 0, 2000)
    before = names(tmp_path)
    index.compact()
    assert names(tmp_path) == before


def test_items_labels_and_vectors_are_found_in_whichever_segment_they_are(tmp_path):
    index = LocalIndex.build(tmp_path, drawn(1100), kind="ivf")
    index.add(drawn(4, seed=2), labeled(4))
    assert index.info()["segments"] == 2
    assert index.levels == LEVELS
    assert [item.path for item in index.items([1102, 5, 1100])] == ["Vögel/2/鳥 2.jpg", None, "Vögel/0/鳥 0.jpg"]
    assert index.ids({"genus": ["genus 0"]}).tolist() == [1100, 1101, 1102]
    assert index.search(drawn(4, seed=2), 9, {"genus": ["genus 1"]}).ids[:, :2].tolist() == [[1103, -1]] * 4
    own = np.concatenate([drawn(1100)[5:6], drawn(4, seed=2)[3:]])
    np.testing.assert_allclose(index.vectors([5, 1103]), own / np.linalg.norm(own, axis=1, keepdims=True), atol=1e-3)
    with pytest.raises(ValueError, match="has no item 1104"):
        index.items([3, 1104])
    with pytest.raises(ValueError, match="already has 2 of these ids .1101, 3"):
        index.add(drawn(3), ids=np.array([1101, 3, 2000]))


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_compaction_changes_no_score(tmp_path, kind):
    index = LocalIndex.build(tmp_path, drawn(1500, classes=100), kind=kind, recall=1.0)
    index.add(drawn(20, seed=1, classes=100))
    index.remove(np.arange(0, 1520, 4))
    assert index.info()["segments"] == 2
    queries = drawn(10, seed=3, classes=100)
    before = index.search(queries, 5)
    index.compact()
    after = index.search(queries, 5)
    same = after.ids == before.ids
    assert same.mean() > 0.9 if kind == "hnsw" else same.all()  # the graph was built anew
    np.testing.assert_array_equal(after.scores[same], before.scores[same])
    assert np.isin(after.ids, np.flatnonzero(np.arange(1520) % 4)).all()


def test_there_are_few_segments_and_vectors_are_rewritten_few_times():
    for kind, most in (("exact", 8), ("ivf", 8)):
        sizes, written = [40_000], 0
        for _ in range(20_000):
            first = merge_from(sizes, 1, kind)
            sizes[first:] = [sum(sizes[first:]) + 1]
            written += sizes[-1]
            assert len(sizes) <= most
        assert sum(sizes) == 60_000
        assert written < 20_000 * 1000  # about half of a small segment each time; once in a while more


@settings(max_examples=6)
@given(kind=st.sampled_from(KINDS), count=st.integers(1, 100), seed=st.integers(0, 10**6))
def test_adding_and_then_removing_is_the_identity(tmp_path_factory, kind, count, seed):
    index = LocalIndex.build(tmp_path_factory.mktemp("i"), drawn(300), labeled(300), kind=kind)
    queries = drawn(10, seed=3)
    before = index.search(queries, 10), index.items(index.ids()), len(index)
    index.remove(index.add(drawn(count, seed=seed), labeled(count)))
    after = index.search(queries, 10), index.items(index.ids()), len(index)
    if kind == "hnsw":  # the new nodes changed the paths through the graph
        assert share(after[0].ids, before[0].ids) > 0.8
    else:
        np.testing.assert_array_equal(after[0].ids, before[0].ids)
        np.testing.assert_array_equal(after[0].scores, before[0].scores)
    assert after[1:] == before[1:]


def test_an_id_never_comes_to_mean_another_item(tmp_path):
    index = LocalIndex.build(tmp_path, drawn(10))
    index.remove([9, 8])
    assert index.add(drawn(2, seed=4)).tolist() == [10, 11]
    assert index.add(drawn(2, seed=5), ids=np.array([2**62, 8])).tolist() == [2**62, 8]  # but by one who says so
    assert index.ids().tolist() == [*range(8), 8, 10, 11, 2**62]
    assert index.search(drawn(2, seed=5), 1).ids.ravel().tolist() == [2**62, 8]


def test_removed_items_take_room_until_they_are_more_than_30_percent(tmp_path):
    index = LocalIndex.build(tmp_path, drawn(100), labeled(100))
    index.remove(range(20))
    assert (len(index), index.info()["removed"]) == (80, 20)
    assert (tmp_path / "index.1.faiss").is_file()
    index.remove(range(20, 31))
    assert (len(index), index.info()["removed"]) == (69, 0)
    assert index.items([31])[0].path == "Vögel/7/鳥 31.jpg"
    assert index.search(drawn(100)[31:35], 1).ids.ravel().tolist() == [31, 32, 33, 34]
    index.remove(index.ids())
    assert len(index) == 0
    assert (index.search(drawn(2), 3).ids == -1).all()
    index.add(drawn(3), labeled(3))
    assert index.search(drawn(3), 1).ids.ravel().tolist() == [100, 101, 102]


def test_levels_of_an_addition_join_those_that_are_there(tmp_path):
    index = LocalIndex.build(tmp_path, drawn(4))
    assert index.info()["levels"] == []
    index.add(drawn(4), labeled(4))
    assert index.info()["levels"] == list(LEVELS)
    assert index.items([0, 4])[0].labels == {}
    assert index.items([0, 4])[1].labels[LEVELS[1]] == "genus 0"


def test_equal_scores_stand_in_the_order_of_ids_and_lists_end_early(tmp_path):
    index = LocalIndex.build(tmp_path, np.repeat(drawn(1), 3, axis=0), ids=np.array([7, 3, 5]))
    found = index.search(drawn(1)[0], 5)
    assert found.ids.tolist() == [[3, 5, 7, -1, -1]]
    assert found.scores[0, 3:].tolist() == [-np.inf, -np.inf]


def test_of_equal_scores_the_earlier_items_remain_however_they_are_spread_over_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(segments_module, "SMALL", 1)
    same = np.random.default_rng(0).integers(0, 6, 300)
    index = LocalIndex.build(tmp_path, drawn(6)[same[:200]])
    index.add(drawn(6)[same[200:]])
    index.remove(range(0, 60, 2))
    assert index.info()["segments"] == 2
    live = np.flatnonzero((np.arange(300) >= 60) | (np.arange(300) % 2 == 1))
    nearest, _ = best(drawn(6), drawn(6), 6)
    for query, order in enumerate(nearest):
        rank = np.argsort(order)[same[live]]
        expected = live[np.lexsort((live, rank))][:70]  # all of the best vector, and some of the second best
        np.testing.assert_array_equal(index.search(drawn(6)[query], 70).ids[0], expected)


@pytest.mark.parametrize("queries", [1, 30])  # faiss computes 20 and more as a matrix product
def test_what_is_left_is_found_where_everything_near_was_removed(tmp_path, queries):
    vectors = drawn(800)
    index = LocalIndex.build(tmp_path, vectors)
    near = best(vectors[:1], vectors, 230)[0][0]
    index.remove(near)
    assert index.info()["removed"] == 230
    live = np.setdiff1d(np.arange(800), near)
    found = index.search(vectors[:queries], 10)
    rows, scores = best(vectors[:queries], vectors[live], 10)
    np.testing.assert_array_equal(found.ids, live[rows])
    np.testing.assert_allclose(found.scores, scores, atol=1e-6)


def test_embeddings_in_half_precision_and_in_a_file_are_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("suprank.explorer.index.protocol.BLOCK_BYTES", 4 * DIM * 7)
    np.save(tmp_path / "e.npy", drawn(50).astype(np.float16))
    calls = []
    index = LocalIndex.build(tmp_path / "i", tmp_path / "e.npy", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 50) for done in (*range(0, 50, 7), 50)]
    np.testing.assert_array_equal(index.search(drawn(50), 1).ids.ravel(), np.arange(50))


CHANGES = {
    "add": lambda index: index.add(drawn(5, seed=2)),
    "remove": lambda index: index.remove(range(5)),
    "drop": lambda index: index.remove(range(500)),  # so many that the segment is rewritten
    "compact": lambda index: index.compact(),
}
KILLED = [(dies_at, change) for dies_at in ("index", "items", "meta") for change in ("add", "drop", "compact")]
KILLED += [(dies_at, "remove") for dies_at in ("removed", "meta")]
SCRIPT = """
import os, signal, sys
from pathlib import Path
import faiss, numpy as np
from suprank.explorer.index import LocalIndex
from suprank.explorer.index.kinds import _faiss_search
from tests.explorer.index.test_local import CHANGES

plain = Path.replace
for case in sys.argv[2:]:
    dies_at, change = case.split("-")

    def replace(self, target):
        if Path(target).name.startswith(dies_at):
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, target)

    child = os.fork()
    if not child:
        Path.replace = replace
        index = LocalIndex.open(Path(sys.argv[1]) / case)
        CHANGES[change](index)
        os._exit(0)
    print(case, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # or else the next child has it too

import faiss.contrib.torch_utils  # as `import pytorch_metric_learning.losses` does: it changes the search of every index
index = faiss.IndexFlatIP(2)
index.add(np.eye(2, dtype=np.float32))
print("torch", _faiss_search(index, np.eye(2, dtype=np.float32), 1, faiss.SearchParameters())[1].ravel().tolist())
"""


@pytest.fixture(scope="module")
def processes(forked, tmp_path_factory):
    """A folder with an index for each of `KILLED`, and what a process of its own printed about each and about faiss."""
    root = tmp_path_factory.mktemp("killed")
    cases = [f"{dies_at}-{change}" for dies_at, change in KILLED]
    LocalIndex.build(root / "whole", drawn(1040), labeled(1040)).remove([1039])
    LocalIndex.open(root / "whole").add(drawn(1), ids=np.array([5000]))
    for case in cases:
        shutil.copytree(root / "whole", root / case)
    code, output, errors = forked.script(SCRIPT, root, *cases).end(timeout=120)
    assert code == 0, errors
    return root, dict(line.split(" ", 1) for line in output.splitlines())


@pytest.mark.parametrize(("dies_at", "change"), KILLED)
def test_a_process_killed_while_writing_leaves_the_old_index_whole(processes, dies_at, change):
    """Killed as it has written one of the files but for its name; the next change clears up."""
    root, printed = processes
    folder = root / f"{dies_at}-{change}"
    assert printed[folder.name] == str(-signal.SIGKILL)
    assert any(path.name.endswith(".tmp") for path in folder.iterdir())
    index = LocalIndex.open(folder)
    assert index.ids().tolist() == [*range(1039), 5000]
    np.testing.assert_array_equal(index.search(drawn(1040)[1:20], 1).ids.ravel(), np.arange(1, 20))
    assert index.add(drawn(1, seed=2)).tolist() == [5001]
    assert len(names(folder)) == 6  # of the base, its removed item, one more segment, and meta.json
    assert index.info()["segments"] == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
@pytest.mark.parametrize(("fails_at", "change"), KILLED)
def test_a_full_disk_leaves_the_index_as_it_was_and_no_further_file(processes, tmp_path, monkeypatch, fails_at, change):
    shutil.copytree(processes[0] / "whole", tmp_path / "i")
    index, before, plain = LocalIndex.open(tmp_path / "i"), names(tmp_path / "i"), os.fsync

    def full(number):
        if Path(f"/proc/self/fd/{number}").resolve().name.startswith(f".{fails_at}."):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(number)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match=f"{fails_at}.* cannot be written"):
        CHANGES[change](index)
    monkeypatch.undo()
    assert names(tmp_path / "i") == before
    for opened in (index, LocalIndex.open(tmp_path / "i")):
        assert opened.ids().tolist() == [*range(1039), 5000]
        np.testing.assert_array_equal(opened.search(drawn(1040)[1:20], 1).ids.ravel(), np.arange(1, 20))


def test_it_searches_in_a_process_in_which_faiss_was_changed_for_torch(processes):
    assert processes[1]["torch"] == "[0, 1]"


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_who_has_it_open_keeps_what_it_opened(tmp_path):
    LocalIndex.build(tmp_path, drawn(40), labeled(40))
    reader, writer = LocalIndex.open(tmp_path), LocalIndex.open(tmp_path)
    writer.remove(range(30))
    writer.add(drawn(3, seed=2))
    np.testing.assert_array_equal(reader.search(drawn(40), 1).ids.ravel(), np.arange(40))
    assert reader.items([0])[0].split == "test"
    assert LocalIndex.open(tmp_path).ids().tolist() == [*range(30, 40), 40, 41, 42]
    reader.add(drawn(1, seed=3))  # it looks again before it writes
    assert reader.ids().tolist() == [*range(30, 40), 40, 41, 42, 43]


def test_who_has_it_open_keeps_what_was_removed_then(tmp_path):
    writer = LocalIndex.build(tmp_path, drawn(40))
    writer.remove([0])
    reader = LocalIndex.open(tmp_path)
    writer.remove([1])
    assert reader.search(drawn(40)[:2], 1).ids[1].tolist() == [1]
    assert reader.ids().tolist() == [*range(1, 40)]


@pytest.mark.parametrize("method", ["open_items", "stamp", "_parse_segments"])
def test_it_opens_while_another_process_changes_it(tmp_path, monkeypatch, method):
    """A change just before this step of opening, which deletes the files that were about to be read."""
    writer = LocalIndex.build(tmp_path, drawn(4))
    owner = IndexFolder if hasattr(IndexFolder, method) else sys.modules[IndexFolder.__module__]
    plain, changes = getattr(owner, method), [lambda: writer.add(drawn(4))]

    def change_first(*arguments):
        result = plain(*arguments) if method == "_parse_segments" else None
        if changes:
            changes.pop()()
        return plain(*arguments) if result is None else result

    monkeypatch.setattr(owner, method, change_first)
    assert len(LocalIndex.open(tmp_path)) == 8


def test_a_file_that_windows_keeps_because_it_is_open_is_removed_later(tmp_path, monkeypatch):
    index, unlink = LocalIndex.build(tmp_path / "i", drawn(4)), Path.unlink

    def refuse(self, missing_ok=False):
        if self.name in ("index.1.faiss", "items.1.parquet"):
            raise PermissionError("[WinError 32] it is used by another process")
        unlink(self, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        index.add(drawn(4))
    assert {"index.1.faiss", "index.2.faiss"} <= set(names(tmp_path / "i"))
    index.add(drawn(4))
    assert names(tmp_path / "i") == ["index.3.faiss", "items.3.parquet", "meta.json"]
    assert len(LocalIndex.open(tmp_path / "i")) == 12


def test_threads_may_search_at_once(tmp_path):
    LocalIndex.build(tmp_path, drawn(400), labeled(400), kind="ivf")
    index = LocalIndex.open(tmp_path)
    alone = LocalIndex.open(tmp_path).search(drawn(64, seed=1), 5, {"split": ["test"]}).ids

    def ask(row):
        found = index.search(drawn(64, seed=1)[row], 5, {"split": ["test"]}).ids[0]
        return found, [item.split for item in index.items(found)]

    with ThreadPoolExecutor(8) as threads:
        for row, (found, splits) in enumerate(threads.map(ask, range(64))):
            np.testing.assert_array_equal(found, alone[row])
            assert splits == ["test"] * 5


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_stay_on_disk_until_a_search_needs_them(tmp_path, kind):
    LocalIndex.build(tmp_path, drawn(400), kind=kind)
    index = LocalIndex.open(tmp_path)
    assert str(tmp_path / "index.1.faiss") in Path("/proc/self/maps").read_text()
    index.close()
    assert str(tmp_path / "index.1.faiss") not in Path("/proc/self/maps").read_text()


def test_a_second_writer_is_refused(tmp_path):
    index = LocalIndex.build(tmp_path, drawn(4))

    def meanwhile(done, total):
        with pytest.raises(OSError, match="is writing to .*; wait for it to end"):
            LocalIndex.open(tmp_path).remove([0])

    index.add(drawn(2), progress=meanwhile)
    assert len(index) == 6


@pytest.mark.parametrize("name", ["index.1.faiss", "items.1.parquet"])
def test_damaged_files_are_named(tmp_path, name):
    LocalIndex.build(tmp_path, drawn(40))
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-7])
    with pytest.raises(ValueError, match=rf"{name} has {len(whole) - 7:,} bytes instead of {len(whole):,}"):
        LocalIndex.open(tmp_path)
    (tmp_path / name).write_bytes(b"x" * len(whole))
    with pytest.raises(ValueError, match=rf"{name} is damaged.*build the index again"):
        LocalIndex.open(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is missing"):
        LocalIndex.open(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', '{"version": 1, "files": 3}', '{"version": 2, "segments": [3]}']
)
def test_a_damaged_meta_is_named(tmp_path, text):
    LocalIndex.build(tmp_path, drawn(4))
    (tmp_path / "meta.json").write_text(text)
    with pytest.raises(ValueError, match="meta.json is damaged"):
        LocalIndex.open(tmp_path)


def test_an_index_of_a_later_version_and_of_other_counts_is_refused(tmp_path):
    LocalIndex.build(tmp_path, drawn(4))
    meta = json.loads((tmp_path / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "version": 3}))
    with pytest.raises(ValueError, match="version 3, but this suprank reads 2; update"):
        LocalIndex.open(tmp_path)
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "dim": 5}))
    with pytest.raises(ValueError, match="holds 4 × 16 vectors instead of 4 × 5"):
        LocalIndex.open(tmp_path)


def write_version_1(folder, vectors, kind, codes, removed):
    """An index as suprank 1 wrote it: one faiss index, IVF without short codes, and `removed` as a column of the items."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    dim, product = unit.shape[1], faiss.METRIC_INNER_PRODUCT
    bits = faiss.ScalarQuantizer.QT_8bit if codes == "int8" else faiss.ScalarQuantizer.QT_fp16
    index = {
        "exact": lambda: faiss.IndexFlatIP(dim),
        "ivf": lambda: faiss.IndexIVFScalarQuantizer(faiss.IndexFlatIP(dim), dim, 10, bits, product),
        "hnsw": lambda: faiss.IndexHNSWSQ(dim, bits, 32, product),
    }[kind]()
    index.train(unit)
    index.add(unit)
    folder.mkdir()
    faiss.write_index(index, str(folder / "index.4.faiss"))
    count = len(unit)
    columns = {"id": np.arange(count), "path": [f"{one}.jpg" for one in range(count)], "split": pa.nulls(count, pa.string())}
    labels = {"label_genus": [f"genus {one % 3}" for one in range(count)]}
    mask = np.isin(np.arange(count), removed)
    pq.write_table(pa.table({**columns, "removed": mask, **labels}), folder / "items.3.parquet")
    files = {"index": "index.4.faiss", "items": "items.3.parquet"}
    files = {which: [name, (folder / name).stat().st_size] for which, name in files.items()}
    meta = {"dim": dim, "kind": kind, "codes": codes, "normalized": True, "vectors": count, "removed": len(removed)}
    meta |= {"next_id": count, "effort": 8, "recall": {"at": 10, "value": 0.97, "queries": 256, "items": count}}
    meta |= {"built": "2026-11-15T16:22:51+00:00", "version": 1, "number": 4, "files": files}
    (folder / "meta.json").write_text(json.dumps(meta))


@pytest.mark.parametrize(("kind", "codes"), [("exact", "float32"), ("ivf", "float16"), ("ivf", "int8"), ("hnsw", "int8")])
def test_an_index_of_version_1_is_read_where_it_is_and_changed_as_any_other(tmp_path, kind, codes):
    vectors, queries, gone = drawn(1100, classes=100), drawn(6, seed=1, classes=100), [0, 1, 2]
    write_version_1(tmp_path / "i", vectors, kind, codes, gone)
    index = LocalIndex.open(tmp_path / "i")
    expected = 3 + best(queries, vectors[3:], 5)[0]
    assert (len(index), index.info()["removed"], index.info()["recall"]["value"]) == (1097, 3, 0.97)
    assert share(index.search(queries, 5).ids, expected) > 0.9
    assert index.ids({"genus": ["genus 0"]}).tolist() == list(range(3, 1100, 3))
    assert index.items([7])[0].path == "7.jpg"
    np.testing.assert_allclose(index.vectors([7])[0], vectors[7] / np.linalg.norm(vectors[7]), atol=0.01)
    assert index.add(drawn(2, seed=1, classes=100)).tolist() == [1100, 1101]
    index.remove([4])
    index = LocalIndex.open(tmp_path / "i")
    assert index.ids().tolist() == [3, *range(5, 1102)]
    assert index.search(queries[:2], 1).ids.ravel().tolist() == [1100, 1101]
    assert json.loads((tmp_path / "i" / "meta.json").read_text())["version"] == 2
    assert {"index.4.faiss", "items.3.parquet"} <= set(names(tmp_path / "i"))
    before = index.search(queries, 5)
    index.compact()
    assert len(names(tmp_path / "i")) == 3
    assert index.ids().tolist() == [3, *range(5, 1102)]
    assert index.items([7])[0].labels == {"genus": "genus 1"}
    np.testing.assert_allclose(index.search(queries, 5).scores, before.scores, atol=0.01)


def test_short_codes_miss_little_of_what_the_long_ones_find_and_more_are_rescored_if_needed():
    """Vectors without any structure are the worst case: 500 candidates by short codes are too few for 99 % of the best."""
    vectors = np.random.default_rng(0).normal(size=(20_000, 64)).astype(np.float32)
    embeddings = Embeddings.from_source(vectors)
    index = empty_index("ivf", "float16", embeddings)
    index.add(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    known = exact_neighbors(embeddings, 10, 32)
    tuned = tune_search(index, "ivf", known, 0.99)
    assert tuned.recall >= 0.99
    assert tuned.settings.rescored > 500
    assert measure_recall(index, tuned.settings._replace(rescored=500), known).recall < 0.99
    little = tune_search(index, "ivf", known, 0.5)
    assert little.recall - 2 * little.error >= 0.5
    less = measure_recall(index, little.settings._replace(effort=little.settings.effort * 3 // 4), known)
    assert less.recall - 2 * less.error < 0.5
    assert 1 < little.settings.rescored < 500
    fewer = measure_recall(index, little.settings._replace(rescored=little.settings.rescored // 2), known)
    assert fewer.recall - 2 * fewer.error < 0.5


def test_a_small_ivf_index_has_no_short_codes_and_new_queries_find_the_share_that_was_wanted(tmp_path, monkeypatch):
    monkeypatch.setattr(kinds_module, "_SHORT_CODES_ABOVE", kinds_module.EXACT_NUMBERS)
    rng = np.random.default_rng(3)
    centers = rng.normal(size=(200, DIM))
    vectors = (centers[rng.integers(0, 200, 7000)] + rng.normal(size=(7000, DIM))).astype(np.float32)
    index = LocalIndex.build(tmp_path, vectors[:6000], kind="ivf")
    assert not hasattr(index._segments[0].index, "base_index")
    assert index.info()["recall"]["value"] > 0.95
    queries = vectors[6000:]
    assert share(index.search(queries, 10).ids, best(queries, vectors[:6000], 10)[0]) >= 0.95


def test_what_is_no_index_is_said(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="holds no index.*suprank index build"):
        LocalIndex.open(tmp_path / "none")
    monkeypatch.setattr(
        module, "_writer", lambda index: lambda file: Path(file.name).unlink()
    )  # a build that fails as it writes
    with pytest.raises(FileNotFoundError):
        LocalIndex.build(tmp_path / "i", drawn(4))
    with pytest.raises(FileNotFoundError, match="holds no index"):
        LocalIndex.open(tmp_path / "i")


def test_an_index_is_overwritten_only_on_demand(tmp_path):
    LocalIndex.build(tmp_path, drawn(4))
    with pytest.raises(FileExistsError, match="already holds an index"):
        LocalIndex.build(tmp_path, drawn(6))
    assert len(LocalIndex.build(tmp_path, drawn(6), overwrite=True)) == 6
    assert len(LocalIndex.open(tmp_path)) == 6


@pytest.mark.parametrize("name", ["meta.json", "index.1.faiss", "items.1.parquet"])
def test_a_damaged_index_can_be_built_again_as_its_error_says(tmp_path, name):
    LocalIndex.build(tmp_path, drawn(4))
    (tmp_path / name).write_bytes(b"{")
    assert len(LocalIndex.build(tmp_path, drawn(6), overwrite=True)) == 6
    assert len(LocalIndex.open(tmp_path)) == 6
    assert len(list(tmp_path.glob("i*.*.*"))) == 2


def test_wrong_arguments_are_refused_and_change_nothing(tmp_path):
    index = LocalIndex.build(tmp_path / "i", drawn(20), labeled(20))
    poisoned = drawn(20)
    poisoned[13] = np.nan
    for wrong, error, match in (
        (lambda: index.search(drawn(2, dim=5)), ValueError, r"shape \[2, 5\].*has 16 dimensions"),
        (lambda: index.search(np.ones((2, DIM), int)), ValueError, "int64"),
        (lambda: index.search(np.zeros((2, DIM))), ValueError, "row 0 contains NaN or infinity, or is all zeros"),
        (lambda: index.search(drawn(1), 0), ValueError, "k=0 must be"),
        (lambda: index.search(drawn(1), where={"order": ["x"]}), ValueError, "no level 'order'; choose from .*genus, split"),
        (lambda: index.add(drawn(2, dim=5)), ValueError, "have 5 dimensions and .* 16"),
        (lambda: index.add(poisoned), ValueError, "row 13 contains NaN"),
        (lambda: index.add(drawn(2), labeled(3)), ValueError, "3 rows for 2 embeddings"),
        (lambda: index.add(drawn(2), ids=np.array([30, 7])), ValueError, "already has 1 of these ids .7."),
        (lambda: index.add(drawn(2), ids=np.array([30, 30])), ValueError, "id 30 is given twice"),
        (lambda: index.add(drawn(2), ids=np.array([30, -1])), ValueError, "-1 is not a valid id"),
        (lambda: index.add(drawn(2), ids=np.array([1.5, 2])), TypeError, "list of integers"),
        (lambda: index.add(drawn(2), ids=np.array([30])), ValueError, "1 ids for 2 embeddings"),
        (lambda: index.remove([3, 77, 78]), ValueError, "has no item 77, 78"),
        (lambda: index.remove([3, 3]), ValueError, "given twice"),
        (lambda: index.items([20]), ValueError, "has no item 20"),
        (lambda: LocalIndex.build(tmp_path / "j", drawn(5), kind="lsh"), ValueError, "no index kind 'lsh'"),
        (lambda: LocalIndex.build(tmp_path / "j", drawn(5), kind="ivf", codes="int4"), ValueError, "no codes 'int4'"),
        (lambda: LocalIndex.build(tmp_path / "j", drawn(5), recall=95), ValueError, "recall=95"),
        (lambda: LocalIndex.build(tmp_path / "j", poisoned), ValueError, "row 13 contains NaN"),
    ):
        with pytest.raises(error, match=match):
            wrong()
    for opened in (index, LocalIndex.open(tmp_path / "i")):
        assert opened.ids().tolist() == list(range(20))
        assert opened.info()["next_id"] == 20
    with pytest.raises(FileNotFoundError):
        LocalIndex.open(tmp_path / "j")


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_embeddings_that_one_byte_cannot_hold_are_refused(tmp_path, kind):
    vectors = np.abs(drawn(100))
    index = LocalIndex.build(tmp_path / "int8", vectors, kind=kind, codes="int8")
    with pytest.raises(ValueError, match="unlike those that the index was built from.*float16"):
        index.add(-vectors[:10])
    assert len(index) == len(LocalIndex.open(tmp_path / "int8")) == 100
    assert index.add(1.02 * vectors[:10]).tolist() == list(range(100, 110))
    index = LocalIndex.build(tmp_path / "float16", vectors, kind=kind)
    index.add(-vectors[:10])
    found = index.search(-vectors[:10], 1)
    assert found.ids.ravel().tolist() == list(range(100, 110))
    np.testing.assert_allclose(found.scores, 1, atol=2e-3)


def test_without_faiss_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ModuleNotFoundError, match=r"suprank\[explore\]"):
        LocalIndex.build(tmp_path / "i", drawn(4))


def test_an_index_is_not_built_among_other_files_but_over_the_rest_of_a_build(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"thesis.tex.*no meta.json; name another folder"):
        LocalIndex.build(tmp_path, drawn(4), overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    LocalIndex.build(tmp_path / "i", drawn(4))
    (tmp_path / "i" / "meta.json").unlink()  # as if the build had been killed
    with pytest.raises(FileNotFoundError, match="its build was interrupted; build it again"):
        LocalIndex.open(tmp_path / "i")
    assert len(LocalIndex.build(tmp_path / "i", drawn(6))) == 6
    assert len(LocalIndex.open(tmp_path / "i")) == 6
