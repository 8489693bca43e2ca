"""suprank hierarchy clean: options over the recipe, the list of removals, JSON."""

import json

import pytest

from tests.cli.collection import done, refused
from tests.hierarchy.branches import landmarks, plain


@pytest.fixture
def project(tmp_path):
    types = {
        ("train", 1): [("church", "Q1")],
        ("train", 2): [("church", "Q1"), ("museum", "Q2")],
        ("index", 1): [("list", "Q13406463")],
    }
    return landmarks(tmp_path / "p", types)


def test_what_is_said_and_listed(project, tmp_path):
    said = done("hierarchy", "clean", project.folder, "--list", tmp_path / "removed.csv", "--quiet")
    assert said.stdout.splitlines() == [
        "1 of 3 items have a label (33.3%); 1 label",
        "  1 item left out: several types",
        "  1 item left out: Wikimedia list article",
        "items with several types, by rule:",
        "  single-only: 1 item and 1 label would be kept  (used)",
        "  first: 2 items and 1 label would be kept",
        "  most-specific: 1 item and 1 label would be kept",
        "  most-frequent: 2 items and 1 label would be kept",
        f"{tmp_path / 'removed.csv'}: 2 removals",
    ]
    assert (tmp_path / "removed.csv").read_text().splitlines() == [
        "split,id,types,reason",
        "train,2,church | museum,several types",
        "index,1,list,Wikimedia list article",
    ]
    assert (
        done("hierarchy", "clean", project.folder, "--quiet").stdout.splitlines()[-1] == "the same as before: nothing changed"
    )


def test_options_go_over_the_recipe_and_are_recorded(project):
    said = json.loads(
        done("hierarchy", "clean", project.folder, "--several", "first", "--least-items", 2, "--json", "--quiet").stdout
    )
    assert (said["labeled"], said["labels"], said["changed"]) == (2, 1, True)
    assert said["policies"]["first"] == {"items": 2, "labels": 1}
    settings = project.steps()["clean"].settings
    assert (settings["several"], settings["least_items"], settings["ended"]) == ("first", 2, "keep")


def test_what_is_refused(project, tmp_path):
    assert "holds no project" in refused("hierarchy", "clean", tmp_path)
    assert "neither items nor labels" in refused("hierarchy", "clean", plain(tmp_path / "empty", {}, ("label", "group")).folder)
    assert "single-only" in refused("hierarchy", "clean", project.folder, "--several", "all")
