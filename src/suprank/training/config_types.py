"""The base class of every table of a recipe, and the kinds of numbers and lists that its keys take."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

# TOML and JSON have lists only; what is in them stays strict.
Range = Annotated[tuple[Positive, Positive], Field(strict=False)]
Names = Annotated[tuple[str, ...], Field(strict=False)]
Counts = Annotated[tuple[Count, ...], Field(strict=False)]
Numbers = Annotated[tuple[float, ...], Field(strict=False)]
Positives = Annotated[tuple[Positive, ...], Field(strict=False)]
NotNegatives = Annotated[tuple[NotNegative, ...], Field(strict=False)]


class ConfigTable(BaseModel):
    """A table of a recipe: immutable, with strict types; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def changed_keys(self) -> set[str]:
        """The keys whose value differs from the default."""
        return {name for name, field in type(self).model_fields.items() if getattr(self, name) != field.get_default()}
