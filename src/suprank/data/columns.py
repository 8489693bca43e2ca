"""Checks of a manifest's columns: which are required, and what their cells may hold."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.files.label_gaps import (
    ADVICE,
    ADVICE_FOR_SETS,
    BLANK,
    check_separator,
    describe_conflict,
    find_conflict,
    find_gaps,
    placeholder_names,
)
from suprank.files.label_gaps import (
    fill_gaps as fill_label_gaps,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def check_table(
    table: pa.Table, labels: Sequence[str], about: str, *, fill_gaps: bool = False, label_separator: str | None = None
) -> pa.Table:
    """Check path, split, labels, id and box. Return the table with these columns typed and in this order, then the others.

    Label columns of text become dictionary arrays; columns of lists, and of text that `label_separator` divides, lists of them.
    With `fill_gaps`, a blank between two labels becomes a placeholder instead of an error: see `suprank.files.label_gaps`.
    """
    names = table.column_names
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{about} has two columns called {name!r}; rename one.")
    for name in ("path", "split"):
        require_column(names, name, about)
    if not table.num_rows:
        raise ValueError(f"{about} has no rows; a manifest has one for each image.")
    columns = {name: _text(table[name], name, about) for name in ("path", "split")}
    columns |= {name: _label(table[name], name, about, label_separator) for name in labels}
    _check_paths(columns["path"], about)
    _check_splits(columns["split"], about)
    if fill_gaps:
        columns |= _fill_gaps({name: columns[name] for name in labels}, about)
    _check_labels(columns, labels, about)
    if "id" in names:
        columns["id"] = _text(table["id"], "id", about)
        _refuse(_blank(columns["id"]), about, "have no id", "rows with equal ids are one image; fill it in, or drop the column")
    if "box" in names:
        columns["box"] = _boxes(table["box"], about)
    # Label columns that are no levels here would look like levels when the file is read again.
    others = [name for name in names if name not in columns and not name.startswith(PREFIX)]
    return pa.table(columns | {name: table[name].combine_chunks() for name in others})


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


def split_labels(cells: pa.Array, separator: str) -> pa.ListArray:
    """Text such as `dog|person` as lists of labels, without white space around them; a blank cell becomes null.

    Example:
        >>> split_labels(pa.array(["dog|person", "cat", ""]), "|").to_pylist()
        [['dog', 'person'], ['cat'], None]
    """
    check_separator(separator)
    coded = cells if pa.types.is_dictionary(cells.type) else cells.cast(pa.string()).dictionary_encode()
    blank = pc.equal(pc.utf8_trim_whitespace(coded.dictionary), "")
    lists = pc.split_pattern(coded.dictionary, separator)
    members = pa.ListArray.from_arrays(lists.offsets, pc.utf8_trim_whitespace(lists.values), mask=blank)
    return members.take(coded.indices)


def _text(column: pa.ChunkedArray, name: str, about: str) -> pa.Array:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise TypeError(
            f"{about}: column {name!r} holds {column.type}, but must hold text (or whole numbers, for labels and ids)."
        )
    return _one_chunk(column.cast(pa.string()))


def _label(column: pa.ChunkedArray, name: str, about: str, separator: str | None) -> pa.Array:
    """Text as a dictionary array; one that is given stays, so that four million names are not expanded to be counted again."""
    if is_list(column.type):
        return _label_sets(_one_chunk(column), name, about)
    if separator is not None:
        kind = column.type
        text = pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type)
        cells = _one_chunk(column.unify_dictionaries()) if text else _text(column, name, about)
        return _label_sets(split_labels(cells, separator), name, about)
    if not (pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)):
        column = pa.chunked_array([_text(column, name, about)]).dictionary_encode()
    coded = _one_chunk(column.unify_dictionaries())
    empty = pc.index(coded.dictionary, pa.scalar("", pa.string())).as_py()
    if empty < 0:
        return coded
    blank = pc.equal(coded.indices, pa.scalar(empty, coded.indices.type))
    return pa.DictionaryArray.from_arrays(
        pc.if_else(blank, pa.scalar(None, coded.indices.type), coded.indices), coded.dictionary
    )


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of any kind."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _label_sets(lists: pa.Array, name: str, about: str) -> pa.Array:
    """Lists of labels as lists of dictionary-encoded text, null for an empty one; if none has two labels, as a plain column."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0), np.int64)
    members = lists.flatten()
    if pa.types.is_integer(members.type):
        lengths, members = _without_padding(lengths, members)
    members = _label(pa.chunked_array([members]), name, about, None)
    blank = np.zeros(len(lengths), bool)
    blank[np.repeat(np.arange(len(lengths)), lengths)[np.asarray(members.is_null())]] = True
    _refuse(pa.array(blank), about, f"have a blank among the labels of {name}", "fill it in, or leave it out")
    offsets = np.append(0, np.cumsum(lengths))
    if lengths.max() < 2:
        rows = pa.array(np.where(lengths, offsets[:-1], 0), mask=lengths == 0)
        return members.take(rows)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), members, mask=pa.array(lengths == 0))


