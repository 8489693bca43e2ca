"""The losses a recipe can name: of which parts each is made, and which entries of `[loss]` those read."""

from __future__ import annotations

from typing import Literal, NamedTuple

Decomposability = Literal["pairs", "proxies"]

_STEP = {"sup": {"tau", "rho", "delta", "jump", "value_at_delta"}, "smooth": {"tau"}}
_MEASURE: dict[str, set[str]] = {"ap": set(), "recall": {"ks", "rank_tau"}, "hap": {"decay", "level_weights"}, "ndcg": set()}
_OF_DECOMPOSABILITY = {"pairs": {"positive_floor", "negative_ceiling", "average"}, "proxies": {"temperature"}}


class Baseline(NamedTuple):
    """A loss of another paper: the entries of `[loss]` that it reads, whether it has proxies, and whether it looks at other
    images, and so can look at a memory of them."""

    entries: frozenset[str]
    has_proxies: bool = False
    ranks_items: bool = True


class LossName(NamedTuple):
    """A surrogate by name, such as "sup-ap", and a decomposability loss, either of which may be missing; or a baseline."""

    surrogate: str | None
    decomposability: Decomposability | None
    meaning: str
    baseline: Baseline | None = None

    def parts(self, chosen: Decomposability | None) -> tuple[str | None, Decomposability | None]:
        """Surrogate and decomposability loss, the latter as chosen where there is a choice."""
        return self.surrogate, (chosen or self.decomposability) if self.combined else self.decomposability

    @property
    def combined(self) -> bool:
        return self.surrogate is not None and self.decomposability is not None

    def reads(self, chosen: Decomposability | None) -> set[str]:
        """The entries of `[loss]` that have an effect."""
        if self.baseline is not None:
            return set(self.baseline.entries)
        surrogate, decomposability = self.parts(chosen)
        found = {"weight", "decomposability"} if self.combined else set()
        if surrogate is not None:
            step, _, measure = surrogate.partition("-")
            found |= {"include_self", "mixup"} | _STEP[step] | _MEASURE[measure]
        return found | (_OF_DECOMPOSABILITY[decomposability] if decomposability else set())

    def has_proxies(self, chosen: Decomposability | None) -> bool:
        if self.baseline is not None:
            return self.baseline.has_proxies
        return self.parts(chosen)[1] == "proxies"

    def ranks_items(self, chosen: Decomposability | None) -> bool:
        """Whether the loss looks at other images, and so can look at a memory of them."""
        if self.baseline is not None:
            return self.baseline.ranks_items
        surrogate, decomposability = self.parts(chosen)
        return surrogate is not None or decomposability == "pairs"


def _ranking(meaning: str, *entries: str) -> LossName:
    return LossName(None, None, meaning, Baseline(frozenset(entries)))


def _proxies(meaning: str, *entries: str) -> LossName:
    return LossName(None, None, meaning, Baseline(frozenset(entries), has_proxies=True, ranks_items=False))


LOSSES = {
    "sup-ap": LossName("sup-ap", None, "Sup-AP (eq:SupAP)"),
    "sup-recall": LossName("sup-recall", None, "Sup-R@k (eq:def_recall_loss)"),
    "sup-hap": LossName("sup-hap", None, "Sup-H-AP (sec:happier)"),
    "sup-ndcg": LossName("sup-ndcg", None, "Sup-NDCG (sec:ndcg)"),
    "smooth-ap": LossName("smooth-ap", None, "Smooth-AP: sigmoids in place of the bound"),
    "smooth-recall": LossName("smooth-recall", None, "Smooth-R@k"),
    "smooth-hap": LossName("smooth-hap", None, "Smooth-H-AP"),
    "smooth-ndcg": LossName("smooth-ndcg", None, "Smooth-NDCG"),
    "pair-calibration": LossName(None, "pairs", "L_DG alone (eq:labs)"),
    "nsm": LossName(None, "proxies", "L*_DG alone: normalized softmax (eq:cluster_loss)"),
    "roadmap": LossName("sup-ap", "pairs", "ROADMAP: Sup-AP and L_DG (eq:roadmap)"),
    "rod-recall": LossName("sup-recall", "pairs", "ROD-R@k: Sup-R@k and L_DG (eq:def_rod_rk)"),
    "happier": LossName("sup-hap", "proxies", "HAPPIER: Sup-H-AP and L*_DG (sec:happier)"),
    "rod-ndcg": LossName("sup-ndcg", "proxies", "ROD-NDCG: Sup-NDCG and L*_DG (sec:ndcg)"),
    "fast-ap": _ranking("FastAP: AP of a soft histogram of distances", "bins", "include_self"),
    "softbin-ap": _ranking("SoftBin-AP: AP of a soft histogram of similarities", "bins", "include_self"),
    "blackbox-ap": _ranking("BlackBox-AP: exact ranks, a solver's gradient", "interpolation", "margin", "include_self"),
    "triplet-sh": _ranking("triplets with semi-hard negatives", "margin"),
    "triplet-dw": _ranking("triplets with distance-weighted negatives", "margin", "cutoff", "farthest"),
    "contrastive-xbm": _ranking("the contrastive loss of XBM, for use with a memory", "margin"),
    "multi-similarity": _ranking("Multi-Similarity (pytorch-metric-learning's)", "alpha", "beta", "base"),
    "proxy-nca": _proxies("ProxyNCA++", "scale"),
    "proxy-anchor": _proxies("ProxyAnchor (pytorch-metric-learning's)", "margin", "scale"),
    "arcface": _proxies("ArcFace: softmax with a margin of the angle", "margin", "scale"),
    "cosface": _proxies("CosFace (pytorch-metric-learning's)", "margin", "scale"),
    "csl": _proxies("CSL: margins that grow with the level", "margins", "scale"),
    "sum-triplet-sh": _ranking("ΣTL_SH: semi-hard triplets at every level", "margin"),
    "sum-nsm": _proxies("ΣNSM: normalized softmax at every level", "temperature"),
    "sum-proxy-nca": _proxies("ΣNCA++: ProxyNCA++ at every level", "scale"),
}
