"""The cache of lists of members: used if it fits the archive, made again if not, never in the way; and what it saves."""

import os
import pickle
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from suprank.data import Manifest, archives, check_manifest, member_cache
from suprank.data.archives import Archive, UnreadableArchiveError
from suprank.data.image_files import ImageFiles, find_files
from suprank.data.importers import FOLDER
from suprank.data.member_cache import SUFFIX, cache_file
from suprank.explorer.images import Images

CONTENT = {f"jay/{number}.png": b"content %d" % number for number in range(20)}


def zipped(path, content=None, changed=1_000_000_000):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (content or CONTENT).items():
            archive.writestr(name, data)
    os.utime(path, (changed, changed))  # an archive of just now is not cached
    return path


@pytest.fixture
def lists(tmp_path, monkeypatch):
    """The archives that were listed, not read from the cache, in small archives too."""
    done = []

    def counting(kind):
        return kind._replace(list_members=lambda path: done.append(path.name) or kind.list_members(path))

    monkeypatch.setattr(archives, "_KINDS", {suffix: counting(kind) for suffix, kind in archives._KINDS.items()})
    monkeypatch.setattr(member_cache, "MIN_MEMBERS", 3)
    monkeypatch.setenv("SUPRANK_CACHE", str(tmp_path / "user"))
    new_process()
    return done


def new_process():
    archives._list_once.cache_clear()
    archives._open.cache_clear()


def content(archive):
    return {name: archive.read(name) for name in archive.members}


def test_the_next_process_reads_the_list_in_the_users_cache_and_nothing_is_beside_the_archive(tmp_path, lists):
    first = Archive(zipped(tmp_path / "x.zip"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["user", "x.zip"]
    assert cache_file(tmp_path / "x.zip").is_file()
    new_process()
    second = Archive(tmp_path / "x.zip")
    assert content(first) == content(second) == CONTENT
    assert lists == ["x.zip"]


@pytest.mark.parametrize(
    ("other", "changed"), [(CONTENT | {"jay/0.png": b"longer content"}, 1_000_000_000), (CONTENT, 1_000_000_001)]
)
def test_the_list_of_another_size_or_time_is_not_used_and_is_replaced(tmp_path, lists, other, changed):
    Archive(zipped(tmp_path / "x.zip"))
    zipped(tmp_path / "x.zip", other, changed)
    assert content(Archive(tmp_path / "x.zip")) == other
    new_process()
    assert content(Archive(tmp_path / "x.zip")) == other
    assert lists == ["x.zip"] * 2


def test_a_list_of_another_format_is_not_used(tmp_path, lists, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(member_cache, "FORMAT", member_cache.FORMAT + 1)
        Archive(zipped(tmp_path / "x.zip"))
    for _ in range(2):
        new_process()
        assert content(Archive(tmp_path / "x.zip")) == CONTENT
    assert lists == ["x.zip"] * 2


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10_000), new=st.binary(max_size=4), cut=st.booleans())
def test_a_damaged_list_is_made_again_or_is_right(tmp_path, lists, at, new, cut):
    new_process()
    path = zipped(tmp_path / "x.zip")
    Archive(path)
    file = cache_file(path)
    whole = file.read_bytes()
    at %= len(whole)
    file.write_bytes(whole[:at] + (b"" if cut else new + whole[at + len(new) :]))
    new_process()
    assert content(Archive(path)) == CONTENT


def test_lists_with_wrong_offsets_are_refused_even_if_their_checksums_are_right(tmp_path, lists):
    path = zipped(tmp_path / "x.zip")
    archive = Archive(path)
    arrays = archive.members.to_arrays() | {"stamp": np.array([member_cache.FORMAT, *archive._version])}
    for wrong in ({"bounds": -arrays["bounds"]}, {"bounds": arrays["bounds"] * 1000}, {"entries": np.zeros((2, 5), np.int64)}):
        np.savez(cache_file(path), **arrays | wrong)
        new_process()
        assert content(Archive(path)) == CONTENT


def test_a_forged_list_beside_an_archive_is_not_read(tmp_path, lists):
    path = zipped(tmp_path / "x.zip")
    planted = Archive(zipped(tmp_path / "other.zip", {"planted.png": b""})).members.to_arrays()
    status = path.stat()
    stamp = np.array([member_cache.FORMAT, status.st_mtime_ns, status.st_size])
    np.savez(tmp_path / ".x.zip.suprank.npz", **planted, stamp=stamp)
    assert content(Archive(path)) == CONTENT


def test_where_the_users_cache_cannot_be_written_there_is_no_list(tmp_path, lists, monkeypatch):
    path = zipped(tmp_path / "x.zip")
    monkeypatch.setenv("SUPRANK_CACHE", str(path / "no folder"))
    for _ in range(2):
        new_process()
        assert content(Archive(path)) == CONTENT
    assert lists == ["x.zip"] * 2


def test_the_users_cache_forgets_lists_after_three_months(tmp_path, lists):
    old, left, recent = (tmp_path / "user" / "archives" / name for name in (f"1{SUFFIX}", f".2{SUFFIX}.99.tmp", f"3{SUFFIX}"))
    for file, days in ((old, 91), (left, 91), (recent, 89)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (time.time() - days * 24 * 3600,) * 2)
    path = zipped(tmp_path / "x.zip")
    Archive(path)
    assert set(recent.parent.iterdir()) == {recent, cache_file(path)}


def test_small_archives_and_those_of_just_now_are_not_cached(tmp_path, lists, monkeypatch):
    monkeypatch.setattr(member_cache, "_SETTLED", 10**15)  # a busy machine may take longer than two seconds
    Archive(zipped(tmp_path / "small.zip", {"a": b""}))
    with zipfile.ZipFile(tmp_path / "new.zip", "w") as archive:
        archive.writestr("a", b"old")
    assert content(Archive(tmp_path / "new.zip")) == {"a": b"old"}
    zipped(tmp_path / "new.zip", dict.fromkeys("abc", b""), (tmp_path / "new.zip").stat().st_mtime)
    Archive(tmp_path / "new.zip")
    assert not (tmp_path / "user").exists()


def test_a_crash_while_writing_leaves_no_list(tmp_path, lists, monkeypatch):
    def crash(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", crash)
    with pytest.raises(KeyboardInterrupt):
        Archive(zipped(tmp_path / "x.zip"))
    assert not any((tmp_path / "user" / "archives").iterdir())


def test_several_may_write_one_list_at_once(tmp_path, lists):
    archive = Archive(zipped(tmp_path / "x.zip"))
    cache_file(archive.path).unlink()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: member_cache.save_list(archive.path, archive._version, archive.members), range(40)))
    assert list((tmp_path / "user" / "archives").iterdir()) == [cache_file(archive.path)]
    new_process()
    assert content(Archive(archive.path)) == CONTENT
    assert lists == ["x.zip"]


