"""What `suprank embed` wrote, as `suprank evaluate` takes it: which part is ranked against which, with labels and ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import typer

from suprank.embedding.result import PARTS, EmbeddedPart, read_embedded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from suprank.evaluation import GroundTruth


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


def read_folder(folder: Path, levels: Sequence[str]) -> Sides:
    """Queries against the gallery, where there are both; or the test images against each other, and against distractors.

    Only where there is neither, train against itself. Says on stderr which parts and how many broken images are left out. A
    part that was begun and not finished is an error, not a part left out.
    """
    there = [part for part in PARTS if (folder / part).is_dir()]
    chosen = ["query", "gallery"] if "query" in there else ["test", "gallery"] if "test" in there else ["train"]
    if "query" not in there and "gallery" not in there:
        chosen = chosen[:1]
    for part in there:
        if part not in chosen:
            typer.echo(f"{part} is left out: {' against '.join(chosen)} is evaluated", err=True)
    parts = [_part(folder, part) for part in chosen]
    names = _levels(parts, levels, folder)
    labels = _labels(parts, names)
    if len(parts) == 1:
        own = _column(parts[0], "id")  # without ids a query is left out by its place
        return Sides(names, Side(parts[0].embeddings, labels[0], own), None)
    ids = _ids(parts)
    queries, gallery = (Side(part.embeddings, label, own) for part, label, own in zip(parts, labels, ids, strict=True))
    return Sides(names, queries, gallery if chosen[0] == "query" else _joined(queries, gallery))


def judged_by(folder: Path, ground_truth: GroundTruth) -> tuple[NDArray[Any], NDArray[Any]]:
    """Embeddings of queries and gallery in the order in which a revisited dataset's file numbers them; distractors after."""
    found = []
    for name, expected in (("query", ground_truth.queries), ("gallery", ground_truth.items)):
        part = read_embedded(folder, name)
        ids = _column(part, "id") or []
        if part.broken or tuple(ids[: len(expected)]) != expected:
            raise ValueError(
                f"{folder / name} does not hold the {len(expected):,} images of the ground truth, in its order, all whole; "
                f"embed a manifest of `suprank data import` roxford5k or rparis6k, made from this very file."
            )
        found.append(part.embeddings)
    return found[0], found[1]


def _part(folder: Path, name: str) -> EmbeddedPart:
    part = read_embedded(folder, name)
    if part.broken:
        typer.echo(f"{name}: {part.broken:,} broken images are left out", err=True)
    return part


def _levels(parts: Sequence[EmbeddedPart], asked: Sequence[str], folder: Path) -> tuple[str, ...]:
    known = parts[0].items.levels
    for part in parts:
        known = tuple(level for level in known if level in part.items.levels)
    if not known:
        raise ValueError(
            f"{folder}: the images have no labels, so nothing is relevant to a query; revisited Oxford and Paris "
            f"are judged by their own file: --ground-truth gnd_roxford5k.pkl."
        )
    unknown = [level for level in asked if level not in known]
    if unknown:
        raise ValueError(f"{folder} has no level {unknown[0]!r}; choose from {', '.join(known)}.")
    return tuple(asked) or known


def _labels(parts: Sequence[EmbeddedPart], levels: Sequence[str]) -> list[NDArray[np.int64]]:
    """Ids by name: parts that were embedded from two manifests may number their classes differently."""
    columns: list[list[NDArray[np.int64]]] = [[] for _ in parts]
    for level in levels:
        numbers: dict[str, int] = {}
        for part, found in zip(parts, columns, strict=True):
            joint = [numbers.setdefault(name, len(numbers)) for name in part.items.names[level]]
            own = part.items.labels[:, part.items.levels.index(level)]
            found.append(np.array([*joint, -1])[own])  # −1, no label, is the last of them
    return [np.stack(found, axis=1) for found in columns]


def _ids(parts: Sequence[EmbeddedPart]) -> list[list[str]]:
    """The column `id` where all parts have one; else a row is its path, and the box it is cropped to."""
    given = [_column(part, "id") for part in parts]
    known = [ids for ids in given if ids is not None]
    if len(known) == len(parts):
        return known
    found = []
    for part in parts:
        paths, boxes = _column(part, "path") or [], _column(part, "box")
        found.append(paths if boxes is None else [f"{path} {box}" for path, box in zip(paths, boxes, strict=True)])
    return found


def _column(part: EmbeddedPart, name: str) -> list[Any] | None:
    return part.items.table[name].to_pylist() if name in part.items.table.column_names else None


def _joined(one: Side, other: Side) -> Side:
    return Side(
        np.concatenate([one.embeddings, other.embeddings]),
        np.concatenate([one.labels, other.labels]),
        [*(one.ids or ()), *(other.ids or ())],
    )
