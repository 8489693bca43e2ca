"""Training end to end: a recipe in, a run folder with a model and its exact metrics out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from suprank.system.extras import explain_missing_extra

if TYPE_CHECKING:
    from suprank.training.callbacks import Callback, StepValues
    from suprank.training.config import TrainConfig
    from suprank.training.loop import NonFiniteLossError, TrainResult, train
    from suprank.training.recipe import read_recipe
    from suprank.training.recipe_files import RecipeError, all_recipes

__all__ = [
    "Callback",
    "NonFiniteLossError",
    "RecipeError",
    "StepValues",
    "TrainConfig",
    "TrainResult",
    "all_recipes",
    "read_recipe",
    "train",
]

# The loop imports timm and Lightning, which takes seconds, and a recipe needs neither.
_MODULES = {
    "NonFiniteLossError": "loop",
    "RecipeError": "recipe_files",
    "TrainResult": "loop",
    "StepValues": "callbacks",
    "TrainConfig": "config",
    "Callback": "callbacks",
    "all_recipes": "recipe_files",
    "read_recipe": "recipe",
    "train": "loop",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with explain_missing_extra(__name__):
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
