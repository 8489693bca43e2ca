"""Public datasets in small: label files with every quirk of the real format, and a picture for each image.

Each function writes its dataset under a folder and returns that folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SOP_TRAIN = (
    "1 1 1 bicycle_final/111085122871_0.JPG",
    "2 1 1 bicycle_final/111085122871_1.JPG",
    "3 2 1 bicycle_final/111265328556_0.JPG",
    "4 3 4 coffee_maker_final/131090133870_0.JPG",
)
SOP_TEST = ("5 11319 1 bicycle_final/251952414262_0.JPG", "6 11320 4 coffee_maker_final/281602463292_0.JPG")

CUB = (
    "001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg",
    "001.Black_footed_Albatross/Black_Footed_Albatross_0009_34.jpg",
    "084.Red_legged_Kittiwake/Red_Legged_Kittiwake_0001_795430.jpg",
    "141.Artic_Tern/Artic_Tern_0001_141087.jpg",
    "200.Common_Yellowthroat/Common_Yellowthroat_0003_190521.jpg",
)

INSHOP = (
    "img/WOMEN/Dresses/id_00000002/02_1_front.jpg                      id_00000002  train",
    "img/WOMEN/Dresses/id_00000002/02_2_side.jpg                       id_00000002  train",
    "img/MEN/Denim/id_00000080/01_1_front.jpg                          id_00000080  train",
    "img/WOMEN/Denim/id_00000091/02_3_back.jpg                         id_00000091  query",
    "img/WOMEN/Denim/id_00000091/02_7_additional.jpg                   id_00000091  gallery",
    "img/WOMEN/Tees_Tanks/id_00000001/02_1_front.jpg                   id_00000001  query",
    "img/WOMEN/Tees_Tanks/id_00000001/02_4_full.jpg                    id_00000001  gallery",
)

INAT_TRAIN = (
    "train_val2018/Plantae/7477/3b60c9486db1d2ee875f11a669fbde4a.jpg",
    "train_val2018/Aves/2761/7a5d1c2a1b8d9e0f1a2b3c4d5e6f7a8b.jpg",
    "train_val2018/Aves/2761/8b6e2d3b2c9e0f1a2b3c4d5e6f7a8b9c.jpg",
)
INAT_TEST = ("train_val2018/Aves/3001/9c7f3e4c3d0f1a2b3c4d5e6f7a8b9c0d.jpg",)

_SPECIES_AND_RANKS = {  # gannets and mulberries have one genus name; ids do not run with the names
    7477: ("Morus rubra", "Morus", "Moraceae", "Rosales", "Magnoliopsida", "Tracheophyta", "Plantae", "Plantae"),
    2761: ("Morus bassanus", "Morus", "Sulidae", "Suliformes", "Aves", "Chordata", "Animalia", "Aves"),
    3001: ("Sula nebouxii", "Sula", "Sulidae", "Suliformes", "Aves", "Chordata", "Animalia", "Aves"),
}


def picture(path: Path, shade: int = 0) -> None:
    """A small JPEG; another shade is another picture, and another file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade * 37 % 256, shade * 11 % 256, shade % 256)).save(path)


def text(path: Path, lines: tuple[str, ...] | list[str], end: str = "\n") -> Path:
    """A text file; `end` follows every line, the last included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


def sop(root: Path, end: str = "\n") -> Path:
    """Ids from 1, two lists, one line of names each; upper-case extensions; a category of two words."""
    for name, listed in (("train", SOP_TRAIN), ("test", SOP_TEST)):
        text(root / f"Ebay_{name}.txt", ["image_id class_id super_class_id path", *listed], end)
        for shade, line in enumerate(listed):
            picture(root / line.split()[3], shade)
    return root


def cub(root: Path, *, listed: bool = True) -> Path:
    """`images.txt` in an order that is not the folders'; folders with junk beside the images, as file managers leave it."""
    if listed:
        text(root / "images.txt", [f"{number} {path}" for number, path in enumerate(CUB, 1)])
    for shade, path in enumerate(CUB):
        picture(root / "images" / path, shade)
    (root / "images/.DS_Store").write_bytes(b"\0")
    (root / "images/001.Black_footed_Albatross/Thumbs.db").write_bytes(b"\0")
    return root


def _struct(fields: dict[str, list[Any]]) -> np.ndarray:
    """A MATLAB struct array of one row: 1 × N, as MATLAB saves them."""
    records = np.zeros((1, len(fields["class"])), dtype=[(name, object) for name in fields])
    for name, values in fields.items():
        for place, value in enumerate(values):
            records[0, place][name] = value
    return records


def _boxed(fields: dict[str, list[Any]], count: int) -> dict[str, list[Any]]:
    boxes: dict[str, list[Any]] = {f"bbox_{corner}": [np.uint16(30)] * count for corner in ("x1", "y1", "x2", "y2")}
    return boxes | fields


def _cells(names: tuple[str, ...]) -> np.ndarray:
    cells = np.empty((1, len(names)), dtype=object)
    cells[0, :] = names
    return cells


