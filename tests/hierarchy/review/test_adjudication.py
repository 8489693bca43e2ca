"""A branch that starts from one annotator's, with what another placed differently marked as doubtful."""

import pytest

from suprank.hierarchy.agreement import compare_branches
from suprank.hierarchy.lint import lint_project
from suprank.hierarchy.review import Exclude, Mark, Move, Rename, open_branch
from suprank.hierarchy.review.state import BranchState
from suprank.hierarchy.tree import read_hierarchy
from tests.hierarchy.review.small_project import tree, two_branches


@pytest.fixture
def project(tmp_path):
    return two_branches(tmp_path / "p")


def doubts(project, branch="final"):
    return {label.text: label.doubt for label in read_hierarchy(project, branch).labels.values() if label.doubt}


def groups(project, branch):
    with project.snapshot() as db:
        return {row.name: (one, row) for one, row in BranchState(db, branch.id).groups().items()}


def test_it_has_annas_groups_and_what_ben_says_otherwise(project):
    final = open_branch(project, "final", source="anna", against="ben")
    assert tree(final) == (
        {
            "church": ("made", ["chapel", "church"]),
            "castle": ("made", ["castle", "heritage"]),  # only ben has heritage in a group
            "fort": ("made", ["fort"]),
            "lake": ("natural", ["lake", "river"]),
            "made": (None, []),
            "natural": (None, []),
        },
        {"site": "no place"},
    )
    assert doubts(project) == {"fort": "ben: castle", "river": "ben: stream", "heritage": "anna: excluded: vague"}
    rows = {name: (row.state, row.note) for name, (_, row) in groups(project, final).items()}
    assert rows == {
        "church": ("open", "ben: called 'cathedral'"),
        "castle": ("open", "ben: under old"),
        "fort": ("open", ""),
        "lake": ("open", ""),
        "made": ("done", ""),
        "natural": ("done", ""),
    }
    assert final.log()[0].summary == "started from anna against ben, who differ on 3 labels"
    assert (final.origin, final.problems()) == ("anna against ben", [])


def test_a_group_that_only_ben_has_is_made_for_labels_that_anna_left_out(tmp_path):
    project = two_branches(
        tmp_path / "p", {"a": ["x", "top"], "b": "odd", "c": "odd"}, {"a": ["x", "top"]} | {key: ["y", "top"] for key in "bc"}
    )
    assert tree(open_branch(project, "final", source="anna", against="ben"))[0] == {
        "x": ("top", ["a"]),
        "y": ("top", ["b", "c"]),
        "top": (None, []),
    }


def test_a_doubt_is_decided_by_moving_excluding_or_marking_the_group_done_and_undo_brings_it_back(project):
    final = open_branch(project, "final", source="anna", against="ben")
    ids = {label.text: label.id for label in read_hierarchy(project, "final").labels.values()}
    number = {name: one for name, (one, _) in groups(project, final).items()}
    final.apply(Move((ids["fort"],), number["castle"]))
    assert "fort" in doubts(project)  # castle is open still
    final.apply(Mark((number["castle"],), "done"))
    assert doubts(project) == {"river": "ben: stream"}
    final.apply(Exclude((ids["river"],), "too long"))
    assert doubts(project) == {}
    final.undo()
    assert [finding.message for finding in lint_project(project, "final") if finding.code == "doubtful"] == [
        "two annotators differ on 1 label, and nobody has decided: 'river'"
    ]
    final.apply(Rename(number["church"], "cathedral"))
    assert compare_branches(project, "final", "ben").agreement().disagreements == {"label": 1, "name": 0, "parent": 1}


def test_what_the_two_do_later_is_not_included_and_new_labels_are_unsorted(project):
    open_branch(project, "final", source="anna", against="ben")
    anna = open_branch(project, "anna")
    anna.apply(Rename(groups(project, anna)["church"][0], "minster"))
    with project.transaction() as db:
        db.execute("INSERT INTO label (id, key, text, weight, state) VALUES (9, 'dam', 'dam', 3, 'active')")
    again = open_branch(project, "final")
    assert tree(again)[0].keys() == {"church", "castle", "fort", "lake", "made", "natural", "unsorted"}
    assert len(doubts(project)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "anna"}, "give both source and against"),
        ({"source": "anna", "against": "anna"}, "name three different branches"),
        ({"source": "final", "against": "ben"}, "name three different branches"),
        ({"source": "anna", "against": "carl"}, "there is no branch 'carl'; choose from anna, ben"),
    ],
)
def test_what_it_cannot_start_from_says_why(project, options, message):
    with pytest.raises(ValueError, match=message):
        open_branch(project, "final", **options)
    open_branch(project, "joint", source="anna", against="ben")
    with pytest.raises(ValueError, match="there is a branch 'joint' already; open it by its name alone"):
        open_branch(project, "joint", source="anna", against="ben")
