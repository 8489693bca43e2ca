"""Search stored embeddings for images or vectors: what `suprank search` does."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.system.progress import stage_progress
from suprank.workflows.heads import load_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.retrieval_data import RetrievalData
    from suprank.explorer.index import Hits
    from suprank.models import Head
    from suprank.system.progress import StageProgress

_log = logging.getLogger(__name__)
_AT_ONCE = 1024  # queries whose hits are found together


def search(
    embeddings: str | PathLike[str],
    queries: str | PathLike[str] | NDArray[Any] | None = None,
    images: Sequence[str | PathLike[str]] = (),
    *,
    model: str | None = None,
    k: int = 10,
    where: Mapping[str, Sequence[str]] | None = None,
    labels: str | PathLike[str] | None = None,
    test: str | None = None,
    head: str | PathLike[str] | Head | None = None,
    kind: str = "auto",
    recall: float = 0.95,
    server: str | None = None,
    upload: bool = False,
    trust_code: bool = False,
    progress: bool | StageProgress = True,
) -> Iterator[dict[str, Any]]:
    """The k best items for each query as dicts with the keys query, rank, id, path, score and labels, best first.

    `embeddings` is whatever `open_data` opens; the manifest of a file's rows is `labels`. The queries are vectors,
    `[queries, dim]` or a file of them, or images, which the run's own model embeds, or `model`. A query is called by its row,
    or by its image as given. The id is the row of the item, and the score the cosine. `where` maps `split` or a level to the
    names to keep. Items and vectors go through `head`.

    An index of a `kind`, with this `recall` (see `Index`), is kept beside the embeddings. With `server`, a collection on a
    Milvus server is searched instead (see `suprank.explorer.milvus`), after an `upload`, which needs no queries.

    Example:
        >>> next(suprank.search("embeddings", images=["jay.jpg"], model="model", k=1))  # doctest: +SKIP
        {'query': 'jay.jpg', 'rank': 1, 'id': 404, 'path': 'jays/3.jpg', 'score': 0.912345, 'labels': {'species': 'jay'}}
    """
    from suprank.explorer import Index
    from suprank.explorer.images import matching_rows
    from suprank.explorer.index import checked_queries
    from suprank.workflows.explorers import index_folder
    from suprank.workflows.opening import open_data

    show = stage_progress(progress)
    place, loaded = Path(embeddings), None if head is None else load_head(head)
    if (queries is None) == (not images) and not (upload and queries is None):
        raise ValueError("give what to search for, either images or queries.")
    if upload and server is None:
        raise ValueError("upload=True needs the collection to upload to, such as server='http://host:19530/birds'.")
    if server is not None and (kind, recall) != ("auto", 0.95):
        raise ValueError("a server chooses the kind and the effort of its index itself; leave out kind and recall.")
    data = open_data(place, labels, test=test, head=loaded, trust_code=trust_code, shown_in="a search", progress=show)
    manifest, items = data.items.manifest, data.items.embeddings
    rows = None
    if where:
        if manifest is None:
            raise ValueError(f"{place} has no labels to filter by; give the manifest of its rows.")
        rows = matching_rows(manifest, where, str(place))
    vectors, names = None, list[Any](map(str, images))
    if queries is not None:
        vectors, names = _read_queries(queries, loaded, data)
    elif images:
        vectors = _embed_images(names, data, model, loaded, trust_code)
    if vectors is not None:
        checked_queries(vectors.rows(slice(0, 1)).cpu().numpy(), items.dim)  # before the items are indexed or uploaded
    if server is None:
        index = Index.cached(items, index_folder(data), kind, recall, partial(show, "indexing"), _log.warning)
        find, description = partial(index.search, k=k, rows=rows), index.description
    else:
        from suprank.explorer.milvus import MilvusIndex

        collection = MilvusIndex(server)
        if upload:
            collection.upload(items, manifest, partial(show, "uploading"))
        else:
            collection.open(items)
        find, description = partial(collection.search, k=k, where=where), f"{collection.description} at {server}"
    _log.info("%s: %s items × %s, %s", place, f"{len(items):,}", items.dim, description)
    return iter(()) if vectors is None else _records(find, vectors, names, manifest)


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


def _read_queries(
    queries: str | PathLike[str] | NDArray[Any], head: Head | None, data: RetrievalData
) -> tuple[Embeddings, list[Any]]:
    """Vectors to search for, after the head, and their row numbers; refused if another model or head made them."""
    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.heads import apply_head, head_added
    from suprank.evaluation.provenance import Provenance, check_comparable

    name = "the queries" if isinstance(queries, np.ndarray) else str(queries)
    vectors = Embeddings.from_source(queries, "the queries")
    made_by = None if isinstance(queries, np.ndarray) else Provenance.read_beside(queries)
    if head is not None and (made_by is None or made_by.head != head.fingerprint()):
        vectors = apply_head(vectors, head, made_by)
        made_by = head_added(made_by, head)
    check_comparable(data.origin.made_by, made_by, (data.name, name), _log.info)
    return vectors, [*range(len(vectors))]


def _embed_images(
    files: Sequence[str], data: RetrievalData, model: str | None, head: Head | None, trust_code: bool
) -> Embeddings:
    """Embeddings of image files by the model of the gallery, read as its images were; refused if the model is another."""
    from suprank.data.images import decode_image
    from suprank.evaluation.embeddings import Embeddings
    from suprank.workflows.explorers import query_embedder

    for file in files:
        if not Path(file).is_file():
            raise FileNotFoundError(f"there is no image {file}; check the path (the working folder is {Path.cwd()}).")
    embed = query_embedder(data, model, head, None, trust_code)
    if isinstance(embed, str):
        raise ValueError(embed)
    return Embeddings.from_source(np.stack([embed(decode_image(Path(file).read_bytes(), file)) for file in files]))
