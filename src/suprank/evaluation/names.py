"""Names of metrics: `R@10`, `mAP@R`, `AP/genus`. One key for each, whatever way a user spells it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

OVERALL = "overall"  # what stands for all levels together where a level's name is expected

AT_K = ("R", "TR", "P", "mAP", "H-P", "H-R")  # written with a k: R@10
WHOLE = ("AP", "mAP@R", "R-P", "MRR", "H-AP", "wAP", "NDCG", "ASI")  # over the full ranking, without a k
FLAT = ("R", "TR", "P", "mAP", "AP", "mAP@R", "R-P", "MRR", "ASI")  # binary positives: one version for each level

# Lowercase, with - for _ and spaces. "AP" stands for the three APs, which the k tells apart: none, a number or R.
_SPELLINGS = {
    **{name.lower(): name for name in (*AT_K, *WHOLE) if name not in ("mAP", "mAP@R")},
    **dict.fromkeys(("map", "average-precision", "mean-average-precision"), "AP"),
    "hit-rate": "R",
    **dict.fromkeys(("r-precision", "rp"), "R-P"),
    **{"precision": "P", "mean-reciprocal-rank": "MRR", "hap": "H-AP", "h-precision": "H-P", "h-recall": "H-R"},
}
_REFUSED = {
    **dict.fromkeys(("ami", "nmi"), "it scores a clustering, not a ranking, and nothing is clustered here; leave it out"),
    "recall": "it may mean R@k (any positive in the top k) or TR@k (the share of them); write one of the two",
}


@dataclass(frozen=True)
class Metric:
    """A metric by its parts: `R@10/genus` is name "R", k 10, level "genus". `str` gives the key, `parse` the parts.

    Without a level, a flat metric is that of the finest level, and ASI is the hierarchical one. A level's name may hold
    any character but a line break, "/" and "@" too: the first "/" ends the metric.
    """

    name: str
    k: int | None = None
    level: str | None = None

    def __post_init__(self) -> None:
        if self.name not in AT_K + WHOLE:
            raise ValueError(f"metric name {self.name!r} is none of {', '.join(AT_K + WHOLE)}; parse() knows other spellings.")
        if self.name in AT_K and self.k is None:
            raise ValueError(f"{self.name} needs the length k of the list it looks at; write {self.name}@1 or {self.name}@10.")
        if self.name in WHOLE and self.k is not None:
            raise ValueError(f"{self.name} is over the full ranking and takes no k={self.k!r}; write {self.name}.")
        if self.k is not None and (isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1):
            raise ValueError(f"k={self.k!r} must be an integer of at least 1; write {self.name}@1 or {self.name}@10.")
        if self.level is not None:
            if self.name not in FLAT:
                flat = str(Metric(self.name, self.k))
                raise ValueError(f"{flat} looks at all levels at once and has no version at {self.level!r}; write {flat}.")
            check_level_name(self.level)

    def __str__(self) -> str:
        key = self.name if self.k is None else f"{self.name}@{self.k}"
        return key if self.level is None else f"{key}/{self.level}"

    @property
    def full_ranking(self) -> bool:
        """Whether it takes more than the top k of the ranking (and the number of positives) to compute it."""
        return self.k is None

    @property
    def hierarchical(self) -> bool:
        """Whether it grades the items by their level, rather than as positive or negative at one level."""
        return self.name not in FLAT or (self.name == "ASI" and self.level is None)


def parse(text: str) -> Metric:
    """The metric that `text` names: our keys in any case, pytorch-metric-learning's names and common spellings.

    Example:
        >>> parse("mAP@R/genus")
        Metric(name='mAP@R', k=None, level='genus')
        >>> [str(parse(name)) for name in ("precision_at_1", "mean_average_precision_at_r", "hit_rate@10", "map@100", "map")]
        ['P@1', 'mAP@R', 'R@10', 'mAP@100', 'AP']
    """
    if not isinstance(text, str):
        raise TypeError(f"a metric is named by text such as 'R@1', not by {text!r}.")
    head, slash, level = text.partition("/")
    spelling = head.strip().lower().replace("_", "-").replace(" ", "-")
    base, at, cut = spelling.partition("@" if "@" in spelling else "-at-")
    refused = _REFUSED.get(base)
    if refused:
        raise ValueError(f"metric {head!r} is refused: {refused}.")
    if base not in _SPELLINGS:
        raise ValueError(f"unknown metric {head!r}; {_nearest(base, cut)}.")
    return Metric(*_with_cut(_SPELLINGS[base], at, cut), level=level if slash else None)


def check_level_name(level: str) -> None:
    """Refuses what cannot stand after the "/" of a key: an empty name, or one of several lines."""
    if not isinstance(level, str) or not level or "\n" in level or "\r" in level:
        raise ValueError(f"level name {level!r} must be text of one line, at least one character long; rename the level.")


def _with_cut(name: str, at: str, cut: str) -> tuple[str, int | None]:
    """The name and its k, from what was written before and after the @."""
    if not at:
        return name, None
    if name == "AP" and cut == "r":
        return "mAP@R", None
    if not (cut.isascii() and cut.isdigit()):
        also = " or R" if name == "AP" else ""
        raise ValueError(f"k={cut!r} must be an integer of at least 1{also}; write {'mAP' if name == 'AP' else name}@10.")
    return ("mAP" if name == "AP" else name), int(cut)


def _nearest(base: str, cut: str) -> str:
    """What the user may have meant, with the k that was given, or else all there is."""
    close = difflib.get_close_matches(base, [*_SPELLINGS, *_REFUSED], n=1)
    if not close:
        return "known are " + ", ".join([f"{name}@k" for name in AT_K] + list(WHOLE))
    if close[0] in _REFUSED:
        return f"the nearest name is {close[0]}, and that is refused: {_REFUSED[close[0]]}"
    name = _SPELLINGS[close[0]]
    if name == "AP" and cut:
        name = "mAP"
    key = f"{name}@{cut.upper() or 'k'}" if name in AT_K else name
    return f"the nearest known name is {key}"
