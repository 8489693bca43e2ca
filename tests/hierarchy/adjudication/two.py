"""Two branches with given trees, written straight into a project: for laws over any two trees."""

from suprank.hierarchy import Recipe
from suprank.hierarchy.adjudication import Settling, begin_final
from suprank.hierarchy.review import Branch
from suprank.hierarchy.review.branch import write_start
from suprank.hierarchy.review.changes import Changes, GroupRow
from suprank.hierarchy.tree import Hierarchy
from tests.hierarchy.review.small import small_project

RECIPE = Recipe(name="two", title="two", levels=("landmark", "supercategory", "kind"))


def two_branches(folder, first, second, weights=None):
    """A project whose branches anna and ben say this: label → names of its groups, finest first, or a reason to exclude it."""
    labels = {text: (weights or {}).get(text, 1) for text in first}
    project = small_project(folder, RECIPE, labels, [list(labels)])
    for name, said in (("anna", first), ("ben", second)):
        write_branch(project, name, said)
    return project


def write_branch(project, name, said):
    paths = {text: None if isinstance(place, str) else place for text, place in said.items()}
    excluded = {text: place for text, place in said.items() if isinstance(place, str)}
    found = Hierarchy.of(paths, levels=project.recipe.levels, excluded=excluded)
    groups = {one: (None, GroupRow(group.level, group.name, group.parent)) for one, group in found.groups.items()}
    places = {one: label.group or label.reason for one, label in found.labels.items()}
    with project.writing() as db:
        write_start(db, name, "annotator", 1, Changes(groups, {one: (None, place) for one, place in places.items()}), "began")
    return Branch(project, name)


def settled(project, choice):
    """The final branch after every disagreement was decided this way: labels, then what this brings up of names and parents."""
    begin_final(project, "anna", "ben")
    settling = Settling(project)
    for kind in ("label", "name", "parent", "name", "parent"):
        if waiting := [one.disagreement for one in settling.now().subjects[kind] if not one.settled]:
            settling.settle(waiting, choice, who="carl")
    assert settling.now().open == 0
    return settling.branch
