"""suprank recipes: list the recipes that come with suprank, print one of them, and list the losses that a recipe can name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.table import Table


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE|PRESET", help="Recipe to print or preset to list.", show_default="list all"),
    ] = None,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Print every entry of the recipe, with what it extends and all defaults.")
    ] = False,
    losses: Annotated[bool, typer.Option("--losses", help="List the losses and the keys of each.")] = False,
) -> None:
    """List the recipes that come with suprank, or print one of them.

    Every preset can be combined with every method: cub112/fast-ap is a recipe, whether it has a file or not.

    \b
    suprank recipes                            # presets and methods
    suprank recipes sop                        # recipes of a preset with results to expect
    suprank recipes sop/roadmap                # one of them
    suprank recipes sop/roadmap --resolved     # every entry
    suprank recipes --losses
    suprank recipes cub/roadmap > mine.toml    # start your own; or extend it: extends = "cub/roadmap"
    """
    with terminal.plain_errors("fewer"):
        if losses and (name is not None or resolved):
            raise ValueError("--losses lists losses and takes no recipe; leave the rest out.")
        if name is None and resolved:
            raise ValueError("--resolved prints one recipe; name it, such as sop/roadmap.")

        from suprank.training.presets import presets
        from suprank.training.recipe_files import recipe_text, recipes_folder

        if losses:
            _print(_losses_table())
        elif name is None:
            _print(*_overview())
        elif resolved:
            from suprank.training.recipe import read_recipe, to_toml  # imports torch

            terminal.echo(to_toml(read_recipe(name)), nl=False)
        elif name in presets(recipes_folder()):
            _print(*_preset_overview(name))
        else:
            terminal.echo(recipe_text(name) + _paper_comment(name), nl=False)


def _paper_comment(name: str) -> str:
    """The paper's numbers of a recipe, as a comment; empty if the paper has none."""
    from suprank.paper.contents import paper_results

    sentences = paper_results(name)
    if not sentences:
        return ""
    lines = "".join(f"#   {sentence}\n" for sentence in sentences)
    return f"\n# The paper's results; `suprank paper LABEL` reproduces a table:\n#\n{lines}"


def _print(*parts: Table | str) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)  # [loss] is not markup
    for part in parts:
        console.print(part)


def _overview() -> Iterator[Table | str]:
    from suprank.training.presets import compositions, methods, presets
    from suprank.training.recipe_files import all_recipes, recipes_folder

    folder = recipes_folder()
    combined = set(compositions(folder))
    yield _sentences_table("preset", presets(folder))
    yield _sentences_table("method", methods(folder))
    yield _sentences_table("further recipe", {name: file for name, file in all_recipes().items() if name not in combined})
    yield "Every PRESET/METHOD is a recipe: suprank train cub112/fast-ap"
    yield "Recipes of a preset with results to expect: suprank recipes sop"


def _preset_overview(preset: str) -> Iterator[Table | str]:
    """The recipes of a preset that have a file or a result to expect, of the paper or measured here."""
    from suprank.paper.contents import recipes_of_the_paper
    from suprank.training.presets import expected_results, first_sentence, header
    from suprank.training.recipe_files import all_recipes, find_recipe, load_tables, recipes_folder

    expected = {f"{preset}/{method}" for method in expected_results(recipes_folder(), preset)}
    known = {*all_recipes(), *recipes_of_the_paper()}
    names = sorted(expected | {name for name in known if name.startswith(f"{preset}/")})
    if names:
        table = terminal.plain_table(["recipe", "network", "what"])
        for name in names:
            source = find_recipe(name)
            model = load_tables(source)[0]["model"]
            table.add_row(name, model.get("start") or model["backbone"], first_sentence(header(source.text)))
        yield table
    yield f"{preset}/METHOD is a recipe for every method that suprank recipes lists."
    yield f"What they share: suprank recipes {preset}/base"


def _sentences_table(kind: str, files: dict[str, Path]) -> Table:
    """The first sentence of each file's header."""
    from suprank.training.presets import first_sentence, header

    table = terminal.plain_table([kind, "what"])
    for name, file in files.items():
        table.add_row(name, first_sentence(header(file.read_text(encoding="utf-8"))))
    return table


def _losses_table() -> Table:
    from suprank.training.loss_specs import loss_specs

    table = terminal.plain_table(["loss", "what", "keys of [loss]"])
    for name, spec in loss_specs().items():
        table.add_row(name, spec.description(), ", ".join(spec.key_names()))
    table.add_row("FILE.py:CLASS", "a loss of your own", "arguments, labels")
    return table
