import pytest

from suprank.hierarchy.adjudication import Settling, begin_final, origin_of
from suprank.hierarchy.review import Branch, Create, Exclude, Move, Rename, opened_branch
from tests.hierarchy.adjudication.two import two_branches
from tests.hierarchy.review.small import CHURCH, ID, small_project, tree

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


def test_final_begins_with_what_both_agree_on(project):
    final = begin_final(project, "anna", "ben")
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
    assert [event.said for event in final.log()] == ["began from anna and ben: 5 labels agreed, 3 to settle"]
    assert final.problems() == []


def test_going_on_changes_nothing_and_another_pair_is_refused(project):
    before = tree(begin_final(project, "anna", "ben"))
    final = begin_final(project, "anna", "ben")
    assert (tree(final), len(final.log())) == (before, 1)
    with pytest.raises(ValueError, match="began from anna and ben, not ben and anna"):
        begin_final(project, "ben", "anna")
    with pytest.raises(ValueError, match="name the branches of two annotators"):
        begin_final(project, "anna", "final")
    with pytest.raises(ValueError, match="there is no branch 'carl'"):
        begin_final(project, "anna", "carl", restart=True)


def test_later_acts_of_an_annotator_are_told_and_not_taken_over(project):
    final = begin_final(project, "anna", "ben")
    before, settling = tree(final), Settling(project)
    waiting = [one.disagreement for one in settling.now().subjects["label"]]
    assert settling.now().changed == {}
    Branch(project, "ben").do(Rename(1, "minster"))
    begin_final(project, "anna", "ben")
    fresh = Settling(project).now()
    assert fresh.changed == {"ben": 1}
    assert [one.disagreement for one in fresh.subjects["label"]] == waiting
    assert tree(final) == before


def test_a_restart_takes_the_branches_as_they_are_now_while_nobody_has_decided(project):
    final = begin_final(project, "anna", "ben")
    Branch(project, "ben").do(Move((4,), 1))
    again = begin_final(project, "anna", "ben", restart=True)
    with project.reading() as db:
        assert origin_of(db).second_seq == Branch(project, "ben").log()[0].seq
    assert (again.id, again.problems()) == (final.id, [])
    assert Settling(project).now().changed == {}
    assert again.undoable() == (None, None)
    swapped = begin_final(project, "ben", "anna", restart=True)
    assert "cathedral" in tree(swapped)[0]
    assert "church" not in tree(swapped)[0]
    assert swapped.problems() == []
    settling = Settling(project)
    settling.settle([settling.now().subjects["label"][0].disagreement], "first")
    with pytest.raises(ValueError, match="final holds work of people"):
        begin_final(project, "ben", "anna", restart=True)


def test_labels_that_came_since_wait_as_unsettled(project):
    final = begin_final(project, "anna", "ben")
    with project.writing() as db:
        db.execute("INSERT INTO label (id, key, text, weight, state) VALUES (20, 'moor', 'moor', 7, 'active')")
    settling = Settling(project)
    assert "moor" not in [one.disagreement.about for one in settling.now().subjects["label"]]
    begin_final(project, "anna", "ben")
    assert tree(final)[1]["moor"] == "unsettled"
    (moor,) = [one for one in Settling(project).now().subjects["label"] if one.disagreement.about == "moor"]
    assert moor.disagreement.sides == ("not looked at yet", "not looked at yet")
    assert final.problems() == []


def test_ids_of_the_plan_are_not_given_to_groups_that_people_make(project):
    final = begin_final(project, "anna", "ben")
    final.do(Create(1, "mine"))
    settling = Settling(project)
    (river,) = [one.disagreement for one in settling.now().subjects["label"] if one.disagreement.about == "river"]
    settling.settle([river], "second")
    assert tree(final)[0]["stream"] == ("natural", ["river"])
    assert tree(final)[0]["mine"] == (None, [])


def test_branches_on_two_clusterings_are_settled_too(tmp_path):
    project = small_project(tmp_path / "project")
    opened_branch(project, "anna")
    with project.writing() as db:
        db.execute("INSERT INTO clustering VALUES (2, 1, '{}', 'x', '{}', 'later')")
        db.execute("""INSERT INTO cluster VALUES (2, 0, '["thing"]', 0.5, 0.9)""")
        db.execute("INSERT INTO cluster_member SELECT 2, label, 0, 0.8, 0.1 FROM cluster_member")
    opened_branch(project, "ben").do(Exclude((ID["fort"],), "no"))
    final = begin_final(project, "anna", "ben")
    assert final.clustering == 1
    groups, excluded = tree(final)
    assert groups["church"] == (None, ["chapel", "church", "heritage site"])  # 75 of the items in common
    assert set(excluded) == {"castle", "fort", "lake", "river"}
    assert CHURCH in Settling(project).plan_now().rows
