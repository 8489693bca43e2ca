"""Two branches with given trees, written directly into the tables of a project."""

from suprank.hierarchy import Recipe
from suprank.hierarchy.adjudication import Adjudication, open_final_branch
from suprank.hierarchy.review import Branch
from suprank.hierarchy.review.branch import create_branch
from suprank.hierarchy.review.state import Changes, GroupRow
from suprank.hierarchy.tree import Hierarchy
from tests.hierarchy.review.small_project import small_project

RECIPE = Recipe(name="two", title="two", levels=("landmark", "supercategory", "kind"))


def two_branches(folder, first, second, weights=None):
    """A project with branches anna and ben: label → names of its groups, finest first, or the reason why it is excluded."""
    labels = {text: (weights or {}).get(text, 1) for text in first}
    project = small_project(folder, RECIPE, labels, [list(labels)])
    for name, places in (("anna", first), ("ben", second)):
        write_branch(project, name, places)
    return project


def write_branch(project, name, answers):
    paths = {text: None if isinstance(place, str) else place for text, place in answers.items()}
    excluded = {text: place for text, place in answers.items() if isinstance(place, str)}
    found = Hierarchy.from_paths(paths, levels=project.recipe.levels, excluded=excluded)
    groups = {one: (None, GroupRow(group.level, group.name, group.parent)) for one, group in found.groups.items()}
    places = {one: label.group or label.reason for one, label in found.labels.items()}
    with project.transaction() as db:
        create_branch(
            db, name, "annotator", 1, Changes(groups, {one: (None, place) for one, place in places.items()}), "started"
        )
    return Branch(project, name)


def resolve_all(project, choice):
    """The final branch after every case was resolved this way: labels, then the names and parents that this brings up."""
    open_final_branch(project, "anna", "ben")
    adjudication = Adjudication(project)
    for kind in ("label", "name", "parent", "name", "parent"):
        if cases := [one.disagreement for one in adjudication.status().cases[kind] if not one.resolved]:
            adjudication.resolve(cases, choice, who="carl")
    assert adjudication.status().open == 0
    return adjudication.branch
