"""suprank hierarchy new: what it says, its exit codes, and that a malformed file leaves nothing."""

import pytest

from suprank.data import Manifest
from suprank.hierarchy.project import Project
from tests.cli.collection import done, invoke, refused


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "species.txt").write_text("jay\ncrow\nJay\n")
    (tmp_path / "train.csv").write_text("landmark_id,category\n1,a\n2,b\n2,b\n3,b\n")
    (tmp_path / "index.csv").write_text("landmark_id,category\n1,c\n")
    return tmp_path


def test_a_list_of_labels(folder):
    said = done("hierarchy", "new", "p", "--labels", "species.txt", "--levels", "species,family,order", "--top", "song,water")
    assert said.stdout.splitlines() == ["p: 2 labels", "repeated and counted once: 1 row"]
    project = Project(folder / "p")
    assert project.recipe.levels == ("species", "family", "order")
    assert project.recipe.top == ("song", "water")
    assert project.steps()["new"].settings == {
        "recipe": "plain",
        "levels": ["species", "family", "order"],
        "top": ["song", "water"],
        "labels": "species.txt",
    }
    assert "nothing changed" in done("hierarchy", "new", "p", "--labels", "species.txt", "--levels", "species,family,order",
                                     "--top", "song,water").stdout  # fmt: skip
    assert "holds another project" in refused("hierarchy", "new", "p", "--labels", "species.txt")


def test_landmarks_of_two_splits():
    said = done("hierarchy", "new", "p", "--recipe", "hgldv2", "--items", "train=train.csv", "--items", "index=index.csv")
    assert said.stdout.splitlines() == [
        "p: 4 items (3 train, 1 index)",
        "2 items with a source that another item has, too",
        "repeated and counted once: 1 row",
    ]
    assert done("hierarchy", "new", "q", "--recipe", "hgldv2", "--items", "train=train.csv", "--quiet").stdout == ""


def test_a_level_of_a_manifest(folder):
    columns = {"path": ["a", "b"], "split": ["train"] * 2, "label_species": ["jay", "crow"], "label_family": ["C", "C"]}
    Manifest.from_columns(columns, root=folder).save(folder / "m.parquet")
    done("hierarchy", "new", "p", "--manifest", "m.parquet")
    project = Project(folder / "p")
    assert project.recipe.levels == ("species", "group")
    assert project.meta("manifest") == str((folder / "m.parquet").resolve())
    assert project.meta("manifest_level") == "species"
    assert "no level 'genus'; choose from species, family" in refused(
        "hierarchy", "new", "q", "--manifest", "m.parquet", "--level", "genus"
    )
    assert not (folder / "q").exists()


def test_a_malformed_file_ends_with_3_and_leaves_nothing(folder):
    (folder / "bad.csv").write_text("landmark_id,category\n1,a\n2\n")
    result = invoke("hierarchy", "new", "p", "--recipe", "hgldv2", "--items", "train=bad.csv")
    assert result.exit_code == 3, result.output
    assert result.stderr.startswith("Error: bad.csv:3: ")
    assert not (folder / "p").exists()


def test_bad_rows_are_skipped_on_request(folder):
    (folder / "bad.csv").write_text("landmark_id,category\n1,a\n2\n")
    said = done("hierarchy", "new", "p", "--recipe", "hgldv2", "--items", "train=bad.csv", "--skip-bad")
    assert said.stdout.splitlines()[-1] == "malformed and left out: 1 row; see p/rejects.csv"
    assert Project(folder / "p").steps()["new"].settings["skip_bad"] is True
    assert (folder / "p" / "rejects.csv").read_text().splitlines()[1].startswith('bad.csv,3,"1 cells; expected 2')


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--labels", "species.txt", "--items", "train=train.csv"), "give one of the two"),
        (("--items", "train.csv"), "is not SPLIT=FILE"),
        (("--labels", "none.txt"), "none.txt"),
        (("--level", "species"), "names a level of --manifest"),
        (("--text-column", "x"), "name columns of --labels"),
        (("--labels", "species.txt", "--levels", "a,b,c", "--top", ""), "none of them empty"),
        (("--recipe", "gldv3"), "no recipe 'gldv3'"),
    ],
)
def test_what_is_refused(folder, arguments, complaint):
    assert complaint in refused("hierarchy", "new", "p", *arguments)
    assert not (folder / "p").exists()


@pytest.mark.parametrize("given", [("--labels", "none.txt"), ("--labels", "none.csv"), ("--items", "train=none.csv")])
def test_a_file_that_is_not_there_is_named(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    said = refused("hierarchy", "new", "p", "--recipe", "hgldv2", *given)
    assert f"{given[1].removeprefix('train=')} does not exist (the working folder is" in said
    assert not (tmp_path / "p").exists()
