"""Folders called as their classes: levels, splits, names that repeat, archives, and everything that lies about in them."""

import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from suprank.data.image_files import missing_rows
from suprank.data.importers.folder import FOLDER, read


def make_files(root: Path, *files: str) -> Path:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return root


def make_zip(path: Path, *files: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.writestr(file, b"")
    return path


def rows(manifest):
    columns = ["path", "split", *(f"label_{level}" for level in manifest.levels)]
    return [tuple(row.values()) for row in manifest.table.select(columns).to_pylist()]


def warnings(caplog):
    return [record.message.partition(": ")[2] for record in caplog.records]


# Levels


def test_one_level_is_the_class(tmp_path, caplog):
    manifest = read(make_files(tmp_path, "jay/2.jpg", "jay/1.JPEG", "crow/a.webp"))[""]
    assert manifest.levels == ("class",)
    assert rows(manifest) == [("crow/a.webp", "train", "crow"), ("jay/1.JPEG", "train", "jay"), ("jay/2.jpg", "train", "jay")]
    assert manifest.root == tmp_path
    assert caplog.records == []


def test_two_levels_are_class_and_group(tmp_path):
    manifest = read(make_files(tmp_path, "corvids/jay/1.jpg", "corvids/crow/1.jpg", "wrens/wren/1.jpg"), split="test")[""]
    assert manifest.levels == ("class", "group")
    assert rows(manifest) == [
        ("corvids/crow/1.jpg", "test", "crow", "corvids"),
        ("corvids/jay/1.jpg", "test", "jay", "corvids"),
        ("wrens/wren/1.jpg", "test", "wren", "wrens"),
    ]
    assert manifest.to_tree().path(1) == ("jay", "corvids")


def test_more_levels_are_numbered_from_the_finest_or_named(tmp_path):
    make_files(tmp_path, "birds/corvids/jay/1.jpg")
    assert read(tmp_path)[""].levels == ("level 1", "level 2", "level 3")
    named = read(tmp_path, levels=("species", "family", "class"))[""]
    assert named.levels == ("species", "family", "class")
    assert rows(named) == [("birds/corvids/jay/1.jpg", "train", "jay", "corvids", "birds")]


def test_the_wrong_number_of_levels_is_refused(tmp_path):
    make_files(tmp_path, "corvids/jay/1.jpg")
    with pytest.raises(ValueError, match=r"1 levels are named \(species\), but folders are 2 deep \(corvids/jay\)"):
        read(tmp_path, levels=["species"])


def test_names_that_repeat_are_told_apart_by_the_folders_above_as_far_as_needed(tmp_path):
    make_files(tmp_path, "a/cats/large/1.jpg", "a/dogs/large/1.jpg", "b/cats/large/1.jpg", "b/cats/small/1.jpg")
    manifest = read(tmp_path)[""]
    assert [row[2:] for row in rows(manifest)] == [
        ("a/cats/large", "a/cats", "a"),
        ("dogs/large", "dogs", "a"),
        ("b/cats/large", "b/cats", "b"),
        ("small", "b/cats", "b"),
    ]
    assert manifest.two_parents() == []


def test_images_at_two_depths_are_refused_with_both_folders(tmp_path):
    make_files(tmp_path, "corvids/jay/1.jpg", "wrens/1.jpg")
    with pytest.raises(ValueError, match="images in wrens are 1 levels deep and images in corvids/jay 2"):
        read(tmp_path)


@pytest.mark.parametrize("other", ["jay/1.jpg", "train/jay/1.jpg"])
def test_images_in_no_class_are_refused(tmp_path, other):
    make_files(tmp_path, other, "cover.jpg")
    with pytest.raises(ValueError, match=r"the root itself has images \(cover.jpg\) without a class"):
        read(tmp_path)


# Splits


def test_folders_called_as_splits_are_splits_and_classes_are_shared_between_them(tmp_path):
    make_files(tmp_path, "train/corvids/jay/1.jpg", "Test/corvids/jay/2.jpg", "test/wrens/wren/1.jpg")
    assert rows(read(tmp_path)[""]) == [
        ("Test/corvids/jay/2.jpg", "test", "jay", "corvids"),
        ("test/wrens/wren/1.jpg", "test", "wren", "wrens"),
        ("train/corvids/jay/1.jpg", "train", "jay", "corvids"),
    ]


def test_distractors_need_no_class(tmp_path):
    make_files(tmp_path, "query/jay/1.jpg", "gallery/jay/2.jpg", "distractor/1.jpg")
    manifest = read(tmp_path)[""]
    assert rows(manifest) == [
        ("distractor/1.jpg", "distractor", None),
        ("gallery/jay/2.jpg", "gallery", "jay"),
        ("query/jay/1.jpg", "query", "jay"),
    ]
    assert manifest.labels.tolist() == [[-1], [0], [0]]


def test_distractors_may_have_one(tmp_path):
    make_files(tmp_path, "query/jay/1.jpg", "gallery/jay/2.jpg", "distractor/crow/1.jpg", "distractor/1.jpg")
    assert [row[2] for row in rows(read(tmp_path)[""])] == [None, "crow", "jay", "jay"]


@pytest.mark.parametrize("files", [["train/1.jpg", "test/1.jpg"], ["distractor/1.jpg"]])
def test_splits_without_classes_are_refused(tmp_path, files):
    with pytest.raises(ValueError, match=rf"{files[-1].split('/')[0]} has images \(1.jpg\) without a class"):
        read(make_files(tmp_path, *files))


def test_a_train_among_cars_is_a_class_and_that_is_said(tmp_path, caplog):
    manifest = read(make_files(tmp_path, "bus/1.jpg", "car/1.jpg", "train/1.jpg"))[""]
    assert rows(manifest)[2] == ("train/1.jpg", "train", "train")
    assert warnings(caplog) == ["'train' is treated as a class, because 'bus' beside it is not a split"]


def test_a_split_of_another_name_is_not_taken_for_a_class(tmp_path):
    make_files(tmp_path, "train/jay/1.jpg", "val/jay/1.jpg")
    with pytest.raises(ValueError, match="'train' is a split, but 'val' is not; rename it to one of"):
        read(tmp_path)


def test_an_unknown_split_is_refused(tmp_path):
    with pytest.raises(ValueError, match="split 'valid' is unknown"):
        read(make_files(tmp_path, "jay/1.jpg"), split="valid")


# What lies about


def test_what_is_left_out_is_counted_and_named(tmp_path, caplog):
    make_files(tmp_path, "jay/1.jpg", "jay/.2.jpg", ".git/config", "jay/notes.txt", "README", "jay/Thumbs.db", "jay/x.md")
    (tmp_path / "empty").mkdir()
    assert len(read(tmp_path)[""]) == 1
    assert sorted(warnings(caplog)) == [
        "left out 1 folders without images (empty)",
        "left out 2 hidden files or folders (.git, jay/.2.jpg)",
        "left out 4 files without the extension of an image (README, jay/Thumbs.db, jay/notes.txt, ...)",
    ]


def test_a_root_without_images_says_what_images_are(tmp_path):
    with pytest.raises(ValueError, match="has no images; their names end in .*.jpg"):
        read(make_files(tmp_path, "jay/notes.txt"))


def test_a_root_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent does not exist"):
        read(tmp_path / "absent")


def test_links_to_folders_are_followed(tmp_path):
    make_files(tmp_path / "elsewhere", "1.jpg")
    make_files(tmp_path / "root", "crow/1.jpg")
    (tmp_path / "root" / "jay").symlink_to(tmp_path / "elsewhere")
    assert [row[0] for row in rows(read(tmp_path / "root")[""])] == ["crow/1.jpg", "jay/1.jpg"]


def test_a_link_to_a_folder_around_it_is_refused(tmp_path):
    make_files(tmp_path, "corvids/jay/1.jpg")
    (tmp_path / "corvids" / "jay" / "again").symlink_to(tmp_path / "corvids")
    with pytest.raises(ValueError, match=f"{tmp_path}/corvids/jay/again is a link to {tmp_path}/corvids, a folder above it"):
        read(tmp_path)


def test_a_name_that_is_not_utf_8_is_refused(tmp_path):
    make_files(tmp_path, "jay/1.jpg")
    with open(os.fsencode(tmp_path) + b"/jay/\xff.jpg", "wb"):  # noqa: PTH123
        pass
    with pytest.raises(ValueError, match=r"the name 'jay/.udcff.jpg' is not UTF-8; rename"):
        read(tmp_path)


# Archives


FILES = ("corvids/jay/1.jpg", "corvids/crow/1.jpg", "wrens/wren/1.jpg")


def test_a_zip_is_read_as_the_folder_in_it(tmp_path):
    manifest = read(make_zip(tmp_path / "birds.zip", *FILES))[""]
    assert manifest.root == tmp_path
    expected = read(make_files(tmp_path / "unpacked", *FILES))[""]
    assert rows(manifest) == [(f"birds.zip::{path}", *rest) for path, *rest in rows(expected)]


def test_a_tar_is_read_as_the_folder_in_it(tmp_path):
    make_files(tmp_path / "unpacked", *FILES)
    with tarfile.open(tmp_path / "birds.tar", "w") as archive:
        archive.add(tmp_path / "unpacked", ".")  # members are called ./corvids/jay/1.jpg
    assert [row[0] for row in rows(read(tmp_path / "birds.tar")[""])] == [f"birds.tar::{file}" for file in sorted(FILES)]


def test_one_folder_around_everything_in_an_archive_is_no_level(tmp_path):
    files = [f"my birds/{file}" for file in FILES]
    manifest = read(make_zip(tmp_path / "birds.zip", *files, "__MACOSX/my birds/corvids/jay/._1.jpg", "my birds/.DS_Store"))[""]
    assert manifest.levels == ("class", "group")
    assert rows(manifest)[0] == ("birds.zip::my birds/corvids/crow/1.jpg", "train", "crow", "corvids")


def test_splits_in_an_archive(tmp_path):
    wrapped = make_zip(tmp_path / "a.zip", "data/train/jay/1.jpg", "data/test/crow/1.jpg")
    assert [row[1:] for row in rows(read(wrapped)[""])] == [("test", "crow"), ("train", "jay")]
    alone = make_zip(tmp_path / "b.zip", "train/jay/1.jpg", "train/crow/1.jpg")
    assert [row[1:] for row in rows(read(alone)[""])] == [("train", "crow"), ("train", "jay")]


def test_the_images_in_an_archive_are_there(tmp_path):
    manifest = read(make_zip(tmp_path / "birds.zip", *FILES))[""]
    assert len(missing_rows(manifest.paths, manifest.root)) == 0


def test_an_archive_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "birds.zip").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="birds.zip is not a readable zip file"):
        read(tmp_path / "birds.zip")
    (tmp_path / "birds.tar.gz").write_bytes(b"")
    with pytest.raises(ValueError, match="birds.tar.gz is compressed as a whole"):
        read(tmp_path / "birds.tar.gz")


def test_the_importer_reports(tmp_path):
    assert FOLDER(make_files(tmp_path, "jay/1.jpg", "crow/1.jpg")).sentences == ("train: 2 images, 2 class",)
