import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suprank.hierarchy.adjudication import Adjudication, open_final_branch
from suprank.hierarchy.review import Branch, ConflictError, Merge, Move, RefusedError, Rename
from suprank.hierarchy.review.state import BranchState
from tests.hierarchy.adjudication.test_final_branch import ANNA, BEN
from tests.hierarchy.adjudication.two_branches import resolve_all, two_branches
from tests.hierarchy.review.small_project import tree


@pytest.fixture
def adjudication(tmp_path):
    project = two_branches(tmp_path / "project", ANNA, BEN, weights={"river": 9, "fort": 5})
    open_final_branch(project, "anna", "ben")
    return Adjudication(project)


def find_case(adjudication, kind, about):
    (found,) = [one for one in adjudication.status().cases[kind] if one.disagreement.about == about]
    return found


def resolve(adjudication, kind, about, choice, value="", **options):
    return adjudication.resolve([find_case(adjudication, kind, about).disagreement], choice, value, **options)


def current_groups(adjudication):
    with adjudication.project.snapshot() as db:
        return BranchState(db, adjudication.branch.id).groups()


def decisions(adjudication):
    with adjudication.project.snapshot() as db:
        return [
            tuple(row) for row in db.execute("SELECT kind, subject, first, second, chosen, reason, who, event FROM decision")
        ]


def test_open_cases_are_listed_by_weight(adjudication):
    status = adjudication.status()
    assert [(one.disagreement.about, one.current, one.resolved) for one in status.cases["label"]] == [
        ("river", "excluded: unsettled", False),
        ("fort", "excluded: unsettled", False),
        ("heritage", "excluded: unsettled", False),
    ]
    assert [(one.disagreement.about, one.current) for one in status.cases["name"]] == [("church | cathedral", "church")]
    assert [(one.disagreement.about, one.current) for one in status.cases["parent"]] == [("castle", "no parent")]
    assert ([status.counts(kind) for kind in ("label", "name", "parent")], status.open) == ([(0, 3), (0, 1), (0, 1)], 5)


def test_a_decision_is_one_event_with_who_decided_and_why(adjudication):
    event = resolve(adjudication, "label", "river", "second", reason="it flows", who="carl")
    assert (event.action, event.who, event.summary) == ("resolve", "carl", "resolved the label 'river': ben")
    groups, excluded = tree(adjudication.branch)
    assert groups["stream"] == ("natural", ["river"])  # made for it, under ben's parent
    assert "river" not in excluded
    assert decisions(adjudication) == [("label", "6", "lake", "stream", "stream", "it flows", "carl", event.seq)]
    found = find_case(adjudication, "label", "river")
    assert (found.resolved, found.current, found.decision.who, found.decision.reason) == (True, "stream", "carl", "it flows")
    assert adjudication.status().counts("label") == (1, 3)
    assert adjudication.branch.problems() == []


def test_undo_reopens_a_case_and_keeps_the_decision_in_the_table(adjudication):
    start = tree(adjudication.branch)
    resolve(adjudication, "label", "fort", "second")
    resolve(adjudication, "name", "church | cathedral", "first")
    assert find_case(adjudication, "name", "church | cathedral").resolved
    adjudication.branch.undo()
    assert not find_case(adjudication, "name", "church | cathedral").resolved
    adjudication.branch.redo()
    assert find_case(adjudication, "name", "church | cathedral").resolved
    adjudication.branch.undo(), adjudication.branch.undo()
    assert (tree(adjudication.branch), adjudication.status().open) == (start, 5)
    assert len(decisions(adjudication)) == 2
    adjudication.branch.redo(), adjudication.branch.redo(), adjudication.branch.undo()
    assert [find_case(adjudication, *one).resolved for one in (("label", "fort"), ("name", "church | cathedral"))] == [
        True,
        False,
    ]


def test_names_and_parents_are_taken_from_either_or_given_anew(adjudication):
    resolve(adjudication, "name", "church | cathedral", "second")
    resolve(adjudication, "parent", "castle", "second")
    groups, _ = tree(adjudication.branch)
    assert groups["cathedral"] == ("made", ["chapel", "church"])
    assert groups["castle"] == ("old", ["castle"])  # ben's parent is made for it
    resolve(adjudication, "name", "church | cathedral", "other", "house of God")
    resolve(adjudication, "parent", "castle", "other", "Made")
    groups, _ = tree(adjudication.branch)
    assert "house of God" in groups
    assert groups["castle"][0] == "made"
    resolve(adjudication, "parent", "castle", "other", "military")
    assert tree(adjudication.branch)[0]["castle"][0] == "military"
    assert [row[4] for row in decisions(adjudication)] == ["cathedral", "old", "house of God", "made", "military"]