def _without_padding(lengths: NDArray[np.int64], members: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """The lengths and members of lists of integers without −1, which is padding, as in labels `[N, L, M]`."""
    listed = pc.fill_null(pc.not_equal(members, BLANK), True)
    rows = np.repeat(np.arange(len(lengths)), lengths)[np.asarray(listed)]
    return np.bincount(rows, minlength=len(lengths)), members.filter(listed)


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


def _check_labels(columns: dict[str, pa.Array], labels: Sequence[str], about: str) -> None:
    if not any(columns[name].null_count for name in labels):
        return
    distractor = pc.equal(columns["split"], "distractor")
    gaps = find_gaps(_codes([columns[name] for name in labels])) if len(labels) > 2 else np.zeros((0, 0), bool)
    advice = ADVICE_FOR_SETS if any(is_list(columns[name].type) for name in labels) else ADVICE
    for level in np.flatnonzero(gaps.any(0)).tolist():
        _refuse(pa.array(gaps[:, level]), about, f"have no {labels[level]}, but labels below and above it", advice)
    for fine, name in enumerate(labels):
        blank = columns[name].is_null()
        _refuse(
            pc.and_not(blank, distractor),
            about,
            f"have no {name}",
            "fill it in, leave the rows out, or give them the split distractor",
        )
        if fine:
            below = labels[fine - 1]
            _refuse(
                pc.and_(blank, columns[below].is_valid()),
                about,
                f"have a {below} but no {name}",
                "every class has a parent at the next level; fill it in, or leave both blank",
            )


def _codes(columns: Sequence[pa.Array]) -> NDArray[np.int64]:
    """The indices of label columns `[rows, levels]`, 0 for several labels; −1 for a blank."""
    codes = [
        np.where(column.is_null(), BLANK, 0) if is_list(column.type) else np.asarray(pc.fill_null(column.indices, BLANK))
        for column in columns
    ]
    return np.stack(codes, axis=1).astype(np.int64)


def _fill_gaps(columns: dict[str, pa.Array], about: str) -> dict[str, pa.Array]:
    """The label columns with placeholders in their gaps."""
    if len(columns) < 3:
        return columns
    for name, column in columns.items():
        if is_list(column.type):
            raise ValueError(
                f"{about}: fill_gaps needs one label for an image at each level, but images have several {name}; leave "
                f"fill_gaps out, and fill in the blanks."
            )
    codes, levels = _codes(list(columns.values())), [name.removeprefix(PREFIX) for name in columns]
    dictionaries = [column.dictionary for column in columns.values()]
    filled, placeholders = fill_label_gaps(codes, [len(dictionary) for dictionary in dictionaries])
    if not any(placeholders):
        return columns
    names = [dictionary.to_pylist() for dictionary in dictionaries]
    conflict = find_conflict(codes, filled)
    if conflict is not None:
        text = describe_conflict(conflict, codes, levels, lambda row, level: names[level][codes[row, level]])
        raise ValueError(f"{about}: rows {conflict.rows[0]:,} and {conflict.rows[1]:,} {text}")
    result = dict(columns)
    for level, texts in enumerate(placeholder_names(placeholders, names, levels)):
        if texts:
            coded = pa.DictionaryArray.from_arrays(
                pa.array(np.maximum(filled[:, level], 0), mask=filled[:, level] == BLANK),
                pa.concat_arrays([dictionaries[level], pa.array(texts, pa.string())]),
            )
            # Through text, because a label may be called like the placeholder.
            result[PREFIX + levels[level]] = coded.dictionary_decode().dictionary_encode()
    return result


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
