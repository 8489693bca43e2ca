"""What every loss spec has: a name, the keyword arguments of its class as keys, and how the loss is built."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, PrivateAttr, create_model, model_validator

from suprank import losses
from suprank.training.config_types import ConfigTable
from suprank.training.search_space import SearchRange, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxtyping import Int
    from torch import Tensor, nn

Keys = dict[str, tuple[Any, Any]]
"""Type and default of each key."""

_SPECS: dict[str, type[LossSpec]] = {}


def loss_specs() -> dict[str, type[LossSpec]]:
    """The spec of every loss that has a name, by that name."""
    return dict(_SPECS)


def add_loss(
    name: str, kind: type[LossSpec], loss_class: type, description: str, ranges: Mapping[str, SearchRange] | None = None
) -> None:
    """Let recipes name a loss. Its keys are the keyword arguments of its class; tuning looks for them in `ranges`."""
    keys: dict[str, Any] = {"name": (Literal[name], name), **kind.keys_of(loss_class)}
    class_name = f"{name.title().replace('-', '')}Spec"
    spec = create_model(class_name, __base__=kind, __module__=__name__, **keys)
    spec.loss_class, spec.ranges, spec.__doc__ = loss_class, dict(ranges or {}), description
    _SPECS[name] = globals()[class_name] = spec  # where pickle looks for it


def constructor_keys(loss_class: type) -> Keys:
    """The keyword arguments of a loss that a recipe can say. The loss checks their values when it is built."""
    keys: Keys = {}
    for argument in inspect.signature(loss_class).parameters.values():
        if argument.kind is argument.KEYWORD_ONLY and argument.name != "using":
            keys[argument.name] = (_strict(argument.annotation), argument.default)
    return keys


class _Lists:
    """`Sequence` in the keys of a recipe: TOML and JSON have lists only; what is in them stays strict."""

    def __class_getitem__(cls, item: Any) -> Any:
        return Annotated[tuple[item, ...], Field(strict=False)]


def _strict(annotation: Any) -> Any:
    """The type of a key for the annotation of an argument, which is text in our modules."""
    return eval(annotation, {"Sequence": _Lists, "Literal": Literal}) if isinstance(annotation, str) else annotation


class LossSpec(ConfigTable):
    """The table `[loss]` of a recipe. Every loss has a subclass, made by `add_loss`."""

    loss_class: ClassVar[type]
    ranges: ClassVar[dict[str, SearchRange]] = {}

    name: str
    """A name that `suprank recipes --losses` lists, or a loss of your own: `mine.py:MyLoss` or `package.module:MyLoss`."""

    _named_in: str | None = PrivateAttr(default=None)  # the file that names a loss of the user's own, which needs consent

    @classmethod
    def keys_of(cls, loss_class: type) -> Keys:
        """The keys of the spec of such a loss that `cls` does not have itself."""
        return constructor_keys(loss_class)

    @classmethod
    def key_names(cls) -> tuple[str, ...]:
        """The keys of `[loss]` beside `name`."""
        return tuple(key for key in cls.model_fields if key != "name")

    @classmethod
    def description(cls) -> str:
        """One line that says which loss it is."""
        return cls.__doc__ or ""

    @property
    def has_proxies(self) -> bool | None:
        """Whether the loss has parameters of its own, which `[proxies]` trains; None if only the built loss can tell."""
        return False

    @property
    def needs_one_label(self) -> bool | None:
        """Whether images must have one label at each level, as those have that are compared with proxies."""
        return self.has_proxies

    @property
    def compares_items(self) -> bool | None:
        """Whether the loss compares images with each other, so that it can use a memory; None if unknown until it is built."""
        return True

    @property
    def depth(self) -> int | None:
        """The number of label levels that the keys are meant for; None where any number will do."""
        return None

    def search_space(self) -> SearchSpace:
        """The ranges in which `suprank compare --tune` looks for values of `[loss]`."""
        return {f"loss.{key}": one for key, one in self.ranges.items()}

    def loss_arguments(self, depth: int) -> dict[str, Any]:
        """The arguments of the loss's class for labels of `depth` levels."""
        return {key: getattr(self, key) for key in self.key_names()}

    def build(self, labels: Int[Tensor, "images levels *set"], dim: int) -> nn.Module:
        """The loss for embeddings of width `dim`, with proxies for the classes of the training images if it has any.

        `labels` are those of all training images, or of one image of each class, finest level first, numbered from 0. A loss
        with proxies refuses images with several labels at a level.
        """
        if labels.ndim == 3:
            if self.needs_one_label:
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


class TrainedItemLossSpec(ItemLossSpec):
    """A loss that compares images with each other, and has parameters of its own."""

    @property
    def has_proxies(self) -> bool:
        return True

    @property
    def needs_one_label(self) -> bool:
        return False


class ProxyLossSpec(LossSpec):
    """A loss that compares images with a proxy for each fine class."""

    @property
    def has_proxies(self) -> bool:
        return True

    @property
    def compares_items(self) -> bool:
        return False

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> losses.RetrievalLoss:
        return self.loss_class(len(classes), dim, **self.loss_arguments(classes.shape[1]))


class ClassLossSpec(ProxyLossSpec):
    """A loss with proxies that takes the labels of the classes at all levels, and a margin for each level."""

    @property
    def depth(self) -> int | None:
        return len(self.margins) if self.margins else None  # type: ignore[attr-defined]

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> losses.RetrievalLoss:
        return self.loss_class(classes, dim, **self.loss_arguments(classes.shape[1]))


class LevelSumSpec(LossSpec):
    """The sum over the levels of a loss that sees the classes of one level at a time."""

    def _build_for_classes(self, classes: Int[Tensor, "classes levels"], dim: int) -> losses.RetrievalLoss:
        per_level = [class_labels(classes[:, level:]) for level in range(classes.shape[1])]
        built: list[Any] = [super(LevelSumSpec, self)._build_for_classes(own, dim) for own in per_level]
        return losses.SumOverLevels(built)


class ItemSumSpec(LevelSumSpec, ItemLossSpec):
    """A loss of item pairs at every level."""


class ProxySumSpec(LevelSumSpec, ProxyLossSpec):
    """A loss of proxies at every level."""
