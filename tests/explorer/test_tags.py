"""Tags of images in a file that people read and several processes change."""

import csv
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.data import Manifest
from suprank.explorer.tags import NotSavedError, TagFile, check_tag, with_tags
from suprank.files.locking import lock_folder
from suprank.files.tables import MalformedError


def manifest(count=4, **columns):
    rows = {"path": [f"{row}.jpg" for row in range(count)], "split": ["test"] * count, "label_kind": ["a", "b"] * (count // 2)}
    return Manifest.from_columns({**rows, **columns}, root=".")


def test_a_worked_example(tmp_path):
    images, tags = manifest(), TagFile(tmp_path / "tags.csv")
    tags.change(images, [0, 2], add="blurry")
    tags.change(images, [2], add=" Wrong label ")
    tags.change(images, [3], add="blurry")
    tags.change(images, [3], remove="blurry")
    assert (tmp_path / "tags.csv").read_text() == (
        "id,path,box,tags\n,0.jpg,,blurry\n,2.jpg,,blurry\n,2.jpg,,blurry;Wrong label\n,3.jpg,,blurry\n,3.jpg,,\n"
    )
    assert [tags.of(images, row) for row in range(4)] == [("blurry",), (), ("blurry", "Wrong label"), ()]
    found = tags.row_tags(images)
    assert found.counts() == {"blurry": 2, "Wrong label": 1}
    assert found.mask("blurry").tolist() == [True, False, True, False]
    assert found.tagged.tolist() == [True, False, True, False]


def test_an_image_is_recognized_by_its_id_or_by_path_and_box_in_another_manifest(tmp_path):
    boxes = [[0, 0, 10, 10], [0, 0, 10.5, 10], None, [1, 1, 2, 2]]
    crops = manifest(path=["a.jpg"] * 4, box=boxes)
    tags = TagFile(tmp_path / "crops.csv")
    tags.change(crops, [1], add="small")
    tags.change(crops, [2], add="whole")
    again = crops.take([3, 2, 1, 0])
    assert [TagFile(tags.file).of(again, row) for row in range(4)] == [(), ("whole",), ("small",), ()]
    assert tags.row_tags(again).codes.tolist() == [0, 2, 1, 0], "numbered in the order of the file"
    named = manifest(id=["x", "y", "x", "z"])
    tags = TagFile(tmp_path / "named.csv")
    tags.change(named, [0], add="t")
    moved = named.with_columns(path=[f"moved/{row}.jpg" for row in range(4)])
    assert [tags.of(moved, row) for row in range(4)] == [("t",), (), ("t",), ()], "rows with one id are one image"
    assert tags.row_tags(moved).counts() == {"t": 2}
    tags.change(moved, [2], remove="t")
    assert tags.row_tags(named).counts() == {}


def test_rows_of_other_images_stay_in_the_file(tmp_path):
    everything, tags = manifest(6), TagFile(tmp_path / "tags.csv")
    tags.change(everything, range(6), add="all")
    tags.change(everything.take([0, 1]), [0, 1], remove="all")
    assert tags.row_tags(everything).codes.tolist() == [0, 0, 1, 1, 1, 1]


def test_the_manifest_with_tags_reads_back(tmp_path):
    images, tags = manifest(note=["n"] * 4), TagFile(tmp_path / "tags.csv")
    tags.change(images, [1], add="wrong, or not")
    tags.change(images, [1], add="blurry")
    for name in ("m.parquet", "m.csv"):
        with_tags(images, tags.file).save(tmp_path / name)
        again = Manifest.read(tmp_path / name)
        assert again.table["tags"].to_pylist() == ["", "blurry;wrong, or not", "", ""]
        assert again.table["note"].to_pylist() == ["n"] * 4
        assert again.split("test").table.column_names == again.table.column_names
    fresh = TagFile(tmp_path / "new.csv", initial=[again])
    assert fresh.of(again, 1) == ("blurry", "wrong, or not"), "a manifest brings its tags"
    fresh.change(again, [1], remove="blurry")
    fresh.change(again, [0], add="more")
    assert with_tags(again, fresh.file).table["tags"].to_pylist() == ["more", "wrong, or not", "", ""]
    emptied = TagFile(tmp_path / "emptied.csv", initial=[again.take([1])])
    for tag in ("blurry", "wrong, or not"):
        emptied.change(again, [1], remove=tag)
    assert TagFile(emptied.file, initial=[again]).of(again, 1) == (), "not the tags of the manifest again"
    with pytest.raises(FileNotFoundError, match="there is no file"):
        with_tags(images, tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("  ", "write one"),
        ("a;b", "may not contain ';'"),
        ("two\nlines", "line breaks"),
        ("a\u2028b", "line breaks"),
        ("=1+1", "may not begin with '='"),
        ("-", "may not begin with '-'"),
        ("x" * 61, "at most 60 characters"),
    ],
)
def test_what_is_no_tag_is_refused_and_nothing_is_written(tmp_path, text, said):
    tags = TagFile(tmp_path / "tags.csv")
    with pytest.raises(ValueError, match=said):
        tags.change(manifest(), [0], add=text)
    assert not tags.file.exists()


@settings(max_examples=25)
@given(st.text(max_size=70))
def test_a_tag_survives_the_file_and_is_safe_in_a_spreadsheet(tmp_path_factory, text):
    try:
        tag = check_tag(text)
    except ValueError:
        return
    assert tag[0] not in "=+-@"
    tags, images = TagFile(tmp_path_factory.getbasetemp() / "law.csv"), manifest()
    tags.change(images, [0], add=tag)
    assert tags.of(images, 0) == (tag,)
    tags.change(images, [0], remove=tag)
    assert tags.of(images, 0) == ()


def test_a_cell_like_a_formula_is_written_safely_and_read_as_it_was(tmp_path):
    images, tags = manifest(path=["=1+1.jpg", "-a.jpg", "'=x.jpg", 'a\nb,"\x1bc.jpg']), TagFile(tmp_path / "tags.csv")
    tags.change(images, range(4), add="t")
    with tags.file.open(newline="") as file:
        assert [row[1] for row in csv.reader(file)] == ["path", "'=1+1.jpg", "'-a.jpg", "''=x.jpg", 'a\nb,"\\u001bc.jpg']
    assert TagFile(tags.file).row_tags(images).counts() == {"t": 4}


def _add_ten(file, first):
    tags = TagFile(file)
    for row in range(first, first + 10):
        tags.change(manifest(40), [row], add=f"of {first}")
        tags.change(manifest(40), [0], add=f"{row}")


def test_two_processes_and_two_threads_lose_no_tag(tmp_path):
    file, fork = tmp_path / "tags.csv", multiprocessing.get_context("fork")
    processes = [fork.Process(target=_add_ten, args=(file, first)) for first in (0, 10)]
    for process in processes:
        process.start()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda first: _add_ten(file, first), (20, 30)))
    for process in processes:
        process.join(60)
    found = TagFile(file)
    counts = found.row_tags(manifest(40)).counts()
    assert {tag: counts[tag] for tag in counts if tag.startswith("of")} == {f"of {first}": 10 for first in (0, 10, 20, 30)}
    assert {int(tag) for tag in found.of(manifest(40), 0) if tag.isdigit()} == set(range(40))


