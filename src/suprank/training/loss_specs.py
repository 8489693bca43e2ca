"""The losses that a recipe can name, one spec each: its class, its keys with their defaults, and how it is built.

`[loss] name` chooses the spec, and the other keys of the table are those of the spec: a key that the loss does not have is an
error. A new loss of the package needs its class in `suprank.losses` and a spec here (or in any module that is imported), and
nothing else; the first line of the spec's docstring is its description in `suprank recipes --losses`:

    class FastAPSpec(ItemLossSpec):
        \"""FastAP: AP of a soft histogram of distances.\"""

        loss_class = losses.FastAP
        name: Literal["fast-ap"] = "fast-ap"
        bins: Bins = default(losses.FastAP, "bins")

A loss outside of the package needs no spec: `CustomLossSpec` takes any `mine.py:MyLoss` (see docs/own-loss.md).
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import BeforeValidator, Field, JsonValue, SerializeAsAny, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from suprank import losses
from suprank.ranking import Sigmoid, SupStep
from suprank.system import custom_code
from suprank.training.config_types import ConfigTable, Counts, NotNegative, NotNegatives, Numbers, Positive, Share
from suprank.training.custom_loss import CustomLoss, build_custom_loss

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor, nn

Bins = Annotated[int, Field(ge=2)]

_SPECS: dict[str, type[LossSpec]] = {}


def loss_specs() -> dict[str, type[LossSpec]]:
    """The spec of every loss that has a name, by that name."""
    return dict(_SPECS)


def default(loss_class: type, argument: str) -> Any:
    """The default of an argument of the class's constructor, so that it is written in one place."""
    return inspect.signature(loss_class).parameters[argument].default


class LossSpec(ConfigTable):
    """The table `[loss]` of a recipe. Every loss has a subclass, which registers itself under its `name`."""

    loss_class: ClassVar[type[losses.RetrievalLoss]]

    name: str
    """A name that `suprank recipes --losses` lists, or a loss of your own: `mine.py:MyLoss` or `package.module:MyLoss`."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        name = cls.model_fields["name"].default
        if isinstance(name, str):
            _SPECS[name] = cls

    @classmethod
    def key_names(cls) -> tuple[str, ...]:
        """The keys of `[loss]` beside `name`."""
        return tuple(key for key in cls.model_fields if key != "name")

    @classmethod
    def description(cls) -> str:
        """One line that says which loss it is."""
        return inspect.getdoc(cls).partition("\n")[0].removesuffix(".")  # type: ignore[union-attr]

    @property
    def has_proxies(self) -> bool | None:
        """Whether the loss has parameters of its own, which `[proxies]` trains; None if only the built loss can tell."""
        return False

    @property
    def compares_items(self) -> bool | None:
        """Whether the loss compares images with each other, so that it can use a memory; None if unknown until it is built."""
        return True

    @property
    def depth(self) -> int | None:
        """The number of label levels that the keys are meant for; None where any number will do."""
        return None

    def loss_arguments(self, depth: int) -> dict[str, Any]:
        """The arguments of the loss's class for labels of `depth` levels."""
        return {key: getattr(self, key) for key in self.key_names()}

    def build(self, labels: Int[Tensor, "images levels"], dim: int) -> nn.Module:
        """The loss for embeddings of width `dim`, with proxies for the classes of the training images if it has any.

        `labels` are those of all training images, or of one image of each class, finest level first, numbered from 0.
        """
        return self._build_for_classes(_class_labels(labels), dim)

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> nn.Module:
        raise NotImplementedError

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_keys()
        self._check_values()
        return self

    def _check_keys(self) -> None:
        """Refuse keys that exclude each other."""

    def _check_values(self) -> None:
        """Let the loss itself refuse values, by building it for a single class."""
        classes = torch.zeros(1, self.depth or 1, dtype=torch.int64)
        # Building draws proxies. If a loss needs a package that is not installed, training will say so.
        with torch.random.fork_rng(devices=[]), suppress(ImportError):
            self.build(classes, dim=1)


def _class_labels(labels: Int[Tensor, "images levels"]) -> Int[Tensor, "classes levels"]:
    """The labels at all levels of each class of the first column."""
    return labels[np.unique(labels[:, 0].numpy(), return_index=True)[1]]


