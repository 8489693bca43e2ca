"""Images → embeddings: backbone → pooling → normalization → projection → L2."""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING, Any, Self

import torch
from pydantic import ValidationError
from torch import nn
from torch.nn.functional import layer_norm, normalize

from suprank.models import folder as folders
from suprank.models.backbone import Backbone
from suprank.models.config import EmbedderConfig, Input
from suprank.models.pooling import POOLINGS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from jaxtyping import Float
    from torch import Tensor

NORMALIZATIONS = {
    "none": lambda pooled: pooled,
    "layer": lambda pooled: layer_norm(pooled, pooled.shape[-1:]),
    "l2": lambda pooled: normalize(pooled, dim=-1),
}


class Embedder(nn.Module):
    """Unit vectors of images: backbone → pooling → normalization → projection → L2.

    Images are `[batch, 3, height, width]`, normalized as `input` says. Pooling, normalization and the last L2 are computed in
    float32, under autocast and in half-precision models too (but for timm's own pooling in the latter), and embeddings are
    float32. An image whose features are all zero has the embedding zero; all others have length 1.

    Weights are random, or timm's for the backbone (`pretrained=True`, downloaded once), or a file's for the backbone
    (`weights`, see `suprank.models.weights`); the projection is random until trained, or given to `with_projection`.
    """

    def __init__(self, config: EmbedderConfig, *, pretrained: bool = False, weights: str | PathLike[str] | None = None):
        super().__init__()
        self.backbone = Backbone(config.backbone, config.image_size, pretrained=pretrained, weights=weights)
        if config.pooling not in (possible := self.backbone.poolings):
            raise ValueError(
                f"pooling={config.pooling!r} is not possible with {config.backbone}; choose from {', '.join(possible)}."
            )
        self.config = _completed(config, self.backbone.input)
        self.pooling = POOLINGS[config.pooling](config) if config.pooling in POOLINGS else nn.Identity()
        self.projection = nn.Identity() if config.dim is None else nn.Linear(self.features_dim, config.dim, bias=config.bias)
        self.train(self.training)

    @classmethod
    def create(
        cls, backbone: str, *, pretrained: bool = False, weights: str | PathLike[str] | None = None, **settings: Any
    ) -> Self:
        """`Embedder(EmbedderConfig(backbone=backbone, **settings), ...)`: settings are the fields of `EmbedderConfig`.

        Example:
            >>> embedder = Embedder.create("test_resnet", pooling="gem", normalization="layer", dim=16)
            >>> embedder(torch.zeros(2, 3, 64, 64)).shape
            torch.Size([2, 16])
        """
        try:
            config = EmbedderConfig(backbone=backbone, **settings)
        except ValidationError as error:
            raise ValueError(f"these settings make no embedder: {folders.sentences(error)}.") from error
        return cls(config, pretrained=pretrained, weights=weights)

    @property
    def input(self) -> Input:
        """How images are prepared: size, mean, std, interpolation, resize, squash, fast_jpeg."""
        return self.config.input

    @property
    def features_dim(self) -> int:
        """Width of `features`."""
        return self.backbone.layout.dim

    @property
    def dim(self) -> int:
        """Width of the embeddings."""
        return self.config.dim or self.features_dim

    def features(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch features"]:
        """Pooled and normalized features in float32, before the projection: what a PCA is computed from."""
        self.backbone.check(images)
        return NORMALIZATIONS[self.config.normalization](self._pooled(images).float())

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch dim"]:
        features = self.features(images)
        if isinstance(self.projection, nn.Linear):
            features = self.projection(features.to(self.projection.weight.dtype))
        return normalize(features.float(), dim=-1)

    def _pooled(self, images: Tensor) -> Tensor:
        if self.config.pooling == "timm":
            return self.backbone.timm_pooled(images)
        special, places = self.backbone.tokens(images)
        return self.backbone.finished(special[:, 0] if self.config.pooling == "token" else self.pooling(places))

    def train(self, mode: bool = True) -> Self:
        """As in torch; with `freeze_batchnorm` the BatchNorm layers stay in evaluation mode."""
        super().train(mode)
        if self.config.freeze_batchnorm:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Every parameter once: "backbone", all of timm's, and "head", GeM's power and the projection (may be empty)."""
        head = [*self.pooling.parameters(), *self.projection.parameters()]
        return {"backbone": list(self.backbone.parameters()), "head": head}

    def with_projection(self, weight: Float[Tensor, "dim features"], bias: Float[Tensor, " dim"] | None) -> Self:
        """A copy whose projection is this one, for example `pca_projection(moments, dim)`; this embedder stays as it is."""
        if weight.ndim != 2 or weight.shape[1] != self.features_dim or (bias is not None and bias.shape != weight.shape[:1]):
            raise ValueError(
                f"weight {list(weight.shape)} and bias {None if bias is None else list(bias.shape)} do not project features of "
                f"width {self.features_dim}; give [dim, {self.features_dim}] and [dim]."
            )
        made = copy.deepcopy(self)
        made.config = self.config.model_copy(update={"dim": len(weight), "bias": bias is not None})
        made.projection = nn.Linear(self.features_dim, len(weight), bias=bias is not None)
        with torch.no_grad():
            made.projection.weight.copy_(weight)
            if bias is not None:
                made.projection.bias.copy_(bias)
        made.projection.to(next(self.backbone.parameters()))
        return made

    def save(self, folder: str | PathLike[str]) -> None:
        """Write `model.safetensors` and `embedder.json` into a folder, made if need be; see `suprank.models.folder`."""
        folders.write(folder, self.config, self.state_dict())

    @classmethod
    def load(
        cls, folder: str | PathLike[str], *, device: torch.device | str = "cpu", settings: Mapping[str, Any] | None = None
    ) -> Self:
        """The embedder of a folder that `save` wrote, in evaluation mode. Nothing is downloaded, and no code is run.

        `settings` replace entries of the saved `EmbedderConfig`, such as how images are read.
        """
        config, state = folders.read(folder, settings or {})
        with torch.random.fork_rng(devices=[]):  # the weights that are replaced below do not use up the caller's random numbers
            embedder = cls(config)
        folders.put(state, embedder, folder)
        return embedder.eval().to(device)

    def fingerprint(self) -> str:
        """A hash of the settings and every weight: equal for equal embedders, on any device."""
        return hashlib.sha256(self.config.model_dump_json().encode() + folders.packed(self.state_dict())).hexdigest()


def _completed(config: EmbedderConfig, said: Input) -> EmbedderConfig:
    """The config with what it leaves to the backbone filled in."""
    entries = said._asdict()
    values = {"image_size": entries.pop("size"), "precision": "fp32", **entries}
    return config.model_copy(update={key: value for key, value in values.items() if getattr(config, key) is None})
