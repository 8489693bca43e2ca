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
    open_branch,
)
from tests.hierarchy.review.small_project import CASTLE, CHURCH, HUMAN, ID, LAKE, NATURAL, small_project, tree


@pytest.fixture
def branch(tmp_path):
    return open_branch(small_project(tmp_path / "project"), "anna")


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    """A branch shared by tests that change nothing."""
    return open_branch(small_project(tmp_path_factory.mktemp("unchanged") / "project"), "anna")


def groups(branch):
    return tree(branch)[0]


def test_a_branch_starts_with_the_clusters_under_suggested_names_beside_the_known_kinds(branch):
    assert groups(branch) == {
        "human-made": (None, []),
        "natural": (None, []),
        "church": (None, ["chapel", "church", "heritage site"]),
        "castle": (None, ["castle", "fort"]),
        "lake": (None, ["lake", "river"]),
    }
    with branch.project.snapshot() as db:
        named = dict(db.execute('SELECT name, named FROM "group"').fetchall())
    assert named == {"human-made": 1, "natural": 1, "church": 0, "castle": 0, "lake": 0}


def test_a_split_takes_its_labels_and_stays_under_the_same_parent(branch):
    branch.apply(SetParent((LAKE,), NATURAL))
    event = branch.apply(Split(LAKE, (ID["river"],), "river"))
    assert event.summary == "split 'river' (1 label) off 'lake'"
    assert groups(branch)["river"] == ("natural", ["river"])
    assert groups(branch)["lake"] == ("natural", ["lake"])


def test_a_merge_takes_labels_along_and_groups_below(branch):
    branch.apply(Merge((CHURCH, CASTLE), CASTLE))
    assert groups(branch)["castle"][1] == ["castle", "chapel", "church", "fort", "heritage site"]
    assert "church" not in groups(branch)
    branch.apply(SetParent((CASTLE, LAKE), HUMAN))
    branch.apply(Merge((HUMAN,), NATURAL))
    assert groups(branch)["castle"][0] == groups(branch)["lake"][0] == "natural"
    assert "human-made" not in groups(branch)


def test_moving_all_labels_out_of_a_group_removes_it(branch):
    event = branch.apply(Move((ID["castle"], ID["fort"], ID["chapel"]), LAKE))
    assert event.summary == "moved 3 labels to 'lake'; deleted 'castle', now empty"
    assert groups(branch)["lake"][1] == ["castle", "chapel", "fort", "lake", "river"]
    assert "castle" not in groups(branch)


def test_labels_from_anywhere_are_gathered_in_a_new_group(branch):
    branch.apply(Exclude((ID["heritage site"],), "a status"))
    event = branch.apply(Gather((ID["heritage site"], ID["castle"], ID["fort"], ID["river"]), "sights"))
    assert event.summary == "gathered 4 labels as 'sights'; deleted 'castle', now empty"
    assert groups(branch)["sights"] == (None, ["castle", "fort", "heritage site", "river"])


def test_excluded_labels_keep_their_reason_and_come_back_by_moving(branch):
    branch.apply(Exclude((ID["heritage site"],), " a status, not a kind "))
    assert tree(branch)[1] == {"heritage site": "a status, not a kind"}
    branch.apply(Move((ID["heritage site"],), CASTLE))
    assert tree(branch)[1] == {}
    assert groups(branch)["castle"][1] == ["castle", "fort", "heritage site"]


def test_names_are_saved_as_typed_and_accepting_a_suggestion_is_an_action(branch):
    with pytest.raises(RefusedError, match="only a suggested name"):
        branch.apply(Mark((LAKE,), "done"))
    assert branch.apply(Rename(LAKE, "lake")).summary == "named 'lake'"
    branch.apply(Mark((LAKE,), "done"))
    for name in (
        "ocean area ",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "caf\u00e9\u00a0bar",
        "\U0001f468\u200d\U0001f469",
        "o'\"x",
    ):
        branch.apply(Rename(CASTLE, name))
        assert name in groups(branch)


def test_notes_marks_and_empty_groups(branch):
    branch.apply(Note(LAKE, "  with reservoirs? "))
    branch.apply(Create(1, "bridge", HUMAN))
    branch.apply(Rename(LAKE, "lakes"))
    branch.apply(Mark((LAKE,), "done"))
    with branch.project.snapshot() as db:
        row = db.execute('SELECT note, state FROM "group" WHERE name = ?', ("lakes",)).fetchone()
    assert tuple(row) == ("with reservoirs?", "done")
    assert groups(branch)["bridge"] == ("human-made", [])
    branch.apply(Delete(6))
    assert "bridge" not in groups(branch)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Split(CASTLE, (ID["castle"], ID["fort"]), "forts"), "all labels of 'castle'; rename it"),
        (Split(CASTLE, (), "forts"), "at least one label"),
        (Split(CASTLE, (ID["fort"],), "  "), "1 to 200 characters"),
        (Split(CASTLE, (ID["fort"],), "two\nlines"), "1 to 200 characters"),
        (Split(CASTLE, (ID["fort"],), "LAKE"), "already a group called 'lake'; merge"),
        (Merge((CASTLE,), CASTLE), "at least one other group"),
        (Merge((CASTLE,), HUMAN), "different levels"),
        (Move((ID["fort"],), HUMAN), "contains groups, not labels"),
        (Move((99,), LAKE), "not on this branch"),
        (Exclude((ID["fort"],), ""), "Give a reason"),
        (Rename(CASTLE, "Natural" * 40), "1 to 200 characters"),
        (SetParent((HUMAN,), NATURAL), "cannot go under"),
        (SetParent((CASTLE,), LAKE), "cannot go under"),
        (Create(3, "all"), "no level 3"),
        (Create(2, "kind", HUMAN), "cannot go under"),
        (Delete(CASTLE), "still has 2 in it; merge"),
        (Note(CASTLE, "x" * 2001), "2,001 characters"),
        (Mark((CASTLE,), "perfect"), "not a state"),
        (Mark((CASTLE,), "open"), "changes nothing"),
        (SetParent((CASTLE,), None), "changes nothing"),
        (Move((ID["fort"],), CASTLE), "changes nothing"),
    ],
    ids=str,
)
def test_an_action_that_breaks_a_rule_is_refused_and_leaves_no_trace(unchanged, action, message):
    before = tree(unchanged), len(unchanged.log())
    with pytest.raises(RefusedError, match=message):
        unchanged.apply(action)
    assert (tree(unchanged), len(unchanged.log())) == before


def test_the_error_of_a_taken_name_has_its_group(branch):
    with pytest.raises(RefusedError) as refused:
        branch.apply(Rename(CASTLE, "Church"))
    assert refused.value.merge_with == CHURCH
    branch.apply(Rename(CASTLE, "natural"))  # of another level: no clash


@pytest.mark.parametrize(
    "action", [Rename(99, "x"), Move((1,), 99), Merge((99,), LAKE), SetParent((LAKE,), 99), Delete(99)], ids=str
)
def test_a_group_that_no_longer_exists_is_a_conflict(unchanged, action):
    with pytest.raises(ConflictError, match="no longer exists") as conflict:
        unchanged.apply(action)
    assert conflict.value.groups == (99,)


def test_a_label_that_went_elsewhere_cannot_be_split_off(branch):
    branch.apply(Move((ID["fort"],), LAKE))
    with pytest.raises(ConflictError, match="no longer in 'castle'"):
        branch.apply(Split(CASTLE, (ID["fort"],), "fort"))