class ItemLossSpec(LossSpec):
    """A loss that compares images with each other."""

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> losses.RetrievalLoss:
        return self.loss_class(**self.loss_arguments(classes.shape[1]))


class ProxyLossSpec(LossSpec):
    """A loss that compares images with a proxy for each fine class."""

    @property
    def has_proxies(self) -> bool:
        return True

    @property
    def compares_items(self) -> bool:
        return False

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> losses.RetrievalLoss:
        return self.loss_class(len(classes), dim, **self.loss_arguments(classes.shape[1]))


class LevelSumSpec(LossSpec):
    """The sum over the levels of a loss that sees the classes of one level at a time."""

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> losses.RetrievalLoss:
        per_level = [_class_labels(classes[:, level:]) for level in range(classes.shape[1])]
        built: list[Any] = [super(LevelSumSpec, self)._build_for_classes(own, dim) for own in per_level]
        return losses.SumOverLevels(built)


# Rank losses: a measure of ranks under a smooth step.


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

    tau: Positive = SupStep.tau
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

    tau: Positive = Sigmoid.tau
    """τ of the sigmoid in the rank."""


class RecallKeys(RankLossSpec):
    """The measure is recall at k."""

    ks: Counts = default(losses.SupRecall, "ks")
    """K, the cut-offs of recall at k."""

    rank_tau: Positive = default(losses.SupRecall, "rank_tau")
    """τ* of recall at k."""


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


class SupAPSpec(SupSpec):
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


class SupNDCGSpec(SupSpec):
    """Sup-NDCG (sec:ndcg)."""

    loss_class = losses.SupNDCG
    name: Literal["sup-ndcg"] = "sup-ndcg"


class SmoothAPSpec(SmoothSpec):
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


class SmoothNDCGSpec(SmoothSpec):
    """Smooth-NDCG."""

    loss_class = losses.SmoothNDCG
    name: Literal["smooth-ndcg"] = "smooth-ndcg"


# Decomposability losses, and the paper's combinations of both.


class PairKeys(ConfigTable):
    """L_DG on pairs (eq:labs)."""

    positive_floor: float = default(losses.PairCalibration, "positive_floor")
    """α of L_DG: positives below it are pulled up."""

    negative_ceiling: float = default(losses.PairCalibration, "negative_ceiling")
    """β of L_DG: negatives above it are pushed down."""

    average: Literal["all", "violating"] = default(losses.PairCalibration, "average")
    """The pairs that L_DG is the mean over; the authors' code takes the violating ones."""


class TemperatureKey(ConfigTable):
    """The normalized softmax over proxies (eq:cluster_loss)."""

    temperature: Positive = default(losses.ProxySoftmax, "temperature")
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

    weight: Share = default(losses.Combined, "decomposability_weight")
    """λ: the weight of the decomposability loss; the surrogate has the rest."""

    decomposability: Literal["proxies", "pairs"] = "proxies"
    """L*_DG on proxies (eq:cluster_loss), which has the key `temperature`; or L_DG on pairs (eq:labs), which has
    `positive_floor`, `negative_ceiling` and `average`."""

    @property
    def has_proxies(self) -> bool:
        return self.decomposability == "proxies"

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


class RoadmapSpec(CombinedSpec):
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


class RodNDCGSpec(CombinedSpec):
    """ROD-NDCG: Sup-NDCG and a decomposability loss (sec:ndcg)."""

    loss_class = losses.SupNDCG
    name: Literal["rod-ndcg"] = "rod-ndcg"


# Losses of other papers.


class FastAPSpec(ItemLossSpec):
    """FastAP: AP of a soft histogram of distances."""

    loss_class = losses.FastAP
    name: Literal["fast-ap"] = "fast-ap"

    bins: Bins = default(losses.FastAP, "bins")
    """Bins of the histogram."""

    include_self: bool = False
    """Rank the query among its own items."""


class SoftBinAPSpec(ItemLossSpec):
    """SoftBin-AP: AP of a soft histogram of similarities."""

    loss_class = losses.SoftBinAP
    name: Literal["softbin-ap"] = "softbin-ap"

    bins: Bins = default(losses.SoftBinAP, "bins")
    """Bins of the histogram."""

    include_self: bool = False
    """Rank the query among its own items."""


