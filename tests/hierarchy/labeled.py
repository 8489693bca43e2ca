"""Small projects with labels in them, as `new` or `clean` leave them."""

from suprank.hierarchy import Project, read_recipe
from suprank.hierarchy.project import record_step
from suprank.hierarchy.text import label_key

PLACES = (
    "church",
    "church building (1172–1954)",
    "chapel church",
    "castle",
    "castle ruin",
    "water castle",
    "lake",
    "salt lake",
    "lake of salt",
    "ocean area ",
)


def labeled(folder, texts=PLACES, weights=None, recipe="plain", descriptions=None):
    """A project whose labels are these texts, numbered 1, 2, ... in their order."""
    project = Project.create(folder, read_recipe(recipe))
    relabel(project, texts, weights, descriptions)
    return project


def relabel(project, texts, weights=None, descriptions=None):
    """Replace the labels that no clustering refers to, as a step before `embed` would; keys are kept, others are added."""
    weights = dict(zip(texts, weights or [1] * len(texts), strict=True))
    with project.transaction() as db:
        db.execute("UPDATE label SET state = 'removed', reason = 'gone'")
        for text in texts:
            row = (label_key(text), text, (descriptions or {}).get(text, ""), weights[text])
            db.execute(
                "INSERT INTO label (key, text, description, weight, state) VALUES (?, ?, ?, ?, 'active') ON CONFLICT (key) "
                "DO UPDATE SET text = excluded.text, weight = excluded.weight, state = 'active', reason = NULL",
                row,
            )
        record_step(db, "new", {}, inputs="", result={}, digest=f"labels {sorted(weights.items())}")
