"""Labels as text, in data frames and in files → integers, for `evaluate` and for losses."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from suprank.evaluation.arguments import check_level_names
from suprank.evaluation.embedding_files import check_file
from suprank.files.binary import open_npy, open_parquet, read_columns
from suprank.files.labels import LabelColumn, check_tree, clean_labels, stack_labels
from suprank.files.reading import reading
from suprank.files.tables import Table, holds_labels, label_column, missing_column, read_table

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from numpy.typing import NDArray
    from torch import Tensor

PREFIX = "label_"
"""The prefix of a manifest's label columns; the name of the level follows it."""

NO_LABELS = ("path", "id", "split", "box")
"""Columns of a manifest that are never labels."""


class EncodedLabels(NamedTuple):
    """Integer labels of a table: `[N, L]`, or sets `[N, L, M]`; and the names of the classes of each level, by their code."""

    labels: Tensor
    names: dict[str, tuple[str, ...]]


def encode_labels(
    table: Any,
    levels: Sequence[str] | None = None,
    *,
    names: Mapping[str, Sequence[str]] | None = None,
    fill_gaps: bool = False,
    label_separator: str | None = None,
) -> EncodedLabels:
    """The labels of a table as integers, which a loss and `evaluate` take, and the names of the classes.

    `table` is a data frame (pandas, polars, pyarrow) or a dictionary of columns, of which `levels` are chosen, finest first (by
    default those that begin with `label_`, or else all); a Series; or text, `[N]` or `[N, L]`, whose columns `levels` names.
    Classes are numbered in alphabetical order. A blank cell, None and NaN are −1, no label. `names` are those of another
    table: its classes keep their codes, and new ones follow.

    Labels must form a tree: every class has one parent at the next level. `fill_gaps` puts a placeholder between two labels.
    A row has several labels at a level if its cell is a list, or text that `label_separator` divides: `dog|person`.

    Example:
        >>> labels, names = encode_labels({"species": ["jay", "crow"], "family": ["Corvidae", "Corvidae"]})
        >>> labels.tolist(), names
        ([[1, 0], [0, 0]], {'species': ('crow', 'jay'), 'family': ('Corvidae',)})
        >>> encode_labels(["wren", "jay"], ["species"], names={"species": ["jay"]})
        EncodedLabels(labels=tensor([[1],
                [0]]), names={'species': ('jay', 'wren')})
    """
    (labels,), found = encode_tables(
        [table], levels, names=names, fill_gaps=fill_gaps, label_separator=label_separator, about=["labels"]
    )
    return EncodedLabels(torch.from_numpy(labels), found)


def encode_tables(
    tables: Sequence[Any],
    levels: Sequence[str] | None = None,
    *,
    without: Iterable[str] = (),
    names: Mapping[str, Sequence[str]] | None = None,
    fill_gaps: bool = False,
    label_separator: str | None = None,
    about: Sequence[str] = ("labels", "gallery_labels"),
) -> tuple[list[NDArray[np.int64]], dict[str, tuple[str, ...]]]:
    """The labels of several tables, in which a class has the same code, and the names of the classes.

    Tables are those that `encode_labels` takes, or read from files. Columns `without` are no labels.
    """
    sources = [_columns(table, name, levels, label_separator) for table, name in zip(tables, about, strict=False)]
    chosen = _label_columns(sources[0], levels, set(without))
    read = [{level: source.read(source.full_name(column)) for level, column in chosen.items()} for source in sources]
    columns = {level: reduce(LabelColumn.followed_by, [own[level] for own in read]) for level in chosen}
    rows = [len(next(iter(own.values()))) for own in read]
    ends = np.cumsum(rows)

    def where(row: int) -> str:
        number = int(np.searchsorted(ends, row, "right"))
        return sources[number].where(row - int(ends[number]) + rows[number])

    cleaned = clean_labels(columns, where, fill_gaps=fill_gaps, names=names)
    labels = stack_labels([*cleaned.values()], int(ends[-1]))
    found = {level: tuple(one.names) for level, one in cleaned.items()}
    check_tree([labels], [*found], name=lambda level, label: repr([*found.values()][level][label]), where=where)
    return np.split(labels, ends[:-1]), found


