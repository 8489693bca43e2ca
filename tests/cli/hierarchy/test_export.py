"""suprank hierarchy export: what is written, and exit code 6 while lint has errors."""

import json

import pytest

from suprank.data import Manifest
from suprank.hierarchy.review import Mark, open_branch
from suprank.hierarchy.tree import read_hierarchy
from tests.cli.collection import done, invoke, refused
from tests.hierarchy.branches import BIRDS, plain, write_branch
from tests.hierarchy.review.small_project import two_branches


@pytest.fixture
def project(tmp_path):
    return write_branch(plain(tmp_path / "p"))


def test_files_and_a_manifest(project, tmp_path):
    columns = {"path": ["a", "b", "c"], "split": ["train"] * 3, "label_species": ["jay", "teal", "emu"]}
    Manifest.from_columns(columns, root=tmp_path).save(tmp_path / "m.parquet")
    arguments = ("--manifest", tmp_path / "m.parquet", "--manifest-out", tmp_path / "new.parquet")
    assert "1 of 3 rows have a species without a group (1: 'emu')" in refused(
        "hierarchy", "export", project.folder, "--out", tmp_path / "out", *arguments
    )
    assert not (tmp_path / "out").exists()
    said = done(
        "hierarchy", "export", project.folder, "--out", tmp_path / "out", *arguments, "--drop-unlabeled"
    ).stdout.splitlines()
    assert said[0] == f"{tmp_path / 'out'}: branch final, tree.json, labels.csv, groups.csv, log.jsonl, provenance.json"
    assert said[1].startswith(f"{tmp_path / 'new.parquet'}: Manifest(2 train; ")
    assert said[2] == "dropped without a group: 1 row"
    assert (
        done("hierarchy", "export", project.folder, "--out", tmp_path / "out", "--format", "tree-json", "--quiet").stdout == ""
    )


def test_lint_errors_end_with_6_and_force_writes(tmp_path):
    project = write_branch(plain(tmp_path / "p"), {**BIRDS, "wren": ("wrens ", "songbird")})
    result = invoke("hierarchy", "export", project.folder, "--out", tmp_path / "out")
    assert result.exit_code == 6
    assert "family 'wrens ' ends in a blank" in result.stderr
    assert "with --force" in result.stderr
    assert not (tmp_path / "out").exists()
    said = done("hierarchy", "export", project.folder, "--out", tmp_path / "out", "--force").stdout
    assert "written in spite of 1 lint error, as provenance.json records" in said


def test_what_is_refused(project, tmp_path):
    assert "no branch 'anna'; choose from final" in refused(
        "hierarchy", "export", project.folder, "--out", tmp_path / "out", "--branch", "anna"
    )
    (tmp_path / "file").write_text("")
    assert "is a file; name a folder" in refused("hierarchy", "export", project.folder, "--out", tmp_path / "file")


def test_what_nobody_has_decided_is_counted(tmp_path):
    project, out = two_branches(tmp_path / "p"), tmp_path / "out"
    final = open_branch(project, "final", source="anna", against="ben")
    result = done("hierarchy", "export", project.folder, "--out", out, "--force", "--quiet")
    decide = f"decide them with `suprank hierarchy review {project.folder} --annotator final`, and export again.\n"
    assert result.stderr == f"{out} has undecided parts: 3 doubtful labels; {decide}"
    assert json.loads((out / "provenance.json").read_text())["undecided"] == {"doubtful label": 3}
    final.apply(Mark(tuple(read_hierarchy(project, "final").groups), "done"))
    assert done("hierarchy", "export", project.folder, "--out", out, "--force", "--quiet").stderr == ""
    assert json.loads((out / "provenance.json").read_text())["undecided"] == {}


def test_check_lists_what_lint_finds_and_writes_nothing(project, tmp_path):
    write_branch(project, {**BIRDS, "wren": ("wrens ", "songbird")}, name="anna", open_groups=["Corvidae"])
    result = invoke("hierarchy", "export", project.folder, "--branch", "anna", "--check")
    assert result.exit_code == 6
    assert result.stdout.splitlines() == [
        f"{project.folder}, branch anna",
        "1 error, 1 warning",
        "error: invisible blanks (blanks, 1)",
        "  family 'wrens ' ends in a blank",
        "warning: groups that are not marked done (undone, 1)",
        "  1 of 4 family are not marked done: 'Corvidae'",
    ]
    told = json.loads(invoke("hierarchy", "export", project.folder, "--branch", "anna", "--check", "--json").stdout)
    assert (told["errors"], told["warnings"], told["findings"][0]["names"]) == (1, 1, ["wrens "])
    assert done("hierarchy", "export", project.folder, "--check", "--quiet").stdout == ""
    assert "give --out, the folder to write to, or --check" in refused("hierarchy", "export", project.folder)
