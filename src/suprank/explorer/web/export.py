"""Downloads: a selection as CSV, and the manifest with a column of tags."""

from __future__ import annotations

import csv
import io
import math
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank.data.manifest import box_text
from suprank.explorer.tags import SEPARATOR, TAGS, tag_order
from suprank.explorer.web.image_metrics import result_of
from suprank.files.spreadsheets import safe_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.explorer.web.browsing import ImageSelection
    from suprank.explorer.web.explorer import Explorer

_BLOCK = 2_000  # rows that are formatted at once
_OF_EMBEDDING = "broken"  # a column that `suprank embed` adds to its manifest


def selection_csv(explorer: Explorer, selection: ImageSelection) -> Iterator[bytes]:
    """The selected images as CSV, in blocks of rows.

    Columns: path, split, the labels of every level as in a manifest, id and box if there are any, then AP and the result (right
    or wrong; blank if unmeasured) at every level for each run, and the tags. AP is a fraction. Cells that a spreadsheet would
    run as formulas begin with an apostrophe. `NotMeasuredError` is raised at once if the metrics are still being measured.
    """
    rows = explorer.browser.rows(selection)
    images = explorer.browser.sides[selection.side]
    levels, runs = explorer.data.levels, explorer.runs
    named = [f" {run.data.name}" if len(runs) > 1 else "" for run in runs]
    metrics: dict[str, tuple[NDArray[np.float64], Callable[[float], str]]] = {}
    for level in levels:
        for run, suffix in enumerate(named):
            if explorer.node_metrics[run].problem:
                continue
            ap, r1 = explorer.image_metrics.columns(run, selection.side, level)
            metrics[f"AP/{level}{suffix}"] = (ap, _number)
            metrics[f"result/{level}{suffix}"] = (r1, _result)
    tags = explorer.tags.row_tags(images.manifest)
    tag_texts = [SEPARATOR.join(one) for one in tags.sets]
    table = images.manifest.table
    names = [
        "path",
        "split",
        *(f"label_{level}" for level in levels),
        *(one for one in ("id", "box") if one in table.schema.names),
    ]

    def blocks() -> Iterator[bytes]:
        yield _csv([[*names, *metrics, TAGS]])
        for start in range(0, len(rows), _BLOCK):
            chosen = rows[start : start + _BLOCK]
            some = table.select(names).take(chosen)
            columns: list[list[Any]] = [some[name].to_pylist() for name in names]
            if "box" in names:
                columns[names.index("box")] = [box_text(box) for box in columns[names.index("box")]]
            columns += [[text(value) for value in values[chosen].tolist()] for values, text in metrics.values()]
            columns.append([tag_texts[code] for code in tags.codes[chosen].tolist()])
            yield _csv(zip(*columns, strict=True))

    return blocks()


def tagged_manifest(explorer: Explorer) -> Manifest:
    """The manifest of the first run, queries and gallery, with a column `tags`."""
    queries, gallery = (explorer.tags.add_column(side.manifest) for side in (explorer.data.queries, explorer.data.items))
    manifest = _with_more_tags(gallery, queries) if _begins_with(gallery, queries) else queries.join(gallery)
    if _OF_EMBEDDING in manifest.table.column_names:
        manifest = type(manifest)(manifest.table.drop_columns([_OF_EMBEDDING]), manifest.root, manifest.levels)
    return manifest


def manifest_file(explorer: Explorer, suffix: str) -> Path:
    """Write the manifest with tags into a temporary folder, which the caller removes, as `manifest.parquet` or `.csv`."""
    manifest = tagged_manifest(explorer)
    file = Path(tempfile.mkdtemp(prefix="suprank-")) / f"manifest{suffix}"
    try:
        manifest.save(file)
    except BaseException:
        shutil.rmtree(file.parent)
        raise
    return file


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


def _csv(rows: Any) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows(map(safe_row, rows))
    return text.getvalue().encode("utf-8", "backslashreplace")


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


def _result(r1: float) -> str:
    return "" if math.isnan(r1) else result_of(r1)
