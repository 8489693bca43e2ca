"""What every loss spec has: a name, keys with defaults, and how the loss is built."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
import torch
from pydantic import Field, PrivateAttr, model_validator

from suprank import losses
from suprank.training.config_types import ConfigTable
from suprank.training.search_space import Choices, FloatRange, SearchSpace

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor, nn

Bins = Annotated[int, Field(ge=2)]

_SPECS: dict[str, type[LossSpec]] = {}


def loss_specs() -> dict[str, type[LossSpec]]:
    """The spec of every loss that has a name, by that name."""
    return dict(_SPECS)


def default(loss_class: type, argument: str) -> Any:
    """The default of an argument of the class's constructor, so that it is written in one place."""
    return inspect.signature(loss_class).parameters[argument].default


class LossSpec(ConfigTable):
    """The table `[loss]` of a recipe. Every loss has a subclass, which registers itself under its `name`."""

    loss_class: ClassVar[type[losses.RetrievalLoss]]

    name: str
    """A name that `suprank recipes --losses` lists, or a loss of your own: `mine.py:MyLoss` or `package.module:MyLoss`."""

    _named_in: str | None = PrivateAttr(default=None)  # the file that names a loss of the user's own, which needs consent

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        name = cls.model_fields["name"].default
        if isinstance(name, str):
            _SPECS[name] = cls

    @classmethod
    def key_names(cls) -> tuple[str, ...]:
        """The keys of `[loss]` beside `name`."""
        return tuple(key for key in cls.model_fields if key != "name")

    @classmethod
    def description(cls) -> str:
        """One line that says which loss it is."""
        return inspect.getdoc(cls).partition("\n")[0].removesuffix(".")  # type: ignore[union-attr]

    @property
    def has_proxies(self) -> bool | None:
        """Whether the loss has parameters of its own, which `[proxies]` trains; None if only the built loss can tell."""
        return False

    @property
    def compares_items(self) -> bool | None:
        """Whether the loss compares images with each other, so that it can use a memory; None if unknown until it is built."""
        return True

    @property
    def depth(self) -> int | None:
        """The number of label levels that the keys are meant for; None where any number will do."""
        return None

    def search_space(self) -> SearchSpace:
        """The ranges in which `suprank compare --tune` looks for values of `[loss]`: those declared with the keys, as in
        `tau: Annotated[Positive, FloatRange(0.002, 0.1, log=True)]`. A spec leaves out keys that have no effect with others."""
        space: SearchSpace = {}
        for key, field in type(self).model_fields.items():
            ranges = [one for one in field.metadata if isinstance(one, FloatRange | Choices)]
            space |= {f"loss.{key}": one for one in ranges[-1:]}
        return space

    def loss_arguments(self, depth: int) -> dict[str, Any]:
        """The arguments of the loss's class for labels of `depth` levels."""
        return {key: getattr(self, key) for key in self.key_names()}

    def build(self, labels: Int[Tensor, "images levels *set"], dim: int) -> nn.Module:
        """The loss for embeddings of width `dim`, with proxies for the classes of the training images if it has any.

        `labels` are those of all training images, or of one image of each class, finest level first, numbered from 0. A loss
        with proxies refuses images with several labels at a level.
        """
        if labels.ndim == 3:
            if self.has_proxies:
                pairs = "decomposability" in self.key_names()
                way_out = "loss.decomposability='pairs'" if pairs else "a loss without them, such as loss.name='sup-ap'"
                raise ValueError(
                    f"loss.name={self.name!r} has proxies, which need one label for an image at each level, but images have "
                    f"several; use {way_out}."
                )
            return self._build_for_classes(labels.new_zeros(1, labels.shape[1]), dim)
        return self._build_for_classes(class_labels(labels), dim)

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> nn.Module:
        raise NotImplementedError

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_keys()
        self._check_values()
        return self

    def _check_keys(self) -> None:
        """Refuse keys that exclude each other."""

    def _check_values(self) -> None:
        """Let the loss itself refuse values, by building it for a single class."""
        classes = torch.zeros(1, self.depth or 1, dtype=torch.int64)
        # Building draws proxies. If a loss needs a package that is not installed, training will say so.
        with torch.random.fork_rng(devices=[]), suppress(ImportError):
            self.build(classes, dim=1)


def class_labels(labels: Int[Tensor, "images levels"]) -> Int[Tensor, "classes levels"]:
    """The labels at all levels of each class of the first column."""
    return labels[np.unique(labels[:, 0].numpy(), return_index=True)[1]]


class ItemLossSpec(LossSpec):
    """A loss that compares images with each other."""

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> losses.RetrievalLoss:
        return self.loss_class(**self.loss_arguments(classes.shape[1]))


class ProxyLossSpec(LossSpec):
    """A loss that compares images with a proxy for each fine class."""

    @property
    def has_proxies(self) -> bool:
        return True

    @property
    def compares_items(self) -> bool:
        return False

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> losses.RetrievalLoss:
        build: Any = self.loss_class  # of a loss with proxies, which takes their sizes
        return build(len(classes), dim, **self.loss_arguments(classes.shape[1]))


class LevelSumSpec(LossSpec):
    """The sum over the levels of a loss that sees the classes of one level at a time."""

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> losses.RetrievalLoss:
        per_level = [class_labels(classes[:, level:]) for level in range(classes.shape[1])]
        built: list[Any] = [super(LevelSumSpec, self)._build_for_classes(own, dim) for own in per_level]
        return losses.SumOverLevels(built)
