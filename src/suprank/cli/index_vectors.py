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
    from suprank.embedding import Provenance
    from suprank.embedding.provenance import Record
    from suprank.evaluation.embeddings import Embeddings, EmbeddingSource
    from suprank.explorer.index import Index
    from suprank.models import Head


def read_rows(
    path: Path, part: str | None, manifest: Path | None, head: Path | None, quiet: bool, index: Index | None = None
) -> tuple[EmbeddingSource, Manifest | None, dict[str, Any]]:
    """The embeddings after the head, their manifest, and what is known of what made them.

    `index` is the one that they are added to.
    """
    from suprank.evaluation.embeddings import Embeddings
    from suprank.explorer.index import read_embeddings
    from suprank.workflows.heads import apply_head, load_head

    loaded = None if head is None else load_head(head)
    embeddings, items, note, made_by = read_embeddings(path, part, manifest)
    if note:
        terminal.echo(note, err=True)
    known = _with_head(made_by, loaded)
    if index is not None and (loaded is None or made_by is None or made_by.head is None):
        check_made_by(index, known, str(path))
    if loaded is None:
        return embeddings, items, known
    with terminal.ProgressBars(quiet) as bars:
        return apply_head(Embeddings.from_source(embeddings, str(path)), loaded, made_by, bars), items, known


def read_queries(file: Path, head: Path | None, device: str | None, index: Index) -> Embeddings:
    """The queries in a file, after the head; refused if the vectors of the index are known to be of another model or head."""
    from suprank.embedding import Provenance
    from suprank.evaluation.embeddings import Embeddings
    from suprank.workflows.heads import apply_head, load_head

    rows, made_by = Embeddings.from_source(file), Provenance.read_beside(file)
    loaded = None if head is None else load_head(head, device)
    if loaded is None:
        check_made_by(index, made_by, str(file))
        return rows
    applied = apply_head(rows, loaded, made_by)
    check_made_by(index, _with_head(made_by, loaded), f"{file} after --head {head}")
    return Embeddings.from_source(applied, f"{rows.name} after the head")


def _with_head(made_by: Provenance | None, head: Head | None) -> dict[str, Any]:
    """What is known of embeddings after the head, if there is one."""
    known = {} if made_by is None else made_by.asdict()
    return known if head is None else {**known, "head": head.fingerprint()}


def check_made_by(index: Index, made_by: Record, what: str) -> None:
    """Refuse vectors of another model, head or image settings than those of the index; say so if that is not known."""
    from suprank.embedding.provenance import check_comparable
    from suprank.explorer.index.protocol import recorded_provenance

    info = index.info()
    names = str(info["address"]), what
    check_comparable(recorded_provenance(info), made_by, names, lambda text: terminal.echo(text, err=True))


def embed_images(
    files: Sequence[Path],
    model: str,
    weights: Path | None,
    head: Path | None,
    trust_code: bool,
    options: dict[str, Any],
    device: str | None,
    index: Index,
) -> NDArray[np.float32]:
    """Embeddings of image files, in their order, read as those of the index were where the options do not say otherwise.

    Refused if the index is of another model, head or image settings.
    """
    import numpy as np
    import torch

    from suprank.data import Manifest
    from suprank.explorer.index.protocol import recorded_provenance
    from suprank.models.inference import at_scales, embed
    from suprank.workflows.embeddings import load_embedder, loader_settings, query_provenance
    from suprank.workflows.heads import embedder_with_head

    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"there is no image {file}; check the path (the working folder is {Path.cwd()}).")
    absolute = [file.resolve() for file in files]
    paths = [file.relative_to(file.anchor).as_posix() for file in absolute]
    manifest = Manifest.from_columns({"path": paths, "split": ["query"] * len(paths)}, root=absolute[0].anchor, levels=())
    embedder = load_embedder(model, weights, trust_code=trust_code)
    if head is not None:
        embedder = embedder_with_head(embedder, head)
    recorded = recorded_provenance(index.info())
    images = {name: recorded.get(name) if given is None else given for name, given in options.items()}
    loading = loader_settings(embedder, {**images, "fast_jpeg": False, "decoder": "pil"}, 16, 0, "raise")
    scales = tuple(recorded.get("scales", (1.0,)))
    check_made_by(index, query_provenance(embedder, loading, scales), f"the model {model}")
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    batches = loading.batches(manifest, np.arange(len(paths)), pinned=False)
    forward = loading.before(at_scales(embedder, scales))
    return np.concatenate([rows for _, rows in embed(embedder, batches, device=where, forward=forward)])