def test_labels_can_go_to_an_existing_a_planned_or_a_new_group_or_be_excluded(adjudication):
    resolve(adjudication, "label", "river", "other", " Castle")
    assert tree(adjudication.branch)[0]["castle"][1] == ["castle", "river"]
    resolve(adjudication, "label", "river", "other", "STREAM")  # ben's, not made before
    assert tree(adjudication.branch)[0]["stream"] == ("natural", ["river"])
    resolve(adjudication, "label", "river", "other", "waterway")
    assert tree(adjudication.branch)[0]["waterway"] == (None, ["river"])
    assert "stream" not in tree(adjudication.branch)[0]  # emptied
    resolve(adjudication, "label", "river", "excluded", reason=" no place ")
    assert tree(adjudication.branch)[1]["river"] == "no place"
    resolve(adjudication, "label", "heritage", "first")
    assert tree(adjudication.branch)[1]["heritage"] == "vague"
    assert adjudication.branch.problems() == []


def test_many_are_decided_at_once_in_one_step_of_undo(adjudication):
    start = tree(adjudication.branch)
    status = adjudication.status()
    every = [one.disagreement for cases in status.cases.values() for one in cases]
    event = adjudication.resolve(every, "second", who="carl")
    assert event.summary == "resolved 3 labels, 1 name, 1 parent: ben"
    assert adjudication.status().open == 0
    assert len({row[-1] for row in decisions(adjudication)}) == 1
    adjudication.branch.undo()
    assert tree(adjudication.branch) == start


def test_a_case_decided_in_the_meantime_is_a_conflict_and_nothing_is_saved(adjudication):
    river = find_case(adjudication, "label", "river")
    name = find_case(adjudication, "name", "church | cathedral")
    seen = {(one.disagreement.kind, one.disagreement.subject): one.fingerprint for one in (river, name)}
    resolve(adjudication, "label", "river", "second", who="dora")
    resolve(adjudication, "name", "church | cathedral", "second", who="dora")
    before = tree(adjudication.branch)
    for one in (river, name):
        key = (one.disagreement.kind, one.disagreement.subject)
        with pytest.raises(ConflictError, match="decided in the meantime"):
            adjudication.resolve([one.disagreement], "first", seen={key: seen[key]})
    assert (tree(adjudication.branch), len(decisions(adjudication))) == (before, 2)


def test_decisions_about_groups_merged_or_renamed_in_the_meantime(adjudication):
    resolve(adjudication, "label", "river", "second")
    found = {row.name: one for one, row in current_groups(adjudication).items()}
    adjudication.branch.apply(Merge((found["stream"],), found["lake"]))
    assert find_case(adjudication, "label", "river").current == "lake"
    resolve(adjudication, "label", "river", "second")
    assert tree(adjudication.branch)[0]["stream"] == ("natural", ["river"])  # made again, with its parent
    adjudication.branch.apply(Rename(found["castle"], "fort"))
    resolve(adjudication, "label", "fort", "first")  # anna's fort is not there, but a group has its name
    assert tree(adjudication.branch)[0]["fort"][1] == ["castle", "fort"]
    with pytest.raises(RefusedError, match="already a group called 'stream'"):
        resolve(adjudication, "name", "church | cathedral", "other", "stream")


def test_a_group_that_is_created_again_has_the_name_and_parent_that_were_decided(adjudication):
    resolve(adjudication, "name", "church | cathedral", "second")
    resolve(adjudication, "parent", "castle", "second")
    found = {row.name: one for one, row in current_groups(adjudication).items()}
    adjudication.branch.apply(Move((1, 2), found["lake"]))
    adjudication.branch.apply(Move((3,), found["lake"]))
    assert not {"cathedral", "castle"} & tree(adjudication.branch)[0].keys()
    assert adjudication.status().cases["parent"] == []  # of a group that is not there, there is nothing to decide
    resolve(adjudication, "label", "fort", "second")
    assert tree(adjudication.branch)[0]["castle"] == ("old", ["fort"])
    assert adjudication.status().counts("parent") == (1, 1)


