import pytest

from suprank.hierarchy import Project
from suprank.hierarchy.review import Exclude, Merge, opened_branch
from tests.hierarchy.review.small import CHURCH, ID, LAKE, RECIPE, small_project, tree


def test_a_branch_goes_on_where_it_was(tmp_path):
    project = small_project(tmp_path / "project")
    first = opened_branch(project, "anna")
    first.do(Merge((CHURCH,), LAKE))
    again = opened_branch(Project(project.folder), "anna")
    assert (again.id, again.token, tree(again)) == (first.id, first.token, tree(first))
    assert len(again.log()) == 2


def test_suggested_names_that_clash_are_told_apart(tmp_path):
    labels = dict.fromkeys(("a", "b", "c"), 1)
    branch = opened_branch(small_project(tmp_path / "project", labels=labels, clusters=[["a"], ["b"], ["c"]]), "anna")
    assert sorted(tree(branch)[0]) == ["a", "b", "c", "human-made", "natural"]
    other = small_project(tmp_path / "other", labels=labels, clusters=[["a"], ["b"], ["c"]])
    with other.writing() as db:
        db.execute("UPDATE cluster SET names_json = '[\"A\"]'")
    assert sorted(tree(opened_branch(other, "anna"))[0]) == ["A", "cluster 1", "cluster 2", "human-made", "natural"]


def test_labels_that_came_later_wait_unsorted_and_removed_ones_are_put_aside(tmp_path):
    project = small_project(tmp_path / "project")
    branch = opened_branch(project, "anna")
    branch.do(Exclude((ID["chapel"],), "small"))
    with project.writing() as db:
        db.execute("INSERT INTO label (id, key, text, weight, state) VALUES (8, 'dam', 'dam', 3, 'active')")
        db.execute("UPDATE label SET state = 'removed', reason = 'a stop word' WHERE text = 'fort'")
    groups, excluded = tree(opened_branch(project, "anna"))
    assert groups["unsorted"] == (None, ["dam"])
    assert excluded == {"chapel": "small", "fort": "removed by cleaning: a stop word"}
    with project.writing() as db:
        db.execute("UPDATE label SET state = 'active', reason = NULL WHERE text = 'fort'")
    groups, excluded = tree(opened_branch(project, "anna"))
    assert groups["unsorted"] == (None, ["dam", "fort"])
    assert excluded == {"chapel": "small"}
    assert branch.problems() == []
    assert [event.act for event in branch.log(newest_first=False)] == ["start", "exclude", "sync", "sync"]


def test_a_new_clustering_leaves_branches_where_they_are(tmp_path):
    project = small_project(tmp_path / "project")
    branch = opened_branch(project, "anna")
    before = tree(branch)
    with project.writing() as db:
        db.execute("INSERT INTO clustering VALUES (2, 1, '{}', 'x', '{}', 'later')")
        db.execute("INSERT INTO cluster VALUES (2, 0, '[\"all\"]', 0.5, 0.5)")
        db.executemany("INSERT INTO cluster_member VALUES (2, ?, 0, 0.5, 0.1)", [(one,) for one in ID.values()])
    assert tree(opened_branch(project, "anna")) == before
    assert sorted(tree(opened_branch(project, "ben"))[0]) == ["all", "human-made", "natural"]


@pytest.mark.parametrize("name", ["", "anna b", "../x", "ä", "a" * 41, "-x"])
def test_a_name_that_cannot_stand_in_an_address_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="letters, digits"):
        opened_branch(small_project(tmp_path / "project"), name)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(ValueError, match="hierarchy cluster"):
        opened_branch(Project.create(tmp_path / "empty", RECIPE), "anna")
    with pytest.raises(ValueError, match="agree --settle"):
        opened_branch(small_project(tmp_path / "project"), "final")
