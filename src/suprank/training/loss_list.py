"""The losses that a recipe can name, for `suprank recipes --losses`: read from the source of their specs, without torch.

A spec takes its defaults from the class of its loss, so that importing it imports torch, which takes seconds. What a list shows
(names, descriptions and keys) stands in the classes as text. A test compares it with `suprank.training.loss_specs`.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

MODULES = ("base", "rank_losses", "baselines")
"""Modules of `suprank.training.loss_specs`, each after those whose classes it extends."""


class ListedLoss(NamedTuple):
    """A loss in a list: one line that says which it is, and the keys of `[loss]` beside `name`."""

    description: str
    keys: tuple[str, ...]


def list_losses() -> dict[str, ListedLoss]:
    """Every loss of the package that has a name, by that name, in the order of `loss_specs()`."""
    folder = Path(__file__).parent / "loss_specs"
    classes: dict[str, type] = {}
    listed: dict[str, ListedLoss] = {}
    for module in MODULES:
        for node in ast.parse((folder / f"{module}.py").read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                fields = _annotated_fields(node)
                # A class with the same bases has the same order of inheritance.
                bases = tuple(classes.get(ast.unparse(base), object) for base in node.bases)
                classes[node.name] = cls = type(node.name, bases, {"fields": tuple(fields)})
                name = fields.get("name")
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    line = (ast.get_docstring(node) or "").partition("\n")[0].removesuffix(".")
                    listed[name.value] = ListedLoss(line, _keys(cls))
    return listed


def _annotated_fields(node: ast.ClassDef) -> dict[str, ast.expr | None]:
    """The fields of a pydantic model, `name: annotation = default`, and their defaults."""
    return {
        entry.target.id: entry.value
        for entry in node.body
        if isinstance(entry, ast.AnnAssign)
        and isinstance(entry.target, ast.Name)
        and not entry.target.id.startswith("_")
        and not ast.unparse(entry.annotation).startswith("ClassVar")
    }


def _keys(cls: type) -> tuple[str, ...]:
    """The fields of a class and of those it extends, in pydantic's order: those of the most basic class first."""
    fields = [field for base in reversed(cls.__mro__) for field in vars(base).get("fields", ())]
    return tuple(field for field in dict.fromkeys(fields) if field != "name")