class BlackBoxAPSpec(ItemLossSpec):
    """BlackBox-AP: exact ranks, a solver's gradient."""

    loss_class = losses.BlackBoxAP
    name: Literal["blackbox-ap"] = "blackbox-ap"

    interpolation: Positive = default(losses.BlackBoxAP, "interpolation")
    """λ: how far the solver steps along the gradient."""

    margin: float = default(losses.BlackBoxAP, "margin")
    """Scale of the noise on the scores."""

    include_self: bool = False
    """Rank the query among its own items."""


class TripletSemiHardSpec(ItemLossSpec):
    """Triplets with semi-hard negatives."""

    loss_class = losses.TripletSemiHard
    name: Literal["triplet-sh"] = "triplet-sh"

    margin: float = default(losses.TripletSemiHard, "margin")
    """Margin between cosine similarities."""


class DistanceWeightedTripletSpec(ItemLossSpec):
    """Triplets with distance-weighted negatives."""

    loss_class = losses.DistanceWeightedTriplet
    name: Literal["triplet-dw"] = "triplet-dw"

    margin: float = default(losses.DistanceWeightedTriplet, "margin")
    """Margin between distances."""

    cutoff: Positive = default(losses.DistanceWeightedTriplet, "cutoff")
    """Distance below which negatives are not drawn more often."""

    farthest: Positive = default(losses.DistanceWeightedTriplet, "farthest")
    """Distance beyond which no negatives are drawn."""


class ContrastiveXBMSpec(ItemLossSpec):
    """The contrastive loss of XBM, for use with a memory."""

    loss_class = losses.ContrastiveXBM
    name: Literal["contrastive-xbm"] = "contrastive-xbm"

    margin: float = default(losses.ContrastiveXBM, "margin")
    """Cosine similarity above which negatives count."""


class MultiSimilaritySpec(ItemLossSpec):
    """Multi-Similarity (pytorch-metric-learning's)."""

    loss_class = losses.MultiSimilarity
    name: Literal["multi-similarity"] = "multi-similarity"

    alpha: Positive = default(losses.MultiSimilarity, "alpha")
    """How much the farthest positives count."""

    beta: Positive = default(losses.MultiSimilarity, "beta")
    """How much the nearest negatives count."""

    base: float = default(losses.MultiSimilarity, "base")
    """λ: the similarity that parts positives from negatives."""


class ProxyNCASpec(ProxyLossSpec):
    """ProxyNCA++."""

    loss_class = losses.ProxyNCA
    name: Literal["proxy-nca"] = "proxy-nca"

    scale: Positive = default(losses.ProxyNCA, "scale")
    """1/√T of the softmax over proxies."""


class ProxyAnchorSpec(ProxyLossSpec):
    """ProxyAnchor (pytorch-metric-learning's)."""

    loss_class = losses.ProxyAnchor
    name: Literal["proxy-anchor"] = "proxy-anchor"

    margin: float = default(losses.ProxyAnchor, "margin")
    """Margin of the cosine similarity."""

    scale: Positive = default(losses.ProxyAnchor, "scale")
    """Scale of the cosine similarity."""


class ArcFaceSpec(ProxyLossSpec):
    """ArcFace: softmax with a margin of the angle."""

    loss_class = losses.ArcFace
    name: Literal["arcface"] = "arcface"

    margin: float = default(losses.ArcFace, "margin")
    """Margin of the angle, in radians."""

    scale: Positive = default(losses.ArcFace, "scale")
    """Scale of the cosine similarity."""


class CosFaceSpec(ProxyLossSpec):
    """CosFace (pytorch-metric-learning's)."""

    loss_class = losses.CosFace
    name: Literal["cosface"] = "cosface"

    margin: float = default(losses.CosFace, "margin")
    """Margin of the cosine similarity."""

    scale: Positive = default(losses.CosFace, "scale")
    """Scale of the cosine similarity."""


class CSLSpec(ProxyLossSpec):
    """CSL: margins that grow with the level."""

    loss_class = losses.CSL
    name: Literal["csl"] = "csl"

    margins: Numbers | None = None
    """Margins, one for each level, finest first; by default the authors'."""

    scale: Positive = default(losses.CSL, "scale")
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

    margin: float = default(losses.TripletSemiHard, "margin")
    """Margin between cosine similarities."""


