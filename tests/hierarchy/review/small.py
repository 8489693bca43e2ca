"""A project small enough to follow by hand: seven labels in three clusters, two known kinds above."""

import json

from suprank.hierarchy import Project, Recipe

LABELS = {"church": 50, "chapel": 20, "castle": 40, "fort": 10, "lake": 30, "river": 15, "heritage site": 5}
CLUSTERS = [["church", "chapel", "heritage site"], ["castle", "fort"], ["lake", "river"]]
RECIPE = Recipe(name="small", title="small", levels=("landmark", "supercategory", "kind"), top=("human-made", "natural"))

HUMAN, NATURAL, CHURCH, CASTLE, LAKE = 1, 2, 3, 4, 5
"""Ids of the groups that a branch begins with."""

ID = {text: place for place, text in enumerate(LABELS, 1)}
"""Text → id of its label."""


def small_project(folder, recipe=RECIPE, labels=LABELS, clusters=CLUSTERS, **options):
    """The project, clustered; names of clusters are suggestions: the first label, then the others."""
    Project.create(folder, recipe)
    project = Project(folder, **options)
    ids = {text: place for place, text in enumerate(labels, 1)}
    with project.writing() as db:
        db.executemany(
            "INSERT INTO label (id, key, text, weight, state) VALUES (?, ?, ?, ?, 'active')",
            [(ids[text], text, text, weight) for text, weight in labels.items()],
        )
        db.execute("INSERT INTO embedding VALUES (1, 'f', '{}', 'x', 2, 'f.npz')")
        db.execute("INSERT INTO clustering VALUES (1, 1, '{}', 'x', '{}', 'then')")
        for number, cluster in enumerate(clusters):
            db.execute("INSERT INTO cluster VALUES (1, ?, ?, 0.5, 0.9)", (number, json.dumps(cluster)))
            db.executemany("INSERT INTO cluster_member VALUES (1, ?, ?, 0.8, 0.1)", [(ids[text], number) for text in cluster])
    return project


def tree(branch):
    """What a branch says: group name → (parent's name, labels), and label → reason of those excluded."""
    with branch.project.reading() as db:
        groups = {row["id"]: row for row in db.execute('SELECT * FROM "group" WHERE branch = ?', (branch.id,))}
        texts = dict(db.execute("SELECT id, text FROM label").fetchall())
        members = db.execute('SELECT label, "group", reason FROM member WHERE branch = ?', (branch.id,)).fetchall()
    held = {one: [] for one in groups}
    excluded = {}
    for label, group, reason in members:
        if group is None:
            excluded[texts[label]] = reason
        else:
            held[group].append(texts[label])
    name = {one: row["name"] for one, row in groups.items()}
    return {name[one]: (name.get(row["parent"]), sorted(held[one])) for one, row in groups.items()}, excluded
