"""Stanford Online Products: photographs of products sold on eBay; each product is a class, in one of 12 categories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suprank.data.importers.base import Importer, line_error, manifest_from_rows, numbered_lines, require_file

if TYPE_CHECKING:
    from pathlib import Path

    from suprank.data.manifest import Manifest

_LAYOUT = """\
  Ebay_train.txt, Ebay_test.txt    lines of image_id class_id super_class_id path, after one line of names
  bicycle_final/*.JPG, ...         one folder for each of the 12 categories
Project page: Deep Metric Learning via Lifted Structured Feature Embedding (Stanford), Stanford_Online_Products.zip"""

_HEADER = "image_id class_id super_class_id path"
_FOLDER = "_final"


def read(root: Path) -> dict[str, Manifest]:
    """Products and categories of the two official lists, whose products are disjoint.

    Ids start at 1 and continue from one list to the other. A category is named after its folder, `bicycle_final`; a product
    after its category and id, `bicycle 17`. A product in two categories, or a category id with two folders, is an error: the
    lists have neither.
    """
    rows: list[tuple[str, ...]] = []
    folders: dict[str, str] = {}
    for split in ("train", "test"):
        file = require_file(root, f"Ebay_{split}.txt", "sop", _LAYOUT)
        rows += _rows(file, split, folders)
    return {"": manifest_from_rows(rows, ("product", "category"), root, root)}


def _rows(file: Path, split: str, folders: dict[str, str]) -> list[tuple[str, ...]]:
    """The rows of a list; `folders` maps every product and category of both lists to its folder."""
    numbered = numbered_lines(file)
    number, header = next(numbered, (1, ""))
    if header.split() != _HEADER.split():
        raise line_error(file, number, header, f"the first line should be {_HEADER!r}")
    rows: list[tuple[str, ...]] = []
    for number, line in numbered:
        _, product, category, path = _fields(file, number, line)
        folder = path.partition("/")[0]
        for name in (f"product {product}", f"category {category}"):
            if folders.setdefault(name, folder) != folder:
                raise line_error(file, number, line, f"{name} is in {folder} here and in {folders[name]} before")
        kind = folder.removesuffix(_FOLDER).replace("_", " ")
        rows.append((path, split, f"{kind} {product}", kind))
    return rows


def _fields(file: Path, number: int, line: str) -> list[str]:
    fields = line.split()
    if len(fields) != 4 or not all(field.isdecimal() for field in fields[:3]) or f"{_FOLDER}/" not in fields[3]:
        rule = "it should be three ids and a path, such as '1 1 1 bicycle_final/111085122871_0.JPG'"
        raise line_error(file, number, line, rule)
    return fields


SOP = Importer(
    name="sop",
    title="Stanford Online Products: 120,053 photographs of 22,634 products in 12 categories",
    layout=_LAYOUT,
    read=read,
    published={
        "train": {"images": 59_551, "product": 11_318, "category": 12},
        "test": {"images": 60_502, "product": 11_316, "category": 12},
    },
)
