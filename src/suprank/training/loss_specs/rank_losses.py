"""Specs of the paper's losses: rank losses, decomposability losses and their combinations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from suprank import losses
from suprank.ranking import Sigmoid, SupStep
from suprank.training.config_types import ConfigTable, Count, Counts, NotNegative, NotNegatives, Positive, Share
from suprank.training.loss_specs.base import ItemLossSpec, ProxyLossSpec, default
from suprank.training.search_space import FloatRange, SearchSpace

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


class RankLossSpec(ItemLossSpec):
    """1 − a measure of smooth ranks."""

    include_self: bool = False
    """Rank the query among its own items, as the authors' training code does."""

    mixup: bool = False
    """SiMix: further items between two positives, by mixing similarities within the batch."""

    def loss_arguments(self, depth: int) -> dict[str, Any]:
        return {key: value for key, value in super().loss_arguments(depth).items() if key != "mixup"}

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> losses.RetrievalLoss:
        loss = super()._build_for_classes(classes, dim)
        return losses.SimilarityMixup(loss) if self.mixup else loss


class SupSpec(RankLossSpec):
    """The step of rank⁻ is `SupStep`, H⁻ (eq:h_minus)."""

    tau: Annotated[Positive, FloatRange(0.002, 0.1, log=True)] = SupStep.tau
    """τ of the sigmoid in the rank."""

    rho: NotNegative = SupStep.rho
    """ρ, the slope of H⁻ beyond δ."""

    delta: NotNegative = SupStep.delta
    """δ, where the slope of H⁻ begins."""

    jump: float = SupStep.jump
    """By how much H⁻ jumps at 0; the authors' iNaturalist recipes have 0."""

    value_at_delta: float | None = SupStep.value_at_delta
    """H⁻ just beyond δ; by default σ(δ/τ) + jump, as in the paper. The authors' recipes have 1.44, or 1 on iNaturalist."""


class SmoothSpec(RankLossSpec):
    """Both steps are sigmoids."""

    tau: Annotated[Positive, FloatRange(0.002, 0.1, log=True)] = Sigmoid.tau
    """τ of the sigmoid in the rank."""


class RecallKeys(RankLossSpec):
    """The measure is recall at k."""

    ks: Counts = default(losses.SupRecall, "ks")
    """K, the cut-offs of recall at k."""

    rank_tau: Positive = default(losses.SupRecall, "rank_tau")
    """τ* of recall at k."""


class CutKeys(RankLossSpec):
    """The measure is of the full ranking, or of its first k places."""

    k: Count | None = None
    """Optimize the measure of the first k places, AP@k or NDCG@k; by default of the full ranking."""

    rank_tau: Positive = default(losses.SupNDCG, "rank_tau")
    """τ* of the sigmoid that stands for the cut at `k`."""

    def _check_keys(self) -> None:
        super()._check_keys()
        if self.k is None and "rank_tau" in self.changed_keys():
            raise ValueError("rank_tau has no effect without k; set k, or leave rank_tau out")


class HierarchyKeys(RankLossSpec):
    """The measure is H-AP."""

    decay: NotNegative = default(losses.SupHAP, "decay")
    """α of the relevance (l/L)^α / |Ω^(l)| (eq:hierarchy_relevance); above 1, HAPPIER_F."""

    level_weights: NotNegatives | Literal["equal"] | None = None
    """w of Σ w_l AP^(l) (prop:link_hap_ap), one for each level, finest first, or `equal`; it takes the place of `decay`."""

    @property
    def depth(self) -> int | None:
        return len(self.level_weights) if isinstance(self.level_weights, tuple) else None

    def loss_arguments(self, depth: int) -> dict[str, Any]:
        arguments = super().loss_arguments(depth)
        weights = arguments.pop("level_weights")
        if weights == "equal":
            weights = (1 / depth,) * depth
        if weights is not None and len(weights) != depth:
            raise ValueError(
                f"level_weights={weights} has {len(weights)} weights, but the labels have {depth} level(s); "
                f"give one for each level, finest first."
            )
        return {**arguments, "weights": weights}

    def _check_keys(self) -> None:
        super()._check_keys()
        if self.level_weights is not None and "decay" in self.changed_keys():
            raise ValueError("level_weights takes the place of decay, so only one of them may be set; leave one out")


class SupAPSpec(CutKeys, SupSpec):
    """Sup-AP (eq:SupAP)."""

    loss_class = losses.SupAP
    name: Literal["sup-ap"] = "sup-ap"


class SupRecallSpec(RecallKeys, SupSpec):
    """Sup-R@k (eq:def_recall_loss)."""

    loss_class = losses.SupRecall
    name: Literal["sup-recall"] = "sup-recall"


class SupHAPSpec(HierarchyKeys, SupSpec):
    """Sup-H-AP (sec:happier)."""

    loss_class = losses.SupHAP
    name: Literal["sup-hap"] = "sup-hap"


class SupNDCGSpec(CutKeys, SupSpec):
    """Sup-NDCG (sec:ndcg)."""

    loss_class = losses.SupNDCG
    name: Literal["sup-ndcg"] = "sup-ndcg"


class SmoothAPSpec(CutKeys, SmoothSpec):
    """Smooth-AP: sigmoids in place of the bound."""

    loss_class = losses.SmoothAP
    name: Literal["smooth-ap"] = "smooth-ap"


