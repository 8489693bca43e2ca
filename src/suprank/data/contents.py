"""Which bytes images had, to notice those that were replaced under the same names.

A table `[images, 4]` of int64 has the size and the time of change of each file (of the archive, for a member; −1 if there is no
file) and 16 bytes of BLAKE2b, 0 if they were not hashed. A file whose size and time are those of the table counts as unchanged.
Any other is hashed again, so that a copied folder is read once and is the same.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from suprank.data.file_scan import scan_files
from suprank.data.image_files import SEPARATOR, ImageFiles, file_times, find_files

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest


def content_digest(content: bytes) -> NDArray[np.int64]:
    return np.frombuffer(hashlib.blake2b(content, digest_size=16).digest(), np.int64)


def file_stamps(images: Manifest) -> NDArray[np.int64]:
    """Sizes and times of change, the first two columns."""
    files = [path.partition(SEPARATOR)[0] for path in images.paths.to_pylist()]
    names = list(dict.fromkeys(files))
    stamps = {name: stamp[1:] for name, stamp in zip(names, file_times(images.root, names), strict=True)}
    return np.array([stamps[name] for name in files], np.int64).reshape(-1, 2)


def hash_images(images: Manifest) -> NDArray[np.int64]:
    """The last two columns; 0 for what cannot be read."""
    paths, files = images.paths.combine_chunks(), ImageFiles(images.root)
    return scan_files(files, paths, find_files(paths, files)[1], decode=False).digests.view(np.int64)


def replaced_rows(images: Manifest, contents: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows whose bytes are others than those of the table, which gets the new sizes and times of all that are the same.

    Images that are gone are not replaced. Without a hash only another size tells, and of an archive that tells nothing.
    """
    now = file_stamps(images)
    touched = (now != contents[:, :2]).any(1) & (now[:, 0] >= 0)
    rows = np.flatnonzero(touched & contents[:, 2:].any(1))
    members = np.array([SEPARATOR in path for path in images.paths.to_pylist()], bool)
    replaced = touched & (now[:, 0] != contents[:, 0]) & ~members
    if len(rows):
        replaced[rows] = (hash_images(images.take(rows)) != contents[rows, 2:]).any(1)
    contents[touched & ~replaced, :2] = now[touched & ~replaced]
    return np.flatnonzero(replaced)
