"""A project small enough to check by hand: seven labels in three clusters, and two known kinds above."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

from suprank.hierarchy import Project, Recipe
from suprank.hierarchy.project import FILE
from suprank.hierarchy.review import Branch
from suprank.hierarchy.review.branch import create_branch
from suprank.hierarchy.review.state import Changes, GroupRow
from suprank.hierarchy.tree import Hierarchy

LABELS = {"church": 50, "chapel": 20, "castle": 40, "fort": 10, "lake": 30, "river": 15, "heritage site": 5}
CLUSTERS = [["church", "chapel", "heritage site"], ["castle", "fort"], ["lake", "river"]]
RECIPE = Recipe(name="small", title="small", levels=("landmark", "supercategory", "kind"), top=("human-made", "natural"))

HUMAN, NATURAL, CHURCH, CASTLE, LAKE = 1, 2, 3, 4, 5
"""Ids of the groups that a branch starts with."""

ID = {text: place for place, text in enumerate(LABELS, 1)}
"""Text → id of its label."""


def small_project(folder, recipe=RECIPE, labels=LABELS, clusters=CLUSTERS, **options):
    """A new project with these clusters; their suggested names are their labels."""
    template = _template(recipe.model_dump_json(), tuple(labels.items()), tuple(map(tuple, clusters)))
    Path(folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(template / FILE, folder)
    return Project(folder, **options)


@cache
def _template(recipe, labels, clusters):
    """The folder of such a project, made once: to copy a file takes a tenth of the time."""
    folder, labels = Path(tempfile.mkdtemp()), dict(labels)
    atexit.register(shutil.rmtree, folder)
    project = Project.create(folder, Recipe.model_validate_json(recipe))
    ids = {text: place for place, text in enumerate(labels, 1)}
    with project.transaction() as db:
        db.executemany(
            "INSERT INTO label (id, key, text, weight, state) VALUES (?, ?, ?, ?, 'active')",
            [(ids[text], text, text, weight) for text, weight in labels.items()],
        )
        db.execute("INSERT INTO embedding VALUES (1, 'f', '{}', 'x', 2, 'f.npz')")
        db.execute("INSERT INTO clustering VALUES (1, 1, '{}', 'x', '{}', 'then')")
        for number, cluster in enumerate(clusters):
            db.execute("INSERT INTO cluster VALUES (1, ?, ?, 0.5, 0.9)", (number, json.dumps(cluster)))
            db.executemany("INSERT INTO cluster_member VALUES (1, ?, ?, 0.8, 0.1)", [(ids[text], number) for text in cluster])
    return folder


def tree(branch):
    """The tree of a branch: group name → (parent's name, labels), and excluded label → reason."""
    with branch.project.snapshot() as db:
        groups = {row["id"]: row for row in db.execute('SELECT * FROM "group" WHERE branch = ?', (branch.id,))}
        texts = dict(db.execute("SELECT id, text FROM label").fetchall())
        members = db.execute('SELECT label, "group", reason FROM member WHERE branch = ?', (branch.id,)).fetchall()
    members_of = {one: [] for one in groups}
    excluded = {}
    for label, group, reason in members:
        if group is None:
            excluded[texts[label]] = reason
        else:
            members_of[group].append(texts[label])
    name = {one: row["name"] for one, row in groups.items()}
    return {name[one]: (name.get(row["parent"]), sorted(members_of[one])) for one, row in groups.items()}, excluded


ANNA = {
    "church": ["church", "made"],
    "chapel": ["church", "made"],
    "castle": ["castle", "made"],
    "fort": ["fort", "made"],
    "lake": ["lake", "natural"],
    "river": ["lake", "natural"],
    "site": "no place",
    "heritage": "vague",
}
BEN = {
    "church": ["cathedral", "made"],
    "chapel": ["cathedral", "made"],
    "castle": ["castle", "old"],
    "fort": ["castle", "old"],
    "lake": ["lake", "natural"],
    "river": ["stream", "natural"],
    "site": "nothing",
    "heritage": ["castle", "old"],
}
TWO = Recipe(name="two", title="two", levels=("landmark", "supercategory", "kind"))


def two_branches(folder, first=ANNA, second=BEN, weights=None):
    """A project with branches anna and ben: label → names of its groups, finest first, or the reason why it is excluded."""
    labels = {text: (weights or {}).get(text, 1) for text in first}
    project = small_project(folder, TWO, labels, [list(labels)])
    for name, places in (("anna", first), ("ben", second)):
        write_branch(project, name, places)
    return project


def write_branch(project, name, answers):
    paths = {text: None if isinstance(place, str) else place for text, place in answers.items()}
    excluded = {text: place for text, place in answers.items() if isinstance(place, str)}
    found = Hierarchy.from_paths(paths, levels=project.recipe.levels, excluded=excluded)
    groups = {one: (None, GroupRow(group.level, group.name, group.parent, state="done")) for one, group in found.groups.items()}
    places = {one: (None, label.group or label.reason) for one, label in found.labels.items()}
    with project.transaction() as db:
        create_branch(db, name, 1, Changes(groups, places), "started")
    return Branch(project, name)
