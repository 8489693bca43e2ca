"""Small projects, and reviewed branches written directly into their tables."""

from suprank.hierarchy.create import create_project
from suprank.hierarchy.recipe import Recipe, read_recipe
from suprank.hierarchy.sources import Items, labels_from_rows

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
    depth = project.recipe.depth
    with project.transaction() as db:
        kind = "final" if name == "final" else "annotator"
        row = (name, kind, f"token {name}", "2026-11-15T12:00:00.000Z")
        db.execute("INSERT INTO branch (name, kind, token, made) VALUES (?, ?, ?, ?)", row)
        (branch,) = db.execute("SELECT id FROM branch WHERE name = ?", (name,)).fetchone()
        labels = dict(db.execute("SELECT text, id FROM label").fetchall())
        numbers = {}

        def group(level, path):
            if (level, path) not in numbers:
                parent = group(level + 1, path[1:]) if len(path) > 1 else None
                numbers[level, path] = len(numbers) + 1
                state = "open" if path[0] in open_groups else "done"
                db.execute(
                    'INSERT INTO "group" (branch, id, level, name, parent, state) VALUES (?, ?, ?, ?, ?, ?)',
                    (branch, numbers[level, path], level, path[0], parent, state),
                )
            return numbers[level, path]

        for text, path in paths.items():
            assert len(path) <= depth
            place = (group(1, tuple(path)), None)
            db.execute(
                'INSERT INTO member (branch, label, "group", reason) VALUES (?, ?, ?, ?)', (branch, labels[text], *place)
            )
        for text, reason in dict(excluded).items():
            db.execute("INSERT INTO member (branch, label, reason) VALUES (?, ?, ?)", (branch, labels[text], reason))
        for level, group_name in extra:
            group(level, (group_name,))
        for number in range(events):
            row = (branch, "2026-11-15T12:00:00.000Z", "anna", "rename", f"act {number}", "[]")
            db.execute("INSERT INTO event (branch, at, who, act, said, changes_json) VALUES (?, ?, ?, ?, ?, ?)", row)
    return project
