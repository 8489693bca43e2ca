import pytest

from suprank.hierarchy import Project
from suprank.hierarchy.review import Exclude, Merge, open_branch
from tests.hierarchy.review.small_project import CHURCH, ID, LAKE, RECIPE, small_project, tree


def test_an_existing_branch_continues_where_it_was(tmp_path):
    project = small_project(tmp_path / "project")
    first = open_branch(project, "anna")
    first.apply(Merge((CHURCH,), LAKE))
    again = open_branch(Project(project.folder), "anna")
    assert (again.id, again.token, tree(again)) == (first.id, first.token, tree(first))
    assert len(again.log()) == 2


def test_suggested_names_that_clash_are_made_different(tmp_path):
    labels = dict.fromkeys(("a", "b", "c"), 1)
    branch = open_branch(small_project(tmp_path / "project", labels=labels, clusters=[["a"], ["b"], ["c"]]), "anna")
    assert sorted(tree(branch)[0]) == ["a", "b", "c", "human-made", "natural"]
    other = small_project(tmp_path / "other", labels=labels, clusters=[["a"], ["b"], ["c"]])
    with other.transaction() as db:
        db.execute("UPDATE cluster SET names_json = '[\"A\"]'")
    assert sorted(tree(open_branch(other, "anna"))[0]) == ["A", "cluster 1", "cluster 2", "human-made", "natural"]


def test_new_labels_wait_unsorted_and_removed_ones_are_excluded(tmp_path):
    project = small_project(tmp_path / "project")
    branch = open_branch(project, "anna")
    branch.apply(Exclude((ID["chapel"],), "small"))
    with project.transaction() as db:
        db.execute("INSERT INTO label (id, key, text, weight, state) VALUES (8, 'dam', 'dam', 3, 'active')")
        db.execute("UPDATE label SET state = 'removed', reason = 'a stop word' WHERE text = 'fort'")
    groups, excluded = tree(open_branch(project, "anna"))
    assert groups["unsorted"] == (None, ["dam"])
    assert excluded == {"chapel": "small", "fort": "removed by cleaning: a stop word"}
    with project.transaction() as db:
        db.execute("UPDATE label SET state = 'active', reason = NULL WHERE text = 'fort'")
    groups, excluded = tree(open_branch(project, "anna"))
    assert groups["unsorted"] == (None, ["dam", "fort"])
    assert excluded == {"chapel": "small"}
    assert branch.problems() == []
    assert [event.action for event in branch.log(newest_first=False)] == ["start", "exclude", "sync", "sync"]


def test_a_new_clustering_does_not_change_existing_branches(tmp_path):
    project = small_project(tmp_path / "project")
    branch = open_branch(project, "anna")
    before = tree(branch)
    with project.transaction() as db:
        db.execute("INSERT INTO clustering VALUES (2, 1, '{}', 'x', '{}', 'later')")
        db.execute("INSERT INTO cluster VALUES (2, 0, '[\"all\"]', 0.5, 0.5)")
        db.executemany("INSERT INTO cluster_member VALUES (2, ?, 0, 0.5, 0.1)", [(one,) for one in ID.values()])
    assert tree(open_branch(project, "anna")) == before
    assert sorted(tree(open_branch(project, "ben"))[0]) == ["all", "human-made", "natural"]


@pytest.mark.parametrize("name", ["", "anna b", "../x", "ä", "a" * 41, "-x"])
def test_a_name_that_cannot_be_in_a_url_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="letters, digits"):
        open_branch(small_project(tmp_path / "project"), name)


def test_errors_name_the_missing_step(tmp_path):
    with pytest.raises(ValueError, match="hierarchy cluster"):
        open_branch(Project.create(tmp_path / "empty", RECIPE), "anna")
