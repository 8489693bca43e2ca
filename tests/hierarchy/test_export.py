"""Exports: files that say what the branch says, read back by our own importers, the same bytes again, and all or nothing."""

import csv
import hashlib
import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.data import LabelTree, Manifest
from suprank.data.importers.landmark_files import read_landmark_labels
from suprank.hierarchy.cleaning import clean_labels
from suprank.hierarchy.export import LintFailedError, export_branch, label_tree, labeled_manifest
from suprank.hierarchy.export_tables import ExportItem
from suprank.hierarchy.project import BusyError, Project
from suprank.hierarchy.tree import Hierarchy, read_hierarchy
from tests.hierarchy.branches import BIRDS, LEVELS, landmarks, plain, write_branch

TYPES = {
    ("train", 1): ["stave church"],
    ("train", 2): ["chapel"],
    ("train", 3): ["mountain"],
    ("train", 4): ["chapel", "museum"],  # several types: no label
    ("train", 5): ["protected area"],  # excluded in review
    ("index", 1): ["hill"],
    ("index", 7): ["museum"],
}
PLACES = {
    "stave church": ("church", "human-made"),
    "chapel": ("church", "human-made"),
    "museum": ("museum", "human-made"),
    "mountain": ("mountain", "natural"),
    "hill": ("upland", "natural"),
}


def table(path):
    return list(csv.reader(path.read_text(encoding="utf-8").splitlines()))


@pytest.fixture
def project(tmp_path):
    made = landmarks(tmp_path / "p", TYPES)
    clean_labels(made, made.recipe.clean)
    return write_branch(made, PLACES, excluded={"protected area": "says nothing"}, events=2)


def test_the_published_columns_with_empty_cells_for_what_has_no_label(project, tmp_path):
    export_branch(project, tmp_path / "out", "final")
    assert table(tmp_path / "out" / "train_label_to_hierarchical.csv") == [
        ["landmark_id", "category", "supercategory", "hierarchical_label", "natural_or_human_made"],
        ["1", "http://commons/Category:1_train", "stave church", "church", "human-made"],
        ["2", "http://commons/Category:2_train", "chapel", "church", "human-made"],
        ["3", "http://commons/Category:3_train", "mountain", "mountain", "natural"],
        ["4", "http://commons/Category:4_train", "", "", ""],
        ["5", "http://commons/Category:5_train", "protected area", "", ""],
    ]
    assert [row[0] for row in table(tmp_path / "out" / "index_label_to_hierarchical.csv")] == ["landmark_id", "1", "7"]


def test_our_importer_reads_the_published_columns_back(project, tmp_path):
    export_branch(project, tmp_path / "out", "final", format="hgldv2")
    read = read_landmark_labels(tmp_path / "out" / "train_label_to_hierarchical.csv")
    assert read.landmarks.tolist() == [1, 2, 3]
    assert read.supercategory.to_pylist() == ["church", "church", "mountain"]
    assert read.kind.to_pylist() == ["human-made", "human-made", "natural"]
    assert not (tmp_path / "out" / "tree.json").exists()


def test_the_tree_has_items_for_its_finest_classes(project, tmp_path):
    export_branch(project, tmp_path / "out", "final")
    tree = LabelTree.read(tmp_path / "out" / "tree.json")
    assert tree.levels == ("landmark", "hierarchical_label", "natural_or_human_made")
    assert tree.names[0] == ("index 1", "index 7", "train 1", "train 2", "train 3")
    assert tree.names[1:] == (("church", "mountain", "museum", "upland"), ("human-made", "natural"))
    assert tree.path(2) == ("train 1", "church", "human-made")
    assert [one.tolist() for one in tree.images] == [[1] * 5, [2, 1, 1, 1], [3, 2]]


def test_tables_of_labels_and_groups(project, tmp_path):
    export_branch(project, tmp_path / "out", "final", format="csv")
    assert table(tmp_path / "out" / "labels.csv") == [
        ["label", "weight", "hierarchical_label", "natural_or_human_made", "excluded"],
        ["chapel", "1", "church", "human-made", ""],
        ["hill", "1", "upland", "natural", ""],
        ["mountain", "1", "mountain", "natural", ""],
        ["museum", "1", "museum", "human-made", ""],
        ["protected area", "1", "", "", "says nothing"],
        ["stave church", "1", "church", "human-made", ""],
    ]
    groups = table(tmp_path / "out" / "groups.csv")
    assert groups[0] == ["level", "id", "name", "parent", "labels", "items"]
    assert ["natural_or_human_made", "2", "human-made", "", "3", "3"] in groups
    assert ["hierarchical_label", "1", "church", "2", "2", "2"] in groups


