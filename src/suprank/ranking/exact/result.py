"""The results of the exact order, and what every way to compute it offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch

from suprank.ranking.ranks.definition import Ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Integer
    from torch import Tensor


class Places(NamedTuple):
    """The positives of each query in the order of evaluation, `[queries, positives]`, with their places among all items.

    Items stand in a total order: score descending, on equal scores the lower level first. So a tie with a worse item is
    an error, equal items of one level are interchangeable, and no two items share a place. Rows with fewer positives
    end in padding, of level 0.
    """

    level: Tensor  # int8
    place: Tensor  # int32, from 1 on; in the padding any value

    def ranks(self, current: int = 1) -> Ranks:
        """rank⁺ and rank⁻ when the positives are the items of level `current` or deeper (eq:sup_ap_level), in float64."""
        positive = self.level >= current
        plus = positive.cumsum(-1, dtype=torch.float64).where(positive, 0)
        return Ranks(plus, (self.place - plus).where(positive, torch.inf))

    def graded_ranks(self, relevance: Float[Tensor, "queries depth"]) -> Ranks:
        """rank⁺, rank⁻ and H-rank⁺ (eq:hierarchical_rank); `relevance[:, l − 1]` is that of the query's items of level l."""
        depth = relevance.shape[1]
        own = self.relevances(relevance)
        at_or_above, hierarchical = torch.zeros_like(own), torch.zeros_like(own)
        for current in range(1, depth + 1):
            count = (self.level == current).cumsum(-1, dtype=torch.float64)
            at_or_above += count.where(self.level <= current, 0)
            hierarchical += count * torch.minimum(own, relevance[:, current - 1, None])
        positive = self.level > 0
        return Ranks(
            at_or_above.where(positive, 0),
            (self.place - at_or_above).where(positive, torch.inf),
            hierarchical.where(positive, 0),
        )

    def relevances(self, relevance: Float[Tensor, "queries depth"]) -> Float[Tensor, "queries positives"]:
        """The relevance of each listed positive, 0 in the padding, in float64."""
        with_zero = torch.nn.functional.pad(relevance.double(), (1, 0))
        return with_zero.gather(1, self.level.long())


class RankingSums(NamedTuple):
    """Sums over the full ranking, one value per query and level (column 0 is level 1, the coarsest), or one per query; float64.

    A level at which a query has no positives gets 0 and a `first` of ∞; the metric that divides decides what that means.
    """

    precision: Tensor  # [queries, depth]: Σ_k rank⁺(k) / rank(k) over the positives of level l or deeper
    precision_in_r: Tensor  # [queries, depth]: ... over those among the first R = |Ω^{+,l}| places
    found_in_r: Tensor  # [queries, depth]: how many those are
    intersection: Tensor  # [queries, depth]: Σ_n SI(n) of the binary list, n = 1..R
    first: Tensor  # [queries, depth]: the place of the first of them
    discount: Tensor  # [queries, depth]: Σ_k 1 / log2(1 + rank(k)), from which DCG follows for any gain of the levels
    hierarchical: Tensor  # [queries]: Σ_k H-rank⁺(k) / rank(k)
    graded_intersection: Tensor  # [queries]: Σ_n SI(n) against the ideal list of all levels, n = 1..|Ω⁺|


class TopSums(NamedTuple):
    """Sums over the first k items, for each of several k; float64."""

    found: Tensor  # [queries, ks, depth]: how many positives of level l or deeper are among them
    precision: Tensor  # [queries, ks, depth]: Σ_p rank⁺(p) / rank(p) over these
    discount: Tensor  # [queries, ks, depth]: Σ_p 1 / log2(1 + rank(p)) over these
    reciprocal: Tensor  # [queries, ks, depth]: 1 / place of the first of these; 0 where there is none
    relevance: Tensor  # [queries, ks]: Σ_j rel(j) over the first k items
    hierarchical: Tensor  # [queries, ks]: H-P@k (eq:hierarchical_precision); the share of positives where the k-th is none


class Top(NamedTuple):
    """The best k of each query, `[queries, k]`: scores, descending, and item numbers."""

    scores: Tensor
    item: Tensor  # int64


class Ordering(Protocol):
    """A way to find places and add up what follows from them; all ways give the same numbers."""

    def take(
        self,
        scores: Float[Tensor, "queries items"],
        item: Integer[Tensor, "..."],
        first: int,
        into: Float[Tensor, "queries wanted"],
    ) -> None:
        """Take the wanted items out of the rows: their scores go `into` the result, and −∞ stays behind.

        `item` is `[wanted]`, the same for every query, or `[queries, wanted]` with −1 for nothing; a row's items are all
        different. `scores` begin with the item numbered `first`; items that are not among them leave `into` as it is.
        """
        ...

    def sort_positives(
        self, scores: Float[Tensor, "queries positives"], level: Integer[Tensor, "queries positives"]
    ) -> tuple[Float[Tensor, "queries positives"], Integer[Tensor, "queries positives"]]:
        """Positives by score descending, on equal scores the lower level first. Padding has level 0 and score −∞."""
        ...

    def count_at_or_above(
        self, thresholds: Float[Tensor, "queries positives"], scores: Float[Tensor, "queries items"]
    ) -> Integer[Tensor, "queries positives"]:
        """How many of the query's scores are equal to each threshold or above it; thresholds descend along the row."""
        ...

    def ranking_sums(
        self,
        places: Places,
        sizes: Integer[Tensor, "queries depth"],
        relevance: Float[Tensor, "queries depth"],
    ) -> RankingSums:
        """The sums over the full ranking; `sizes[:, l − 1]` is |Ω^{+,l}|, the number of items of level l or deeper."""
        ...

    def top_sums(self, places: Places, relevance: Float[Tensor, "queries depth"], ks: Sequence[int]) -> TopSums:
        """The sums over the first k items; positives beyond the largest k may be missing from the places."""
        ...

    def top(self, scores: Float[Tensor, "queries items"], k: int, first: int = 0, best: Top | None = None) -> Top:
        """The k highest scores of each row, or all if there are fewer; of equal scores, items of lower numbers come first.

        `scores` begin with the item numbered `first`. `best` is the top of the items before it, with which theirs is merged.
        """
        ...


@runtime_checkable
class OnePassOrdering(Protocol):
    """An ordering that can also do everything in one pass, where positives lie side by side among the items."""

    def one_pass_sums(
        self,
        scores: Float[Tensor, "queries items"],
        start: Integer[Tensor, "queries depth"],
        end: Integer[Tensor, "queries depth"],
        ignored: Integer[Tensor, "queries ignored"],
        sizes: Integer[Tensor, "queries depth"],
        relevance: Float[Tensor, "queries depth"],
        ks: Sequence[int],
    ) -> tuple[RankingSums, TopSums]:
        """The sums over the full ranking and over the first k items; the scores are overwritten.

        The items of level l or deeper are those from `start[:, l − 1]` to `end[:, l − 1]`, apart from ignored ones.
        """
        ...
