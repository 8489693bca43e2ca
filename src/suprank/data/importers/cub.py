"""CUB-200-2011: birds of 200 species, in families and orders; the tree is built in (`cub_taxonomy`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from suprank.data.importers.base import Importer
from suprank.data.importers.cub_taxonomy import FAMILY_AND_ORDER
from suprank.data.importers.lines import lines, malformed, manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from suprank.data.manifest import Manifest

_LAYOUT = """\
  images/001.Black_footed_Albatross/*.jpg, ...    one folder for each of the 200 classes
  images.txt                                      optional: image_id path, so that absent images are noticed
Project page: Caltech-UCSD Birds-200-2011 (Caltech Vision Lab), CUB_200_2011.tgz; root is the folder CUB_200_2011 in it"""

_TRAIN_CLASSES = 100
_FOLDER = re.compile(r"(\d{3})\.(\w+)")
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


def read(root: Path) -> dict[str, Manifest]:
    """Species, families and orders; classes 1 to 100 are for training and 101 to 200 for testing, as retrieval has it.

    The official split, `train_test_split.txt`, is one of classification and shares all classes: it is not used. Nor are
    `classes.txt` and `image_class_labels.txt`, since the folder `001.Black_footed_Albatross` says number and name, nor the
    bounding boxes: retrieval takes the whole image. A species is called what its folder is, with its spelling (Artic Tern).
    """
    file = root / "images.txt"
    images = root / "images"
    if file.is_file():
        rows = [_row(file, number, line, _listed(file, number, line)) for number, line in lines(file)]
        return {"": manifest(rows, ("species", "family", "order"), root, file)}
    if not images.is_dir():
        raise FileNotFoundError(f"neither {file} nor {images} is there; cub expects under {root}:\n{_LAYOUT}")
    rows = [_row(images, number, path, path) for number, path in enumerate(_found(images), 1)]
    return {"": manifest(rows, ("species", "family", "order"), root, images)}


def _listed(file: Path, number: int, line: str) -> str:
    identity, _, path = line.partition(" ")
    if not identity.isdecimal() or path.count("/") != 1:
        raise malformed(file, number, line, "it should be an id and a path, such as '1 001.Black_footed_Albatross/a.jpg'")
    return path


def _found(images: Path) -> Iterator[str]:
    """`folder/file` of every image, in alphabetical order; files beside the class folders, and hidden ones, are passed over."""
    for folder in sorted(images.iterdir()):
        if folder.is_dir() and not folder.name.startswith("."):
            for image in sorted(folder.iterdir()):
                if image.suffix.lower() in _SUFFIXES and not image.name.startswith("."):
                    yield f"{folder.name}/{image.name}"


def _row(where: Path, number: int, line: str, path: str) -> tuple[str, ...]:
    folder = _FOLDER.fullmatch(path.partition("/")[0])
    if folder is None or int(folder[1]) not in FAMILY_AND_ORDER:
        rule = "the class folder should be called like '001.Black_footed_Albatross', with a number from 001 to 200"
        raise malformed(where, number, line, rule)
    known = int(folder[1])
    split = "train" if known <= _TRAIN_CLASSES else "test"
    return f"images/{path}", split, folder[2].replace("_", " "), *FAMILY_AND_ORDER[known]


CUB = Importer(
    name="cub",
    title="CUB-200-2011: 11,788 photographs of birds of 200 species in 37 families and 13 orders",
    layout=_LAYOUT,
    read=read,
    published={
        "train": {"images": 5_864, "species": 100, "family": 29, "order": 13},  # the authors' tree: 30 (see cub_taxonomy)
        "test": {"images": 5_924, "species": 100, "family": 20, "order": 6},
    },
)