def integer_labels(
    labels: Any, gallery_labels: Any, levels: Sequence[str] | None
) -> tuple[Any, Any, Sequence[str] | None, dict[str, tuple[str, ...]] | None]:
    """Labels of queries and gallery as integers, the names of their levels, and those of their classes, where they have some.

    Integer arrays stay as they are.
    """
    given = [labels] if gallery_labels is None else [labels, gallery_labels]
    tables = list(map(is_table, given))
    if not any(tables):
        return labels, gallery_labels, levels, None
    if not all(tables):
        raise TypeError(
            "labels and gallery_labels are of two kinds, one with names and one of integers; give both as names, or encode "
            "both with encode_labels."
        )
    encoded, names = encode_tables(given, levels)
    return encoded[0], encoded[1] if len(encoded) > 1 else None, tuple(names), names


def is_table(labels: Any) -> bool:
    """Whether these are labels for `encode_labels`, and not integers."""
    if labels is None or isinstance(labels, torch.Tensor):
        return False
    if isinstance(labels, Table | Mapping) or any(hasattr(labels, name) for name in ("columns", "column_names", "to_list")):
        return True
    try:
        return np.asarray(labels).dtype.kind in "OUST"
    except ValueError:  # lists of different lengths
        return False


class FileLabels(NamedTuple):
    """Labels of queries and, if there is one, of the gallery, from files: integers `[N, L]`, or sets `[N, L, M]`.

    `names` are those of the classes of each level; of integers in .npy files there are none. `classes` are the labels of the
    queries at all levels of the file, if not all were asked for.
    """

    labels: list[NDArray[np.integer[Any]]]
    levels: tuple[str, ...]
    names: dict[str, tuple[str, ...]] | None
    ids: list[list[str]] | None
    classes: dict[str, NDArray[np.int64]] | None


def read_label_files(
    paths: Sequence[str | os.PathLike[str]],
    levels: Sequence[str] = (),
    *,
    id_column: str | None = None,
    fill_gaps: bool = False,
    label_separator: str | None = None,
) -> FileLabels:
    """Read one or two files with a row for each embedding: .csv, .tsv, .parquet, or integers in .npy, which stay in the file.

    `levels` are the columns with labels, finest first: by default those that begin with `label`, or else the only one beside
    path, id, split, box and `id_column`.
    """
    read = [_read(Path(path)) for path in paths]
    arrays = [one for one in read if isinstance(one, np.ndarray)]
    if arrays:
        if len(arrays) < len(read) or id_column is not None or fill_gaps or label_separator is not None:
            raise ValueError(
                f"{' and '.join(map(str, paths))}: a .npy file has integers, no names and no ids; leave out id_column, "
                f"fill_gaps and label_separator, and give labels of queries and gallery in one kind of file."
            )
        columns = [one[:, None] if one.ndim == 1 else one for one in arrays]
        return FileLabels(columns, check_level_names(levels or None, columns[0].shape[1]), None, None, None)
    tables = [one for one in read if isinstance(one, Table)]
    ids = None if id_column is None else [_item_ids(table, id_column) for table in tables]
    how: dict[str, Any] = {
        "without": [] if id_column is None else [id_column],
        "fill_gaps": fill_gaps,
        "label_separator": label_separator,
    }
    labels, names = encode_tables(tables, levels, **how)
    classes = None
    with suppress(ValueError, TypeError), warnings.catch_warnings(action="ignore"):  # of columns that nobody asked for
        (every,), known = encode_tables(tables[:1], **how) if levels else ([labels[0]], names)
        if names.keys() < known.keys():
            classes = dict(zip(known, np.moveaxis(every, 1, 0), strict=True))
    return FileLabels([*labels], tuple(names), names, ids, classes)


def _read(path: Path) -> Table | NDArray[np.integer[Any]]:
    check_file(path, str(path))
    with reading(path, "table of labels"):
        if path.suffix.lower() == ".npy":
            array = open_npy(path)
            if array.dtype.kind not in "iu":
                raise TypeError(f"{path} holds {array.dtype}, but labels are integers; is this a file of embeddings?")
            return array
        if path.suffix.lower() != ".parquet":
            return read_table(path)
        with open_parquet(path) as file:  # of embeddings too: not all of its columns
            fields = {column.name: column.type for column in file.schema_arrow if column.name != "__index_level_0__"}
            names = [name for name, kind in fields.items() if holds_labels(kind)]
            if not names:
                others = ", ".join(f"{name} ({kind})" for name, kind in fields.items()) or "none at all"
                raise ValueError(f"{path} has no column of text or whole numbers (its columns: {others}); labels are these.")
            return Table(str(path), read_columns(file, names))


