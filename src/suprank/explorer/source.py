"""A `Source` is what the report and the web page show: embedded test images, and for a run also its recipe and metrics.

    Source.read(RUN, test=None)      read a folder of `suprank train` with RUN/embeddings, or a folder of `suprank embed`
    Source.from_files(embeddings, manifest)    read a .npy file and the manifest of its rows
    Source.from_arrays(name, embeddings, manifest, gallery=None, gallery_manifest=None)    arrays and manifests in memory

    source.name, source.folder       display name; the folder, or None
    source.test                      name of the test set: `test`, or a key of `data.tests`
    source.levels                    finest first; () if the images have no labels
    source.names[level][label]       name of a label; both sides use the same label numbers
    source.parents[level]            parent of each label at the next coarser level, −1 for none; not for the coarsest level
    source.queries, source.gallery   `Images` (explorer/images.py): embeddings, labels, manifest, ids; unit_embeddings(rows),
                                     blocks(), path(row), splits, picture(row, min_short_side) → PIL image or BrokenImage
    source.against_each_other        whether the queries are also the gallery; then both are the same object
    source.self_rows(query)          gallery rows that are the query itself and left out of its list
    source.shared_levels(query, rows)  number of levels each gallery row shares with the query: 0 (negative) to len(levels)
    source.query_keys                identifies the queries, to match them between sources: ids, or paths with boxes
    source.require_single_labels(what)   raise if images have several labels at a level
    source.with_levels(levels)       the same source restricted to some of the levels
    source.evaluate(rows, **options)   a Report for all queries, or for some of them
    source.top_k(rows, k)            the k best gallery rows for these queries by exact search: (rows, scores), [n, k]
    source.recipe                    the resolved recipe as a dict; None for a folder of embeddings
    source.metrics_log               lines of metrics.jsonl as dicts; None for a folder of embeddings
    source.decay                     decay of the relevance in H-AP, from the recipe; 1 without one
    source.weights                   weights of wAP by level, from the recipe; None for equal ones
    source.ks                        cut-offs of R@k and the like, from the recipe; 1, 10 and 100 without one
    source.provenance                the network and how it read the images; None if unknown
    source.frozen                    whether this is the backbone of a run before training
    source.training                  of a trained run: how many of the classes it has seen; None for others

A source only reads files; it never writes.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from suprank.data.manifest import Manifest
from suprank.embedding.parts import embedded_parts, read_embedded
from suprank.embedding.query_gallery import all_classes, build_query_gallery, column, common_levels, ranked_parts
from suprank.evaluation.provenance import Provenance
from suprank.explorer.images import Images, shared_levels
from suprank.explorer.manifests import join_manifests, path_keys
from suprank.files.atomic import own_file
from suprank.files.binary import open_npy
from suprank.files.reading import reading

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from suprank.evaluation import Report
    from suprank.files.sharded_array import Shards

RECIPE, METRICS, EMBEDDINGS, REPORTS, OWN_TEST = "recipe.toml", "metrics.jsonl", "embeddings", "reports", "test"
FROZEN = "frozen"
"""Subfolder of a run with the embeddings of its backbone before training."""
SHOWN_INSTEAD = "measure it with `suprank evaluate`"
"""What to do if images have several labels, which the pages do not show."""


@dataclass(frozen=True, eq=False)
class Source:
    """Queries and gallery with their embeddings and labels; the top of this file lists all attributes."""

    name: str
    levels: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]]
    queries: Images
    gallery: Images
    folder: Path | None = None
    test: str = OWN_TEST
    recipe: Mapping[str, Any] | None = None
    metrics_log: Sequence[Mapping[str, Any]] | None = None
    decay: float = 1.0
    weights: Mapping[str, float] | None = None
    ks: tuple[int, ...] = (1, 10, 100)
    provenance: Provenance | None = None
    frozen: bool = False

    @classmethod
    def read(cls, folder: str | PathLike[str], test: str | None = None, *, frozen: bool = False) -> Source:
        """Read a folder of `suprank train` whose test images are embedded, or a folder of `suprank embed`.

        Queries are ranked against the gallery, or test images against each other (and against distractors); train images are
        used only if there is nothing else. Broken images are left out. A run uses the levels of its recipe. `test` names the
        test set; the default is the manifest's own if it has one, else the first of `data.tests`. With `frozen`, the
        embeddings of the run's backbone before training are read; they have no recipe and no metrics log.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise FileNotFoundError(
                f"there is no folder {folder}; give a folder written by `suprank train` or `suprank embed`."
            )
        if not own_file(folder / RECIPE).is_file():
            if test is not None:
                raise ValueError(f"{folder} is not a run, so it has only one test set; leave out the name {test!r}.")
            if frozen:
                raise ValueError(f"{folder} is not a run, so it has no backbone before training; give a run.")
            return cls._from_folder(folder, (), name=_name(folder), folder=folder)
        recipe = _read_recipe(folder / RECIPE)
        tests = [OWN_TEST, *recipe.get("data", {}).get("tests", {})]
        if test is not None and test not in tests:
            raise ValueError(f"{folder} has no test set {test!r}; choose from {', '.join(tests)}.")
        where = folder / FROZEN if frozen else folder
        embedded = [name for name in tests if embedded_parts(embeddings_folder(where, name))]
        chosen = next(iter(embedded), OWN_TEST) if test is None else test
        if chosen not in embedded:
            available = f"only {', '.join(embedded)} is" if embedded else "nothing is"
            raise FileNotFoundError(
                f"the images of test set {chosen!r} are not in {embeddings_folder(where, chosen)} ({available} embedded yet); "
                f"run `suprank report {folder}`, which embeds them, or suprank.embedding.embed_collection."
            )
        levels = recipe.get("data", {}).get("levels") or ()
        evaluation = recipe.get("evaluation", {})
        fields: dict[str, Any] = {
            "folder": where,
            "test": chosen,
            "decay": float(evaluation.get("decay", cls.decay)),
            "weights": evaluation.get("level_weights") or None,
            "ks": tuple(evaluation.get("ks", cls.ks)),
        }
        if frozen:
            return cls._from_folder(
                embeddings_folder(where, chosen), levels, f"{_name(folder)} before training", frozen=True, **fields
            )
        log = _read_log(own_file(folder / METRICS))
        return cls._from_folder(
            embeddings_folder(where, chosen), levels, _name(folder), recipe=recipe, metrics_log=log, **fields
        )

    @classmethod
    def from_arrays(
        cls,
        name: str,
        embeddings: NDArray[Any],
        manifest: Manifest,
        gallery: NDArray[Any] | None = None,
        gallery_manifest: Manifest | None = None,
    ) -> Source:
        """Make a source of embeddings `[rows, dim]` and their manifest; without a gallery, images rank each other."""
        if (gallery is None) != (gallery_manifest is None):
            raise ValueError("gallery and gallery_manifest go together; give both or neither.")
        parts: dict[str, tuple[NDArray[Any] | Shards, Manifest]] = {
            "test" if gallery is None else "query": (embeddings, manifest)
        }
        if gallery is not None and gallery_manifest is not None:
            parts["gallery"] = (gallery, gallery_manifest)
        return cls._from_parts(parts, (), name)

    @classmethod
    def from_files(cls, embeddings: str | PathLike[str], manifest: str | PathLike[str]) -> Source:
        """Make a source of a .npy file `[rows, dim]`, which is memory-mapped, and the manifest of its rows."""
        file = Path(embeddings)
        if file.suffix != ".npy":
            raise ValueError(f"{file} is not a .npy file; save the embeddings with numpy.save.")
        source = cls.from_arrays(file.stem, open_npy(file), Manifest.read(manifest))
        return replace(source, provenance=Provenance.read_beside(file))

    @classmethod
    def _from_folder(cls, out: Path, levels: Sequence[str], name: str, **fields: Any) -> Source:
        chosen = ranked_parts(embedded_parts(out))
        parts = {part: read_embedded(out, part) for part in chosen}
        fields["provenance"] = Provenance.read(out, chosen[0])
        return cls._from_parts(
            {part: (embedded.embeddings, embedded.items) for part, embedded in parts.items()}, levels, name, **fields
        )

    @classmethod
    def _from_parts(
        cls, parts: Mapping[str, tuple[NDArray[Any] | Shards, Manifest]], wanted: Sequence[str], name: str, **fields: Any
    ) -> Source:
        for part, (embeddings, items) in parts.items():
            if embeddings.ndim != 2 or len(embeddings) != len(items):
                raise ValueError(
                    f"{name}: {part} has embeddings of shape {list(embeddings.shape)} and a manifest of {len(items):,} rows; "
                    f"give one embedding per row."
                )
        manifests = [items for _, items in parts.values()]
        levels: tuple[str, ...] = ()
        if all(items.levels for items in manifests):
            common = common_levels(manifests, about=name)
            # As in training, a test set is evaluated at those of the recipe's levels that it has.
            levels = tuple(level for level in wanted if level in common) or common
        names = {level: tuple(dict.fromkeys(label for items in manifests for label in items.names[level])) for level in levels}
        if levels:
            ranked = build_query_gallery(parts, levels, about=name)
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
        manifests_of_sides = [manifests[0]]
        if len(sides) > 1:
            manifests_of_sides.append(manifests[1] if "query" in parts else join_manifests(manifests))
        images = [Images(rows, labels, own, ids) for (labels, ids, rows), own in zip(sides, manifests_of_sides, strict=True)]
        return cls(name, levels, names, images[0], images[-1], **fields)

    def with_levels(self, levels: Sequence[str]) -> Source:
        """The same images, evaluated at only these levels."""
        if tuple(levels) == self.levels:
            return self
        from suprank.evaluation.labels import labels_at

        columns = [self.levels.index(level) for level in levels]
        sides = [
            Images(side.embeddings, labels_at(side.labels, columns), side.manifest, side.ids)
            for side in dict.fromkeys((self.queries, self.gallery))
        ]
        names = {level: self.names[level] for level in levels}
        return replace(self, levels=tuple(levels), names=names, queries=sides[0], gallery=sides[-1])

    def require_single_labels(self, what: str) -> None:
        """Raise if images have several labels at a level, for `what` cannot show them."""
        for side in dict.fromkeys((self.queries, self.gallery)):
            side.manifest.require_single_labels(f"{what} of {self.name}", SHOWN_INSTEAD, levels=self.levels)

    @property
    def against_each_other(self) -> bool:
        return self.queries is self.gallery

    @cached_property
    def parents(self) -> dict[str, NDArray[np.int64]]:
        """For each level but the coarsest, the parent of each label, taken from the rows of both sides."""
        labels = np.concatenate([side.labels for side in dict.fromkeys((self.queries, self.gallery))])
        parents = {}
        for index, level in enumerate(self.levels[:-1]):
            parents[level] = np.full(len(self.names[level]), -1, np.int64)
            labeled = labels[:, index] >= 0
            parents[level][labels[labeled, index]] = labels[labeled, index + 1]
        return parents

    def self_rows(self, query: int) -> NDArray[np.int64]:
        """Gallery rows that are the query itself: those with its id, or without ids its own row number."""
        if self.queries.ids is None:
            return np.array([query] if self.against_each_other else [], np.int64)
        return self._rows_of_ids.get(self.queries.ids[query], np.empty(0, np.int64))

    @cached_property
    def _rows_of_ids(self) -> dict[str, NDArray[np.int64]]:
        rows_of_ids: dict[str, list[int]] = {}
        for row, image_id in enumerate(self.gallery.ids or ()):
            rows_of_ids.setdefault(image_id, []).append(row)
        return {image_id: np.array(rows, np.int64) for image_id, rows in rows_of_ids.items()}

    def shared_levels(self, query: int, rows: NDArray[np.int64] | Sequence[int] | slice = slice(None)) -> NDArray[np.int64]:
        """Number of levels each gallery row shares with the query: 0 for a negative, len(levels) for the same finest class."""
        return shared_levels(self.queries.labels[query], self.gallery.labels[rows])

    @cached_property
    def query_keys(self) -> list[str]:
        """Ids of the queries, or else their paths, with their boxes if there are any."""
        if self.queries.ids is not None:
            return list(self.queries.ids)
        return path_keys(self.queries.manifest).to_pylist()

    @property
    def metric_settings(self) -> dict[str, Any]:
        """`ks`, `decay` and `weights` of the recipe, as `evaluate` takes them: the weights are those of `levels`."""
        weights = {level: weight for level, weight in (self.weights or {}).items() if level in self.levels}
        return {"ks": self.ks, "decay": self.decay, "weights": weights if any(weights.values()) else None}

    @cached_property
    def training(self) -> dict[str, Any] | None:
        """What the run's last report on the test set says about its training: see `suprank.evaluation.units.TRAINING`."""
        if self.recipe is None or self.folder is None:
            return None
        from suprank.evaluation.units import TRAINING

        written = sorted((self.folder / REPORTS).glob(f"{quote(self.test, safe=' ')}-epoch-*.json"))
        if not written:
            return {}
        with reading(written[-1], "report"):
            return dict(json.loads(own_file(written[-1]).read_bytes())["settings"].get(TRAINING) or {})

    def evaluate(self, rows: NDArray[np.int64] | None = None, **options: Any) -> Report:
        """Run `suprank.evaluation.evaluate` on these queries and this gallery; `options` are its own (metrics, ks, ...).

        `rows` selects some of the queries; each is still ranked against the whole gallery.
        """
        if not self.levels:
            raise ValueError(
                f"{self.name}: the images have no labels, so no metric can be computed; add label columns to the manifest, or "
                f"look at what is found with `suprank explore`."
            )
        from suprank.evaluation import evaluate  # when it is used: the first page is there before torch is
        from suprank.evaluation.units import TRAINING

        arguments: dict[str, Any] = {"levels": self.levels, **self.metric_settings, "progress": False, **options}
        queries, gallery = self.queries, self.gallery
        keep, intervals = arguments.pop("per_query", False), arguments.pop("intervals", False)
        arguments["per_query"] = keep or intervals
        arguments["classes"] = all_classes(queries.manifest if rows is None else queries.manifest.take(rows))
        if rows is not None:
            some, hidden = np.asarray(queries.embeddings[rows]), [self.self_rows(int(row)).tolist() for row in rows]
            report = evaluate(some, queries.labels[rows], gallery.embeddings, gallery.labels, ignored=hidden, **arguments)
        elif self.against_each_other:
            report = evaluate(queries.embeddings, queries.labels, ids=queries.ids, **arguments)
        else:
            arguments |= {"ids": queries.ids, "gallery_ids": gallery.ids}
            report = evaluate(queries.embeddings, queries.labels, gallery.embeddings, gallery.labels, **arguments)
        if self.training is not None:
            report = replace(report, settings={**report.settings, TRAINING: self.training})
        if intervals:  # after the settings, because their sentence is about the training too
            report = report.with_intervals()
        return report if keep else report.without_queries()

    def top_k(
        self, rows: NDArray[np.int64] | Sequence[int], k: int = 10, **options: Any
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The k best gallery rows for these queries by exact search, and their cosines, `[n, k]`; −1 and −∞ past the end.

        The query itself is left out by its id or row number; a copy of it with another id is an item like any other. Ties are
        in row order.
        """
        from suprank.evaluation import top_k

        chosen = np.asarray(rows, np.int64)
        found = top_k(
            np.asarray(self.queries.embeddings[chosen]),
            self.gallery.embeddings,
            k,
            ignored=[self.self_rows(int(query)).tolist() for query in chosen],
            **{"progress": False, **options},
        )
        return found.rows, found.scores


def embeddings_folder(run: str | PathLike[str], test: str = OWN_TEST) -> Path:
    """Folder with the embeddings of a run's test set: RUN/embeddings, or RUN/embeddings-NAME for one of `data.tests`."""
    return Path(run) / (EMBEDDINGS if test == OWN_TEST else f"{EMBEDDINGS}-{quote(test, safe='')}")


def levels_in_both(one: Source, other: Source) -> tuple[str, ...]:
    """The levels that both sources have, finest first."""
    return tuple(level for level in one.levels if level in other.levels)


def comparison_warning(one: Source, other: Source) -> str | None:
    """A warning if two sources use different backbones or read their images differently; None if not, or if unknown."""
    if one.provenance is None or other.provenance is None:
        return None
    return one.provenance.warning(other.provenance, (one.name, other.name))


def _name(folder: Path) -> str:
    return folder.resolve().name


def _read_recipe(file: Path) -> dict[str, Any]:
    with reading(file, "recipe"):
        return tomllib.loads(file.read_text(encoding="utf-8"))


def _read_log(file: Path) -> list[dict[str, Any]]:
    """The complete lines of metrics.jsonl (a run in progress may be writing the last one); none if there is no file."""
    lines = []
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        try:
            entries = json.loads(line)
        except ValueError:
            continue
        if isinstance(entries, dict) and isinstance(entries.get("step"), int):
            lines.append(entries)
    return lines
