"""Names of metrics: `R@10`, `mAP@R`, `AP/genus`. Every spelling is parsed to one key."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# In place of a level's name. Where a query has no positives at some level, the two differ.
OVERALL = "overall"  # each query's mean over its levels, then the mean over queries
MEAN_OF_LEVELS = "mean-of-levels"  # each level's mean over queries, then the mean over levels
LEVEL_MEANS = (OVERALL, MEAN_OF_LEVELS)

# Written with a k: R@10. Those in "-all" are divided by all positives, TR@k and mAP@k by as many as fit into the top k.
AT_K = ("R", "TR", "recall-all", "P", "mAP", "AP-all", "MRR", "NDCG", "NDCG-linear", "H-P", "H-R")
FULL = ("AP", "mAP@R", "R-P", "MRR", "H-AP", "wAP", "NDCG", "NDCG-linear", "ASI")  # over the full ranking, without a k
GRADED = ("H-AP", "wAP", "NDCG", "NDCG-linear", "H-P", "H-R")  # of all levels at once; the others have a variant for each
FLAT = tuple(dict.fromkeys(name for name in AT_K + FULL if name not in GRADED))  # binary positives

# Lowercase, with - for _ and spaces. "AP" covers the three APs, which differ by their k: none, a number or R.
_SPELLINGS = {
    **{name.lower(): name for name in (*AT_K, *FULL) if name not in ("mAP", "mAP@R")},
    **dict.fromkeys(("map", "average-precision", "mean-average-precision"), "AP"),
    **dict.fromkeys(("hit-rate", "success"), "R"),
    **dict.fromkeys(("r-precision", "rp", "rprec"), "R-P"),
    **{
        "precision": "P",
        "mean-reciprocal-rank": "MRR",
        "recip-rank": "MRR",
        "hap": "H-AP",
        "h-precision": "H-P",
        "h-recall": "H-R",
    },
    "ndcg-burges": "NDCG",
}
_TREC_EVAL = {"ndcg-cut": "NDCG-linear", "map-cut": "AP-all", "recall": "recall-all", "success": "R", "p": "P"}
_REFUSED = {
    **dict.fromkeys(("ami", "nmi"), "it scores a clustering, not a ranking; leave it out"),
    "recall": "it may mean R@k (any positive in the top k), recall-all@k (the share of all positives that are there) or TR@k "
    "(of those that fit into the top k); write one of the three",
}


@dataclass(frozen=True)
class Metric:
    """A metric in its parts: `R@10/genus` has name "R", k 10, level "genus". `str` gives the key; `parse_metric` reads it.

    Without a level, a flat metric is that of the finest level, and ASI is the hierarchical one. A level's name may contain
    any character but a line break, even "/" and "@": the first "/" ends the metric. In its place, "overall" and
    "mean-of-levels" are means over all levels.
    """

    name: str
    k: int | None = None
    level: str | None = None

    def __post_init__(self) -> None:
        if self.name not in AT_K + FULL:
            raise ValueError(
                f"metric name {self.name!r} is none of {', '.join(AT_K + FULL)}; parse_metric() accepts other spellings."
            )
        if self.name not in FULL and self.k is None:
            raise ValueError(f"{self.name} needs the length k of the list; write {self.name}@1 or {self.name}@10.")
        if self.name not in AT_K and self.k is not None:
            raise ValueError(f"{self.name} is over the full ranking and takes no k={self.k!r}; write {self.name}.")
        if self.k is not None and (isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1):
            raise ValueError(f"k={self.k!r} must be an integer of at least 1; write {self.name}@1 or {self.name}@10.")
        if self.level is not None:
            if self.name in GRADED:
                flat = str(Metric(self.name, self.k))
                raise ValueError(f"{flat} looks at all levels at once and has no version at {self.level!r}; write {flat}.")
            check_level_name(self.level)

    def __str__(self) -> str:
        key = self.name if self.k is None else f"{self.name}@{self.k}"
        return key if self.level is None else f"{key}/{self.level}"

    def at_levels(self, names: Sequence[str]) -> list[Metric]:
        """The same metric at each of these levels."""
        return [replace(self, level=name) for name in names]

    @property
    def full_ranking(self) -> bool:
        """Whether it needs more than the top k of the ranking and the number of positives."""
        return self.k is None

    @property
    def hierarchical(self) -> bool:
        """Whether it grades the items by level, instead of counting them as positive or negative at one level."""
        return self.name in GRADED or (self.name == "ASI" and self.level is None)


def parse_metric(text: str) -> Metric:
    """Parse the name of a metric: our keys in any case, names of pytorch-metric-learning and trec_eval, common spellings.

    Example:
        >>> parse_metric("mAP@R/genus")
        Metric(name='mAP@R', k=None, level='genus')
        >>> [str(parse_metric(name)) for name in ("precision_at_1", "mean_average_precision_at_r", "hit_rate@10", "map")]
        ['P@1', 'mAP@R', 'R@10', 'AP']
        >>> [str(parse_metric(name)) for name in ("ndcg_cut_10", "recip_rank", "recall_100", "success_5", "P_20")]
        ['NDCG-linear@10', 'MRR', 'recall-all@100', 'R@5', 'P@20']
    """
    if not isinstance(text, str):
        raise TypeError(f"a metric is named by text such as 'R@1', not by {text!r}.")
    head, slash, level = text.partition("/")
    spelling = head.strip().lower().replace("_", "-").replace(" ", "-")
    trec_eval = re.fullmatch(rf"({'|'.join(_TREC_EVAL)})[-.](\d+)", spelling)
    if trec_eval:
        spelling = f"{_TREC_EVAL[trec_eval[1]].lower()}@{trec_eval[2]}"
    base, at, k = spelling.partition("@" if "@" in spelling else "-at-")
    refused = _REFUSED.get(base)
    if refused:
        raise ValueError(f"metric {head!r} is refused: {refused}.")
    if base not in _SPELLINGS:
        raise ValueError(f"unknown metric {head!r}; {_suggestion(base, k)}.")
    return Metric(*_split_k(_SPELLINGS[base], at, k), level=level if slash else None)


def check_level_name(level: str) -> None:
    """Refuse a name that cannot follow the "/" of a key: an empty one, or one with line breaks."""
    if not isinstance(level, str) or not level or "\n" in level or "\r" in level:
        raise ValueError(f"level name {level!r} must be text of one line, at least one character long; rename the level.")


def _split_k(name: str, at: str, k: str) -> tuple[str, int | None]:
    """The name and its k, from the text before and after the @."""
    if not at:
        return name, None
    if name == "AP" and k == "r":
        return "mAP@R", None
    if not (k.isascii() and k.isdigit()):
        also = " or R" if name == "AP" else ""
        raise ValueError(f"k={k!r} must be an integer of at least 1{also}; write {'mAP' if name == 'AP' else name}@10.")
    return ("mAP" if name == "AP" else name), int(k)


def _suggestion(base: str, k: str) -> str:
    """The nearest metric, with the k that was given, or else a list of all."""
    close = difflib.get_close_matches(base, [*_SPELLINGS, *_REFUSED], n=1)
    if not close:
        return "choose from " + ", ".join([f"{name}@k" for name in AT_K] + list(FULL))
    if close[0] in _REFUSED:
        return f"the nearest name is {close[0]}, and that is refused: {_REFUSED[close[0]]}"
    name = _SPELLINGS[close[0]]
    if name == "AP" and k:
        name = "mAP"
    key = f"{name}@{k.upper() or 'k'}" if name not in FULL or (k and name in AT_K) else name
    return f"the nearest known name is {key}"