def _item_ids(table: Table, column: str) -> list[str]:
    """The item ids in a column, as text: two rows with the same id are the same item. A row without one is refused."""
    ids = label_column(table.column(column), column, table.about).cleaned(column, table.where)
    for row in np.flatnonzero(ids.codes < 0)[:1].tolist():
        raise ValueError(
            f"{table.where(row)}: there is no {column!r} in {int((ids.codes < 0).sum())} of {len(ids)} rows, which would all "
            f"count as the same item; fill it in."
        )
    return [ids.names[code] for code in ids.codes.tolist()]


def labels_at(labels: NDArray[Any], columns: Sequence[int]) -> NDArray[Any]:
    """Some columns of labels; of sets `[N, L, M]` they are plain, `[N, L]`, if no row has several labels in one of them.

    Example:
        >>> labels_at(np.array([[[0, 1], [3, -1]], [[0, -1], [2, -1]]]), [1]).tolist()
        [[3], [2]]
    """
    some = labels[:, columns]
    return some.max(2) if some.ndim == 3 and ((some >= 0).sum(2) < 2).all() else some


class _Columns(NamedTuple):
    """The columns of a table of any kind."""

    about: str
    names: list[str]
    read: Callable[[str], LabelColumn]
    where: Callable[[int], str]
    in_file: bool = False

    def full_name(self, level: str) -> str:
        """The column of a level: `species` may stand for `label_species`."""
        for candidate in (level, PREFIX + level):
            if candidate in self.names:
                return candidate
        raise missing_column(level, self.names, self.about)


def _columns(table: Any, about: str, levels: Sequence[str] | None, separator: str | None) -> _Columns:
    """The columns; `separator`, or that of the file, is what stands between several labels in a cell."""
    if isinstance(table, Table):
        separator = _saved_separator(Path(table.about)) if separator is None else separator
        names, about = table.names, table.about
    elif isinstance(table, Mapping):
        names = list(table)
    elif hasattr(table, "columns") or hasattr(table, "column_names"):
        names = list(table.column_names if hasattr(table, "column_names") else table.columns)
    elif hasattr(table, "to_list"):  # a Series
        names = list(levels or [table.name or "label"])
        table = dict.fromkeys(names, table)
    else:
        array = np.asarray(table, object)
        count = 1 if array.ndim == 1 else array.shape[1]
        names = list(levels or (f"label{column}" for column in range(count)))
        if len(names) != count:
            raise ValueError(f"levels={levels!r} must be {count} different name(s), one for each column of {about}.")
        table = dict(zip(names, array.reshape(len(array), count).T, strict=True))

    def read(name: str) -> LabelColumn:
        in_file = isinstance(table, Table)
        column = label_column(table.table[name], name, about) if in_file else LabelColumn.from_values(table[name])
        return column if separator is None else column.split_cells(separator)

    where = table.where if isinstance(table, Table) else lambda row: f"{about}, row {row}"
    return _Columns(about, names, read, where, in_file=isinstance(table, Table))


def _saved_separator(path: Path) -> str | None:
    """The separator that a manifest in CSV was saved with, in the .csv.json beside it."""
    beside = path.with_name(path.name + ".json")
    try:
        meta = json.loads(beside.read_bytes()) if beside.is_file() else {}
    except (ValueError, RecursionError):
        meta = {}  # not of suprank
    separator = meta.get("label_separator") if isinstance(meta, dict) else None
    return separator if isinstance(separator, str) and separator else None


def _label_columns(source: _Columns, levels: Sequence[str] | None, without: set[str]) -> dict[str, str]:
    """Level → column, finest first. Which of several columns of a file are labels is not guessed."""
    columns = [source.full_name(level) for level in levels or ()]
    columns = columns or [name for name in source.names if name.startswith("label") and name not in without]
    if not columns:
        columns = [name for name in source.names if name not in {*NO_LABELS, *without}]
        if not columns or (source.in_file and len(columns) > 1):
            raise ValueError(
                f"{source.about} has no label column (its columns: {', '.join(source.names) or 'none'}); call them "
                f"label_<level>, finest first, or name them with levels, so that no id is taken for a label."
            )
    for column in columns:
        if columns.count(column) > 1:
            raise ValueError(f"level {column!r} is named twice; name each level once, finest first.")
    short = [column.removeprefix(PREFIX) or column for column in columns]
    return dict(zip(short if len(set(short)) == len(short) else columns, columns, strict=True))