class SumNSMSpec(LevelSumSpec, TemperatureKey, ProxyLossSpec):
    """ΣNSM: normalized softmax at every level."""

    loss_class = losses.ProxySoftmax
    name: Literal["sum-nsm"] = "sum-nsm"


class SumProxyNCASpec(LevelSumSpec, ProxyLossSpec):
    """ΣNCA++: ProxyNCA++ at every level."""

    loss_class = losses.ProxyNCA
    name: Literal["sum-proxy-nca"] = "sum-proxy-nca"

    scale: Positive = default(losses.ProxyNCA, "scale")
    """1/√T of the softmax over proxies."""


class CustomLossSpec(LossSpec):
    """A loss of your own. Nothing of it is loaded until it is built, so that a recipe can be read without its code."""

    name: str
    """`mine.py:MyLoss`, the path being relative to the working directory, or `package.module:MyLoss`. What is named is a class,
    or a function that returns a loss."""

    arguments: dict[str, JsonValue] = Field(default={})
    """Its keyword arguments. `num_classes` and `embedding_size` are added if its signature names them."""

    labels: Literal["all", "finest"] = "all"
    """Give it the labels of all levels `[batch, levels]`, finest first, or those of the finest level alone `[batch]`, as
    pytorch-metric-learning's losses take them."""

    @field_validator("arguments")
    @classmethod
    def _has_toml_values(cls, arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if None in arguments.values():
            missing = next(key for key, value in arguments.items() if value is None)
            raise ValueError(f"{missing}=None cannot be saved in a recipe; leave it out, so that the default holds")
        return arguments

    @property
    def has_proxies(self) -> None:
        return None

    @property
    def compares_items(self) -> None:
        return None

    def build(self, labels: Int[Tensor, "images levels"], dim: int) -> CustomLoss:
        """Load the code and build the loss; see `suprank.training.custom_loss`."""
        provided = {"num_classes": len(_class_labels(labels)), "embedding_size": dim}
        return build_custom_loss(self.name, self.arguments, provided, finest_only=self.labels == "finest")

    def _check_values(self) -> None:
        """Leave the values to the loss, whose code is not loaded here."""


# From `[loss]` to a spec.


def parse_loss(table: Any) -> LossSpec:
    """The spec that `name` chooses, with errors that say which keys it has."""
    if isinstance(table, LossSpec) or not isinstance(table, Mapping):
        return table  # of what is no table, pydantic says so
    name = table.get("name")
    if not isinstance(name, str):
        problem = "string_type" if "name" in table else "missing"
        raise ValidationError.from_exception_data("loss", [InitErrorDetails(type=problem, loc=("name",), input=name)])
    spec = CustomLossSpec if custom_code.is_custom(name) else _SPECS.get(name)
    if spec is None:
        raise _errors({"name": f"there is no loss {name!r}; {_nearest_name(name)}"}, table)
    unknown = [key for key in table if key not in spec.model_fields]
    if unknown:
        raise _errors({key: f"{name} has no key {key!r}; {_nearest_key(spec, key)}" for key in unknown}, table)
    return spec.model_validate(table)


def _errors(reasons: Mapping[str, str], table: Mapping[str, Any]) -> ValidationError:
    """What is wrong with each of some keys."""
    problems = {key: PydanticCustomError("loss_table", "{reason}", {"reason": reason}) for key, reason in reasons.items()}
    details = [InitErrorDetails(type=problem, loc=(key,), input=table[key]) for key, problem in problems.items()]
    return ValidationError.from_exception_data("loss", details)


def _nearest_name(name: str) -> str:
    near = difflib.get_close_matches(name, _SPECS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{hint}choose from {', '.join(_SPECS)}, or name your own as FILE.py:CLASS"


def _nearest_key(spec: type[LossSpec], key: str) -> str:
    if spec is CustomLossSpec:
        return f"write its arguments below [loss.arguments]: loss.arguments.{key}"
    near = difflib.get_close_matches(key, spec.key_names(), n=1)
    hint = f"did you mean {near[0]}?" if near else "leave it out:"
    return f"{hint} its keys are {', '.join(spec.key_names())}"


AnyLossSpec = Annotated[SerializeAsAny[LossSpec], BeforeValidator(parse_loss)]
"""The type of `TrainConfig.loss`."""
