"""The exact order that metrics are computed from: where each positive stands among all items, ties broken.

Losses use `suprank.ranking.ranks` instead; docs/ranking.md says why there are two.
"""

from suprank.ranking.exact.dispatch import OrderingName, choose_ordering
from suprank.ranking.exact.result import OnePassOrdering, Ordering, Places, RankingSums, Top, TopSums

__all__ = ["OnePassOrdering", "Ordering", "OrderingName", "Places", "RankingSums", "Top", "TopSums", "choose_ordering"]
