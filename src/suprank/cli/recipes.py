"""suprank recipes: what comes with suprank to train with, one of them in full, and the losses that a recipe can name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from suprank.training.loss_names import Decomposability


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME|FILE", help="A recipe to print.", show_default="list all")] = None,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Print every entry of it, with what it extends and all defaults.")
    ] = False,
    losses: Annotated[bool, typer.Option("--losses", help="List the losses, and the entries that each of them reads.")] = False,
) -> None:
    """The recipes that come with suprank, or one of them in full.

    \b
    suprank recipes                            # names, networks, losses
    suprank recipes sop/roadmap                # the file, with what to expect of it
    suprank recipes sop/roadmap --resolved     # every entry
    suprank recipes --losses
    suprank recipes cub/roadmap > mine.toml    # a beginning for your own; extends = "cub/roadmap" is another
    """
    with terminal.plain_errors("fewer"):
        if losses and (name is not None or resolved):
            raise ValueError("--losses lists losses and takes no recipe; leave the rest out.")
        if name is None and resolved:
            raise ValueError("--resolved prints one recipe; name it, such as sop/roadmap.")

        from suprank.training.recipe import read_recipe, recipe_file, to_toml

        if name is None:
            _show(_losses() if losses else _recipes())
        elif resolved:
            typer.echo(to_toml(read_recipe(name)), nl=False)
        else:
            typer.echo(recipe_file(name).read_text(encoding="utf-8"), nl=False)


def _show(table: Table) -> None:
    from rich.console import Console

    Console(highlight=False, markup=False).print(table)  # [loss] is no markup


def _table(*columns: str) -> Table:
    """A table whose first column is never broken: its entries are there to be copied."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=place == 0, overflow="fold")
    return table


def _recipes() -> Table:
    from suprank.training.recipe import all_recipes, read_recipe

    table = _table("recipe", "network", "what")
    for name, file in all_recipes().items():
        model = read_recipe(file).model
        table.add_row(name, model.start or model.backbone, _sentence(file))
    return table


def _sentence(file: Path) -> str:
    """The first sentence of the comment a recipe opens with."""
    from suprank.training.recipe import header

    return header(file).partition("\n\n")[0].replace("\n", " ").partition(". ")[0].removesuffix(".")


def _losses() -> Table:
    from suprank.training.loss_names import LOSSES

    table = _table("loss", "what", "reads, of [loss]")
    for name, loss in LOSSES.items():
        choices: tuple[Decomposability | None, ...] = ("pairs", "proxies") if loss.combined else (None,)
        always = set.intersection(*(loss.reads(choice) for choice in choices))
        parts = [_listed(always)]
        parts += [f"with {choice}: {_listed(loss.reads(choice) - always)}" for choice in choices if choice is not None]
        table.add_row(name, loss.meaning, "; ".join(parts))
    return table


def _listed(entries: set[str]) -> str:
    """Entries of [loss] in the order of the config."""
    from suprank.training.config import LossConfig

    return ", ".join(entry for entry in LossConfig.model_fields if entry in entries)
