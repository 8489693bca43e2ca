"""What a project begins with: files read strictly, each fault with its line, and nothing written where there is one."""

import csv

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.data import Manifest
from suprank.files.locking import LOCK, lock_folder
from suprank.hierarchy.create import create_project
from suprank.hierarchy.errors import MalformedError
from suprank.hierarchy.project import FullError, Project
from suprank.hierarchy.recipe import ItemsRecipe, read_recipe
from suprank.hierarchy.sources import labels_from_rows, read_items, read_labels, read_manifest_labels
from suprank.hierarchy.text import label_key
from tests.hierarchy.full_disk import full_disk

HGLDV2 = read_recipe("hgldv2").items
HEADER = b"landmark_id,category\n"


def items(tmp_path, content, name="items.csv", columns=HGLDV2, **options):
    (tmp_path / name).write_bytes(content)
    return read_items([("train", tmp_path / name)], columns, **options)


def labels(tmp_path, content, name="labels.csv", **options):
    (tmp_path / name).write_bytes(content)
    return read_labels(tmp_path / name, **options)


def test_items_know_their_line_and_a_bom_and_crlf_are_fine(tmp_path):
    content = '\ufefflandmark_id,category\r\n7,"http://c/Category:Arena,_Göttingen"\r\n\r\n"12",x\r\n'.encode()
    found = items(tmp_path, content)
    assert found.rows == [("train", "7", "http://c/Category:Arena,_Göttingen", 2), ("train", "12", "x", 4)]
    assert (found.repeated, found.sharing) == (0, 0)


def test_a_row_that_says_the_same_again_counts_once_and_a_shared_source_is_counted(tmp_path):
    found = items(tmp_path, HEADER + b"1,a\n2,b\n01,a\n3,b\n4,c\n")
    assert [row[:3] for row in found.rows] == [
        ("train", "1", "a"),
        ("train", "2", "b"),
        ("train", "3", "b"),
        ("train", "4", "c"),
    ]
    assert (found.repeated, found.sharing) == (1, 2)


def test_an_item_with_two_sources_is_an_error_with_both_lines(tmp_path):
    with pytest.raises(MalformedError, match=r"items.csv:4: train 1 has the source 'z', but 'a' on .*items.csv:2"):
        items(tmp_path, HEADER + b"1,a\n2,b\n1,z\n")
    with pytest.raises(MalformedError, match=r"items.csv:3"):  # whatever else is skipped
        items(tmp_path, HEADER + b"1,a\n1,z\n", skip_bad=True)


def test_numbers_of_two_splits_are_two_number_spaces(tmp_path):
    for name, source in (("train.csv", b"a"), ("index.csv", b"b")):
        (tmp_path / name).write_bytes(HEADER + b"7," + source + b"\n")
    found = read_items([("train", tmp_path / "train.csv"), ("index", tmp_path / "index.csv")], HGLDV2)
    assert [row[:3] for row in found.rows] == [("train", "7", "a"), ("index", "7", "b")]


