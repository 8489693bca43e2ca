"""The commands on a real Milvus server, which a test starts and stops.

SUPRANK_MILVUS_ITEMS=100000 python -m pytest tests/explorer/index/test_milvus_server.py     the same with 100,000 vectors
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from suprank.explorer.index import LocalIndex, open_index
from suprank.explorer.index.milvus import MilvusIndex
from tests.cli.collection import done, refused
from tests.explorer.index.vectors import LEVELS, drawn, labeled
from tests.milvus_server import MilvusServer, package

pytestmark = [
    pytest.mark.skipif(package() is None, reason="the package milvus is not installed"),
    pytest.mark.xdist_group("milvus server"),
    pytest.mark.slow,  # it waits for the server, so it starts first
]
ITEMS = int(os.environ.get("SUPRANK_MILVUS_ITEMS", "2000"))
SLOW = ("--timeout", 60)
SPECIES = 'Häher "5" \\ <b>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with embeddings, their manifest, an index of them, and queries."""
    root = tmp_path_factory.mktemp("birds")
    vectors, manifest = drawn(ITEMS, dim=32, noise=1), labeled(ITEMS)
    np.save(root / "birds.npy", vectors)
    np.save(root / "more.npy", -vectors[:3])
    np.save(root / "queries.npy", drawn(50, dim=32, noise=1, seed=1))
    manifest.save(root / "birds.parquet")
    LocalIndex.build(root / "birds.index", vectors, manifest, kind="exact")
    return root


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
    return f"milvus://127.0.0.1:{server.port}/{collection}"


def found(index, *options):
    """The ids and scores of the hits that `suprank index search` prints, `[queries, k]`."""
    output = done("index", "search", index, "--embeddings", "queries.npy", *options).stdout
    lines = [json.loads(line) for line in output.splitlines()]
    return [np.array([line[key] for line in lines]).reshape(50, -1) for key in ("id", "score")]


def common(one, other):
    """The share of the ids of two lists that are in both."""
    return sum(len(np.intersect1d(*pair)) for pair in zip(one, other, strict=True)) / one.size


def test_every_command_works_on_a_server_as_on_a_folder(folder, server, monkeypatch):
    monkeypatch.chdir(folder)
    birds = address(server)
    built = done("index", "build", "birds.npy", "--manifest", "birds.parquet", "--out", birds, *SLOW).stdout
    assert built == f"{birds}: {ITEMS:,} items × 32, milvus\n"
    for options in ((), ("--where", f"{LEVELS[0]}={SPECIES}", "--where", "split=gallery")):
        ours, theirs = found("birds.index", *options), found(birds, *options)
        assert common(ours[0], theirs[0]) > 0.95
        same = ours[0] == theirs[0]
        np.testing.assert_allclose(ours[1][same], theirs[1][same], atol=1e-5)
    assert "has no level 'order'" in refused("index", "search", birds, "--embeddings", "queries.npy", "--where", "order=x")
    added = done("index", "add", birds, "more.npy", "-q").stdout
    assert added == f"{birds}: added 3 items with ids {ITEMS} to {ITEMS + 2}; it now has {ITEMS + 3:,}\n"
    removed = done("index", "remove", birds, "--ids", f"0,{ITEMS + 2}").stdout
    assert removed == f"{birds}: removed 2 items; it now has {ITEMS + 1:,}\n"
    assert "has no item 0" in refused("index", "remove", birds, "--ids", "0")
    assert 0 not in found(birds)[0]
    assert f"with ids {ITEMS + 3} to {ITEMS + 5}" in done("index", "add", birds, "more.npy", "-q").stdout  # no id is reused
    by_label = done("index", "remove", birds, "--where", f"{LEVELS[0]}={SPECIES}").stdout
    left = ITEMS + 4 - len(range(5, ITEMS, 12))
    assert f"it now has {left:,}\n" in by_label
    info = json.loads(done("index", "info", birds).stdout)
    assert (info["items"], info["next_id"], info["levels"]) == (left, ITEMS + 6, list(LEVELS))
    assert "existing: birds" in refused("index", "info", address(server, "bats"))
    assert "already exists" in refused("index", "build", "birds.npy", "--out", birds)


def test_a_folder_is_copied_to_a_server(folder, server, monkeypatch):
    monkeypatch.chdir(folder)
    copied = done("index", "copy", "birds.index", address(server, "copied"), *SLOW).stdout
    share = float(copied.split("; ")[1].split("%")[0])
    assert share > 95
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MilvusIndex, "_read_meta", lambda self: {})  # a collection of an earlier suprank
        copy = open_index(address(server, "copied"))
        assert copy.add(drawn(1, dim=32)).tolist() == [ITEMS]
    copy.close()


def test_a_killed_server_has_lost_nothing_and_a_key_opens_it(server, folder, monkeypatch):
    """Needs the collection of the first test."""
    monkeypatch.chdir(folder)
    before = json.loads(done("index", "info", address(server)).stdout)
    hits = found(address(server))
    pid = server.pid
    server.stop()
    assert not Path(f"/proc/{pid}").exists()
    assert "no Milvus answers at" in refused("index", "info", address(server), "--timeout", 1)
    server.start(authorization_enabled="true")
    assert "MILVUS_TOKEN" in refused("index", "info", address(server))
    monkeypatch.setenv("MILVUS_TOKEN", "root:wrong")
    assert "MILVUS_TOKEN" in refused("index", "info", address(server))
    monkeypatch.setenv("MILVUS_TOKEN", "root:Milvus")
    after = json.loads(done("index", "info", address(server), "--timeout", 120).stdout)
    assert after == {**before, "address": address(server)}
    assert common(found(address(server))[0], hits[0]) > 0.95
