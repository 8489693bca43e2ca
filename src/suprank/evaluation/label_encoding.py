"""Integer labels from the columns of label tables: equal cells of all tables get equal ids, and levels form a tree."""

from __future__ import annotations

import itertools
import re
import unicodedata
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from suprank.evaluation.arguments import forms_tree, integer_tensor
from suprank.evaluation.label_tables import PREFIX, LabelTable, ListColumn
from suprank.files.label_gaps import ADVICE, check_separator, describe_conflict, find_conflict
from suprank.files.label_gaps import fill_gaps as fill_label_gaps
from suprank.ranking.relevance import classes_with_two_parents

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from suprank.evaluation.label_tables import Cells

UNLABELED = -1
"""The id of an empty cell, a null or −1: the row has no class at this level. In a gallery it is a distractor."""

NO_LABELS = ("path", "id", "split", "box")
"""Columns of a manifest that are never labels."""

_EMPTY = ("", str(UNLABELED))
_WHOLE = re.compile(r"-?\d+\.0+")  # pandas and spreadsheets write a whole number beside an empty cell like this
_SHOWN = 3  # pairs of spellings that a warning shows


class LabelSpellingWarning(UserWarning):
    """Two spellings of a label are treated as one class."""


@dataclass(frozen=True)
class Labels:
    """Integer labels `[N, L]` of the queries and, if there is one, of the gallery; `names` are the levels, finest first.

    Equal values of a level have equal ids in both. −1 marks a row without a class at that level. If rows have up to M labels
    at a level, labels are `[N, L, M]`, padded with −1.
    """

    names: tuple[str, ...]
    queries: NDArray[np.int64]
    gallery: NDArray[np.int64] | None = None


def encode_labels(
    queries: LabelTable,
    gallery: LabelTable | None = None,
    *,
    levels: Sequence[str] = (),
    without: Iterable[str] = (),
    fill_gaps: bool = False,
    label_separator: str | None = None,
    renumber: bool = True,
) -> Labels:
    """Turn label columns of one table, or of two that share their ids, into integers.

    Spellings of one value are one class: `1` and `1.0`, and accents written as one character or as two (NFC and NFD). If
    both occur, a `LabelSpellingWarning` names them.

    `levels` names the columns, finest first. Without it they are those that begin with `label`, in the order of the file,
    or else the only one beside `path`, `id`, `split`, `box` and the columns in `without`; which of several are labels is not
    guessed. A level is called what follows `label_`. Labels must form a tree: every value has one parent at the next level,
    which is not empty. With `fill_gaps`, a cell that is empty between two labels gets a class of its own for each value below
    it, so that it makes nothing a positive.

    A row has several labels at a level if its column holds lists, or text that `label_separator` divides: `dog|person`. A
    manifest that suprank saved as CSV has its separator beside it.

    Without `renumber`, integers are taken for the ids themselves if both tables have them, and those of a .npy file stay in it:
    a hundred million labels then take no memory.
    """
    if label_separator is not None:
        check_separator(label_separator)
    columns = [queries.full_name(level) for level in levels] or _label_columns(queries, set(without))
    for column in columns:
        if columns.count(column) > 1:
            raise ValueError(f"level {column!r} is named twice; name each level once, finest first.")
    tables = [queries] if gallery is None else [queries, gallery]
    short = tuple(column.removeprefix(PREFIX) or column for column in columns)
    names = short if len(set(short)) == len(short) else tuple(columns)
    separators = [label_separator or table.label_separator for table in tables]
    if any(separators) or any(isinstance(table.label_column(one), ListColumn) for table in tables for one in columns):
        if fill_gaps:
            raise ValueError(
                f"{queries.path}: fill_gaps needs one label in a row at each level; leave it out, or fill the gaps in."
            )
        sets = _encode_sets(columns, tables, separators)
        return Labels(names, sets[0], None if gallery is None else sets[1])
    for table in tables:
        for column in columns:
            _check_no_negative(table, column, table.column(column))
    whole = [array for table in tables if (array := _integer_columns(table, columns)) is not None]
    if not renumber and not fill_gaps and len(whole) == len(tables):
        _check_tree(columns, tables, whole)
        return Labels(names, whole[0], None if gallery is None else whole[1])
    coded = [_joint_ids([table.column(column) for table in tables], column) for column in columns]
    stacked = [np.stack([ids[index] for ids in coded], axis=1) for index in range(len(tables))]
    if fill_gaps:
        stacked = np.split(_fill_gaps(columns, tables, np.concatenate(stacked)), [len(queries)])
    _check_tree(columns, tables, stacked)
    return Labels(names, stacked[0], None if gallery is None else stacked[1])


