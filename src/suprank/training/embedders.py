"""The embedder that a recipe starts from, and the same without its projection. Building them does not need Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from suprank.models import Embedder
from suprank.training.seeds import derive_seed

if TYPE_CHECKING:
    from suprank.training.config import TrainConfig

WEIGHTS = 0  # the random stream of the initial weights


def build_embedder(config: TrainConfig) -> Embedder:
    """The embedder that the recipe starts from."""
    model = config.model
    if model.start is None:
        return Embedder(config.embedder, pretrained=model.pretrained and model.weights is None, weights=model.weights)
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
    return Embedder(settings, pretrained=model.pretrained and model.weights is None, weights=model.weights).eval()
