"""Checks of a manifest's columns: which are required, and what their cells may hold."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.files.labels import LabelColumn, check_parents

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

PREFIX = "label_"
"""The prefix of label columns; the name of the level follows it."""

SPLITS = ("train", "test", "query", "gallery", "distractor")
"""`test`: every image is a query against the others. `query` and `gallery`: queries are ranked against the gallery.
`distractor`: joins the gallery and is positive for no query, so that its labels may be blank."""

_OUTSIDE = r"^[/\\]|^[A-Za-z]:[/\\]|(^|[/\\]|::)\.\.([/\\]|::|$)"
_SHOWN = 5


def label_columns(names: Sequence[str], levels: Sequence[str] | None, about: str) -> list[str]:
    """The label columns, finest first: those of `levels`, or all that begin with `label_`."""
    if levels is None:
        labels = [name for name in names if name.startswith(PREFIX)]
        if not labels:
            raise ValueError(
                f"{about} has no label column: it has {', '.join(names)}. Call label columns label_<level>, finest first, "
                f"or give levels=() if there are none."
            )
        return labels
    chosen = [level if level in names and level.startswith(PREFIX) else PREFIX + level for level in levels]
    for column in chosen:
        require_column(names, column, about)
        if chosen.count(column) > 1:
            raise ValueError(f"{about}: level {column.removeprefix(PREFIX)!r} is named twice; name each once.")
    return chosen


def require_column(names: Sequence[str], column: str, about: str) -> None:
    """Raise unless there is a column of this name; the error suggests the nearest name."""
    if column not in names:
        nearest = difflib.get_close_matches(column, names, n=1)
        guess = f"did you mean {nearest[0]!r}?" if nearest else f"it has {', '.join(names)}."
        raise ValueError(f"{about} has no column {column!r}; {guess}")


def check_table(table: pa.Table, labels: Mapping[str, LabelColumn], about: str, where: Callable[[int], str]) -> pa.Table:
    """Check path, split, labels, id and box. Return the table with these columns typed and in this order, then the others.

    Label columns become dictionary arrays, or lists of them if rows have several labels. `where(row)` begins an error.
    """
    names = table.column_names
    columns = {name: _text(table[name], name, about) for name in ("path", "split")}
    _check_paths(columns["path"], about)
    _check_splits(columns["split"], about)
    _check_labels(labels, np.asarray(pc.equal(columns["split"], "distractor")), where)
    columns |= {PREFIX + level: _to_arrow(one) for level, one in labels.items()}
    if "id" in names:
        columns["id"] = _text(table["id"], "id", about)
        _refuse(_blank(columns["id"]), about, "have no id", "rows with equal ids are one image; fill it in, or drop the column")
    if "box" in names:
        columns["box"] = _boxes(table["box"], about)
    # Label columns that are no levels here would look like levels when the file is read again.
    others = [name for name in names if name not in columns and not name.startswith(PREFIX)]
    return pa.table(columns | {name: table[name].combine_chunks() for name in others})


def check_names(table: pa.Table, about: str) -> None:
    """Raise unless there are rows, and the columns that every manifest has."""
    names = table.column_names
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{about} has two columns called {name!r}; rename one.")
    for name in ("path", "split"):
        require_column(names, name, about)
    if not table.num_rows:
        raise ValueError(f"{about} has no rows; a manifest has one for each image.")


def decode_dictionaries(table: pa.Table) -> pa.Table:
    """Turn dictionary-encoded columns into plain text, because the dictionaries of two tables differ."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pa.string()))
        elif is_label_sets(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pa.list_(pa.string())))
    return table


def is_label_sets(kind: pa.DataType) -> bool:
    """Whether a label column of a manifest has this type if images have several labels: lists of dictionary-encoded text."""
    return bool(pa.types.is_list(kind) and pa.types.is_dictionary(kind.value_type))


def _text(column: pa.ChunkedArray, name: str, about: str) -> pa.Array:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise TypeError(
            f"{about}: column {name!r} holds {column.type}, but must hold text (or whole numbers, for labels and ids)."
        )
    return _one_chunk(column.cast(pa.string()))


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of any kind."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _to_arrow(column: LabelColumn) -> pa.Array:
    """The labels as a dictionary array; several of a row as a list, ascending, each once."""
    names = pa.array(column.names, pa.string())
    if column.lengths is None:
        return pa.DictionaryArray.from_arrays(pa.array(column.codes, pa.int32(), mask=column.codes < 0), names)
    keys = np.unique(column.rows * max(1, len(names)) + column.codes)
    rows, codes = np.divmod(keys, max(1, len(names)))
    lengths = np.bincount(rows, minlength=len(column))
    members = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), names)
    offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
    return pa.ListArray.from_arrays(offsets, members, mask=pa.array(lengths == 0))


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def _blank(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.equal(column, ""), True)