def test_refusals_name_the_rule(adjudication):
    river, name = (find_case(adjudication, *one).disagreement for one in (("label", "river"), ("name", "church | cathedral")))
    for arguments, message in (
        (([], "first"), "at least one"),
        (([river], "excluded"), "Give a reason"),
        (([name], "excluded"), "Only labels can be excluded"),
        (([river], "other", " "), "A name must have 1 to 200 characters"),
        (([name], "other", "x" * 201), "A name must have 1 to 200 characters"),
    ):
        with pytest.raises(RefusedError, match=message):
            adjudication.resolve(*arguments)
    with pytest.raises(RefusedError, match="Give a reason"):
        adjudication.resolve([river], "excluded", reason="unsettled")
    with pytest.raises(RefusedError, match="at most 2,000 characters"):
        adjudication.resolve([river], "first", reason="x" * 2001)
    assert decisions(adjudication) == []


def test_a_name_is_not_decided_for_a_group_that_the_same_act_empties(adjudication):
    resolve(adjudication, "label", "fort", "second")
    lake = next(one for one, row in current_groups(adjudication).items() if row.name == "lake")
    adjudication.branch.apply(Move((3,), lake))  # the castle: the fort is all that its group holds now
    everything = [
        find_case(adjudication, "label", "fort").disagreement,
        find_case(adjudication, "parent", "castle").disagreement,
    ]
    before = tree(adjudication.branch)
    with pytest.raises(RefusedError, match="leave 'castle' empty; resolve the labels first"):
        adjudication.resolve(everything, "first")
    assert tree(adjudication.branch) == before


def test_a_label_that_one_annotator_has_not_seen_needs_another_answer(tmp_path):
    project = two_branches(tmp_path / "project", ANNA, BEN)
    with project.transaction() as db:
        db.execute("INSERT INTO label (id, key, text, weight, state) VALUES (20, 'moor', 'moor', 7, 'active')")
    Branch(project, "ben")
    open_final_branch(project, "anna", "ben")
    adjudication = Adjudication(project)
    with pytest.raises(RefusedError, match="anna has not looked at 'moor' yet"):
        resolve(adjudication, "label", "moor", "first")
    resolve(adjudication, "label", "moor", "other", "lake")
    assert tree(adjudication.branch)[0]["lake"][1] == ["lake", "moor"]


places = st.one_of(
    st.sampled_from(["vague", "no place"]),
    st.tuples(st.sampled_from(["church", "castle", "lake", "fort"]), st.sampled_from([None, "made", "natural"])),
)


def as_tree(answers, prefix):
    """A place for every label; the parent of a group is the one of its first label."""
    parents = {}
    for place in answers:
        if not isinstance(place, str):
            parents.setdefault(*place)
    rows = {}
    for number, place in enumerate(answers):
        if not isinstance(place, str):
            parent = parents[place[0]]
            place = [prefix + place[0], parent] if parent else [prefix + place[0]]
        rows[f"label {number}"] = place
    return rows


def partition(branch):
    groups, excluded = tree(branch)
    return {frozenset(labels) for _, labels in groups.values() if labels}, excluded


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(places, places), min_size=1, max_size=8), st.sampled_from(["", "my "]))
def test_taking_all_answers_of_one_annotator_rebuilds_their_tree(tmp_path_factory, rows, prefix):
    first, second = as_tree([row[0] for row in rows], ""), as_tree([row[1] for row in rows], prefix)
    project = two_branches(tmp_path_factory.mktemp("law") / "project", first, second)
    final = resolve_all(project, "first")
    groups, excluded = tree(final)
    kept = {name: row for name, row in groups.items() if row[1] or any(parent == name for parent, _ in groups.values())}
    assert (kept, excluded) == tree(Branch(project, "anna"))
    assert final.problems() == []
    other = two_branches(tmp_path_factory.mktemp("law") / "project", first, second)
    by_second = resolve_all(other, "second")
    groups, _ = partition(by_second)
    assert groups == partition(Branch(other, "ben"))[0]
    assert tree(by_second)[1].keys() == tree(Branch(other, "ben"))[1].keys()
    named = {name: row for name, row in tree(by_second)[0].items() if row[1]}
    assert named == {name: row for name, row in tree(Branch(other, "ben"))[0].items() if row[1]}
    assert by_second.problems() == []
