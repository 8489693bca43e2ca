"""Folders and object stores do the same, as far as anyone relies on it."""

import os
import threading
from pathlib import Path

import pytest

from suprank.files.storage import FolderStorage, RemoteStorage, check_local, is_url, local_folder, open_storage
from tests.files import buckets


@pytest.fixture(params=["folder", "without links", "bucket", "local"])
def storage(request, tmp_path, monkeypatch):
    buckets.empty()
    if request.param == "without links":
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError))
    places = {"bucket": "bucket://b/run", "local": f"local://{tmp_path}/run"}
    return open_storage(places.get(request.param, tmp_path / "run"))


def test_files_are_written_read_listed_and_deleted(storage):
    assert storage.read("a/x.json") is None
    assert storage.size("a/x.json") is None
    assert storage.sizes("a") == {}
    storage.write("a/x.json", b"one")
    storage.write("a/x.json", b"three")
    storage.write("a/b/y", b"")
    assert storage.read("a/x.json") == b"three"
    assert storage.size("a/x.json") == 5
    assert storage.sizes("a") == {"x.json": 5}
    storage.delete("a/x.json")
    storage.delete("a/x.json")
    assert storage.sizes("a") == {}
    assert storage.address("a/x").endswith("run/a/x")


def test_only_one_of_many_creates_a_file(storage):
    won, start = [], threading.Barrier(8)

    def create(number):
        start.wait()
        if storage.create("claims/1", f"machine {number}".encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not (isinstance(storage, RemoteStorage) and "local" in storage.url):  # fsspec looks, then writes: not exclusive
        assert len(won) == 1
        assert storage.read("claims/1") == f"machine {won[0]}".encode()
    assert not storage.create("claims/1", b"late")
    assert list(storage.sizes("claims")) == ["1"]


def test_addresses_and_paths_are_told_apart():
    assert all(map(is_url, ("s3://b/x", "gs://b", "simplecache::s3://b/x")))
    assert not any(map(is_url, ("a/b", "C:/x", "C:\\x", "run::2", "a/s3://b")))
    assert not is_url(Path("s3://b/x"))
    assert local_folder("file:///tmp/x") == Path("/tmp/x")
    assert local_folder("s3://b/x") is None
    assert isinstance(open_storage("file:///tmp/x"), FolderStorage)


@pytest.mark.parametrize("place", ["s3://b/x", Path("s3://b/x"), "simplecache::s3://b/x"])
def test_what_only_reads_local_files_refuses_an_address_with_a_way_out(place):
    with pytest.raises(ValueError, match=r"s3://b/x is not on this machine; copy it into a folder first"):
        check_local(place)


def test_paths_that_look_like_addresses_are_local_if_they_are_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:/b").mkdir(parents=True)
    for place in (Path("s3:/b"), "C:/x", "a/b", "run::2", "file:///tmp/x"):
        check_local(place)


@pytest.mark.parametrize("url", ["nosuch://bucket/x", "s3a1://x"])
def test_an_address_that_nobody_knows_is_refused(url):
    with pytest.raises(ValueError, match=r"cannot be opened \(Protocol not known"):
        open_storage(url)
