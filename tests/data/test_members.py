"""Lists of members are those of zipfile and tarfile, for every kind of archive and for damaged ones, only faster."""

import io
import shutil
import subprocess
import tarfile
import tracemalloc
import zipfile
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.data import tar_members, zip_members
from suprank.data.members import Members, UnreadableArchiveError, join_slices, normalize, normalize_all, split_folders
from suprank.data.tar_members import list_with_tarfile
from suprank.data.zip_members import list_with_zipfile

CHARACTERS = st.one_of(st.sampled_from("ab/\\.P"), st.characters(exclude_categories=("Cs",), exclude_characters="\0"))
NAME = st.text(CHARACTERS, min_size=1, max_size=9)


def listed(members):
    """Name → entry, and that the arrays are in order."""
    names = members.to_arrow().to_pylist()
    assert names == sorted(set(names))
    return dict(zip(names, map(tuple, members.entries.tolist()), strict=True))


@contextmanager
def without(monkeypatch, module, name):
    """No use of the slow list."""

    def unexpected(path):
        raise AssertionError(f"{path} was left to {name}")

    with monkeypatch.context() as patch:
        patch.setattr(module, name, unexpected)
        yield


# Zip


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_zip_is_listed_as_by_zipfile(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("zip") / "x.zip"
    limit = data.draw(st.sampled_from([zipfile.ZIP64_LIMIT, 40]))  # above it, numbers go to zip64 fields
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zipfile, "ZIP64_LIMIT", limit)
        with path.open("wb") as file:
            file.write(data.draw(st.binary(max_size=20)))  # what stands before the zip
            with zipfile.ZipFile(file, "w") as archive:
                for name in data.draw(st.lists(NAME, max_size=6, unique=True)):
                    info = zipfile.ZipInfo(name)
                    info.compress_type = data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
                    info.extra = data.draw(st.sampled_from([b"", b"UT\x05\0\x01\0\0\0\0", b"ux\0\0UT\x01\0x"]))
                    # With the signature of a record, which Hypothesis finds in our source, it would be left to zipfile.
                    info.comment = data.draw(st.binary(max_size=5).filter(lambda text: b"PK\1\2" not in text))
                    archive.writestr(info, data.draw(st.binary(max_size=50)))
                archive.comment = data.draw(st.sampled_from([b"", b"a comment", b"\0\0"]))
        with without(patch, zip_members, "list_with_zipfile"):
            found = listed(zip_members.zip_members(path))
    with zipfile.ZipFile(path) as archive:
        expected = {
            normalize(info.filename.encode()): (info.header_offset, info.compress_size, info.file_size, info.CRC)
            for info in archive.infolist()
            if not info.filename.replace("\\", "/").endswith("/")
        }
    assert {name: entry[:4] for name, entry in found.items()} == expected
    assert found == listed(list_with_zipfile(path))


def test_of_two_members_with_one_name_the_later_counts_and_names_may_be_in_code_page_437(tmp_path, monkeypatch):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in [("caf_.jpg", b"1"), ("a.jpg", b"old"), ("./a.jpg", b"newer"), ("./caf_.jpg", b"22")]:
            archive.writestr(name, content)
    path.write_bytes(path.read_bytes().replace(b"caf_", b"caf\x82"))
    with without(monkeypatch, zip_members, "list_with_zipfile"):
        found = listed(zip_members.zip_members(path))
    assert {name.decode(): entry[2] for name, entry in found.items()} == {"a.jpg": 5, "café.jpg": 2}
    assert found == listed(list_with_zipfile(path))


@pytest.mark.parametrize(
    "change",
    [
        {"comment": b"with PK\1\2, the signature of an entry"},
        {"extra": b"up\x05\0\x01\0\0\0\0"},  # a Unicode path, for versions of Python that read it
        {"filename": "PK\1\2.jpg"},
    ],
)
def test_what_is_unusual_is_left_to_zipfile(tmp_path, change):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        info = zipfile.ZipInfo("a.jpg")
        for name, value in change.items():
            setattr(info, name, value)
        archive.writestr(info, b"content")
        archive.writestr("b.jpg", b"more")
    found = listed(zip_members.zip_members(tmp_path / "x.zip"))
    assert found == listed(list_with_zipfile(tmp_path / "x.zip"))
    assert len(found) == 2


