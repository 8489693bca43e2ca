"""Exact places of the positives in the total order of evaluation."""

from suprank.ranking.exact.dispatch import ordering_for
from suprank.ranking.exact.result import Judging, Ordering, Places, RankingSums, Top, TopTallies

__all__ = ["Judging", "Ordering", "Places", "RankingSums", "Top", "TopTallies", "ordering_for"]