MALFORMED = {
    "missing column": (b"landmark,category\n1,a\n", "1: there is no column 'landmark_id'"),
    "empty file": (b"", "1: the file is empty"),
    "no rows": (HEADER, "1: it has no rows"),
    "letters after a quote": (HEADER + b'1,"a"b\n', "2: wrong quoting"),
    "UTF-16": ("landmark_id,category\n1,a\n".encode("utf-16"), "1: there is no column"),
    "short row": (HEADER + b"1,a\n2\n", "3: 1 cells; expected 2"),
    "empty id": (HEADER + b" ,a\n", "2: landmark_id is empty"),
    "empty source": (HEADER + b"1,a\n\n2,\n", "4: category is empty"),
    "no number": (HEADER + b"1,a\nx7,b\n", "3: landmark_id is 'x7'; expected a whole number"),
    "negative": (HEADER + b"-7,b\n", "2: landmark_id is '-7'; expected a whole number"),
    "a cell without end": (HEADER + b"1," + b"x" * 140_000 + b"\n", "2: a cell has more than 131,072 letters"),
    "broken line in quotes": (HEADER + b'1,"a\nb"\n2\n', "4: 1 cells; expected 2"),
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_file_is_refused_with_its_line(tmp_path, fault):
    content, complaint = MALFORMED[fault]
    with pytest.raises(MalformedError) as caught:
        items(tmp_path, content)
    assert f"items.csv:{complaint}" in str(caught.value)


def test_bad_rows_can_be_left_out_and_are_listed_with_their_lines(tmp_path):
    bad = HEADER + b"1,a\nx,b\n2\n3,caf\xe9\n4,d\0\n5,e\n"
    found = items(tmp_path, bad, skip_bad=True)
    assert [row[1] for row in found.rows] == ["1", "5"]
    assert [(one.line, one.problem.split(";")[0]) for one in found.rejects] == [
        (3, "landmark_id is 'x'"),
        (4, "1 cells"),
        (5, "category holds the byte 0xE9, which is not UTF-8 (Latin-1?)"),
        (6, "category holds a NUL"),
    ]
    begun = create_project(tmp_path / "p", read_recipe("hgldv2"), found)
    rows = list(csv.reader((tmp_path / "p" / "rejects.csv").read_text(encoding="utf-8").splitlines()))
    assert [row[1] for row in rows] == ["line", "3", "4", "5", "6"]
    assert begun.counts["rejected"] == 4
    with pytest.raises(MalformedError, match="none of its 1 rows is right"):
        items(tmp_path, HEADER + b"x,a\n", skip_bad=True)


def test_a_file_given_twice_says_all_again(tmp_path):
    (tmp_path / "items.csv").write_bytes(HEADER + b"1,a\n2,b\n")
    found = read_items([("train", tmp_path / "items.csv")] * 2, HGLDV2)
    assert (len(found.rows), found.repeated) == (2, 2)


def test_ids_may_be_words_where_the_recipe_says_so_and_sources_may_be_none(tmp_path):
    columns = ItemsRecipe(id="name")
    assert items(tmp_path, b"name\nthe arena\n", columns=columns).rows == [("train", "the arena", "", 2)]
    with pytest.raises(ValueError, match="split 'a/b' must be letters"):
        read_items([("a/b", tmp_path / "items.csv")], columns)


def test_spellings_of_one_label_are_one_label_and_their_weights_add_up(tmp_path):
    found = labels(tmp_path, "label,weight,description\nPark,2,\n park ,5,a green place\ncafé,1,\ncafe\u0301,1,\n".encode())
    assert [(one.key, one.text, one.weight) for one in found.rows] == [("park", " park ", 7), ("café", "café", 2)]
    assert found.rows[0].spellings == {"Park": 2, " park ": 5}
    assert found.rows[0].description == "a green place"
    assert found.repeated == 2


def test_a_text_file_has_a_label_a_line_raw(tmp_path):
    found = labels(tmp_path, b"\xef\xbb\xbflake\r\nocean area \r\n\r\n  \nlake\n", "labels.txt")
    assert [(one.text, one.weight) for one in found.rows] == [("lake", 2), ("ocean area ", 1)]
    for content, complaint in (
        (b"a\ncaf\xe9\n", "labels.txt:2: the line holds the byte 0xE9"),
        (b"\n \n", "labels.txt:1: there are"),
    ):
        with pytest.raises(MalformedError, match=complaint):
            labels(tmp_path, content, "labels.txt")


def test_labels_of_tables_by_columns_that_are_named(tmp_path):
    assert [
        one.weight for one in labels(tmp_path, b"kind\tn\na\t3\n", "l.tsv", text_column="kind", weight_column="n").rows
    ] == [3]
    pq.write_table(pa.table({"name": ["a", "b"], "weight": [3, 4]}), tmp_path / "l.parquet")
    assert [(one.text, one.weight) for one in read_labels(tmp_path / "l.parquet").rows] == [("a", 3), ("b", 4)]
    pq.write_table(pa.table({"name": ["a", "b\0"]}), tmp_path / "nul.parquet")
    with pytest.raises(MalformedError, match="nul.parquet:2: name holds a NUL"):
        read_labels(tmp_path / "nul.parquet")
    for content, complaint in (
        (b"kind,n\na,1\n", "labels.csv:1: there is no column 'label'; expected it among kind, n"),
        (b"label,weight\na,1\nb,1.5\n", "labels.csv:3: weight is '1.5'; expected a whole number"),
        (b"label,weight\n  ,1\n", "labels.csv:2: label is empty"),
        (b"label,weight\na,9999999999999\n", "labels.csv:2: weight is '9999999999999'; expected .* at most 12 digits"),
        (b"label\n" + b"x" * 1001 + b"\n", "labels.csv:2: label has 1,001 letters, where a label has 1,000 at most"),
    ):
        with pytest.raises(MalformedError, match=complaint):
            labels(tmp_path, content)


def test_labels_of_a_manifest_weigh_as_many_images(tmp_path):
    columns = {"path": ["a", "b", "c"], "split": ["train"] * 3, "label_species": ["jay", "crow", "jay"]}
    Manifest.from_columns(columns, root=tmp_path).save(tmp_path / "m.parquet")
    assert [(one.text, one.weight) for one in read_manifest_labels(tmp_path / "m.parquet", "species").rows] == [
        ("crow", 1),
        ("jay", 2),
    ]
    with pytest.raises(ValueError, match="no level 'genus'; choose from species"):
        read_manifest_labels(tmp_path / "m.parquet", "genus")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.text("aAbB é\u0301", min_size=1, max_size=4), st.integers(0, 9)), max_size=12))
