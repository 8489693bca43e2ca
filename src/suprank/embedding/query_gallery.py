"""Queries and gallery from embedded parts, with labels matched by name, and ids that tell whether two rows are one image."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.retrieval_data import Items, Origin, RetrievalData
from suprank.files.sharded_array import concatenate

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.files.sharded_array import Shards


def ranked_parts(available: Collection[str]) -> tuple[str, ...]:
    """The parts, of those available (see `embed_collection`), that are ranked: queries, and the gallery if there is one.

    Queries are ranked against the gallery; otherwise test images against each other and against distractors; if there are
    neither, train images against each other. For queries without a gallery, the missing gallery is returned too.

    Example:
        >>> ranked_parts(["train", "test"]), ranked_parts(["test", "gallery"]), ranked_parts(["query", "test"])
        (('test',), ('test', 'gallery'), ('query', 'gallery'))
    """
    if "query" in available:
        return "query", "gallery"
    if "test" in available:
        return ("test", "gallery") if "gallery" in available else ("test",)
    return ("train",)


def combine_parts(
    parts: Mapping[str, tuple[NDArray[Any] | Shards, Manifest]], *, name: str, origin: Origin | None = None
) -> RetrievalData:
    """The queries and the gallery of the `ranked_parts`, in their order: embeddings `[n, dim]`, and the manifest of the rows.

    The levels are those that all parts have. Classes are matched by name, and images by their column `id`, if all parts have
    one, or else by path and box.
    """
    manifests = [items for _, items in parts.values()]
    levels = shared_levels(manifests)
    labels = common_labels(manifests, levels)
    names = {level: tuple(dict.fromkeys(chain(*(items.names[level] for items in manifests)))) for level in levels}
    about = ("", "the gallery of ")
    rows = [Embeddings.from_source(own, prefix + name) for (own, _), prefix in zip(parts.values(), about, strict=False)]
    if len(parts) == 1:  # without ids a query is left out by its row
        queries, gallery = Items(rows[0], labels[0], column(manifests[0], "id"), (manifests[0],)), None
    else:
        ids = _image_ids(manifests)
        queries, gallery = (Items(*side) for side in zip(rows, labels, ids, [(items,) for items in manifests], strict=True))
        if "query" not in parts:
            both = concatenate(*(own for own, _ in parts.values()))
            gallery = Items(
                Embeddings.from_source(both, about[1] + name), np.concatenate(labels), [*chain(*ids)], tuple(manifests)
            )
    classes = all_classes(manifests[0])
    return RetrievalData(queries, gallery, levels, names, classes, name, origin=origin or Origin())


def shared_levels(manifests: Sequence[Manifest]) -> tuple[str, ...]:
    """The levels that all manifests have, in the order of the first."""
    return tuple(level for level in manifests[0].levels if all(level in other.levels for other in manifests[1:]))


def all_classes(manifest: Manifest) -> dict[str, NDArray[np.int64]]:
    """The labels of each level, finest first: `[rows]`, or `[rows, M]` where images have up to M labels."""
    return {level: manifest.labels_at([level])[:, 0] for level in manifest.levels}


def count_seen(queries: Manifest, training: Manifest, level: str) -> int:
    """How many classes of the queries at a level a model was trained on, by name."""
    if level not in training.levels:
        return 0
    names = [
        {one.names[level][label] for label in np.unique(labels[labels >= 0])}
        for one in (queries, training)
        for labels in [one.labels_at([level])]
    ]
    return len(names[0] & names[1])


def column(items: Manifest, name: str) -> list[Any] | None:
    """The values of a column; None if there is no such column."""
    return items.table[name].to_pylist() if name in items.table.column_names else None


def common_labels(manifests: Sequence[Manifest], levels: Sequence[str]) -> list[NDArray[np.int64]]:
    """Label ids that agree by name, because parts from two manifests may number their classes differently."""
    labels = [items.labels_at(levels).copy() for items in manifests]
    for column, level in enumerate(levels):
        numbers: dict[str, int] = {}
        for items, own in zip(manifests, labels, strict=True):
            joint = [numbers.setdefault(name, len(numbers)) for name in items.names[level]]
            own[:, column] = np.array([*joint, -1])[own[:, column]]  # −1, no label, is the last of them
    return _match_sets(labels)


def _match_sets(labels: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """The labels of all parts as sets of one size, if those of any part are sets."""
    if all(own.ndim == 2 for own in labels):
        return labels
    sets = [own if own.ndim == 3 else own[..., None] for own in labels]
    most = max(own.shape[2] for own in sets)
    return [np.pad(own, ((0, 0), (0, 0), (0, most - own.shape[2])), constant_values=-1) for own in sets]


def _image_ids(manifests: Sequence[Manifest]) -> list[list[str]]:
    """The column `id` if all parts have one; otherwise the path, with the box that the image is cropped to."""
    given = [column(items, "id") for items in manifests]
    known = [ids for ids in given if ids is not None]
    if len(known) == len(manifests):
        return known
    return [items.keys for items in manifests]
