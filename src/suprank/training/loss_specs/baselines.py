"""Specs of the losses of other papers, which the paper compares with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from suprank import losses
from suprank.training.config_types import NotNegative, Numbers, Positive, Share
from suprank.training.loss_specs.base import Bins, ItemLossSpec, LevelSumSpec, ProxyLossSpec, default
from suprank.training.loss_specs.rank_losses import TemperatureKey
from suprank.training.search_space import Choices, FloatRange

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


class FastAPSpec(ItemLossSpec):
    """FastAP: AP of a soft histogram of distances."""

    loss_class = losses.FastAP
    name: Literal["fast-ap"] = "fast-ap"

    bins: Annotated[Bins, Choices((5, 10, 20, 40))] = default(losses.FastAP, "bins")
    """Bins of the histogram."""

    include_self: bool = False
    """Rank the query among its own items."""


class SoftBinAPSpec(ItemLossSpec):
    """SoftBin-AP: AP of a soft histogram of similarities."""

    loss_class = losses.SoftBinAP
    name: Literal["softbin-ap"] = "softbin-ap"

    bins: Annotated[Bins, Choices((10, 20, 40))] = default(losses.SoftBinAP, "bins")
    """Bins of the histogram."""

    include_self: bool = False
    """Rank the query among its own items."""


class BlackBoxAPSpec(ItemLossSpec):
    """BlackBox-AP: exact ranks, a solver's gradient."""

    loss_class = losses.BlackBoxAP
    name: Literal["blackbox-ap"] = "blackbox-ap"

    interpolation: Annotated[Positive, FloatRange(0.4, 40.0, log=True)] = default(losses.BlackBoxAP, "interpolation")
    """λ: how far the solver steps along the gradient."""

    margin: Annotated[float, FloatRange(0.002, 0.2, log=True)] = default(losses.BlackBoxAP, "margin")
    """Scale of the noise on the scores."""

    include_self: bool = False
    """Rank the query among its own items."""


class TripletSemiHardSpec(ItemLossSpec):
    """Triplets with semi-hard negatives."""

    loss_class = losses.TripletSemiHard
    name: Literal["triplet-sh"] = "triplet-sh"

    margin: Annotated[float, FloatRange(0.01, 0.5, log=True)] = default(losses.TripletSemiHard, "margin")
    """Margin between cosine similarities."""


class DistanceWeightedTripletSpec(ItemLossSpec):
    """Triplets with distance-weighted negatives."""

    loss_class = losses.DistanceWeightedTriplet
    name: Literal["triplet-dw"] = "triplet-dw"

    margin: Annotated[float, FloatRange(0.02, 0.6, log=True)] = default(losses.DistanceWeightedTriplet, "margin")
    """Margin between distances."""

    cutoff: Positive = default(losses.DistanceWeightedTriplet, "cutoff")
    """Distance below which negatives are not drawn more often."""

    farthest: Positive = default(losses.DistanceWeightedTriplet, "farthest")
    """Distance beyond which no negatives are drawn."""


class ContrastiveXBMSpec(ItemLossSpec):
    """The contrastive loss of XBM, for use with a memory."""

    loss_class = losses.ContrastiveXBM
    name: Literal["contrastive-xbm"] = "contrastive-xbm"

    margin: Annotated[float, FloatRange(0.1, 0.9)] = default(losses.ContrastiveXBM, "margin")
    """Cosine similarity above which negatives count."""


class ContrastiveKoLeoSpec(ItemLossSpec):
    """IRT_R: contrastive, with a differential entropy regularizer."""

    loss_class = losses.ContrastiveKoLeo
    name: Literal["irt-r"] = "irt-r"

    margin: Annotated[float, FloatRange(0.1, 0.9)] = default(losses.ContrastiveKoLeo, "margin")
    """β: cosine similarity above which negatives count."""

    entropy_weight: Annotated[NotNegative, FloatRange(0.05, 2.0, log=True)] = default(losses.ContrastiveKoLeo, "entropy_weight")
    """λ of the entropy of the batch."""


class MultiSimilaritySpec(ItemLossSpec):
    """Multi-Similarity (pytorch-metric-learning's)."""

    loss_class = losses.MultiSimilarity
    name: Literal["multi-similarity"] = "multi-similarity"

    alpha: Annotated[Positive, FloatRange(0.5, 20.0, log=True)] = default(losses.MultiSimilarity, "alpha")
    """How much the farthest positives count."""

    beta: Annotated[Positive, FloatRange(10.0, 100.0, log=True)] = default(losses.MultiSimilarity, "beta")
    """How much the nearest negatives count."""

    base: Annotated[float, FloatRange(0.1, 0.9)] = default(losses.MultiSimilarity, "base")
    """λ: the similarity that parts positives from negatives."""