def test_every_row_is_in_one_label_and_no_weight_is_lost(rows):
    found = labels_from_rows((text, weight, "") for text, weight in rows)
    assert sum(one.weight for one in found.rows) == sum(weight for _, weight in rows)
    assert {one.key for one in found.rows} == {label_key(text) for text, _ in rows}
    assert len(found.rows) + found.repeated == len(rows)
    assert all(one.spellings[one.text] == max(one.spellings.values()) for one in found.rows)


def test_the_same_again_changes_nothing_and_another_is_refused(tmp_path):
    content = labels_from_rows([("jay", 1, "")])
    begun = create_project(tmp_path / "p", read_recipe("plain"), content)
    before = (tmp_path / "p" / "project.sqlite").read_bytes()
    again = create_project(tmp_path / "p", read_recipe("plain"), content)
    assert (begun.existed, again.existed) == (False, True)
    assert (tmp_path / "p" / "project.sqlite").read_bytes() == before
    with pytest.raises(FileExistsError, match="holds another project"):
        create_project(tmp_path / "p", read_recipe("plain"), labels_from_rows([("crow", 1, "")]))
    with pytest.raises(FileExistsError, match="holds another project"):
        create_project(tmp_path / "p", read_recipe("hgldv2"), content)


def test_two_who_make_one_project_are_kept_apart(tmp_path):
    (tmp_path / "p").mkdir()
    with lock_folder(tmp_path / "p", "", ""), pytest.raises(BlockingIOError, match="is creating a project in .*p; let it end"):
        create_project(tmp_path / "p", read_recipe("plain"), labels_from_rows([("jay", 1, "")]))
    assert [file.name for file in (tmp_path / "p").iterdir()] == [LOCK]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="is a file; name a folder"):
        create_project(tmp_path / "file", read_recipe("plain"))


def test_rows_that_were_left_out_are_listed_before_the_step_says_that_all_is_done(tmp_path, monkeypatch):
    def full(path, data):
        with Project(tmp_path / "p").snapshot() as db:
            assert db.execute("SELECT count(*) FROM step").fetchone()[0] == 0
        raise FullError("no room")

    monkeypatch.setattr("suprank.hierarchy.create.write_atomically", full)
    with pytest.raises(FullError):
        create_project(tmp_path / "p", read_recipe("hgldv2"), items(tmp_path, HEADER + b"1,a\nx,b\n", skip_bad=True))
    assert not (tmp_path / "p").exists()


def test_what_a_killed_new_left_behind_is_replaced(tmp_path):
    Project.create(tmp_path / "p", read_recipe("plain"))  # and here it was killed
    begun = create_project(tmp_path / "p", read_recipe("plain"), labels_from_rows([("jay", 1, "")]))
    assert begun.counts["labels"] == 1
    assert list(begun.project.steps()) == ["new"]


@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_leaves_nothing(tmp_path, there):
    folder = tmp_path / "p"
    if there:
        folder.mkdir()
    many = labels_from_rows((f"label {number} {'x' * 200}", 1, "") for number in range(500))
    with full_disk(), pytest.raises(FullError, match="nothing was saved"):
        create_project(folder, read_recipe("plain"), many)
    assert [file.name for file in folder.iterdir()] == [LOCK] if there else not folder.exists()
