"""Build a label hierarchy in Python: cluster the names of classes, correct the clusters, and use them as a new level of labels.

The classes are letters that suprank draws, and all we use are their names, such as "Greek capital letter Delta". Eight clusters
by spelling come first. Then an annotator merges some of them, here in code; `suprank hierarchy review` opens a page for it.
The groups become a level of the manifest, with which `evaluate` computes H-AP and AP of the groups, and HAPPIER can train.

    $ python examples/09_label_hierarchy.py    # suprank[hierarchy,vision]; 5 seconds on a CPU
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from suprank.data import ImageDataset, Manifest
from suprank.data.importers import glyphs
from suprank.evaluation import evaluate
from suprank.hierarchy import cluster_labels, create_project, embed_labels, read_hierarchy, read_manifest_labels, read_recipe
from suprank.hierarchy.review import Merge, open_branch

letters = glyphs.read(size=32).split("test")
letters = letters.take(np.flatnonzero(np.isin(letters.table["label_script"], ["Armenian", "Cyrillic", "Greek", "Hebrew"])))

with TemporaryDirectory() as temporary:
    folder = Path(temporary)
    letters.save(folder / "letters.parquet")
    labels = read_manifest_labels(folder / "letters.parquet", "character")
    project = create_project(folder / "project", read_recipe("plain"), labels).project
    embed_labels(project, "tfidf")  # from the spelling; "sentence:MODEL" and "clip:MODEL" read the meaning
    cluster_labels(project, k=8, method="ward")

    branch = open_branch(project, "anna")  # her copy of the clusters, with suggested names
    clusters = {group.name: group.id for group in read_hierarchy(project, "anna").groups_at(1)}
    print(f"{len(labels.rows)} letters, clusters: {', '.join(clusters)}")
    branch.apply(Merge((clusters["Armenian small letter ca"],), clusters["armenian"]))
    branch.apply(Merge((clusters["symbol"], clusters["koppa"], clusters["coptic"]), clusters["greek"]))
    reviewed = read_hierarchy(project, "anna")
print("groups:", ", ".join(f"{group.name} ({reviewed.sizes[group.id]})" for group in reviewed.groups_at(1)))

# The name of each letter's group, as a new level of the manifest.
groups = {label.text: reviewed.names(label)[0] for label in reviewed.labels.values()}
names = letters.table["label_character"].to_pylist()
columns = {"path": letters.paths, "split": letters.table["split"], "label_letter": names}
tree = Manifest.from_columns({**columns, "label_group": [groups[name] for name in names]}, root=letters.root)

pixels = np.stack([np.asarray(item.image.convert("L")).ravel() for item in ImageDataset(tree)])
report = evaluate(pixels - pixels.mean(axis=1, keepdims=True), tree.labels, levels=tree.levels)
print(*(f"{metric} {report[metric]:.0%}" for metric in ["AP/letter", "AP/group", "H-AP"]), sep=", ")
