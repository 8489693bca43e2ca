"""Search stored embeddings for images or vectors: what `suprank search` does."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suprank.workflows.heads import apply_head, head_added, load_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from suprank.data import Manifest
    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.provenance import Provenance
    from suprank.explorer.faiss_search import Vectors
    from suprank.explorer.index import Hits
    from suprank.models import Head

    Progress = Callable[[str, int, int], None]

_log = logging.getLogger(__name__)
_AT_ONCE = 1024  # queries whose hits are found together


class Gallery(NamedTuple):
    """The items to search: their embeddings, the manifest of their rows and what made them, where known, and the folder of
    their index."""

    embeddings: Vectors
    manifest: Manifest | None
    made_by: Provenance | None
    index_folder: Path


def search(
    embeddings: str | PathLike[str],
    queries: str | PathLike[str] | NDArray[Any] | None = None,
    images: Sequence[str | PathLike[str]] = (),
    *,
    model: str | None = None,
    k: int = 10,
    where: Mapping[str, Sequence[str]] | None = None,
    manifest: str | PathLike[str] | None = None,
    head: str | PathLike[str] | Head | None = None,
    kind: str = "auto",
    recall: float = 0.95,
    server: str | None = None,
    upload: bool = False,
    trust_code: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Iterator[dict[str, Any]]:
    """The k best items for each query as dicts with the keys query, rank, id, path, score and labels, best first.

    `embeddings` is a folder of `suprank embed` or one of its parts, a run, or a .npy, .parquet or .pt file, whose rows
    `manifest` describes. The queries are vectors, `[queries, dim]` or a file of them, or images, which the run's own model
    embeds, or `model`. A query is called by its row, or by its image as given. The id is the row of the item, and the score
    the cosine. `where` maps `split` or a level to the names to keep. Items and vectors go through `head`.

    An index of a `kind`, with this `recall` (see `Index`), is kept beside the embeddings. With `server`, a collection on a
    Milvus server is searched instead (see `suprank.explorer.milvus`), after an `upload`, which needs no queries.

    Example:
        >>> next(suprank.search("embeddings", images=["jay.jpg"], model="model", k=1))  # doctest: +SKIP
        {'query': 'jay.jpg', 'rank': 1, 'id': 404, 'path': 'jays/3.jpg', 'score': 0.912345, 'labels': {'species': 'jay'}}
    """
    from suprank.explorer import Index
    from suprank.explorer.index import checked_queries
    from suprank.explorer.manifests import matching_rows

    place, loaded = Path(embeddings), None if head is None else load_head(head)
    if (queries is None) == (not images) and not (upload and queries is None):
        raise ValueError("give what to search for, either images or queries.")
    if upload and server is None:
        raise ValueError("upload=True needs the collection to upload to, such as server='http://host:19530/birds'.")
    if server is not None and (kind, recall) != ("auto", 0.95):
        raise ValueError("a server chooses the kind and the effort of its index itself; leave out kind and recall.")
    gallery = open_gallery(place, manifest, loaded, progress, trust_code)
    items, dim = gallery.embeddings.shape
    rows = None
    if where:
        if gallery.manifest is None:
            raise ValueError(f"{place} has no labels to filter by; give the manifest of its rows.")
        rows = matching_rows(gallery.manifest, where, str(place))
    vectors, names = None, list[Any](map(str, images))
    if queries is not None:
        vectors, names = _read_queries(queries, loaded, gallery, str(place))
    elif images:
        vectors = _embed_images(names, place, model, loaded, gallery, trust_code)
    if vectors is not None:
        checked_queries(vectors.rows(slice(0, 1)).cpu().numpy(), dim)  # before the items are indexed or uploaded
    if server is None:
        index = Index.cached(
            gallery.embeddings, gallery.index_folder, kind, recall, partial(progress, "indexing"), _log.warning
        )
        find, description = partial(index.search, k=k, rows=rows), index.description
    else:
        from suprank.explorer.milvus import MilvusIndex

        collection = MilvusIndex(server)
        if upload:
            collection.upload(gallery.embeddings, gallery.manifest, partial(progress, "uploading"))
        else:
            collection.open(gallery.embeddings)
        find, description = partial(collection.search, k=k, where=where), f"{collection.description} at {server}"
    _log.info("%s: %s items × %s, %s", place, f"{items:,}", dim, description)
    return iter(()) if vectors is None else _records(find, vectors, names, gallery.manifest)


def _records(
    find: Callable[[NDArray[np.float32]], Hits], vectors: Embeddings, names: Sequence[Any], manifest: Manifest | None
) -> Iterator[dict[str, Any]]:
    for start in range(0, len(vectors), _AT_ONCE):
        hits = find(vectors.rows(slice(start, start + _AT_ONCE)).cpu().numpy())
        for name, rows, scores in zip(names[start : start + _AT_ONCE], hits.rows.tolist(), hits.scores.tolist(), strict=True):
            for rank, (row, score) in enumerate(zip(rows, scores, strict=True), start=1):
                if row >= 0:
                    yield {"query": name, "rank": rank, "id": row, **_item(manifest, row, round(score, 6))}


def _item(manifest: Manifest | None, row: int, score: float) -> dict[str, Any]:
    if manifest is None:
        return {"path": None, "score": score, "labels": {}}
    labels = {level: manifest.table[f"label_{level}"][row].as_py() for level in manifest.levels}
    return {
        "path": manifest.paths[row].as_py(),
        "score": score,
        "labels": {level: label for level, label in labels.items() if label is not None},
    }


def open_gallery(
    place: Path,
    manifest: str | PathLike[str] | None = None,
    head: Head | None = None,
    progress: Progress = lambda what, done, total: None,
    trust_code: bool = False,
) -> Gallery:
    """The gallery of a folder of `suprank embed` or of a run, one of its parts, or a file; after the head, if there is one."""
    from suprank.data import Manifest
    from suprank.embedding import read_embedded
    from suprank.embedding.shards import ITEMS
    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.provenance import Provenance
    from suprank.workflows.explorers import open_place
    from suprank.workflows.run_embeddings import check_run_or_embeddings

    if place.is_dir():
        if manifest is not None:
            raise ValueError(f"{place} is a folder with its own manifest; leave the manifest out.")
        if (place / ITEMS).is_file():
            part = read_embedded(place.parent, place.name)
            made_by = Provenance.read(place.parent, place.name)
            opened = Gallery(part.embeddings, part.items, made_by, place / "index")
        else:
            check_run_or_embeddings(place)
            source, folder = open_place(place, None, None, None, progress, trust_code)
            opened = Gallery(source.gallery.embeddings, source.gallery.manifest, source.provenance, folder)
    elif not place.exists():
        raise FileNotFoundError(f"there is no {place}; give a folder of `suprank embed` or of a run, or a file of embeddings.")
    else:
        read = Embeddings.from_source(place)
        rows = np.load(place, mmap_mode="r") if place.suffix.lower() == ".npy" else read.rows(slice(None)).numpy()
        items = None if manifest is None else Manifest.read(manifest)
        if items is not None and len(items) != len(rows):
            raise ValueError(
                f"the manifest has {len(items):,} rows for {len(rows):,} embeddings; give the manifest of these embeddings."
            )
        opened = Gallery(rows, items, Provenance.read_beside(place), place.with_suffix(".index"))
    if opened.manifest is not None:
        opened.manifest.require_single_labels("a search")
    if head is None:
        return opened
    rows = apply_head(Embeddings.from_source(opened.embeddings, str(place)), head, opened.made_by, progress)
    folder = opened.index_folder.with_name(f"{opened.index_folder.name}-{head.fingerprint()[:12]}")
    return Gallery(rows, opened.manifest, head_added(opened.made_by, head), folder)


def _read_queries(
    queries: str | PathLike[str] | NDArray[Any], head: Head | None, gallery: Gallery, place: str
) -> tuple[Embeddings, list[Any]]:
    """Vectors to search for, after the head, and their row numbers; refused if another model or head made them."""
    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.provenance import Provenance, check_comparable

    name = "the queries" if isinstance(queries, np.ndarray) else str(queries)
    vectors = Embeddings.from_source(queries, "the queries")
    made_by = None if isinstance(queries, np.ndarray) else Provenance.read_beside(queries)
    if head is not None and (made_by is None or made_by.head != head.fingerprint()):
        vectors = Embeddings.from_source(apply_head(vectors, head, made_by), "the queries after the head")
        made_by = head_added(made_by, head)
    check_comparable(gallery.made_by, made_by, (place, name), _log.info)
    return vectors, [*range(len(vectors))]


def _embed_images(
    files: Sequence[str], place: Path, model: str | None, head: Head | None, gallery: Gallery, trust_code: bool
) -> Embeddings:
    """Embeddings of image files by the model of the gallery, read as its images were; refused if the model is another."""
    from suprank.data.images import decode_image
    from suprank.evaluation.embeddings import Embeddings
    from suprank.workflows.explorers import query_embedder

    for file in files:
        if not Path(file).is_file():
            raise FileNotFoundError(f"there is no image {file}; check the path (the working folder is {Path.cwd()}).")
    embed = query_embedder(place, model, head, gallery.made_by, None, trust_code)
    if isinstance(embed, str):
        raise ValueError(embed)
    return Embeddings.from_source(np.stack([embed(decode_image(Path(file).read_bytes(), file)) for file in files]))