class CrossEntropySpec(ProxyLossSpec):
    """Cross entropy of a linear classifier."""

    loss_class = losses.CrossEntropy
    name: Literal["cross-entropy"] = "cross-entropy"

    label_smoothing: Annotated[Share, FloatRange(0.0, 0.3)] = default(losses.CrossEntropy, "label_smoothing")
    """Share of the probability that is spread over all classes."""


class ProxyNCASpec(ProxyLossSpec):
    """ProxyNCA++."""

    loss_class = losses.ProxyNCA
    name: Literal["proxy-nca"] = "proxy-nca"

    scale: Annotated[Positive, FloatRange(1.0, 10.0, log=True)] = default(losses.ProxyNCA, "scale")
    """1/√T of the softmax over proxies."""


class ProxyAnchorSpec(ProxyLossSpec):
    """ProxyAnchor (pytorch-metric-learning's)."""

    loss_class = losses.ProxyAnchor
    name: Literal["proxy-anchor"] = "proxy-anchor"

    margin: Annotated[float, FloatRange(0.01, 0.5, log=True)] = default(losses.ProxyAnchor, "margin")
    """Margin of the cosine similarity."""

    scale: Annotated[Positive, FloatRange(8.0, 128.0, log=True)] = default(losses.ProxyAnchor, "scale")
    """Scale of the cosine similarity."""


class ArcFaceSpec(ProxyLossSpec):
    """ArcFace: softmax with a margin of the angle."""

    loss_class = losses.ArcFace
    name: Literal["arcface"] = "arcface"

    margin: Annotated[float, FloatRange(0.05, 0.8)] = default(losses.ArcFace, "margin")
    """Margin of the angle, in radians."""

    scale: Annotated[Positive, FloatRange(8.0, 128.0, log=True)] = default(losses.ArcFace, "scale")
    """Scale of the cosine similarity."""


class CosFaceSpec(ProxyLossSpec):
    """CosFace (pytorch-metric-learning's)."""

    loss_class = losses.CosFace
    name: Literal["cosface"] = "cosface"

    margin: Annotated[float, FloatRange(0.05, 0.6)] = default(losses.CosFace, "margin")
    """Margin of the cosine similarity."""

    scale: Annotated[Positive, FloatRange(8.0, 128.0, log=True)] = default(losses.CosFace, "scale")
    """Scale of the cosine similarity."""


class CSLSpec(ProxyLossSpec):
    """CSL: margins that grow with the level."""

    loss_class = losses.CSL
    name: Literal["csl"] = "csl"

    margins: Numbers | None = None
    """Margins, one for each level, finest first; by default the authors'."""

    scale: Annotated[Positive, FloatRange(8.0, 128.0, log=True)] = default(losses.CSL, "scale")
    """Scale of the cosine similarity."""

    @property
    def depth(self) -> int | None:
        return len(self.margins) if self.margins else None

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> losses.RetrievalLoss:
        return losses.CSL(classes, dim, **self.loss_arguments(classes.shape[1]))


class SumTripletSemiHardSpec(LevelSumSpec, ItemLossSpec):
    """ΣTL_SH: semi-hard triplets at every level."""

    loss_class = losses.TripletSemiHard
    name: Literal["sum-triplet-sh"] = "sum-triplet-sh"

    margin: Annotated[float, FloatRange(0.01, 0.5, log=True)] = default(losses.TripletSemiHard, "margin")
    """Margin between cosine similarities."""


class SumNSMSpec(LevelSumSpec, TemperatureKey, ProxyLossSpec):
    """ΣNSM: normalized softmax at every level."""

    loss_class = losses.ProxySoftmax
    name: Literal["sum-nsm"] = "sum-nsm"


class SumProxyNCASpec(LevelSumSpec, ProxyLossSpec):
    """ΣNCA++: ProxyNCA++ at every level."""

    loss_class = losses.ProxyNCA
    name: Literal["sum-proxy-nca"] = "sum-proxy-nca"

    scale: Annotated[Positive, FloatRange(1.0, 10.0, log=True)] = default(losses.ProxyNCA, "scale")
    """1/√T of the softmax over proxies."""
