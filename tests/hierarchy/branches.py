"""Small projects, and reviewed branches written directly into their tables."""

from suprank.hierarchy.create import create_project
from suprank.hierarchy.recipe import Recipe, read_recipe
from suprank.hierarchy.sources import Items, labels_from_rows
from suprank.hierarchy.tree import Hierarchy

BIRDS = {
    "jay": ("Corvidae", "songbird"),
    "crow": ("Corvidae", "songbird"),
    "wren": ("Troglodytidae", "songbird"),
    "mallard": ("Anatidae", "waterfowl"),
    "teal": ("Anatidae", "waterfowl"),
    "screamer": ("Anhimidae", "waterfowl"),
}
LEVELS = ("species", "family", "order")


def plain(folder, labels=BIRDS, levels=LEVELS, **recipe):
    """A project of labels, given as texts or as texts with weights."""
    weights = {text: labels[text] if isinstance(labels, dict) and isinstance(labels[text], int) else 1 for text in labels}
    rules = Recipe(name="plain", title="A list of labels", levels=levels, **recipe)
    return create_project(folder, rules, labels_from_rows((text, weight, "") for text, weight in weights.items())).project


def landmarks(folder, types):
    """A project with the recipe hgldv2: (split, number) → its types, each a text, (text, QID) or (text, QID, ended)."""
    rows = [(split, str(key), f"http://commons/Category:{key}_{split}", 2) for split, key in types]
    project = create_project(folder, read_recipe("hgldv2"), Items(rows)).project
    with project.transaction() as db:
        for item, found in enumerate(types.values(), start=1):
            for position, one in enumerate(found):
                given = (one,) if isinstance(one, str) else one
                text, qid, ended = given + (None, 0)[len(given) - 1 :]
                db.execute("INSERT INTO item_type VALUES (?, ?, ?, ?, ?)", (item, position, text, qid, ended))
    return project


def write_branch(project, paths=BIRDS, *, name="final", excluded=(), extra=(), open_groups=(), events=0):
    """Write a branch: label text → names of its groups, finest first. `extra` are further groups as (level, name)."""
    excluded, then = dict(excluded), "2026-11-15T12:00:00.000Z"
    tree = Hierarchy.from_paths({**paths, **dict.fromkeys(excluded)}, levels=project.recipe.levels, excluded=excluded)
    groups = [(one, group.level, group.name, group.parent) for one, group in tree.groups.items()]
    groups += [(number, *one, None) for number, one in enumerate(extra, start=len(groups) + 1)]
    with project.transaction() as db:
        row = (name, f"token {name}", then)
        branch = db.execute("INSERT INTO branch (name, token, made) VALUES (?, ?, ?)", row).lastrowid
        for number, level, group, parent in sorted(groups, key=lambda row: -row[1]):  # parents before their groups
            row = (branch, number, level, group, parent, "open" if group in open_groups else "done")
            db.execute('INSERT INTO "group" (branch, id, level, name, parent, state) VALUES (?, ?, ?, ?, ?, ?)', row)
        ids = dict(db.execute("SELECT text, id FROM label").fetchall())
        members = [(branch, ids[label.text], label.group, label.reason) for label in tree.labels.values()]
        db.executemany('INSERT INTO member (branch, label, "group", reason) VALUES (?, ?, ?, ?)', members)
        log = [(branch, then, "anna", "rename", f"act {number}", "[]") for number in range(events)]
        db.executemany("INSERT INTO event (branch, at, who, act, said, changes_json) VALUES (?, ?, ?, ?, ?, ?)", log)
    return project