def _refuse(bad: pa.Array, about: str, what: str, way_out: str) -> None:
    """Raise if any row is bad; the error lists the first few, counted from 0 as in Python."""
    rows = np.flatnonzero(np.asarray(bad))
    if len(rows):
        first = ", ".join(str(row) for row in rows[:_SHOWN]) + (", ..." if len(rows) > _SHOWN else "")
        raise ValueError(f"{about}: {len(rows):,} of {len(bad):,} rows ({first}) {what}; {way_out}.")


def _check_paths(paths: pa.Array, about: str) -> None:
    _refuse(_blank(paths), about, "have no path", "every row is one image")
    outside = pc.match_substring_regex(paths, _OUTSIDE)
    if pc.any(outside).as_py():
        first = paths.filter(outside)[0].as_py()
        raise ValueError(
            f"{about}: path {first!r} leads out of the root; paths are relative to the root and may not contain '..'. Give a "
            f"root that contains all images."
        )


def _check_splits(splits: pa.Array, about: str) -> None:
    known = pc.is_in(splits, value_set=pa.array(SPLITS))
    if not pc.all(known).as_py():
        wrong = splits.filter(pc.invert(known))[0].as_py()
        raise ValueError(f"{about}: split {wrong!r} is unknown; a split is one of {', '.join(SPLITS)}.")


def _check_labels(labels: Mapping[str, LabelColumn], distractor: NDArray[np.bool_], where: Callable[[int], str]) -> None:
    """Refuse blanks, except in distractors, and a label without a parent."""
    if not labels:
        return
    columns = list(labels.values())
    labeled = [one.codes >= 0 if one.lengths is None else one.lengths > 0 for one in columns]
    check_parents(np.stack(labeled, axis=1), list(labels), where, several=any(one.lengths is not None for one in columns))
    for level, own in zip(labels, labeled, strict=True):
        rows = np.flatnonzero(~own & ~distractor)
        for row in rows[:1].tolist():
            more = f" (and {len(rows) - 1} other rows)" if len(rows) > 1 else ""
            raise ValueError(
                f"{where(row)}: {level} is blank; fill it in, leave the row out, or give it the split distractor.{more}"
            )


def _boxes(column: pa.ChunkedArray, about: str) -> pa.Array:
    # Lists of variable length, though all have four: pyarrow up to 25 cannot read nulls among fixed-size lists from Parquet.
    kind = pa.list_(pa.float32())
    if pa.types.is_string(column.type) or pa.types.is_null(column.type):
        boxes = pa.array([_box(cell, row, about) for row, cell in enumerate(column.to_pylist())], kind)
    else:
        try:
            boxes = _one_chunk(column.cast(kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise TypeError(
                f"{about}: column 'box' holds {column.type}, but must hold four numbers: x1, y1, x2, y2."
            ) from error
    _refuse(
        pc.fill_null(pc.not_equal(pc.list_value_length(boxes), 4), False),
        about,
        "have a box that is not four numbers",
        "a box is x1, y1, x2, y2",
    )
    valid = np.asarray(boxes.is_valid())
    numbers = np.asarray(boxes.drop_null().flatten(), np.float64).reshape(-1, 4)
    good = np.isfinite(numbers).all(1) & (numbers[:, 0] < numbers[:, 2]) & (numbers[:, 1] < numbers[:, 3])
    bad = np.zeros(len(valid), bool)
    bad[valid] = ~good
    _refuse(
        pa.array(bad), about, "have a box that is not x1 < x2, y1 < y2", "boxes are corners in pixels: left, top, right, bottom"
    )
    return boxes


def _box(cell: str | None, row: int, about: str) -> list[float] | None:
    if not cell:
        return None
    try:
        numbers = [float(number) for number in cell.replace(",", " ").split()]
    except ValueError:
        numbers = []
    if len(numbers) != 4:
        raise ValueError(f"{about}: row {row} has the box {cell!r}, but a box is four numbers: x1 y1 x2 y2.")
    return numbers