def labels_at(labels: NDArray[np.int64], columns: Sequence[int]) -> NDArray[np.int64]:
    """Some columns of labels; of sets `[N, L, M]` they are plain, `[N, L]`, if no row has several labels in one of them.

    Example:
        >>> labels_at(np.array([[[0, 1], [3, -1]], [[0, -1], [2, -1]]]), [1]).tolist()
        [[3], [2]]
    """
    some = labels[:, columns]
    return some.max(2) if some.ndim == 3 and ((some >= 0).sum(2) < 2).all() else some


def item_ids(table: LabelTable, column: str) -> list[str]:
    """The item ids in a column, as strings: two rows with the same id are the same item. A row without one is refused.

    As with labels, `1` and `1.0` are one id, and so are the two ways to write an accent.
    """
    ids = _cells(table.column(column))
    missing = [row for row, value in enumerate(ids) if value in _EMPTY]
    if missing:
        rows = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise ValueError(
            f"{table.path}: {len(missing)} of {len(ids)} rows ({rows}) have no {column!r}, and would all count as the "
            f"same item; fill it in."
        )
    return ids


def label_names(table: LabelTable, level: str) -> list[str | list[str] | None]:
    """The labels of each row at a level, as `encode_labels` reads them: a name, a list of names, or None."""
    column = table.label_column(level)
    if isinstance(column, ListColumn):
        cells, ends = _cells(column.members), np.cumsum(column.lengths).tolist()
        return [cells[end - size : end] for end, size in zip(ends, column.lengths.tolist(), strict=True)]
    return [None if cell in _EMPTY else cell for cell in _cells(column)]


def _label_columns(table: LabelTable, without: set[str]) -> list[str]:
    columns = [name for name in table.names if name.startswith("label") and name not in without]
    single = [name for name, column in zip(table.names, table.columns, strict=True) if not isinstance(column, ListColumn)]
    columns = columns or [name for name in single if name not in {*NO_LABELS, *without}]
    if not columns or (len(columns) > 1 and not columns[0].startswith("label")):
        there = ", ".join((*table.names, *table.left_out)) or "none"
        raise ValueError(
            f"{table.path} has no label column (its columns: {there}); call them label_<level>, finest first, or name them "
            f"with --level, so that no id is taken for a label."
        )
    return columns


def _cells(column: Cells) -> list[str]:
    """The values as text, each in one spelling."""
    return [str(value) for value in column.tolist()] if isinstance(column, np.ndarray) else list(map(_one_spelling, column))


def _one_spelling(cell: str) -> str:
    text = cell.strip()
    if not text.isascii():
        return unicodedata.normalize("NFC", text)
    return text.partition(".")[0] if text.endswith("0") and _WHOLE.fullmatch(text) else text


def _joint_ids(columns: Sequence[Cells], name: str) -> list[NDArray[np.int64]]:
    """Ids 0, 1, 2, ... in order of appearance; a value has the same id in all columns, however it is spelled."""
    known: dict[str, int] = dict.fromkeys(_EMPTY, UNLABELED)
    spelled: dict[str, str] = {}
    others: dict[str, str] = {}
    coded = []
    for column in columns:
        cells = _cells(column)
        ids = (known.setdefault(value, len(known) - len(_EMPTY)) for value in cells)
        coded.append(np.fromiter(ids, np.int64, len(column)))
        given = cells if isinstance(column, np.ndarray) else (cell.strip() for cell in column)
        for value, cell in zip(cells, given, strict=True):
            if spelled.setdefault(value, cell) != cell and value not in _EMPTY:
                others.setdefault(value, cell)
    if others:
        pairs = ", ".join(f"{spelled[value]!a} and {other!a}" for value, other in list(others.items())[:_SHOWN])
        more = f" ({len(others)} such labels)" if len(others) > _SHOWN else ""
        warnings.warn(
            f"{name}: two spellings are taken for one class: {pairs}{more}; write each label in one way.",
            LabelSpellingWarning,
            stacklevel=3,
        )
    return coded


