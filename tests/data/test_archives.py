"""Members of archives: agreement with zipfile and tarfile, what is refused and why, and reading from everywhere at once."""

import io
import os
import shutil
import struct
import subprocess
import tarfile
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.data import archives, members
from suprank.data.archives import Archive, UnreadableArchiveError, write_images_zip
from suprank.data.members import Members, normalize, tar_members, zip_members
from tests.attacks import attack

CONTENT = {"a.txt": b"alpha", "b/c.bin": bytes(range(256)) * 40, "empty": b"", "ünï/日本.jpg": b"\xff\xd8" * 99}
METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
CHARACTERS = st.one_of(st.sampled_from("ab/\\.P"), st.characters(exclude_categories=("Cs",), exclude_characters="\0"))
NAME = st.text(CHARACTERS, min_size=1, max_size=9)


def zipped(path, content=CONTENT, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def tarred(path, content=CONTENT, **options):
    with tarfile.open(path, "w", **options) as archive:
        for name, data in content.items():
            add(archive, name, data)
    return path


def add(archive, name, data=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(data))


def damaged(path, at, new):
    data = bytearray(path.read_bytes())
    data[at : at + len(new)] = new
    path.write_bytes(data)
    return path


def contents(archive):
    """Name → content, or None for what is refused."""
    found = {name.encode(errors="surrogateescape"): content_or_error(archive, name) for name in archive.members}
    assert list(found) == sorted(found)
    return {name: content if isinstance(content, bytes) else None for name, content in found.items()}


def content_or_error(archive, name):
    try:
        return archive.read(name)
    except UnreadableArchiveError as error:
        return str(error)


# What is listed


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_members_are_what_zipfile_reads(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("zip") / "x.zip"
    limit = data.draw(st.sampled_from([zipfile.ZIP64_LIMIT, 40]))  # above it, numbers go to zip64 fields
    with pytest.MonkeyPatch.context() as patch, path.open("wb") as file:
        patch.setattr(zipfile, "ZIP64_LIMIT", limit)
        file.write(data.draw(st.binary(max_size=20)))  # what stands before the zip
        with zipfile.ZipFile(file, "w") as archive:
            for name in data.draw(st.lists(NAME, max_size=6, unique=True)):
                info = zipfile.ZipInfo(name)
                info.compress_type = data.draw(st.sampled_from(METHODS if limit > 40 else METHODS[:1]))
                info.extra = data.draw(st.sampled_from([b"", b"UT\x05\0\x01\0\0\0\0", b"ux\0\0UT\x01\0x"]))
                info.comment = data.draw(st.binary(max_size=5))
                archive.writestr(info, data.draw(st.binary(max_size=50)))
            archive.comment = data.draw(st.sampled_from([b"", b"a comment", b"\0\0"]))
    with zipfile.ZipFile(path) as theirs:
        files = [info for info in theirs.infolist() if not info.filename.endswith(("/", "\\"))]
        expected = {normalize(info.filename): theirs.read(info) for info in files}
    assert contents(Archive(path)) == expected


KINDS = [tarfile.REGTYPE] * 4 + [tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE]
TAR_NAME = st.one_of(NAME, st.sampled_from(["d/" * 60 + "x.jpg", "n" * 130, "n" * 100, "b" * 90 + "/" + "c" * 90, "a", "b"]))
TAR_CONTENT = st.sampled_from([b"", b"x" * 511, b"y" * 512, b"z" * 1500])
PAX = st.sampled_from([{}, {}, {"mtime": "1.5"}, {"comment": "a = b\nc"}])


@settings(max_examples=40, deadline=None)
@given(
    packed=st.lists(st.tuples(TAR_NAME, st.sampled_from(KINDS), TAR_NAME, TAR_CONTENT, PAX), min_size=1, max_size=6),
    form=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    shared=st.sampled_from([{}, {"comment": "of all"}]),
)
def test_members_are_what_tarfile_reads_and_links_are_the_member_before_them(tmp_path_factory, packed, form, shared):
    path = tmp_path_factory.mktemp("tar") / "x.tar"
    with tarfile.open(path, "w", format=form, pax_headers=shared) as archive:
        for name, kind, target, content, pax in packed:
            add(archive, name, content if kind in tarfile.REGULAR_TYPES else b"", type=kind, linkname=target, pax_headers=pax)
    expected = {}
    with tarfile.open(path, encoding="utf-8", errors="surrogateescape") as theirs:
        for member in (one for one in theirs if not one.isdir()):
            link = expected.get(normalize(member.linkname)) if member.islnk() else None
            expected[normalize(member.name)] = theirs.extractfile(member).read() if member.isreg() else link
    assert contents(Archive(path)) == expected


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
@pytest.mark.parametrize("option", ["--format=v7", "--format=ustar", "--format=oldgnu", "--format=posix", "--sparse"])
def test_what_gnu_tar_writes_is_read(tmp_path, option):
    folder = tmp_path / "photos"
    (folder / "jay").mkdir(parents=True)
    (folder / "jay" / "1.jpg").write_bytes(b"1" * 700)
    (folder / "jay" / "linked.jpg").hardlink_to(folder / "jay" / "1.jpg")
    (folder / "jay" / "ü.jpg").write_bytes(b"")
    with (folder / "hole.jpg").open("wb") as file:
        file.truncate(1 << 20)
    subprocess.run(["tar", option, "-cf", tmp_path / "x.tar", "-C", tmp_path, "./photos"], check=True)
    hole = None if option == "--sparse" else bytes(1 << 20)
    expected = {"hole.jpg": hole, "jay/1.jpg": b"1" * 700, "jay/linked.jpg": b"1" * 700, "jay/ü.jpg": b""}
    assert contents(Archive(tmp_path / "x.tar")) == {f"photos/{name}".encode(): content for name, content in expected.items()}


def test_names_are_found_as_people_write_them(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, content in [("d/", b""), ("windows\\made.jpg", b"w"), ("a.jpg", b"old"), ("./a.jpg", b"new"), ("caf_", b"c")]:
            archive.writestr(zipfile.ZipInfo(name), content)
    path = tmp_path / "x.zip"
    path.write_bytes(path.read_bytes().replace(b"caf_", b"caf\x82"))  # in code page 437
    assert contents(Archive(path)) == {b"a.jpg": b"new", "café".encode(): b"c", b"windows/made.jpg": b"w"}
    assert list(Archive(tarred(tmp_path / "x.tar", {"./a/b.jpg": b"1", "/c.jpg": b"2"})).members) == ["a/b.jpg", "c.jpg"]


def test_a_tar_follows_hard_links_and_says_why_it_refuses_other_kinds(tmp_path):
    kinds = {"dangling": tarfile.LNKTYPE, "soft": tarfile.SYMTYPE, "pipe": tarfile.FIFOTYPE, "folder": tarfile.DIRTYPE}
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        add(archive, "file", b"1")
        add(archive, "hard", type=tarfile.LNKTYPE, linkname="file")
        for name, kind in kinds.items():
            add(archive, name, type=kind, linkname="nothing")
    found = Archive(tmp_path / "x.tar")
    assert found.read("hard") == found.read("file") == b"1"
    assert "folder" not in found.members
    for name, reason in [("dangling", "link"), ("soft", "symbolic link.*--dereference"), ("pipe", "pipe")]:
        with pytest.raises(UnreadableArchiveError, match=f"x.tar: member '{name}' is a.*{reason}"):
            found.read(name)


def test_a_tar_without_zeros_at_its_end_or_with_many_folders_is_complete(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for number in range(600):
            add(archive, f"{number}", type=tarfile.DIRTYPE)
        add(archive, "a", b"content")
    size = 600 * 512 + 1024
    (tmp_path / "x.tar").write_bytes((tmp_path / "x.tar").read_bytes()[:size])
    assert contents(Archive(tmp_path / "x.tar")) == {b"a": b"content"}


@pytest.mark.parametrize(("pack", "listed", "most"), [(zipped, zip_members, 400), (tarred, tar_members, 400)])
def test_no_object_is_kept_for_a_member(tmp_path, pack, listed, most):
    path = pack(tmp_path / "x", {f"photos/{number:09}.jpg": b"" for number in range(5000)})
    tracemalloc.start()
    try:
        assert len(listed(path)[0]) == 5000
        assert tracemalloc.get_traced_memory()[1] < most * 5000, "a ZipInfo has 600 bytes, a TarInfo 1,000"
    finally:
        tracemalloc.stop()


SHORT = st.text("abé", max_size=3)


@given(st.dictionaries(SHORT, st.integers(-1, 9), max_size=9), st.lists(SHORT, max_size=9))
def test_names_are_found_at_once_as_one_by_one(by_name, wanted):
    names = pa.array([name.encode() for name in by_name], pa.large_binary())
    listed = Members.from_names(names, np.array([[one] * 5 for one in by_name.values()], np.int64).reshape(-1, 5))
    assert {name: listed.entry(name) for name in listed} == {name: (one,) * 5 for name, one in by_name.items()}
    found = [listed.name_at(index) if index >= 0 else None for index in listed.find(pa.array(wanted, pa.string())).tolist()]
    assert found == [name if name in by_name else None for name in wanted]
    assert listed.find(pa.array(listed, pa.string())).tolist() == list(range(len(by_name)))


def test_a_long_list_is_announced_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(members, "_PATIENCE", 0.0)
    path = zipped(tmp_path / "x.zip", {f"{number}": b"" for number in range(20_000)}, zipfile.ZIP_STORED)
    assert len(zip_members(path)[0]) == 20_000
    assert caplog.messages == [f"{path} is being listed, 10,000 members so far; its list is cached for the next time"]


# What is refused


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.tar.bz2", "x.tar.xz"])
def test_archives_without_random_access_are_refused_by_name(tmp_path, name):
    with pytest.raises(UnreadableArchiveError, match=f"{name} is compressed as a whole.*no random access; unpack it"):
        Archive(tmp_path / name)


def test_other_archives_damaged_ones_and_absent_ones_say_so(tmp_path):
    with pytest.raises(UnreadableArchiveError, match=r"x.rar is not a .zip, .tar or .arrow file"):
        Archive(tmp_path / "x.rar")
    with pytest.raises(FileNotFoundError, match=r"the archive .*none.zip does not exist"):
        Archive(tmp_path / "none.zip")
    for name, content in [("x.zip", b"no zip at all"), ("x.zip", b""), ("x.tar", b"no tar" * 200), ("x.tar", b"")]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UnreadableArchiveError, match=f"{name} is not a readable {name[-3:]} file"):
            Archive(tmp_path / name)
    for name, make in (("pipe.zip", os.mkfifo), ("folder.zip", os.mkdir)):
        make(tmp_path / name)
        with pytest.raises(UnreadableArchiveError, match=f"{name} is a folder, a device or a pipe"):
            Archive(tmp_path / name)
    with tarfile.open(tmp_path / "x.tar", "w:gz"):
        pass
    with pytest.raises(UnreadableArchiveError, match="x.tar is compressed with gzip"):
        Archive(tmp_path / "x.tar")


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_a_cut_off_archive_is_refused(tmp_path, pack):
    path = pack(tmp_path / f"x.{'zip' if pack is zipped else 'tar'}", {"a": os.urandom(50_000)})
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(UnreadableArchiveError, match=f"{path.name} is not a readable"):
        Archive(path)


@pytest.mark.parametrize("damage", [lambda content: content[:3172], lambda content: content[:3080] + b"?" + content[3081:]])
def test_a_tar_that_ends_or_is_damaged_in_a_header_is_refused(tmp_path, damage):
    path = tarred(tmp_path / "x.tar", dict.fromkeys("abc", b"1" * 600))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        UnreadableArchiveError, match="x.tar is damaged or cut off at byte 3,072, after 2 members; copy it again"
    ):
        Archive(path)


def header(name="a", size=0, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (header(kind=tarfile.XHDTYPE, size=1 << 40), "has more than 65,536 bytes of headers"),
        (header(kind=tarfile.GNUTYPE_LONGNAME, size=200_000) + b"n" * 200_192 + header(), "has more than 65,536 bytes"),
        (header("b", 100) + bytes(512) + header(size=-1024) + bytes(1024), "a member before byte 1,024 leads back"),
        (header(kind=tarfile.GNUTYPE_LONGNAME) * 5000 + header(), "65,536"),  # a call within a call for each
        (header(size=1 << 62), "x.tar"),
    ],
)
def test_headers_that_claim_too_much_are_refused_at_once(tmp_path, content, said):
    (tmp_path / "x.tar").write_bytes(content + bytes(1024))
    found = attack(lambda: Archive(tmp_path / "x.tar"))
    assert found.startswith(f"UnreadableArchiveError: {tmp_path / 'x.tar'}")
    assert said in found
    assert "\n" not in found


@settings(max_examples=80, deadline=None)
@given(at=st.integers(0, 10_000), new=st.binary(min_size=1, max_size=4), cut=st.booleans(), tar=st.booleans())
def test_damage_never_raises_anything_else(tmp_path_factory, at, new, cut, tar):
    folder = tmp_path_factory.mktemp("damaged")
    path = tarred(folder / "x.tar") if tar else zipped(folder / "x.zip")
    at %= path.stat().st_size
    path.write_bytes(path.read_bytes()[:at]) if cut else damaged(path, at, new)
    try:
        archive = Archive(path)
        said = [content_or_error(archive, name) for name in archive.members]
        assert read_together(archive) == dict(zip(archive.members, said, strict=True))
    except UnreadableArchiveError as error:
        said = [str(error)]
    assert all(isinstance(one, bytes) or (path.name in one and "\n" not in one) for one in said)


def read_together(archive):
    """Name → content or error, by `read_each`."""
    names = list(archive.members)[::-1]
    found = archive.read_each(range(len(names))[::-1])
    return {names[place]: content if isinstance(content, bytes) else str(content) for place, content in found}


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (8, struct.pack("<H", 1), "is encrypted"),
        (10, struct.pack("<H", 98), "is compressed by method 98; only stored"),
        (16, bytes(4), "is damaged: its length or checksum"),
        (24, struct.pack("<I", 5), "is damaged: its length or checksum"),  # it is not unpacked any further
        (24, struct.pack("<I", 1 << 31), "has 2,147,483,648 bytes; an image has at most 1,073,741,824"),
    ],
)
def test_encrypted_members_unknown_methods_wrong_checksums_and_sizes_are_refused(tmp_path, offset, value, reason):
    path = zipped(tmp_path / "x.zip", {"a": bytes(10_000_000)})
    damaged(path, path.read_bytes().index(b"PK\1\2") + offset, value)
    assert f"member 'a' {reason}" in attack(lambda: Archive(path).read("a"), megabytes=64)


