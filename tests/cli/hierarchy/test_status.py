"""suprank hierarchy status: steps, counts, branches, damage."""

import json
import sqlite3
from contextlib import closing

from suprank.hierarchy.project import record_step
from tests.cli.collection import done, invoke
from tests.hierarchy.branches import BIRDS, landmarks, plain, write_branch


def test_steps_counts_and_branches(tmp_path):
    project = plain(tmp_path / "p")
    some = {text: path for text, path in BIRDS.items() if text != "teal"}
    write_branch(project, some, name="anna", excluded={"teal": "rare"}, open_groups=["Anatidae"], events=4)
    said = done("hierarchy", "status", project.folder).stdout.splitlines()
    assert said[0].endswith("recipe plain, levels species, family, order")
    assert said[1].startswith("  new  20")
    assert said[2:] == [
        "6 labels; 0 clusters; 0 exports",
        "branch anna: 5 of 6 groups done, 5 of 6 labels reviewed, 1 excluded, 4 changes",
        "the file is intact",
    ]
    assert done("hierarchy", "status", project.folder, "--quiet").stdout == ""


def test_a_stale_step_is_told_and_json_has_all(tmp_path):
    project = landmarks(tmp_path / "p", {("train", 1): ["church"], ("index", 1): []})
    done("hierarchy", "types", project.folder, "--quiet")
    before = project.steps()["new"].result["digest"]
    with project.transaction() as db:
        record_step(db, "types", {}, inputs=before, result={}, digest="new types")
    said = done("hierarchy", "status", project.folder).stdout
    assert "STALE: an earlier step ran again" in said
    assert "2 items (1 index, 1 train), 1 with a label" in said
    assert "STALE" in done("hierarchy", "status", project.folder, "--quiet").stdout
    told = json.loads(done("hierarchy", "status", project.folder, "--json").stdout)
    assert {step["name"]: step["stale"] for step in told["steps"]} == {"new": False, "types": False, "clean": True}
    assert told["counts"]["reasons"] == {"no type was looked up yet": 1}
    assert told["damage"] == []


def test_damage_ends_with_1(tmp_path):
    project = write_branch(plain(tmp_path / "p"))
    with closing(sqlite3.connect(project.file)) as db:
        db.execute("DELETE FROM label WHERE id = 1")
        db.commit()
    result = invoke("hierarchy", "status", project.folder)
    assert result.exit_code == 1
    assert "DAMAGED: " in result.stdout
