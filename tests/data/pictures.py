"""Small pictures that tests encode, and manifests over them."""

import io

import numpy as np
import torch
from PIL import Image

from suprank.data.manifest import Manifest


def smooth(width=64, height=48, seed=0):
    """An RGB picture without sharp edges, so that a lossy format changes it little."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(picture, kind="PNG", **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def tensor(picture):
    """A transform; here, because spawned workers import the module it is in."""
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)


def folder(root, count=6, kind="PNG", suffix="png", **columns):
    """`count` different pictures a0.png, a1.png, ... under the root, and their manifest: three in train, the rest in test."""
    for place in range(count):
        (root / f"a{place}.{suffix}").write_bytes(encoded(smooth(seed=place), kind))
    given = {
        "path": [f"a{place}.{suffix}" for place in range(count)],
        "split": ["train" if place < 3 else "test" for place in range(count)],
        "label_fine": [f"f{place // 2}" for place in range(count)],
        "label_coarse": ["c"] * count,
    }
    return Manifest.from_columns(given | columns, root=root)
