"""`ImageFiles` under a root: files and members, what is refused, and what is missing."""

import os
import pickle
import tarfile
import zipfile

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.data import image_files as module
from suprank.data.archives import UnreadableArchiveError
from suprank.data.image_files import ImageFiles, archive_names, missing_rows, split_path


@pytest.fixture
def root(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.jpg").write_bytes(b"file")
    (tmp_path / "top.jpg").write_bytes(b"top")
    with zipfile.ZipFile(tmp_path / "a" / "x.zip", "w") as archive:
        archive.writestr("m/n.jpg", b"zipped")
    with tarfile.open(tmp_path / "y.tar", "w") as archive:
        archive.add(tmp_path / "top.jpg", "top.jpg")
    return tmp_path


def test_files_and_members_are_read(root):
    files = ImageFiles(root)
    paths = ["a/b/c.jpg", "top.jpg", "a/x.zip::m/n.jpg", "y.tar::top.jpg"]
    assert [files.read(path) for path in paths] == [b"file", b"top", b"zipped", b"top"]
    assert all(files.exists(path) for path in paths)
    assert not any(files.exists(path) for path in ["a/b", "none.jpg", "a/x.zip::none", "none.zip::m", "top.jpg/x"])


@pytest.mark.parametrize("path", ["none.jpg", "none/x.jpg", "top.jpg/x.jpg", "a/b"])
def test_what_is_not_there_is_named_with_the_root(root, path):
    with pytest.raises(FileNotFoundError, match=f"{path} (is not )?under {root}"):
        ImageFiles(root).read(path)


def test_what_an_archive_does_not_hold_is_named_with_it(root):
    with pytest.raises(FileNotFoundError, match=r"x.zip has no member 'none'"):
        ImageFiles(root).read("a/x.zip::none")
    with pytest.raises(FileNotFoundError, match=r"the archive .*none.tar does not exist"):
        ImageFiles(root).read("none.tar::x")
    with pytest.raises(UnreadableArchiveError, match=r"y.tar.gz is compressed as a whole"):
        ImageFiles(root).read("y.tar.gz::x")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.jpg", "a/../../x.jpg", "a/..", "../x.zip::m", "x.zip::../m", "a\0.jpg"])
def test_paths_out_of_the_root_are_refused(root, path):
    with pytest.raises(ValueError, match="leads out of the root"):
        ImageFiles(root).read(path)


@pytest.mark.parametrize("path", ["C:x.jpg", "C:/x.jpg", r"\\server\share\x.jpg", r"\x.jpg", r"a\..\..\x.jpg", "C:/x.zip::m"])
def test_on_windows_drives_and_backslashes_lead_out_of_the_root_too(root, path, monkeypatch):
    archive, member = ("C:/x.zip", "m") if "::" in path else (None, path)
    assert split_path(path) == (archive, member), "elsewhere these are names like any other"
    monkeypatch.setattr(module, "_WINDOWS", True)
    with pytest.raises(ValueError, match="leads out of the root"):
        ImageFiles(root).read(path)
    assert split_path("a/b.zip::C:x.jpg") == ("a/b.zip", "C:x.jpg")


@pytest.mark.parametrize("path", ["a..b/c.jpg", "..a", "a...jpg"])
def test_two_dots_within_a_name_climb_nowhere(path):
    assert split_path(path) == (None, path)


def test_a_root_that_is_no_folder_is_refused(root):
    for wrong in (root / "none", root / "top.jpg"):
        with pytest.raises(FileNotFoundError, match=r"the root .* is not a folder"):
            ImageFiles(wrong)


def test_a_file_larger_than_any_image_is_refused(root, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 3)
    assert ImageFiles(root).read("top.jpg") == b"top"
    with pytest.raises(ValueError, match="a/b/c.jpg under .* has 4 bytes; an image has at most 3"):
        ImageFiles(root).read("a/b/c.jpg")


def test_indexed_archives_are_not_listed_again_even_after_a_pickle(root, monkeypatch):
    files = ImageFiles(root)
    files.index(pa.array(["top.jpg", "a/x.zip::m/n.jpg", "none.zip::m", "y.tar::a"]))
    monkeypatch.setattr(module, "Archive", None)
    assert pickle.loads(pickle.dumps(files)).read("a/x.zip::m/n.jpg") == b"zipped"


def test_archives_are_named_once():
    assert archive_names(pa.array(["b.zip::1", "a/c.tar::d/e", "b.zip::2::3", "d/f.jpg"])) == ["a/c.tar", "b.zip"]
    assert archive_names(pa.chunked_array([["x.jpg"]])) == []


def test_absent_rows_are_found_in_folders_and_archives(root):
    here = ["a/b/c.jpg", "top.jpg", "a/x.zip::m/n.jpg", "y.tar::top.jpg", "a/x.zip"]
    gone = ["a/b/d.jpg", "none.jpg", "none/c.jpg", "top.jpg/x.jpg", "a/b", "a/x.zip::n.jpg", "none.zip::m", "a/x.zip/m"]
    mixed = [gone[0], here[0], *gone[1:], *here[1:], gone[0]]
    for paths in (pa.array(mixed), pa.chunked_array([mixed[:4], mixed[4:]])):
        assert [mixed[row] for row in missing_rows(paths, root)] == [path for path in mixed if path in gone]
    assert missing_rows(pa.array(here), ImageFiles(root)).tolist() == []
    assert missing_rows(pa.array([], pa.string()), root).tolist() == []


def test_links_count_if_what_they_lead_to_is_there(root):
    (root / "link.jpg").symlink_to(root / "top.jpg")
    (root / "dangling.jpg").symlink_to(root / "nothing.jpg")
    assert missing_rows(pa.array(["link.jpg", "dangling.jpg"]), root).tolist() == [1]


def test_absent_raises_where_an_archive_cannot_be_listed(root):
    (root / "bad.zip").write_bytes(b"bad")
    with pytest.raises(UnreadableArchiveError, match=r"bad.zip is not a readable zip file"):
        missing_rows(pa.array(["bad.zip::m"]), root)


@given(
    st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=12), max_size=6)
)
def test_holders_agree_with_the_way_a_single_path_is_divided(paths):
    for path, holder in zip(paths, module.container_names(pa.array(paths, pa.string())).to_pylist(), strict=True):
        archive, separator, _ = path.partition("::")
        folder, slash, _ = path.rpartition("/")
        expected = archive + separator if separator and archive else folder if slash else ""
        assert holder == expected


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipes_and_devices_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    for name in ("pipe.png", "zero.png"):
        with pytest.raises(ValueError, match=f"{name} under .* is a device or a pipe"):
            ImageFiles(tmp_path).read(name)
