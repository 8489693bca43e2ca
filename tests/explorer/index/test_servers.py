"""Qdrant and Milvus, in their embedded modes, answer as the folder does; servers that are not there are said to be missing."""

import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import numpy as np
import pytest

from suprank.explorer.index import IndexItem, LocalIndex, build_index, open_index
from suprank.explorer.index.address import Address
from suprank.explorer.index.milvus import _refuse_old_server
from tests.explorer.index.vectors import LEVELS, drawn, labeled

QUERIES = drawn(20, seed=17)  # no two of their scores are closer than 1e-4, so rounding does not change an order


@pytest.fixture(params=["qdrant", "milvus"])
def address(request, tmp_path):
    """Of a collection that does not exist yet."""
    if request.param == "qdrant":
        pytest.importorskip("qdrant_client")
        return "qdrant+memory:///birds"
    pytest.importorskip("milvus_lite", reason="Milvus Lite is not installed")
    return f"milvus+file://{tmp_path}/m.db/birds"


@pytest.fixture
def close_later():
    """Indexes to close at the end, so that no file or thread stays behind."""
    opened = []
    yield lambda index: opened.append(index) or index
    for index in opened:
        index.close()


def test_the_same_calls_give_the_same_answers_as_a_folder(address, tmp_path, close_later):
    vectors, manifest = drawn(500), labeled(500)
    folder = LocalIndex.build(tmp_path / "i", vectors, manifest)
    server = close_later(build_index(address, vectors, manifest))
    for index in (folder, server):
        assert index.add(drawn(6, seed=2), labeled(6)).tolist() == [500, 501, 502, 503, 504, 505]
        index.remove([3, 501, 502])
        index.add(drawn(1, seed=3), ids=np.array([2**40]))
    assert len(server) == len(folder) == 504
    for where in (
        None,
        {"genus": ["genus 2"]},
        {LEVELS[0]: ['Häher "5" \\ <b>', 'Häher "6" \\ <b>'], "split": ["gallery"]},
        {"genus": ["none such"]},
    ):
        ours, theirs = folder.search(QUERIES, 10, where), server.search(QUERIES, 10, where)
        np.testing.assert_array_equal(theirs.ids, ours.ids)
        np.testing.assert_allclose(theirs.scores, ours.scores, atol=1e-5)
        np.testing.assert_array_equal(server.ids(where), folder.ids(where))
    assert server.items([500, 7, 7]) == folder.items([500, 7, 7])
    assert server.items([2**40])[0].path is None
    info = server.info()
    assert (info["items"], info["dim"], tuple(info["levels"])) == (504, 16, LEVELS)
    assert info["address"] == address


def test_a_collection_keeps_what_made_it_and_never_reuses_an_id(address, close_later):
    server = close_later(build_index(address, drawn(5), made_by={"head": "0123456789abcdef"}))
    assert server.add(drawn(2)).tolist() == [5, 6]
    server.remove([4, 5, 6])
    assert server.add(drawn(1)).tolist() == [7]
    server.add(drawn(1), ids=np.array([6]))
    info = server.info()
    assert (info["made_by"], info["next_id"], info["normalized"]) == ({"head": "0123456789abcdef"}, 8, True)
    server._insert(drawn(1), [IndexItem(20)])  # by a client that knows nothing of next_id
    assert server.add(drawn(1)).tolist() == [21]
    server._write_meta({})  # a collection of an earlier suprank
    server.remove([21])
    assert server.add(drawn(1)).tolist() == [21]


def test_what_is_wrong_is_refused_and_changes_nothing(address, close_later):
    server = close_later(build_index(address, drawn(20), labeled(20)))
    for wrong, match in (
        (lambda: server.search(drawn(2, dim=5)), r"shape \[2, 5\].*has 16 dimensions"),
        (lambda: server.search(drawn(1), 0), "k=0 must be"),
        (lambda: server.search(drawn(1), where={"order": ["x"]}), "no level 'order'; choose from .*genus, split"),
        (lambda: server.add(drawn(2, dim=5)), "have 5 dimensions and .* 16"),
        (lambda: server.add(drawn(2), ids=np.array([30, 7])), "already has 1 of these ids .7."),
        (lambda: server.add(drawn(2), ids=np.array([30, 30])), "id 30 is given twice"),
        (lambda: server.add(drawn(2), labeled(3)), "3 rows for 2 embeddings"),
        (lambda: server.remove([3, 77]), "has no item 77"),
        (lambda: server.items([77]), "has no item 77"),
    ):
        with pytest.raises(ValueError, match=match):
            wrong()
    assert server.ids().tolist() == list(range(20))


def test_an_addition_that_breaks_off_says_what_is_in(address, close_later, monkeypatch):
    monkeypatch.setattr("suprank.explorer.index.server.BATCH_NUMBERS", 16 * 4)
    server = close_later(build_index(address, drawn(4)))
    calls = []

    def stop(done, total):
        calls.append((done, total))
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        server.add(drawn(10, seed=2), progress=stop)
    assert calls == [(0, 10), (4, 10), (8, 10)]
    assert stopped.value.__notes__ == [f"8 of 10 items were added to {address}, ids 4 to 11."]
    assert len(server) == 12


