"""Training end to end: a recipe in, a run folder with a model and its exact metrics out."""

from typing import TYPE_CHECKING, Any

from suprank.system.extras import import_attribute

if TYPE_CHECKING:
    from suprank.training.callbacks import Callback, StepValues
    from suprank.training.config import TrainConfig
    from suprank.training.loop import TrainResult, train
    from suprank.training.recipe import read_recipe
    from suprank.training.recipe_files import RecipeError, all_recipes
    from suprank.training.run_folder import NonFiniteLossError
    from suprank.training.search_space import Choices, FloatRange

__all__ = [
    "Callback",
    "Choices",
    "FloatRange",
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
    "NonFiniteLossError": "run_folder",
    "RecipeError": "recipe_files",
    "TrainResult": "loop",
    "StepValues": "callbacks",
    "TrainConfig": "config",
    "Callback": "callbacks",
    "Choices": "search_space",
    "FloatRange": "search_space",
    "all_recipes": "recipe_files",
    "read_recipe": "recipe",
    "train": "loop",
}


def __getattr__(name: str) -> Any:
    return import_attribute(__name__, _MODULES, name)
