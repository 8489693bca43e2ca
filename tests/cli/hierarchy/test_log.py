"""suprank hierarchy status --log: the log as text, and as JSON lines that can be replayed."""

import json

import pytest

from suprank.hierarchy.review import Branch, Rename, open_branch
from suprank.hierarchy.review.state import BranchState, Changes
from tests.cli.collection import done, refused
from tests.hierarchy.review.small_project import CHURCH, small_project


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_text_says_who_did_what_and_what_an_undo_undid():
    project = small_project("p")
    open_branch(project, "anna").apply(Rename(CHURCH, "Kirche"))
    Branch(project, "anna").undo(who="dora")
    open_branch(project, "ben")
    lines = done("hierarchy", "status", "--log", "p").stdout.splitlines()
    assert [line.split("Z  ")[1] for line in lines] == [
        "anna  suprank: started from 3 clusters of 7 labels",
        "anna  anna: renamed 'church' to 'Kirche'",
        "anna  dora: undid: renamed 'church' to 'Kirche'  (event 2)",
        "ben  suprank: started from 3 clusters of 7 labels",
    ]
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "4"]
    assert len(done("hierarchy", "status", "--log", "p", "--branch", "ben").stdout.splitlines()) == 1
    assert "there is no branch 'carl'; choose from anna, ben" in refused(
        "hierarchy", "status", "--log", "p", "--branch", "carl"
    )


def test_json_lines_replayed_give_the_branch():
    project = small_project("p")
    anna = open_branch(project, "anna")
    anna.apply(Rename(CHURCH, "Kirche"))
    anna.undo()
    events = [
        json.loads(line) for line in done("hierarchy", "status", "--log", "p", "--branch", "anna", "--json").stdout.splitlines()
    ]
    assert [event["act"] for event in events] == ["start", "rename", "undo"]
    assert set(events[1]) == {"seq", "at", "branch", "who", "act", "said", "changes", "undoes"}
    assert events[-1]["undoes"] == events[-2]["seq"]
    groups, places = {}, {}
    for event in events:
        changes = Changes.from_dict(event["changes"])
        groups.update({one: after for one, (_, after) in changes.groups.items()})
        places.update({one: after for one, (_, after) in changes.labels.items()})
    with project.snapshot() as db:
        state = BranchState(db, anna.id)
        assert {one: row for one, row in groups.items() if row is not None} == state.groups()
        assert places == state.all_places()


def test_a_project_without_a_review_has_an_empty_log():
    small_project("p")
    assert done("hierarchy", "status", "--log", "p").stdout == ""
    assert "has no branch yet" in refused("hierarchy", "status", "--log", "p", "--branch", "anna")
    assert "--branch belongs to --log" in refused("hierarchy", "status", "p", "--branch", "anna")
