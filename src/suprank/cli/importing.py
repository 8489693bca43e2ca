"""suprank data import: one command for each source of images, all of which write a manifest."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from suprank.cli import terminal
from suprank.files.atomic import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

    from suprank.data.importers import Imported, Importer
    from suprank.data.manifest import Manifest


class _Sources(TyperGroup):
    """The commands; where those of the benchmarks could not be made, what they lack is raised for them."""

    missing: ModuleNotFoundError | None = None

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is None and self.missing is not None:
            raise self.missing
        return found


app = typer.Typer(
    cls=_Sources, no_args_is_help=True, help="Make a manifest of a public dataset, a folder tree, a table, or a drawn set."
)

Out = Annotated[Path, typer.Option(metavar="MANIFEST", help="What to write: .parquet or .csv.")]
Root = Annotated[Path, typer.Option(help="Folder of the images, or a .zip or .tar archive.")]
Levels = Annotated[list[str] | None, typer.Option(help="Name of a level, repeatable, finest first.")]
Holdout = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="Split anew: this share of the classes, at random, for test; the others for train."),
]
Shared = Annotated[
    str | None,
    typer.Option(
        metavar="LEVEL", help="Classes of this level and above are on both sides.", show_default="of every coarser level"
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Of the random choices.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@app.command()
def folder(
    root: Root,
    out: Out,
    level: Levels = None,
    split: Annotated[str, typer.Option(help="Of all images, where the folders do not say.")] = "train",
    holdout_classes: Holdout = None,
    shared: Shared = None,
    seed: Seed = 0,
) -> None:
    """A folder tree, coarse/…/fine/image, on disk or in an archive; split folders (train, test, ...) may stand above.

    \b
    suprank data import folder --root photos --out photos.parquet --holdout-classes 0.5
    """
    from suprank.data.importers import FOLDER
    from suprank.data.importers.folder import read

    _run(FOLDER, partial(read, levels=level, split=split), root, out, _holdout(holdout_classes, shared, seed))


@app.command()
def csv(
    root: Root,
    out: Out,
    table: Annotated[
        Path | None, typer.Option(help="The table: .csv, .tsv or .parquet.", show_default="manifest.csv in the root")
    ] = None,
    path: Annotated[str, typer.Option(metavar="COLUMN", help="Paths, relative to the root.")] = "path",
    split: Annotated[str, typer.Option(metavar="COLUMN", help="Splits.")] = "split",
    all: Annotated[str | None, typer.Option(metavar="SPLIT", help="One split for all images, instead of a column.")] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Labels, repeatable, finest first.", show_default="those that begin with label_"),
    ] = None,
    id: Annotated[str | None, typer.Option(metavar="COLUMN", help="Rows with equal ids are one image.")] = None,
    box: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="What to crop to: one column of 'x1 y1 x2 y2', or four --box."),
    ] = None,
    holdout_classes: Holdout = None,
    shared: Shared = None,
    seed: Seed = 0,
) -> None:
    """A table of one's own (CSV, TSV, Parquet), with images in a folder or in an archive.

    \b
    suprank data import csv --root photos --table labels.csv --path file --level species --level genus \\
      --all train --holdout-classes 0.5 --out birds.parquet
    suprank data import csv --root pack.zip --out pack.parquet      # with manifest.csv in the archive
    """
    from suprank.data.importers import CSV
    from suprank.data.importers.table import read

    corners = box[0] if box is not None and len(box) == 1 else box
    reader = partial(read, table=table, path=path, split=split, constant_split=all, levels=level, id=id, box=corners)
    _run(CSV, reader, root, out, _holdout(holdout_classes, shared, seed))


@app.command()
def glyphs(
    out: Out,
    font: Annotated[list[Path] | None, typer.Option(help="A font file of your own to draw with as well, repeatable.")] = None,
    size: Annotated[int, typer.Option(min=16, help="Pixels of a side.")] = 64,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Characters drawn with the fonts that come with matplotlib: no download, three levels, made in seconds and kept."""
    from suprank.data.importers.glyphs import read

    _drawn(lambda progress: read(fonts=tuple(font or ()), size=size, seed=seed, progress=progress), out, quiet)


