"""DyML-Vehicle, -Animal and -Product (Dynamic Metric Learning): three levels of numbered classes, fine, middle and coarse.

The project's page does not describe the files; this is how its own reader and the code of the paper's authors read them.

- Cells are separated by a comma and a blank, and **the first row is glued to the line of names**:
  `fname, coarse_id, middle_id, fine_id0.jpg, 0, 3, 17`. A reader that skips the first line loses an image; this one does not,
  and also reads a corrected file, with the names on a line of their own.
- Classes have numbers and no names, hence `fine 17`. Whether a number means the same class in another file is unknown.
- A comment in the project's reader says that images are stored with red and blue exchanged. They are used as they are, as the
  authors do; look at some before you fine-tune a pretrained network.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from suprank.data.importers.base import Importer, line_error, manifest_from_rows, numbered_lines, require_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from suprank.data.manifest import Manifest

_LEVELS = ("fine", "middle", "coarse")
_TREE_HEADER = re.compile(r"fname\s*,\s*coarse_id\s*,\s*middle_id\s*,\s*fine_id")
_TEST_HEADER = re.compile(r"fname\s*,\s*labels?(?:_id)?")

_PAGE = "Project page: DynamicMetricLearning (SupetZYK, GitHub); its first link is reported dead, the one on Baidu works"
_LAYOUT_SETS = f"""\
  train/label.csv, train/imgs/*.jpg
  bmk_fine/query.csv, bmk_fine/query/*.jpg, bmk_fine/gallery.csv, bmk_fine/gallery/*.jpg; likewise bmk_middle, bmk_coarse
{_PAGE}"""
_LAYOUT_PRODUCT = f"""\
  train/label.csv, train/imgs/*.jpg
  mini-bmk_all_in_one/label.csv, mini-bmk_all_in_one/imgs/*.jpg
{_PAGE}"""
_log = logging.getLogger(__name__)


def read_sets(root: Path, name: str) -> dict[str, Manifest]:
    """Train, with three levels, and the three test sets `fine`, `middle` and `coarse`, each with the one level it tests.

    The galleries contain the queries as separate files. So that evaluation can leave out a query's own image, rows of test sets
    have an `id`, which is equal for a query and its own image in the gallery; `_ids` matches the two.
    """
    file = require_file(root, "train/label.csv", name, _LAYOUT_SETS)
    rows = [(f"train/imgs/{image}", "train", *labels) for image, labels in _tree_rows(file)]
    manifests = {"": manifest_from_rows(rows, _LEVELS, root, file)}
    for level in _LEVELS:
        manifests[level] = _test_set(root, level, name)
    return manifests


def read_product(root: Path) -> dict[str, Manifest]:
    """Train, and one test set in which every image is a query against the others; three levels each.

    Test classes are called `fine 17 (test)`: if both files count from 0, train and test would otherwise share unrelated
    classes, and if not, nothing is lost, because no class of the finest level is meant to be in both.
    """
    rows = []
    for split, folder, suffix in (("train", "train", ""), ("test", "mini-bmk_all_in_one", " (test)")):
        file = require_file(root, f"{folder}/label.csv", "dyml-product", _LAYOUT_PRODUCT)
        for image, labels in _tree_rows(file):
            rows.append((f"{folder}/imgs/{image}", split, *(label + suffix for label in labels)))
    return {"": manifest_from_rows(rows, _LEVELS, root, root)}


def _test_set(root: Path, level: str, name: str) -> Manifest:
    rows = []
    for split in ("query", "gallery"):
        file = require_file(root, f"bmk_{level}/{split}.csv", name, _LAYOUT_SETS)
        for image, (label,) in _rows(file, _TEST_HEADER, 1):
            rows.append((f"bmk_{level}/{split}/{image}", split, f"{level} {label}"))
    return manifest_from_rows(rows, (level,), root, root / f"bmk_{level}").with_columns(id=_ids(root, rows))


def _tree_rows(file: Path) -> Iterator[tuple[str, list[str]]]:
    """File name and labels, finest first, of every row; the file has the coarsest first."""
    for image, numbers in _rows(file, _TREE_HEADER, 3):
        yield image, [f"{level} {number}" for level, number in zip(_LEVELS, reversed(numbers), strict=True)]


def _rows(file: Path, header: re.Pattern[str], labels: int) -> Iterator[tuple[str, list[str]]]:
    """File name and class numbers of every row, including the one on the line of the header."""
    for index, (number, line) in enumerate(numbered_lines(file)):
        row = line
        if index == 0:
            names = header.match(line)
            if names is None:
                raise line_error(file, number, line, f"the first line should begin with names like {header.pattern!r}")
            row = line[names.end() :].strip()
            if not row:
                continue
        image, *numbers = (cell.strip() for cell in row.split(","))
        if not image or len(numbers) != labels or not all(cell.isdecimal() for cell in numbers):
            raise line_error(file, number, line, f"a row should be a file name and {labels} class numbers, separated by commas")
        yield image, numbers


def _ids(root: Path, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The id of every row: its path, or for a query the path of its own image in the gallery.

    Both folders number their files from 0, so equal names need not mean the same image. They are trusted if every query has a
    namesake of its class in the gallery. Otherwise files of equal content are the same image, and each gallery file belongs to
    at most one query. A query without a match (its image is missing, or was saved again) keeps its path and counts as another
    image, and a warning says how many there are.
    """
    queries = [(path, label) for path, split, label in rows if split == "query"]
    gallery = {path: label for path, split, label in rows if split == "gallery"}
    namesakes = {path: path.replace("/query/", "/gallery/", 1) for path, _ in queries}
    if all(gallery.get(namesakes[path]) == label for path, label in queries):
        own = namesakes
    else:
        own = _equal_files(root, [path for path, _ in queries], list(gallery))
        unmatched = len(queries) - len(own)
        if unmatched:
            _log.warning(
                "%s: %s of %s queries under %s were not found in their gallery by content; if the gallery contains them, they "
                "will retrieve themselves. Import again when the images are complete",
                root,
                f"{unmatched:,}",
                f"{len(queries):,}",
                queries[0][0].partition("/")[0],
            )
    return [own.get(path, path) for path, _, _ in rows]


def _equal_files(root: Path, queries: Sequence[str], gallery: Sequence[str]) -> dict[str, str]:
    """Query → the gallery file with its bytes. Only files of equal size are read."""
    sizes = {path: (root / path).stat().st_size for path in (*queries, *gallery) if (root / path).is_file()}
    wanted = {sizes[path] for path in queries if path in sizes}
    twins: dict[bytes, list[str]] = defaultdict(list)
    for path in gallery:
        if sizes.get(path) in wanted:
            twins[_digest(root / path)].append(path)
    matches = {}
    for path in queries:
        if path in sizes and (same := twins[_digest(root / path)]):
            matches[path] = same.pop(0)
    return matches


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


DYML_VEHICLE = Importer(
    name="dyml-vehicle",
    title="DyML-Vehicle: vehicles in three levels, tested on one level at a time",
    layout=_LAYOUT_SETS,
    read=partial(read_sets, name="dyml-vehicle"),
    published={"train": {"fine": 39_491, "middle": 93, "coarse": 5}},
)

DYML_ANIMAL = Importer(
    name="dyml-animal",
    title="DyML-Animal: animals in three levels, tested on one level at a time",
    layout=_LAYOUT_SETS,
    read=partial(read_sets, name="dyml-animal"),
    published={"train": {"fine": 495, "middle": 28, "coarse": 5}},
)

DYML_PRODUCT = Importer(
    name="dyml-product",
    title="DyML-Product: goods in three levels",
    layout=_LAYOUT_PRODUCT,
    read=read_product,
    published={"train": {"fine": 1_639, "middle": 171, "coarse": 36}},
)
