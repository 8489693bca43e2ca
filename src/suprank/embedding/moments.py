"""Mean and covariance of the features of a manifest's images, from which a PCA projection is computed."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from suprank.embedding.processes import Processes
from suprank.models.inference import embed
from suprank.models.pca import Moments
from suprank.system.progress import progress_function

if TYPE_CHECKING:
    import torch

    from suprank.data.manifest import Manifest
    from suprank.embedding.image_loading import ImageLoaderSettings
    from suprank.models.config import Precision
    from suprank.models.embedder import Embedder
    from suprank.system.progress import Progress


def feature_moments(
    embedder: Embedder,
    manifest: Manifest,
    *,
    loading: ImageLoaderSettings,
    device: torch.device | str | None = None,
    precision: Precision | None = None,
    processes: Processes | None = None,
    progress: bool | Progress = True,
) -> Moments:
    """The moments of the features before the projection, over all images of the manifest, for `pca_projection`.

    Under torchrun the processes share the images, and all return the moments of all images.
    """
    processes = processes or Processes()
    rows = np.arange(processes.rank, len(manifest), processes.world_size)
    moments = Moments.zeros(embedder.features_dim)
    show = progress_function(progress, "embedding images")
    forward = loading.before(embedder.features)
    with closing(loading.batches(manifest, rows, pinned=str(device).startswith("cuda"))) as batches:
        for indices, features in embed(embedder, batches, device=device, precision=precision, forward=forward):
            moments.update(features)
            show(int(np.searchsorted(rows, indices[-1])) + 1, len(rows))
    show(len(rows), len(rows))  # broken images at the end were not counted
    return Moments.merge(processes.all_gather(moments))
