"""Heads on stored embeddings: what `--head` does in every command that reads embeddings."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike

    from numpy.typing import NDArray

    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.provenance import Provenance, Record
    from suprank.explorer import Source
    from suprank.models import Embedder, Head

    Progress = Callable[[str, int, int], None]

_log = logging.getLogger(__name__)
_OF_MODEL = ("backbone", "fingerprint")
_BLOCK_BYTES = 16 * 2**20  # of embeddings, read and transformed at once


def load_head(head: str | PathLike[str] | Head, device: str | None = None) -> Head:
    """Load a head from its folder onto the device, by default a GPU if there is one; a `Head` is returned as it is."""
    import torch

    from suprank.models import Head

    if isinstance(head, Head):
        return head
    return Head.load(head, device=device or ("cuda" if torch.cuda.is_available() else "cpu"))


def apply_head(
    embeddings: Embeddings,
    head: Head,
    made_by: Provenance | None = None,
    progress: Progress = lambda what, done, total: None,
) -> NDArray[np.float32]:
    """The embeddings after the head, `[n, out]`: in memory, or for embeddings in a file, in an unnamed temporary file.

    `made_by` says what made them, where that is known: embeddings that already went through a head are refused, and so are
    those of another width or another model; a warning says if the head was trained on images of another size.
    `progress(what, done, total)` counts rows.
    """
    from suprank.evaluation.embedding_files import map_matrices

    _check_fits(embeddings, head, made_by)
    _check_model(head, made_by, embeddings.name)
    if made_by is not None:
        warn_of_other_images(head, made_by)
    shape = len(embeddings), head.config.out_features
    blocks = _blocks(embeddings, head, progress)
    if embeddings.on_disk:
        return map_matrices(blocks, shape, np.dtype(np.float32), f"{embeddings.name} after the head")
    return np.concatenate([*blocks])


def with_head(source: Source, head: Head, progress: Progress = lambda what, done, total: None) -> Source:
    """The same queries and gallery after the head, with " with head" behind the name; labels, ids and images are the same."""
    from suprank.evaluation.embeddings import Embeddings
    from suprank.explorer.images import Images

    sides = [
        Images(
            apply_head(Embeddings.from_source(side.embeddings, source.name), head, source.provenance, progress),
            *(side.labels, side.manifest, side.ids),
        )
        for side in dict.fromkeys((source.queries, source.gallery))
    ]
    made_by = head_added(source.provenance, head)
    return replace(source, name=f"{source.name} with head", queries=sides[0], gallery=sides[-1], provenance=made_by)


def embedder_with_head(embedder: Embedder, head: str | PathLike[str] | Head) -> Embedder:
    """The embedder with a head on top; see `Embedder.with_head`. A head of another model is refused."""
    loaded = load_head(head, "cpu")
    adapted = embedder.with_head(loaded)
    own = {"backbone": embedder.config.backbone, "fingerprint": embedder.network_fingerprint()}
    _check_model(loaded, own, "the model")
    return adapted


def head_added(made_by: Provenance | None, head: Head) -> Provenance | None:
    """The provenance of embeddings after the head."""
    return None if made_by is None else replace(made_by, head=head.fingerprint())


def _check_model(head: Head, made_by: Record, what: str) -> None:
    """Refuse a head on another model than `suprank adapt` recorded: the width may fit, and the space does not."""
    from suprank.evaluation.provenance import check_comparable

    source = head.training_record.get("source")
    known = source if isinstance(source, dict) else {}
    trained_on = {key: value for key, value in {**(known.get("made_by") or {}), **known}.items() if key in _OF_MODEL}
    check_comparable(trained_on, made_by, ("the embeddings that the head was trained on", what), _log.info)


def source_of(head: Head) -> Provenance | None:
    """How the embeddings were made that the head was trained on, if `suprank adapt` recorded it."""
    from suprank.evaluation.provenance import Provenance

    source = head.training_record.get("source")
    made_by = source.get("made_by") if isinstance(source, dict) else None
    return Provenance.from_dict(made_by) if isinstance(made_by, dict) else None


def image_settings(head: Head) -> dict[str, Any]:
    """How images were read and embedded for the head's training, as fields of an `EmbedderConfig`; empty if not recorded."""
    made_by = source_of(head)
    if made_by is None:
        return {}
    names = ("resize", "squash", "interpolation", "fast_jpeg", "decoder", "precision")
    return {"image_size": (made_by.size, made_by.size), **{name: getattr(made_by, name) for name in names}}


def warn_of_other_images(head: Head, made_by: Provenance) -> None:
    """Warn if images are read or embedded differently from those that the head was trained on."""
    source = source_of(head)
    if source is not None and (differences := replace(made_by, backbone=source.backbone).differences(source)):
        _log.warning("the head was trained on embeddings of images that were read differently: %s.", "; ".join(differences))


def head_fingerprint(embedder: Embedder) -> str | None:
    """The fingerprint of the embedder's head; None without one."""
    from suprank.models import Head

    return embedder.head.fingerprint() if isinstance(embedder.head, Head) else None


def _check_fits(embeddings: Embeddings, head: Head, made_by: Provenance | None) -> None:
    config = head.config
    if made_by is not None and made_by.head is not None:
        same = made_by.head == head.fingerprint()
        which = "this head" if same else f"another head ({made_by.head[:12]}), and heads do not stack"
        raise ValueError(
            f"{embeddings.name}: these embeddings already went through {which}; leave out the head, or embed without one."
        )
    if embeddings.dim != config.in_features:
        after = " Have they gone through this head already?" if embeddings.dim == config.out_features else ""
        raise ValueError(
            f"{embeddings.name}: these embeddings have width {embeddings.dim}, but the head takes {config.in_features}; give "
            f"those of the model that the head was trained on.{after}"
        )


def _blocks(embeddings: Embeddings, head: Head, progress: Progress) -> Iterator[NDArray[np.float32]]:
    step = max(1, _BLOCK_BYTES // (4 * embeddings.dim))
    for start in range(0, len(embeddings), step):
        stop = min(start + step, len(embeddings))
        rows: NDArray[Any] = embeddings.rows(slice(start, stop)).cpu().numpy()
        yield head.transform(rows)
        progress("applying the head", stop, len(embeddings))
