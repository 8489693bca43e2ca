"""suprank recipes: what comes with suprank to train with, one of them in full, and the losses that a recipe can name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.table import Table

    from suprank.training.loss_names import Decomposability


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME|FILE|PRESET", help="A recipe to print, or a preset.", show_default="list all")
    ] = None,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Print every entry of it, with what it extends and all defaults.")
    ] = False,
    losses: Annotated[bool, typer.Option("--losses", help="List the losses, and the entries that each of them reads.")] = False,
) -> None:
    """The recipes that come with suprank, or one of them in full.

    Every preset goes with every method: cub112/fast-ap is a recipe, whether there is a file of it or not.

    \b
    suprank recipes                            # presets and methods
    suprank recipes sop                        # those with results to expect
    suprank recipes sop/roadmap                # one of them
    suprank recipes sop/roadmap --resolved     # every entry
    suprank recipes --losses
    suprank recipes cub/roadmap > mine.toml    # a beginning for your own; extends = "cub/roadmap" is another
    """
    with terminal.plain_errors("fewer"):
        if losses and (name is not None or resolved):
            raise ValueError("--losses lists losses and takes no recipe; leave the rest out.")
        if name is None and resolved:
            raise ValueError("--resolved prints one recipe; name it, such as sop/roadmap.")

        from suprank.training.presets import presets
        from suprank.training.recipe import read_recipe, recipe_text, recipes_folder, to_toml

        if losses:
            _show(_losses())
        elif name is None:
            _show(*_overview())
        elif resolved:
            terminal.echo(to_toml(read_recipe(name)), nl=False)
        elif name in presets(recipes_folder()):
            _show(*_of_preset(name))
        else:
            terminal.echo(recipe_text(name), nl=False)


def _show(*parts: Table | str) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)  # [loss] is no markup
    for part in parts:
        console.print(part)


def _table(*columns: str) -> Table:
    """A table whose first column is never broken: its entries are there to be copied."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=place == 0, overflow="fold")
    return table


def _overview() -> Iterator[Table | str]:
    from suprank.training.presets import compositions, methods, presets
    from suprank.training.recipe import all_recipes, recipes_folder

    folder = recipes_folder()
    combined = set(compositions(folder))
    yield _abouts("preset", presets(folder))
    yield _abouts("method", methods(folder))
    yield _abouts("further recipe", {name: file for name, file in all_recipes().items() if name not in combined})
    yield "Every PRESET/METHOD is a recipe: suprank train cub112/fast-ap"
    yield "Of a preset, suprank recipes sop lists those with a result to expect."


def _of_preset(preset: str) -> Iterator[Table | str]:
    from suprank.training.recipe import all_recipes, read_recipe

    files = {name: file for name, file in all_recipes().items() if name.startswith(f"{preset}/")}
    if files:
        table = _table("recipe", "network", "what")
        for name, file in files.items():
            model = read_recipe(file).model
            table.add_row(name, model.start or model.backbone, _about(file))
        yield table
    yield f"{preset}/METHOD is a recipe for every method that suprank recipes lists."
    yield f"What they share: suprank recipes {preset}/base"


def _abouts(kind: str, files: dict[str, Path]) -> Table:
    table = _table(kind, "what")
    for name, file in files.items():
        table.add_row(name, _about(file))
    return table


def _about(file: Path) -> str:
    """The first sentence of the comment a recipe opens with."""
    from suprank.training.presets import header, sentence

    return sentence(header(file.read_text(encoding="utf-8")))


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
