from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suprank.hierarchy.adjudication import Settling, begin_final
from suprank.hierarchy.project import FullError
from suprank.hierarchy.review import Branch, ConflictError, Merge, Move, RefusedError, Rename
from tests.hierarchy.adjudication.test_beginning import ANNA, BEN
from tests.hierarchy.adjudication.two import settled, two_branches
from tests.hierarchy.review.small import tree


@pytest.fixture
def settling(tmp_path):
    project = two_branches(tmp_path / "project", ANNA, BEN, weights={"river": 9, "fort": 5})
    begin_final(project, "anna", "ben")
    return Settling(project)


def one_of(settling, kind, about):
    (found,) = [one for one in settling.now().subjects[kind] if one.disagreement.about == about]
    return found


def settle(settling, kind, about, choice, value="", **options):
    return settling.settle([one_of(settling, kind, about).disagreement], choice, value, **options)


def decisions(settling):
    with settling.project.reading() as db:
        return [
            tuple(row) for row in db.execute("SELECT kind, subject, first, second, chosen, reason, who, event FROM decision")
        ]


def test_what_waits_is_listed_the_heaviest_first(settling):
    now = settling.now()
    assert [(one.disagreement.about, one.now, one.settled) for one in now.subjects["label"]] == [
        ("river", "excluded: unsettled", False),
        ("fort", "excluded: unsettled", False),
        ("heritage", "excluded: unsettled", False),
    ]
    assert [(one.disagreement.about, one.now) for one in now.subjects["name"]] == [("church | cathedral", "church")]
    assert [(one.disagreement.about, one.now) for one in now.subjects["parent"]] == [("castle", "no parent")]
    assert ([now.counts(kind) for kind in ("label", "name", "parent")], now.open) == ([(0, 3), (0, 1), (0, 1)], 5)


def test_a_decision_is_one_event_and_keeps_who_and_why(settling):
    event = settle(settling, "label", "river", "second", reason="it flows", who="carl")
    assert (event.act, event.who, event.said) == ("settle", "carl", "settled the label 'river': ben")
    groups, excluded = tree(settling.branch)
    assert groups["stream"] == ("natural", ["river"])  # made for it, under ben's parent
    assert "river" not in excluded
    assert decisions(settling) == [("label", "6", "lake", "stream", "stream", "it flows", "carl", event.seq)]
    found = one_of(settling, "label", "river")
    assert (found.settled, found.now, found.decision.who, found.decision.reason) == (True, "stream", "carl", "it flows")
    assert settling.now().counts("label") == (1, 3)
    assert settling.branch.problems() == []


def test_undo_makes_it_undecided_again_and_the_row_stays(settling):
    start = tree(settling.branch)
    settle(settling, "label", "fort", "second")
    settle(settling, "name", "church | cathedral", "first")
    assert one_of(settling, "name", "church | cathedral").settled
    settling.branch.undo()
    assert not one_of(settling, "name", "church | cathedral").settled
    settling.branch.redo()
    assert one_of(settling, "name", "church | cathedral").settled
    settling.branch.undo(), settling.branch.undo()
    assert (tree(settling.branch), settling.now().open) == (start, 5)
    assert len(decisions(settling)) == 2
    settling.branch.redo(), settling.branch.redo(), settling.branch.undo()
    assert [one_of(settling, *one).settled for one in (("label", "fort"), ("name", "church | cathedral"))] == [True, False]


def test_names_and_parents_are_taken_from_either_or_given_anew(settling):
    settle(settling, "name", "church | cathedral", "second")
    settle(settling, "parent", "castle", "second")
    groups, _ = tree(settling.branch)
    assert groups["cathedral"] == ("made", ["chapel", "church"])
    assert groups["castle"] == ("old", ["castle"])  # ben's parent is made for it
    settle(settling, "name", "church | cathedral", "other", "house of God")
    settle(settling, "parent", "castle", "other", "Made")
    groups, _ = tree(settling.branch)
    assert "house of God" in groups
    assert groups["castle"][0] == "made"
    settle(settling, "parent", "castle", "other", "military")
    assert tree(settling.branch)[0]["castle"][0] == "military"
    assert [row[4] for row in decisions(settling)] == ["cathedral", "old", "house of God", "made", "military"]


