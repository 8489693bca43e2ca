"""Exact places of the positives in the total order of evaluation."""

from suprank.ranking.order.dispatch import ordering_for
from suprank.ranking.order.result import Judging, Ordering, Places, Tallies, Top, TopTallies

__all__ = ["Judging", "Ordering", "Places", "Tallies", "Top", "TopTallies", "ordering_for"]
