"""What is looked at, from files alone: embedded test images, and of a run also its recipe and what it measured on the way.

    Source.read(RUN, test=None)      a folder of `suprank train` with RUN/embeddings, or a folder of `suprank embed`
    Source.of(name, embeddings, manifest, gallery=None, gallery_manifest=None)   arrays and manifests at hand

    source.name, source.folder       what to call it; the folder, None without one
    source.test                      name of the test set: `test`, or that of `data.tests`
    source.levels                    finest first; () where the images have no labels
    source.names[level][label]       what a label is called: `labels` hold these numbers on both sides
    source.parents[level]            for each label its parent at the next coarser level, −1 for none; not of the last
    source.queries, source.gallery   `Images` (explorer/images.py): embeddings, labels, items, ids; unit(rows), blocks(),
                                     path(row), splits, picture(row, at_least) → PIL image or Broken
    source.against_each_other        whether the queries are the gallery, each against the others: then both are one object
    source.itself(query)             rows of the gallery that are the query itself, and not in its list
    source.levels_of(query, rows)    for each gallery row how many levels it shares with the query: 0 negative .. len(levels)
    source.query_names               what tells that two sources have the same queries: ids, or paths with boxes
    source.at(levels)                the same, judged at some of the levels alone
    source.evaluated(rows, **options)  `evaluate` of it, or of some of its queries: a Report
    source.found(rows, k)            the k best gallery rows of these queries, exactly: (rows, scores), [n, k]
    source.recipe                    the resolved recipe as a dict, None for a folder of embeddings
    source.curves                    lines of metrics.jsonl as dicts, None for a folder of embeddings
    source.decay                     of the relevance in H-AP, as in the recipe; 1 without one
    source.provenance                the network and how it read the images; None where nothing says so

Nothing of it is written to.
"""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from suprank.data.manifest import Manifest
from suprank.embedding.provenance import Provenance
from suprank.embedding.query_gallery import column, common_levels, ranked_parts, ranked_sides
from suprank.embedding.result import embedded_parts, read_embedded
from suprank.evaluation import evaluate, top_k
from suprank.explorer.images import Images, levels_between

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from suprank.evaluation import Report

RECIPE, METRICS, EMBEDDINGS, OWN = "recipe.toml", "metrics.jsonl", "embeddings", "test"
FROZEN = "frozen"
"""Folder in that of a run with the embeddings of its backbone before training."""


