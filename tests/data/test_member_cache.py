"""The cache of lists of members: used if it fits the archive, made again if not, never in the way; and what it saves."""

import io
import os
import pickle
import tarfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suprank.data import Manifest, archives, check_manifest, member_cache
from suprank.data.archives import Archive, UnreadableArchiveError
from suprank.data.image_files import ImageFiles, find_files
from suprank.data.importers import FOLDER
from suprank.data.member_cache import SUFFIX, cache_file
from suprank.explorer.images import read_picture
from tests.data.pictures import encoded, smooth
from tests.explorer.runs import of_arrays

CONTENT = {f"jay/{number:03}.png": b"content %d" % number for number in range(100)}
CHANGED = 1_000_000_000


def packed(path, content=CONTENT, changed=CHANGED):
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in content.items():
                archive.writestr(zipfile.ZipInfo(name), data)
    else:
        with tarfile.open(path, "w") as archive:
            for name, data in content.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    os.utime(path, (changed, changed))
    return path


@pytest.fixture(params=["x.zip", "x.tar"])
def path(request, tmp_path):
    return tmp_path / request.param


@pytest.fixture
def lists(tmp_path, monkeypatch):
    """The archives that were listed, not read from the cache, in small archives too."""
    done = []

    def counting(function):
        return lambda path: done.append(path.name) or function(path)

    listing = {suffix: counting(function) for suffix, function in member_cache.LIST_MEMBERS.items()}
    monkeypatch.setattr(member_cache, "LIST_MEMBERS", listing)
    monkeypatch.setattr(archives, "LIST_MEMBERS", listing)
    monkeypatch.setattr(member_cache, "MIN_MEMBERS", 3)
    monkeypatch.setenv("SUPRANK_CACHE", str(tmp_path / "user"))
    new_process()
    return done


def new_process():
    member_cache._lists.clear()
    archives._open.cache_clear()


def content(path):
    archive = Archive(path)
    return {name: archive.read(name) for name in archive.members}


def test_the_next_process_reads_the_list_in_the_users_cache_and_nothing_is_beside_the_archive(path, tmp_path, lists):
    first = content(packed(path))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["user", path.name]
    assert cache_file(path).is_file()
    new_process()
    assert content(path) == first == CONTENT
    assert lists == [path.name]


@pytest.mark.parametrize(
    ("other", "changed"), [(CONTENT | {"jay/000.png": b"longer content"}, CHANGED), (CONTENT, CHANGED + 1), ({}, CHANGED)]
)
def test_the_list_of_another_size_or_time_is_not_used_and_is_replaced(path, lists, other, changed):
    content(packed(path))
    packed(path, other, changed)
    assert content(path) == other
    new_process()
    assert content(path) == other
    assert len(lists) == 3 if not other else 2, "a list of nothing is not kept"


@pytest.mark.parametrize("same_process", [True, False])
def test_another_archive_of_the_same_size_and_time_is_noticed_when_it_is_opened(path, lists, same_process):
    content(packed(path))
    other = {f"wren/{number:02}.png": data for number, data in enumerate(CONTENT.values())}
    packed(path, other)
    if not same_process:
        new_process()
    assert content(path) == other
    assert len(lists) == 2


def test_a_member_of_a_tar_that_is_another_one_now_is_noticed_when_it_is_read(tmp_path, lists):
    """Opening compares a sample of the headers."""
    path = packed(tmp_path / "x.tar", CONTENT)
    before = dict(content(path))
    data = path.read_bytes()
    _, ranges = archives.LIST_MEMBERS[".tar"](path)
    sampled = {offset for offset, _ in ranges.tolist()}
    name = next(name for number, name in enumerate(CONTENT) if 1024 * number not in sampled)
    header = data.index(name.encode())
    other = tarfile.TarInfo.frombuf(data[header : header + 512], "utf-8", "strict")
    other.name = name.replace("jay", "owl")
    path.write_bytes(data[:header] + other.tobuf() + data[header + 512 :])
    os.utime(path, (CHANGED, CHANGED))
    new_process()
    with pytest.raises(UnreadableArchiveError, match=f"x.tar: member '{name}' .*has changed since it was listed; start again"):
        content(path)
    new_process()
    assert content(path) == {key.replace("jay", "owl") if key == name else key: value for key, value in before.items()}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10_000), new=st.binary(max_size=4), cut=st.booleans())
def test_a_damaged_list_is_made_again_or_is_right(tmp_path, lists, at, new, cut):
    new_process()
    path = packed(tmp_path / "x.zip")
    content(path)
    file = cache_file(path)
    whole = file.read_bytes()
    at %= len(whole)
    file.write_bytes(whole[:at] + (b"" if cut else new + whole[at + len(new) :]))
    new_process()
    assert content(path) == CONTENT


