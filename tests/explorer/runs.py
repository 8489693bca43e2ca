"""Small folders to look at: pictures, what `suprank embed` leaves of them, and what `suprank train` leaves of a run.

collection(root, ...)           a manifest of pictures on disk (or in a zip), two levels, a `<script>` and unicode among them
vectors(manifest, ...)          embeddings around the classes, which are around the groups: noise says how well they part
embeddings(out, manifest, ...)  a folder of `suprank embed`, a part a split
run(out, manifest, ...)         a folder of `suprank train` whose test images are embedded; without a model
hand_made_lists(root)           two folders of `suprank embed` whose first four items for each query are written down below
"""

import json
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from suprank.data import Manifest
from suprank.embedding.query_gallery import combine_parts
from suprank.evaluation import evaluate

GROUPS = ("<script>alert('group')</script>", "größte Ähre 🌾", "plain")
"""What the coarse classes are called: a page must show this as it is, and run none of it."""

RECIPE = """[data]
manifest = "m.parquet"

[loss]
name = "{loss}"
tau = 0.01
rho = 100.0
delta = 0.05

[run]
epochs = 2
"""


def _recipe(text: str, loss: str) -> str:
    """The recipe with this loss; a smooth loss has no rho and delta."""
    of_sup_losses = ("rho", "delta") if loss.startswith("smooth") else ()
    lines = text.format(loss=loss).splitlines()
    return "\n".join(line for line in lines if line.partition(" ")[0] not in of_sup_losses) + "\n"


def collection(
    root, groups=3, classes=2, images=4, splits=("test",), side=40, archive=None, extension="png", **columns
) -> Manifest:
    """A manifest of real pictures: class after class, image after image, splits dealt out in turn.

    Pictures of a group share their hue, those of a class their picture. `archive="a.zip"` puts them into a zip.
    """
    draw = np.random.default_rng(0)
    rows, packed = [], {}
    for group in range(groups):
        hue = draw.uniform(0, 255, 3)
        for one in range(classes):
            pattern = draw.uniform(0, 255, (4, 4, 3))
            for image in range(images):
                pixels = np.clip(0.5 * hue + 0.5 * pattern + draw.uniform(-20, 20, pattern.shape), 0, 255).astype(np.uint8)
                path = f"pictures/{group}-{one}-{image}.{extension}"
                buffer = BytesIO()
                Image.fromarray(pixels).resize((side + 8, side), Image.Resampling.NEAREST).save(
                    buffer, "JPEG" if extension == "jpg" else "PNG"
                )
                packed[path] = buffer.getvalue()
                name = GROUPS[group] if group < len(GROUPS) else f"group {group}"
                rows.append((path, splits[len(rows) % len(splits)], f"Klasse {group}·{one} & <b>", name))
    Path(root).mkdir(parents=True, exist_ok=True)
    if archive is None:
        (Path(root) / "pictures").mkdir(exist_ok=True)
        for path, data in packed.items():
            (Path(root) / path).write_bytes(data)
    else:
        with zipfile.ZipFile(Path(root) / archive, "w") as zipped:
            for path, data in packed.items():
                zipped.writestr(path, data)
    paths, split, fine, coarse = zip(*rows, strict=True)
    named = [path if archive is None else f"{archive}::{path}" for path in paths]
    return Manifest.from_columns(
        {"path": named, "split": split, "label_class": fine, "label_group": coarse, **columns}, root=root
    )


def vectors(manifest, dim=16, noise=0.8, seed=0, dtype=np.float32):
    """Embeddings of the rows: the same centers for the same dim, other noise for another seed. Not of length 1."""
    centers = np.random.default_rng(7)
    coarse = centers.normal(size=(64, dim))
    fine = centers.normal(size=(256, dim))
    labels = manifest.labels
    noisy = np.random.default_rng(seed).normal(size=(len(manifest), dim))
    return (coarse[labels[:, -1]] + fine[labels[:, 0]] + noise * noisy).astype(dtype)