def test_pickles_refer_to_the_list_and_do_without_if_it_is_gone(tmp_path, lists):
    path = zipped(tmp_path / "x.zip", {f"{number:05}": b"1" for number in range(2000)})
    pickled = pickle.dumps(Archive(path))
    assert len(pickled) < 1000
    new_process()
    assert pickle.loads(pickled).read("01999") == b"1"
    assert lists == ["x.zip"]
    new_process()
    cache_file(path).unlink()
    assert pickle.loads(pickled).read("01999") == b"1"
    assert lists == ["x.zip"] * 2
    zipped(path, {"other": b""})
    for _ in range(2):  # with the list, and without
        new_process()
        with pytest.raises(UnreadableArchiveError, match=r"x.zip.* has changed since it was listed; start again"):
            pickle.loads(pickled).read("01999")
        cache_file(path).unlink(missing_ok=True)


# How often an archive is listed


@pytest.fixture
def photos(tmp_path, lists):
    """A zip that cannot be cached, of 12 images."""
    picture = BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    names = [f"{bird}/{number}.png" for bird in ("jay", "wren") for number in range(6)]
    path = zipped(tmp_path / "photos.zip", dict.fromkeys(names, picture.getvalue()))
    (tmp_path / "user").write_text("no folder")
    return path


def test_an_import_and_a_check_list_an_archive_once(photos, lists):
    manifest = FOLDER(photos).manifests[""]
    report = check_manifest(manifest)
    assert report.files == 12
    assert not report.missing
    assert not report.broken
    assert lists == ["photos.zip"]


def test_pictures_of_all_sizes_for_many_threads_list_an_archive_once(photos, lists):
    manifest = Manifest.from_columns(
        {"path": ["photos.zip::jay/0.png"] * 3, "split": ["test"] * 3, "label_bird": ["jay"] * 3}, root=photos.parent
    )
    images = Images(np.zeros((3, 2), np.float32), manifest.labels, manifest)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: images.picture(number % 3, (None, 2, 4)[number % 3]), range(24)))
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
