"""SfM-120k (Radenović et al., 2018): photographs of buildings and scenes, grouped by the 3D model reconstructed from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suprank.data.importers.base import Importer, require_file
from suprank.data.manifest import Manifest

FILE = "retrieval-SfM-120k-imagenames-clusterids.mat"

LAYOUT = f"""\
{FILE}     names (cids) and 3D models (cluster) of all photographs
ims/ef/cd/ab/...abcdef                               photographs, under the last three pairs of letters of their names"""


def read(root: Path) -> dict[str, Manifest]:
    """One level, `cluster`, the number of the 3D model; every photograph is for training, as in the authors' code.

    A photograph is a file without extension, named by a hash whose last six letters, in pairs from the last, are its folders.
    The list is a Matlab file up to version 7, or of version 7.3, which is HDF5.
    """
    path = require_file(root, FILE, "sfm120k", LAYOUT)
    names, clusters = _lists(path)
    if len(names) != len(clusters) or not names:
        raise ValueError(f"{path} has {len(names)} cids and {len(clusters)} clusters, but every photograph has one of each.")
    for place, name in enumerate(names, 1):
        if len(name) < 6 or not name.isalnum():
            raise ValueError(f"{path}: cids{{{place}}} is {name!r}, but a name has 6 letters or digits, or more.")
    columns = {
        "path": [f"ims/{name[-2:]}/{name[-4:-2]}/{name[-6:-4]}/{name}" for name in names],
        "split": ["train"] * len(names),
        "label_cluster": [f"cluster {cluster}" for cluster in clusters],
        "id": names,
    }
    return {"": Manifest.from_columns(columns, root=root, about=str(path))}


def _lists(path: Path) -> tuple[list[str], list[int]]:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise ImportError('SfM-120k is listed in a Matlab file; to read it, pip install "suprank[vision]".') from error
    try:
        content = loadmat(path, variable_names=["cids", "cluster"])
    except NotImplementedError:  # how scipy says that it is version 7.3
        return _hdf5_lists(path)
    except Exception as error:  # scipy can raise anything on a damaged file
        raise ValueError(f"{path} is not a readable Matlab file ({error}); download it again.") from None
    _check_keys(content, path)
    # A cell array of texts is read as arrays in an array, a matrix of letters as texts padded with spaces.
    names = [str(np.asarray(cell).item()).strip() for cell in content["cids"].ravel()]
    return names, _integers(content["cluster"], path)


def _hdf5_lists(path: Path) -> tuple[list[str], list[int]]:
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"{path} is a Matlab 7.3 file; to read it, pip install h5py.") from error
    try:
        with h5py.File(path, "r") as file:
            _check_keys(file, path)
            cells = file["cids"][()].ravel()  # references to one array of letter codes each
            names = ["".join(map(chr, np.asarray(file[cell]).ravel())) for cell in cells]
            return names, _integers(file["cluster"][()], path)
    except OSError as error:
        raise ValueError(f"{path} is not a readable Matlab file ({error}); download it again.") from None


def _check_keys(content: Any, path: Path) -> None:
    missing = [key for key in ("cids", "cluster") if key not in content]
    if missing:
        there = ", ".join(key for key in content if not key.startswith(("__", "#"))) or "neither"
        raise ValueError(f"{path} has no {missing[0]!r}: it has {there}, but must have cids and cluster.")


def _integers(numbers: NDArray[Any], path: Path) -> list[int]:
    flat = np.asarray(numbers).ravel()
    if flat.dtype.kind not in "iuf" or not (flat == np.floor(flat)).all():  # Matlab stores whole numbers as doubles
        raise ValueError(f"{path}: cluster holds {flat.dtype}, but must be whole numbers.")
    return [int(number) for number in flat]


SFM120K = Importer(
    name="sfm120k",
    title="SfM-120k: photographs grouped by the 3D model they belong to, for training",
    layout=LAYOUT,
    read=read,
    published={},
)
