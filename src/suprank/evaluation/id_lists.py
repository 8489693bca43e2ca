"""GLDv2's CSV files of ids: predictions (`id,images`) and its solution (`id,images,Usage`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from suprank.files.reading import reading, shorten
from suprank.files.tables import Table, column_names, read_table

if TYPE_CHECKING:
    from pathlib import Path


def read_id_lists(path: Path, *columns: str) -> tuple[Table, list[list[str]]]:
    """A table with exactly these columns, of which `id` and `images` are two, and the image ids of each row.

    Between images is one blank: a second one would make an empty id, which takes up a place in the list. One blank at the end
    is fine, as it was for Kaggle; an empty cell has no images. No id may be empty, or come twice.
    """
    with reading(path, "CSV file"):
        header, expected = ",".join(column_names(path)), ",".join(columns)
        if header != expected:
            raise ValueError(
                f"{path}:1: the header is {shorten(header)}, but {expected!r} is expected; a file without it is read wrong."
            )
        table = read_table(path)
    ids = np.array(table.column("id").to_pylist())
    texts = [text.removesuffix(" ") for text in table.column("images").to_pylist()]
    images = [text.split(" ") if text else [] for text in texts]
    again = np.ones(len(ids), bool)
    again[np.unique(ids, return_index=True)[1]] = False
    table.refuse(ids == "", lambda row: f"the id is empty; {expected!r} is expected.")
    table.refuse(again, lambda row: f"query {str(ids[row])!r} is repeated, but a query has one list; drop the others.")
    table.refuse(
        np.array(["" in one for one in images]),
        lambda row: f"{shorten(texts[row])} has a blank too many before an id; write one blank between ids.",
    )
    return table, images