def embeddings(out, manifest, rows=None, **how) -> Path:
    """A folder as `suprank embed` leaves it: `query` and `gallery` (with distractors), or `test`, and `train` if there."""
    rows = vectors(manifest, **how) if rows is None else rows
    splits = np.array(manifest.table["split"].to_pylist())
    for part, members in {
        "train": ["train"],
        "test": ["test"],
        "query": ["query"],
        "gallery": ["gallery", "distractor"],
    }.items():
        chosen = np.isin(splits, members)
        if chosen.any():
            (Path(out) / part).mkdir(parents=True, exist_ok=True)
            np.save(Path(out) / part / "embeddings.npy", rows[chosen])
            manifest.take(chosen).save(Path(out) / part / "items.parquet")
            (Path(out) / part / "run.json").write_text("{}")
    return Path(out)


def run(out, manifest, loss="happier", recipe=RECIPE, **how) -> Path:
    """A folder as `suprank train` leaves it after two epochs, its test images embedded; there is no model in it.

    metrics.jsonl has ten steps and the evaluations at 0, 1 and 2; their reports are of the embeddings with less and less noise.
    """
    out = Path(out)
    embeddings(out / "embeddings", manifest, **how)
    (out / "recipe.toml").write_text(_recipe(recipe, loss), encoding="utf-8")
    (out / "reports").mkdir(exist_ok=True)
    tested = manifest.split("test") if "test" in manifest.splits else manifest
    lines = []
    for epoch in range(3):
        for step in range(5 * epoch - 4, 5 * epoch + 1) if epoch else ():
            values = {"loss": 1 / step, "SupHAP": 0.5 / step, "ProxySoftmax": None if step == 3 else 5 / step}
            rates = {"learning rate/backbone": 1e-4 * (11 - step), "images per second": 100.0}
            norms = {"gradient norm": 1.0, "gradient norm of proxies": 0.5}
            lines.append({"step": step, "epoch": step / 5, **values, **rates, **norms})
        report = evaluate(vectors(tested, noise=2.0 - 0.6 * epoch), tested.labels, levels=tested.levels, ks=[1])
        report.save(out / "reports" / f"test-epoch-{epoch:04}.json")
        lines.append({"step": 5 * epoch, "epoch": epoch, **{f"test/{key}": value for key, value in report.items()}})
    (out / "metrics.jsonl").write_text("".join(json.dumps({**line, "time": 0.0}) + "\n" for line in lines))
    (out / "result.json").write_text("{}")
    return out


def of_arrays(name, rows, manifest, gallery=None, gallery_manifest=None):
    """Embeddings in memory with the manifest of their rows; without a gallery, images rank each other."""
    if gallery is None:
        return combine_parts({"test": (rows, manifest)}, name=name)
    return combine_parts({"query": (rows, manifest), "gallery": (gallery, gallery_manifest)}, name=name)


def evaluated(data):
    """The report that the pages are made of."""
    return evaluate(data, per_query=True, intervals=True)


FIRST_ITEMS = (
    ((0, 1, 2, 3), (2, 3, 0, 4), (6, 7, 0, 1), (4, 5, 0, 1)),
    ((0, 4, 5, 6), (2, 4, 5, 6), (0, 1, 2, 3), (4, 5, 0, 2)),
)
"""What the first and the second model of `hand_made_lists` find: gallery rows, for a query of each class."""


def hand_made_lists(root):
    """Two folders, `own` and `baseline`, the embeddings of both, and the manifest.

    There are two groups of two classes, and a query and two items of each class: items 0 and 1 have the class of query 0, and
    so on. An item is a basis vector, so that the coordinates of a query are its scores.
    """
    manifest = collection(root, groups=2, classes=2, images=3, splits=("query", "gallery", "gallery"))
    items = np.eye(8, dtype=np.float32)
    folders, rows = [], []
    for name, lists in zip(("own", "baseline"), FIRST_ITEMS, strict=True):
        queries = np.zeros((4, 8), np.float32)
        for query, found in enumerate(lists):
            queries[query, list(found)] = (4, 3, 2, 1)
        rows.append(np.concatenate([np.stack([queries[place], *items[2 * place : 2 * place + 2]]) for place in range(4)]))
        folders.append(embeddings(Path(root) / name, manifest, rows[-1]))
    return *folders, rows, manifest
