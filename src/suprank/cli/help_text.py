"""How `--help` looks: paragraphs that fill the width of the terminal, and flags without a type."""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption


def flowing(text: str) -> str:
    """Join the lines of each paragraph of a help text, except after \\b. Typer itself does so for the first paragraph only."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(one if one.startswith("\b") else one.replace("\n", " ") for one in paragraphs)


def _without_flag_types(params: list[Any]) -> list[Any]:
    """Typer shows `--quiet <bool>`, as if a value had to follow; show `--quiet`."""
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag and param.metavar is None:
            param.metavar = ""
    return params


class Command(TyperCommand):
    """A command whose help shows flags without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the command, and --help."""
        return _without_flag_types(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands whose help shows flags without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the group, and --help."""
        return _without_flag_types(super().get_params(ctx))
