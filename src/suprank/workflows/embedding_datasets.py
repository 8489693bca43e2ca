"""Hugging Face datasets with a column of embeddings, as `RetrievalData`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from suprank.data.manifest import Manifest
    from suprank.evaluation.retrieval_data import RetrievalData


def is_dataset(place: Path) -> bool:
    """Whether this is a Hugging Face dataset with vectors: an Arrow file, or a folder of `save_to_disk` or of Parquet files."""
    if place.suffix.lower() == ".arrow" and place.is_file():
        return _has_vectors(place)
    if not place.is_dir():
        return False
    from suprank.embedding.parts import has_embeddings

    patterns = () if has_embeddings(place) else ("*.arrow", "*/*.arrow", "*.parquet", "data/*.parquet")
    return any(_has_vectors(file) for pattern in patterns for file in place.glob(pattern))


def _has_vectors(file: Path) -> bool:
    from suprank.data.columnar import is_vector, read_arrow
    from suprank.files.binary import open_parquet

    if file.suffix.lower() == ".arrow":
        schema = read_arrow(file).schema
    else:
        with open_parquet(file) as opened:
            schema = opened.schema_arrow
    return any(is_vector(column.type) and column.name != "box" for column in schema)


def import_dataset(
    place: Path, levels: Sequence[str], id_column: str | None = None, label_separator: str | None = None
) -> Manifest:
    """The manifest of a Hugging Face dataset, with what `suprank data import hf` takes for labels and ids."""
    from suprank.data.importers.hf import import_hf

    found = import_hf(place, levels=levels or None, id=id_column, label_separator=label_separator)
    (manifest,) = found.manifests.values()
    return manifest


def read_splits(place: Path, manifest: Manifest, chosen: Sequence[str] = ()) -> RetrievalData:
    """The splits of a Hugging Face dataset that are ranked (see `ranked_parts`), or the chosen ones."""
    from suprank.embedding.query_gallery import combine_parts, ranked_parts
    from suprank.evaluation.embedding_files import table_embeddings
    from suprank.evaluation.retrieval_data import Origin

    splits = {split: manifest.split(split) for split in chosen or ranked_parts(manifest.splits)}
    return combine_parts(
        {split: (table_embeddings(rows.table, str(place)), rows) for split, rows in splits.items()},
        name=place.resolve().name,
        origin=Origin(place, place),
    )
