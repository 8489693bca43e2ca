import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suprank.hierarchy.review import (
    Branch,
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
def project(tmp_path):
    return small_project(tmp_path / "project", busy_seconds=0.2)


@pytest.fixture
def branch(project):
    return open_branch(project, "anna")


def version(branch, group):
    with branch.project.snapshot() as db:
        return db.execute('SELECT version FROM "group" WHERE branch = ? AND id = ?', (branch.id, group)).fetchone()[0]


def test_undo_and_redo_walk_back_and_forth_and_a_new_act_forgets_what_was_undone(branch):
    start = tree(branch)
    branch.apply(Split(CASTLE, (ID["fort"],), "fort"))
    middle = tree(branch)
    branch.apply(Merge((CHURCH,), LAKE))
    end = tree(branch)
    assert branch.undo().summary == "undid: merged 'church' into 'lake'"
    assert tree(branch) == middle
    assert branch.undo().summary == "undid: split 'fort' (1 label) off 'castle'"
    assert tree(branch) == start
    assert branch.redo().summary == "redid: split 'fort' (1 label) off 'castle'"
    assert branch.redo().summary == "redid: merged 'church' into 'lake'"
    assert tree(branch) == end
    branch.undo()
    branch.apply(Note(LAKE, "new"))
    with pytest.raises(RefusedError, match="nothing to redo"):
        branch.redo()
    assert branch.problems() == []


def test_everyone_who_has_the_branch_open_sees_the_same_undo(branch):
    other = Branch(branch.project, branch.name)
    assert branch.undoable() == other.undoable() == (None, None)
    done = other.apply(Rename(LAKE, "water"))
    assert branch.undoable() == (done, None)
    undone = branch.undo()
    assert other.undoable() == (None, undone)
    with pytest.raises(RefusedError, match="nothing to undo"):
        branch.undo()
    assert branch.undoable() == (None, undone)  # a refusal leaves no trace


def test_an_older_action_is_undone_by_itself_if_nothing_depends_on_it(branch):
    split = branch.apply(Split(CASTLE, (ID["fort"],), "fort"))
    branch.apply(Exclude((ID["chapel"],), "small"))
    branch.undo(split.seq)
    groups, excluded = tree(branch)
    assert groups["castle"][1] == ["castle", "fort"]
    assert "fort" not in groups
    assert excluded == {"chapel": "small"}
    with pytest.raises(RefusedError, match="undone already"):
        branch.undo(split.seq)


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (Split(CASTLE, (ID["fort"],), "fort"), Move((ID["chapel"],), 6)),  # the group holds more by now
        (Split(CASTLE, (ID["fort"],), "fort"), Rename(6, "forts")),
        (Split(CASTLE, (ID["fort"],), "fort"), Move((ID["fort"],), LAKE)),
        (Merge((CASTLE,), LAKE), Rename(CHURCH, "castle")),  # the name is taken
        (Move((ID["fort"],), LAKE), Merge((CASTLE,), LAKE)),  # the group it would go back to is gone
        (Create(2, "both"), SetParent((LAKE,), 6)),
    ],
    ids=str,
)
def test_undoing_an_older_action_names_what_depends_on_it(branch, first, later):
    made = branch.apply(first)
    blocking = branch.apply(later)
    before = tree(branch)
    with pytest.raises(RefusedError, match=f"Event {blocking.seq} came later and depends on it"):
        branch.undo(made.seq)
    assert tree(branch) == before
    branch.undo()
    branch.undo()
    assert branch.problems() == []


def test_the_dependent_event_is_the_one_that_changed_the_same_thing(branch):
    first = branch.apply(Rename(CASTLE, "fortress"))
    branch.apply(Move((ID["fort"],), LAKE))  # another thing of the same group
    second = branch.apply(Rename(CASTLE, "stronghold"))
    with pytest.raises(RefusedError, match=f"Event {second.seq} "):
        branch.undo(first.seq)


def test_redo_of_what_is_no_longer_next_is_a_conflict(branch):
    branch.apply(Note(LAKE, "one"))
    undone = branch.undo()
    with pytest.raises(ConflictError, match="nothing was redone"):
        branch.redo(undone.seq - 1)
    assert branch.redo(undone.seq).undoes == undone.seq


def test_undo_is_refused_if_the_parent_was_deleted(branch):
    branch.apply(SetParent((LAKE,), HUMAN))
    put = branch.apply(SetParent((LAKE,), NATURAL))
    gone = branch.apply(Delete(HUMAN))
    with pytest.raises(RefusedError, match=f"Event {gone.seq}"):
        branch.undo(put.seq)