def test_labels_go_to_a_group_by_its_name_to_one_of_the_plan_to_a_new_one_or_out(settling):
    settle(settling, "label", "river", "other", " Castle")
    assert tree(settling.branch)[0]["castle"][1] == ["castle", "river"]
    settle(settling, "label", "river", "other", "STREAM")  # ben's, not made before
    assert tree(settling.branch)[0]["stream"] == ("natural", ["river"])
    settle(settling, "label", "river", "other", "waterway")
    assert tree(settling.branch)[0]["waterway"] == (None, ["river"])
    assert "stream" not in tree(settling.branch)[0]  # emptied
    settle(settling, "label", "river", "excluded", reason=" no place ")
    assert tree(settling.branch)[1]["river"] == "no place"
    settle(settling, "label", "heritage", "first")
    assert tree(settling.branch)[1]["heritage"] == "vague"
    assert settling.branch.problems() == []


def test_many_are_decided_at_once_in_one_step_of_undo(settling):
    start = tree(settling.branch)
    now = settling.now()
    every = [one.disagreement for subjects in now.subjects.values() for one in subjects]
    event = settling.settle(every, "second", who="carl")
    assert event.said == "settled 3 labels, 1 name, 1 parent: ben"
    assert settling.now().open == 0
    assert len({row[-1] for row in decisions(settling)}) == 1
    settling.branch.undo()
    assert tree(settling.branch) == start


def test_what_was_decided_meanwhile_is_a_conflict_and_nothing_is_done(settling):
    river = one_of(settling, "label", "river")
    name = one_of(settling, "name", "church | cathedral")
    seen = {(one.disagreement.kind, one.disagreement.subject): one.standing for one in (river, name)}
    settle(settling, "label", "river", "second", who="dora")
    settle(settling, "name", "church | cathedral", "second", who="dora")
    before = tree(settling.branch)
    for one in (river, name):
        key = (one.disagreement.kind, one.disagreement.subject)
        with pytest.raises(ConflictError, match="decided meanwhile"):
            settling.settle([one.disagreement], "first", seen={key: seen[key]})
    assert (tree(settling.branch), len(decisions(settling))) == (before, 2)


def test_the_same_click_counts_once(settling):
    events = {settle(settling, "label", "river", "second", token="click").seq for _ in range(2)}
    assert len(events) == len(decisions(settling)) == 1


def test_groups_that_were_merged_or_renamed_meanwhile(settling):
    settle(settling, "label", "river", "second")
    found = {row.name: one for one, row in settling.groups().items()}
    settling.branch.do(Merge((found["stream"],), found["lake"]))
    assert one_of(settling, "label", "river").now == "lake"
    settle(settling, "label", "river", "second")
    assert tree(settling.branch)[0]["stream"] == ("natural", ["river"])  # made again, with its parent
    settling.branch.do(Rename(found["castle"], "fort"))
    settle(settling, "label", "fort", "first")  # anna's fort is not there, but a group has its name
    assert tree(settling.branch)[0]["fort"][1] == ["castle", "fort"]
    with pytest.raises(RefusedError, match="'stream' already"):
        settle(settling, "name", "church | cathedral", "other", "stream")


def test_a_group_that_comes_again_has_the_name_and_parent_that_were_decided(settling):
    settle(settling, "name", "church | cathedral", "second")
    settle(settling, "parent", "castle", "second")
    found = {row.name: one for one, row in settling.groups().items()}
    settling.branch.do(Move((1, 2), found["lake"]))
    settling.branch.do(Move((3,), found["lake"]))
    assert not {"cathedral", "castle"} & tree(settling.branch)[0].keys()
    assert settling.now().subjects["parent"] == []  # of a group that is not there, there is nothing to decide
    settle(settling, "label", "fort", "second")
    assert tree(settling.branch)[0]["castle"] == ("old", ["fort"])
    assert settling.now().counts("parent") == (1, 1)


def test_refusals_name_the_rule(settling):
    river, name = (one_of(settling, *one).disagreement for one in (("label", "river"), ("name", "church | cathedral")))
    for asked, said in (
        (([], "first"), "at least one"),
        (([river], "excluded"), "Give a reason"),
        (([name], "excluded"), "Only labels are left out"),
        (([river], "other", " "), "A name has 1 to 200 characters"),
        (([name], "other", "x" * 201), "A name has 1 to 200 characters"),
    ):
        with pytest.raises(RefusedError, match=said):
            settling.settle(*asked)
    with pytest.raises(RefusedError, match="Give a reason"):
        settling.settle([river], "excluded", reason="unsettled")
    with pytest.raises(RefusedError, match="2,000 characters at most"):
        settling.settle([river], "first", reason="x" * 2001)
    assert decisions(settling) == []


