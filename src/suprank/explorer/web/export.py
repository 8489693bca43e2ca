"""Downloads: a selection as CSV, and the manifest with a column of tags."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from suprank.data.manifest import box_text
from suprank.explorer.tags import SEPARATOR, TAGS, tag_order
from suprank.explorer.web.image_metrics import result_of
from suprank.files.spreadsheets import csv_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suprank.data.manifest import Manifest
    from suprank.explorer.web.browsing import ImageSelection
    from suprank.explorer.web.explorer import Explorer

_BLOCK = 2_000  # rows that are formatted at once
_OF_EMBEDDING = "broken"  # a column that `suprank embed` adds to its manifest


def selection_table(explorer: Explorer, selection: ImageSelection) -> pa.Table:
    """The selected images: path, split, labels as in a manifest, id and box if there are any, AP (a fraction) and result (right
    or wrong) at every level for each run, null if unmeasured, and the tags.

    `NotMeasuredError` is raised if the metrics are still being measured.
    """
    rows = explorer.browser.rows(selection)
    manifest = explorer.tags.add_column(explorer.browser.sides[selection.side].manifest)
    levels, runs = explorer.data.levels, explorer.runs
    names = ["path", "split", *(f"label_{level}" for level in levels)]
    names += [one for one in ("id", "box") if one in manifest.table.column_names]
    table = manifest.table.select([*names, TAGS]).take(pa.array(rows))
    if "box" in names:
        boxes = pa.array([box_text(box) for box in table["box"].to_pylist()], pa.string())
        table = table.set_column(names.index("box"), "box", boxes)
    for level in levels:
        for run, metrics in enumerate(explorer.node_metrics):
            if not metrics.problem:
                ap, r1 = (values[rows] for values in explorer.image_metrics.columns(run, selection.side, level))
                name = f"{level} {runs[run].data.name}" if len(runs) > 1 else level
                results = [result_of(one) for one in r1.tolist()]
                table = table.add_column(table.num_columns - 1, f"AP/{name}", pa.array(ap.round(6), from_pandas=True))
                known = pa.array(results, pa.string(), mask=np.isnan(r1))
                table = table.add_column(table.num_columns - 1, f"result/{name}", known)
    return table


def csv_blocks(table: pa.Table) -> Iterator[bytes]:
    """The table as CSV, block by block. Cells that a spreadsheet would run as formulas begin with an apostrophe."""
    yield csv_bytes(table.column_names, [])
    for batch in table.to_batches(max_chunksize=_BLOCK):
        first, *others = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        yield csv_bytes(first, others)


def tagged_manifest(explorer: Explorer) -> Manifest:
    """The manifest of the first run, queries and gallery, with a column `tags`."""
    queries, gallery = (explorer.tags.add_column(side.manifest) for side in (explorer.data.queries, explorer.data.items))
    manifest = _with_more_tags(gallery, queries) if _begins_with(gallery, queries) else queries.join(gallery)
    if _OF_EMBEDDING in manifest.table.column_names:
        manifest = type(manifest)(manifest.table.drop_columns([_OF_EMBEDDING]), manifest.root, manifest.levels)
    return manifest


def manifest_bytes(manifest: Manifest, suffix: str) -> bytes:
    """The manifest as a .parquet or .csv file."""
    with tempfile.TemporaryDirectory(prefix="suprank-") as folder:
        file = Path(folder) / f"manifest{suffix}"
        manifest.save(file)
        return file.read_bytes()


def _begins_with(gallery: Manifest, queries: Manifest) -> bool:
    """Whether the first images of the gallery are the queries, as for test images among distractors."""
    own, root = queries.root.resolve(), gallery.root.resolve()
    if not own.is_relative_to(root):
        return False
    inside = "" if own == root else f"{own.relative_to(root).as_posix()}/"
    return gallery.paths.slice(0, len(queries)).to_pylist() == [inside + path for path in queries.paths.to_pylist()]


def _with_more_tags(gallery: Manifest, queries: Manifest) -> Manifest:
    """The gallery, whose first images are the queries, with the tags that these have as queries.

    If the gallery has distractors of another folder, its paths begin at a folder above both, and a tag knows only one path.
    """
    more, texts = queries.table[TAGS].to_pylist(), gallery.table[TAGS].to_pylist()
    for row, (one, other) in enumerate(zip(more, texts, strict=False)):
        if one and one != other:
            tags = {*one.split(SEPARATOR), *other.split(SEPARATOR)} - {""}
            texts[row] = SEPARATOR.join(sorted(tags, key=tag_order))
    return gallery.with_columns(**{TAGS: texts})
