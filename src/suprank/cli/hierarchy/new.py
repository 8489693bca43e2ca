"""suprank hierarchy new: a project of items to be labeled, or of labels to be grouped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import plain_errors

if TYPE_CHECKING:
    from suprank.hierarchy.recipe import Recipe

ProjectFolder = Annotated[Path, typer.Argument(metavar="PROJECT", help="The project's folder.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def new(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="A folder to make.")],
    recipe: Annotated[str, typer.Option(help="plain, hgldv2, or a .toml file.")] = "plain",
    items: Annotated[
        list[str] | None, typer.Option(metavar="SPLIT=FILE", help="Items to be labeled, repeatable: .csv, .tsv, .parquet.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Labels to be grouped: .txt, one a line, or .csv, .tsv, .parquet.")
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Labels are the names of a level; or pictures, beside --items, --labels."),
    ] = None,
    level: Annotated[str | None, typer.Option(help="Of the manifest.", show_default="the finest")] = None,
    levels: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help="Names of what is labeled and of its groups, finest first.", show_default="recipe"
        ),
    ] = None,
    top: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Names of the coarsest groups.", show_default="the recipe's")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of --labels.", show_default="label, text or name")
    ] = None,
    weight_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of --labels: how many items one has.", show_default="weight, or 1")
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave malformed rows out; they go to rejects.csv.")] = False,
    quiet: Quiet = False,
) -> None:
    """Make a project: a folder with one SQLite file, which all other verbs read and write.

    It begins with items whose types are then looked up (`scrape`), or with a plain list of labels. A malformed file is
    refused with its line and exit code 3, and nothing is written. Spellings of one label, such as Park and park, are one.

    \b
    suprank hierarchy new birds --labels species.txt --levels species,family,order
    suprank hierarchy new shop --manifest products.parquet --level product
    suprank hierarchy new landmarks --recipe hgldv2 --items train=train_label_to_category.csv
    """
    with plain_errors():
        if items and labels is not None:
            raise typer.BadParameter("a project begins with --items or with --labels; give one of the two.")
        if labels is None and (text_column or weight_column):
            raise typer.BadParameter("--text-column and --weight-column are of a table of --labels; name it.")
        if level is not None and manifest is None:
            raise typer.BadParameter("--level is of a manifest; name it with --manifest.", param_hint="--level")
        from suprank.hierarchy.beginning import new_project
        from suprank.hierarchy.recipe import read_recipe
        from suprank.hierarchy.sources import labels_of_manifest, manifest_level, read_items, read_labels

        chosen = read_recipe(recipe)
        pictures = None if manifest is None else (manifest, manifest_level(manifest, level))
        content: Any = None
        if items:
            content = read_items([_pair(one) for one in items], chosen.items, skip_bad=skip_bad)
        elif labels is not None:
            content = read_labels(labels, text_column=text_column, weight_column=weight_column, skip_bad=skip_bad)
        elif pictures is not None:
            content = labels_of_manifest(*pictures)
            if levels is None and recipe == "plain":
                levels = ",".join((pictures[1], *chosen.levels[1:]))
        changed = _changed(chosen, levels, top)
        read = {"text_column": text_column, "weight_column": weight_column, "skip_bad": skip_bad}
        settings = _settings(changed, items, labels, pictures) | {key: value for key, value in read.items() if value}
        begun = new_project(project, changed, content, settings=settings, manifest=pictures)
    if not quiet:
        for line in _told(project, begun.result, begun.again):
            terminal.echo(line)


def _pair(text: str) -> tuple[str, Path]:
    split, equals, file = text.partition("=")
    if not split.strip() or not equals or not file:
        raise typer.BadParameter(f"{text!r} is not SPLIT=FILE, such as train=landmarks.csv.", param_hint="--items")
    return split.strip(), Path(file)


def _changed(recipe: Recipe, levels: str | None, top: str | None) -> Recipe:
    from pydantic import ValidationError

    from suprank.hierarchy.recipe import Recipe, said

    given = {"levels": levels, "top": top}
    update = {key: tuple(word.strip() for word in text.split(",")) for key, text in given.items() if text is not None}
    try:
        return Recipe.model_validate({**recipe.model_dump(), **update})
    except ValidationError as error:
        raise ValueError(said(error)) from None


def _settings(
    recipe: Recipe, items: list[str] | None, labels: Path | None, pictures: tuple[Path, str] | None
) -> dict[str, Any]:
    from_manifest = None if pictures is None else [str(pictures[0]), pictures[1]]
    given = {"items": items, "labels": None if labels is None else str(labels), "manifest": from_manifest}
    of_recipe = {"recipe": recipe.name, "levels": list(recipe.levels), "top": list(recipe.top)}
    return {**of_recipe, **{key: value for key, value in given.items() if value}}


def _told(folder: Path, result: dict[str, Any], again: bool) -> list[str]:
    from suprank.hierarchy.text import amount

    if again:
        return [f"{folder}: is there already, with the same content; nothing changed"]
    lines = [f"{folder}: made, empty"]
    if result.get("splits"):
        splits = ", ".join(f"{count:,} {split}" for split, count in result["splits"].items())
        lines = [f"{folder}: {amount(result['items'], 'item')} ({splits})"]
        if result["sharing"]:
            lines.append(f"{amount(result['sharing'], 'item')} of a source that another has too")
    elif result.get("labels"):
        lines = [f"{folder}: {amount(result['labels'], 'label')}"]
    if result.get("repeated"):
        lines.append(f"said twice, and counted once: {amount(result['repeated'], 'row')}")
    if result.get("rejected"):
        lines.append(f"malformed and left out: {amount(result['rejected'], 'row')}; see {folder / 'rejects.csv'}")
    return lines