def test_where_it_came_from(project, tmp_path):
    done = export_branch(project, tmp_path / "out", "final")
    told = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert (told["branch"], told["last_event"]) == ("final", 2)
    assert told["recipe"]["name"] == "hgldv2"
    assert told["steps"]["clean"]["settings"]["several"] == "single-only"
    assert told["files"] == done.files
    for name, digest in done.files.items():
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == digest
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [(event["seq"], event["who"], event["changes"]) for event in log] == [(1, "anna", []), (2, "anna", [])]
    with project.snapshot() as db:
        row = db.execute(
            "SELECT branch.name, seq, files_json, overridden_json FROM export JOIN branch ON branch.id = branch"
        ).fetchone()
    assert (row[0], row[1], json.loads(row[2]), row[3]) == ("final", 2, done.files, "[]")


def test_written_again_the_files_are_the_same_bytes(project, tmp_path):
    first = export_branch(project, tmp_path / "a", "final")
    again = export_branch(project, tmp_path / "b", "final")
    assert first.files == again.files
    names = {file.name for file in (tmp_path / "a").iterdir()}
    assert names == {*first.files, "provenance.json"} == {file.name for file in (tmp_path / "b").iterdir()}
    for name in first.files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_lint_errors_refuse_unless_forced_which_is_recorded(tmp_path):
    project = write_branch(plain(tmp_path / "p"), {**BIRDS, "wren": ("ocean area ", "songbird")})
    with pytest.raises(LintFailedError) as caught:
        export_branch(project, tmp_path / "out", "final")
    assert [one.code for one in caught.value.findings] == ["blanks"]
    assert not (tmp_path / "out").exists()
    done = export_branch(project, tmp_path / "out", "final", force=True)
    assert [one.names for one in done.overridden] == [("ocean area ",)]
    with project.snapshot() as db:
        (recorded,) = [json.loads(row[0]) for row in db.execute("SELECT overridden_json FROM export")]
    assert recorded[0]["names"] == ["ocean area "]


def test_a_project_of_labels_has_them_for_its_finest_classes(tmp_path):
    project = write_branch(plain(tmp_path / "p", {text: n for n, text in enumerate(BIRDS, start=1)}))
    done = export_branch(project, tmp_path / "out", "final")
    assert set(done.files) == {"tree.json", "labels.csv", "groups.csv", "log.jsonl"}
    tree = LabelTree.read(tmp_path / "out" / "tree.json")
    assert {tree.path(n)[0]: tree.path(n)[1:] for n in range(6)} == BIRDS
    assert dict(zip(tree.names[0], tree.images[0].tolist(), strict=True))["teal"] == 5
    with pytest.raises(ValueError, match="labels but no items, and format hgldv2 has a row per item"):
        export_branch(project, tmp_path / "none", "final", format="hgldv2")
    assert not (tmp_path / "none").exists()


