"""Projects as large as real reviews, written directly into their tables: nothing is scraped, encoded or clustered."""

import json

import numpy as np

from suprank.hierarchy import Project, Recipe

RECIPE = Recipe(
    name="large",
    title="Landmarks",
    levels=("landmark", "hierarchical_label", "natural_or_human_made"),
    top=("human-made", "natural"),
)
KINDS = ("church", "castle", "lake", "bridge", "museum", "mountain", "tower", "garden", "temple", "harbour")
WHERE = ("old", "new", "upper", "lower", "ruined", "royal", "fortified", "wooden", "small", "former", "public", "medieval")


def large_project(folder, labels=20_000, clusters=667, largest=5_000, items=2, dim=8, seed=0):
    """A project with this many labels, items per label, and clusters with vectors; the first cluster has `largest` labels."""
    Project.create(folder, RECIPE)
    project, draw = Project(folder), np.random.default_rng(seed)
    rest = max(1, clusters - 1)
    number_of = [0 if one < largest else 1 + one % rest for one in range(labels)] if clusters > 1 else [0] * labels
    texts = [f"{WHERE[one % 12]} {KINDS[number_of[one] % 10]} {number_of[one]}-{one}" for one in range(labels)]
    weights = np.maximum(1, (2_000 / (1 + np.arange(labels))).astype(int)).tolist()
    vectors = draw.normal(size=(clusters, dim))[number_of] + 0.4 * draw.normal(size=(labels, dim))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    with project.transaction() as db:
        rows = [
            (one + 1, text, text, f"Q{one + 1}" if one % 3 == 0 else None, "a kind of place" if one % 2 else "", weight)
            for one, (text, weight) in enumerate(zip(texts, weights, strict=True))
        ]
        db.executemany(
            "INSERT INTO label (id, key, text, qid, description, weight, state) VALUES (?, ?, ?, ?, ?, ?, 'active')", rows
        )
        db.executemany("INSERT INTO label_spelling VALUES (?, ?, 1)", [(one + 1, text) for one, text in enumerate(texts)])
        db.executemany(
            "INSERT INTO label_spelling VALUES (?, ?, 1)", [(one + 1, texts[one].upper()) for one in range(0, labels, 5)]
        )
        found = [(one // items + 1, f"http://commons.wikimedia.org/wiki/Category:Place_{one}") for one in range(labels * items)]
        db.executemany(
            "INSERT INTO item (id, split, key, source, line) VALUES (?, 'train', ?, ?, 1)",
            [(one + 1, str(one), source) for one, (_, source) in enumerate(found)],
        )
        db.executemany(
            "INSERT INTO item_label (item, label) VALUES (?, ?)", [(one + 1, label) for one, (label, _) in enumerate(found)]
        )
        db.execute("INSERT INTO embedding VALUES (1, 'f', '{}', 'x', ?, 'f.npz')", (dim,))
        db.execute("INSERT INTO clustering VALUES (1, 1, '{}', 'x', '{}', 'then')")
        figures = draw.uniform(0.3, 0.95, (clusters, 2)).tolist()
        db.executemany(
            "INSERT INTO cluster VALUES (1, ?, ?, ?, ?)",
            [(one, json.dumps([f"{KINDS[one % 10]} {one}", f"kind {one}"]), *figures[one]) for one in range(clusters)],
        )
        near = draw.uniform(0.2, 1, (labels, 2)).tolist()
        db.executemany(
            "INSERT INTO cluster_member VALUES (1, ?, ?, ?, ?)",
            [(one + 1, number_of[one], *near[one]) for one in range(labels)],
        )
    (project.folder / "embeddings").mkdir()
    np.savez(project.folder / "embeddings" / "f.npz", labels=np.array(texts), embeddings=vectors, fingerprint=np.array("{}"))
    return project
