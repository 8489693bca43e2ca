"""DyML-Vehicle, -Animal and -Product (Dynamic Metric Learning): three levels of numbered classes, fine, middle and coarse.

The project's page says nothing of the files; what follows is what its own reader and the paper's authors' code make of them.

- Cells are separated by a comma and a blank, and **the first row is glued to the line of names**:
  `fname, coarse_id, middle_id, fine_id0.jpg, 0, 3, 17`. A reader that skips the first line loses an image; this one does not,
  and takes a mended file, with the names on a line of their own, as well.
- Classes have numbers and no names, hence `fine 17`. Whether a number means the same class in another file is not said.
- A remark in the project's reader has it that images are stored with red and blue exchanged. They are taken as they are here,
  as the authors do; look at some before you fine-tune a network that knows colors.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from suprank.data.importers.base import Importer, required
from suprank.data.importers.lines import lines, malformed, manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from suprank.data.manifest import Manifest

_LEVELS = ("fine", "middle", "coarse")
_TREE_HEADER = re.compile(r"fname\s*,\s*coarse_id\s*,\s*middle_id\s*,\s*fine_id")
_TEST_HEADER = re.compile(r"fname\s*,\s*labels?(?:_id)?")

_PAGE = "Project page: DynamicMetricLearning (SupetZYK, GitHub); its first link is said to be dead, the one on Baidu to work"
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

    The galleries contain the queries as files of their own. So that evaluation can leave a query's own image out, rows of
    test sets have an `id`, equal for a query and its own image in the gallery; `_ids` says how the two are matched.
    """
    file = required(root, "train/label.csv", name, _LAYOUT_SETS)
    rows = [(f"train/imgs/{image}", "train", *labels) for image, labels in _tree_rows(file)]
    manifests = {"": manifest(rows, _LEVELS, root, file)}
    for level in _LEVELS:
        manifests[level] = _test_set(root, level, name)
    return manifests


def read_product(root: Path) -> dict[str, Manifest]:
    """Train, and one test set, every image of which is a query against the others; three levels each.

    Test classes are called `fine 17 (test)`: should both files count from 0, train and test would else share classes that
    have nothing in common, and should they not, nothing is lost, as no class of the finest level is meant to be in both.
    """
    rows = []
    for split, folder, suffix in (("train", "train", ""), ("test", "mini-bmk_all_in_one", " (test)")):
        file = required(root, f"{folder}/label.csv", "dyml-product", _LAYOUT_PRODUCT)
        for image, labels in _tree_rows(file):
            rows.append((f"{folder}/imgs/{image}", split, *(label + suffix for label in labels)))
    return {"": manifest(rows, _LEVELS, root, root)}


def _test_set(root: Path, level: str, name: str) -> Manifest:
    rows = []
    for split in ("query", "gallery"):
        file = required(root, f"bmk_{level}/{split}.csv", name, _LAYOUT_SETS)
        for image, (label,) in _rows(file, _TEST_HEADER, 1):
            rows.append((f"bmk_{level}/{split}/{image}", split, f"{level} {label}"))
    return manifest(rows, (level,), root, root / f"bmk_{level}").with_columns(id=_ids(root, rows))


def _tree_rows(file: Path) -> Iterator[tuple[str, list[str]]]:
    """File name and labels, finest first, of every row; the file has the coarsest first."""
    for image, numbers in _rows(file, _TREE_HEADER, 3):
        yield image, [f"{level} {number}" for level, number in zip(_LEVELS, reversed(numbers), strict=True)]


def _rows(file: Path, header: re.Pattern[str], labels: int) -> Iterator[tuple[str, list[str]]]:
    """File name and class numbers of every row, the one behind the header included."""
    for place, (number, line) in enumerate(lines(file)):
        row = line
        if place == 0:
            names = header.match(line)
            if names is None:
                raise malformed(file, number, line, f"the first line should begin with names like {header.pattern!r}")
            row = line[names.end() :].strip()
            if not row:
                continue
        image, *numbers = (cell.strip() for cell in row.split(","))
        if not image or len(numbers) != labels or not all(cell.isdecimal() for cell in numbers):
            raise malformed(file, number, line, f"a row should be a file name and {labels} class numbers, separated by commas")
        yield image, numbers


def _ids(root: Path, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The id of every row: its path, but for a query that of its own image in the gallery.

    Both folders number their files from 0, so equal names need not mean one image. They are trusted where every query has a
    namesake in the gallery with its class. Else files of equal content are one image, each gallery file being that of one
    query at most. What cannot be matched (images absent, or saved anew) keeps its path, counts as another image, and a
    warning says how many.
    """
    queries = [(path, label) for path, split, label in rows if split == "query"]
    gallery = {path: label for path, split, label in rows if split == "gallery"}
    namesakes = {path: path.replace("/query/", "/gallery/", 1) for path, _ in queries}
    if all(gallery.get(namesakes[path]) == label for path, label in queries):
        own = namesakes
    else:
        own = _equal_files(root, [path for path, _ in queries], list(gallery))
        lost = len(queries) - len(own)
        if lost:
            _log.warning(
                "%s: %s of %s queries under %s were not found in their gallery by content; if it holds them, they will find "
                "themselves. Import again when the images are complete",
                root,
                f"{lost:,}",
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
    found = {}
    for path in queries:
        if path in sizes and (same := twins[_digest(root / path)]):
            found[path] = same.pop(0)
    return found


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
