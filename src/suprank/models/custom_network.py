"""A backbone of the user's own, `mine.py:build` or `package.module:build`, with the methods of a timm network.

`build()` returns an `nn.Module` that maps images `[batch, 3, height, width]` to a feature map `[batch, C, height, width]` or to
features `[batch, C]`. Its weights are those it returns with, or a file's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from suprank.models.weights import load_weights
from suprank.system import custom_code
from suprank.system.custom_code import CustomCodeError, UserCodeError

if TYPE_CHECKING:
    from os import PathLike

    from torch import Tensor

DEFAULT_INPUT: dict[str, Any] = {  # as timm describes most networks
    "input_size": (3, 224, 224),
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "interpolation": "bicubic",
    "crop_pct": 0.875,
}


class CustomNetwork(nn.Module):
    """Calls the user's network. `feature_shape` is the shape of its features for one image: `[C, height, width]` or `[C]`."""

    def __init__(self, name: str, module: nn.Module, image_size: tuple[int, int]):
        super().__init__()
        self.name, self.module = name, module
        self.pretrained_cfg = DEFAULT_INPUT
        self.feature_shape: tuple[int, ...] | None = None
        self.feature_shape = self._find_feature_shape(image_size)

    @property
    def num_features(self) -> int:
        """C, the number of channels of a map or the width of the features."""
        assert self.feature_shape is not None
        return self.feature_shape[0]

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """What the user's network returns, which must always have the form that it had for the first images."""
        with custom_code.running_user_code(self.name):
            features = self.module(images)
        if self.feature_shape is not None and not torch.compiler.is_compiling():  # an exported program takes any batch size
            self._check_features(features, len(images))
        return features

    def forward_head(self, features: Tensor, pre_logits: bool = True) -> Tensor:
        """The mean over the positions of a map; features that are vectors already stay as they are."""
        return features.mean((2, 3)) if features.ndim == 4 else features

    def _check_features(self, features: object, count: int) -> None:
        expected = f"[{count}, C, height, width] or [{count}, C]"
        if self.feature_shape is not None:
            places = ", height, width" if len(self.feature_shape) == 3 else ""
            expected = f"[{count}, {self.num_features}{places}], as for the first images"
        if not isinstance(features, torch.Tensor):
            raise CustomCodeError(f"{self.name} must return a tensor {expected}, and it returned a {type(features).__name__}.")
        is_known = self.feature_shape is None or (features.ndim, features.shape[1]) == (
            len(self.feature_shape) + 1,
            self.num_features,
        )
        if features.ndim not in (2, 4) or features.shape[0] != count or not is_known:
            raise CustomCodeError(
                f"{self.name} must return features {expected} for {count} images, and it returned {list(features.shape)}."
            )

    def _find_feature_shape(self, image_size: tuple[int, int]) -> tuple[int, ...]:
        """Run the network on two black images, in evaluation mode."""
        images = torch.zeros(2, 3, *image_size)
        try:
            with torch.no_grad():
                features = self.eval().forward_features(images)
        except (CustomCodeError, UserCodeError):
            raise
        except Exception as error:
            raise UserCodeError(
                f"{self.name} failed on images {list(images.shape)}: {type(error).__name__}: {error}"
            ) from error
        finally:
            self.train()
        self._check_features(features, len(images))
        return tuple(features.shape[1:])


def create_custom_network(
    name: str,
    image_size: tuple[int, int] | None = None,
    *,
    pretrained: bool = False,
    weights: str | PathLike[str] | None = None,
) -> CustomNetwork:
    """Load the code that `name` means and build its network, with the weights of a file if one is given."""
    if pretrained:
        raise ValueError(
            f"pretrained=True means timm's weights, and {name} is not timm's: load weights in the code, or give weights=FILE."
        )
    custom_code.require_consent(name, "backbone", None)
    if isinstance(custom_code.load(name), nn.Module):
        raise CustomCodeError(f"{name} is a network; name a class, or a function that builds it and returns it.")
    module = custom_code.call(name, {}, {}, "a call without arguments")
    if not isinstance(module, nn.Module):
        raise CustomCodeError(f"{name} must return an nn.Module, and it returned a {type(module).__name__}.")
    net = CustomNetwork(name, module.cpu(), image_size or DEFAULT_INPUT["input_size"][1:])
    if next(net.parameters(), None) is None:
        raise CustomCodeError(f"{name} returned a network without parameters, which cannot be a backbone.")
    if weights is not None:
        load_weights(net.module, weights)
    return net
