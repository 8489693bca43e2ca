"""The losses that a recipe can name, one spec each: its class, its keys with their defaults, and how it is built.

`[loss] name` chooses the spec, and the other keys of the table are those of the spec: a key that the loss does not have is an
error. A new loss of the package needs its class in `suprank.losses` and a spec in `rank_losses` or `baselines` (or in any
module that is imported), and nothing else; the first line of the spec's docstring is its description in
`suprank recipes --losses`:

    class FastAPSpec(ItemLossSpec):
        \"""FastAP: AP of a soft histogram of distances.\"""

        loss_class = losses.FastAP
        name: Literal["fast-ap"] = "fast-ap"
        bins: Bins = default(losses.FastAP, "bins")

A loss outside of the package needs no spec: `CustomLossSpec` takes any `mine.py:MyLoss` (see docs/own-loss.md).
"""

from suprank.training.loss_specs import baselines  # noqa: F401  registers its specs
from suprank.training.loss_specs.base import ItemLossSpec, LossSpec, ProxyLossSpec, default, loss_specs
from suprank.training.loss_specs.custom import CustomLossSpec
from suprank.training.loss_specs.parsing import AnyLossSpec, parse_loss
from suprank.training.loss_specs.rank_losses import CombinedSpec, RankLossSpec, SupSpec

__all__ = [
    "AnyLossSpec",
    "CombinedSpec",
    "CustomLossSpec",
    "ItemLossSpec",
    "LossSpec",
    "ProxyLossSpec",
    "RankLossSpec",
    "SupSpec",
    "default",
    "loss_specs",
    "parse_loss",
]
