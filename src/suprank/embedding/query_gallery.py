"""Which embedded part is ranked against which, with labels matched by name, and what tells that two rows are one image."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest


class Side(NamedTuple):
    """Queries or gallery: embeddings `[n, dim]`, labels `[n, levels]`, and what tells whether two rows are one image."""

    embeddings: NDArray[Any]
    labels: NDArray[np.int64]
    ids: list[str] | None


class Sides(NamedTuple):
    """Levels, finest first; the gallery is None where every query is ranked against the others."""

    levels: tuple[str, ...]
    queries: Side
    gallery: Side | None


def ranked_parts(there: Collection[str]) -> tuple[str, ...]:
    """Of the parts that are there (see `embed_collection`), those that are ranked: queries, and the gallery if there is one.

    Queries go against the gallery; or the test images against each other, and against distractors; only where there is neither,
    train against itself. Queries without a gallery name it all the same: it is missing.

    Example:
        >>> ranked_parts(["train", "test"]), ranked_parts(["test", "gallery"]), ranked_parts(["query", "test"])
        (('test',), ('test', 'gallery'), ('query', 'gallery'))
    """
    if "query" in there:
        return "query", "gallery"
    if "test" in there:
        return ("test", "gallery") if "gallery" in there else ("test",)
    return ("train",)


def ranked_sides(parts: Mapping[str, tuple[NDArray[Any], Manifest]], levels: Sequence[str] = (), *, about: str) -> Sides:
    """What `evaluate` takes: from embeddings `[n, dim]` of the `ranked_parts`, in their order, with the manifest of the rows.

    `levels` chooses some that all parts have, in this order; by default all of those. Errors call the parts `about`.
    """
    embeddings, items = zip(*parts.values(), strict=True)
    names = common_levels(items, levels, about=about)
    labels = _labels(items, names)
    if len(parts) == 1:
        own = column(items[0], "id")  # without ids a query is left out by its place
        return Sides(names, Side(embeddings[0], labels[0], own), None)
    queries, gallery = (Side(*side) for side in zip(embeddings, labels, _ids(items), strict=True))
    return Sides(names, queries, gallery if "query" in parts else _joined(queries, gallery))


def common_levels(manifests: Iterable[Manifest], asked: Sequence[str] = (), *, about: str) -> tuple[str, ...]:
    """The levels that all manifests have, in the first one's order; or those asked for, which must be among them."""
    first, *others = manifests
    known = tuple(level for level in first.levels if all(level in other.levels for other in others))
    if not known:
        raise ValueError(
            f"{about}: the images have no labels, so nothing is relevant to a query; revisited Oxford and Paris "
            f"are judged by their own file: suprank evaluate --ground-truth gnd_roxford5k.pkl."
        )
    unknown = [level for level in asked if level not in known]
    if unknown:
        raise ValueError(f"{about} has no level {unknown[0]!r}; choose from {', '.join(known)}.")
    return tuple(asked) or known


def column(items: Manifest, name: str) -> list[Any] | None:
    """The values of a column; None where there is none."""
    return items.table[name].to_pylist() if name in items.table.column_names else None


def _labels(manifests: Sequence[Manifest], levels: Sequence[str]) -> list[NDArray[np.int64]]:
    """Ids by name: parts that were embedded from two manifests may number their classes differently."""
    columns: list[list[NDArray[np.int64]]] = [[] for _ in manifests]
    for level in levels:
        numbers: dict[str, int] = {}
        for items, found in zip(manifests, columns, strict=True):
            joint = [numbers.setdefault(name, len(numbers)) for name in items.names[level]]
            own = items.labels[:, items.levels.index(level)]
            found.append(np.array([*joint, -1])[own])  # −1, no label, is the last of them
    return [np.stack(found, axis=1) for found in columns]


def _ids(manifests: Sequence[Manifest]) -> list[list[str]]:
    """The column `id` where all parts have one; else a row is its path, and the box it is cropped to."""
    given = [column(items, "id") for items in manifests]
    known = [ids for ids in given if ids is not None]
    if len(known) == len(manifests):
        return known
    found = []
    for items in manifests:
        paths, boxes = column(items, "path") or [], column(items, "box")
        found.append(paths if boxes is None else [f"{path} {box}" for path, box in zip(paths, boxes, strict=True)])
    return found


def _joined(one: Side, other: Side) -> Side:
    return Side(
        np.concatenate([one.embeddings, other.embeddings]),
        np.concatenate([one.labels, other.labels]),
        [*(one.ids or ()), *(other.ids or ())],
    )
