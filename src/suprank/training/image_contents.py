"""Noticing that training images were replaced between the parts of a run.

The run folder has the sizes and times of all of them, and the bytes of `SAMPLE`, evenly spaced: reading all would take as long
as an epoch. So beyond the sample nobody notices an image that was replaced by one of as many bytes, or within an archive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from suprank.data.contents import file_stamps, hash_images, replaced_rows
from suprank.files.binary import write_npy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from suprank.data.manifest import Manifest

SAMPLE = 1_000
FILE = "images.npy"


def save_contents(run: Path, images: Manifest) -> None:
    """Record the training images when a run begins."""
    sample = np.unique(np.linspace(0, len(images) - 1, SAMPLE).astype(np.int64))
    contents = np.hstack([file_stamps(images), np.zeros((len(images), 2), np.int64)])
    contents[sample, 2:] = hash_images(images.take(sample))
    write_npy(run / FILE, contents)


def check_contents(run: Path, images: Manifest, on_message: Callable[[str], None]) -> None:
    """Refuse to go on with images that were replaced; copies of the same are the same."""
    if not (run / FILE).is_file():
        on_message(f"an older suprank began {run}: whether its training images were replaced since is not checked.")
    elif len(rows := replaced_rows(images, np.load(run / FILE))):
        raise ValueError(
            f"{len(rows):,} training images have other bytes than when the run began, the first "
            f"{images.paths[int(rows[0])].as_py()}; restore them, or start a new run."
        )
