"""Labels by their spelling: no model, no download. Labels that share parts of words come near each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.hierarchy.encoders.protocol import unit_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.hierarchy.encoders.protocol import Progress

SHORTEST, LONGEST, MOST_DIMENSIONS, SEED = 3, 5, 256, 0
FAINT = 1e-5
"""What the singular vectors leave of a label below this length is rounding, not a direction."""


class Tfidf:
    """Pieces of 3 to 5 letters within words, weighted by TF-IDF, brought to 256 dimensions by a truncated SVD.

    Up to 256 labels (or pieces) there is nothing to reduce: the vectors are the TF-IDF weights themselves, and their cosines
    exact. The same texts in the same order give the same vectors: seed and signs are fixed, and one thread adds up.
    """

    prompted = False  # its letters would be in every label, and make all alike

    def fingerprint(self) -> dict[str, Any]:
        from importlib.metadata import version

        return {
            "name": "tfidf",
            "scikit-learn": version("scikit-learn"),
            "letters": [SHORTEST, LONGEST],
            "dimensions": MOST_DIMENSIONS,
            "seed": SEED,
        }

    def encode(self, texts: Sequence[str], progress: Progress) -> NDArray[np.float32]:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
        from threadpoolctl import threadpool_limits

        progress(0, len(texts))
        if not any(text.strip() for text in texts):
            return np.zeros((len(texts), 1), np.float32)  # scikit-learn refuses an empty vocabulary
        weights = TfidfVectorizer(analyzer="char_wb", ngram_range=(SHORTEST, LONGEST)).fit_transform(texts)
        if min(weights.shape) > MOST_DIMENSIONS:
            with threadpool_limits(1):
                vectors = TruncatedSVD(MOST_DIMENSIONS, random_state=SEED).fit_transform(weights)  # it fixes the signs
        else:
            vectors = weights.toarray()
        progress(len(texts), len(texts))
        return unit_rows(vectors, FAINT)