def test_an_empty_zip_has_no_members(tmp_path):
    zipfile.ZipFile(tmp_path / "x.zip", "w").close()
    assert listed(zip_members.zip_members(tmp_path / "x.zip")) == {}


# Tar


def tar_file(path, members, **options):
    with tarfile.open(path, "w", **options) as archive:
        for name, kind, target, content, pax in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.pax_headers = kind, target, pax
            info.size = len(content) if kind in tarfile.REGULAR_TYPES else 0
            archive.addfile(info, io.BytesIO(content))
    return path


KINDS = [tarfile.REGTYPE] * 4 + [tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, b"Z"]
TAR_NAME = st.one_of(NAME, st.sampled_from(["d/" * 60 + "x.jpg", "n" * 130, "n" * 100, "b" * 90 + "/" + "c" * 90, "a", "b"]))


@settings(max_examples=40, deadline=None)
@given(
    members=st.lists(
        st.tuples(
            TAR_NAME,
            st.sampled_from(KINDS),
            TAR_NAME,
            st.sampled_from([b"", b"x" * 511, b"x" * 512, b"x" * 1500]),
            st.sampled_from([{}, {}, {"mtime": "1.5"}, {"comment": "a = b\nc"}]),
        ),
        min_size=1,
        max_size=6,
    ),
    form=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    shared=st.sampled_from([{}, {"comment": "of all"}]),
)
def test_a_tar_is_listed_as_by_tarfile(tmp_path_factory, members, form, shared):
    path = tar_file(tmp_path_factory.mktemp("tar") / "x.tar", members, format=form, pax_headers=shared)
    with pytest.MonkeyPatch.context() as patch, without(patch, tar_members, "list_with_tarfile"):
        patch.setattr(tar_members, "_AT_ONCE", 3)
        found = listed(tar_members.tar_members(path))
    assert found == listed(list_with_tarfile(path))
    with tarfile.open(path) as archive:
        sizes = {normalize(one.name.encode(errors="surrogateescape")): one.size for one in archive if one.isreg()}
    assert {name: entry[1] for name, entry in found.items() if name in sizes and entry[4] == 0} | sizes == sizes


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
@pytest.mark.parametrize("option", ["--format=v7", "--format=ustar", "--format=oldgnu", "--format=posix", "--sparse"])
def test_what_gnu_tar_writes_is_listed_as_by_tarfile(tmp_path, option):
    folder = tmp_path / "photos"
    (folder / "jay").mkdir(parents=True)
    (folder / "jay" / "1.jpg").write_bytes(b"1" * 700)
    (folder / "jay" / "linked.jpg").hardlink_to(folder / "jay" / "1.jpg")
    (folder / "jay" / "ü.jpg").write_bytes(b"")
    with (folder / "hole.jpg").open("wb") as file:
        file.truncate(1 << 20)
    subprocess.run(["tar", option, "-cf", tmp_path / "x.tar", "-C", tmp_path, "./photos"], check=True)
    found = listed(tar_members.tar_members(tmp_path / "x.tar"))
    assert found == listed(list_with_tarfile(tmp_path / "x.tar"))
    assert len(found) == 4
    assert found[b"photos/jay/linked.jpg"] == found[b"photos/jay/1.jpg"]


def test_a_tar_without_zeros_at_its_end_is_complete(tmp_path, monkeypatch):
    path = tar_file(tmp_path / "x.tar", [("a", tarfile.REGTYPE, "", b"content", {})])
    path.write_bytes(path.read_bytes()[:1024])
    with without(monkeypatch, tar_members, "list_with_tarfile"):
        assert list(listed(tar_members.tar_members(path))) == [b"a"]


