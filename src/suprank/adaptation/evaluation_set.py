"""`EvaluationSet`: embeddings and labels that are ranked before and after, as `evaluate` takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation import evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.evaluation import Report
    from suprank.models.head import Head


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Queries `[n, width]` with labels `[n]` or `[n, levels]`, ranked against a gallery, or each other if there is none."""

    queries: NDArray[Any]
    labels: NDArray[np.int64]
    gallery: NDArray[Any] | None = None
    gallery_labels: NDArray[np.int64] | None = None
    ids: Sequence[str] | None = None
    gallery_ids: Sequence[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", np.asarray(self.labels).reshape(len(self.labels), -1))

    def evaluate(self, head: Head | None = None, **options: Any) -> Report:
        """The report of the embeddings as they are, or as the head converts them."""
        queries, gallery = self.queries, self.gallery
        if head is not None:
            queries = head.transform(queries)
            gallery = None if gallery is None else head.transform(gallery)
        return evaluate(
            queries, self.labels, gallery, self.gallery_labels, ids=self.ids, gallery_ids=self.gallery_ids, **options
        )