def test_a_stale_edit_is_refused_and_names_who_changed_it(branch):
    seen = {CASTLE: version(branch, CASTLE)}
    branch.apply(Rename(CASTLE, "castle / fort"), seen=seen, who="anna's phone")
    with pytest.raises(ConflictError, match="anna's phone renamed 'castle' to 'castle / fort'") as conflict:
        branch.apply(Split(CASTLE, (ID["fort"],), "fort"), seen=seen)
    assert conflict.value.groups == (CASTLE,)
    assert "fort" not in tree(branch)[0]
    branch.apply(Split(CASTLE, (ID["fort"],), "fort"), seen={CASTLE: version(branch, CASTLE)})


def test_a_group_that_was_not_seen_cannot_be_changed(branch):
    with pytest.raises(ConflictError):
        branch.apply(Move((ID["fort"], ID["lake"]), CHURCH), seen={CASTLE: version(branch, CASTLE)})
    with pytest.raises(ConflictError):
        branch.apply(Rename(LAKE, "lakes"), seen={})
    # Where labels go to need not have been seen: it is chosen by name.
    branch.apply(Move((ID["fort"],), CHURCH), seen={CASTLE: version(branch, CASTLE)})


def test_the_same_click_sent_twice_counts_once(branch):
    first = branch.apply(Split(CASTLE, (ID["fort"],), "fort"), token="click")
    assert branch.apply(Split(CASTLE, (ID["fort"],), "fort"), token="click") == first
    undone = branch.undo(token="other")
    assert branch.undo(token="other") == undone
    assert [event.action for event in branch.log(newest_first=False)] == ["start", "split", "undo"]


def test_annotators_do_not_see_each_other(project):
    anna, ben = open_branch(project, "anna"), open_branch(project, "ben")
    before = tree(ben)
    anna.apply(Merge((CHURCH,), LAKE))
    assert tree(ben) == before
    assert anna.token != ben.token
    with pytest.raises(RefusedError, match="not on this branch"):
        ben.undo(anna.log()[0].seq)


def test_tampering_is_found_by_replaying_the_log(branch):
    with branch.project.transaction() as db:
        db.execute('UPDATE member SET "group" = ? WHERE label = ?', (LAKE, ID["fort"]))
        db.execute("UPDATE \"group\" SET name = 'x' WHERE id = ?", (LAKE,))
    assert branch.problems() == [
        "branch anna: replaying the log gives other groups",
        "branch anna: replaying the log puts labels elsewhere",
    ]


def actions(labels, groups):
    some = st.lists(st.sampled_from(labels), max_size=4).map(tuple)
    several, one = st.lists(st.sampled_from(groups), max_size=3).map(tuple), st.sampled_from(groups)
    name = st.sampled_from(["a", "b", "c", "church", "natural"])
    return st.one_of(
        st.builds(Split, one, some, name),
        st.builds(Merge, several, one),
        st.builds(Move, some, one),
        st.builds(Gather, some, name),
        st.builds(Exclude, some, st.sampled_from(["out", "dull"])),
        st.builds(Rename, one, name),
        st.builds(SetParent, several, st.none() | one),
        st.builds(Create, st.sampled_from([1, 2]), name, st.none() | one),
        st.builds(Delete, one),
        st.builds(Mark, several, st.sampled_from(["open", "done"])),
        st.sampled_from(["undo", "redo"]),
        st.integers(2, 12),  # undo this event
    )


def rows(branch):
    """Groups and members as they are, but for versions."""
    with branch.project.snapshot() as db:
        groups = db.execute('SELECT id, level, name, parent, named, state, note FROM "group" ORDER BY id').fetchall()
        members = db.execute('SELECT label, "group", reason FROM member ORDER BY label').fetchall()
    return [tuple(row) for row in groups], [tuple(row) for row in members]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(actions(list(ID.values()), list(range(1, 10))), max_size=12))
def test_after_any_actions_the_log_replays_and_undoing_all_gives_the_start(tmp_path_factory, steps):
    branch = open_branch(small_project(tmp_path_factory.mktemp("laws") / "project"), "anna")
    start = rows(branch)
    for step in steps:
        before = rows(branch)
        try:
            if isinstance(step, int):
                branch.undo(step)
            elif isinstance(step, str):
                getattr(branch, step)()
            else:
                branch.apply(step)
        except (RefusedError, ConflictError):
            assert rows(branch) == before
        assert [label for label, *_ in rows(branch)[1]] == sorted(ID.values())  # each label once
    assert branch.problems() == branch.project.check() == []
    while branch.undoable()[0] is not None:
        branch.undo()
    assert rows(branch) == start
