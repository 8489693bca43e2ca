"""In-Shop Clothes Retrieval (DeepFashion): photographs of clothes with separate queries and gallery; item, category, gender."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from suprank.data.importers.base import Importer, line_error, manifest_from_rows, numbered_lines, require_file

if TYPE_CHECKING:
    from pathlib import Path

    from suprank.data.manifest import Manifest

_LAYOUT = """\
  list_eval_partition.txt, or Eval/list_eval_partition.txt    image_name item_id evaluation_status, after two lines of header
  img/WOMEN/Dresses/id_00000002/02_1_front.jpg, ...
Project page: DeepFashion, In-shop Clothes Retrieval Benchmark (MMLab, CUHK)"""

_FILE = "list_eval_partition.txt"
_FOLDERS = ("", "Eval/", "eval/")
_HEADER = "image_name item_id evaluation_status"
_STATUSES = ("train", "query", "gallery")
_PATH = re.compile(r"img/([^/]+)/([^/]+)/[^/]+/[^/]+")
_log = logging.getLogger(__name__)


def read(root: Path) -> dict[str, Manifest]:
    """Items, categories and genders: the folders of `img/WOMEN/Dresses/id_00000002/02_1_front.jpg`.

    Men and women have categories of the same name (Denim, Shorts), so a category is named with its gender, `WOMEN Dresses`. The
    authors count `Denim` as one category for both, which is not a tree.

    The item id is the class. If an item is in folders of two categories, all its images get the category and gender of the one
    listed first, and a warning says so: the levels stay a tree, and the finest labels are the official ones.
    """
    folder = next((folder for folder in _FOLDERS if (root / folder / _FILE).is_file()), "")
    file = require_file(root, f"{folder}{_FILE}", "inshop", _LAYOUT)
    rows = []
    parents: dict[str, tuple[str, str]] = {}
    misplaced: list[str] = []
    for path, item, status, category, gender in _rows(file):
        if parents.setdefault(item, (category, gender)) != (category, gender):
            misplaced.append(path)
        rows.append((path, status, item, *parents[item]))
    if misplaced:
        _log.warning(
            "%s: %s images are in another category than their item's first image, and were given its category (first: %s)",
            file,
            f"{len(misplaced):,}",
            misplaced[0],
        )
    return {"": manifest_from_rows(rows, ("item", "category", "gender"), root, file)}


def _rows(file: Path) -> list[tuple[str, str, str, str, str]]:
    """Path, item, status, category and gender of every line; columns are padded with blanks. The first line is their number."""
    numbered = numbered_lines(file)
    number, count = next(numbered, (1, ""))
    if not count.isdecimal():
        raise line_error(file, number, count, "the first line should be the number of images")
    number, header = next(numbered, (2, ""))
    if header.split() != _HEADER.split():
        raise line_error(file, number, header, f"the second line should be {_HEADER!r}")
    rows = []
    for number, line in numbered:
        fields = line.split()
        place = _PATH.fullmatch(fields[0])
        if len(fields) != 3 or place is None or fields[2] not in _STATUSES:
            rule = f"it should be img/<gender>/<category>/<item>/<file>, an item id and one of {', '.join(_STATUSES)}"
            raise line_error(file, number, line, rule)
        gender, category = place[1], place[2].replace("_", " ")
        rows.append((fields[0], fields[1], fields[2], f"{gender} {category}", gender))
    return rows


INSHOP = Importer(
    name="inshop",
    title="In-Shop Clothes Retrieval: 52,712 photographs of 7,982 items, with queries and gallery",
    layout=_LAYOUT,
    read=read,
    published={
        "train": {"images": 25_882, "item": 3_997},
        "query": {"images": 14_218, "item": 3_985},
        "gallery": {"images": 12_612, "item": 3_985},
    },
)
