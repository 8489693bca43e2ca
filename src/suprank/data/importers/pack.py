"""The archive of a set that suprank draws itself: all images in one file."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

ARCHIVE = "images.zip"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of the format: an archive made twice is the same to the byte


def write_archive(folder: Path, images: Iterable[tuple[str, bytes]]) -> list[str]:
    """Write (name, encoded image) pairs into `images.zip` of the folder, and return their paths for a manifest.

    Stored, not compressed: images are compressed already.
    """
    paths = []
    with zipfile.ZipFile(folder / ARCHIVE, "w", zipfile.ZIP_STORED) as archive:
        for name, data in images:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
            paths.append(f"{ARCHIVE}::{name}")
    return paths
