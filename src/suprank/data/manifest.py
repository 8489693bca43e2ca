"""The manifest, the one dataset format: a row per image, with its path, its split and one label column per level."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from suprank.data.columns import (
    PREFIX,
    SPLITS,
    check_names,
    check_table,
    decode_dictionaries,
    is_label_sets,
    is_list,
    label_columns,
)
from suprank.data.tree import NO_PARENT, LabelTree
from suprank.files.atomic import atomic_writer, write_atomically
from suprank.files.binary import open_parquet, read_columns
from suprank.files.labels import clean_labels, name_start, parent_pairs, unclear_parents
from suprank.files.tables import label_column, read_table

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
        where: Callable[[int], str] | None = None,
    ) -> Manifest:
        """Check the columns and make a manifest of them; errors call it `about`, and a row `where(row)`.

        `levels`, finest first, names the columns `label_<level>` to use; by default all of them, in their order. `levels=()`
        makes an unlabeled manifest. `names` gives ids that were assigned before. A label cell such as `dog|person` is two
        labels if `label_separator="|"` says so, and otherwise one name.

        Refused are a table without rows; a path that is blank, absolute or contains `..`; a split not in `SPLITS`; a blank
        label, except in `distractor` rows; a label whose parent is blank; a blank id; a box that is not x1 < x2, y1 < y2.

        `fill_gaps` puts a placeholder where a row has a blank between two labels, one for each class below it: lynxes with a
        family and no genus get the genus `(no genus) Felidae: lynx`, which is no other species' genus.
        """
        table = columns if isinstance(columns, pa.Table) else _table(columns, about)
        place = where or (lambda row: f"{about}, row {row}")
        chosen = {column.removeprefix(PREFIX): column for column in label_columns(table.column_names, levels, about)}
        check_names(table, about)
        known = {level: names[level] for level in chosen if names and level in names}
        labels = clean_labels(
            {level: label_column(table[column], column, about) for level, column in chosen.items()},
            place,
            separator=label_separator,
            fill_gaps=fill_gaps,
            names=known,
            saved=True,
        )
        for level, given in known.items():
            if not fill_gaps and len(labels[level].names) > len(given):
                raise ValueError(
                    f"{about}: {level} holds {labels[level].names[len(given)]!r}, which is not among the names saved with it; "
                    f"give the rows their old labels, or assign new ids: for a CSV, delete the .csv.json beside it."
                )
        return cls(check_table(table, labels, about, place), Path(root), tuple(chosen))

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        levels: Sequence[str] | None = None,
    ) -> Manifest:
        """Read a manifest from a .parquet or .csv file.

        Ids, levels and root are those it was saved with: in the metadata of a Parquet file, or in `<name>.csv.json` beside a
        CSV. A CSV without that file gets new ids. `root` overrides where the images are; if the saved root does not exist, it
        is looked for relative to the manifest. `levels` selects some of the levels.
        """
        path = Path(path)
        if not path.is_dir() and path.suffix.lower() not in (".parquet", ".csv"):
            raise ValueError(f"{path}: a manifest is a .parquet or .csv file, and this one ends in {path.suffix!r}.")
        if not path.is_file():
            problem = "is a folder" if path.is_dir() else f"does not exist (the working folder is {Path.cwd()})"
            raise FileNotFoundError(f"{path}: the manifest {problem}; make one with `suprank data import`.")
        table, meta = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
        if levels is None and "levels" in meta:
            levels = meta["levels"]
        images = Path(root) if root is not None else _find_root(meta, path.parent)
        return cls.from_columns(
            table,
            root=images,
            levels=levels,
            about=str(path),
            names=meta.get("names"),
            label_separator=meta.get("label_separator"),
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
            names = [name for name in self.table.column_names if name not in ("path", "id")]  # each has a value of its own
            coded = [*names, *(f"{name}.list.element" for name in names)]
            with atomic_writer(path) as file:
                table = self.table.replace_schema_metadata({_META: meta})
                pq.write_table(table, file, compression="zstd", use_dictionary=coded)

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

    @property
    def has_images(self) -> bool:
        """Whether the paths are those of images: in a dataset of embeddings they are rows of a column of vectors."""
        file, _, member = self.paths[0].as_py().rpartition("::")
        column = member.rpartition("/")[0]
        return not file or column not in self.table.column_names or not is_list(self.table[column].type)

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
        labels = self.labels
        for fine, (level, above) in enumerate(itertools.pairwise(self.levels)):
            unclear = list(unclear_parents(labels[:, fine], labels[:, fine + 1]))
            for one, parents in unclear[:_SHOWN]:
                name = f"{level} {self.names[level][one]!r}"
                some = " and ".join(repr(self.names[above][other]) for other in parents[:3])
                alone = f"images of {name} have no {above} in common"
                sentences.append(f"{name} stands under {above} {some}" if parents else alone)
            if len(unclear) > _SHOWN:
                problem = f"no {above} in common" if self.has_label_sets else "several parents"
                sentences.append(f"... and {len(unclear) - _SHOWN:,} more labels of {level} have {problem}")
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
        sizes, labels = [len(self.names[level]) for level in self.levels], self.labels
        parents = []
        for level in range(len(self.levels) - 1):
            child, parent = parent_pairs(labels[:, level], labels[:, level + 1])
            parents.append(np.full(sizes[level], NO_PARENT, np.int64))
            parents[-1][child] = parent
        images = tuple(
            np.bincount(labels[:, level][labels[:, level] >= 0], minlength=size).astype(np.int64)
            for level, size in enumerate(sizes)
        )
        return LabelTree(self.levels, tuple(self.names[level] for level in self.levels), tuple(parents), images)

    def _check_known_parents(self) -> None:
        """Refuse images with several labels if it cannot be known which of their parents belongs to which label."""
        for fine, (level, above) in enumerate(itertools.pairwise(self.levels)):
            child, parent = parent_pairs(self.labels[:, fine], self.labels[:, fine + 1])
            for one in np.flatnonzero(np.bincount(child) > 1)[:1]:
                parents = " and ".join(repr(self.names[above][other]) for other in parent[child == one][:3])
                raise ValueError(
                    f"the parent of {level} {self.names[level][one]!r} is unknown: all its images have the {above} {parents}; "
                    f"add an image that has one of them, or leave out a level."
                )

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


def _read_parquet(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    # Not `pq.read_table`, whose chunks of 131,072 rows each have a dictionary of all names to unify.
    with open_parquet(path, memory_map=True) as file:
        schema = file.schema_arrow
        labels = [field.name for field in schema if field.name.startswith(PREFIX) and not pa.types.is_nested(field.type)]
        table = read_columns(file, dictionaries=labels)
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
