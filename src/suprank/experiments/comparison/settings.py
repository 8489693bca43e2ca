"""What the recipes of a comparison must have in common, one dataset and one budget, and what is told where they have not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from suprank.experiments.sweep.folder import entries_of
from suprank.experiments.sweep.grid import SEED
from suprank.training.run_folder import MAY_DIFFER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from suprank.training.config import TrainConfig

SHARED = ("data", "images", "model", "batch", "run", "engine", "evaluation")
"""Tables in which all recipes of a comparison must agree, but for the seed and for what changes nothing that is learned."""

TOLD = ("optimizer", "memory")
"""Tables that may belong to a method, and that a reader must be told of where they differ."""

OWN = ("loss", "proxies")
"""Tables that a comparison is about."""

Settings = dict[str, Any]
Differences = dict[str, dict[str, list[str]]]
"""By entry and by value, as it is printed, the methods that have it."""


class Method(NamedTuple):
    """A recipe of a comparison, and its entries, as far as they matter, by dotted name."""

    recipe: str
    settings: Settings

    @classmethod
    def of(cls, recipe: str, config: TrainConfig) -> Method:
        """The recipe with the settings that it was read with."""
        tables, free = (*SHARED, *TOLD, *OWN), {*MAY_DIFFER, SEED}
        settings = {key: one for key, one in entries_of(config).items() if key.split(".")[0] in tables and key not in free}
        return cls(recipe, settings)


def check_budget(methods: Mapping[str, Method]) -> None:
    """Refuses recipes that do not train the same network on the same images for as long, and judge it alike."""
    found = _differences(methods, SHARED)
    if found:
        said = "; ".join(f"{key} is {_by_value(values)}" for key, values in list(found.items())[:5])
        further = f"; and {len(found) - 5} more entries" if len(found) > 5 else ""
        first = next(iter(found))
        raise ValueError(
            f"the recipes are not of one dataset and one budget: {said}{further}. Give one value for all, {first}=..., "
            "or compare them apart, each with an --out of its own."
        )


def told(methods: Mapping[str, Method]) -> list[str]:
    """A sentence for each entry of the optimizer and the memory in which the methods differ."""
    return [f"{key} is {_by_value(values)}." for key, values in _differences(methods, TOLD).items()]


def changes(before: Settings, now: Settings) -> list[str]:
    """What changed, of the entries that both know: another one came with another version of suprank."""
    return [f"{key} was {before[key]!r} and is {now[key]!r}" for key in before if key in now and before[key] != now[key]]


def _differences(methods: Mapping[str, Method], tables: Sequence[str]) -> Differences:
    """The entries of the tables in which the methods differ, of those that all of them know."""
    every = [method.settings for method in methods.values()]
    common = [key for key in every[0] if key.split(".")[0] in tables and all(key in one for one in every)] if every else []
    found: Differences = {}
    for key in common:
        for label, method in methods.items():
            found.setdefault(key, {}).setdefault(repr(method.settings[key]), []).append(label)
    return {key: values for key, values in found.items() if len(values) > 1}


def _by_value(values: Mapping[str, list[str]]) -> str:
    """`64 in nsm and csl, 128 in the others`; many methods that share a value are "the others"."""
    *few, (most, many) = sorted(values.items(), key=lambda one: len(one[1]))
    parts = [f"{value} in {_listed(labels)}" for value, labels in few]
    return ", ".join([*parts, f"{most} in {'the others' if len(many) > 2 else _listed(many)}"])


def _listed(labels: Sequence[str]) -> str:
    *most, last = labels
    return f"{', '.join(most)} and {last}" if most else last
