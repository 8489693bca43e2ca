"""The files of Google Landmarks v2: which photographs there are, their landmarks, and the names and groups of these.

Facts about them that decide how they are read:

- The training list is `train_clean.csv`, one line per landmark with all its images. The gallery is the index set.
- Queries are the test images that `retrieval_solution_v2.1.csv` gives index images for; the others (`None`, or Usage `Ignored`)
  show no landmark of the set. A query's landmark is that of the first index image listed for it.
- An image has an id of 16 hexadecimal digits, a landmark a number. Train and index number their landmarks independently.
- The published column `supercategory` is the type that was scraped for a landmark, before review; it is not read. What the
  paper calls supercategories, 78 reviewed names, is in `hierarchical_label`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from suprank.files.tables import Table, read_table

USAGES = ("Public", "Private", "Ignored")

# Columns of the two reviewed levels: as published, and as in the authors' own loader.
HIERARCHIES = {
    "{space}_label_to_hierarchical.csv": ("hierarchical_label", "natural_or_human_made"),
    "{space}_label_to_subcategory_with_clusters.csv": ("cluster", "overall_cluster"),
}


@dataclass(frozen=True)
class Photographs:
    """Images of one split with the numbers of their landmarks, and for queries their usage and index images."""

    ids: pa.Array
    landmarks: NDArray[np.int64]
    usage: pa.Array | None = None
    positives: pa.Array | None = None

    def select(self, rows: NDArray[np.bool_]) -> Photographs:
        """Select images by a boolean mask."""
        columns = [
            None if column is None else column.filter(pa.array(rows)) for column in (self.ids, self.usage, self.positives)
        ]
        return Photographs(columns[0], self.landmarks[rows], *columns[1:])


@dataclass(frozen=True)
class LandmarkLabels:
    """The landmarks of one split that have both reviewed labels, ascending, and these labels."""

    landmarks: NDArray[np.int64]
    supercategory: pa.Array
    kind: pa.Array

    def __len__(self) -> int:
        return len(self.landmarks)


def read_landmark_labels(path: Path) -> LandmarkLabels:
    """The reviewed labels of landmarks: the published five-column file, the authors' private one, or any with such columns.

    Columns: `landmark_id`, and `hierarchical_label` with `natural_or_human_made` or `cluster` with `overall_cluster`. White
    space around labels ("ocean area ") is removed. Rows in which either label is empty are left out. A landmark on two lines is
    an error.
    """
    file = read_table(path)
    pair = next((pair for pair in HIERARCHIES.values() if set(pair) <= set(file.names)), None)
    if pair is None:
        known = " or ".join(" and ".join(pair) for pair in HIERARCHIES.values())
        raise ValueError(f"{path} has the columns {', '.join(file.names)}, but the labels are in {known}.")
    landmarks = _unique_landmarks(file)
    labels = [pc.utf8_trim_whitespace(file.column(name)) for name in pair]
    labeled = np.asarray(pc.and_(*(pc.not_equal(label, "") for label in labels)))
    order = np.flatnonzero(labeled)[np.argsort(landmarks[labeled])]
    supercategory, kind = (label.take(pa.array(order)) for label in labels)
    return LandmarkLabels(landmarks[order], supercategory, kind)


def commons_name(url: str) -> str:
    """The name in the address of a Commons category: what follows `Category:`, decoded, with spaces for underscores.

    Example:
        >>> commons_name("http://commons.wikimedia.org/wiki/Category:Sparkassen-Arena,_G%C3%B6ttingen")
        'Sparkassen-Arena, Göttingen'
    """
    return unquote(url.rpartition("Category:")[2] or url).replace("_", " ").strip()


def landmark_names(space: str, landmarks: NDArray[np.int64], files: Mapping[str, Path]) -> pa.Array:
    """Readable names of the landmarks of a number space ("train" or "index"), with their Commons category if known."""
    names = {int(landmark): f"{space} {landmark}" for landmark in landmarks}
    path = files.get(f"{space}_label_to_category.csv") or files.get(f"{space}_label_to_hierarchical.csv")
    file = None if path is None else read_table(path)
    if file is not None and "category" in file.names:
        for landmark, url in zip(file.integers("landmark_id").tolist(), file.column("category").to_pylist(), strict=True):
            if url and landmark in names:
                names[landmark] = f"{commons_name(url)} ({space} {landmark})"
    return pa.array(list(names.values()))


def train_photographs(files: Mapping[str, Path]) -> Photographs:
    """The clean training images, landmark after landmark."""
    file = read_table(files["train_clean.csv"])
    landmarks = _unique_landmarks(file)
    lists, of = _words(file, "images")
    file.refuse(np.bincount(of, minlength=len(file)) == 0, lambda row: "the landmark has no images.")
    _check_ids(file, lists, of)
    return Photographs(lists, landmarks[of])


def index_photographs(files: Mapping[str, Path]) -> Photographs:
    """The images of the index set, in the order of its file."""
    file = read_table(files["index_image_to_landmark.csv"])
    ids = pc.utf8_trim_whitespace(file.column("id"))
    _check_ids(file, ids, np.arange(len(ids)))
    return Photographs(ids, file.integers("landmark_id"))


def query_photographs(files: Mapping[str, Path], index: Photographs) -> Photographs:
    """The test images that are queries. If the first index image listed for a query is not in the index, that is an error."""
    file = read_table(files["retrieval_solution_v2.1.csv"])
    usage = pc.utf8_trim_whitespace(file.column("Usage"))
    file.refuse(
        ~np.asarray(pc.is_in(usage, value_set=pa.array(USAGES))),
        lambda row: f"Usage is {usage[row].as_py()!r}, which must be one of {', '.join(USAGES)}.",
    )
    images = pc.utf8_trim_whitespace(file.column("images"))
    is_query = np.asarray(pc.and_(pc.not_equal(images, "None"), pc.not_equal(usage, "Ignored")))
    if not is_query.any():
        raise ValueError(f"{file.about} has no query: every line says None or Ignored.")
    file.refuse(
        is_query & np.asarray(pc.equal(images, "")), lambda row: "there are no index images; a line without any says None."
    )
    ids = pc.utf8_trim_whitespace(file.column("id"))
    _check_ids(file, ids, np.arange(len(ids)))
    first = pc.list_element(pc.ascii_split_whitespace(pc.if_else(pa.array(is_query), images, "None")), 0)
    place = pc.index_in(first, value_set=index.ids)
    file.refuse(
        is_query & np.asarray(place.is_null()),
        lambda row: (
            f"{first[row].as_py()} is not in {files['index_image_to_landmark.csv'].name}; are both files of one version?"
        ),
    )
    landmarks = index.landmarks[np.asarray(pc.fill_null(place, 0))]
    return Photographs(ids, landmarks, usage, images).select(is_query)


def _words(file: Table, name: str) -> tuple[pa.Array, NDArray[np.int64]]:
    """The words of all cells of a column, one after the other, and the row of each."""
    lists = pc.ascii_split_whitespace(pc.ascii_trim_whitespace(file.column(name)))
    words, of = pc.list_flatten(lists), pc.list_parent_indices(lists)
    filled = pc.not_equal(words, "")  # an empty cell is split into one empty word
    return words.filter(filled), np.asarray(of.filter(filled))


def _check_ids(file: Table, ids: pa.Array, of: NDArray[np.int64]) -> None:
    wrong = ~np.asarray(pc.match_substring_regex(ids, "^[0-9a-f]{16}$"))
    bad = np.zeros(len(file), bool)
    bad[of[wrong]] = True

    def problem(row: int) -> str:
        wrong_id = ids[int(np.flatnonzero(wrong & (of == row))[0])].as_py()
        return f"{wrong_id!r} is not an image id, which has 16 digits of 0-9 and a-f."

    file.refuse(bad, problem)


def _unique_landmarks(file: Table) -> NDArray[np.int64]:
    landmarks = file.integers("landmark_id")
    _, first, inverse = np.unique(landmarks, return_index=True, return_inverse=True)
    file.refuse(
        first[inverse] != np.arange(len(landmarks)),
        lambda row: f"landmark {landmarks[row]} already has a line, {file.where(int(first[inverse][row]))}; drop one.",
    )
    return landmarks