def test_a_member_whose_dictionary_would_take_gigabytes_is_refused(tmp_path):
    path = zipped(tmp_path / "x.zip", {"a.png": b"content"}, zipfile.ZIP_LZMA)
    properties = b"\x05\0\x5d\0\0\x80\0"
    damaged(path, path.read_bytes().index(properties) + 3, b"\xff" * 4)
    assert "x.zip: member 'a.png' is damaged (Memory usage limit" in attack(lambda: Archive(path).read("a.png"))


# Reading


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


def test_an_archive_written_to_since_it_was_listed_is_not_read_at_old_offsets(tmp_path):
    archive = Archive(zipped(tmp_path / "x.zip", {"a": b"old"}))
    zipped(tmp_path / "x.zip", {"b": b"newer", "a": b"new"})
    with pytest.raises(UnreadableArchiveError, match="has changed since it was listed"):
        archive.read("a")
    assert Archive(tmp_path / "x.zip").read("a") == b"new"


def test_more_archives_than_stay_open_are_read_by_many_threads(tmp_path):
    count = archives.OPEN_AT_ONCE + 16
    listed = [Archive(zipped(tmp_path / f"{n}.zip", {"a": bytes([n]) * 100})) for n in range(count)]
    before = open_files()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: listed[n % count].read("a")[0], range(20 * count)))
    assert found == [n % count for n in range(20 * count)]
    assert open_files() <= before + archives.OPEN_AT_ONCE


def open_files():
    """How many this process has open, where the system tells."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir()) if Path("/proc/self/fd").is_dir() else 0


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


def test_archives_of_equal_images_are_equal_to_the_byte(tmp_path):
    images = [("a/b.png", b"first"), ("c.png", b"second")]
    (tmp_path / "again").mkdir()
    assert write_images_zip(tmp_path, images) == ["images.zip::a/b.png", "images.zip::c.png"]
    write_images_zip(tmp_path / "again", images)
    assert (tmp_path / "images.zip").read_bytes() == (tmp_path / "again" / "images.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "images.zip") as archive:
        assert archive.read("c.png") == b"second"
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
