"""Improve embeddings that you already have: train a head on stored vectors and labels, without images or the model.

The vectors are pixels of letters here, at 16 × 16; yours may come from an API or from a frozen network. A quarter of the
letters is for the test: the head has not seen them, and raises their AP from 27 to 45 %. The interval says how sure that is.
The head is a matrix in a folder, through which all vectors go from then on.

    $ python examples/05_adapt_embeddings.py    # suprank[train]; 10 seconds on a CPU
"""

from tempfile import TemporaryDirectory

import numpy as np
import torch

from suprank.adaptation import AdaptConfig, adapt
from suprank.data import ImageDataset
from suprank.data.importers import glyphs
from suprank.models import Head

torch.set_num_threads(1)  # enough for a head, and the numbers do not depend on how many cores there are
manifest = glyphs.read(size=32)
manifest = manifest.take(np.flatnonzero(np.isin(manifest.table["label_script"], ["Armenian", "Cyrillic", "Georgian", "Greek"])))
images = np.stack([np.asarray(item.image.convert("L").resize((16, 16))) for item in ImageDataset(manifest)])
vectors = (images - images.mean(axis=(1, 2), keepdims=True)).reshape(len(images), 256).astype(np.float32)
labels = manifest.labels[:, 0]

config = AdaptConfig(loss={"name": "sup-ap"}, steps=100, batch=128, lr=3e-3, test_classes=0.25)
with TemporaryDirectory() as folder:
    result = adapt(vectors, labels, config, folder=folder)  # if interrupted, the same call continues
    head = Head.load(folder)
for metric in ("R@1", "AP"):
    low, high = (round(100 * bound) for bound in result.difference_interval(metric))
    print(
        f"{metric} of new letters: {result.before[metric]:.0%} → {result.after[metric]:.0%}, better by {low} to {high} points"
    )
print(f"{vectors.shape} → {head.transform(vectors).shape}")