def _encode_sets(columns: list[str], tables: list[LabelTable], separators: Sequence[str | None]) -> list[NDArray[np.int64]]:
    """The ids of each table's sets of labels, `[N, L, M]`, padded with −1."""
    levels: list[tuple[list[ListColumn], list[NDArray[np.int64]]]] = []
    for column in columns:
        lists = [_as_lists(table, column, separator) for table, separator in zip(tables, separators, strict=True)]
        levels.append((lists, _joint_ids([one.members for one in lists], column)))
    most = max(int(one.lengths.max(initial=0)) for lists, _ in levels for one in lists)
    stacked = []
    for index, table in enumerate(tables):
        sets = np.full((len(table), len(columns), max(most, 1)), UNLABELED)
        for level, (lists, ids) in enumerate(levels):
            rows, lengths = lists[index].rows, lists[index].lengths
            sets[rows, level, np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)] = ids[index]
        stacked.append(sets)
    _check_set_tree(columns, tables, levels, np.concatenate(stacked))
    return stacked


def _as_lists(table: LabelTable, column: str, separator: str | None) -> ListColumn:
    """A column as one of lists: cells are divided by the separator, or are lists of one label."""
    cells = table.label_column(column)
    if not isinstance(cells, ListColumn):
        parts = [cell.split(separator) for cell in cells] if separator and not isinstance(cells, np.ndarray) else None
        if parts is None:
            cells = ListColumn(cells, np.ones(len(cells), np.int64))
        else:
            cells = ListColumn([one for part in parts for one in part], np.array([len(part) for part in parts], np.int64))
    rows = cells.rows
    if not isinstance(cells.members, np.ndarray):
        for place, member in enumerate(cells.members):
            if not member.strip() and cells.lengths[rows[place]] > 1:
                raise ValueError(
                    f"{table.path}, row {rows[place]}: there is a blank among the labels of {column!r}; fill it in, or leave "
                    f"it out."
                )
    _check_no_negative(table, column, cells.members, rows)
    return cells


def _check_set_tree(
    columns: list[str],
    tables: list[LabelTable],
    levels: list[tuple[list[ListColumn], list[NDArray[np.int64]]]],
    labels: NDArray[np.int64],
) -> None:
    """The check that `evaluate` makes on sets of ids, here with errors that name values and files."""
    for index, (fine, coarse) in enumerate(itertools.pairwise(columns)):
        child, parent = labels[:, index], labels[:, index + 1]
        for row in np.flatnonzero((child >= 0).any(1) & (parent < 0).all(1))[:1].tolist():
            raise ValueError(
                f"{_place(tables, row)}: there is a label in {fine}, but none in {coarse}, and levels go from fine to coarse; "
                f"fill it in, or empty the finer label too."
            )
        for one in classes_with_two_parents(torch.from_numpy(child), torch.from_numpy(parent))[:1].tolist():
            rows = np.flatnonzero((child == one).any(1)).tolist()
            lists, ids = levels[index]
            member = next(
                _cells(own.members)[np.flatnonzero(code == one)[0]] for own, code in zip(lists, ids, strict=True) if one in code
            )
            raise ValueError(
                f"{_place(tables, rows[0])}: {fine} {member!r} has no parent, because its {len(rows)} rows have no {coarse} in "
                f"common; add the parent to each of them, or name fewer levels with --level."
            )


