"""suprank data: public datasets, folders and tables into manifests; a check of them; a look at them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import importing, terminal
from suprank.files.atomic import write_atomically, writing_atomically

if TYPE_CHECKING:
    from suprank.data.manifest import Manifest

app = typer.Typer(no_args_is_help=True, help="Import, check and look at labeled image collections.")
app.add_typer(importing.app, name="import")

SHEETS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
"""What the name of a contact sheet may end in, and the format that it stands for."""

ManifestFile = Annotated[Path, typer.Argument(metavar="MANIFEST", help="A .parquet or .csv file from `suprank data import`.")]
Root = Annotated[Path | None, typer.Option(help="Where the images are.", show_default="as saved in the manifest")]
Split = Annotated[list[str] | None, typer.Option(help="Only images of this split, repeatable.", show_default="all")]


@app.command()
def check(
    manifest: ManifestFile,
    root: Root = None,
    split: Split = None,
    decode: Annotated[bool, typer.Option(help="Decode every image; without it only see that it is there.")] = True,
    hashes: Annotated[bool, typer.Option(help="Look for equal files, above all in two splits.")] = True,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads.", show_default="one a core")] = None,
    out: Annotated[Path | None, typer.Option(metavar="REPORT.json", help="Save what was found, with every path.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Look at every image: broken or missing files, copies across splits, labels that are no tree, sizes of classes.

    The exit code is 1 where something is wrong: a broken or missing file, a copy both in train and in test, query or
    gallery, a label with two parents.
    """
    with terminal.plain_errors("fewer --workers"):
        if out is not None:
            terminal.check_writable(out)
        from suprank.data.check import checked

        read = _read(manifest, root, split)
        with terminal.progress("checking", quiet) as progress:
            found = checked(read, progress=progress, workers=workers, decode=decode, hashes=hashes)
        try:
            if out is not None:
                write_atomically(out, found.to_json().encode())
        finally:  # also where that failed: looking at every image may have taken hours
            for sentence in found.sentences():
                terminal.echo(sentence)
    raise typer.Exit(0 if found.ok else 1)


@app.command()
def show(
    manifest: ManifestFile,
    root: Root = None,
    split: Split = None,
    out: Annotated[Path | None, typer.Option(metavar="SHEET.png", help="The sheet.", show_default="MANIFEST.png")] = None,
    level: Annotated[str | None, typer.Option(help="Rows are classes of this level.", show_default="the finest")] = None,
    classes: Annotated[int, typer.Option(min=1, help="Rows of the sheet.")] = 12,
    per_class: Annotated[int, typer.Option(min=1, help="Images of each.")] = 8,
    size: Annotated[int, typer.Option(min=16, help="Pixels of a side.")] = 96,
    seed: Annotated[int, typer.Option(min=0, help="Which classes and images.")] = 0,
    most: Annotated[int, typer.Option(min=0, help="Classes of the tree to print under one parent; 0 for no tree.")] = 6,
) -> None:
    """A contact sheet of some classes as a PNG, and the label tree as text."""
    with terminal.plain_errors("fewer --classes or a smaller --size"):
        target = manifest.with_suffix(".png") if out is None else out
        if target.suffix.lower() not in SHEETS:
            raise ValueError(f"{target} must end in one of {', '.join(SHEETS)}.")
        terminal.check_writable(target)
        from suprank.data.contact_sheet import contact_sheet

        read = _read(manifest, root, split)
        place = _place(read, level)
        sheet = contact_sheet(read, classes=classes, per_class=per_class, size=size, seed=seed, level=place)
        with writing_atomically(target) as file:
            sheet.save(file, format=SHEETS[target.suffix.lower()])
        if most and read.levels:
            terminal.echo(read.to_tree().text(most=most))
    terminal.echo(f"{read!r}\n{target}")


def _read(manifest: Path, root: Path | None, split: list[str] | None) -> Manifest:
    from suprank.data.manifest import Manifest

    read = Manifest.read(manifest, root=root)
    return read.split(*split) if split else read


def _place(manifest: Manifest, level: str | None) -> int:
    if level is None:
        return 0
    if level not in manifest.levels:
        raise ValueError(f"there is no level {level!r}; choose from {', '.join(manifest.levels) or 'none: it has no labels'}.")
    return manifest.levels.index(level)
