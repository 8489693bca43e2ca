"""Ranked lists (`RankingRun`) and relevance judgments (`Qrels`), in the file formats of TREC, ranx and GLDv2."""

from suprank.evaluation.rankings.qrels import Qrels
from suprank.evaluation.rankings.ranking_run import RankingRun

__all__ = ["Qrels", "RankingRun"]
