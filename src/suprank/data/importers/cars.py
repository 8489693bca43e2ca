"""Cars196 (Stanford Cars): photographs of 196 car models, with their body types, which are derived from the models' names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.data.importers.base import Importer, manifest_from_rows, require_file

if TYPE_CHECKING:
    from pathlib import Path

    from suprank.data.manifest import Manifest

_LAYOUT = """\
  cars_annos.mat, car_ims/*.jpg                   the original archives, or, without that file:
  devkit/cars_meta.mat                            names of the classes
  devkit/cars_train_annos.mat, cars_train/*.jpg
  devkit/cars_test_annos_withlabels.mat, cars_test/*.jpg    the labels may also lie beside devkit
Project page: Stanford Cars (Krause et al., 3D Object Representations for Fine-Grained Categorization)"""

_TRAIN_CLASSES = 98
_TEST_LABELS = "cars_test_annos_withlabels.mat"
_HINT = "download it again (cars_test_annos.mat has no labels: take cars_test_annos_withlabels.mat)"

BODY_TYPES = ("Convertible", "Coupe", "Hatchback", "Minivan", "Pickup", "Sedan", "SUV", "Van", "Wagon")

_EXCEPTIONS = {
    "Acura Integra Type R": "Coupe",
    "Acura TL Type-S": "Sedan",
    "Buick Regal GS": "Sedan",
    "Chevrolet Cobalt SS": "Coupe",
    "Chevrolet Corvette Ron Fellows Edition Z06": "Coupe",
    "Chevrolet Corvette ZR1": "Coupe",
    "Chevrolet HHR SS": "Minivan",
    "Chevrolet TrailBlazer SS": "SUV",
    "Chrysler 300 SRT-8": "Sedan",
    "Dodge Challenger SRT8": "Coupe",
    "Dodge Charger SRT-8": "Sedan",
    "FIAT 500 Abarth": "Coupe",
    "Ford E-Series Wagon Van": "Wagon",
    "Infiniti G Coupe IPL": "Coupe",
    "Jaguar XK XKR": "Coupe",
    "Lamborghini Gallardo LP 570-4 Superleggera": "Coupe",
}
"""Models whose name does not end in a body type, or ends in two."""


def body_type(name: str) -> str:
    """The body type at the end of a class name, before its year; any kind of cab is a pickup. Sixteen models are exceptions.

    In doubtful cases (is the HHR a wagon, the FIAT 500 a hatchback, the E-Series Wagon a van?) they follow the tree of
    Chang et al. (Your "Flamingo" is My "Bird", 2021), which the paper's authors use, so that results are comparable.

    Example:
        >>> [body_type(name) for name in ("Audi S4 Sedan 2007", "Ford Ranger SuperCab 2011", "Jaguar XK XKR 2012")]
        ['Sedan', 'Pickup', 'Coupe']
    """
    model = name.rpartition(" ")[0]
    last = model.rpartition(" ")[2]
    if model in _EXCEPTIONS:
        return _EXCEPTIONS[model]
    if last in BODY_TYPES:
        return last
    if last.lower().endswith("cab"):
        return "Pickup"
    raise ValueError(
        f"class {name!r} does not end in a known body type ({', '.join(BODY_TYPES)}) before its year, and is none of the "
        f"{len(_EXCEPTIONS)} exceptions; is this a file of another dataset?"
    )


def read(root: Path) -> dict[str, Manifest]:
    """Models and body types; classes 1 to 98 are for training and 99 to 196 for testing, as is usual in retrieval.

    The official split into `cars_train` and `cars_test` is for classification and shares all classes: here it only says where
    an image is. The boxes are not used: retrieval takes the whole image. Test labels of the second layout are in a file that
    was published separately; `devkit/cars_test_annos.mat` has none.
    """
    file, listed = _files(root)
    names = _names(file)
    bodies = [body_type(name) for name in names]
    rows = []
    for path, number in listed:
        if not 1 <= number <= len(names):
            raise ValueError(f"{path} has class {number}, but {file} names classes 1 to {len(names)}; download both again.")
        split = "train" if number <= _TRAIN_CLASSES else "test"
        rows.append((path, split, names[number - 1], bodies[number - 1]))
    return {"": manifest_from_rows(rows, ("model", "body_type"), root, file)}


def _files(root: Path) -> tuple[Path, list[tuple[str, int]]]:
    """The file that names the classes, and path and class number of every image, in either layout."""
    if (root / "cars_annos.mat").is_file() or not (root / "devkit").is_dir():
        file = require_file(root, "cars_annos.mat", "cars", _LAYOUT)
        return file, _annotations(file, "relative_im_path", "")
    file = require_file(root, "devkit/cars_meta.mat", "cars", _LAYOUT)
    beside = _TEST_LABELS if (root / _TEST_LABELS).is_file() else f"devkit/{_TEST_LABELS}"
    train = require_file(root, "devkit/cars_train_annos.mat", "cars", _LAYOUT)
    test = require_file(root, beside, "cars", _LAYOUT)
    return file, _annotations(train, "fname", "cars_train/") + _annotations(test, "fname", "cars_test/")


def _names(file: Path) -> list[str]:
    names = [str(name) for name in np.atleast_1d(_variable(file, "class_names"))]
    if len(set(names)) < len(names):
        raise ValueError(f"{file}: {len(names)} class names, {len(set(names))} of them distinct; download it again.")
    return names


def _annotations(file: Path, field: str, folder: str) -> list[tuple[str, int]]:
    """Path and class number, from 1, of every image."""
    annotations = np.atleast_1d(_variable(file, "annotations"))
    for name in (field, "class"):
        if name not in (annotations.dtype.names or ()):
            raise ValueError(f"{file}: annotations have the fields {annotations.dtype.names}, but {name!r} is needed; {_HINT}.")
    paths, classes = annotations[field], annotations["class"]
    return [(f"{folder}{path}", int(number)) for path, number in zip(paths, classes, strict=True)]


def _variable(file: Path, name: str) -> Any:
    try:
        from scipy.io import loadmat  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError('Cars196 is labeled in MATLAB files, read with scipy: pip install "suprank[vision]"') from error
    try:
        content = loadmat(file, squeeze_me=True, variable_names=[name])
    except Exception as error:  # scipy can raise anything on a truncated file, or one that is not a MATLAB file
        raise ValueError(f"{file} is not a readable MATLAB file ({error}); download it again.") from error
    if name not in content:
        raise ValueError(f"{file} has no variable {name!r}; is it another file of this name?")
    return content[name]


CARS = Importer(
    name="cars",
    title="Cars196: 16,185 photographs of 196 car models of 9 body types",
    layout=_LAYOUT,
    read=read,
    published={
        "train": {"images": 8_054, "model": 98, "body_type": 9},
        "test": {"images": 8_131, "model": 98, "body_type": 9},
    },
)