def test_a_name_is_not_decided_for_a_group_that_the_same_act_empties(settling):
    settle(settling, "label", "fort", "second")
    lake = next(one for one, row in settling.groups().items() if row.name == "lake")
    settling.branch.do(Move((3,), lake))  # the castle: the fort is all that its group holds now
    everything = [one_of(settling, "label", "fort").disagreement, one_of(settling, "parent", "castle").disagreement]
    before = tree(settling.branch)
    with pytest.raises(RefusedError, match="'castle' is empty once its labels are settled so"):
        settling.settle(everything, "first")
    assert tree(settling.branch) == before


def test_what_one_has_not_looked_at_is_decided_by_the_other(tmp_path):
    project = two_branches(tmp_path / "project", ANNA, BEN)
    with project.writing() as db:
        db.execute("INSERT INTO label (id, key, text, weight, state) VALUES (20, 'moor', 'moor', 7, 'active')")
    Branch(project, "ben")
    begin_final(project, "anna", "ben")
    settling = Settling(project)
    with pytest.raises(RefusedError, match="anna has not looked at 'moor' yet"):
        settle(settling, "label", "moor", "first")
    settle(settling, "label", "moor", "other", "lake")
    assert tree(settling.branch)[0]["lake"][1] == ["lake", "moor"]


def test_a_full_disk_leaves_neither_event_nor_decision(settling, monkeypatch):
    connected = type(settling.project)._connected

    @contextmanager
    def full(self):
        with connected(self) as db:
            pages = db.execute("PRAGMA page_count").fetchone()[0]
            db.execute(f"PRAGMA max_page_count = {pages}")
            yield db

    river = one_of(settling, "label", "river").disagreement
    monkeypatch.setattr(type(settling.project), "_connected", full)

    def until_it_is_full():
        for _ in range(400):
            settling.settle([river], "second", reason="x" * 2000)
            settling.settle([river], "first", reason="x" * 2000)

    with pytest.raises(FullError):
        until_it_is_full()
    monkeypatch.undo()
    assert settling.branch.problems() == []
    with settling.project.reading() as db:
        events = {row[0] for row in db.execute("SELECT seq FROM event WHERE act = 'settle'")}
    assert {row[-1] for row in decisions(settling)} == events
    settle(settling, "label", "river", "second")  # with room again, it goes on


places = st.one_of(
    st.sampled_from(["vague", "no place"]),
    st.tuples(st.sampled_from(["church", "castle", "lake", "fort"]), st.sampled_from([None, "made", "natural"])),
)


def as_tree(said, prefix):
    """A place for every label; the parent of a group is what its first label says."""
    parents = {}
    for place in said:
        if not isinstance(place, str):
            parents.setdefault(*place)
    rows = {}
    for number, place in enumerate(said):
        if not isinstance(place, str):
            parent = parents[place[0]]
            place = [prefix + place[0], parent] if parent else [prefix + place[0]]
        rows[f"label {number}"] = place
    return rows


def partition(branch):
    groups, excluded = tree(branch)
    return {frozenset(labels) for _, labels in groups.values() if labels}, excluded


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(places, places), min_size=1, max_size=8), st.sampled_from(["", "my "]))
def test_all_by_the_first_gives_the_first_tree_and_all_by_the_second_the_second_partition(tmp_path_factory, rows, prefix):
    first, second = as_tree([row[0] for row in rows], ""), as_tree([row[1] for row in rows], prefix)
    project = two_branches(tmp_path_factory.mktemp("law") / "project", first, second)
    final = settled(project, "first")
    groups, excluded = tree(final)
    kept = {name: row for name, row in groups.items() if row[1] or any(parent == name for parent, _ in groups.values())}
    assert (kept, excluded) == tree(Branch(project, "anna"))
    assert final.problems() == []
    other = two_branches(tmp_path_factory.mktemp("law") / "project", first, second)
    by_second = settled(other, "second")
    groups, _ = partition(by_second)
    assert groups == partition(Branch(other, "ben"))[0]
    assert tree(by_second)[1].keys() == tree(Branch(other, "ben"))[1].keys()
    named = {name: row for name, row in tree(by_second)[0].items() if row[1]}
    assert named == {name: row for name, row in tree(Branch(other, "ben"))[0].items() if row[1]}
    assert by_second.problems() == []