def cars(root: Path, names: tuple[str, ...], classes: tuple[int, ...]) -> Path:
    """The original layout; `classes`, from 1, of the images in their order. Classes are saved as uint8, as they are."""
    from scipy.io import savemat

    paths = [f"car_ims/{number:06}.jpg" for number in range(1, len(classes) + 1)]
    fields = {
        "relative_im_path": paths,
        **_boxed({}, len(classes)),
        "class": [np.uint8(number) for number in classes],
        "test": [np.uint8(number % 2) for number in range(len(classes))],
    }
    root.mkdir(parents=True, exist_ok=True)
    savemat(root / "cars_annos.mat", {"annotations": _struct(fields), "class_names": _cells(names)})
    for shade, path in enumerate(paths):
        picture(root / path, shade)
    return root


def cars_devkit(root: Path, names: tuple[str, ...], train: tuple[int, ...], test: tuple[int, ...]) -> Path:
    """The later layout: two folders of images, each numbered from 1; test labels in a file beside devkit."""
    from scipy.io import savemat

    (root / "devkit").mkdir(parents=True)
    savemat(root / "devkit/cars_meta.mat", {"class_names": _cells(names)})
    for file, folder, classes in (
        ("devkit/cars_train_annos.mat", "cars_train", train),
        ("cars_test_annos_withlabels.mat", "cars_test", test),
    ):
        files = [f"{number:05}.jpg" for number in range(1, len(classes) + 1)]
        fields = _boxed({"class": [np.uint8(number) for number in classes], "fname": files}, len(classes))
        savemat(root / file, {"annotations": _struct(fields)})
        for shade, name in enumerate(files):
            picture(root / folder / name, shade)
    return root


def inshop(root: Path, folder: str = "", listed: tuple[str, ...] = INSHOP) -> Path:
    """The number of images, then names, then rows padded with blanks; men and women both have Denim."""
    header = [str(len(listed)), "image_name item_id evaluation_status"]
    text(root / folder / "list_eval_partition.txt", header + [f"{line} " for line in listed])
    for shade, line in enumerate(listed):
        picture(root / line.split()[0], shade)
    return root


def inat(root: Path, end: str = "\n") -> Path:
    """The two lists; names come with `inat_names`."""
    for name, listed in (("train", INAT_TRAIN), ("test", INAT_TEST)):
        text(root / f"Inat_dataset_splits/Inaturalist_{name}_set1.txt", listed, end)
        for shade, path in enumerate(listed):
            picture(root / path, shade)
    return root


def inat_categories() -> list[dict[str, Any]]:
    """The `categories` of a dataset file; the list is not sorted, and ids start at 0 in the real one."""
    keys = ("name", "genus", "family", "order", "class", "phylum", "kingdom", "supercategory")
    return [{"id": number} | dict(zip(keys, names, strict=True)) for number, names in _SPECIES_AND_RANKS.items()]


def inat_names(root: Path, categories: list[dict[str, Any]] | None = None) -> Path:
    """`train2018.json`: COCO's layout, of which only the categories are used."""
    content = {"info": {"year": 2018}, "images": [], "annotations": [], "licenses": []}
    file = root / "train2018.json"
    file.write_text(json.dumps(content | {"categories": inat_categories() if categories is None else categories}))
    return file


DYML_TRAIN = ("0.jpg, 0, 3, 17", "1.jpg, 0, 3, 17", "2.jpg, 0, 4, 21", "3.jpg, 1, 7, 30")
_TREE = "fname, coarse_id, middle_id, fine_id"


def glued(path: Path, header: str, rows: tuple[str, ...], end: str = "\n") -> None:
    """A label file of DyML: the first row follows the names without a line break."""
    text(path, [header + rows[0], *rows[1:]], end)


def dyml(root: Path, *, shuffled: bool = True) -> Path:
    """Vehicle or Animal. `shuffled` galleries number the queries' images in another order than the queries."""
    glued(root / "train/label.csv", _TREE, DYML_TRAIN)
    for shade in range(len(DYML_TRAIN)):
        picture(root / f"train/imgs/{shade}.jpg", shade)
    queries = {0: 5, 1: 5, 2: 6}  # picture → class
    gallery = {3: 5, 2: 6, 4: 6, 0: 5, 1: 5} if shuffled else {0: 5, 1: 5, 2: 6, 3: 5, 4: 6}
    for level in ("fine", "middle", "coarse"):
        for split, pictures in (("query", queries), ("gallery", gallery)):
            rows = tuple(f"{number}.jpg, {label}" for number, label in enumerate(pictures.values()))
            glued(root / f"bmk_{level}/{split}.csv", "fname, labels", rows)
            for number, shade in enumerate(pictures):
                picture(root / f"bmk_{level}/{split}/{number}.jpg", 10 + shade)
    return root


def dyml_product(root: Path) -> Path:
    """Train and the one test set, which number their files, and here their classes, alike."""
    for folder, rows in (("train", DYML_TRAIN), ("mini-bmk_all_in_one", ("0.jpg, 0, 5, 17", "1.jpg, 0, 5, 17"))):
        glued(root / f"{folder}/label.csv", _TREE, rows)
        for shade in range(len(rows)):
            picture(root / f"{folder}/imgs/{shade}.jpg", shade)
    return root
