"""Levels 2 and 3 of H-GLDv2 as published, rebuilt from its 78 labels by two annotators on the review's pages."""

import csv
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from suprank.cli.app import app
from suprank.data import LabelTree
from suprank.hierarchy import Project
from suprank.hierarchy.review import Mark, open_branch
from suprank.hierarchy.tree import read_hierarchy
from tests.hierarchy.review.small_project import tree
from tests.hierarchy.review.web.annotator import Annotator

LABELS = Path(__file__).parents[3] / "shared" / "data" / "hgldv2_index_labels.csv"
pytestmark = pytest.mark.skipif(not LABELS.is_file(), reason="the labels of H-GLDv2 are not beside this checkout")


def run(*words, code=0):
    result = CliRunner().invoke(app, ["hierarchy", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def published():
    with LABELS.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def parents(published):
    """Label → its kind."""
    return {row["hierarchical_label"]: row["natural_or_human_made"] for row in published}


def split_and_name(who, parents):
    """Walk through the clusters: split every label off but one, name what stays after that one, and choose parents."""
    clusters = groups_of(who)
    for number in clusters:
        press(who, number, "rename", name=f"cluster {number}")  # no suggested name is in the way of a label
    for number, (_, labels) in clusters.items():
        for label in labels[1:]:
            press(who, number, "split", [label], split_name=label)
        press(who, number, "rename", name=labels[0])
    for kind, number in (("human-made", 1), ("natural", 2)):
        put_under(who, [label for label, parent in parents.items() if parent == kind], number)


def press(who, group, button, labels=(), **fields):
    who.get(f"/group/{group}")
    who.press(button, labels, **fields)


def put_under(who, labels, parent):
    who.get("/tree")
    who.press("put", labels, parent=parent)


def groups_of(who):
    """Id → name and labels of the groups that have some."""
    found = tree(who.branch)[0]
    with who.branch.project.snapshot() as db:
        ids = dict(db.execute('SELECT name, id FROM "group" WHERE branch = ? AND level = 1', (who.branch.id,)).fetchall())
    return {number: (name, found[name][1]) for name, number in ids.items()}


def see_otherwise(who):
    """The second annotator sees some things otherwise."""
    ids = {name: number for number, (name, _) in groups_of(who).items()}
    for label, button, fields in (
        ("village", "move", {"to": "settlement"}),
        ("ruins", "exclude", {"reason": "a state, not a kind"}),
        ("lake", "rename", {"name": "lakes"}),
    ):
        press(who, ids[label], button, [label], **fields)
    put_under(who, ["canal", "garden"], 1)


@pytest.mark.slow
def test_two_annotators_rebuild_the_published_hierarchy(tmp_path, published, parents):
    folder = tmp_path / "landmarks"
    run("new", folder, "--recipe", "hgldv2", "-q")
    run("types", folder, "--from-csv", f"index={LABELS}", "items.type=hierarchical_label", "-q")
    run("cluster", folder, "--encoder", "tfidf", "-k", 12, "--seeds", 1, "-q")
    project = Project(folder)
    anna, ben = (Annotator(project, open_branch(project, name)) for name in ("anna", "ben"))
    for who in (anna, ben):
        split_and_name(who, parents)
    see_otherwise(ben)
    assert len(groups_of(anna)) == 78
    assert anna.branch.problems() == ben.branch.problems() == []

    figures = json.loads(run("agree", folder, "--json"))
    assert figures["aligned"]["percent"]["value"] == pytest.approx(76 / 77)  # the village; ruins only one has in a group
    assert "5 disagreements: 2 labels, 1 name, 2 parents" in run("agree", folder)
    final = Annotator(project, open_branch(project, "final", source="anna", against="ben"))
    assert re.findall(r'<span class="tag doubt"[^>]*>(.*?)</span>', final.get("/doubtful")) == [
        "ben: settlement",
        "ben: excluded: a state, not a kind",
    ]
    final.branch.apply(Mark(tuple(read_hierarchy(project, "final").groups), "done"))
    assert "Nothing is doubtful" in final.get("/doubtful")
    assert "\n1 error, 9 warnings\n" in run("export", folder, "--check", code=6)
    run("export", folder, "--out", tmp_path / "out", code=6)  # "ocean area " ends in a blank, as published
    run("export", folder, "--out", tmp_path / "out", "--force")
    with (tmp_path / "out" / "index_label_to_hierarchical.csv").open(newline="") as file:
        rebuilt = list(csv.DictReader(file))
    levels = ("landmark_id", "hierarchical_label", "natural_or_human_made")
    assert [[row[name] for name in levels] for row in rebuilt] == [[row[name] for name in levels] for row in published]
    tree = LabelTree.read(tmp_path / "out" / "tree.json")
    assert [len(names) for names in tree.names] == [55_529, 78, 2]
    assert tree.images[2].tolist() == [42_199, 13_330]