@pytest.mark.parametrize("server", ["qdrant", "milvus"])
def test_a_collection_on_disk_is_opened_again_and_overwritten_only_on_demand(server, tmp_path):
    pytest.importorskip("qdrant_client" if server == "qdrant" else "milvus_lite")
    address = f"{server}+file://{tmp_path}/{'q' if server == 'qdrant' else 'm.db'}/birds"
    build_index(address, drawn(9), labeled(9)).close()
    opened = open_index(address)
    assert (len(opened), opened.dim) == (9, 16)
    assert opened.search(drawn(9), 1).ids.ravel().tolist() == list(range(9))
    opened.close()
    with pytest.raises(FileExistsError, match="already exists; add to it"):
        build_index(address, drawn(3))
    with pytest.raises(ValueError, match="no collection 'bats' .existing: birds"):
        open_index(address.replace("birds", "bats"))
    with pytest.raises(ValueError, match="row 2 contains NaN"):
        build_index(address, np.array([[1.0, 0.0], [0.0, 1.0], [np.nan, 0.0]], np.float32), overwrite=True)
    kept = open_index(address)
    assert len(kept) == 9
    kept.close()
    smaller = build_index(address, drawn(3, dim=4), overwrite=True)
    assert (len(smaller), smaller.dim) == (3, 4)
    smaller.close()


@pytest.mark.parametrize(
    ("address", "match"),
    [
        ("qdrant://127.0.0.1:9/birds", "no Qdrant server answers at http://127.0.0.1:9 .*check the address"),
        ("milvus://127.0.0.1:9/birds", "no Milvus answers at http://127.0.0.1:9 .*check the address"),
    ],
)
def test_a_server_that_is_not_there_is_said_to_be_missing_soon(address, match):
    pytest.importorskip("qdrant_client" if address.startswith("qdrant") else "pymilvus")
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=match):
        open_index(address, timeout=1)
    with pytest.raises(ConnectionError, match=match):
        build_index(address, drawn(3), timeout=1)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (b"<html>", "what answers at http://127.0.0.1:[0-9]+ is not Qdrant; check the port"),
        (b'{"title": "", "version": "1.7.4"}', "is version 1.7.4, too old for suprank; update it to 1.10 or later"),
    ],
)
def test_what_is_not_qdrant_or_too_old_is_said_to_be(answer, match):
    pytest.importorskip("qdrant_client")

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(OSError, match=match):
            open_index(f"qdrant://127.0.0.1:{server.server_port}/birds")
        thread.join()


def test_a_milvus_that_is_too_old_is_said_to_be():
    client = SimpleNamespace(get_server_version=lambda timeout: "v2.2.16", close=lambda: None)
    with pytest.raises(OSError, match="http://h:19530 is version v2.2.16, too old for suprank; update it to 2.3 or later"):
        _refuse_old_server(Address.parse("milvus://h/b"), client, 1)


@pytest.mark.parametrize("server", ["qdrant", "milvus"])
def test_a_server_that_never_answers_is_not_waited_for_forever(server):
    pytest.importorskip("qdrant_client" if server == "qdrant" else "pymilvus")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(ConnectionError, match="allow more time"):
            open_index(f"{server}://127.0.0.1:{silent.getsockname()[1]}/birds", timeout=1)
        assert time.monotonic() - began < 20


@pytest.mark.parametrize(("module", "address"), [("qdrant_client", "qdrant://h/b"), ("pymilvus", "milvus://h/b")])
def test_without_a_client_the_extra_is_named(module, address, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=r"suprank\[servers\]"):
        open_index(address)


def test_addresses_are_read_part_by_part(monkeypatch):
    parse = Address.parse
    assert (parse("qdrant://h:1/b").url, parse("qdrant+https://h/b").url) == ("http://h:1", "https://h:6333")
    assert (parse("milvus://h/b").url, parse("milvus+https://[::1]:5/b").url) == ("http://h:19530", "https://[::1]:5")
    assert parse("qdrant+file:///a%20b/c/birds").file == "/a b/c"
    assert parse("milvus://h/b").key is None
    monkeypatch.setenv("MILVUS_TOKEN", "secret")
    assert parse("milvus://h/b").key == "secret"


@pytest.mark.parametrize(
    ("address", "match"),
    [
        ("http://host/birds", "not the address of an index; give a folder, qdrant://host:6333/collection"),
        ("qdrant+ftp://host/birds", "not the address of an index"),
        ("milvus+memory:///birds", "not the address of an index"),
        ("qdrant://host", "must end with a collection"),
        ("qdrant://host/two words", "must end with a collection"),
        ("qdrant://host/a/birds", "not the address of a server"),
        ("qdrant:/host/birds", "not the address of a server; write qdrant://host:6333/collection"),
        ("milvus+https:host/birds", "not the address of a server"),
        ("qdrant://host:port/birds", "not the address of a server"),
        ("qdrant://user:secret@host/birds", "not the address of a server"),
        ("qdrant+file://birds", "must end with a collection"),
        ("qdrant+file:///birds", "has no file or folder"),
        ("milvus+file:///tmp/m/birds", "ends in .db"),
    ],
)
def test_what_is_no_address_is_refused(address, match):
    with pytest.raises(ValueError, match=match):
        open_index(address)


def test_a_server_chooses_its_own_kind():
    with pytest.raises(ValueError, match="a server chooses the kind"):
        build_index("qdrant+memory:///b", drawn(3), kind="ivf")
    with pytest.raises(ValueError, match="a server chooses the kind"):
        build_index("qdrant+memory:///b", drawn(3), codes="int8")