@pytest.mark.parametrize("damage", [lambda content: content[:3172], lambda content: content[:3080] + b"?" + content[3081:]])
def test_a_tar_that_is_cut_off_or_damaged_in_a_header_is_refused(tmp_path, damage):
    path = tar_file(tmp_path / "x.tar", [(name, tarfile.REGTYPE, "", b"1" * 600, {}) for name in "abc"])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        UnreadableArchiveError, match="x.tar is damaged or cut off at byte 3,072, after 2 members; copy it again"
    ):
        tar_members.tar_members(path)


# Both


def outcome(function, path):
    try:
        return listed(function(path))
    except Exception as error:  # they raise many kinds
        return type(error), str(error)


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 6000), new=st.binary(min_size=1, max_size=4), cut=st.booleans(), tar=st.booleans())
def test_damaged_archives_are_listed_or_refused_as_by_zipfile_and_tarfile(tmp_path_factory, at, new, cut, tar):
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / ("x.tar" if tar else "x.zip")
    if tar:
        tar_file(path, [(name, tarfile.REGTYPE, "", b"1" * 600, {}) for name in ("a", "ü" * 70, "c/d")])
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name in ("a", "ü", "c/d"):
                archive.writestr(name, b"22")
    content = bytearray(path.read_bytes())
    at %= len(content)
    content[at:] = b"" if cut else new + content[at + len(new) :]
    path.write_bytes(content)
    ours, theirs = (tar_members.tar_members, list_with_tarfile) if tar else (zip_members.zip_members, list_with_zipfile)
    assert outcome(ours, path) == outcome(theirs, path)


# Names


@given(st.lists(st.text(st.sampled_from("a./\\é"), max_size=6), max_size=8))
def test_names_are_normalized_and_divided_as_one_by_one(texts):
    names = pa.array([text.encode() for text in texts], pa.large_binary())
    normal = normalize_all(names)
    assert normal.to_pylist() == [normalize(name) for name in names.to_pylist()]
    folders, files = split_folders(names)
    divided = [name.rpartition(b"/") for name in names.to_pylist()]
    assert folders.to_pylist() == [above + slash for above, slash, _ in divided]
    assert files.to_pylist() == [file for _, _, file in divided]


def test_slices_may_be_empty_and_at_the_edges():
    blob = np.frombuffer(b"abcdef", np.uint8)
    joined = join_slices(blob, np.array([0, 2, 2, 4, 6]), np.array([2, 2, 3, 6, 6]))
    assert joined.to_pylist() == [b"ab", b"", b"c", b"ef", b""]
    assert join_slices(blob, np.empty(0, np.int64), np.empty(0, np.int64)).to_pylist() == []


def test_slices_are_joined_without_arrays_as_long_as_what_they_are_cut_from():
    blob, starts = np.zeros(10_000_000, np.uint8), np.arange(0, 10_000_000, 1_000_000)
    tracemalloc.start()
    try:
        assert len(join_slices(blob, starts, starts + 5)) == 10
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_names_that_are_all_members_in_order_are_not_searched_for(monkeypatch):
    members = Members.from_dict({name.encode(): (0, 0, 0, 0, 0) for name in "bca"})
    monkeypatch.setattr(pc, "index_in", None)
    assert members.find(pa.array(["a", "b", "c"])).tolist() == [0, 1, 2]


@given(
    st.dictionaries(st.binary(max_size=4), st.tuples(*[st.integers(-1, 9)] * 5), max_size=9),
    st.lists(st.text("abé", max_size=3), max_size=9),
)
def test_names_are_found_at_once_as_one_by_one(by_name, wanted):
    members = Members.from_dict(by_name)
    assert listed(members) == by_name
    found = members.find(pa.array(wanted, pa.string()))
    entries = [members.entry_at(index) if index >= 0 else None for index in found.tolist()]
    assert entries == [members.entry(name) for name in wanted]
    assert members.contain(pa.array(wanted, pa.string())).tolist() == [name in members for name in wanted]
