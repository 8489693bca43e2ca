"""An index in a folder: it finds what brute force finds, and stays itself through additions, removals and crashes."""

import json
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.evaluation import Embeddings, top_k
from suprank.explorer.index import LocalIndex
from suprank.explorer.index import local as module
from suprank.explorer.index.kinds import exact_neighbors, measure_recall
from tests.explorer.index.vectors import DIM, LEVELS, best, drawn, labeled

KINDS = ("exact", "ivf", "hnsw")


@pytest.fixture(autouse=True)
def one_thread():
    faiss.omp_set_num_threads(1)


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
    assert measure_recall(index._index, kind, index.info()["effort"], known) == pytest.approx(said["value"], abs=5e-5)
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


@settings(max_examples=10)
@given(
    kind=st.sampled_from(KINDS),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 60), st.integers(0, 10**6)), min_size=1, max_size=5),
)
def test_it_holds_what_was_added_and_not_removed_whatever_the_order(tmp_path_factory, kind, steps):
    """A law: at each moment it answers as brute force over the live items, and never with a removed one."""
    vectors = drawn(200)
    folder = tmp_path_factory.mktemp("i")
    index = LocalIndex.build(folder, vectors, kind=kind, recall=1.0)
    live = dict(enumerate(vectors))
    for adding, count, seed in steps:
        draw = np.random.default_rng(seed)
        if adding:
            new = drawn(count, seed=seed + 1)
            live |= dict(zip(index.add(new).tolist(), new, strict=True))
        elif len(live) > 1:
            gone = draw.choice(list(live), min(count, len(live) - 1), replace=False)
            index.remove(gone)
            live = {one: vector for one, vector in live.items() if one not in set(gone.tolist())}
        for opened in (index, LocalIndex.open(folder)):
            assert len(opened) == len(live)
            assert opened.ids().tolist() == sorted(live)
            found = opened.search(vectors[:8], 5).ids
            ids = np.array(list(live))
            assert np.isin(found[found >= 0], ids).all()
            expected = ids[best(vectors[:8], np.stack(list(live.values())), 5)[0]]
            assert share(found, expected) > (0.999 if kind == "exact" else 0.8)


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


def test_removed_items_take_room_until_they_are_a_quarter(tmp_path):
    index = LocalIndex.build(tmp_path, drawn(100), labeled(100))
    index.remove(range(20))
    assert (len(index), index.info()["removed"]) == (80, 20)
    assert (tmp_path / "index.1.faiss").is_file()
    index.remove(range(20, 30))
    assert (len(index), index.info()["removed"]) == (70, 0)
    assert index.items([30])[0].path == "Vögel/6/鳥 30.jpg"
    assert index.search(drawn(100)[30:35], 1).ids.ravel().tolist() == [30, 31, 32, 33, 34]
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


def test_embeddings_in_half_precision_and_in_a_file_are_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("suprank.explorer.index.protocol.BLOCK_BYTES", 4 * DIM * 7)
    np.save(tmp_path / "e.npy", drawn(50).astype(np.float16))
    calls = []
    index = LocalIndex.build(tmp_path / "i", tmp_path / "e.npy", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 50) for done in (*range(0, 50, 7), 50)]
    np.testing.assert_array_equal(index.search(drawn(50), 1).ids.ravel(), np.arange(50))


KILLED = [(dies_at, change) for dies_at in ("index", "items", "meta") for change in ("add", "remove")]
SCRIPT = """
import os, signal, sys
from pathlib import Path
import faiss, numpy as np
from suprank.explorer.index import LocalIndex
from suprank.explorer.index.kinds import _faiss_search
from tests.explorer.index.vectors import drawn

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
        index.add(drawn(5, seed=2)) if change == "add" else index.remove(range(30))
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
    LocalIndex.build(root / "whole", drawn(40), labeled(40))
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
    assert len(index) == 40
    np.testing.assert_array_equal(index.search(drawn(40), 1).ids.ravel(), np.arange(40))
    assert index.add(drawn(1, seed=2)).tolist() == [40]
    assert names(folder) == ["index.2.faiss", "items.2.parquet", "meta.json"]


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


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 1, "files": 3}'])
def test_a_damaged_meta_is_named(tmp_path, text):
    LocalIndex.build(tmp_path, drawn(4))
    (tmp_path / "meta.json").write_text(text)
    with pytest.raises(ValueError, match="meta.json is damaged"):
        LocalIndex.open(tmp_path)


def test_an_index_of_a_later_version_and_of_other_counts_is_refused(tmp_path):
    LocalIndex.build(tmp_path, drawn(4))
    meta = json.loads((tmp_path / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "version": 2}))
    with pytest.raises(ValueError, match="version 2, but this suprank reads 1; update"):
        LocalIndex.open(tmp_path)
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "dim": 5}))
    with pytest.raises(ValueError, match="holds 4 × 16 vectors instead of 4 × 5"):
        LocalIndex.open(tmp_path)


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