paths = st.dictionaries(
    st.text("abcdefg", min_size=1, max_size=3),
    st.sampled_from([("x", "s"), ("y", "s"), ("z", "t"), ("w", "t"), None]),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(paths, st.integers(0, 9))
def test_export_import_export_is_the_identity(found, weight):
    tree = Hierarchy.from_paths(found, levels=LEVELS, weights=dict.fromkeys(found, weight))
    text = label_tree(tree).to_json()
    read = LabelTree.from_json(text)
    assert read.to_json() == text
    paths = {}
    for number, name in enumerate(read.names[0]):
        place, path = number, []
        for level in range(1, len(read.levels)):
            place = int(read.parents[level - 1][place])
            path.append(read.names[level][place])
        paths[name] = (tuple(path), int(read.images[0][number]))
    assert paths == {text: (path, weight) for text, path in found.items() if path is not None}


def photographs(names, split=None, **more):
    columns = {
        "path": [f"{n}.jpg" for n in range(len(names))],
        "split": split or ["train"] * len(names),
        "label_landmark": names,
    }
    return Manifest.from_columns(columns | more, root=".")


def test_a_manifest_gets_the_groups_above_the_landmark(project):
    tree = read_hierarchy(project, "final")
    ids = {label.text: label.id for label in tree.labels.values()}
    items = [
        ExportItem("train", "1", "", ids["stave church"]),
        ExportItem("train", "3", "", ids["mountain"]),
        ExportItem("index", "3", "", ids["museum"]),
        ExportItem("index", "9", "", None),
    ]
    names = ["Borgund (Norway) (train 1)", "train 3", "index 3", "1"]
    done = labeled_manifest(photographs(names), "landmark", tree, items)
    assert done.manifest.levels == ("landmark", "hierarchical_label", "natural_or_human_made")
    assert done.manifest.table["label_hierarchical_label"].to_pylist() == ["church", "mountain", "museum", "church"]
    assert done.manifest.table["label_natural_or_human_made"].to_pylist() == [
        "human-made",
        "natural",
        "human-made",
        "human-made",
    ]
    assert (done.dropped, done.replaced) == (0, ())
    assert done.manifest.two_parents() == []

    more = photographs([*names, "index 9", "3", "elsewhere"])  # 3 is in two splits: whose?
    with pytest.raises(ValueError, match=r"3 of 7 rows have a landmark without a group \(3: '3', 'elsewhere', 'index 9'\)"):
        labeled_manifest(more, "landmark", tree, items)
    done = labeled_manifest(more, "landmark", tree, items, drop_unlabeled=True)
    assert (len(done.manifest), done.dropped) == (4, 3)


def test_a_manifest_of_labels_by_any_spelling_and_distractors_stay():
    tree = Hierarchy.from_paths(BIRDS, levels=LEVELS)
    photos = photographs(["Jay", "teal ", None], split=["train", "train", "distractor"], label_old=["a", "b", None])
    done = labeled_manifest(photos, "landmark", tree)
    assert done.manifest.levels == ("landmark", "family", "order")
    assert done.manifest.table["label_family"].to_pylist() == ["Corvidae", "Anatidae", None]
    assert done.replaced == ("old",)
    assert np.array_equal(done.manifest.labels[:, 0], photos.labels[:, 0])  # ids of landmarks stay
    with pytest.raises(ValueError, match="no level 'species'; choose from landmark, old"):
        labeled_manifest(photos, "species", tree)
    with pytest.raises(ValueError, match="'landmark' is a level of the manifest"):
        labeled_manifest(photos, "landmark", Hierarchy.from_paths({"jay": ("x",)}, levels=("species", "landmark")))
    with pytest.raises(ValueError, match="is it the right level"):
        labeled_manifest(photographs(["x", "y"]), "landmark", tree, drop_unlabeled=True)


def test_export_writes_the_manifest_of_the_project(tmp_path):
    columns = {"path": ["a", "b"], "split": ["train", "test"], "label_species": ["jay", "teal"]}
    Manifest.from_columns(columns, root=tmp_path).save(tmp_path / "m.parquet")
    project = write_branch(plain(tmp_path / "p"))
    with pytest.raises(ValueError, match="knows no manifest"):
        export_branch(project, tmp_path / "out", "final", manifest_out=tmp_path / "new.parquet")
    assert not (tmp_path / "out").exists()
    with project.transaction() as db:
        db.execute("INSERT INTO meta VALUES ('manifest', ?), ('manifest_level', 'species')", (str(tmp_path / "m.parquet"),))
    export_branch(project, tmp_path / "out", "final", manifest_out=tmp_path / "new.parquet")
    read = Manifest.read(tmp_path / "new.parquet")
    assert read.levels == LEVELS
    assert read.to_tree().path(0) == ("jay", "Corvidae", "songbird")
    before = (tmp_path / "new.parquet").read_bytes()
    export_branch(project, tmp_path / "out", "final", manifest_out=tmp_path / "new.parquet")
    assert (tmp_path / "new.parquet").read_bytes() == before
    with project.snapshot() as db:
        options = json.loads(db.execute("SELECT options_json FROM export ORDER BY id DESC").fetchone()[0])
    assert (options["manifest"], options["level"]) == (str(tmp_path / "m.parquet"), "species")
    assert (options["manifest_out"], options["drop_unlabeled"]) == (str(tmp_path / "new.parquet"), False)
    for unread in ({"manifest": tmp_path / "m.parquet"}, {"level": "species"}, {"drop_unlabeled": True}):
        with pytest.raises(ValueError, match="need manifest_out"):
            export_branch(project, tmp_path / "out", "final", **unread)


def test_files_that_no_export_wrote_are_not_replaced(project, tmp_path):
    (tmp_path / "labels.csv").write_text("mine")
    with pytest.raises(FileExistsError, match="has labels.csv and no provenance.json, so no export wrote them"):
        export_branch(project, tmp_path, "final")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["labels.csv", "p"]
    assert (tmp_path / "labels.csv").read_text() == "mine"


def test_a_locked_project_and_a_full_disk_leave_nothing(project, tmp_path, monkeypatch):
    with closing(sqlite3.connect(project.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BusyError):
            export_branch(Project(project.folder, busy_seconds=0.05), tmp_path / "out", "final")
        other.execute("ROLLBACK")
    written = []

    def full(self, content):
        written.append(self.name)
        if len(written) == 3:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            export_branch(project, tmp_path / "out", "final")
    assert len(written) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["p"]
    with project.snapshot() as db:
        assert db.execute("SELECT count(*) FROM export").fetchone()[0] == 0


def test_a_name_under_two_parents_still_makes_a_tree_of_different_names():
    tree = Hierarchy.from_paths({"a": ("park", "natural"), "b": ("park", "human-made")}, levels=LEVELS)
    assert label_tree(tree).names[1] == ("park", "park #3")
