"""suprank data: import image collections into manifests, check them, draw contact sheets, and export them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import exporting, importing, terminal
from suprank.cli.options import ManifestFile, Quiet, Root, Split
from suprank.files.atomic import atomic_writer, write_atomically

if TYPE_CHECKING:
    from suprank.data.manifest import Manifest

app = typer.Typer(no_args_is_help=True, help="Import, check, show and export labeled image collections.")
app.command("import")(importing.import_images)

SHEETS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
"""Extension of a contact sheet → its format."""


@app.command()
def check(
    manifest: ManifestFile,
    root: Root = None,
    split: Split = None,
    decode: Annotated[bool, typer.Option(help="Decode every image; otherwise only check that the file exists.")] = True,
    hashes: Annotated[bool, typer.Option(help="Find duplicate files, in particular across splits.")] = True,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of threads.", show_default="one per core")] = None,
    out: Annotated[Path | None, typer.Option(metavar="REPORT.json", help="Save the full report, with every path.")] = None,
    quiet: Quiet = False,
) -> None:
    """Check every image: broken or missing files, duplicates across splits, labels that form no tree, sizes of classes.

    The exit code is 1 if there is a problem: a broken or missing file, a duplicate both in train and in test, query or
    gallery, or a label with two parents.
    """
    with terminal.plain_errors("fewer --workers"):
        if out is not None:
            terminal.check_writable(out)
        from suprank.data.check import check_manifest

        collection = _read(manifest, root, split)
        with terminal.progress("checking", quiet) as progress:
            report = check_manifest(collection, progress=progress, workers=workers, decode=decode, hashes=hashes)
        try:
            if out is not None:
                write_atomically(out, report.to_json().encode())
        finally:  # also if that failed: checking every image may have taken hours
            for sentence in report.sentences():
                terminal.echo(sentence)
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def show(
    manifest: ManifestFile,
    root: Root = None,
    split: Split = None,
    out: Annotated[Path | None, typer.Option(metavar="SHEET.png", help="File to write.", show_default="MANIFEST.png")] = None,
    level: Annotated[str | None, typer.Option(help="Level of the classes to show.", show_default="the finest")] = None,
    classes: Annotated[int, typer.Option(min=1, help="Number of classes, one row each.")] = 12,
    per_class: Annotated[int, typer.Option(min=1, help="Images per class.")] = 8,
    size: Annotated[int, typer.Option(min=16, help="Side of a thumbnail in pixels.")] = 96,
    seed: Annotated[int, typer.Option(min=0, help="Seed for choosing classes and images.")] = 0,
    most: Annotated[int, typer.Option(min=0, help="Classes to print under one parent of the tree; 0 prints no tree.")] = 6,
) -> None:
    """Draw a contact sheet of some classes, and print the label tree."""
    with terminal.plain_errors("fewer --classes or a smaller --size"):
        target = manifest.with_suffix(".png") if out is None else out
        if target.suffix.lower() not in SHEETS:
            raise ValueError(f"{target} must end in one of {', '.join(SHEETS)}.")
        terminal.check_writable(target)
        from suprank.data.contact_sheets import contact_sheet

        collection = _read(manifest, root, split)
        index = _level_index(collection, level)
        sheet = contact_sheet(collection, classes=classes, per_class=per_class, size=size, seed=seed, level=index)
        with atomic_writer(target) as file:
            sheet.save(file, format=SHEETS[target.suffix.lower()])
        if most and collection.levels:
            terminal.echo(collection.to_tree().text(most=most))
    terminal.echo(f"{collection!r}\n{target}")


def _read(manifest: Path, root: Path | None, split: list[str] | None) -> Manifest:
    from suprank.data.manifest import Manifest

    collection = Manifest.read(manifest, root=root)
    return collection.split(*split) if split else collection


def _level_index(manifest: Manifest, level: str | None) -> int:
    if level is None:
        return 0
    if level not in manifest.levels:
        raise ValueError(f"there is no level {level!r}; choose from {', '.join(manifest.levels) or 'none: it has no labels'}.")
    return manifest.levels.index(level)


app.command()(exporting.export)
