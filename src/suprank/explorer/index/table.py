"""The rows beside the vectors of a local index: an id, a path, a split and labels for each, in the order of the vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.explorer.index.protocol import Item

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.explorer.index.protocol import Where

ID, PATH, SPLIT, REMOVED, LABEL = "id", "path", "split", "removed", "label_"


def table_of(ids: NDArray[np.int64], manifest: Manifest | None) -> pa.Table:
    """Rows with these ids; paths, splits and labels by name where there is a manifest."""
    if manifest is not None and len(manifest) != len(ids):
        raise ValueError(
            f"the manifest has {len(manifest):,} rows for {len(ids):,} embeddings; give the one they were made of."
        )
    empty = pa.nulls(len(ids), pa.string())
    columns: dict[str, Any] = {ID: pa.array(ids), PATH: empty, SPLIT: empty, REMOVED: pa.array(np.zeros(len(ids), bool))}
    if manifest is not None:
        named = [PATH, SPLIT, *(LABEL + level for level in manifest.levels)]
        columns |= {name: manifest.table[name].cast(pa.string()) for name in named}
    return pa.table(columns)


def joined(one: pa.Table, other: pa.Table) -> pa.Table:
    """The rows of both; a level that one of them does not have is blank there."""
    return pa.concat_tables([plain(one), plain(other)], promote_options="default").combine_chunks()


def plain(table: pa.Table) -> pa.Table:
    """Text as text: read from a file, it comes as numbers with a dictionary, of which two files have two."""
    for place, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(place, column.name, table.column(place).cast(pa.string()))
    return table


def levels_of(names: Sequence[str]) -> tuple[str, ...]:
    """The levels among names of columns."""
    return tuple(name.removeprefix(LABEL) for name in names if name.startswith(LABEL))


def kept(table: pa.Table, where: Where | None) -> NDArray[np.bool_]:
    """Which rows are not removed and pass a filter."""
    found = ~np.asarray(table[REMOVED].to_numpy(), bool)
    for key, names in (where or {}).items():
        column = table[SPLIT if key == SPLIT else LABEL + key].combine_chunks()
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        # Names are compared once each, not for every row: there are far fewer of them.
        wanted = pc.is_in(coded.dictionary, value_set=pa.array(names, pa.string())).to_numpy(zero_copy_only=False)
        found &= np.append(wanted, False)[pc.fill_null(coded.indices, -1).to_numpy()]
    return found


def items_at(table: pa.Table, rows: NDArray[np.int64]) -> list[Item]:
    """What stands in these rows."""
    chosen = table.take(pa.array(rows)).to_pylist()
    levels = levels_of(table.column_names)
    return [
        Item(row[ID], row[PATH], row[SPLIT], {level: row[LABEL + level] for level in levels if row[LABEL + level] is not None})
        for row in chosen
    ]