@dataclass(frozen=True, eq=False)
class Source:
    """Queries and gallery with their labels; see the top of this file."""

    name: str
    levels: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]]
    queries: Images
    gallery: Images
    folder: Path | None = None
    test: str = OWN
    recipe: Mapping[str, Any] | None = None
    curves: Sequence[Mapping[str, Any]] | None = None
    decay: float = 1.0
    provenance: Provenance | None = None

    @classmethod
    def read(cls, folder: str | PathLike[str], test: str | None = None, *, frozen: bool = False) -> Source:
        """The source in a folder of `suprank train` whose test images are embedded, or of `suprank embed`.

        Queries go against the gallery, or the test images against each other (and against distractors); train is looked at
        only where there is nothing else. Broken images are left out. Of a run, the levels are those of its recipe; `test` is
        the test set, by default the manifest's own if it has one, else the first of `data.tests`. `frozen` reads the embeddings
        of the run's backbone before training instead: they have no recipe and no curves.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}; give one of `suprank train` or `suprank embed`.")
        if not (folder / RECIPE).is_file():
            if test is not None:
                raise ValueError(f"{folder} is no folder of a run, and has one test set; leave out the name {test!r}.")
            if frozen:
                raise ValueError(f"{folder} is no folder of a run, and has no backbone from before training; name a run.")
            return cls._embedded(folder, (), name=_name(folder), folder=folder)
        recipe = _recipe(folder / RECIPE)
        sets = [OWN, *recipe.get("data", {}).get("tests", {})]
        if test is not None and test not in sets:
            raise ValueError(f"{folder} has no test set {test!r}; choose from {', '.join(sets)}.")
        where = folder / FROZEN if frozen else folder
        embedded = [one for one in sets if embedded_parts(embeddings_folder(where, one))]
        chosen = next(iter(embedded), OWN) if test is None else test
        if chosen not in embedded:
            there = f"only {', '.join(embedded)}" if embedded else "nothing yet"
            raise FileNotFoundError(
                f"{embeddings_folder(where, chosen)} does not hold the images of {chosen!r} ({there} is embedded); "
                f"`suprank report {folder}` embeds them, or suprank.embedding.embed_collection."
            )
        levels = recipe.get("data", {}).get("levels") or ()
        decay = float(recipe.get("evaluation", {}).get("decay", 1.0))
        further: dict[str, Any] = {"folder": where, "test": chosen, "decay": decay}
        if frozen:
            return cls._embedded(embeddings_folder(where, chosen), levels, f"{_name(folder)} before training", **further)
        lines = _lines(folder / METRICS)
        return cls._embedded(embeddings_folder(where, chosen), levels, _name(folder), recipe=recipe, curves=lines, **further)

    @classmethod
    def of(
        cls,
        name: str,
        embeddings: NDArray[Any],
        manifest: Manifest,
        gallery: NDArray[Any] | None = None,
        gallery_manifest: Manifest | None = None,
    ) -> Source:
        """From embeddings `[rows, dim]` and the manifest of the rows; without a gallery, each is ranked against the others."""
        if (gallery is None) != (gallery_manifest is None):
            raise ValueError("a gallery and its manifest go together; give both, or neither.")
        parts = {"test" if gallery is None else "query": (embeddings, manifest)}
        if gallery is not None and gallery_manifest is not None:
            parts["gallery"] = (gallery, gallery_manifest)
        return cls._of_parts(parts, (), name)

    @classmethod
    def _embedded(cls, out: Path, levels: Sequence[str], name: str, **further: Any) -> Source:
        chosen = ranked_parts(embedded_parts(out))
        parts = {part: read_embedded(out, part) for part in chosen}
        further["provenance"] = Provenance.read(out, chosen[0])
        return cls._of_parts({part: (found.embeddings, found.items) for part, found in parts.items()}, levels, name, **further)

    @classmethod
    def _of_parts(
        cls, parts: Mapping[str, tuple[NDArray[Any], Manifest]], asked: Sequence[str], name: str, **further: Any
    ) -> Source:
        for part, (embeddings, items) in parts.items():
            if embeddings.ndim != 2 or len(embeddings) != len(items):
                shape, rows = list(embeddings.shape), f"{len(items):,} rows"
                raise ValueError(f"{name}: {part} has embeddings of shape {shape} and a manifest of {rows}; give one for each.")
        manifests = [items for _, items in parts.values()]
        levels: tuple[str, ...] = ()
        if all(items.levels for items in manifests):
            known = common_levels(manifests, about=name)
            # As in training: a test set is judged at those of the recipe's levels that it has.
            levels = tuple(level for level in asked if level in known) or known
        names = {level: tuple(dict.fromkeys(one for items in manifests for one in items.names[level])) for level in levels}
        if levels:
            ranked = ranked_sides(parts, levels, about=name)
            sides = [(side.labels, side.ids, side.embeddings) for side in (ranked.queries, ranked.gallery) if side is not None]
        else:
            sides = [
                (
                    np.empty((len(items), 0), np.int64),
                    column(items, "id") or (column(items, "path") if len(parts) > 1 else None),
                    rows,
                )
                for rows, items in parts.values()
            ]
        rows_of = [manifests[0]] if len(sides) == 1 else [manifests[0], manifests[1] if "query" in parts else joined(manifests)]
        images = [Images(rows, labels, items, ids) for (labels, ids, rows), items in zip(sides, rows_of, strict=True)]
        return cls(name, levels, names, images[0], images[-1], **further)

    def at(self, levels: Sequence[str]) -> Source:
        """The same images, judged at these of the levels alone."""
        if tuple(levels) == self.levels:
            return self
        columns = [self.levels.index(level) for level in levels]
        sides = [
            Images(side.embeddings, side.labels[:, columns], side.items, side.ids)
            for side in dict.fromkeys((self.queries, self.gallery))
        ]
        names = {level: self.names[level] for level in levels}
        return replace(self, levels=tuple(levels), names=names, queries=sides[0], gallery=sides[-1])

    @property
    def against_each_other(self) -> bool:
        return self.queries is self.gallery

    @cached_property
    def parents(self) -> dict[str, NDArray[np.int64]]:
        """For each label its parent, by the rows of both sides."""
        labels = np.concatenate([side.labels for side in dict.fromkeys((self.queries, self.gallery))])
        found = {}
        for place, level in enumerate(self.levels[:-1]):
            found[level] = np.full(len(self.names[level]), -1, np.int64)
            there = labels[:, place] >= 0
            found[level][labels[there, place]] = labels[there, place + 1]
        return found

    def itself(self, query: int) -> NDArray[np.int64]:
        """The rows of the gallery that are the query itself: by its id; without ids, its own number."""
        if self.queries.ids is None:
            return np.array([query] if self.against_each_other else [], np.int64)
        return self._rows_of_ids.get(self.queries.ids[query], np.empty(0, np.int64))

    @cached_property
    def _rows_of_ids(self) -> dict[str, NDArray[np.int64]]:
        found: dict[str, list[int]] = {}
        for row, one in enumerate(self.gallery.ids or ()):
            found.setdefault(one, []).append(row)
        return {one: np.array(rows, np.int64) for one, rows in found.items()}

    def levels_of(self, query: int, rows: NDArray[np.int64] | Sequence[int] | slice = slice(None)) -> NDArray[np.int64]:
        """How many levels each of these gallery rows shares with the query: 0 a negative, len(levels) the same fine class."""
        return levels_between(self.queries.labels[query], self.gallery.labels[rows])

    @cached_property
    def query_names(self) -> list[str]:
        """Ids of the queries, or else their paths, with the box where there is one."""
        if self.queries.ids is not None:
            return list(self.queries.ids)
        paths, boxes = column(self.queries.items, "path") or [], column(self.queries.items, "box")
        return paths if boxes is None else [f"{path} {box}" for path, box in zip(paths, boxes, strict=True)]

    def evaluated(self, rows: NDArray[np.int64] | None = None, **options: Any) -> Report:
        """`suprank.evaluation.evaluate` of these queries and this gallery, with these options (metrics, ks, per_query, ...).

        `rows` chooses some of the queries; each is still ranked against the whole gallery.
        """
        if not self.levels:
            raise ValueError(f"{self.name}: the images have no labels, so nothing is relevant to a query, or judged.")
        how: dict[str, Any] = {"level_names": self.levels, "decay": self.decay, "progress": False, **options}
        queries, gallery = self.queries, self.gallery
        if rows is not None:
            some, hidden = np.asarray(queries.embeddings[rows]), [self.itself(int(row)).tolist() for row in rows]
            return evaluate(some, queries.labels[rows], gallery.embeddings, gallery.labels, ignored=hidden, **how)
        if self.against_each_other:
            return evaluate(queries.embeddings, queries.labels, ids=queries.ids, **how)
        how |= {"ids": queries.ids, "gallery_ids": gallery.ids}
        return evaluate(queries.embeddings, queries.labels, gallery.embeddings, gallery.labels, **how)

    def found(
        self, rows: NDArray[np.int64] | Sequence[int], k: int = 10, **options: Any
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The k best gallery rows of these queries by exact search, and their cosines, `[n, k]`; −1 and −∞ beyond the last.

        The query itself is left out by its id or number; a copy of it under another is an item like any other. Equal scores
        stand in the order of the rows.
        """
        chosen = np.asarray(rows, np.int64)
        found = top_k(
            np.asarray(self.queries.embeddings[chosen]),
            self.gallery.embeddings,
            k,
            ignored=[self.itself(int(query)).tolist() for query in chosen],
            **{"progress": False, **options},
        )
        return np.asarray(found.item_ids, np.int64), np.asarray(found.scores, np.float32)