def test_lists_of_another_format_or_with_wrong_offsets_are_not_used_even_if_their_checksums_are_right(path, lists):
    content(packed(path))
    with np.load(cache_file(path)) as saved:
        arrays = dict(saved)
    for wrong in (
        {"stamp": arrays["stamp"] + (1, 0, 0)},
        {"bounds": -arrays["bounds"]},
        {"bounds": arrays["bounds"] * 1000},
        {"entries": np.zeros((2, 5), np.int64)},
        {"ranges": -arrays["ranges"]},
        {"digest": arrays["digest"][::-1]},
    ):
        np.savez(cache_file(path), **arrays | wrong)
        new_process()
        assert content(path) == CONTENT
    assert lists == [path.name] * 7


def test_where_the_users_cache_cannot_be_written_there_is_no_list(tmp_path, path, lists, monkeypatch):
    packed(path)
    monkeypatch.setenv("SUPRANK_CACHE", str(path / "no folder"))
    for _ in range(2):
        new_process()
        assert content(path) == CONTENT
    assert lists == [path.name] * 2


def test_the_users_cache_forgets_lists_after_three_months(tmp_path, lists):
    old, left, recent = (tmp_path / "user" / "archives" / name for name in (f"1{SUFFIX}", f".2{SUFFIX}.99.tmp", f"3{SUFFIX}"))
    for file, days in ((old, 91), (left, 91), (recent, 89)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (time.time() - days * 24 * 3600,) * 2)
    content(packed(tmp_path / "x.zip"))
    assert set(recent.parent.iterdir()) == {recent, cache_file(tmp_path / "x.zip")}


def test_several_may_list_an_archive_at_once(tmp_path, path, lists):
    packed(path)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(content, [path] * 20)) == [CONTENT] * 20
    assert list((tmp_path / "user" / "archives").iterdir()) == [cache_file(path)]


def test_pickles_refer_to_the_list_and_do_without_if_it_is_gone(path, lists):
    pickled = pickle.dumps(Archive(packed(path)))
    assert len(pickled) < 1000
    for _ in range(2):  # with the list, and without
        new_process()
        assert pickle.loads(pickled).read("jay/099.png") == b"content 99"
        cache_file(path).unlink()
    assert lists == [path.name] * 2
    packed(path, {"other": b""}, CHANGED + 1)
    with pytest.raises(UnreadableArchiveError, match=f"{path.name}.* has changed since it was listed; start again"):
        pickle.loads(pickled).read("jay/099.png")


# How often an archive is listed


@pytest.fixture
def photos(tmp_path, lists):
    """A zip that cannot be cached, of 12 images."""
    names = [f"{bird}/{number}.png" for bird in ("jay", "wren") for number in range(6)]
    (tmp_path / "user").write_text("no folder")
    return packed(tmp_path / "photos.zip", dict.fromkeys(names, encoded(smooth(4, 4))))


def test_an_import_and_a_check_list_an_archive_once(photos, lists):
    report = check_manifest(FOLDER(photos).manifests[""])
    assert report.files == 12
    assert not report.missing
    assert not report.broken
    assert lists == ["photos.zip"]


def test_pictures_of_all_sizes_for_many_threads_list_an_archive_once(photos, lists):
    manifest = Manifest.from_columns(
        {"path": ["photos.zip::jay/0.png"] * 3, "split": ["test"] * 3, "label_bird": ["jay"] * 3}, root=photos.parent
    )
    images = of_arrays("zip", np.zeros((3, 2), np.float32), manifest).items
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: read_picture(images, number % 3, (None, 2, 4)[number % 3]), range(24)))
    assert {picture.size for picture in found} == {(4, 4)}
    assert lists == ["photos.zip"]


def test_images_are_found_in_one_search_for_all(photos, monkeypatch):
    manifest = FOLDER(photos).manifests[""]
    files = ImageFiles(photos.parent)
    paths = pa.concat_arrays([manifest.paths.chunk(0), pa.array(["photos.zip::none.png", "none.zip::a", "jay.png"])])
    expected = [files.read(path) for path in paths[:12].to_pylist()]
    monkeypatch.setattr(archives.Members, "entry", None)  # a search for one
    exist, indices = find_files(paths, files)
    assert [content for _, content in sorted(files.read_each(paths[:12].to_pylist(), indices[:12].tolist()))] == expected
    assert indices[12:].tolist() == [-1] * 3
    assert exist.tolist() == [True] * 12 + [False] * 3
