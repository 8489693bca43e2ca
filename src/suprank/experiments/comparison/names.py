"""Recipes as they are named on a command line, and the short names that they have in tables and folders."""

from __future__ import annotations

from collections import Counter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from suprank.training.recipe import SUFFIX, recipes_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def recipes_and_overrides(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """The words that name recipes, and those that are KEY=VALUE. A file is a recipe, whatever its name."""
    recipes: list[str] = []
    overrides: list[str] = []
    for word in words:
        (overrides if "=" in word and not Path(word).is_file() else recipes).append(word)
    return recipes, overrides


def spelt(recipes: Sequence[str]) -> list[str]:
    """One spelling for each recipe: the name of one that comes with suprank, else the path. One given twice is refused."""
    found: dict[str, str] = {}
    for recipe in recipes:
        name = _spelling(Path(recipe))
        if name in found:
            as_well = "" if found[name] == recipe else f", as {found[name]} and as {recipe}"
            raise ValueError(f"{name} is given twice{as_well}; leave one out, --seeds repeats a recipe.")
        found[name] = recipe
    return list(found)


def _spelling(recipe: Path) -> str:
    folder = recipes_folder().resolve()
    if recipe.is_absolute() or recipe.is_file():  # or was a file, when it was run
        file = recipe.resolve()
        inside = file.relative_to(folder) if file.is_relative_to(folder) else None
    else:
        inside = recipe.relative_to(folder.name) if recipe.is_relative_to(folder.name) else recipe
    return str(recipe.absolute()) if inside is None else inside.as_posix().removesuffix(SUFFIX)


def labels(recipes: Sequence[str], taken: Mapping[str, str] | None = None) -> dict[str, str]:
    """The recipes by their labels: the last part of the name, `roadmap` of cub112/roadmap, or as many parts as it takes to tell
    them apart. `taken` are recipes that have a label already, and keep it.

    Example:
        >>> labels(["cub112/nsm", "/home/me/roadmap.toml"], {"roadmap": "cub112/roadmap"})
        {'nsm': 'cub112/nsm', 'me/roadmap': '/home/me/roadmap.toml'}
    """
    before = {recipe: label for label, recipe in (taken or {}).items()}
    new = [recipe for recipe in recipes if recipe not in before]
    shared = Counter(end for recipe in new for end in _ends(recipe))
    for recipe in new:
        free = [end for end in _ends(recipe) if end not in before.values()]
        alone = [end for end in free if shared[end] == 1]
        before[recipe] = next(iter([*alone, *free[-1:], f"{recipe.removesuffix(SUFFIX)}{SUFFIX}"]))
    return {before[recipe]: recipe for recipe in recipes}


def _ends(recipe: str) -> list[str]:
    """`roadmap`, `cub112/roadmap`: the ends of the name, shortest first."""
    parts = [part for part in PurePosixPath(recipe.removesuffix(SUFFIX)).parts if part != "/"]
    return ["/".join(parts[place:]) for place in reversed(range(len(parts)))]
