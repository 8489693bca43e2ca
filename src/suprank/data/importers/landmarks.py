"""Google Landmarks v2 (GLDv2) and its hierarchical labels (H-GLDv2): photographs of landmarks, named after Wikimedia Commons.

Train and index number their landmarks independently: 7 here is not 7 there. So a label includes its number space: "train 7", or
"Sparkassen-Arena, Göttingen (train 7)" if there is a file of Commons categories.

About half of the landmarks have no reviewed label. H-GLDv2 leaves them out, with their images and queries.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from suprank.data.importers.base import Importer, require_file
from suprank.data.importers.landmark_files import (
    HIERARCHIES,
    Photographs,
    index_photographs,
    landmark_names,
    query_photographs,
    read_landmark_labels,
    train_photographs,
)
from suprank.data.manifest import Manifest

FOLDERS = ("", "metadata", "ground_truth")  # where the files may be: in the root, or as on the server
FOLDER_OF = {"train": "train", "gallery": "index", "query": "test"}

_log = logging.getLogger(__name__)


def read_gldv2(root: Path) -> dict[str, Manifest]:
    """One level, `landmark`. Extra columns for queries: `usage` (Public or Private) and `positives`, the index ids listed.

    `suprank.evaluation.landmark_map` uses these positives; the paper's protocol, equal landmarks, is not the same.
    """
    files = _files(root, "gldv2", NEEDED, LAYOUT)
    parts = [_columns(split, part, space, files, root) for split, space, part in _photographs(files)]
    return {"": _concatenate(parts, root, "GLDv2")}


def read_hgldv2(root: Path) -> dict[str, Manifest]:
    """Levels `landmark`, `supercategory` (78) and `kind` (natural or human-made). Extra column for queries: `usage`.

    Landmarks without reviewed labels are left out with their images and queries; a warning says how many. The positives
    of a query are the index images of its landmark, as in the paper's tables.
    """
    files = _files(root, "hgldv2", NEEDED, HIERARCHICAL_LAYOUT)
    hierarchies = {space: read_landmark_labels(_hierarchy_file(space, files, root)) for space in ("train", "index")}
    parts = []
    for split, space, part in _photographs(files):
        hierarchy = hierarchies[space]
        labeled = np.isin(part.landmarks, hierarchy.landmarks)
        if not labeled.all():
            _log.warning("%s", _describe_dropped(split, part, labeled))
        if not labeled.any():
            raise ValueError(f"no {split} image of H-GLDv2 has a landmark with reviewed labels; do the files belong together?")
        selected = part.select(labeled)
        rows = pa.array(np.searchsorted(hierarchy.landmarks, selected.landmarks))
        columns = _columns(split, selected, space, files, root)
        del columns["positives"]
        levels = {"label_supercategory": hierarchy.supercategory, "label_kind": hierarchy.kind}
        parts.append(columns | {name: values.dictionary_encode().take(rows) for name, values in levels.items()})
    return {"": _concatenate(parts, root, "H-GLDv2")}


def _hierarchy_file(space: str, files: Mapping[str, Path], root: Path) -> Path:
    names = [pattern.format(space=space) for pattern in HIERARCHIES]
    return next((files[name] for name in names if name in files), None) or require_file(
        root, names[0], "hgldv2", HIERARCHICAL_LAYOUT
    )


def _describe_dropped(split: str, part: Photographs, labeled: NDArray[np.bool_]) -> str:
    landmarks, without = (len(np.unique(some)) for some in (part.landmarks, part.landmarks[~labeled]))
    return (
        f"{split}: {without:,} of {landmarks:,} landmarks have no reviewed label; left out with their "
        f"{int((~labeled).sum()):,} of {len(labeled):,} images"
    )


def _columns(split: str, part: Photographs, space: str, files: Mapping[str, Path], root: Path) -> dict[str, pa.Array]:
    folder = _folder(root, FOLDER_OF[split])
    digits = [pc.utf8_slice_codeunits(part.ids, place, place + 1) for place in range(3)]
    distinct, codes = np.unique(part.landmarks, return_inverse=True)
    nothing = pa.nulls(len(part.ids), pa.string())
    return {
        "path": pc.binary_join_element_wise(folder, *digits, pc.binary_join_element_wise(part.ids, ".jpg", ""), "/"),
        "split": pa.array([split]).take(pa.array(np.zeros(len(part.ids), np.int64))),
        "label_landmark": pa.DictionaryArray.from_arrays(
            pa.array(codes.astype(np.int32)), landmark_names(space, distinct, files)
        ),
        "id": part.ids,
        "usage": nothing if part.usage is None else part.usage,
        "positives": nothing if part.positives is None else part.positives,
    }


def _folder(root: Path, name: str) -> str:
    """The folder of the images: in the root, or in images/ as in the authors' code."""
    if next((root / name).glob("images_*.tar"), None) is not None and not (root / name / "0").is_dir():
        _log.warning("%s has packed TAR archives; images are looked for beside them: unpack each with tar -xf", root / name)
    return f"images/{name}" if (root / "images" / name).is_dir() and not (root / name).is_dir() else name


def _concatenate(parts: list[dict[str, pa.Array]], root: Path, about: str) -> Manifest:
    tables = [pa.table(part) for part in parts]
    return Manifest.from_columns(pa.concat_tables(tables).unify_dictionaries(), root=root, about=about)


def _files(root: Path, importer: str, needed: tuple[str, ...], layout: str) -> dict[str, Path]:
    """Every CSV file by its name, in any of `FOLDERS`; raise if a needed one is missing."""
    files = {path.name: path for folder in reversed(FOLDERS) for path in (root / folder).glob("*.csv")}
    for name in needed:
        if name not in files:
            require_file(root, name, importer, layout)
    return files


def _photographs(files: Mapping[str, Path]) -> Iterator[tuple[str, str, Photographs]]:
    """(split, the number space of its landmarks, its images)."""
    index = index_photographs(files)
    yield "train", "train", train_photographs(files)
    yield "gallery", "index", index
    yield "query", "index", query_photographs(files, index)


NEEDED = ("train_clean.csv", "index_image_to_landmark.csv", "retrieval_solution_v2.1.csv")

LAYOUT = """\
train_clean.csv, index_image_to_landmark.csv     in the root, or in metadata/
retrieval_solution_v2.1.csv                      in the root, or in ground_truth/
train_label_to_category.csv, index_label_to_...  (optional: readable names of landmarks)
train/0/1/2/0123456789abcdef.jpg                 the unpacked TARs; index/ and test/ alike, or all three in images/"""

HIERARCHICAL_LAYOUT = f"""\
train_label_to_hierarchical.csv, index_label_to_hierarchical.csv
                                                 in the root, or in metadata/
                                                 (or the authors' *_label_to_subcategory_with_clusters.csv)
{LAYOUT}"""

GLDV2 = Importer(
    name="gldv2",
    title="Google Landmarks v2: 1,580,470 clean training photographs of 81,313 landmarks, 761,757 in the index",
    layout=LAYOUT,
    read=read_gldv2,
    published={"train": {"images": 1_580_470, "landmark": 81_313}, "gallery": {"images": 761_757}},
)

HGLDV2 = Importer(
    name="hgldv2",
    title="H-GLDv2: the landmarks of GLDv2 under 78 supercategories and 2 kinds, 970,981 training photographs",
    layout=HIERARCHICAL_LAYOUT,
    read=read_hgldv2,
    published={
        "train": {"images": 970_981, "landmark": 46_593, "supercategory": 78, "kind": 2},
        "gallery": {"landmark": 55_529, "supercategory": 78, "kind": 2},
    },
)
