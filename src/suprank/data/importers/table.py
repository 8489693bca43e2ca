"""A user's own table of images (CSV, TSV or Parquet), with columns of any name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from suprank.data.archives import Archive
from suprank.data.columns import PREFIX
from suprank.data.importers.base import Importer
from suprank.data.manifest import Manifest
from suprank.files.tables import Table, parse_table, read_table

TABLES = (".csv", ".tsv", ".parquet")

LAYOUT = """\
manifest.csv     or another table (.csv, .tsv, .parquet): a row per image, with columns for its path, split and labels
                 the images, at these paths under the root; the root may also be a .zip or .tar archive"""

_log = logging.getLogger(__name__)


def read(
    root: Path,
    *,
    table: str | Path | None = None,
    path: str = "path",
    split: str = "split",
    constant_split: str | None = None,
    levels: Sequence[str] | None = None,
    id: str | None = None,
    box: str | Sequence[str] | None = None,
    fill_gaps: bool = False,
    label_separator: str | None = None,
) -> dict[str, Manifest]:
    """The manifest that a table describes; columns without a meaning here are kept after the others.

    `table` is a file, or one under `root`, or a member if `root` is an archive; by default `manifest.csv` (or .tsv, or
    .parquet). Paths in it are relative to `root`; absolute paths under it are made relative. In an archive they are members,
    and the manifest's root is the folder of the archive.

    `path`, `split`, `id` and `box` are names of columns. `constant_split` gives all images one split instead. `levels` are
    the label columns, finest first, with or without `label_`: by default all that begin with it; `()` for none. `id` and
    `box` are by default the columns of that name, if they exist. `box` may be four columns, x1, y1, x2 and y2.

    White space around paths, splits and labels is removed, and splits are converted to lower case. Labels get one spelling:
    composed accents, and 1 for 1.0 if all are numbers. Blank cells are refused with their line: labels may be blank, or the
    number −1, only in `distractor` rows; with `fill_gaps`, also between two labels: see `Manifest.from_columns`. A row has
    several labels at a level where a column of a Parquet file holds lists, or `label_separator` divides the cell.
    """
    root = Path(root)
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist; give the folder of the images, or a .zip or .tar archive.")
    file = _file(root, table)
    labels = _label_columns(file, levels)
    id = "id" if id is None and "id" in file.names else id
    box = "box" if box is None and "box" in file.names else box
    corners = (box,) if isinstance(box, str) else tuple(box or ())
    columns = {"path": _paths(file, path, root), "split": _splits(file, split, constant_split)}
    columns |= {label: file.column(column) for label, column in labels.items()}
    if id is not None:
        columns["id"] = _nonblank(file, id)
    if corners:
        columns["box"] = _boxes(file, corners)
    used = {path, id, *labels.values(), *corners, None if constant_split else split}
    columns |= {name: file.column(name) for name in _others(file, used, columns)}
    levels = [label.removeprefix(PREFIX) for label in labels]
    images = root if root.is_dir() else root.parent
    cells: dict[str, Any] = {"fill_gaps": fill_gaps, "label_separator": label_separator, "where": file.where}
    return {"": Manifest.from_columns(columns, root=images, levels=levels, about=file.about, **cells)}


def _file(root: Path, table: str | Path | None) -> Table:
    """The table: the file of this name, or the one under the root, or the default one under the root."""
    if table is not None and Path(table).is_file():
        return read_table(table)
    wanted = [f"manifest{suffix}" for suffix in TABLES] if table is None else [str(table)]
    archive = None if root.is_dir() else Archive(root)
    for name in wanted:
        if archive is not None and name in archive.members:
            return parse_table(archive.read(name), f"{root}::{name}", Path(name).suffix)
        if archive is None and (root / name).is_file():
            return read_table(root / name)
    names = list(archive.members) if archive is not None else [path.name for path in root.iterdir()]
    tables = sorted(name for name in names if name.lower().endswith(TABLES))
    choice = f"tables in it: {', '.join(tables[:5])}" if tables else f"it has no table ({', '.join(TABLES)})"
    raise FileNotFoundError(f"{root} has no {wanted[0]}; {choice}. Name one with table.")


def _text(file: Table, name: str) -> pa.Array:
    """The cells of a column as text, without white space around them; "" if blank."""
    cells = file.column(name)
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if not (pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type) or pa.types.is_integer(cells.type)):
        raise TypeError(f"{file.about}: column {name!r} holds {cells.type}, but must hold text or whole numbers.")
    return pc.fill_null(pc.utf8_trim_whitespace(cells.cast(pa.string())), "")


def _nonblank(file: Table, name: str) -> pa.Array:
    cells = _text(file, name)
    file.refuse(pc.equal(cells, ""), lambda row: f"{name!r} is blank; fill it in, or leave the row out.")
    return cells


def _paths(file: Table, name: str, root: Path) -> pa.Array:
    paths = _nonblank(file, name)
    if not root.is_dir():
        return pc.binary_join_element_wise(f"{root.name}::", paths, "")
    for prefix in (f"{root.resolve()}/", f"{root.absolute()}/"):  # they differ where the root is a link
        paths = pc.if_else(pc.starts_with(paths, prefix), pc.utf8_slice_codeunits(paths, len(prefix)), paths)
    return paths


def _splits(file: Table, name: str, constant: str | None) -> pa.Array:
    if constant is not None:
        return pa.array([constant] * len(file))
    if name not in file.names:
        raise ValueError(
            f"{file.missing_column(name)} Name the column with split, or give all rows one split with constant_split ."
        )
    return pc.utf8_lower(_nonblank(file, name))


def _label_columns(file: Table, levels: Sequence[str] | None) -> dict[str, str]:
    """`label_<level>` → the column it is read from, finest first."""
    if levels is None:
        labels = {name: name for name in file.names if name.startswith(PREFIX)}
        if not labels:
            raise ValueError(
                f"{file.about} has no column that begins with {PREFIX!r}, only {', '.join(file.names)}; name the label columns "
                f"with levels, finest first, or call them {PREFIX}<level>."
            )
        return labels
    labels = {}
    for level in levels:
        short = level.removeprefix(PREFIX)
        column = next((name for name in (level, PREFIX + short, short) if name in file.names), None)
        if column is None:
            raise file.missing_column(level)
        if PREFIX + short in labels:
            raise ValueError(f"{file.about}: level {short!r} is named twice; name each level once, finest first.")
        labels[PREFIX + short] = column
    return labels


def _boxes(file: Table, corners: Sequence[str]) -> pa.Array:
    """One column as it is, which the manifest parses; or four, of which all or none may be blank in a row."""
    if len(corners) == 1:
        return file.column(corners[0])
    if len(corners) != 4:
        raise ValueError(
            f"box names {len(corners)} columns ({', '.join(corners)}), but a box is one column, or x1, y1, x2, y2."
        )
    numbers = np.stack([_numbers(file, name) for name in corners], axis=1)
    blank = np.isnan(numbers)
    file.refuse(blank.any(1) & ~blank.all(1), lambda row: f"one of {', '.join(corners)} is blank, and another is not.")
    flat = pa.array(numbers.ravel(), pa.float32())
    return pa.FixedSizeListArray.from_arrays(flat, 4, mask=pa.array(blank.all(1)))


def _numbers(file: Table, name: str) -> NDArray[np.float64]:
    """The numbers of a column, NaN for a blank cell."""
    cells = file.column(name)
    if pa.types.is_string(cells.type):
        cells = pc.utf8_trim_whitespace(cells)
        filled = pc.not_equal(cells, "")
        right = pc.match_substring_regex(cells, r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$")
        file.refuse(pc.and_not(filled, right), lambda row: f"{name!r} is {cells[row].as_py()!r}, which is not a number.")
        cells = pc.if_else(filled, cells, pa.scalar(None, pa.string()))
    return np.asarray(pc.fill_null(cells.cast(pa.float64()), np.nan))


def _others(file: Table, used: set[str | None], taken: dict[str, pa.Array]) -> list[str]:
    """The columns to keep as they are; one whose name is taken by another is left out, and that is logged."""
    others = [name for name in file.names if name not in used and not name.startswith("__index_level_")]  # pandas' own
    for name in others:
        if name in taken:
            _log.warning("%s: column %r is left out, because another column takes its name", file.about, name)
    return [name for name in others if name not in taken]


CSV = Importer(
    name="csv",
    title="your own images, listed in a CSV, TSV or Parquet table",
    layout=LAYOUT,
    read=read,
    published={},
)