@app.command()
def emoji(
    out: Out,
    size: Annotated[int, typer.Option(min=16, help="Pixels of a side.")] = 64,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Emoji as up to six artists drew them: openly licensed packages from npm (100 MB), drawn in about a minute and kept."""
    from suprank.data.importers.emoji import LICENSES, read

    manifest = _drawn(lambda progress: read(size=size, seed=seed, progress=progress), out, quiet)
    beside = out.with_name(f"{out.stem}-{LICENSES}")
    with terminal.plain_errors("a smaller --size"):
        write_atomically(beside, (manifest.root / LICENSES).read_bytes())
    terminal.echo(f"licenses of the drawings: {beside}")


def _benchmark(importer: Importer) -> None:
    """A command for a public benchmark."""

    def command(root: Annotated[Path, typer.Option(help="Folder of the dataset.")], out: Out) -> None:
        _run(importer, importer.read, root, out)

    command.__doc__ = f"{importer.title}.\n\n\b\nUnder --root:\n{importer.layout}"
    app.command(importer.name, short_help=importer.title)(command)


def _run(
    importer: Importer,
    read: Callable[[Path], dict[str, Manifest]],
    root: Path,
    out: Path,
    split: Callable[[Manifest], Manifest] | None = None,
) -> None:
    """Import and save. `split`, for sources with --holdout-classes, gives a manifest its new splits."""

    def read_and_split(root: Path) -> dict[str, Manifest]:
        return {suffix: split(manifest) if split else manifest for suffix, manifest in read(root).items()}

    with terminal.plain_errors("a smaller collection"):
        _check_out(out)
        imported = replace(importer, read=read_and_split)(root)
        _save(imported, out)
        if split is not None and all([*manifest.splits] == ["train"] for manifest in imported.manifests.values()):
            terminal.echo(
                "All images are for training: `suprank train` has no test images, and so no metrics. To set classes aside for "
                "test, import again with --holdout-classes 0.5.",
                err=True,
            )


def _holdout(share: float | None, shared: str | None, seed: int) -> Callable[[Manifest], Manifest]:
    """What gives a manifest its new splits; nothing changes where none were asked for."""
    from suprank.data.splits import holdout_classes

    if share is None and (shared is not None or seed):
        raise typer.BadParameter("--shared and --seed are about a random split; add --holdout-classes 0.5.")
    if share is None:
        return lambda manifest: manifest
    return lambda manifest: holdout_classes(manifest, share, seed=seed, shared=shared)


def _drawn(read: Callable[[Callable[[int, int], None]], Manifest], out: Path, quiet: bool) -> Manifest:
    """Draw, or take from the cache, and save the manifest."""
    from suprank.data.importers import Imported
    from suprank.data.importers.base import report

    with terminal.plain_errors("a smaller --size"):
        _check_out(out)
        with terminal.progress("drawing", quiet) as progress:
            manifest = read(progress)
        _save(Imported({"": manifest}, tuple(report({"": manifest}, {}))), out)
    terminal.echo(f"images: {manifest.root}")
    return manifest


def _check_out(out: Path) -> None:
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise typer.BadParameter(f"{out} must end in .parquet or .csv.", param_hint="--out")
    terminal.check_writable(out)


def _save(imported: Imported, out: Path) -> None:
    for sentence in imported.sentences:
        terminal.echo(sentence)
    for file, manifest in imported.files(out).items():
        manifest.save(file)
        terminal.echo(f"{file}: {len(manifest):,} images")


def _add_benchmarks() -> None:
    try:
        from suprank.data.importers import BENCHMARKS
    except ModuleNotFoundError as error:  # without the extra `vision` other verbs still work, and these say what is missing
        _Sources.missing = error
        return
    for importer in BENCHMARKS.values():
        _benchmark(importer)


_add_benchmarks()
