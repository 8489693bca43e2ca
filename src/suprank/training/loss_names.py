"""The losses a recipe can name: of which parts each is made, and which entries of `[loss]` those read."""

from __future__ import annotations

from typing import Literal, NamedTuple

Decomposability = Literal["pairs", "proxies"]

_STEP = {"sup": {"tau", "rho", "delta", "jump", "value_at_delta"}, "smooth": {"tau"}}
_MEASURE: dict[str, set[str]] = {"ap": set(), "recall": {"ks", "rank_tau"}, "hap": {"decay"}, "ndcg": set()}
_OF_DECOMPOSABILITY = {"pairs": {"positive_floor", "negative_ceiling", "average"}, "proxies": {"temperature"}}


class LossName(NamedTuple):
    """A surrogate by name, such as "sup-ap", and a decomposability loss; either may be missing."""

    surrogate: str | None
    decomposability: Decomposability | None
    meaning: str

    def parts(self, chosen: Decomposability | None) -> tuple[str | None, Decomposability | None]:
        """Surrogate and decomposability loss, the latter as chosen where there is a choice."""
        return self.surrogate, (chosen or self.decomposability) if self.combined else self.decomposability

    @property
    def combined(self) -> bool:
        return self.surrogate is not None and self.decomposability is not None

    def reads(self, chosen: Decomposability | None) -> set[str]:
        """The entries of `[loss]` that have an effect."""
        surrogate, decomposability = self.parts(chosen)
        found = {"weight", "decomposability"} if self.combined else set()
        if surrogate is not None:
            step, _, measure = surrogate.partition("-")
            found |= {"include_self", "mixup"} | _STEP[step] | _MEASURE[measure]
        return found | (_OF_DECOMPOSABILITY[decomposability] if decomposability else set())


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
    "nsm": LossName(None, "proxies", "L*_DG alone: normalised softmax (eq:cluster_loss)"),
    "roadmap": LossName("sup-ap", "pairs", "ROADMAP: Sup-AP and L_DG (eq:roadmap)"),
    "rod-recall": LossName("sup-recall", "pairs", "ROD-R@k: Sup-R@k and L_DG (eq:def_rod_rk)"),
    "happier": LossName("sup-hap", "proxies", "HAPPIER: Sup-H-AP and L*_DG (sec:happier)"),
    "rod-ndcg": LossName("sup-ndcg", "proxies", "ROD-NDCG: Sup-NDCG and L*_DG (sec:ndcg)"),
}
