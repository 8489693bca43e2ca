"""The methods of a comparison: recipes by short labels, the dataset and budget that they must share, and how they differ."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from suprank.experiments.grid import SEED
from suprank.training.run_folder import MAY_DIFFER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from suprank.training.config import TrainConfig

SHARED = ("data", "images", "model", "batch", "run", "engine", "evaluation")
"""Tables in which all recipes of a comparison must agree, except for the seed and for what does not change what is learned."""

NOTED = ("optimizer", "memory")
"""Tables that may belong to a method; a reader must know where they differ."""

COMPARED = ("loss", "proxies")
"""Tables that a comparison is about."""

_LISTED = ", ".join(SHARED)

SUFFIX = ".toml"

Settings = dict[str, Any]
"""Entries of a config by their dotted names."""


@dataclass(frozen=True)
class Method:
    """A recipe of a comparison, and those of its settings that matter."""

    recipe: str
    settings: Settings

    @classmethod
    def from_config(cls, recipe: str, config: TrainConfig, axes: Sequence[str] = ()) -> Method:
        """The recipe with the settings that it was read with, which its runs share: all but those of the axes."""
        tables, free = (*SHARED, *NOTED, *COMPARED), {*MAY_DIFFER, SEED}
        if "loss.name" in axes:  # losses have keys and defaults of their own, so that only what the recipe sets is shared
            free |= {f"loss.{key}" for key in config.loss.key_names() if key not in config.loss.changed_keys()}
        settings = {
            key: one
            for key, one in flatten(config).items()
            if key.split(".")[0] in tables and key not in free and not any(_overlap(key, axis) for axis in axes)
        }
        return cls(recipe, settings)


def _overlap(key: str, axis: str) -> bool:
    """Whether the axis is this entry, or a table that holds it, or a part of it: `loss`, `loss.tau`, `data.tests.fine`."""
    return f"{key}.".startswith(f"{axis}.") or f"{axis}.".startswith(f"{key}.")


def flatten(config: TrainConfig) -> Settings:
    """All entries of a config by their dotted names, `table.entry`, as JSON gives them back."""
    tables = json.loads(config.model_dump_json())
    return {f"{table}.{entry}": value for table, entries in tables.items() for entry, value in entries.items()}


def changed_settings(before: Settings, now: Settings) -> list[str]:
    """What changed among the entries that both have: one that only one has came with another version of suprank."""
    return [f"{key} was {before[key]!r} and is {now[key]!r}" for key in before if key in now and before[key] != now[key]]


def check_budget(methods: Mapping[str, Method], may_differ: Sequence[str] = ()) -> None:
    """Refuse recipes that do not train and evaluate the same network on the same images for the same time.

    `may_differ` names exceptions: keys such as `batch.size`, or whole tables such as `model`.
    """
    known = {key for method in methods.values() for key in method.settings}
    for exception in may_differ:
        if not any(_is_within(key, (exception,)) for key in known):
            raise ValueError(
                f"may_differ={exception} is neither a key nor a table of the recipes; try batch.size, or one of {_LISTED}."
            )
    differences = {key: values for key, values in _differences(methods, SHARED).items() if not _is_within(key, may_differ)}
    if differences:
        listed = "; ".join(f"{key} is {_list_values(values)}" for key, values in list(differences.items())[:5])
        further = f"; and {len(differences) - 5} more entries" if len(differences) > 5 else ""
        first = next(iter(differences))
        raise ValueError(
            f"the recipes do not have the same dataset and budget: {listed}{further}. Give one value for all, {first}=..., "
            f"allow it by may_differ={first}, or compare them in separate folders."
        )


def difference_notes(methods: Mapping[str, Method], may_differ: Sequence[str] = ()) -> list[str]:
    """A sentence for each entry in which the methods differ, of the optimizer, the memory and the exceptions."""
    differences = _differences(methods, (*NOTED, *SHARED))
    return [
        f"{key} is {_list_values(values)}."
        for key, values in differences.items()
        if key.split(".")[0] in NOTED or _is_within(key, may_differ)
    ]


def _is_within(key: str, entries: Sequence[str]) -> bool:
    """Whether the key is one of these entries, or in one of these tables."""
    return any(f"{key}.".startswith(f"{entry}.") for entry in entries)


def _differences(methods: Mapping[str, Method], tables: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """The entries of the tables in which the methods differ, of those that all have: the labels by entry and by value."""
    every = [method.settings for method in methods.values()]
    common = [key for key in every[0] if key.split(".")[0] in tables and all(key in one for one in every)] if every else []
    labels: dict[str, dict[str, list[str]]] = {}
    for key in common:
        for label, method in methods.items():
            labels.setdefault(key, {}).setdefault(repr(method.settings[key]), []).append(label)
    return {key: values for key, values in labels.items() if len(values) > 1}


def _list_values(values: Mapping[str, list[str]]) -> str:
    """`64 in nsm and csl, 128 in the others`; many methods that share a value are "the others"."""
    *few, (most, many) = sorted(values.items(), key=lambda one: len(one[1]))
    parts = [f"{value} in {_list_labels(labels)}" for value, labels in few]
    return ", ".join([*parts, f"{most} in {'the others' if len(many) > 2 else _list_labels(many)}"])


def _list_labels(labels: Sequence[str]) -> str:
    *most, last = labels
    return f"{', '.join(most)} and {last}" if most else last


def split_arguments(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """The arguments that name recipes, and those that are KEY=VALUE. A file is a recipe, whatever its name."""
    recipes: list[str] = []
    overrides: list[str] = []
    for argument in arguments:
        (overrides if "=" in argument and not Path(argument).is_file() else recipes).append(argument)
    return recipes, overrides


def canonical_recipes(recipes: Sequence[str]) -> list[str]:
    """One spelling for each recipe: the name if it comes with suprank, else the absolute path. A repeated one is refused."""
    spellings: dict[str, str] = {}
    for recipe in recipes:
        name = _canonical_recipe(Path(recipe))
        if name in spellings:
            both = "" if spellings[name] == recipe else f", as {spellings[name]} and as {recipe}"
            raise ValueError(f"{name} is given twice{both}; leave one out, seeds repeat a recipe.")
        spellings[name] = recipe
    return list(spellings)


def _canonical_recipe(recipe: Path) -> str:
    from suprank.training.recipe_files import recipes_folder

    folder = recipes_folder().resolve()
    if recipe.is_absolute() or recipe.is_file():  # or was a file, when it was run
        file = recipe.resolve()
        inside = file.relative_to(folder) if file.is_relative_to(folder) else None
    else:
        inside = recipe.relative_to(folder.name) if recipe.is_relative_to(folder.name) else recipe
    return str(recipe.absolute()) if inside is None else inside.as_posix().removesuffix(SUFFIX)


def label_recipes(recipes: Sequence[str], taken: Mapping[str, str] | None = None) -> dict[str, str]:
    """The recipes by their labels: the last part of the name, `roadmap` for cub112/roadmap, or as many parts as are needed to
    distinguish them. `taken` are recipes that already have a label, and keep it.

    Example:
        >>> label_recipes(["cub112/nsm", "/home/me/roadmap.toml"], {"roadmap": "cub112/roadmap"})
        {'nsm': 'cub112/nsm', 'me/roadmap': '/home/me/roadmap.toml'}
    """
    labels = {recipe: label for label, recipe in (taken or {}).items()}
    new = [recipe for recipe in recipes if recipe not in labels]
    counts = Counter(end for recipe in new for end in _name_ends(recipe))
    for recipe in new:
        free = [end for end in _name_ends(recipe) if end not in labels.values()]
        unique = [end for end in free if counts[end] == 1]
        labels[recipe] = next(iter([*unique, *free[-1:], f"{recipe.removesuffix(SUFFIX)}{SUFFIX}"]))
    return {labels[recipe]: recipe for recipe in recipes}


def _name_ends(recipe: str) -> list[str]:
    """`roadmap`, `cub112/roadmap`: the ends of the name, shortest first."""
    parts = [part for part in PurePosixPath(recipe.removesuffix(SUFFIX)).parts if part != "/"]
    return ["/".join(parts[place:]) for place in reversed(range(len(parts)))]
