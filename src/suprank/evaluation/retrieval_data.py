"""`RetrievalData`: what is ranked against what, with labels and ids. Whatever reads stored embeddings takes one.

suprank.open_data(place)                  from a run, a folder of `suprank embed`, files, or a dataset with embeddings
RetrievalData.from_arrays(x, y)           from tensors and arrays
RetrievalData.from_files("x.npy", "y.csv")

data.queries, data.gallery       `Items`: embeddings, labels, ids, manifest; no gallery if the queries rank each other
data.items                       what is ranked: the gallery, or else the queries
data.levels, data.names          the levels, finest first; the name of each label
data.defaults                    cut-offs, decay and weights of a run, or the usual ones
data.origin                      where it is from: place, test set, recipe, model
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from suprank.evaluation.arguments import as_array, check_label_pair, check_level_names
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.heads import apply_head, head_added
from suprank.evaluation.labels import integer_labels, labels_at, read_label_files
from suprank.evaluation.provenance import Provenance, check_comparable
from suprank.evaluation.report_text import in_words, pluralize
from suprank.evaluation.search import check_dimensions
from suprank.evaluation.units import query_classes, same_classes
from suprank.files.labels import label_digests

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import EmbeddingSource
    from suprank.evaluation.heads import StoredHead
    from suprank.system.progress import StageProgress

_log = logging.getLogger(__name__)

OWN_TEST = "test"
"""The test set that a manifest brings itself, beside those of `data.tests` in a recipe."""


@dataclass(frozen=True, eq=False, repr=False)
class Items:
    """The queries or the gallery: one embedding a row, its labels, and its id.

    Labels are integers `[n, levels]`, finest first, or `[n, levels, M]` if rows have up to M labels at a level; −1 is no label.
    Rows with equal `ids` are one image; without ids, every row is an image of its own. `manifests` describe the rows, one after
    the other: paths, boxes, splits.
    """

    embeddings: Embeddings
    labels: NDArray[Any]
    ids: Sequence[Any] | NDArray[Any] | None = None
    manifests: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        described = sum(map(len, self.manifests)) if self.manifests else None
        for name, number in (("labels", len(self.labels)), ("ids", _length(self.ids)), ("rows of a manifest", described)):
            if number not in (None, len(self)):
                raise ValueError(
                    f"there are {number:,} {name} for {len(self):,} rows of {self.embeddings.name}; give one for each, in the "
                    f"same order."
                )

    def __len__(self) -> int:
        return len(self.embeddings)

    def __repr__(self) -> str:
        return f"Items({len(self):,} × {self.embeddings.dim})"

    @cached_property
    def manifest(self) -> Any:
        """The `Manifest` of the rows; None if there is none."""
        return self.manifests[0].join(*self.manifests[1:]) if self.manifests else None

    @cached_property
    def keys(self) -> Sequence[Any] | NDArray[Any] | None:
        """What an image is recognized by in other data: its id, or else its path and box; None if neither is known."""
        if self.ids is not None:
            return self.ids
        return list(chain(*(one.keys for one in self.manifests))) if self.manifests else None

    def take(self, rows: NDArray[np.int64]) -> Items:
        """Some of the rows, in this order, with their embeddings in memory."""
        return Items(
            Embeddings.from_source(self.embeddings.rows(torch.from_numpy(rows)), self.embeddings.name),
            self.labels[rows],
            None if self.ids is None else _rows(self.ids, rows),
            (self.manifest.take(rows),) if self.manifests else (),
        )


@dataclass(frozen=True)
class MetricDefaults:
    """What `evaluate` uses if nothing else is said: the cut-offs of R@k and the like, the decay of H-AP, the weights of wAP."""

    ks: tuple[int, ...] = (1, 10, 100)
    decay: float = 1.0
    weights: Mapping[str, float] | None = None

    def at_levels(self, levels: Sequence[str]) -> MetricDefaults:
        kept = {level: weight for level, weight in (self.weights or {}).items() if level in levels}
        return replace(self, weights=kept if any(kept.values()) else None)


@dataclass(frozen=True, eq=False)
class Origin:
    """Where data is from.

    `place` is the run, folder or file, and `embeddings` where its embeddings are stored. Of a run, `test` names the test set,
    `recipe` has its settings and `training` what is known of its training (see `suprank.evaluation.units.TRAINING`); `frozen`
    says that its backbone before training made the embeddings, which has no recipe. `made_by` is the model, and how it read the
    images; `head` the fingerprint of the head that was applied afterwards.
    """

    place: Path | None = None
    embeddings: Path | None = None
    test: str = OWN_TEST
    frozen: bool = False
    recipe: Mapping[str, Any] | None = None
    training: Mapping[str, Any] | None = None
    made_by: Provenance | None = None
    head: str | None = None


@dataclass(frozen=True, eq=False, repr=False)
class RetrievalData:
    """Queries, the gallery that they rank, their labels, and where they are from. Without a gallery, queries rank each other.

    `names` has the name of each label of a level, if labels have names. `classes` are the labels of the queries at every level
    that is known, also those that are not evaluated; by default those of `levels`.

    Example:
        >>> data = RetrievalData.from_arrays(torch.eye(4)[:, :3] + 1, [0, 0, 1, 1], levels=["species"], name="birds")
        >>> data
        RetrievalData(birds: 4 queries × 3 rank each other; species)
        >>> data.take([0, 2])
        RetrievalData(birds: 2 queries × 3 rank 4 items; species)
    """

    queries: Items
    gallery: Items | None = None
    levels: tuple[str, ...] = ()
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    classes: Mapping[str, NDArray[np.int64]] | None = None
    name: str = "embeddings"
    defaults: MetricDefaults = MetricDefaults()
    origin: Origin = field(default_factory=Origin)

    def __post_init__(self) -> None:
        if self.gallery is not None:
            check_dimensions(self.queries.embeddings, self.gallery.embeddings)

    def __repr__(self) -> str:
        ranked = "rank each other" if self.gallery is None else f"rank {pluralize(len(self.gallery), 'item')}"
        queries = f"{pluralize(len(self.queries), 'query', 'queries')} × {self.queries.embeddings.dim}"
        return f"RetrievalData({self.name}: {queries} {ranked}; {in_words(self.levels) or 'no labels'})"

    @classmethod
    def from_arrays(
        cls,
        embeddings: EmbeddingSource,
        labels: Tensor | ArrayLike | None = None,
        gallery: EmbeddingSource | None = None,
        gallery_labels: Tensor | ArrayLike | None = None,
        *,
        levels: Sequence[str] | None = None,
        ids: Sequence[Any] | NDArray[Any] | None = None,
        gallery_ids: Sequence[Any] | NDArray[Any] | None = None,
        classes: Mapping[str, Any] | None = None,
        name: str = "embeddings",
    ) -> RetrievalData:
        """Take embeddings `[n, dim]` and labels, integers `[n]`, `[n, levels]` or `[n, levels, M]`, or names: a data frame, a
        Series or text, as `encode_labels` takes them.

        Labels may be left out where nothing but the embeddings is of interest, or judgments say what is relevant.
        """
        source = Embeddings.from_source(embeddings, name)
        items = None if gallery is None else Embeddings.from_source(gallery, "gallery", sequential=True)
        if items is None and gallery_ids is not None:
            raise ValueError("gallery_ids were given without a gallery; the items are the queries, so give ids.")
        if items is not None and gallery_ids is not None and ids is None:
            raise ValueError(
                "gallery_ids were given without ids, but both are needed to find a query in the gallery; give both."
            )
        if labels is None and gallery_labels is None:
            own, theirs, known, names = _no_labels(source), _no_labels(items or source), tuple[str, ...](), None
        elif labels is None:
            raise ValueError("gallery_labels were given without labels; give both, or neither.")
        else:
            labels, gallery_labels, levels, names = integer_labels(labels, gallery_labels, levels)
            pair = check_label_pair(labels, gallery_labels, source, items)
            own, theirs = (one.cpu().numpy() for one in pair)
            known = check_level_names(levels, own.shape[1])
        given, given_items = (None if one is None else as_array(one) for one in (ids, gallery_ids))
        return cls(
            Items(source, own, given),
            None if items is None else Items(items, theirs, given_items),
            known,
            names or {},
            classes=None if classes is None else query_classes(classes, len(source)),
            name=name,
        )

    @classmethod
    def from_files(
        cls,
        embeddings: str | PathLike[str],
        labels: str | PathLike[str] | None = None,
        gallery: str | PathLike[str] | None = None,
        gallery_labels: str | PathLike[str] | None = None,
        *,
        levels: Sequence[str] = (),
        id_column: str | None = None,
        fill_gaps: bool = False,
        label_separator: str | None = None,
    ) -> RetrievalData:
        """Read embeddings (.npy, .parquet, .pt) with labels (.csv, .tsv, .parquet, .npy), whose columns `levels` names.

        Rows with equal values in `id_column` are one image. `fill_gaps` puts a placeholder where a row has a blank between two
        labels, and `label_separator` is what stands between several labels of an image. Without a file of labels there are no
        levels.
        """
        if (gallery is None) != (gallery_labels is None or labels is None) and (labels, gallery_labels) != (None, None):
            raise ValueError(
                "gallery and gallery_labels go together, and gallery_labels with labels; give all or none of them."
            )
        # Tables first: they are read at once, and a Parquet file of embeddings is not.
        files = [file for file in (labels, gallery_labels) if file is not None]
        cells: dict[str, Any] = {"id_column": id_column, "fill_gaps": fill_gaps, "label_separator": label_separator}
        read = read_label_files(files, levels, **cells) if files else None
        made_by = Provenance.read_beside(embeddings)
        if gallery is not None:
            check_comparable(made_by, Provenance.read_beside(gallery), (str(embeddings), str(gallery)), _log.info)
        sources = [Embeddings.from_source(embeddings, "embeddings")]
        sources += [] if gallery is None else [Embeddings.from_source(gallery, "gallery", sequential=True)]
        own = list(map(_no_labels, sources)) if read is None else read.labels
        for file, rows, source in zip(files, own, sources, strict=False):
            if len(rows) != len(source):
                raise ValueError(
                    f"{file} has {len(rows)} rows and {source.name} has {len(source)}, but every embedding needs one row of "
                    f"labels, in the same order; write both from the same list."
                )
        ids = [None] * len(sources) if read is None or read.ids is None else read.ids
        queries, *others = (Items(*side) for side in zip(sources, own, ids, strict=True))
        place = Path(embeddings)
        return cls(
            queries,
            others[0] if others else None,
            read.levels if read else (),
            (read and read.names) or {},
            read.classes if read else None,
            name=place.stem,
            origin=Origin(place, place, made_by=made_by),
        )

    @property
    def items(self) -> Items:
        """What is ranked: the gallery, or the queries themselves."""
        return self.queries if self.gallery is None else self.gallery

    @property
    def sides(self) -> tuple[Items, ...]:
        """The queries, and the gallery if there is one."""
        return (self.queries,) if self.gallery is None else (self.queries, self.gallery)

    def map_sides(self, change: Callable[[Items], Items], **changes: Any) -> RetrievalData:
        """The data with `change` of the queries and, if there is one, of the gallery, and with other values of its fields."""
        queries, *gallery = map(change, self.sides)
        return replace(self, queries=queries, gallery=gallery[0] if gallery else None, **changes)

    @property
    def digests(self) -> dict[str, str]:
        """The `label_digests`, by which a report is matched with another one; none if labels have no names."""
        found: dict[str, str] = {}
        for side, prefix in zip(self.sides, ("", "gallery "), strict=False):
            keys = None if side.keys is None or not self.names else list(map(str, side.keys))
            columns = zip(self.levels, np.moveaxis(side.labels, 1, 0), strict=True)
            named = {prefix + level: _label_names(own, self.names[level]) for level, own in columns if level in self.names}
            found |= label_digests(keys, named)
        return found

    def require_labels(self) -> None:
        """Raise if there is no level at which images have labels, for nothing is then relevant to a query."""
        if not self.levels:
            shared = "" if self.gallery is None else " at a level that queries and gallery have in common"
            raise ValueError(
                f"{self.name}: the images have no labels{shared}, so nothing is relevant to a query; add label columns to the "
                f"manifest and embed again, name a file of labels with embeddings in a file, or look at what is found with "
                f"`suprank explore`. Revisited Oxford and Paris have a ground truth of their own, such as gnd_roxford5k.pkl."
            )

    def require_images(self, what: str) -> None:
        """Raise if nothing says where the images are, for `what` shows them."""
        if not all(side.manifests and all(one.has_images for one in side.manifests) for side in self.sides):
            raise ValueError(
                f"{what} of {self.name} shows images, and nothing says where they are; with embeddings in a file, "
                f"give the manifest of the rows as labels."
            )

    def require_single_labels(self, what: str) -> None:
        """Raise if images have several labels at a level, for `what` cannot show them."""
        for side in self.sides:
            if side.labels.ndim == 3:
                several = [level for column, level in enumerate(self.levels) if (side.labels[:, column, 1:] >= 0).any()]
                raise ValueError(
                    f"{what} of {self.name} needs one label for an image at each level, but images have several "
                    f"{in_words(several)}; measure it with `suprank evaluate`."
                )

    def at_levels(self, levels: Sequence[str]) -> RetrievalData:
        """The same images with the labels of these levels, finest first; a level that they lack is refused."""
        if tuple(levels) == self.levels:
            return self
        for unknown in (level for level in levels if level not in self.levels):
            raise ValueError(f"{self.name} has no level {unknown!r}; choose from {', '.join(self.levels) or 'none'}.")
        columns = [self.levels.index(level) for level in levels]
        return self.map_sides(
            lambda side: replace(side, labels=labels_at(side.labels, columns)),
            levels=tuple(levels),
            names={level: self.names[level] for level in levels if level in self.names},
            classes=self.classes or dict(zip(self.levels, np.moveaxis(self.queries.labels, 1, 0), strict=True)),
            defaults=self.defaults.at_levels(levels),
        )

    def numbered_as(self, other: RetrievalData) -> RetrievalData:
        """The same data at the same levels, with the numbers that labels of the same name have in `other`, and new ones."""
        names, tables = dict(self.names), []
        for level in self.levels:
            known = {name: number for number, name in enumerate(other.names.get(level, ()))}
            table = [known.setdefault(name, len(known)) for name in self.names.get(level, ())]
            if level in self.names and level in other.names:
                names[level] = tuple(known)
            elif level in self.names or level in other.names:
                raise ValueError(f"{self.name} and {other.name}: one has names of {level}, the other numbers; give both alike.")
            tables.append(np.array([*table, -1]) if table else None)

        def renumbered(side: Items) -> Items:
            columns = zip(tables, np.moveaxis(side.labels, 1, 0), strict=True)
            return replace(side, labels=np.stack([own if table is None else table[own] for table, own in columns], axis=1))

        return self.map_sides(renumbered, names=names)

    def with_head(self, head: StoredHead, progress: bool | StageProgress = True) -> RetrievalData:
        """The same images after a head, in memory or in a temporary file; a head for other embeddings is refused."""
        made_by = self.origin.made_by
        return self.map_sides(
            lambda side: replace(side, embeddings=apply_head(side.embeddings, head, made_by, progress)),
            name=f"{self.name} with head",
            origin=replace(self.origin, made_by=head_added(made_by, head), head=head.fingerprint()),
        )

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> RetrievalData:
        """Some of the queries, in this order; each ranks the items that it ranked before, without itself."""
        chosen = np.asarray(rows, np.int64)
        whole = self.queries
        if self.gallery is None and whole.ids is None:  # a query is left out by its row, which it now has no more
            whole = replace(whole, ids=np.arange(len(whole)))
        classes = None if self.classes is None else {level: own[chosen] for level, own in self.classes.items()}
        return replace(self, queries=whole.take(chosen), gallery=self.gallery or whole, classes=classes)

    def self_rows(self, query: int) -> NDArray[np.int64]:
        """Rows of the items that are the query itself, and left out of its list: those with its id, or else its own row."""
        if self.queries.ids is None:
            return np.array([query] if self.gallery is None else [], np.int64)
        return self._rows_of_ids.get(self.queries.ids[query], np.empty(0, np.int64))

    @cached_property
    def _rows_of_ids(self) -> dict[Any, NDArray[np.int64]]:
        rows_of_ids: dict[Any, list[int]] = {}
        for row, image_id in enumerate(() if self.items.ids is None else self.items.ids):
            rows_of_ids.setdefault(image_id, []).append(row)
        return {image_id: np.array(rows, np.int64) for image_id, rows in rows_of_ids.items()}

    def match(self, other: RetrievalData) -> NDArray[np.int64]:
        """For each query, its row in `other`, found by its id, or else by path and box, or else by its place.

        Raises a ValueError unless both have the same queries, in the same classes at the levels that both have, and equally
        many items: otherwise their metrics do not mean the same.
        """
        rows = self._match_queries(other)
        if len(self.items) != len(other.items):
            raise ValueError(
                f"{self.name} ranks {len(self.items):,} items and {other.name} {len(other.items):,}, and a shorter list is "
                f"easier; embed the same gallery with both."
            )
        common = self.common_levels(other)
        if not common and (self.levels or other.levels):
            own_levels, other_levels = (in_words(one.levels) or "no level" for one in (self, other))
            raise ValueError(
                f"{self.name} is evaluated at {own_levels} and {other.name} at {other_levels}, so there is nothing to compare; "
                f"name data that share a level."
            )
        own, theirs = (
            query_classes({level: one.queries.labels[:, one.levels.index(level)] for level in common}, len(one.queries))
            for one in (self, other)
        )
        if different := [level for level in common if not same_classes(own[level], theirs[level][rows])]:
            raise ValueError(
                f"{self.name} and {other.name} sort the test images into different classes at {in_words(different)}, so that "
                f"their metrics do not mean the same; embed one manifest with both models."
            )
        return rows

    def common_levels(self, other: RetrievalData) -> tuple[str, ...]:
        """The levels that both have, finest first."""
        return tuple(level for level in self.levels if level in other.levels)

    def comparison_warning(self, other: RetrievalData) -> str | None:
        """A warning if two backbones made the embeddings, or images were read differently; None if not, or if unknown."""
        if self.origin.made_by is None or other.origin.made_by is None:
            return None
        return self.origin.made_by.warning(other.origin.made_by, (self.name, other.name))

    def _match_queries(self, other: RetrievalData) -> NDArray[np.int64]:
        if self.queries.keys is None or other.queries.keys is None:
            own, theirs = list[Any](range(len(self.queries))), list[Any](range(len(other.queries)))
        else:
            own, theirs = list(map(_plain, self.queries.keys)), list(map(_plain, other.queries.keys))
        rows = {key: row for row, key in enumerate(_number_repeats(theirs))}
        numbered = _number_repeats(own)
        missing = [key for key in numbered if key not in rows]
        if missing or len(own) != len(theirs):
            reason = f"{missing[0][0]!r} is in {self.name} only" if missing else f"{len(theirs):,} are in {other.name}"
            raise ValueError(
                f"{self.name} and {other.name} have different queries ({len(own):,} in {self.name}; {reason}), so they cannot "
                f"be compared query by query; embed the same test images with both."
            )
        return np.array([rows[key] for key in numbered], np.int64)


def _no_labels(embeddings: Embeddings) -> NDArray[np.int64]:
    return np.empty((len(embeddings), 0), np.int64)


def _plain(key: Any) -> Any:
    """An id as Python's own text or integer, which an error shows without its numpy type."""
    return key.item() if isinstance(key, np.generic) else key


def _length(ids: Sequence[Any] | NDArray[Any] | None) -> int | None:
    return None if ids is None else len(ids)


def _rows(ids: Sequence[Any] | NDArray[Any], rows: NDArray[np.int64]) -> Sequence[Any] | NDArray[Any]:
    return ids[rows] if isinstance(ids, np.ndarray) else [ids[row] for row in rows.tolist()]


def _number_repeats(keys: Sequence[Any]) -> list[tuple[Any, int]]:
    """Each key with the number of times it occurred before: the same crop may be listed twice."""
    times: Counter[Any] = Counter()
    numbered = []
    for key in keys:
        numbered.append((key, times[key]))
        times[key] += 1
    return numbered


def _label_names(labels: NDArray[np.integer[Any]], names: Sequence[str]) -> list[str | list[str] | None]:
    """The label of each row at a level in words: a name, a list of names, or None."""
    if labels.ndim == 1:
        return [None if label < 0 else names[label] for label in labels.tolist()]
    return [[names[label] for label in row if label >= 0] for row in labels.tolist()]
