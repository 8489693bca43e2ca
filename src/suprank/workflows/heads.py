"""Heads: loaded, and put on top of an embedder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from os import PathLike

    from suprank.models import Embedder, Head


def load_head(head: str | PathLike[str] | Head, device: str | None = None) -> Head:
    """Load a head from its folder onto the device, by default a GPU if there is one; a `Head` is returned as it is."""
    import torch

    from suprank.models import Head

    if isinstance(head, Head):
        return head
    return Head.load(head, device=device or ("cuda" if torch.cuda.is_available() else "cpu"))


def embedder_with_head(embedder: Embedder, head: str | PathLike[str] | Head) -> Embedder:
    """The embedder with a head on top; see `Embedder.with_head`. A head of another model is refused."""
    from suprank.evaluation.heads import check_model

    loaded = load_head(head, "cpu")
    adapted = embedder.with_head(loaded)
    own = {"backbone": embedder.config.backbone, "fingerprint": embedder.network_fingerprint()}
    check_model(loaded, own, "the model")
    return adapted


def image_settings(head: Head) -> dict[str, Any]:
    """How images were read and embedded for the head's training, as fields of an `EmbedderConfig`; empty if not recorded."""
    from suprank.evaluation.heads import source_of

    made_by = source_of(head)
    if made_by is None:
        return {}
    names = ("resize", "squash", "interpolation", "fast_jpeg", "decoder", "precision")
    return {"image_size": (made_by.size, made_by.size), **{name: getattr(made_by, name) for name in names}}


def head_fingerprint(embedder: Embedder) -> str | None:
    """The fingerprint of the embedder's head; None without one."""
    from suprank.models import Head

    return embedder.head.fingerprint() if isinstance(embedder.head, Head) else None
