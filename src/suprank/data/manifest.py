"""The manifest, the one dataset format: a row per image, with its path, its split and one label column per level."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from suprank.data.columns import PREFIX, SPLITS, check_table, decode_dictionaries, is_label_sets, is_list, label_columns
from suprank.data.tree import NO_PARENT, LabelTree
from suprank.files.atomic import atomic_writer, write_atomically
from suprank.files.binary import open_parquet, read_columns
from suprank.files.label_gaps import name_start
from suprank.files.tables import read_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

VERSION = 1
_META = b"suprank.manifest"
_META_TYPES: dict[str, Any] = {
    "root": str,
    "relative_root": str | None,
    "levels": list,
    "names": dict,
    "label_separator": str | None,
}
_SEPARATORS = ("|", ";", "~", "^", "§")  # of labels in a CSV; the first that no label contains
_SHOWN = 5  # labels that sentences about the tree list before they only count

Columns: TypeAlias = "Mapping[str, Any] | pa.Table"
"""What `Manifest.from_columns` takes: names → sequences, numpy or arrow arrays; or an arrow table."""


class Manifest:
    """A labeled image collection: the path of each image, its split, and its class at every level.

    Columns: `path` (relative to `root`; a file, or `archive.zip::member`, or `archive.tar::member`), `split`, one
    `label_<level>` for each level, finest first, with readable names; optionally `id` (rows with equal ids are one image) and
    `box` (x1, y1, x2, y2 in pixels: what to crop the image to); then whatever else was given.

    The integer id of a class is its index in `names[level]`. Ids are assigned once, in alphabetical order of the names, saved
    with the manifest, and kept by subsets, so that a model's classes mean the same in every split and every later run.

    A label column may hold lists: an image has several labels at that level, or text that `label_separator` divides. `labels`
    are then sets `[images, levels, M]`, padded with −1 to the size M of the largest.

    Example:
        >>> birds = Manifest.from_columns({"path": ["a.jpg", "b.jpg", "c.jpg"], "split": ["train", "train", "test"],
        ...                      "label_species": ["jay", "crow", "wren"],
        ...                      "label_family": ["Corvidae", "Corvidae", "Troglodytidae"]}, root=".")
        >>> birds.levels, birds.splits
        (('species', 'family'), {'train': 2, 'test': 1})
        >>> birds.labels.tolist()
        [[1, 0], [0, 0], [2, 1]]
        >>> birds.names["species"]
        ('crow', 'jay', 'wren')
        >>> birds.split("test").labels.tolist()
        [[2, 1]]
    """

    def __init__(self, table: pa.Table, root: Path, levels: tuple[str, ...]) -> None:
        """For internal use; call `from_columns` or `read`. Label columns are dictionary arrays, all with the same ids."""
        self.table, self.root, self.levels = table, root, levels

    @classmethod
    def from_columns(
        cls,
        columns: Columns,
        *,
        root: str | os.PathLike[str],
        levels: Sequence[str] | None = None,
        about: str = "the manifest",
        names: Mapping[str, Sequence[str]] | None = None,
        fill_gaps: bool = False,
        label_separator: str | None = None,
    ) -> Manifest:
        """Check the columns and make a manifest of them; errors call it `about`.

        `levels`, finest first, names the columns `label_<level>` to use; by default all of them, in their order. `levels=()`
        makes an unlabeled manifest. `names` gives ids that were assigned before. A label cell such as `dog|person` is two
        labels if `label_separator="|"` says so, and otherwise one name.

        Refused are a table without rows; a path that is blank, absolute or contains `..`; a split not in `SPLITS`; a blank
        label, except in `distractor` rows; a label whose parent is blank; a blank id; a box that is not x1 < x2, y1 < y2.

        `fill_gaps` puts a placeholder where a row has a blank between two labels, one for each class below it: lynxes with a
        family and no genus get the genus `(no genus) Felidae: lynx`, which is no other species' genus.
        """
        table = columns if isinstance(columns, pa.Table) else _table(columns, about)
        chosen = label_columns(table.column_names, levels, about)
        table = check_table(table, chosen, about, fill_gaps=fill_gaps, label_separator=label_separator)
        for column in chosen:
            given = None if names is None else names.get(column.removeprefix(PREFIX))
            index = table.column_names.index(column)
            encode = _encode_sets if is_label_sets(table[column].type) else _encode_labels
            table = table.set_column(index, column, encode(table[column].combine_chunks(), given, column, about))
        return cls(table, Path(root), tuple(column.removeprefix(PREFIX) for column in chosen))

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        levels: Sequence[str] | None = None,
        fill_gaps: bool = False,
        label_separator: str | None = None,
    ) -> Manifest:
        """Read a manifest from a .parquet or .csv file.

        Ids, levels and root are those it was saved with: in the metadata of a Parquet file, or in `<name>.csv.json` beside a
        CSV. A CSV without that file gets new ids. `root` overrides where the images are; if the saved root does not exist, it
        is looked for relative to the manifest. `levels` selects some of the levels. `fill_gaps` is that of `from_columns`.
        `label_separator` is what stands between the labels of an image that has several at a level; one that was saved with
        the manifest need not be given.
        """
        path = Path(path)
        if path.suffix.lower() not in (".parquet", ".csv"):
            raise ValueError(f"{path}: a manifest is a .parquet or .csv file, and this one ends in {path.suffix!r}.")
        if not path.is_file():
            problem = "is a folder" if path.is_dir() else f"does not exist (the working folder is {Path.cwd()})"
            raise FileNotFoundError(f"{path}: the manifest {problem}; make one with `suprank data import`.")
        table, meta = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
        if levels is None and "levels" in meta:
            levels = meta["levels"]
        images = Path(root) if root is not None else _find_root(meta, path.parent)
        about, names = str(path), meta.get("names")
        separator = meta.get("label_separator") if label_separator is None else label_separator
        return cls.from_columns(
            table, root=images, levels=levels, about=about, names=names, fill_gaps=fill_gaps, label_separator=separator
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .parquet file, or a .csv file with a .csv.json beside it for ids, levels and root. Writes are atomic."""
        path = Path(path)
        if path.suffix.lower() not in (".parquet", ".csv"):
            raise ValueError(f"{path}: a manifest is saved as .parquet or .csv, not as {path.suffix or 'no extension'!r}.")
        path.parent.mkdir(parents=True, exist_ok=True)
        content = self._meta(path.parent)
        if path.suffix.lower() == ".csv" and any(is_label_sets(field.type) for field in self.table.schema):
            content["label_separator"] = self._free_separator()
        meta = json.dumps(content, ensure_ascii=False)
        if path.suffix.lower() == ".csv":
            text = _to_text(self.table, content.get("label_separator"))
            write_atomically(path.with_name(path.name + ".json"), meta.encode())
            with atomic_writer(path) as file:
                pyarrow.csv.write_csv(text, file)
        else:
            with atomic_writer(path) as file:
                pq.write_table(self.table.replace_schema_metadata({_META: meta}), file, compression="zstd")

    def __len__(self) -> int:
        return self.table.num_rows

    def __repr__(self) -> str:
        splits = ", ".join(f"{count:,} {split}" for split, count in self.splits.items())
        levels = ", ".join(f"{len(_dictionary(self.table[PREFIX + level])):,} {level}" for level in self.levels)
        return f"Manifest({splits}; {levels or 'unlabeled'}; root {self.root})"

    @property
    def paths(self) -> pa.ChunkedArray:
        """The column `path`, in one chunk."""
        return self.table["path"]

    @cached_property
    def keys(self) -> list[str]:
        """A text by which each image is recognized in another manifest: its path, followed by its box if it has one."""
        paths = self.paths.to_pylist()
        if "box" not in self.table.column_names:
            return paths
        return [path_key(path, box_text(box)) for path, box in zip(paths, self.table["box"].to_pylist(), strict=True)]

    @cached_property
    def splits(self) -> dict[str, int]:
        """The number of images of each split, in the order of `SPLITS`; empty splits are left out."""
        counted = {row["values"]: row["counts"] for row in pc.value_counts(self.table["split"]).to_pylist()}
        return {split: counted[split] for split in SPLITS if split in counted}

    @cached_property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Level → the name of each id. A subset has all names of the manifest it is from, so that ids stay the same."""
        return {level: tuple(_dictionary(self.table[PREFIX + level]).to_pylist()) for level in self.levels}

    @cached_property
    def has_label_sets(self) -> bool:
        """Whether some of these images have several labels at a level, so that `labels` are sets."""
        return any(self._most_labels(level) > 1 for level in self.levels)

    def _most_labels(self, level: str) -> int:
        """The most labels that an image has at a level."""
        column = self.table[PREFIX + level]
        return (pc.max(pc.list_value_length(column)).as_py() or 0) if is_label_sets(column.type) else 1

    def require_single_labels(
        self,
        what: str,
        instead: str = "use a manifest with one label at each level",
        *,
        levels: Sequence[str] | None = None,
    ) -> None:
        """Raise if images have several labels at one of the levels, for `what` cannot use them; `instead` says what to do."""
        for level in self.levels if levels is None else levels:
            if self._most_labels(level) > 1:
                raise ValueError(
                    f"{what} needs one label for an image at each level, but images have several {level}; {instead}."
                )

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Label ids `[images, levels]`, finest first; −1 for a blank label.

        If images have several labels at a level: `[images, levels, M]`, the sets ascending, padded with −1.
        """
        return self.labels_at(self.levels)

    def labels_at(self, levels: Sequence[str]) -> NDArray[np.int64]:
        """The `labels` of some of the levels: sets only if images have several labels at one of these."""
        columns = [self.table[PREFIX + level].chunk(0) for level in levels]
        if any(is_label_sets(column.type) for column in columns):
            sets = self._label_sets(columns)
            return sets[..., 0] if sets.shape[2] == 1 else sets
        if not columns:
            return np.empty((len(self), 0), np.int64)
        return np.stack([np.asarray(pc.fill_null(column.indices, -1), np.int64) for column in columns], axis=1)

    def _label_sets(self, columns: Sequence[pa.Array]) -> NDArray[np.int64]:
        lengths, members = [], []
        for column in columns:
            lists = is_label_sets(column.type)
            lengths.append(np.asarray(pc.fill_null(pc.list_value_length(column), 0) if lists else column.is_valid(), np.int64))
            members.append(np.asarray(column.flatten().indices if lists else column.indices.drop_null(), np.int64))
        labels = np.full((len(self), len(columns), max(1, *(int(length.max(initial=0)) for length in lengths))), -1, np.int64)
        for level, (length, member) in enumerate(zip(lengths, members, strict=True)):
            rows = np.repeat(np.arange(len(self)), length)
            labels[rows, level, np.arange(len(rows)) - np.repeat(np.cumsum(length) - length, length)] = member
        return labels

    def take(self, rows: NDArray[Any] | Sequence[int]) -> Manifest:
        """Select rows by a boolean mask, or by row numbers in their order; ids and names stay the same."""
        chosen = np.asarray(rows)
        if chosen.dtype == np.bool_ and chosen.shape != (len(self),):
            raise ValueError(
                f"the mask has shape {list(chosen.shape)}, but the manifest has {len(self):,} rows; give one value for each."
            )
        chosen = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.int64)
        return Manifest(_combine_chunks(self.table.take(pa.array(chosen))), self.root, self.levels)

    def split(self, *names: str) -> Manifest:
        """Select the images of these splits, in the order of the manifest."""
        unknown = [name for name in names if name not in self.splits]
        if unknown or not names:
            choices = ", ".join(self.splits)
            raise ValueError(
                f"there is no split {unknown[0]!r} here; choose from {choices}." if unknown else f"name a split: {choices}."
            )
        mask = pc.is_in(self.table["split"], value_set=pa.array(names))
        return self.take(np.asarray(mask))

    def join(self, *others: Manifest) -> Manifest:
        """The rows of all, with the columns that all have; if their roots differ, the new root contains all of them."""
        if not others:
            return self
        every = (self, *others)
        roots = [one.root.resolve() for one in every]
        root = roots[0] if len(set(roots)) == 1 else Path(os.path.commonpath(roots))
        columns = [name for name in self.table.column_names if all(name in one.table.column_names for one in others)]
        tables = []
        for own, one in zip(roots, every, strict=True):
            inside = "" if own == root else f"{own.relative_to(root).as_posix()}/"
            paths = pa.array([inside + path for path in one.paths.to_pylist()])
            table = one.table.select(columns)
            tables.append(decode_dictionaries(table.set_column(columns.index("path"), "path", paths)))
        levels = [level for level in self.levels if PREFIX + level in columns]
        return Manifest.from_columns(pa.concat_tables(tables, promote_options="permissive"), root=root, levels=levels)

    def with_columns(self, **columns: Any) -> Manifest:
        """Replace or add columns, and check the manifest again. Replaced labels get new ids."""
        table = self.table
        for name, values in columns.items():
            column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
            index = table.column_names.index(name) if name in table.column_names else None
            table = table.append_column(name, column) if index is None else table.set_column(index, name, column)
        known = {level: names for level, names in self.names.items() if PREFIX + level not in columns}
        new = tuple(name.removeprefix(PREFIX) for name in columns if name.startswith(PREFIX))
        levels = (*self.levels, *(level for level in new if level not in self.levels))
        return Manifest.from_columns(table, root=self.root, levels=levels, names=known)

    def two_parents(self) -> list[str]:
        """Sentences that name the labels with several parents; none if the levels form a tree."""
        sentences = []
        for fine, coarse in zip(range(len(self.levels)), range(1, len(self.levels)), strict=False):
            child, parent = self._edges(fine, coarse)
            if self.has_label_sets:
                sentences += self._without_parent(fine, child)
                continue
            several = np.flatnonzero(np.bincount(child) > 1)
            names, above = self.names[self.levels[fine]], self.names[self.levels[coarse]]
            for one in several[:_SHOWN]:
                parents = " and ".join(repr(above[other]) for other in parent[child == one][:3])
                sentences.append(f"{self.levels[fine]} {names[one]!r} stands under {self.levels[coarse]} {parents}")
            if len(several) > _SHOWN:
                sentences.append(f"... and {len(several) - _SHOWN:,} more labels of {self.levels[fine]} have several parents")
        return sentences

    def placeholders(self) -> dict[str, int]:
        """Level → number of classes of these rows that `fill_gaps` put in place of blanks; levels without any are left out."""
        found = {}
        for column, level in enumerate(self.levels):
            present = np.unique(self.labels[:, column])
            names = self.names[level]
            found[level] = sum(names[one].startswith(name_start(level)) for one in present[present >= 0].tolist())
        return {level: number for level, number in found.items() if number}

    def to_tree(self) -> LabelTree:
        """The label tree of these rows; refused if a label has two parents, or if there are no labels."""
        if not self.levels:
            raise ValueError("this manifest has no labels, and so no label tree; add columns label_<level>, finest first.")
        problems = self.two_parents()
        if problems:
            raise ValueError(
                "the levels are not a tree: "
                + "; ".join(problems)
                + ". Rename the label under one of them, or leave out a level."
            )
        self._check_known_parents()
        sizes = [len(self.names[level]) for level in self.levels]
        parents = []
        for level in range(len(self.levels) - 1):
            child, parent = self._edges(level, level + 1)
            parents.append(np.full(sizes[level], NO_PARENT, np.int64))
            parents[-1][child] = parent
        labels = self.labels
        images = tuple(
            np.bincount(labels[:, level][labels[:, level] >= 0], minlength=size).astype(np.int64)
            for level, size in enumerate(sizes)
        )
        return LabelTree(self.levels, tuple(self.names[level] for level in self.levels), tuple(parents), images)

    def _without_parent(self, fine: int, child: NDArray[np.int64]) -> list[str]:
        """Sentences that name the labels that are not among `child`, those with a parent."""
        level, above = self.levels[fine], self.levels[fine + 1]
        alone = np.setdiff1d(self.labels[:, fine][self.labels[:, fine] >= 0], child)
        names = self.names[level]
        sentences = [f"images of {level} {names[one]!r} have no {above} in common" for one in alone[:_SHOWN]]
        if len(alone) > _SHOWN:
            sentences.append(f"... nor have those of {len(alone) - _SHOWN:,} more labels of {level}")
        return sentences

    def _check_known_parents(self) -> None:
        """Refuse images with several labels if it cannot be known which of their parents belongs to which label."""
        for fine, (level, above) in enumerate(zip(self.levels[:-1], self.levels[1:], strict=True)):
            child, parent = self._edges(fine, fine + 1)
            for one in np.flatnonzero(np.bincount(child) > 1)[:1]:
                parents = " and ".join(repr(self.names[above][other]) for other in parent[child == one][:3])
                raise ValueError(
                    f"the parent of {level} {self.names[level][one]!r} is unknown: all its images have the {above} {parents}; "
                    f"add an image that has one of them, or leave out a level."
                )

    def _edges(self, fine: int, coarse: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The distinct (child, parent) pairs of two levels, sorted by child.

        Of images with several labels, the pairs in which all images of the child have the parent too.
        """
        labels = self.labels
        if self.has_label_sets:
            return _common_parents(labels[:, fine], labels[:, coarse], len(self.names[self.levels[coarse]]))
        present = labels[:, fine] >= 0
        child, parent = labels[present, fine], labels[present, coarse]
        parent_of = np.full(len(self.names[self.levels[fine]]), NO_PARENT, labels.dtype)
        parent_of[child] = parent
        if (parent_of[child] == parent).all():  # one parent each, as in a tree: no need to sort the rows
            classes = np.flatnonzero(parent_of != NO_PARENT)
            return classes, parent_of[classes]
        width = len(self.names[self.levels[coarse]])
        pairs = np.unique(child * width + parent)
        return pairs // width, pairs % width

    def _free_separator(self) -> str:
        """A character that is in no label, to stand between the labels of an image in a CSV."""
        everything = [name for names in self.names.values() for name in names]
        for separator in _SEPARATORS:
            if not any(separator in name for name in everything):
                return separator
        raise ValueError(
            f"labels contain each of {' '.join(_SEPARATORS)}, so none can stand between the labels of an image in a CSV; save "
            f"the manifest as .parquet."
        )

    def _meta(self, folder: Path) -> dict[str, Any]:
        root = self.root.resolve()
        try:
            relative: str | None = Path(os.path.relpath(root, folder.resolve())).as_posix()
        except ValueError:  # another drive
            relative = None
        return {
            "version": VERSION,
            "root": str(root),
            "relative_root": relative,
            "levels": list(self.levels),
            "names": {level: list(names) for level, names in self.names.items()},
        }


def _table(columns: Mapping[str, Any], about: str) -> pa.Table:
    arrays = {
        name: values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values) for name, values in columns.items()
    }
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{about}: columns have different lengths ({', '.join(f'{k} {v:,}' for k, v in lengths.items())}).")
    return pa.table(arrays)


def _combine_chunks(table: pa.Table) -> pa.Table:
    return table.combine_chunks() if table.num_rows else table


def _dictionary(column: pa.ChunkedArray) -> pa.Array:
    """The names of a label column's ids."""
    chunk = column.chunk(0)
    return (chunk.values if is_label_sets(chunk.type) else chunk).dictionary


def _common_parents(
    child: NDArray[np.int64], parent: NDArray[np.int64], width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pairs of a class in `child` and one in `parent` that all rows of the former have, from sets `[rows, M]`."""
    images = np.bincount(child[child >= 0], minlength=1)
    keys = child[:, :, None] * width + parent[:, None, :]
    pairs, counts = np.unique(keys[(child >= 0)[:, :, None] & (parent >= 0)[:, None, :]], return_counts=True)
    pairs = pairs[counts == images[pairs // width]]
    return pairs // width, pairs % width


def _encode_sets(column: pa.ListArray, given: Sequence[str] | None, name: str, about: str) -> pa.ListArray:
    """Lists of labels as sets of ids: ascending, each once."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int64)
    members = _encode_labels(column.flatten(), given, name, about)
    rows, codes = np.repeat(np.arange(len(lengths)), lengths), np.asarray(members.indices, np.int64)
    rows, codes = np.divmod(np.unique(rows * max(1, len(members.dictionary)) + codes), max(1, len(members.dictionary)))
    offsets = np.append(0, np.cumsum(np.bincount(rows, minlength=len(lengths))))
    values = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), members.dictionary)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=pa.array(lengths == 0))


