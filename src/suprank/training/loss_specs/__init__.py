"""The losses that a recipe can name, a row each in `table`: its class, a description, and how it is built.

`[loss] name` chooses the loss, and the other keys of the table are the keyword arguments of its class: a key that the loss does
not have is an error. A new loss of the package needs its class in `suprank.losses` and a row, and nothing else:

    add_loss("fast-ap", ItemLossSpec, losses.FastAP, "FastAP: AP of a soft histogram", {"bins": Choices((5, 10, 20))})

A loss outside of the package needs no spec: `CustomLossSpec` takes any `mine.py:MyLoss` (see docs/own-loss.md).
"""

import suprank.training.loss_specs.table  # noqa: F401  adds the losses
from suprank.training.loss_specs.base import ItemLossSpec, LossSpec, ProxyLossSpec, add_loss, loss_specs
from suprank.training.loss_specs.custom import CustomLossSpec
from suprank.training.loss_specs.parsing import AnyLossSpec, parse_loss
from suprank.training.loss_specs.rank_specs import CombinedSpec, RankSpec

__all__ = [
    "AnyLossSpec",
    "CombinedSpec",
    "CustomLossSpec",
    "ItemLossSpec",
    "LossSpec",
    "ProxyLossSpec",
    "RankSpec",
    "add_loss",
    "loss_specs",
    "parse_loss",
]
