"""Give a model a projection that is a PCA of the features of a collection."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

    from suprank.data.manifest import Manifest
    from suprank.embedding import ImageLoaderSettings
    from suprank.models import Embedder
    from suprank.system.progress import Progress

_log = logging.getLogger(__name__)


def save_pca(
    embedder: Embedder,
    images: Manifest,
    out: str | PathLike[str],
    *,
    dim: int,
    whiten: bool = False,
    loading: ImageLoaderSettings,
    device: str | None = None,
    progress: bool | Progress = True,
) -> Embedder:
    """Save the embedder with a projection onto the `dim` main directions of these images' features, and return it.

    It replaces the projection that the embedder has, and images are from now on loaded as for the PCA. Under torchrun the
    processes share the images, and the first one saves.
    """
    from suprank.embedding import feature_moments, torchrun_processes
    from suprank.models import pca_projection
    from suprank.workflows.embeddings import as_embedder_config

    if dim > embedder.features_dim:
        raise ValueError(
            f"dim={dim} is more than the {embedder.features_dim} features of {embedder.config.backbone}; give fewer."
        )
    with torchrun_processes() as processes:
        moments = feature_moments(
            embedder, images, loading=loading, device=processes.device(device), processes=processes, progress=progress
        )
        projected = embedder.with_projection(*pca_projection(moments, dim, whiten=whiten))
        projected.config = projected.config.model_copy(update=as_embedder_config(loading))
        if processes.rank == 0:
            projected.save(out)
            whitened = ", whitened" * whiten
            _log.info("a PCA of %s images: %d features → %d%s", f"{moments.count:,}", embedder.features_dim, dim, whitened)
        processes.barrier()
    return projected