def embeddings_folder(run: str | PathLike[str], test: str = OWN) -> Path:
    """Where the images of a run's test set are embedded: RUN/embeddings, or RUN/embeddings-NAME for one of `data.tests`."""
    return Path(run) / (EMBEDDINGS if test == OWN else f"{EMBEDDINGS}-{quote(test, safe='')}")


def common_to(one: Source, other: Source) -> tuple[str, ...]:
    """The levels that two sources are both judged at, finest first: recipes choose theirs from those of one manifest."""
    return tuple(level for level in one.levels if level in other.levels)


def comparison_warning(one: Source, other: Source) -> str | None:
    """A sentence where two sources come from another backbone or read their images otherwise; None where they do not, or where
    one of them does not say."""
    if one.provenance is None or other.provenance is None:
        return None
    return one.provenance.warning(other.provenance, (one.name, other.name))


def joined(manifests: Sequence[Manifest]) -> Manifest:
    """The rows of all, with the columns that all have; under the folder that holds all roots where these differ."""
    roots = [items.root.resolve() for items in manifests]
    root = roots[0] if len(set(roots)) == 1 else Path(os.path.commonpath(roots))
    first = manifests[0]
    columns = [name for name in first.table.column_names if all(name in items.table.column_names for items in manifests)]
    tables = []
    for own, items in zip(roots, manifests, strict=True):
        inside = "" if own == root else f"{own.relative_to(root).as_posix()}/"
        table = items.table.select(columns)
        paths = pa.array([inside + path for path in items.paths.to_pylist()])
        tables.append(_plain(table.set_column(columns.index("path"), "path", paths)))
    levels = [level for level in first.levels if f"label_{level}" in columns]
    return Manifest.of(pa.concat_tables(tables, promote_options="permissive"), root=root, levels=levels)


def _plain(table: pa.Table) -> pa.Table:
    """Labels as text: the dictionaries of two manifests differ."""
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.string()))
    return table


def _name(folder: Path) -> str:
    return folder.resolve().name


def _recipe(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is no TOML ({error}); restore it from a copy.") from error


def _lines(file: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl that are whole: a run that goes on may be writing the last; none where there is no file."""
    found = []
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        try:
            entries = json.loads(line)
        except ValueError:
            continue
        if isinstance(entries, dict) and isinstance(entries.get("step"), int):
            found.append(entries)
    return found
