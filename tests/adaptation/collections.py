"""Synthetic embeddings: a few directions tell classes apart, and louder ones say nothing."""

import numpy as np


def clustered(classes=30, per_class=8, width=12, informative=4, noise=3.0, seed=0):
    """Embeddings `[classes · per_class, width]` float32 and labels `[N]`, in random order."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(classes), per_class))
    signal = 2 * rng.normal(size=(classes, informative))[labels] + rng.normal(size=(len(labels), informative))
    return np.hstack([signal, noise * rng.normal(size=(len(labels), width - informative))]).astype(np.float32), labels
