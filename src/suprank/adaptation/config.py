"""The settings of `adapt`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from suprank.training.config_types import ConfigTable, Count, NotNegative, Positive
from suprank.training.loss_specs import AnyLossSpec, loss_specs

BelowOne = Annotated[float, Field(gt=0, lt=1)]


class AdaptConfig(ConfigTable):
    """How a head is built, trained, validated and tested."""

    loss: AnyLossSpec = loss_specs()["roadmap"](name="roadmap")
    """A loss that `suprank recipes --losses` lists, or one of your own, with the keys of a recipe's table `[loss]`."""

    dim: Count | None = None
    """Width of the new embeddings; by default that of the given ones, 512 at most."""

    normalization: Literal["none", "layer", "l2"] = "l2"
    """What the head does to each embedding first."""

    hidden: int = Field(default=0, ge=0)
    """Width of a residual MLP before the linear layer; 0 for none."""

    batch: Annotated[int, Field(ge=2)] | Literal["whole"] = 256
    """Images per batch, or `whole`: every step computes the exact loss of all training images."""

    images_per_class: Count | None = None
    """Images of each class in a batch; by default 4, or more if there are too few classes to fill the batch."""

    steps: Count | None = None
    """Steps of the optimizer; by default 600, or 100 with `batch = "whole"`."""

    lr: Positive = 2e-4
    """Learning rate of the head (AdamW), which falls to 0 as a cosine."""

    proxies_lr: Positive = 1e-2
    """Learning rate of the parameters of the loss, if it has any."""

    weight_decay: NotNegative = 1e-4
    """Weight decay of the head."""

    validation: BelowOne = 0.2
    """Share of the training classes that are held out to choose the best step."""

    every: Count | None = None
    """Steps between two validations; by default 24 validations a run."""

    metric: str | None = None
    """The metric that chooses the best step and seed; by default mAP@R, or H-AP for a loss of the whole label tree."""

    test_classes: BelowOne = 0.25
    """Share of the classes that are held out for testing, if no test set is given."""

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the splits, and of the batches and proxies of the first run."""

    seeds: Count = 1
    """Runs, with the seeds `seed`, `seed` + 1, ...; the head of the best validation is kept."""
