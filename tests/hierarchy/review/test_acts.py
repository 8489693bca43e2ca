import pytest

from suprank.hierarchy.review import (
    ConflictError,
    Create,
    Delete,
    Exclude,
    Gather,
    Mark,
    Merge,
    Move,
    Note,
    RefusedError,
    Rename,
    SetParent,
    Split,
    opened_branch,
)
from tests.hierarchy.review.small import CASTLE, CHURCH, HUMAN, ID, LAKE, NATURAL, small_project, tree


@pytest.fixture
def branch(tmp_path):
    return opened_branch(small_project(tmp_path / "project"), "anna")


def groups(branch):
    return tree(branch)[0]


def test_a_branch_begins_with_the_clusters_under_suggested_names_beside_the_known_kinds(branch):
    assert groups(branch) == {
        "human-made": (None, []),
        "natural": (None, []),
        "church": (None, ["chapel", "church", "heritage site"]),
        "castle": (None, ["castle", "fort"]),
        "lake": (None, ["lake", "river"]),
    }
    with branch.project.reading() as db:
        named = dict(db.execute('SELECT name, named FROM "group"').fetchall())
    assert named == {"human-made": 1, "natural": 1, "church": 0, "castle": 0, "lake": 0}


def test_a_split_takes_its_labels_and_stays_under_the_same_parent(branch):
    branch.do(SetParent((LAKE,), NATURAL))
    event = branch.do(Split(LAKE, (ID["river"],), "river"))
    assert event.said == "split 'river' (1 label) off 'lake'"
    assert groups(branch)["river"] == ("natural", ["river"])
    assert groups(branch)["lake"] == ("natural", ["lake"])


def test_a_merge_takes_labels_along_and_groups_below(branch):
    branch.do(Merge((CHURCH, CASTLE), CASTLE))
    assert groups(branch)["castle"][1] == ["castle", "chapel", "church", "fort", "heritage site"]
    assert "church" not in groups(branch)
    branch.do(SetParent((CASTLE, LAKE), HUMAN))
    branch.do(Merge((HUMAN,), NATURAL))
    assert groups(branch)["castle"][0] == groups(branch)["lake"][0] == "natural"
    assert "human-made" not in groups(branch)


def test_moving_all_labels_out_of_a_group_removes_it(branch):
    event = branch.do(Move((ID["castle"], ID["fort"], ID["chapel"]), LAKE))
    assert event.said == "moved 3 labels to 'lake'; 'castle' is empty and removed"
    assert groups(branch)["lake"][1] == ["castle", "chapel", "fort", "lake", "river"]
    assert "castle" not in groups(branch)


def test_labels_from_anywhere_are_gathered_in_a_new_group(branch):
    branch.do(Exclude((ID["heritage site"],), "a status"))
    event = branch.do(Gather((ID["heritage site"], ID["castle"], ID["fort"], ID["river"]), "sights"))
    assert event.said == "gathered 4 labels as 'sights'; 'castle' is empty and removed"
    assert groups(branch)["sights"] == (None, ["castle", "fort", "heritage site", "river"])


def test_excluded_labels_keep_their_reason_and_come_back_by_moving(branch):
    branch.do(Exclude((ID["heritage site"],), " a status, not a kind "))
    assert tree(branch)[1] == {"heritage site": "a status, not a kind"}
    branch.do(Move((ID["heritage site"],), CASTLE))
    assert tree(branch)[1] == {}
    assert groups(branch)["castle"][1] == ["castle", "fort", "heritage site"]


def test_names_are_kept_as_typed_and_taking_a_suggestion_is_an_act(branch):
    with pytest.raises(RefusedError, match="only a suggestion"):
        branch.do(Mark((LAKE,), "done"))
    assert branch.do(Rename(LAKE, "lake")).said == "named 'lake'"
    branch.do(Mark((LAKE,), "done"))
    branch.do(Rename(CASTLE, "ocean area "))
    assert "ocean area " in groups(branch)


def test_notes_marks_and_empty_groups(branch):
    branch.do(Note(LAKE, "  with reservoirs? "))
    branch.do(Create(1, "bridge", HUMAN))
    branch.do(Rename(LAKE, "lakes"))
    branch.do(Mark((LAKE,), "done"))
    with branch.project.reading() as db:
        row = db.execute('SELECT note, state FROM "group" WHERE name = ?', ("lakes",)).fetchone()
    assert tuple(row) == ("with reservoirs?", "done")
    assert groups(branch)["bridge"] == ("human-made", [])
    branch.do(Delete(6))
    assert "bridge" not in groups(branch)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (Split(CASTLE, (ID["castle"], ID["fort"]), "forts"), "all labels of 'castle'; rename it"),
        (Split(CASTLE, (), "forts"), "at least one label"),
        (Split(CASTLE, (ID["fort"],), "  "), "1 to 200 characters"),
        (Split(CASTLE, (ID["fort"],), "two\nlines"), "1 to 200 characters"),
        (Split(CASTLE, (ID["fort"],), "LAKE"), "called 'lake' already; merge"),
        (Merge((CASTLE,), CASTLE), "at least one other group"),
        (Merge((CASTLE,), HUMAN), "another level"),
        (Move((ID["fort"],), HUMAN), "holds groups, not labels"),
        (Move((99,), LAKE), "not on this branch"),
        (Exclude((ID["fort"],), ""), "Give a reason"),
        (Exclude((ID["fort"],), "unsettled"), "Give a reason"),
        (Rename(CASTLE, "Natural" * 40), "1 to 200 characters"),
        (SetParent((HUMAN,), NATURAL), "cannot stand under"),
        (SetParent((CASTLE,), LAKE), "cannot stand under"),
        (Create(3, "all"), "no level 3"),
        (Create(2, "kind", HUMAN), "cannot stand under"),
        (Delete(CASTLE), "still holds 2; merge"),
        (Note(CASTLE, "x" * 2001), "2,001 characters"),
        (Mark((CASTLE,), "perfect"), "no state"),
        (Mark((CASTLE,), "open"), "changes nothing"),
        (SetParent((CASTLE,), None), "changes nothing"),
        (Move((ID["fort"],), CASTLE), "changes nothing"),
    ],
    ids=str,
)
def test_what_breaks_a_rule_is_refused_and_leaves_no_trace(branch, act, said):
    before = tree(branch), len(branch.log())
    with pytest.raises(RefusedError, match=said):
        branch.do(act)
    assert (tree(branch), len(branch.log())) == before


def test_a_taken_name_tells_whose_it_is(branch):
    with pytest.raises(RefusedError) as refused:
        branch.do(Rename(CASTLE, "Church"))
    assert refused.value.merge_with == CHURCH
    branch.do(Rename(CASTLE, "natural"))  # of another level: no clash


@pytest.mark.parametrize(
    "act", [Rename(99, "x"), Move((1,), 99), Merge((99,), LAKE), SetParent((LAKE,), 99), Delete(99)], ids=str
)
def test_a_group_that_is_gone_is_a_conflict(branch, act):
    with pytest.raises(ConflictError, match="no longer there") as conflict:
        branch.do(act)
    assert conflict.value.groups == (99,)


def test_a_label_that_went_elsewhere_cannot_be_split_off(branch):
    branch.do(Move((ID["fort"],), LAKE))
    with pytest.raises(ConflictError, match="no longer in 'castle'"):
        branch.do(Split(CASTLE, (ID["fort"],), "fort"))
