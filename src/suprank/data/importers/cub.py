"""CUB-200-2011: birds of 200 species in families and orders. The dataset has no families and orders: their tree is below.

The tree follows the families that ornithology uses today (New World sparrows and the chat are families of their own,
hummingbirds an order of their own): 37 families, 13 orders. The tree of the paper's authors groups the classes in the same way
except for one bird: it puts class 84, the red-legged kittiwake, which is a gull, in a family of its own in the order of the
kingfishers, so that it counts 38 families, 30 of them in train.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from suprank.data.importers.base import Importer, line_error, manifest_from_rows, numbered_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from suprank.data.manifest import Manifest

_LAYOUT = """\
  images/001.Black_footed_Albatross/*.jpg, ...    one folder for each of the 200 classes
  images.txt                                      optional: image_id path, so that missing images are noticed
Project page: Caltech-UCSD Birds-200-2011 (Caltech Vision Lab), CUB_200_2011.tgz; root is the folder CUB_200_2011 in it"""

_TRAIN_CLASSES = 100
_FOLDER = re.compile(r"(\d{3})\.(\w+)")
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")

ORDERS = {
    "Anseriformes": {"Anatidae": "46 87 89-90"},  # ducks
    "Caprimulgiformes": {"Caprimulgidae": "22 92 105"},  # nightjars
    "Charadriiformes": {
        "Alcidae": "5-8 58 106",  # auks
        "Laridae": "59-66 84 141-147",  # gulls, terns
        "Stercorariidae": "71-72",  # jaegers
    },
    "Coraciiformes": {"Alcedinidae": "79-83"},  # kingfishers
    "Cuculiformes": {"Cuculidae": "4 31-33 110"},  # cuckoos
    "Gaviiformes": {"Gaviidae": "86"},  # loons
    "Passeriformes": {
        "Alaudidae": "85",  # larks
        "Bombycillidae": "185-186",  # waxwings
        "Cardinalidae": "14-17 54 57 139-140",  # cardinals, most buntings
        "Certhiidae": "28",  # creepers
        "Corvidae": "29-30 73-75 93 107-108",  # crows, jays
        "Fringillidae": "34-35 47-48 55-56",  # finches
        "Hirundinidae": "135-138",  # swallows
        "Icteridae": "9-13 26-27 49 88 95-98",  # blackbirds, orioles
        "Icteriidae": "20",  # the yellow-breasted chat
        "Laniidae": "111-112",  # shrikes
        "Mimidae": "19 91 149-150",  # mockingbirds, thrashers
        "Motacillidae": "104",  # pipits
        "Parulidae": "99 109 158-184 200",  # New World warblers
        "Passerellidae": "21 76 113-117 119-133 148",  # New World sparrows
        "Passeridae": "118",  # Old World sparrows
        "Ptilonorhynchidae": "18",  # bowerbirds
        "Sittidae": "94",  # nuthatches
        "Sturnidae": "134",  # starlings
        "Troglodytidae": "193-199",  # wrens
        "Tyrannidae": "37-43 77-78 102-103",  # tyrant flycatchers
        "Vireonidae": "151-157",  # vireos
    },
    "Pelecaniformes": {"Pelecanidae": "100-101"},  # pelicans
    "Piciformes": {"Picidae": "36 187-192"},  # woodpeckers
    "Podicipediformes": {"Podicipedidae": "50-53"},  # grebes
    "Procellariiformes": {"Diomedeidae": "1-3", "Procellariidae": "45"},  # albatrosses; fulmars
    "Suliformes": {"Fregatidae": "44", "Phalacrocoracidae": "23-25"},  # frigatebirds; cormorants
    "Trochiliformes": {"Trochilidae": "67-70"},  # hummingbirds
}
"""Order → family → numbers of its classes, `1-3` meaning 1, 2 and 3."""


def _numbers(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


FAMILY_AND_ORDER: dict[int, tuple[str, str]] = {
    number: (family, order)
    for order, families in ORDERS.items()
    for family, numbers in families.items()
    for number in _numbers(numbers)
}
"""Class number, 1 to 200, → (family, order)."""


def read(root: Path) -> dict[str, Manifest]:
    """Species, families and orders; classes 1 to 100 are for training and 101 to 200 for testing, as is usual in retrieval.

    The official split, `train_test_split.txt`, is for classification and shares all classes: it is not used. Nor are
    `classes.txt` and `image_class_labels.txt`, because the folder `001.Black_footed_Albatross` has number and name, nor the
    bounding boxes: retrieval takes the whole image. A species has the name of its folder, with its spelling (Artic Tern).
    """
    file = root / "images.txt"
    images = root / "images"
    if file.is_file():
        rows = [_row(file, number, line, _listed_path(file, number, line)) for number, line in numbered_lines(file)]
        return {"": manifest_from_rows(rows, ("species", "family", "order"), root, file)}
    if not images.is_dir():
        raise FileNotFoundError(f"neither {file} nor {images} exists; cub expects under {root}:\n{_LAYOUT}")
    rows = [_row(images, number, path, path) for number, path in enumerate(_image_paths(images), 1)]
    return {"": manifest_from_rows(rows, ("species", "family", "order"), root, images)}


def _listed_path(file: Path, number: int, line: str) -> str:
    identity, _, path = line.partition(" ")
    if not identity.isdecimal() or path.count("/") != 1:
        raise line_error(file, number, line, "it should be an id and a path, such as '1 001.Black_footed_Albatross/a.jpg'")
    return path


def _image_paths(images: Path) -> Iterator[str]:
    """`folder/file` of every image, in alphabetical order; hidden files, and files beside the class folders, are skipped."""
    for folder in sorted(images.iterdir()):
        if folder.is_dir() and not folder.name.startswith("."):
            for image in sorted(folder.iterdir()):
                if image.suffix.lower() in _SUFFIXES and not image.name.startswith("."):
                    yield f"{folder.name}/{image.name}"


def _row(where: Path, number: int, line: str, path: str) -> tuple[str, ...]:
    folder = _FOLDER.fullmatch(path.partition("/")[0])
    if folder is None or int(folder[1]) not in FAMILY_AND_ORDER:
        rule = "the class folder should be called like '001.Black_footed_Albatross', with a number from 001 to 200"
        raise line_error(where, number, line, rule)
    known = int(folder[1])
    split = "train" if known <= _TRAIN_CLASSES else "test"
    return f"images/{path}", split, folder[2].replace("_", " "), *FAMILY_AND_ORDER[known]


CUB = Importer(
    name="cub",
    title="CUB-200-2011: 11,788 photographs of birds of 200 species in 37 families and 13 orders",
    layout=_LAYOUT,
    read=read,
    published={
        "train": {"images": 5_864, "species": 100, "family": 29, "order": 13},  # the authors' tree: 30
        "test": {"images": 5_924, "species": 100, "family": 20, "order": 6},
    },
)
