"""Revisited Oxford and Paris (Radenović et al., CVPR 2018): 70 queries each, with judgments per image instead of labels."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from suprank.data.importers.base import Importer, require_file
from suprank.data.manifest import Manifest
from suprank.files.reading import reading
from suprank.files.revisited import read_revisited


def read(root: Path, name: str) -> dict[str, Manifest]:
    """Queries, then gallery, each in the order of the ground truth; unlabeled, with the image's name as its id.

    `gnd_<name>.pkl` is read without running code; `gnd_<name>.json`, with the same keys, works too. A query's `box` is the
    `bbx` that the protocol crops it to. Which images are easy, hard or junk for it stays in that file, which numbers gallery
    images in this order: `suprank.evaluation.revisited` reads it.
    """
    path = root / f"gnd_{name}.json"
    if not path.is_file():
        path = require_file(root, f"gnd_{name}.pkl", name, _layout(name))
    gallery, queries, judgments = read_revisited(path)
    for key, listed in (("imlist", gallery), ("qimlist", queries)):
        _check_names(listed, f"{path}: {key}")
    with reading(path, "ground truth"):
        boxes = _boxes(judgments, queries, path)
    names = [*queries, *gallery]
    columns = {
        "path": [f"jpg/{name}.jpg" for name in names],
        "split": ["query"] * len(queries) + ["gallery"] * len(gallery),
        "id": names,
        "box": pa.array([*boxes, *[None] * len(gallery)], pa.list_(pa.float32())),
    }
    return {"": Manifest.from_columns(columns, root=root, levels=(), about=str(path))}


def _check_names(names: list[str], where: str) -> None:
    if not names or not all(names):
        raise ValueError(f"{where} must be a list of image names, such as all_souls_000013.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{where} has {twice!r} twice; every image must be listed once.")


def _boxes(judgments: list[dict[str, Any]], queries: list[str], path: Path) -> list[list[float] | None]:
    boxes: list[list[float] | None] = []
    for query, row in zip(queries, judgments, strict=True):
        corners = None if row.get("bbx") is None else np.asarray(row["bbx"], np.float64).reshape(-1)
        if corners is not None and len(corners) != 4:
            raise ValueError(f"{path}: bbx of {query!r} has {len(corners)} numbers, but a box is x1, y1, x2, y2.")
        boxes.append(None if corners is None else corners.tolist())
    return boxes


def _layout(name: str) -> str:
    return f"""\
gnd_{name}.pkl     queries, gallery and what is positive (or gnd_{name}.json)
jpg/<name>.jpg{" " * (len(name) - 6)}         all photographs in one folder"""


def _importer(name: str, place: str, gallery: int) -> Importer:
    return Importer(
        name=name,
        title=f"Revisited {place}: 70 query regions against {gallery:,} photographs, without labels",
        layout=_layout(name),
        read=partial(read, name=name),
        published={"query": {"images": 70}, "gallery": {"images": gallery}},
    )


ROXFORD5K = _importer("roxford5k", "Oxford", 4_993)
RPARIS6K = _importer("rparis6k", "Paris", 6_322)
