"""The vectors that `suprank index` is given: read from files, put through a head, or embedded from images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from suprank.data import Manifest
    from suprank.evaluation.embeddings import Embeddings, EmbeddingSource
    from suprank.explorer.index import Index


def read_rows(
    path: Path, part: str | None, manifest: Path | None, head: Path | None, quiet: bool, index: Index | None = None
) -> tuple[EmbeddingSource, Manifest | None, str | None]:
    """The embeddings after the head, their manifest, and the fingerprint of the head that they went through, if known.

    `index` is the one that they are added to.
    """
    from suprank.evaluation.embeddings import Embeddings
    from suprank.explorer.index import read_embeddings
    from suprank.workflows.heads import apply_head, load_head

    loaded = None if head is None else load_head(head)
    embeddings, items, note, made_by = read_embeddings(path, part, manifest)
    if note:
        terminal.echo(note, err=True)
    known = loaded.fingerprint() if loaded is not None else None if made_by is None else made_by.head
    if index is not None and (loaded is not None or made_by is not None):
        check_head(index, known, str(path))
    if loaded is None:
        return embeddings, items, known
    with terminal.ProgressBars(quiet) as bars:
        return apply_head(Embeddings.from_source(embeddings, str(path)), loaded, made_by, bars), items, known


def read_queries(file: Path, head: Path | None, device: str | None, index: Index) -> Embeddings:
    """The queries in a file, after the head; refused if the index is known to have another head."""
    from suprank.embedding import Provenance
    from suprank.evaluation.embeddings import Embeddings
    from suprank.workflows.heads import apply_head, load_head

    rows, made_by = Embeddings.from_source(file), Provenance.read_beside(file)
    if head is None:
        if made_by is not None:
            check_head(index, made_by.head, str(file))
        return rows
    loaded = load_head(head, device)
    check_head(index, loaded.fingerprint(), f"--head {head}")
    return Embeddings.from_source(apply_head(rows, loaded, made_by), f"{rows.name} after the head")


def check_head(index: Index, head: str | None, what: str) -> None:
    """Refuse vectors of another head than that of the index, where the index knows it; `head` is their fingerprint.

    An index that records no head may hold vectors that went through it elsewhere, so that is a warning only.
    """
    info = index.info()
    known = info.get("head")
    if known is None and head is not None:
        terminal.echo(
            f"warning: {info['address']} records no head, and {what} has the head {head[:12]}; unless the vectors of the index "
            f"went through it too, what is found means nothing: build the index with --head.",
            err=True,
        )
    if known is not None and known != head:
        own = "no head" if head is None else f"the head {head[:12]}"
        raise ValueError(
            f"{info['address']} was built with the head {known[:12]}, and {what} has {own}; give --head with the folder of "
            f"that head."
        )


def embed_images(
    files: Sequence[Path],
    model: str,
    weights: Path | None,
    head: Path | None,
    trust_code: bool,
    options: dict[str, Any],
    device: str | None,
) -> tuple[NDArray[np.float32], str | None]:
    """Embeddings of image files, in their order, and the fingerprint of the model's head."""
    import numpy as np
    import torch

    from suprank.data import Manifest
    from suprank.models.inference import embed
    from suprank.workflows.embeddings import load_embedder, loader_settings
    from suprank.workflows.heads import embedder_with_head, head_fingerprint

    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"there is no image {file}; check the path (the working folder is {Path.cwd()}).")
    absolute = [file.resolve() for file in files]
    paths = [file.relative_to(file.anchor).as_posix() for file in absolute]
    manifest = Manifest.from_columns({"path": paths, "split": ["query"] * len(paths)}, root=absolute[0].anchor, levels=())
    embedder = load_embedder(model, weights, trust_code=trust_code)
    if head is not None:
        embedder = embedder_with_head(embedder, head)
    loading = loader_settings(embedder, {**options, "fast_jpeg": False, "decoder": "pil"}, 16, 0, "raise")
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    batches = loading.batches(manifest, np.arange(len(paths)), pinned=False)
    embedded = [rows for _, rows in embed(embedder, batches, device=where, forward=loading.before(embedder))]
    return np.concatenate(embedded), head_fingerprint(embedder)