def _encode_labels(coded: pa.DictionaryArray, given: Sequence[str] | None, name: str, about: str) -> pa.DictionaryArray:
    """The labels as ids into the given names, or into those that occur, in alphabetical order."""
    if given is None:  # a dictionary may hold names that do not occur
        occurring = coded.dictionary.take(pc.unique(coded.indices).drop_null())
        names = pc.unique(occurring.take(pc.sort_indices(occurring)))
    else:
        names = pa.array(given, pa.string())
    codes_of_names = pc.index_in(coded.dictionary, value_set=names)
    codes = codes_of_names.take(coded.indices).cast(pa.int32())
    unknown = pc.and_(pc.is_null(codes), pc.is_valid(coded))
    if pc.any(unknown).as_py():
        first = coded.filter(unknown)[0].as_py()
        raise ValueError(
            f"{about}: {name} holds {first!r}, which is not among the names saved with it; give the rows their old labels, or "
            f"assign new ids: for a CSV, delete the .csv.json beside it."
        )
    return pa.DictionaryArray.from_arrays(codes, names)


def _read_parquet(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    with open_parquet(path) as file:
        schema = file.schema_arrow
        labels = [field.name for field in schema if field.name.startswith(PREFIX) and not pa.types.is_nested(field.type)]
    # Not `pq.read_table`, whose chunks of 131,072 rows each have a dictionary of all names to unify.
    with open_parquet(path, read_dictionary=labels, memory_map=True) as file:
        table = read_columns(file)
    return table.replace_schema_metadata(None), _parse_meta((schema.metadata or {}).get(_META, b"{}"), path)


def _read_csv(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    beside = path.with_name(path.name + ".json")
    return read_table(path).table, _parse_meta(beside.read_bytes() if beside.is_file() else b"{}", path)


def _parse_meta(text: bytes, path: Path) -> dict[str, Any]:
    """The metadata that was saved with the columns, checked: the file may come from anybody."""
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError):
        meta = None
    if not isinstance(meta, dict) or not all(_fits(meta[key], kind) for key, kind in _META_TYPES.items() if key in meta):
        raise ValueError(f"{path}: the ids, levels and root saved with it are damaged; import it again.")
    if meta.get("version", VERSION) != VERSION:
        raise ValueError(
            f"{path} has version {meta['version']} of the format, and this suprank reads {VERSION}; update suprank."
        )
    return meta


def _fits(value: Any, kind: type) -> bool:
    """Whether a value has this type; dictionaries are of lists, and lists of distinct strings."""
    if kind is dict and isinstance(value, dict):
        return all(_fits(names, list) for names in value.values())
    if kind is list and isinstance(value, list):
        return all(isinstance(name, str) for name in value) and len(set(value)) == len(value)
    return isinstance(value, kind)


def _find_root(meta: Mapping[str, Any], folder: Path) -> Path:
    candidates = [Path(meta["root"])] if "root" in meta else []
    if meta.get("relative_root"):
        candidates.append(folder / meta["relative_root"])
    return next((root for root in candidates if os.path.isdir(root)), folder)  # noqa: PTH112 - a name may be too long


def _to_text(table: pa.Table, separator: str | None) -> pa.Table:
    """The table for CSV: labels as names, several of them with `separator` between them, boxes as four numbers in text."""
    for index, field in enumerate(table.schema):
        column = table.column(index)
        if pa.types.is_dictionary(field.type):
            table = table.set_column(index, field.name, column.cast(pa.string()))
        elif is_label_sets(field.type):
            joined = pc.binary_join(column.cast(pa.list_(pa.string())), separator)
            table = table.set_column(index, field.name, joined)
        elif is_list(field.type):
            kind = field.type.value_type
            if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
                raise ValueError(
                    f"column {field.name!r} holds lists, which a CSV cannot hold; save the manifest as .parquet, or leave the "
                    f"column out."
                )
            text = [None if box is None else box_text(box) for box in column.to_pylist()]
            table = table.set_column(index, field.name, pa.array(text, pa.string()))
    return table


def box_text(box: Sequence[float] | None) -> str:
    """A box as a manifest in CSV writes it; empty for none.

    Example:
        >>> box_text([0.0, 1.5, 20.0, 30.0]), box_text(None)
        ('0 1.5 20 30', '')
    """
    return "" if box is None else " ".join(f"{number:.9g}" for number in box)


def path_key(path: str, box: str) -> str:
    """One of the `keys` of a manifest, for an image whose box is written by `box_text`."""
    return f"{path} [{box}]" if box else path
