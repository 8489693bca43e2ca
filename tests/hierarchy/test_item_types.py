"""Types from a file: what is added, what is replaced, what is refused."""

import pytest

from suprank.hierarchy.create import create_project
from suprank.hierarchy.errors import MalformedError
from suprank.hierarchy.item_types import types_from_files
from suprank.hierarchy.project import Project
from suprank.hierarchy.recipe import Recipe
from suprank.hierarchy.sources import labels_from_rows
from tests.hierarchy.wikimedia.fake_server import project_of, types


@pytest.fixture
def project(tmp_path):
    return Project.create(tmp_path / "p", Recipe(name="r", title="R"))


def table(tmp_path, text, name="types.csv"):
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_a_row_is_a_type(project, tmp_path):
    file = table(tmp_path, "id,type,other\r\n7,lake,x\r\n8, church ,x\r\n7,ocean area ,x\r\n9,,x\r\n7,lake,y\r\n9,  ,x\r\n")
    found = types_from_files(project, [("index", file)])
    assert types(project) == {"7": ["lake", "ocean area "], "8": [" church "], "9": "empty"}
    assert (found.added, found.repeated) == (3, 1)
    assert (found.typed, found.several, found.types) == (2, 1, 3)
    with project.snapshot() as db:
        items = db.execute("SELECT split, key, line FROM item").fetchall()
    assert [tuple(row) for row in items] == [("index", "7", 2), ("index", "8", 3), ("index", "9", 5)]
    step = project.steps()["types"]
    assert step.settings == {"from": "files", "files": [["index", str(file)]], "id": "id", "type": "type"}
    assert step.result["added"] == 3


def test_the_same_again_changes_nothing_and_another_file_replaces(project, tmp_path):
    file = table(tmp_path, "id,type\n1,lake\n2,church\n3,\n")
    types_from_files(project, [("a", file)])
    again = types_from_files(project, [("a", file)])
    assert (again.changed, again.added) == (False, 0)
    assert types(project) == {"1": ["lake"], "2": ["church"], "3": "empty"}
    types_from_files(project, [("a", table(tmp_path, "id,type\n3,tower\n1,pond\n", "other.csv"))])
    assert types(project) == {"1": ["pond"], "2": "not_listed", "3": ["tower"]}


def test_splits_are_apart_and_keep_what_they_have(project, tmp_path):
    first, second = table(tmp_path, "id,type\n1,lake\n", "a.csv"), table(tmp_path, "id,type\n1,church\n2,tower\n", "b.csv")
    types_from_files(project, [("a", first)])
    types_from_files(project, [("b", second)])
    with project.snapshot() as db:
        rows = db.execute("SELECT split, key, text FROM item JOIN item_type ON item = item.id ORDER BY item.id").fetchall()
    assert [tuple(row) for row in rows] == [("a", "1", "lake"), ("b", "1", "church"), ("b", "2", "tower")]


def test_items_the_project_does_not_know_are_refused_with_their_lines(tmp_path):
    project = project_of(tmp_path / "p", ["Category:A", "Category:B"])
    file = table(tmp_path, "landmark_id,supercategory\n0,lake\n5,church\n6,tower\n")
    with pytest.raises(MalformedError, match=r"types.csv: 5 \(line 3\), 6 \(line 4\) are not among the items of 'train'"):
        types_from_files(project, [("train", file)])
    assert (types(project), list(project.steps())) == ({}, [])


def test_items_that_are_added_keep_their_source_and_whole_numbers(tmp_path):
    project = project_of(tmp_path / "p", [])
    file = table(tmp_path, "landmark_id,category,supercategory\n007,Category:A,lake\n8,Category:B,tower\n7,Category:A,pond\n")
    types_from_files(project, [("index", file)])
    with project.snapshot() as db:
        assert [tuple(row) for row in db.execute("SELECT key, source FROM item")] == [("7", "Category:A"), ("8", "Category:B")]
    assert types(project) == {"7": ["lake", "pond"], "8": ["tower"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,kind\n1,lake\n", r":1: there is no column 'type'"),
        ("id,type\n1,lake\n,church\n", r":3: id is empty"),
        ("id,type\n1,lake\n2\n", r":3: 1 cells; expected 2"),
    ],
)
def test_malformed_files_are_refused_and_nothing_is_written(project, tmp_path, text, said):
    good = table(tmp_path, "id,type\n1,lake\n", "good.csv")
    with pytest.raises(MalformedError, match=said):
        types_from_files(project, [("a", good), ("b", table(tmp_path, text))])
    with project.snapshot() as db:
        assert db.execute("SELECT count(*) FROM item").fetchone()[0] == 0


def test_a_split_that_cannot_be_part_of_a_file_name_is_refused(project, tmp_path):
    with pytest.raises(ValueError, match="split '../x' must be letters"):
        types_from_files(project, [("../x", table(tmp_path, "id,type\n1,church\n"))])
    assert types(project) == {}


def test_a_list_of_labels_is_not_turned_into_items(tmp_path):
    listed = create_project(tmp_path / "p", Recipe(name="r", title="R"), labels_from_rows([("church", 1, "")])).project
    with pytest.raises(ValueError, match="is a list of labels, which have no types"):
        types_from_files(listed, [("all", table(tmp_path, "id,type\n1,castle\n"))])
    assert types(listed) == {}


def test_one_item_of_two_sources_is_refused(tmp_path):
    project = project_of(tmp_path / "p", [])
    file = table(tmp_path, "landmark_id,category,supercategory\n1,Category:A,lake\n1,Category:B,tower\n")
    with pytest.raises(MalformedError, match=r"types.csv:3: train 1 has the source 'Category:B', but 'Category:A' on .*:2"):
        types_from_files(project, [("train", file)])
