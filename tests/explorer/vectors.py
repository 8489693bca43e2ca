"""Small collections to index: vectors around class centers, with paths and labels that are hard to spell."""

import numpy as np

from suprank.data import Manifest

DIM = 16
LEVELS = ("Art (ä.b)", "genus")


def drawn(items, dim=DIM, seed=0, classes=12, noise=0.6):
    """Embeddings `[items, dim]` of any length, float32."""
    draw = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(classes, dim))
    vectors = centers[np.arange(items) % classes] + noise * draw.normal(size=(items, dim))
    return (vectors * draw.uniform(0.5, 2, (items, 1))).astype(np.float32)


def labeled(items, classes=12):
    """Their manifest: a class of `drawn` is a species, three of them a genus; every second image is for test."""
    kind = [number % classes for number in range(items)]
    return Manifest.from_columns(
        {
            "path": [f"Vögel/{one}/鳥 {number}.jpg" for number, one in enumerate(kind)],
            "split": ["gallery" if number % 2 else "test" for number in range(items)],
            "label_" + LEVELS[0]: [f'Häher "{one}" \\ <b>' for one in kind],
            "label_" + LEVELS[1]: [f"genus {one // 3}" for one in kind],
        },
        root=".",
    )


def best(queries, vectors, k):
    """The k best rows of each query, and their cosines, by numpy in float64."""
    ours, theirs = (one / np.linalg.norm(one.astype(np.float64), axis=1, keepdims=True) for one in (queries, vectors))
    scores = ours @ theirs.T
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return rows, np.take_along_axis(scores, rows, 1)
