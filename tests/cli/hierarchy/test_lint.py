"""suprank hierarchy lint: on a file and on a project, for people and as JSON, with its exit codes."""

import json

import pytest

from tests.cli.collection import done, invoke, refused
from tests.hierarchy.branches import BIRDS, plain, write_branch


@pytest.fixture
def file(tmp_path):
    rows = ["landmark_id,hierarchical_label,natural_or_human_made"]
    labels = (
        ["parks,natural"] * 3 + ["lake,natural", "ocean area ,natural", "castle / fort,human-made"] + ["church,human-made"] * 2
    )
    (tmp_path / "index.csv").write_text("\n".join([*rows, *(f"{n},{label}" for n, label in enumerate(labels))]))
    return tmp_path / "index.csv"


def test_a_file_with_errors_ends_with_6(file):
    result = invoke("hierarchy", "lint", file, "--recipe", "hgldv2")
    assert result.exit_code == 6
    assert result.stdout.splitlines() == [
        f"{file}: 8 landmark_id, 5 hierarchical_label, 2 natural_or_human_made",
        "1 error, 2 warnings",
        "error: invisible blanks (blanks, 1)",
        "  hierarchical_label 'ocean area ' ends in a blank",
        "warning: plurals among singulars (lone-plural, 1)",
        "  hierarchical_label 'parks' under 'natural' is a plural, and the other 2 are not",
        "warning: two names in one (slash, 1)",
        "  hierarchical_label 'castle / fort': choose one name, or make two groups",
    ]
    told = json.loads(invoke("hierarchy", "lint", file, "--json").stdout)
    assert (told["errors"], told["warnings"]) == (1, 2)
    assert told["findings"][0] == {
        "code": "blanks",
        "severity": "error",
        "level": "hierarchical_label",
        "names": ["ocean area "],
        "message": "hierarchical_label 'ocean area ' ends in a blank",
    }


def test_levels_can_be_chosen(file):
    said = done("hierarchy", "lint", file, "--level", "landmark_id", "--level", "natural_or_human_made").stdout.splitlines()
    assert said == [f"{file}: 8 landmark_id, 2 natural_or_human_made", "0 errors, 0 warnings"]


def test_warnings_alone_end_with_0(tmp_path):
    project = write_branch(plain(tmp_path / "p"), open_groups=["Corvidae"])
    said = done("hierarchy", "lint", project.folder).stdout.splitlines()
    assert said[1:3] == ["0 errors, 1 warning", "warning: groups that are not marked done (undone, 1)"]
    write_branch(project, BIRDS, name="anna")
    assert done("hierarchy", "lint", project.folder, "--branch", "anna", "--quiet").stdout == ""


def test_what_is_refused(file, tmp_path):
    assert "--branch is for projects" in refused("hierarchy", "lint", file, "--branch", "final")
    assert "no file" in refused("hierarchy", "lint", tmp_path / "none.csv")
    project = write_branch(plain(tmp_path / "p"))
    assert "--level is for files" in refused("hierarchy", "lint", project.folder, "--level", "x")
    file.write_text("id,group\n1\n")
    result = invoke("hierarchy", "lint", file)
    assert (result.exit_code, "index.csv:2: 1 cells" in result.stderr) == (3, True)