def _check_no_negative(table: LabelTable, column: str, cells: Cells, rows: NDArray[np.int64] | None = None) -> None:
    """Refuse whole numbers below −1, as `evaluate` does; `rows` are those of the cells, if they are not all in their order."""
    if isinstance(cells, np.ndarray) and (not cells.size or cells.min() >= UNLABELED):
        return
    for place, value in enumerate(_cells(cells)):
        row = place if rows is None else rows[place]
        if value.startswith("-") and value != str(UNLABELED) and value[1:].isdecimal() and int(value) < UNLABELED:
            raise ValueError(
                f"{table.path}, row {row}: {column} is {value}, but numbers of classes are 0 or more, and −1 or an empty cell "
                f"is no label; renumber the classes, or write the name in words."
            )


def _place(tables: list[LabelTable], row: int) -> str:
    inside = row < len(tables[0])
    return f"{tables[0 if inside else 1].path}, row {row if inside else row - len(tables[0])}"


def _value(tables: list[LabelTable], row: int, column: str) -> str:
    cells = (str(cell) for table in tables for cell in table.column(column))
    return next(itertools.islice(cells, row, None)).strip()


def _fill_gaps(columns: list[str], tables: list[LabelTable], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids of all tables with placeholders in their gaps; rows of one class must agree about them."""
    filled, _ = fill_label_gaps(labels, (labels.max(axis=0) + 1).tolist())
    conflict = find_conflict(labels, filled)
    if conflict is not None:
        first, second = (_place(tables, row) for row in conflict.rows)
        text = describe_conflict(conflict, labels, columns, lambda row, level: _value(tables, row, columns[level]))
        raise ValueError(f"{first}, and {second}: {text}")
    return filled


def _integer_columns(table: LabelTable, columns: list[str]) -> NDArray[np.int64] | None:
    """The columns as one array `[N, L]` of int32 or int64, memory-mapped if the file is; None if one is text or too large."""
    if table.array is not None and list(table.names) == columns and table.array.dtype in (np.int32, np.int64):
        return cast("NDArray[np.int64]", table.array)
    chosen = [cells for cells in map(table.column, columns) if isinstance(cells, np.ndarray)]
    if len(chosen) < len(columns) or any(cells.dtype == np.uint64 and cells.max() >= 2**63 for cells in chosen):
        return None
    dtype = np.int32 if all(cells.dtype.itemsize < 4 or cells.dtype == np.int32 for cells in chosen) else np.int64
    return cast("NDArray[np.int64]", np.stack(chosen, axis=1, dtype=dtype, casting="same_kind"))


def _check_tree(columns: list[str], tables: list[LabelTable], parts: Sequence[NDArray[np.int64]]) -> None:
    """The check that `evaluate` makes on ids, here with errors that name values and files."""
    if forms_tree([integer_tensor(part, "labels") for part in parts]):
        return
    labels = np.concatenate(parts)
    place, value = partial(_place, tables), partial(_value, tables)
    for (fine, coarse), (child, parent) in zip(itertools.pairwise(columns), itertools.pairwise(labels.T), strict=True):
        known = np.flatnonzero(child != UNLABELED)
        for row in known[parent[known] == UNLABELED][:1].tolist():
            is_gap = (labels[row, columns.index(coarse) :] != UNLABELED).any()
            way_out = ADVICE if is_gap else "fill it in, or empty the finer label too"
            raise ValueError(
                f"{place(row)}: {fine} is {value(row, fine)!r}, but {coarse} is empty, and levels go from fine to coarse; "
                f"{way_out}."
            )
        last = np.full(child.max(initial=-1) + 1, UNLABELED)
        last[child[known]] = parent[known]
        for row in known[last[child[known]] != parent[known]][:1].tolist():
            other = int(np.flatnonzero((child == child[row]) & (parent == last[child[row]]))[0])
            raise ValueError(
                f"{place(row)}: {fine} {value(row, fine)!r} stands under {coarse} {value(row, coarse)!r}, and under "
                f"{value(other, coarse)!r} in {place(other)}, but labels form a tree, finest level first; name the levels with "
                f"--level in that order, or give the two labels different names."
            )
