"""The images of `RetrievalData`: pictures, read on demand, unit embeddings, what queries find, and the rows of a filter."""

from __future__ import annotations

import difflib
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from suprank.data.image_files import ImageFiles
from suprank.data.images import BrokenImage, crop_to_box, decode_image
from suprank.data.members import UnreadableArchiveError
from suprank.evaluation.nearest_neighbors import top_k

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from PIL.Image import Image

    from suprank.data.manifest import Manifest
    from suprank.evaluation.retrieval_data import Items, RetrievalData

_BLOCK_BYTES = 4 * 2**20  # of embeddings, read at once
_files: WeakKeyDictionary[Manifest, ImageFiles] = WeakKeyDictionary()
_opening = Lock()  # a page asks for dozens of pictures at once, and one thread is to list the archives


def unit_embeddings(images: Items, rows: slice | NDArray[np.int64] | Sequence[int]) -> NDArray[np.float32]:
    """The embeddings of these rows in float32, scaled to length 1; a row of zeros stays zero."""
    vectors = images.embeddings[rows]
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True).astype(np.float32)
    lengths[lengths == 0] = 1
    return np.divide(vectors, lengths, dtype=np.float32)


def unit_blocks(images: Items, rows: int | None = None) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Go through all rows, `rows` at a time (a few megabytes by default): the first row number and the unit embeddings."""
    step = rows or max(1, _BLOCK_BYTES // (4 * images.embeddings.dim))
    for first in range(0, len(images), step):
        yield first, unit_embeddings(images, slice(first, first + step))


def best_items(
    data: RetrievalData, rows: NDArray[np.int64] | Sequence[int], k: int = 10, **options: Any
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The rows of the k best items for these queries by exact search, and their cosines, `[n, k]`; −1 and −∞ past the end.

    The query itself is left out by its id or row number; a copy of it with another id is an item like any other. Ties are in
    row order.
    """
    chosen = np.asarray(rows, np.int64)
    hidden = [data.self_rows(int(query)).tolist() for query in chosen]
    found = top_k(data.queries.embeddings[chosen], data.items.embeddings, k, ignored=hidden, **{"progress": False, **options})
    return found.rows, found.scores


def read_picture(images: Items, row: int, min_short_side: int | None = None) -> Image | BrokenImage:
    """The picture in RGB, upright and cropped to its box; `BrokenImage` with the reason if it cannot be read.

    With `min_short_side`, a large JPEG may be decoded at a fraction of its size, its short side keeping at least that many
    pixels.
    """
    path: str = images.manifest.paths[row].as_py()
    try:
        data, table = _image_files(images.manifest).read(path), images.manifest.table
        box = table["box"][row].as_py() if "box" in table.column_names else None
        if box is not None:  # in pixels of the whole picture
            return crop_to_box(decode_image(data, path), box, path)
        return decode_image(data, path, min_short_side=min_short_side)
    except (ValueError, FileNotFoundError, PermissionError) as error:  # errors of archives and images are ValueErrors
        return BrokenImage(row, path, str(error).removeprefix(f"{path}: "))
    except OSError as error:  # for example a disk that was unmounted
        return BrokenImage(row, path, str(error))


def list_archives(images: Items) -> None:
    """List the archives of the pictures, so that the first picture need not wait for it; in a thread, if you like."""
    with suppress(OSError, UnreadableArchiveError):  # which the pictures will say
        _image_files(images.manifest)


def shared_levels(own: NDArray[np.int64], theirs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of levels that rows share, counted from the coarsest: 0 for a negative, all levels for the same finest class.

    Labels are `[..., levels]`, finest first, and broadcast against each other; −1 is never shared.

    Example:
        >>> shared_levels(np.array([3, 1]), np.array([[3, 1], [4, 1], [5, 2], [-1, 1], [-1, -1]])).tolist()
        [2, 1, 0, 1, 0]
    """
    shared = (own == theirs) & (own >= 0)
    return np.logical_and.accumulate(shared[..., ::-1], axis=-1).sum(-1)


def matching_rows(manifest: Manifest, where: Mapping[str, Sequence[str]], about: str) -> NDArray[np.bool_]:
    """Mask of the rows that match every key of a filter, `split` or a level, by one of its names; errors call them `about`."""
    mask = np.ones(len(manifest), bool)
    for key, wanted in where.items():
        if key != "split" and key not in manifest.levels:
            raise ValueError(f"{about} has no level {key!r}; choose from {', '.join((*manifest.levels, 'split'))}.")
        column = manifest.table["split" if key == "split" else f"label_{key}"].combine_chunks()
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        names = np.array([*coded.dictionary.to_pylist(), None], object)
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        known = set(names[np.unique(codes)]) - {None}
        for name in (name for name in wanted if name not in known):
            near = difflib.get_close_matches(name, known, cutoff=0.5) or sorted(known)[:3]
            raise ValueError(f"{about} has no item with {key}={name}; the nearest names are {', '.join(near) or 'none'}.")
        mask &= np.isin(names, [*wanted])[codes]
    return mask


def _image_files(manifest: Manifest) -> ImageFiles:
    """The files of the pictures, with the archives listed; the next call tries again if that fails: they may come back."""
    with _opening:
        if (files := _files.get(manifest)) is None:
            files = ImageFiles(manifest.root)
            files.index(manifest.paths)
            _files[manifest] = files
        return files
