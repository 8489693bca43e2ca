"""The embedder that a recipe starts from, and its backbone alone, as it is before training. Neither needs Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from suprank.models import Embedder
from suprank.training.seeds import seed_of

if TYPE_CHECKING:
    from suprank.training.config import TrainConfig

WEIGHTS = 0  # the stream of random numbers that weights are drawn from


def embedder_of(config: TrainConfig) -> Embedder:
    """The embedder that a recipe starts from."""
    model = config.model
    if model.start is None:
        return Embedder(config.embedder, pretrained=model.pretrained and model.weights is None, weights=model.weights)
    embedder = Embedder.load(model.start)
    settings = {"freeze_batchnorm": model.freeze_batchnorm, **config.evaluation_input}
    embedder.config = embedder.config.model_copy(update=settings)
    return embedder


def frozen_embedder(config: TrainConfig) -> Embedder:
    """The recipe's backbone before training, read and pooled as the run does it, without the projection that nobody trained.

    A recipe with `model.start` starts from a whole embedder: that is returned as it was saved, read as the run reads.
    """
    if config.model.start is not None:
        return embedder_of(config).eval()
    torch.manual_seed(seed_of(config.run.seed, WEIGHTS))  # weights that are not pretrained are those that the run began with
    model, settings = config.model, config.embedder.model_copy(update={"dim": None})
    return Embedder(settings, pretrained=model.pretrained and model.weights is None, weights=model.weights).eval()
