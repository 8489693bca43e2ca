import pytest

from suprank.hierarchy.adjudication import Adjudication, open_final_branch, read_origin
from suprank.hierarchy.review import Branch, Create, Exclude, Move, Rename, open_branch
from tests.hierarchy.adjudication.two_branches import two_branches
from tests.hierarchy.review.small_project import CHURCH, ID, small_project, tree

ANNA = {
    "church": ["church", "made"],
    "chapel": ["church", "made"],
    "castle": ["castle", "made"],
    "fort": ["fort", "made"],
    "lake": ["lake", "natural"],
    "river": ["lake", "natural"],
    "site": "no place",
    "heritage": "vague",
}
BEN = {
    "church": ["cathedral", "made"],
    "chapel": ["cathedral", "made"],
    "castle": ["castle", "old"],
    "fort": ["castle", "old"],
    "lake": ["lake", "natural"],
    "river": ["stream", "natural"],
    "site": "nothing",
    "heritage": ["castle", "old"],
}


@pytest.fixture
def project(tmp_path):
    return two_branches(tmp_path / "project", ANNA, BEN)


def test_final_starts_with_what_both_agree_on(project):
    final = open_final_branch(project, "anna", "ben")
    assert (final.name, final.kind, final.clustering) == ("final", "final", 1)
    groups, excluded = tree(final)
    assert groups == {
        "church": ("made", ["chapel", "church"]),  # anna's name, until decided
        "castle": (None, ["castle"]),  # its parent is not agreed on
        "lake": ("natural", ["lake"]),
        "made": (None, []),
        "natural": (None, []),
    }
    assert excluded == {"fort": "unsettled", "river": "unsettled", "heritage": "unsettled", "site": "no place"}
    assert [event.summary for event in final.log()] == ["started from anna and ben: 5 labels agreed, 3 to resolve"]
    assert final.problems() == []


def test_continuing_changes_nothing_and_another_pair_is_refused(project):
    before = tree(open_final_branch(project, "anna", "ben"))
    final = open_final_branch(project, "anna", "ben")
    assert (tree(final), len(final.log())) == (before, 1)
    with pytest.raises(ValueError, match="started from anna and ben, not from ben and anna"):
        open_final_branch(project, "ben", "anna")
    with pytest.raises(ValueError, match="name the branches of two annotators"):
        open_final_branch(project, "anna", "final")
    with pytest.raises(ValueError, match="there is no branch 'carl'"):
        open_final_branch(project, "anna", "carl", restart=True)


def test_later_actions_of_an_annotator_are_reported_and_not_included(project):
    final = open_final_branch(project, "anna", "ben")
    before, adjudication = tree(final), Adjudication(project)
    waiting = [one.disagreement for one in adjudication.status().cases["label"]]
    assert adjudication.status().changed == {}
    Branch(project, "ben").apply(Rename(1, "minster"))
    open_final_branch(project, "anna", "ben")
    fresh = Adjudication(project).status()
    assert fresh.changed == {"ben": 1}
    assert [one.disagreement for one in fresh.cases["label"]] == waiting
    assert tree(final) == before


def test_a_restart_takes_the_branches_as_they_are_now_while_nobody_has_decided(project):
    final = open_final_branch(project, "anna", "ben")
    Branch(project, "ben").apply(Move((4,), 1))
    again = open_final_branch(project, "anna", "ben", restart=True)
    with project.snapshot() as db:
        assert read_origin(db).second_seq == Branch(project, "ben").log()[0].seq
    assert (again.id, again.problems()) == (final.id, [])
    assert Adjudication(project).status().changed == {}
    assert again.undoable() == (None, None)
    swapped = open_final_branch(project, "ben", "anna", restart=True)
    assert "cathedral" in tree(swapped)[0]
    assert "church" not in tree(swapped)[0]
    assert swapped.problems() == []
    adjudication = Adjudication(project)
    adjudication.resolve([adjudication.status().cases["label"][0].disagreement], "first")
    with pytest.raises(ValueError, match="final has decisions of people"):
        open_final_branch(project, "ben", "anna", restart=True)


def test_labels_added_later_wait_for_a_decision(project):
    final = open_final_branch(project, "anna", "ben")
    with project.transaction() as db:
        db.execute("INSERT INTO label (id, key, text, weight, state) VALUES (20, 'moor', 'moor', 7, 'active')")
    adjudication = Adjudication(project)
    assert "moor" not in [one.disagreement.about for one in adjudication.status().cases["label"]]
    open_final_branch(project, "anna", "ben")
    assert tree(final)[1]["moor"] == "unsettled"
    (moor,) = [one for one in Adjudication(project).status().cases["label"] if one.disagreement.about == "moor"]
    assert moor.disagreement.descriptions == ("not looked at yet", "not looked at yet")
    assert final.problems() == []


def test_ids_of_the_plan_are_reserved(project):
    final = open_final_branch(project, "anna", "ben")
    final.apply(Create(1, "mine"))
    adjudication = Adjudication(project)
    (river,) = [one.disagreement for one in adjudication.status().cases["label"] if one.disagreement.about == "river"]
    adjudication.resolve([river], "second")
    assert tree(final)[0]["stream"] == ("natural", ["river"])
    assert tree(final)[0]["mine"] == (None, [])


def test_branches_on_two_clusterings_can_be_adjudicated(tmp_path):
    project = small_project(tmp_path / "project")
    open_branch(project, "anna")
    with project.transaction() as db:
        db.execute("INSERT INTO clustering VALUES (2, 1, '{}', 'x', '{}', 'later')")
        db.execute("""INSERT INTO cluster VALUES (2, 0, '["thing"]', 0.5, 0.9)""")
        db.execute("INSERT INTO cluster_member SELECT 2, label, 0, 0.8, 0.1 FROM cluster_member")
    open_branch(project, "ben").apply(Exclude((ID["fort"],), "no"))
    final = open_final_branch(project, "anna", "ben")
    assert final.clustering == 1
    groups, excluded = tree(final)
    assert groups["church"] == (None, ["chapel", "church", "heritage site"])  # 75 of the items in common
    assert set(excluded) == {"castle", "fort", "lake", "river"}
    assert CHURCH in Adjudication(project).group_rows()
