"""The embedder that a recipe starts from, and the same without its projection. Building them does not need Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from suprank.models import Embedder
from suprank.models.model_folder import custom_backbone
from suprank.models.weights import DownloadError
from suprank.system.custom_code import UntrustedCodeError, is_custom
from suprank.training.seeds import derive_seed

if TYPE_CHECKING:
    from suprank.training.config import ModelConfig, TrainConfig

WEIGHTS = 0  # the random stream of the initial weights


def build_embedder(config: TrainConfig) -> Embedder:
    """The embedder that the recipe starts from."""
    model = config.model
    if model.start is None:
        try:
            return Embedder(config.embedder, pretrained=_uses_timm_weights(model), weights=model.weights)
        except DownloadError as error:
            keys = "model.weights=FILE, or model.pretrained=false to start from random weights"
            raise DownloadError(str(error).replace("weights=FILE", keys)) from error
    if (code := custom_backbone(model.start)) is not None:
        raise UntrustedCodeError(
            f"model.start={model.start!r} needs the code {code}, and training loads only code that its recipe names. Set "
            "model.backbone to that name in place of model.start, and the other keys of [model] as for that model; "
            "model.weights may name a file with the weights of the backbone."
        )
    embedder = Embedder.load(model.start)
    settings = {"freeze_batchnorm": model.freeze_batchnorm, **config.evaluation_input}
    embedder.config = embedder.config.model_copy(update=settings)
    return embedder


def frozen_embedder(config: TrainConfig) -> Embedder:
    """The backbone before training, with the pooling and the image settings of the recipe, without its untrained projection.

    If the recipe starts from a saved embedder (`model.start`), that embedder, with the image settings of the recipe.
    """
    if config.model.start is not None:
        return build_embedder(config).eval()
    torch.manual_seed(derive_seed(config.run.seed, WEIGHTS))  # weights that are not pretrained are those the run started from
    model, settings = config.model, config.embedder.model_copy(update={"dim": None})
    return Embedder(settings, pretrained=_uses_timm_weights(model), weights=model.weights).eval()


def _uses_timm_weights(model: ModelConfig) -> bool:
    """Whether the backbone starts from timm's weights; one of the user's own loads its own."""
    return model.pretrained and model.weights is None and not is_custom(model.backbone)
