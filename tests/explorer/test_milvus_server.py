"""Upload and search on a real Milvus server, which a test starts and stops.

SUPRANK_MILVUS_ITEMS=100000 python -m pytest tests/explorer/test_milvus_server.py     the same with 100,000 vectors
"""

import json
import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from pymilvus import MilvusClient

from suprank.explorer import Index
from suprank.explorer import milvus as module
from suprank.explorer.milvus import MilvusIndex
from tests.cli.collection import done, refused
from tests.explorer.vectors import LEVELS, drawn, labeled
from tests.milvus_server import MilvusServer, package

pytestmark = [
    pytest.mark.skipif(package() is None, reason="the package milvus is not installed"),
    pytest.mark.xdist_group("milvus server"),
    pytest.mark.slow,  # it waits for the server, so it starts first
]
ITEMS = int(os.environ.get("SUPRANK_MILVUS_ITEMS", "2000"))
SPECIES = 'Häher "5" \\ <b>'
FILTER = ("--where", f"{LEVELS[0]}={SPECIES}", "--where", "split=gallery")
BIRDS = ("birds.npy", "--labels", "birds.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with embeddings, their manifest and queries."""
    root = tmp_path_factory.mktemp("birds")
    np.save(root / "birds.npy", drawn(ITEMS, dim=32, noise=1))
    np.save(root / "others.npy", drawn(50, dim=32))
    np.save(root / "queries.npy", drawn(50, dim=32, noise=1, seed=1))
    labeled(ITEMS).save(root / "birds.parquet")
    return root


@pytest.fixture(autouse=True)
def working_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = MilvusServer(tmp_path_factory.mktemp("milvus"))
    try:
        server.start()
    except PermissionError as error:
        pytest.skip(str(error))
    yield server
    server.stop()


def address(server, collection="birds"):
    return f"http://127.0.0.1:{server.port}/{collection}"


def records(*options):
    """What `suprank search` prints for 50 queries, and the ids and scores, `[queries, k]`."""
    output = done("search", *BIRDS, "--queries", "queries.npy", *options).stdout
    lines = [json.loads(line) for line in output.splitlines()]
    return lines, *(np.array([line[key] for line in lines]).reshape(50, -1) for key in ("id", "score"))


def common(one, other):
    """The share of the ids of two lists that are in both."""
    return sum(len(np.intersect1d(*pair)) for pair in zip(one, other, strict=True)) / one.size


def test_a_server_finds_what_the_index_finds(server):
    birds = address(server)
    query = ("search", *BIRDS, "--queries", "queries.npy", "--server", birds)
    assert "there is no such collection (existing: none)" in refused(*query)
    uploaded = done("search", *BIRDS, "--server", birds, "--upload")
    assert f"birds.npy: {ITEMS:,} items × 32, Milvus at {birds}\n" in uploaded.stderr
    assert uploaded.stdout == ""
    for options in ((), FILTER):
        ours, ids, scores = records("--kind", "exact", *options)
        theirs, found, cosines = records("--server", birds, *options)
        assert common(ids, found) > 0.95
        same = ids == found
        np.testing.assert_allclose(scores[same], cosines[same], atol=1e-5)
        assert [line.keys() for line in theirs] == [line.keys() for line in ours]
    assert {line["labels"][LEVELS[0]] for line in theirs} == {SPECIES}
    assert "has no level 'order'" in refused(*query, "--where", "order=x")


def test_a_collection_of_other_embeddings_is_refused_until_it_is_replaced(server):
    others = ("search", "others.npy", "--queries", "queries.npy", "--k", 1, "--server", address(server, "others"))
    done(*others, "--upload")
    np.save("others.npy", -np.load("others.npy"))
    assert "was made of other embeddings than these; upload these" in refused(*others)
    assert len(done(*others, "--upload").stdout.splitlines()) == 50
    np.save("others.npy", np.load("others.npy"))  # the same vectors in another file
    assert len(done(*others).stdout.splitlines()) == 50
    client = MilvusClient(address(server).rpartition("/")[0])
    client.create_collection("foreign", dimension=4)
    assert "a collection that suprank did not make" in refused(*others[:-1], address(server, "foreign"), "--upload")
    client.close()


def test_an_interrupted_upload_goes_on_where_it_stopped(server, monkeypatch):
    vectors, reported = np.load("birds.npy")[:600], []
    monkeypatch.setattr(module, "_NUMBERS", 32 * 100)

    def stop(done, total):
        reported.append(done)
        if done == 300:
            raise KeyboardInterrupt

    with closing(MilvusIndex(address(server, "part"))) as collection:
        with pytest.raises(KeyboardInterrupt):
            collection.upload(vectors, progress=stop)
        with pytest.raises(ValueError, match="has 300 of 600 items, since its upload was interrupted; upload the rest"):
            collection.open(vectors)
        reported.clear()
        collection.upload(vectors, progress=lambda done, total: reported.append(done))
        assert reported == [300, 400, 500, 600]
        found = collection.search(vectors[::7], 3)
        np.testing.assert_array_equal(found.rows, Index.build(vectors).search(vectors[::7], 3).rows)
        for wrong, match in (
            (lambda: collection.search(drawn(2, dim=5)), r"shape \[2, 5\].*have 32 dimensions"),
            (lambda: collection.search(vectors[:1], 0), "k=0 must be"),
        ):
            with pytest.raises(ValueError, match=match):
                wrong()


def test_a_killed_server_has_lost_nothing_and_a_key_opens_it(server, monkeypatch):
    """Needs the collection of the first test."""
    _, before, _ = records("--server", address(server))
    pid = server.pid
    server.stop()
    assert not Path(f"/proc/{pid}").exists()
    query = ("search", *BIRDS, "--queries", "queries.npy", "--server")
    assert "no Milvus answers at" in refused(*query, address(server))
    server.start(authorization_enabled="true")
    assert "MILVUS_TOKEN" in refused(*query, address(server))
    monkeypatch.setenv("MILVUS_TOKEN", "root:wrong")
    assert "MILVUS_TOKEN" in refused(*query, address(server))
    monkeypatch.setenv("MILVUS_TOKEN", "root:Milvus")
    _, after, _ = records("--server", address(server))
    assert common(after, before) > 0.95
    assert len(records("--server", address(server), *FILTER)[0]) == 500