class SmoothRecallSpec(RecallKeys, SmoothSpec):
    """Smooth-R@k."""

    loss_class = losses.SmoothRecall
    name: Literal["smooth-recall"] = "smooth-recall"


class SmoothHAPSpec(HierarchyKeys, SmoothSpec):
    """Smooth-H-AP."""

    loss_class = losses.SmoothHAP
    name: Literal["smooth-hap"] = "smooth-hap"


class SmoothNDCGSpec(CutKeys, SmoothSpec):
    """Smooth-NDCG."""

    loss_class = losses.SmoothNDCG
    name: Literal["smooth-ndcg"] = "smooth-ndcg"


# Decomposability losses, and the paper's combinations of both.


class PairKeys(ConfigTable):
    """L_DG on pairs (eq:labs)."""

    positive_floor: Annotated[float, FloatRange(0.7, 0.98)] = default(losses.PairCalibration, "positive_floor")
    """α of L_DG: positives below it are pulled up."""

    negative_ceiling: Annotated[float, FloatRange(0.2, 0.69)] = default(losses.PairCalibration, "negative_ceiling")
    """β of L_DG: negatives above it are pushed down."""

    average: Literal["all", "violating"] = default(losses.PairCalibration, "average")
    """The pairs that L_DG is the mean over; the authors' code takes the violating ones."""


class TemperatureKey(ConfigTable):
    """The normalized softmax over proxies (eq:cluster_loss)."""

    temperature: Annotated[Positive, FloatRange(0.02, 0.2, log=True)] = default(losses.ProxySoftmax, "temperature")
    """η of the softmax over proxies."""


class PairCalibrationSpec(PairKeys, ItemLossSpec):
    """L_DG alone (eq:labs)."""

    loss_class = losses.PairCalibration
    name: Literal["pair-calibration"] = "pair-calibration"


class NSMSpec(TemperatureKey, ProxyLossSpec):
    """L*_DG alone: normalized softmax (eq:cluster_loss)."""

    loss_class = losses.ProxySoftmax
    name: Literal["nsm"] = "nsm"


class CombinedSpec(PairKeys, TemperatureKey, SupSpec):
    """(1 − λ)·surrogate + λ·decomposability (eq:rod_framework); `loss_class` is the surrogate."""

    weight: Annotated[Share, FloatRange(0.02, 0.9)] = default(losses.Combined, "decomposability_weight")
    """λ: the weight of the decomposability loss; the surrogate has the rest."""

    decomposability: Literal["proxies", "pairs"] = "proxies"
    """L*_DG on proxies (eq:cluster_loss), which has the key `temperature`; or L_DG on pairs (eq:labs), which has
    `positive_floor`, `negative_ceiling` and `average`."""

    @property
    def has_proxies(self) -> bool:
        return self.decomposability == "proxies"

    def search_space(self) -> SearchSpace:
        """Of the keys of the decomposability loss, those of the one that is chosen."""
        unused = PairKeys if self.decomposability == "proxies" else TemperatureKey
        return {key: one for key, one in super().search_space().items() if key.removeprefix("loss.") not in unused.model_fields}

    def loss_arguments(self, depth: int) -> dict[str, Any]:
        others = {"weight", "decomposability", *PairKeys.model_fields, *TemperatureKey.model_fields}
        return {key: value for key, value in super().loss_arguments(depth).items() if key not in others}

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> losses.RetrievalLoss:
        decomposability: losses.RetrievalLoss
        if self.decomposability == "proxies":
            decomposability = losses.ProxySoftmax(len(classes), dim, temperature=self.temperature)
        else:
            decomposability = losses.PairCalibration(**{key: getattr(self, key) for key in PairKeys.model_fields})
        return losses.Combined(super()._build_for_classes(classes, dim), decomposability, self.weight)

    def _check_keys(self) -> None:
        super()._check_keys()
        other, keys = ("pairs", PairKeys) if self.decomposability == "proxies" else ("proxies", TemperatureKey)
        unused = sorted(self.changed_keys() & set(keys.model_fields))
        if unused:
            raise ValueError(
                f"{', '.join(unused)} has no effect with decomposability={self.decomposability!r}; leave it out, or set "
                f"decomposability={other!r}"
            )


class RoadmapSpec(CutKeys, CombinedSpec):
    """ROADMAP: Sup-AP and a decomposability loss (eq:roadmap)."""

    loss_class = losses.SupAP
    name: Literal["roadmap"] = "roadmap"


class RodRecallSpec(RecallKeys, CombinedSpec):
    """ROD-R@k: Sup-R@k and a decomposability loss (eq:def_rod_rk)."""

    loss_class = losses.SupRecall
    name: Literal["rod-recall"] = "rod-recall"


class HappierSpec(HierarchyKeys, CombinedSpec):
    """HAPPIER: Sup-H-AP and a decomposability loss (sec:happier)."""

    loss_class = losses.SupHAP
    name: Literal["happier"] = "happier"


class RodNDCGSpec(CutKeys, CombinedSpec):
    """ROD-NDCG: Sup-NDCG and a decomposability loss (sec:ndcg)."""

    loss_class = losses.SupNDCG
    name: Literal["rod-ndcg"] = "rod-ndcg"
