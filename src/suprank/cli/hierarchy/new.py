"""`suprank hierarchy new`: create a project from items to be labeled, or from labels to be grouped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import plain_errors

if TYPE_CHECKING:
    from suprank.hierarchy.recipe import Recipe

ProjectFolder = Annotated[Path, typer.Argument(metavar="PROJECT", help="Folder of the project.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def new(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="Folder to create.")],
    recipe: Annotated[str, typer.Option(help="Recipe: plain, hgldv2, or a .toml file.")] = "plain",
    items: Annotated[
        list[str] | None, typer.Option(metavar="SPLIT=FILE", help="Items to be labeled, repeatable: .csv, .tsv, .parquet.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Labels to be grouped: .txt with one per line, or .csv, .tsv, .parquet.")
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Manifest with the labels of --level, or with images for --items or --labels."),
    ] = None,
    level: Annotated[str | None, typer.Option(help="Level of the manifest.", show_default="the finest")] = None,
    levels: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help="Names of the levels, finest first: what is labeled, its groups.", show_default="recipe"
        ),
    ] = None,
    top: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Names of the coarsest groups.", show_default="the recipe's")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of --labels with the text.", show_default="label, text or name")
    ] = None,
    weight_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of --labels with numbers of items.", show_default="weight, or 1")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out malformed rows, and list them in rejects.csv.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Create a project: a folder with one SQLite file, which all other commands read and write.

    A project starts from items, whose types are then looked up (`types`), or from a plain list of labels. A malformed file is
    refused with its line and exit code 3, and nothing is written. Spellings of one label, such as Park and park, are merged.

    \b
    suprank hierarchy new birds --labels species.txt --levels species,family,order
    suprank hierarchy new shop --manifest products.parquet --level product
    suprank hierarchy new landmarks --recipe hgldv2 --items train=train_label_to_category.csv
    """
    with plain_errors():
        if items and labels is not None:
            raise typer.BadParameter("a project starts from --items or from --labels; give one of the two.")
        if labels is None and (text_column or weight_column):
            raise typer.BadParameter("--text-column and --weight-column name columns of --labels; give that, too.")
        if level is not None and manifest is None:
            raise typer.BadParameter("--level names a level of --manifest; give that, too.", param_hint="--level")
        from suprank.hierarchy.create import create_project
        from suprank.hierarchy.recipe import read_recipe
        from suprank.hierarchy.sources import manifest_level, read_items, read_labels, read_manifest_labels

        chosen = read_recipe(recipe)
        manifest_source = None if manifest is None else (manifest, manifest_level(manifest, level))
        content: Any = None
        if items:
            content = read_items([_split_file(text) for text in items], chosen.items, skip_bad=skip_bad)
        elif labels is not None:
            content = read_labels(labels, text_column=text_column, weight_column=weight_column, skip_bad=skip_bad)
        elif manifest_source is not None:
            content = read_manifest_labels(*manifest_source)
            if levels is None and recipe == "plain":
                levels = ",".join((manifest_source[1], *chosen.levels[1:]))
        changed = _with_levels(chosen, levels, top)
        options = {"text_column": text_column, "weight_column": weight_column, "skip_bad": skip_bad}
        settings = _settings(changed, items, labels, manifest_source)
        settings |= {key: value for key, value in options.items() if value}
        created = create_project(project, changed, content, settings=settings, manifest=manifest_source)
    if not quiet:
        for line in _summary(project, created.counts, created.existed):
            terminal.echo(line)


def _split_file(text: str) -> tuple[str, Path]:
    split, equals, file = text.partition("=")
    if not split.strip() or not equals or not file:
        raise typer.BadParameter(f"{text!r} is not SPLIT=FILE, such as train=landmarks.csv.", param_hint="--items")
    return split.strip(), Path(file)


def _with_levels(recipe: Recipe, levels: str | None, top: str | None) -> Recipe:
    from suprank.hierarchy.recipe import validated

    given = {"levels": levels, "top": top}
    update = {key: tuple(word.strip() for word in text.split(",")) for key, text in given.items() if text is not None}
    return validated({**recipe.model_dump(), **update})


def _settings(
    recipe: Recipe, items: list[str] | None, labels: Path | None, manifest: tuple[Path, str] | None
) -> dict[str, Any]:
    from_manifest = None if manifest is None else [str(manifest[0]), manifest[1]]
    given = {"items": items, "labels": None if labels is None else str(labels), "manifest": from_manifest}
    from_recipe = {"recipe": recipe.name, "levels": list(recipe.levels), "top": list(recipe.top)}
    return {**from_recipe, **{key: value for key, value in given.items() if value}}


def _summary(folder: Path, counts: dict[str, Any], existed: bool) -> list[str]:
    from suprank.hierarchy.text import pluralize

    if existed:
        return [f"{folder}: it exists already, with the same content; nothing changed"]
    lines = [f"{folder}: created, empty"]
    if counts.get("splits"):
        splits = ", ".join(f"{count:,} {split}" for split, count in counts["splits"].items())
        lines = [f"{folder}: {pluralize(counts['items'], 'item')} ({splits})"]
        if counts["sharing"]:
            lines.append(f"{pluralize(counts['sharing'], 'item')} with a source that another item has, too")
    elif counts.get("labels"):
        lines = [f"{folder}: {pluralize(counts['labels'], 'label')}"]
    if counts.get("repeated"):
        lines.append(f"repeated and counted once: {pluralize(counts['repeated'], 'row')}")
    if counts.get("rejected"):
        lines.append(f"malformed and left out: {pluralize(counts['rejected'], 'row')}; see {folder / 'rejects.csv'}")
    return lines
