"""suprank hierarchy agree: what it prints, and what it writes."""

import csv
import json
import re

import pytest

from suprank.hierarchy.review import open_branch
from tests.cli.collection import done, refused
from tests.hierarchy.review.small_project import ANNA, BEN, two_branches, write_branch


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return two_branches("p", ANNA, BEN, weights={"river": 9, "fort": 5})


def test_figures_the_groups_that_differ_and_the_number_of_disagreements_are_printed():
    lines = done("hierarchy", "agree", "p").stdout.splitlines()
    assert lines[:3] == [
        "anna and ben: both have put 6 of 8 labels into a group",
        "excluded: 1 by both, 1 by anna alone, 0 by ben alone",
        "6 of 6 labels are in groups marked done by both",
    ]
    text = "\n".join(lines)
    # anna: {church chapel} {castle} {fort} {lake river}; ben: {church chapel} {castle fort} {lake} {river}.
    assert "pairs of labels together     precision 0.500, recall 0.500, F1 0.500  (anna against ben)" in text
    assert re.search(r"^  groups +6 +66\.7% +0\.571 ", text, re.MULTILINE)  # (4/6 − 8/36) / (1 − 8/36)
    assert re.search(r"^  groups, by name alone +6 +33\.3% +0\.250 ", text, re.MULTILINE)  # (2/6 − 4/36) / (1 − 4/36)
    assert re.search(r"^  kind, of the groups +6 ", text, re.MULTILINE)
    start = lines.index("groups that differ")
    assert [line.split() for line in lines[start + 1 : start + 5]] == [
        ["anna", "ben", "common", "only", "anna", "only", "ben", "items", "apart"],
        ["lake", "lake", "1", "1", "0", "9"],
        ["–", "stream", "0", "0", "1", "9"],
        ["castle", "castle", "1", "0", "2", "6"],
    ]
    assert lines[-1] == "5 disagreements: 3 labels, 1 name, 1 parent"
    quiet = done("hierarchy", "agree", "p", "--quiet").stdout
    assert "groups that differ" not in quiet
    assert "5 disagreements" in quiet


def test_json_has_the_same_figures_with_null_for_undefined_ones():
    found = json.loads(done("hierarchy", "agree", "p", "anna", "ben", "--json").stdout)
    assert (found["first"], found["placed"], found["disagreements"]) == ("anna", 6, {"label": 3, "name": 1, "parent": 1})
    assert found["pairs"]["f1"] == {"value": 0.5, "undefined": ""}
    two_branches("one", {"a": ["x"]}, {"a": ["x"]})
    alone = json.loads(done("hierarchy", "agree", "one", "--json").stdout)
    assert alone["aligned"]["kappa"] == {"value": None, "undefined": "both use one category only"}
    text = done("hierarchy", "agree", "one").stdout
    assert "adjusted Rand index          undefined (both put all labels into one group)" in text
    assert re.search(r"groups +1 +100\.0% +undefined +undefined  \(both use one category only\)", text)
    assert text.endswith("0 disagreements: 0 labels, 0 names, 0 parents\n")


def test_all_disagreements_are_written_to_a_file(tmp_path):
    assert "out/d.csv: 5 disagreements" in done("hierarchy", "agree", "p", "--list", "out/d.csv").stdout
    with (tmp_path / "out/d.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["kind"], row["level"], row["about"], row["items"], row["first"], row["second"]) for row in rows] == [
        ("label", "label", "river", "9", "lake", "stream"),
        ("label", "label", "fort", "5", "fort", "castle"),
        ("label", "label", "heritage", "1", "excluded: vague", "castle"),
        ("name", "supercategory", "church | cathedral", "2", "church", "cathedral"),
        ("parent", "supercategory", "castle", "7", "made", "old"),
    ]
    assert "is a folder" in refused("hierarchy", "agree", "p", "--list", "out")


def test_two_branches_are_named_where_there_are_more(project):
    assert "1 branches are named; name two, or none" in refused("hierarchy", "agree", "p", "anna")
    open_branch(project, "final", source="anna", against="ben")
    assert "anna and ben: both" in done("hierarchy", "agree", "p").stdout  # final is not one of the annotators
    write_branch(project, "carl", ANNA)
    said = refused("hierarchy", "agree", "p")
    assert "between two branches, and the annotators' branches are anna, ben, carl; name two of them" in said
    assert "0 disagreements" in done("hierarchy", "agree", "p", "anna", "carl").stdout
    assert "there is no branch 'dora'; choose from anna, ben, final, carl" in refused("hierarchy", "agree", "p", "anna", "dora")
    assert "compared with itself" in refused("hierarchy", "agree", "p", "anna", "anna")
    assert "create it with" in refused("hierarchy", "agree", "nowhere")
