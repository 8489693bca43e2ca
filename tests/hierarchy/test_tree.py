"""What a branch says, from plain names and from a project."""

import pytest

from suprank.hierarchy.tree import Hierarchy, branch_names, choose_branch, read_hierarchy
from tests.hierarchy.branches import BIRDS, LEVELS, plain, write_branch


def test_groups_by_name_with_their_weights_and_members():
    paths = {text: BIRDS[text] for text in ("jay", "crow", "wren", "teal", "screamer")}
    tree = Hierarchy.from_paths(paths, levels=LEVELS, weights={"jay": 5}, excluded={"screamer": "too rare"})
    assert [(group.level, group.name) for group in tree.groups_at(1)] == [
        (1, "Corvidae"),
        (1, "Troglodytidae"),
        (1, "Anatidae"),
    ]
    weights = {group.name: tree.weights[number] for number, group in tree.groups.items()}
    assert weights == {"Corvidae": 6, "songbird": 7, "Troglodytidae": 1, "Anatidae": 1, "waterfowl": 1}
    assert tree.names(tree.labels_by_text["wren"]) == ("Troglodytidae", "songbird")
    assert tree.names(tree.labels_by_text["screamer"]) == ("", "")
    assert tree.labels_by_text["screamer"].reason == "too rare"
    assert [label.text for label in tree.members[1]] == ["jay", "crow"]
    assert [group.name for group in tree.children[2]] == ["Corvidae", "Troglodytidae"]
    assert [group.name for group in tree.children[None]] == ["songbird", "waterfowl"]


def test_one_name_under_two_parents_is_two_groups_and_a_path_may_end_early():
    tree = Hierarchy.from_paths(
        {"a": ("park", "natural"), "b": ("park", "human-made"), "c": ("pond", "")}, levels=("x", "y", "z")
    )
    assert [group.name for group in tree.groups_at(1)] == ["park", "park", "pond"]
    assert tree.names(tree.labels_by_text["c"]) == ("pond", "")
    with pytest.raises(ValueError, match="'a' has 2 groups above it"):
        Hierarchy.from_paths({"a": ("b", "c")}, levels=("x", "y"))


def test_a_branch_is_read_as_it_was_written(tmp_path):
    project = write_branch(plain(tmp_path / "p"), {k: v for k, v in BIRDS.items() if k != "teal"}, name="anna", events=3)
    tree = read_hierarchy(project, "anna")
    assert (tree.branch, tree.seq, tree.levels) == ("anna", 3, LEVELS)
    assert {label.text: tree.names(label) for label in tree.labels.values()} == {**BIRDS, "teal": ("", "")}
    teal = tree.labels_by_text["teal"]  # it came after the review began
    assert (teal.group, teal.reason) == (None, None)
    with project.transaction() as db:
        db.execute("UPDATE label SET state = 'removed', reason = 'x' WHERE text = 'wren'")
    assert "wren" not in read_hierarchy(project, "anna").labels_by_text
    assert read_hierarchy(project, "anna").sizes[3] == 0  # Troglodytidae stays, empty


def test_the_final_branch_is_the_default_else_the_only_one(tmp_path):
    project = plain(tmp_path / "p")
    with pytest.raises(ValueError, match="has no branch yet"):
        choose_branch(project)
    write_branch(project, name="anna")
    assert choose_branch(project) == "anna"
    write_branch(project, name="ben")
    with pytest.raises(ValueError, match="no 'final'; choose a branch from anna, ben"):
        choose_branch(project)
    with pytest.raises(ValueError, match="no branch 'carl'; choose from anna, ben"):
        choose_branch(project, "carl")
    with pytest.raises(ValueError, match="no branch 'carl'; choose from anna, ben"):
        read_hierarchy(project, "carl")
    write_branch(project)
    assert (choose_branch(project), choose_branch(project, "ben")) == ("final", "ben")
    assert branch_names(project) == ["anna", "ben", "final"]
