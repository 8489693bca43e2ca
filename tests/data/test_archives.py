"""Members of archives: agreement with zipfile and tarfile, what is refused and why, and reading from everywhere at once."""

import io
import os
import pickle
import struct
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.data import archives
from suprank.data.archives import Archive, UnreadableArchiveError, write_images_zip
from tests.attacks import attack

CONTENT = {"a.txt": b"alpha", "b/c.bin": bytes(range(256)) * 40, "empty": b"", "ünï/日本.jpg": b"\xff\xd8" * 99}


def zipped(path, content=None, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in (content or CONTENT).items():
            archive.writestr(name, data)
    return path


def tarred(path, content=None, **options):
    with tarfile.open(path, "w", **options) as archive:
        for name, data in (content or CONTENT).items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def damaged(path, at, new):
    data = bytearray(path.read_bytes())
    data[at : at + len(new)] = new
    path.write_bytes(data)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_are_what_zipfile_reads(tmp_path, method):
    path = zipped(tmp_path / "x.zip", method=method)
    archive = Archive(path)
    assert list(archive.members) == sorted(CONTENT, key=str.encode)
    with zipfile.ZipFile(path) as theirs:
        assert {name: archive.read(name) for name in archive.members} == {name: theirs.read(name) for name in theirs.namelist()}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_what_tarfile_reads_long_names_too(tmp_path, form):
    content = CONTENT | {"folder/" * 20 + "deep.jpg": b"deep"}
    path = tarred(tmp_path / "x.tar", content, format=form)
    archive = Archive(path)
    with tarfile.open(path) as theirs:
        assert {name: archive.read(name) for name in archive.members} == {
            member.name: theirs.extractfile(member).read() for member in theirs
        }


@settings(max_examples=30, deadline=None)
@given(
    content=st.dictionaries(
        st.text(st.characters(categories=("L", "N")), min_size=1, max_size=8), st.binary(max_size=300), min_size=1, max_size=8
    ),
    absent=st.text(st.characters(categories=("L", "N")), min_size=1, max_size=8),
)
def test_whatever_is_packed_is_read_and_nothing_else(tmp_path_factory, content, absent):
    folder = tmp_path_factory.mktemp("packed")
    for archive in (Archive(zipped(folder / "x.zip", content)), Archive(tarred(folder / "x.tar", content))):
        assert {name: archive.read(name) for name in archive.members} == content
        assert (absent in archive.members) == (absent in content)


def test_names_are_found_as_people_write_them(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("folder/", b"")
        archive.writestr(zipfile.ZipInfo("windows\\made.jpg"), b"w")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("twice", b"old"), archive.writestr("twice", b"new")
    found = Archive(tmp_path / "x.zip")
    assert list(found.members) == ["twice", "windows/made.jpg"]
    assert (found.read("twice"), found.read("windows/made.jpg")) == (b"new", b"w")
    assert list(Archive(tarred(tmp_path / "x.tar", {"./a/b.jpg": b"1", "/c.jpg": b"2"})).members) == ["a/b.jpg", "c.jpg"]


def test_a_zip_with_zip64_fields_or_something_before_it_is_read(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive, archive.open("big", "w", force_zip64=True) as member:
        member.write(b"64")
    path.write_bytes(b"#!/bin/sh: unpacks itself\n" + path.read_bytes())
    assert Archive(path).read("big") == b"64"


def test_a_tar_follows_hard_links_and_refuses_other_kinds(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.addfile(info := tarfile.TarInfo("file"), None)
        for name, kind, target in [
            ("hard", tarfile.LNKTYPE, "file"),
            ("dangling", tarfile.LNKTYPE, "nothing"),
            ("soft", tarfile.SYMTYPE, "file"),
            ("pipe", tarfile.FIFOTYPE, ""),
            ("folder", tarfile.DIRTYPE, ""),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    found = Archive(tmp_path / "x.tar")
    assert found.read("hard") == found.read("file") == b""
    assert "folder" not in found.members
    for name, reason in [("dangling", "link"), ("soft", "symbolic link.*--dereference"), ("pipe", "pipe")]:
        with pytest.raises(UnreadableArchiveError, match=f"x.tar: member '{name}' is a.*{reason}"):
            found.read(name)


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.tar.bz2", "x.tar.xz"])
def test_archives_without_random_access_are_refused_by_name(tmp_path, name):
    with pytest.raises(UnreadableArchiveError, match=f"{name} is compressed as a whole.*no random access; unpack it"):
        Archive(tmp_path / name)


def test_a_compressed_tar_that_hides_its_ending_is_refused_by_content(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w:gz"):
        pass
    with pytest.raises(UnreadableArchiveError, match="x.tar is compressed with gzip"):
        Archive(tmp_path / "x.tar")


def test_other_archives_damaged_ones_and_absent_ones_say_so(tmp_path):
    with pytest.raises(UnreadableArchiveError, match=r"x.rar is not a .zip, .tar or .arrow file"):
        Archive(tmp_path / "x.rar")
    with pytest.raises(FileNotFoundError, match=r"the archive .*none.zip does not exist"):
        Archive(tmp_path / "none.zip")
    for name, content in [("x.zip", b"no zip at all"), ("x.zip", b""), ("x.tar", b"no tar" * 200), ("x.tar", b"")]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UnreadableArchiveError, match=f"{name} is not a readable {name[-3:]} file"):
            Archive(tmp_path / name)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_a_cut_off_archive_is_refused(tmp_path, pack):
    path = pack(tmp_path / f"x.{'zip' if pack is zipped else 'tar'}", {"a": os.urandom(50_000)})
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(UnreadableArchiveError, match=f"{path.name} is not a readable"):
        Archive(path)


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 10_000), new=st.binary(min_size=1, max_size=4), tar=st.booleans())
def test_damage_never_raises_anything_else(tmp_path_factory, at, new, tar):
    folder = tmp_path_factory.mktemp("damaged")
    path = tarred(folder / "x.tar") if tar else zipped(folder / "x.zip")
    damaged(path, at % path.stat().st_size, new)
    said = path.name
    try:
        archive = Archive(path)
        assert read_together(archive) == {name: content_or_error(archive, name) for name in archive.members}
        for name in archive.members:
            archive.read(name)
    except UnreadableArchiveError as error:
        said = str(error)
    assert path.name in said


def content_or_error(archive, name):
    try:
        return archive.read(name)
    except UnreadableArchiveError as error:
        return str(error)


def read_together(archive):
    """Name → content or error, by `read_each`."""
    names = list(archive.members)[::-1]
    found = archive.read_each(range(len(names))[::-1])
    return {names[place]: content if isinstance(content, bytes) else str(content) for place, content in found}


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_small_members_near_each_other_are_read_by_one_system_call(tmp_path, monkeypatch, pack):
    content = {f"{number:03}.jpg": bytes([number]) * number for number in range(200)} | {"large": bytes(100_000), "z": b"last"}
    archive = Archive(pack(tmp_path / ("x.zip" if pack is zipped else "x.tar"), content))
    calls, read = [], archives._read_at
    monkeypatch.setattr(archives, "_read_at", lambda *given: calls.append(given) or read(*given))
    assert read_together(archive) == content
    assert len(calls) < 10
    os.utime(archive.path, (0, 0))
    archives._open.cache_clear()
    assert all("has changed since it was listed" in said for said in read_together(archive).values())


def test_a_member_whose_content_changed_fails_its_checksum(tmp_path):
    path = zipped(tmp_path / "x.zip", {"a": b"content"}, zipfile.ZIP_STORED)
    damaged(path, path.read_bytes().index(b"content"), b"CONTENT")
    with pytest.raises(UnreadableArchiveError, match="x.zip: member 'a' is damaged: its length or checksum"):
        Archive(path).read("a")


def test_encrypted_members_and_unknown_methods_are_refused(tmp_path):
    for offset, value, reason in [(8, 1, "is encrypted"), (10, 98, "is compressed by method 98; only stored")]:
        path = zipped(tmp_path / "x.zip", {"a": b"content"})
        central = path.read_bytes().index(b"PK\1\2")
        damaged(path, central + offset, struct.pack("<H", value))
        with pytest.raises(UnreadableArchiveError, match=f"member 'a' {reason}"):
            Archive(path).read("a")


def test_a_member_that_unpacks_to_more_than_any_image_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_BYTES", 1000)
    path = zipped(tmp_path / "x.zip", {"bomb": bytes(1001), "fine": bytes(1000)})
    assert Archive(path).read("fine") == bytes(1000)
    with pytest.raises(UnreadableArchiveError, match="member 'bomb' has 1,001 bytes; an image has at most 1,000"):
        Archive(path).read("bomb")


def test_a_member_that_lies_about_its_size_is_not_unpacked_further(tmp_path):
    path = zipped(tmp_path / "x.zip", {"a": bytes(10_000_000)})
    damaged(path, path.read_bytes().index(b"PK\1\2") + 24, struct.pack("<I", 5))
    with pytest.raises(UnreadableArchiveError, match="its length or checksum"):
        Archive(path).read("a")


def test_an_archive_written_to_since_it_was_listed_is_not_read_at_old_offsets(tmp_path):
    archive = Archive(zipped(tmp_path / "x.zip", {"a": b"old"}))
    zipped(tmp_path / "x.zip", {"b": b"newer", "a": b"new"})
    with pytest.raises(UnreadableArchiveError, match="has changed since it was listed"):
        archive.read("a")
    assert Archive(tmp_path / "x.zip").read("a") == b"new"


def open_files():
    """How many this process has open, where the system tells."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir()) if Path("/proc/self/fd").is_dir() else 0


def test_more_archives_than_stay_open_are_read_by_many_threads(tmp_path):
    count = archives.OPEN_AT_ONCE + 16
    listed = [Archive(zipped(tmp_path / f"{n}.zip", {"a": bytes([n]) * 100})) for n in range(count)]
    before = open_files()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: listed[n % count].read("a")[0], range(20 * count)))
    assert found == [n % count for n in range(20 * count)]
    assert open_files() <= before + archives.OPEN_AT_ONCE


def _read_in_child(archive, names, answers):
    answers.put([archive.read(name) for name in names])


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_and_spawned_processes_read_while_the_parent_does(tmp_path, start):
    archive = Archive(zipped(tmp_path / "x.zip"))
    names = list(archive.members)
    expected = [archive.read(name) for name in names]  # opens the descriptor that a fork inherits
    context = get_context(start)
    answers = context.Queue()
    children = [context.Process(target=_read_in_child, args=(archive, names * 20, answers)) for _ in range(2)]
    for child in children:
        child.start()
    assert [archive.read(name) for name in names * 20] == expected * 20
    assert [answers.get(timeout=60) for _ in children] == [expected * 20] * 2
    for child in children:
        child.join()


def test_pickles_are_compact(tmp_path):
    archive = Archive(zipped(tmp_path / "x.zip", {f"folder/{n:05}.jpg": b"" for n in range(2000)}))
    pickled = pickle.dumps(archive)
    assert len(pickled) < 2000 * (len("folder/00000.jpg") + 48) + 2000
    assert pickle.loads(pickled).read("folder/01999.jpg") == b""


def test_archives_of_equal_images_are_equal_to_the_byte(tmp_path):
    images = [("a/b.png", b"first"), ("c.png", b"second")]
    (tmp_path / "again").mkdir()
    assert write_images_zip(tmp_path, images) == ["images.zip::a/b.png", "images.zip::c.png"]
    write_images_zip(tmp_path / "again", images)
    assert (tmp_path / "images.zip").read_bytes() == (tmp_path / "again" / "images.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "images.zip") as archive:
        assert archive.read("c.png") == b"second"
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}


def test_a_member_whose_dictionary_would_take_gigabytes_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.png", b"content")
    data = (tmp_path / "x.zip").read_bytes()
    properties = b"\x05\0\x5d\0\0\x80\0"
    assert data.count(properties) == 1
    (tmp_path / "x.zip").write_bytes(data.replace(properties, properties[:3] + b"\xff" * 4))
    assert "x.zip: member 'a.png' is damaged (Memory usage limit" in attack(lambda: Archive(tmp_path / "x.zip").read("a.png"))
