"""Specs of rank losses, and of their combinations with a decomposability loss (eq:rod_framework)."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal

from suprank import losses
from suprank.training.config_types import NotNegatives, Share
from suprank.training.loss_specs.base import ItemLossSpec, Keys, constructor_keys

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from suprank.training.search_space import SearchSpace

PAIR_KEYS = constructor_keys(losses.PairCalibration)
PROXY_KEYS = constructor_keys(losses.ProxySoftmax)


class RankSpec(ItemLossSpec):
    """1 − a measure of smooth ranks. The `weights` of a hierarchical one are called `level_weights`, and may be `equal`."""

    mixup: bool = False
    """SiMix: further items between two positives, by mixing similarities within the batch."""

    @classmethod
    def keys_of(cls, loss_class: type) -> Keys:
        keys = super().keys_of(loss_class)
        if "weights" in keys:
            del keys["weights"]
            keys["level_weights"] = (NotNegatives | Literal["equal"] | None, None)
        return keys

    @property
    def is_hierarchical(self) -> bool:
        return "level_weights" in self.key_names()

    @property
    def depth(self) -> int | None:
        weights = getattr(self, "level_weights", None)
        return len(weights) if isinstance(weights, tuple) else None

    def loss_arguments(self, depth: int) -> dict[str, Any]:
        arguments = super().loss_arguments(depth)
        del arguments["mixup"]
        if not self.is_hierarchical:
            return arguments
        weights = arguments.pop("level_weights")
        if weights == "equal":
            weights = (1 / depth,) * depth
        if weights is not None and len(weights) != depth:
            raise ValueError(
                f"level_weights={weights} has {len(weights)} weights, but the labels have {depth} level(s); "
                f"give one for each level, finest first."
            )
        return {**arguments, "weights": weights}

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> losses.RetrievalLoss:
        loss = super()._build_for_classes(classes, dim)
        return losses.SimilarityMixup(loss) if self.mixup else loss

    def _check_keys(self) -> None:
        changed = self.changed_keys()
        if "rank_tau" in changed and getattr(self, "k", 1) is None:
            raise ValueError("rank_tau has no effect without k; set k, or leave rank_tau out")
        if changed >= {"level_weights", "decay"}:
            raise ValueError("level_weights takes the place of decay, so only one of them may be set; leave one out")


class CombinedSpec(RankSpec):
    """(1 − λ)·surrogate + λ·decomposability; the class is that of the surrogate."""

    weight: Share = inspect.signature(losses.Combined).parameters["decomposability_weight"].default
    """λ: the weight of the decomposability loss; the surrogate has the rest."""

    decomposability: Literal["proxies", "pairs"] = "proxies"
    """L*_DG on proxies (eq:cluster_loss), or L_DG on pairs (eq:labs). Each has the keys of its class."""

    @classmethod
    def keys_of(cls, loss_class: type) -> Keys:
        return super().keys_of(loss_class) | PROXY_KEYS | PAIR_KEYS

    @property
    def has_proxies(self) -> bool:
        return self.decomposability == "proxies"

    @property
    def _unused_keys(self) -> Keys:
        return PAIR_KEYS if self.has_proxies else PROXY_KEYS

    def search_space(self) -> SearchSpace:
        return {key: one for key, one in super().search_space().items() if key.removeprefix("loss.") not in self._unused_keys}

    def loss_arguments(self, depth: int) -> dict[str, Any]:
        others = {"weight", "decomposability", *PAIR_KEYS, *PROXY_KEYS}
        return {key: value for key, value in super().loss_arguments(depth).items() if key not in others}

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> losses.RetrievalLoss:
        keys = PROXY_KEYS if self.has_proxies else PAIR_KEYS
        arguments = {key: getattr(self, key) for key in keys}
        decomposability: losses.RetrievalLoss
        if self.has_proxies:
            decomposability = losses.ProxySoftmax(len(classes), dim, **arguments)
        else:
            decomposability = losses.PairCalibration(**arguments)
        return losses.Combined(super()._build_for_classes(classes, dim), decomposability, self.weight)

    def _check_keys(self) -> None:
        super()._check_keys()
        unused = sorted(self.changed_keys() & self._unused_keys.keys())
        if unused:
            other = "pairs" if self.has_proxies else "proxies"
            raise ValueError(
                f"{', '.join(unused)} has no effect with decomposability={self.decomposability!r}; leave it out, or set "
                f"decomposability={other!r}"
            )
