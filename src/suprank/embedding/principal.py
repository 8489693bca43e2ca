"""Mean and covariance of a manifest's features, from which a projection is computed."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from suprank.embedding.processes import Processes
from suprank.models.inference import embed
from suprank.models.pca import Moments

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from suprank.data.manifest import Manifest
    from suprank.embedding.image_loading import ImageLoaderSettings
    from suprank.models.config import Precision
    from suprank.models.embedder import Embedder


def principal_moments(
    embedder: Embedder,
    manifest: Manifest,
    *,
    reading: ImageLoaderSettings,
    device: torch.device | str | None = None,
    precision: Precision | None = None,
    processes: Processes | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Moments:
    """The moments of the features before the projection, over all images of the manifest, for `pca_projection`.

    The processes of a torchrun share the images and all return the moments of the whole.
    """
    processes = processes or Processes()
    rows = np.arange(processes.rank, len(manifest), processes.world_size)
    moments = Moments.of(embedder.features_dim)
    forward = reading.before(embedder.features)
    with closing(reading.batches(manifest, rows, pinned=str(device).startswith("cuda"))) as batches:
        for indices, features in embed(embedder, batches, device=device, precision=precision, forward=forward):
            moments.update(features)
            progress(int(np.searchsorted(rows, indices[-1])) + 1, len(rows))
    progress(len(rows), len(rows))  # broken images at the end gave nothing
    return Moments.merged(processes.gathered(moments))
