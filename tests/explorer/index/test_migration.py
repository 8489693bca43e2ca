"""An index copied to another address has the same items and finds the same."""

import numpy as np
import pytest

from suprank.explorer.index import LocalIndex, build_index, copy_index, open_index
from tests.explorer.index.vectors import drawn, labeled

MADE_BY = {"head": "0123456789abcdef", "fingerprint": "f" * 64, "scales": [1.0]}


@pytest.fixture
def folder(tmp_path):
    """An index of 300 items, one without labels, two removed, with ids of its own."""
    index = LocalIndex.build(tmp_path / "birds.index", drawn(300), labeled(300), ids=np.arange(300) * 7, made_by=MADE_BY)
    index.add(drawn(1, seed=5), ids=np.array([2**40]))
    index.add(drawn(1, seed=6), ids=np.array([2**40 + 5]))
    index.remove([0, 2**40 + 5])
    return index


def address_of(server, tmp_path):
    pytest.importorskip("qdrant_client" if server == "qdrant" else "milvus_lite")
    return f"{server}+file://{tmp_path}/{'q' if server == 'qdrant' else 'm.db'}/birds"


@pytest.mark.parametrize("server", ["qdrant", "milvus"])
def test_a_folder_survives_the_way_to_a_server_and_back(server, folder, tmp_path):
    seen = []
    copied = copy_index(
        tmp_path / "birds.index", address_of(server, tmp_path), progress=lambda done, total: seen.append((done, total))
    )
    assert (copied.agreement, seen[0], seen[-1]) == (1, (0, 300), (300, 300))
    info = copied.index.info()
    assert (info["items"], info["made_by"], info["next_id"]) == (300, MADE_BY, 2**40 + 6)
    assert "unfinished_copy_of" not in info
    copied.index.close()
    back = copy_index(address_of(server, tmp_path), tmp_path / "back.index")
    assert back.agreement == 1
    ids = folder.ids()
    np.testing.assert_array_equal(back.index.ids(), ids)
    assert back.index.items(ids) == folder.items(ids)
    np.testing.assert_allclose(back.index.vectors(ids), folder.vectors(ids), atol=1e-6)
    assert (back.index.info()["made_by"], back.index.info()["next_id"]) == (MADE_BY, 2**40 + 6)
    assert back.index.add(drawn(1)).tolist() == [2**40 + 6]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_vectors_of_every_kind_are_those_that_were_indexed(tmp_path):
    vectors = drawn(400)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for kind, codes, tolerance in (("exact", "float16", 1e-6), ("ivf", "float16", 1e-3), ("hnsw", "int8", 2e-2)):
        index = LocalIndex.build(tmp_path / kind, vectors, kind=kind, codes=codes)
        np.testing.assert_allclose(index.vectors([399, 7, 7]), unit[[399, 7, 7]], atol=tolerance)
        with pytest.raises(ValueError, match="has no item 400"):
            index.vectors([400])
    assert copy_index(tmp_path / "exact", tmp_path / "as-ivf", kind="ivf").agreement > 0.9
    assert open_index(tmp_path / "as-ivf").info()["kind"] == "ivf"


def test_an_interrupted_copy_to_a_server_goes_on_where_it_stopped(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("suprank.explorer.index.server.BATCH_NUMBERS", 16 * 100)
    source, target = tmp_path / "birds.index", address_of("qdrant", tmp_path)

    def stop(done, total):
        if done == 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        copy_index(source, target, progress=stop)
    assert stopped.value.__notes__ == [f"200 of 300 items are copied to {target}; the same command copies the rest."]
    unfinished = open_index(target)
    assert unfinished.info()["unfinished_copy_of"] == str(source)
    with pytest.raises(ValueError, match="is an unfinished copy of .*birds.index; finish it first: suprank index copy"):
        unfinished.add(drawn(1))  # whose id may be that of an item to come
    unfinished.close()
    for elsewhere in (tmp_path / "part.index", "qdrant+memory:///part"):
        with pytest.raises(ValueError, match="is an unfinished copy"):
            copy_index(target, elsewhere)
    build_index(tmp_path / "other.index", drawn(3))
    with pytest.raises(FileExistsError, match="already exists"):
        copy_index(tmp_path / "other.index", target)
    seen = []
    copied = copy_index(source, target, progress=lambda done, total: seen.append(done))
    assert (seen, copied.agreement) == ([200, 300], 1)
    copied.index.close()
    with pytest.raises(FileExistsError, match="already exists"):  # it is complete now
        copy_index(source, target)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_copy_that_goes_on_has_the_items_that_the_source_has_now(folder, tmp_path, monkeypatch, overwrite):
    monkeypatch.setattr("suprank.explorer.index.server.BATCH_NUMBERS", 16 * 100)
    source, target = tmp_path / "birds.index", address_of("qdrant", tmp_path)

    def stop(done, total):
        if done == 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_index(source, target, overwrite=overwrite, progress=stop)
    folder.remove([7, 2093])  # one that was copied, and one that was not
    folder.add(drawn(1, seed=7), ids=np.array([3]))
    seen = []
    copied = copy_index(source, target, overwrite=overwrite, progress=lambda done, total: seen.append(done))
    assert seen == [199, 299]  # not from the beginning
    np.testing.assert_array_equal(copied.index.ids(), folder.ids())
    copied.index.close()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("birds.index", "./birds.index/"),
        ("birds.index", "x/../birds.index"),
        ("qdrant://host/birds", "qdrant+http://HOST:6333/birds"),
        ("milvus://localhost/birds", "milvus://127.0.0.1:19530/birds"),
        ("milvus://localhost/birds", "milvus://[::1]/birds"),
        ("qdrant+file:///data/q/birds", "qdrant+file:///data//./q/birds"),
    ],
)
def test_an_index_is_not_overwritten_by_itself_however_its_address_is_written(one, other):
    """Nothing answers at these addresses: a collection that is its own source would be deleted before it is read."""
    with pytest.raises(ValueError, match="cannot be copied to itself"):
        copy_index(one, other, overwrite=True)


def test_what_cannot_be_copied_is_refused(folder, tmp_path):
    source = tmp_path / "birds.index"
    with pytest.raises(ValueError, match="cannot be copied to itself"):
        copy_index(source, source)
    with pytest.raises(ValueError, match="a server chooses the kind"):
        copy_index(source, "qdrant+memory:///b", kind="ivf")
    build_index(tmp_path / "other.index", drawn(3))
    with pytest.raises(FileExistsError, match="already holds an index"):
        copy_index(source, tmp_path / "other.index")
    assert len(copy_index(source, tmp_path / "other.index", overwrite=True).index) == 300
    folder.remove(folder.ids())
    for target in ("qdrant+memory:///b", tmp_path / "new.index"):
        with pytest.raises(ValueError, match="has no items, so there is nothing to copy"):
            copy_index(source, target)
    with pytest.raises(FileNotFoundError, match="holds no index"):
        copy_index(tmp_path / "none", tmp_path / "new.index")