def test_a_reader_sees_what_another_process_wrote(tmp_path):
    images, one, other = manifest(), TagFile(tmp_path / "tags.csv"), TagFile(tmp_path / "tags.csv")
    assert one.of(images, 0) == ()
    other.change(images, [0], add="new")
    assert one.of(images, 0) == ("new",)
    assert one.row_tags(images).counts() == {"new": 1}
    other.change(images, [0], remove="new")
    assert one.row_tags(images).counts() == {}


def test_a_place_that_cannot_be_written_and_a_lock_that_is_held(tmp_path, monkeypatch):
    (tmp_path / "plain").write_text("a file where a folder should be")
    tags = TagFile(tmp_path / "plain" / "tags.csv")
    assert tags.of(manifest(), 0) == ()
    with pytest.raises(NotSavedError, match="cannot be written .*--tags FILE"):
        tags.change(manifest(), [0], add="x")
    with pytest.raises(NotSavedError, match="there is no file to keep tags in"):
        TagFile(None).change(manifest(), [0], add="x")
    monkeypatch.setattr("suprank.explorer.tags.WAIT_SECONDS", 0.05)
    tags = TagFile(tmp_path / "tags.csv")
    with (
        lock_folder(tmp_path, "changing", "wait", name=".tags.csv.lock"),
        pytest.raises(NotSavedError, match="changing tags .* try again"),
    ):
        tags.change(manifest(), [0], add="x")
    assert tags.of(manifest(), 0) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"path,tags\na,b\n", "has no column 'id'"),
        (b"id,path,box,tags\n1,2\n", "tags.csv:2: '1,2' has 2 cells"),
        (b'id,path,box,tags\n,"a,,b\n', "never closed"),
        (b"id,path,box,tags\n,\xe9,,b\n", "must be UTF-8 text"),
        (b"", "is empty"),
    ],
)
def test_a_damaged_file_is_refused_and_kept(tmp_path, text, said):
    (tmp_path / "tags.csv").write_bytes(text)
    tags = TagFile(tmp_path / "tags.csv")
    with pytest.raises(MalformedError, match=said):
        tags.of(manifest(), 0)
    with pytest.raises(MalformedError, match=said):
        tags.change(manifest(), [0], add="x")
    assert (tmp_path / "tags.csv").read_bytes() == text


def test_a_file_that_people_edited_is_read(tmp_path):
    text = "\ufeffpath,note,tags,box,id\r\n0.jpg,mine, b ;a;;b,,\r\n\r\n1.jpg,,;,,\r\n0.jpg,,c,,"
    (tmp_path / "tags.csv").write_text(text, encoding="utf-8", newline="")
    tags = TagFile(tmp_path / "tags.csv")
    assert [tags.of(manifest(), row) for row in (0, 1)] == [("c",), ()], "the last row of an image counts"
    assert np.array_equal(tags.row_tags(manifest()).tagged, [True, False, False, False])
    tags.change(manifest(), [1], add="x")
    tags.change(manifest(), [0], remove="a")
    assert [TagFile(tags.file).of(manifest(), row) for row in (0, 1)] == [("c",), ("x",)]
    assert tags.file.read_bytes().decode() == f"{text}\n1.jpg,,x,,\n"
    tags.file.write_text("id,path,box,tags\r\n")
    assert tags.of(manifest(), 1) == (), "all rows were deleted"
    tags.change(manifest(), [1], add="y")
    assert tags.of(manifest(), 1) == ("y",)
