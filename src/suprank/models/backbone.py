"""A timm network without its classifier, or the user's own, split at its pooling, so that any pooling can take its place."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import nn

from suprank.models.custom_network import CustomNetwork, create_custom_network
from suprank.models.networks import PatchEmbed, create_network, image_input, resolve_hub_backbone
from suprank.system.custom_code import HUB, is_custom

if TYPE_CHECKING:
    from os import PathLike

    from jaxtyping import Float
    from torch import Tensor

    from suprank.models.config import HubBackbone


class FeatureLayout(NamedTuple):
    """The shape of a network's features: a map `[C, H, W]` or `[H, W, C]`, or tokens `[N, C]`, of which `special` come first.

    `positions` is the number of other tokens, or of places in the map. `dim` is the width after timm's whole head, which for
    some networks differs from `channels`. A network whose features are not a single tensor is "opaque": only timm can pool it.
    A network of the user's own may return a "vector" `[C]`, which needs no pooling.
    """

    form: Literal["map", "map, channels last", "tokens", "opaque", "vector"]
    channels: int
    special: int
    positions: int
    dim: int


class Backbone(nn.Module):
    """`tokens` gives the features of all positions of an image; `apply_head` applies to one vector what follows timm's pooling.

    `timm_pooled` is both, with timm's own pooling between them. Weights are random, or timm's (`pretrained`, downloaded once),
    or a file's (`weights`, see `suprank.models.weights`). `poolings` are those that this network can have.

    A name such as `hf-hub:org/name` is that of a timm model on the Hugging Face Hub. It is looked up, and `name` is then the
    same with the commit, and `hub_backbone` what the Hub says about it; if that is given, nothing is looked up.

    A name such as `mine.py:build` is code of the user's own, and is loaded here (see `suprank.models.custom_network`). The
    mean then takes the place of timm's pooling.
    """

    def __init__(
        self,
        name: str,
        image_size: tuple[int, int] | None = None,
        *,
        pretrained: bool = False,
        weights: str | PathLike[str] | None = None,
        hub_backbone: HubBackbone | None = None,
    ):
        super().__init__()
        if name.startswith(HUB) and hub_backbone is None:
            name, hub_backbone = resolve_hub_backbone(name)
        self.name, self.hub_backbone = name, hub_backbone
        source: dict[str, Any] = {"pretrained": pretrained, "weights": weights}
        self.net: Any  # timm lacks types
        if is_custom(name):
            self.net = create_custom_network(name, image_size, **source)
        else:
            self.net = create_network(name, image_size, **source, hub_backbone=hub_backbone)
        self.input = image_input(self.net, image_size)
        self.layout = self._find_layout()
        self.poolings = self._possible_poolings()

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Tensor:
        """The network's features, in the shape of `layout`."""
        return self.net.forward_features(images)

    def timm_pooled(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch dim"]:
        """What `timm.create_model(name, num_classes=0)` returns; under autocast, pooled in the precision of the weights."""
        return self._timm_head(self(images))

    def _timm_head(self, features: Any) -> Tensor:
        if isinstance(features, torch.Tensor):
            features = features.to(next(self.net.parameters()).dtype)  # a mean in bf16 has 8 bits, and makes ties
        return self.net.forward_head(features, pre_logits=True)

    def tokens(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> tuple[Float[Tensor, "batch special channels"], Float[Tensor, "batch positions channels"]]:
        """Special tokens, the class token first (none for a map), and the features of all positions."""
        features = self(images)
        if self.layout.form == "map":
            features = features.flatten(2).transpose(1, 2)
        elif self.layout.form == "map, channels last":
            features = features.flatten(1, 2)
        return features[:, : self.layout.special], features[:, self.layout.special :]

    def apply_head(self, pooled: Float[Tensor, "batch channels"]) -> Float[Tensor, "batch dim"]:
        """Apply what follows the pooling in timm's head: nothing for most, a norm for ConvNeXt, a layer for MobileNetV3.

        The head gets features in which every position is `pooled`, so that its own pooling, whichever it is, returns that.
        """
        pooled = pooled.to(next(self.net.parameters()).dtype)
        if self.layout.form == "map":
            features = pooled[:, :, None, None]
        elif self.layout.form == "map, channels last":
            features = pooled[:, None, None, :]
        else:
            features = pooled[:, None, :].expand(-1, self.layout.special + 1, -1)
        return self.net.forward_head(features, pre_logits=True)

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of images must be multiples of these: the size of a patch, or 1."""
        embed = getattr(self.net, "patch_embed", None)
        return tuple(embed.patch_size) if isinstance(embed, PatchEmbed) else (1, 1)

    def check_images(self, images: Tensor) -> None:
        """Raise a ValueError if the network cannot take these images."""
        if images.ndim != 4 or images.shape[1] != 3 or not images.dtype.is_floating_point:
            raise ValueError(
                f"images are {list(images.shape)} of {images.dtype}; give [batch, 3, height, width] of floats, normalized "
                "as the embedder's `input` says."
            )
        height, width = images.shape[-2:]
        embed = getattr(self.net, "patch_embed", None)
        only = embed.img_size if isinstance(embed, PatchEmbed) and embed.strict_img_size else None
        if only is not None and (height, width) != tuple(only):
            raise ValueError(
                f"images are {height} × {width} pixels, and {self.name} takes only {only[0]} × {only[1]}; resize them, or "
                f"create the embedder with image_size=({height}, {width})."
            )
        if height % self.patch_size[0] or width % self.patch_size[1]:
            below = [max(side // step, 1) * step for side, step in zip((height, width), self.patch_size, strict=True)]
            raise ValueError(
                f"images are {height} × {width} pixels, and {self.name} cuts them into patches of {self.patch_size[0]} × "
                f"{self.patch_size[1]}; make both sides multiples, for example {below[0]} × {below[1]}."
            )

    def _find_layout(self) -> FeatureLayout:
        """Run the network on tensors without data ("meta"), which costs nothing and shows every shape."""
        if isinstance(self.net, CustomNetwork):
            return self._custom_layout(self.net.feature_shape or ())
        training, images = self.training, torch.empty(1, 3, *self.input.size, device="meta")
        shapes = {name: value.to("meta") for name, value in (*self.named_parameters(), *self.named_buffers())}
        try:
            with torch.no_grad():
                both, inside = _FeaturesAndPooled(self.eval()), {f"backbone.{k}": v for k, v in shapes.items()}
                features, head = torch.func.functional_call(both, inside, (images,))
        except Exception as error:
            raise ValueError(f"{self.name} cannot be a backbone: it does not turn images into features ({error}).") from error
        finally:
            self.train(training)
        dim, channels = int(head.shape[-1]), int(self.net.num_features)
        shape = tuple(features.shape) if isinstance(features, torch.Tensor) else ()
        if len(shape) == 4 and shape[1] == channels:
            return FeatureLayout("map", channels, 0, shape[2] * shape[3], dim)
        if len(shape) == 4 and shape[3] == channels:
            return FeatureLayout("map, channels last", channels, 0, shape[1] * shape[2], dim)
        if len(shape) == 3 and shape[2] == channels:
            special = self._special_tokens()
            return FeatureLayout("tokens", channels, special, shape[1] - special, dim)
        return FeatureLayout("opaque", channels, 0, 0, dim)

    @staticmethod
    def _custom_layout(shape: tuple[int, ...]) -> FeatureLayout:
        channels, *places = shape
        return FeatureLayout("map" if places else "vector", channels, 0, math.prod(places) if places else 0, channels)

    def _possible_poolings(self) -> tuple[str, ...]:
        """Always "timm"; the others if its head begins with the pooling, and there is something to pool."""
        if self.layout.form in ("opaque", "vector") or not self._head_begins_with_pooling():
            return ("timm",)
        over_positions = ("avg", "max", "avg+max", "gem", "gem-fixed") if self.layout.positions else ()
        return ("timm", *over_positions, *(("token",) if self._has_class_token() else ()))

    def _special_tokens(self) -> int:
        """The number of special tokens. Older families do not count them, and have a class token if timm pools by it."""
        counted = getattr(self.net, "num_prefix_tokens", None)
        return int(getattr(self.net, "global_pool", "") == "token") if counted is None else int(counted)

    def _has_class_token(self) -> bool:
        named = getattr(self.net, "cls_token", None) is not None or getattr(self.net, "global_pool", "") == "token"
        return self.layout.special > 0 and named

    def _head_begins_with_pooling(self) -> bool:
        """Whether timm's head gives what `apply_head` gives for the mean, the maximum or the class token, tried on an example.

        It does not if the head pools by attention, or has a nonlinear layer before the pooling.
        """
        special, channels = self.layout.special, self.layout.channels
        tokens = torch.arange(4 * channels + special * channels).sin().reshape(1, special + 4, channels)
        tokens = tokens.to(next(self.net.parameters()))
        if self.layout.form == "map":
            features = tokens.transpose(1, 2).reshape(1, channels, 2, 2)
        else:
            features = tokens.reshape(1, 2, 2, channels) if self.layout.form == "map, channels last" else tokens
        positions = tokens[:, special:]
        training = self.training
        try:
            with torch.no_grad():
                expected = self.eval().net.forward_head(features, pre_logits=True)
                pooled = [positions.mean(1), positions.amax(1), tokens[:, 0]]
                return any(torch.allclose(self.apply_head(one), expected, rtol=1e-3, atol=1e-5) for one in pooled)
        except Exception:
            return False  # such a head needs maps of one size
        finally:
            self.train(training)


class _FeaturesAndPooled(nn.Module):
    """The features and what `timm_pooled` makes of them, by the forward method, which `functional_call` calls."""

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> tuple[Any, Tensor]:
        features = self.backbone(images)
        return features, self.backbone._timm_head(features)
