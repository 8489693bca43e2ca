"""The spec of a loss of the user's own, `mine.py:MyLoss` or `package.module:MyLoss`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, JsonValue, field_validator

from suprank.system import custom_code
from suprank.training.custom_loss import CustomLoss, build_custom_loss
from suprank.training.loss_specs.base import LossSpec, class_labels
from suprank.training.search_space import Choices, FloatRange, SearchSpace

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


class CustomLossSpec(LossSpec):
    """A loss of your own. Nothing of it is loaded until it is built, so that a recipe can be read without its code."""

    name: str
    """`mine.py:MyLoss`, the path being relative to the working directory, or `package.module:MyLoss`. What is named is a class,
    or a function that returns a loss."""

    arguments: dict[str, JsonValue] = Field(default={})
    """Its keyword arguments. `num_classes` and `embedding_size` are added if its signature names them."""

    labels: Literal["all", "finest"] = "all"
    """Give it the labels of all levels `[batch, levels]`, finest first, or those of the finest level alone `[batch]`, as
    pytorch-metric-learning's losses take them. Of images with several labels: `[batch, levels, M]`, padded with −1."""

    @field_validator("arguments")
    @classmethod
    def _has_toml_values(cls, arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if None in arguments.values():
            missing = next(key for key, value in arguments.items() if value is None)
            raise ValueError(f"{missing}=None cannot be saved in a recipe; leave it out, so that the default holds")
        return arguments

    @property
    def has_proxies(self) -> None:
        return None

    @property
    def compares_items(self) -> None:
        return None

    def search_space(self) -> SearchSpace:
        """What its class (or function) declares as `search_space = {"margin": FloatRange(0, 0.5)}`, ranges of its arguments."""
        declared = getattr(self.load(), "search_space", {})
        if not isinstance(declared, dict) or not all(isinstance(one, FloatRange | Choices) for one in declared.values()):
            raise custom_code.CustomCodeError(
                f"{self.name}: search_space={declared!r} must map arguments to FloatRange or Choices (suprank.training)."
            )
        return {f"loss.arguments.{key}": one for key, one in declared.items()}

    def load(self) -> Any:
        """The class or function that `name` means, whose code runs if the user consents to it."""
        custom_code.require_consent(self.name, "loss", self._named_in)
        return custom_code.load(self.name)

    def build(self, labels: Int[Tensor, "images levels *set"], dim: int) -> CustomLoss:
        """Load the code and build the loss; see `suprank.training.custom_loss`."""
        if labels.ndim == 3 and self.labels == "finest":
            raise ValueError(
                "loss.labels='finest' gives the loss one label for an image, but images have several; use loss.labels='all', "
                "which gives it labels [batch, levels, M], padded with −1."
            )
        classes = labels[:, 0].max() + 1 if labels.ndim == 3 else len(class_labels(labels))
        provided = {"num_classes": int(classes), "embedding_size": dim}
        custom_code.require_consent(self.name, "loss", self._named_in)
        return build_custom_loss(self.name, self.arguments, provided, finest_only=self.labels == "finest")

    def _check_values(self) -> None:
        """Leave the values to the loss, whose code is not loaded here."""
