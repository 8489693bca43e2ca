"""suprank data import: one command per source of images; each writes a manifest."""

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

    from suprank.data.importers import Importer, ImportResult
    from suprank.data.manifest import Manifest


class _Sources(TyperGroup):
    """The import commands. If those of the benchmarks could not be created, using one raises the import error."""

    missing: ModuleNotFoundError | None = None

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and self.missing is not None:
            raise self.missing
        return command


app = typer.Typer(
    cls=_Sources, no_args_is_help=True, help="Make a manifest of a public dataset, a folder tree, a table, or a generated set."
)

Out = Annotated[Path, typer.Option(metavar="MANIFEST", help="File to write: .parquet or .csv.")]
Root = Annotated[Path, typer.Argument(metavar="ROOT", help="Folder of the images, or a .zip or .tar archive.")]
Levels = Annotated[list[str] | None, typer.Option(help="Name of a level; repeatable, finest first.")]
Holdout = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="Make a new random split: this share of the classes becomes test, the others train."),
]
Shared = Annotated[
    str | None,
    typer.Option(
        metavar="LEVEL", help="Finest level whose classes are shared by train and test.", show_default="every coarser level"
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the random choices.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@app.command()
def folder(
    out: Out,
    root: Root,
    level: Levels = None,
    split: Annotated[str, typer.Option(help="Split of all images, unless folders are named after splits.")] = "train",
    holdout_classes: Holdout = None,
    shared: Shared = None,
    seed: Seed = 0,
) -> None:
    """Import a folder tree coarse/…/fine/image, on disk or in an archive; folders for splits (train, test, ...) may be on top.

    \b
    suprank data import folder photos --out photos.parquet --holdout-classes 0.5
    """
    from suprank.data.importers import FOLDER
    from suprank.data.importers.folder import read

    reader = partial(read, levels=level, split=split)
    _run(FOLDER, reader, root, out, _holdout(holdout_classes, shared, seed))


@app.command()
def csv(
    out: Out,
    root: Root,
    table: Annotated[
        Path | None, typer.Option(help="The table: .csv, .tsv or .parquet.", show_default="manifest.csv in the root")
    ] = None,
    path: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the paths, relative to the root.")] = "path",
    split: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the splits.")] = "split",
    all: Annotated[str | None, typer.Option(metavar="SPLIT", help="Give all images this split, instead of a column.")] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Label column; repeatable, finest first.", show_default="those that begin with label_"
        ),
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of image ids; rows with equal ids are one image.")
    ] = None,
    box: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column of crop boxes 'x1 y1 x2 y2'; or --box four times, for x1, y1, x2, y2."),
    ] = None,
    fill_gaps: terminal.FillGaps = False,
    label_separator: terminal.LabelSeparator = None,
    holdout_classes: Holdout = None,
    shared: Shared = None,
    seed: Seed = 0,
) -> None:
    """Import your own table (CSV, TSV, Parquet), with images in a folder or in an archive.

    \b
    suprank data import csv photos --table labels.csv --path file --level species --level genus \\
      --all train --holdout-classes 0.5 --out birds.parquet
    suprank data import csv photos --table labels.csv --label-separator '|' --out sets.parquet    # dog|person: two labels
    suprank data import csv pack.zip --out pack.parquet      # with manifest.csv in the archive
    """
    from suprank.data.importers import CSV
    from suprank.data.importers.table import read

    corners = box[0] if box is not None and len(box) == 1 else box
    names: dict[str, Any] = {
        "table": table,
        "path": path,
        "split": split,
        "constant_split": all,
        "levels": level,
        "id": id,
        "box": corners,
    }
    reader = partial(read, **names, fill_gaps=fill_gaps, label_separator=label_separator)
    if root.suffix.lower() in (".csv", ".tsv", ".parquet") and root.is_file():
        raise typer.BadParameter(f"{root} is a table; give the folder of the images, and --table {root}.", param_hint="ROOT")
    _run(CSV, reader, root, out, _holdout(holdout_classes, shared, seed))


@app.command()
def hf(
    source: Annotated[
        str, typer.Argument(metavar="NAME_OR_PATH", help="Dataset of the Hub (org/name), or a local folder or file of one.")
    ],
    out: Out,
    image: Annotated[str | None, typer.Option(metavar="COLUMN", help="Image column.", show_default="the only one")] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Label column; repeatable, finest first.",
            show_default="columns with class names, or text that repeats, that form a tree",
        ),
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of image ids; rows with equal ids are one image.")
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPLIT[=NAME]",
            help="Split to use, and its name in the manifest; repeatable.",
            show_default="train and test, or validation=test",
        ),
    ] = None,
    config: Annotated[str | None, typer.Option(metavar="NAME", help="Configuration of the dataset.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the Hub.", show_default="main")] = None,
    label_separator: terminal.LabelSeparator = None,
    holdout_classes: Holdout = None,
    shared: Shared = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Import a Hugging Face dataset or WebDataset shards. The first line says how much of its images is copied.

    NAME_OR_PATH is a dataset of the Hub, or a folder of `save_to_disk`, of Parquet files, of .tar shards, or of images with
    metadata.csv or metadata.jsonl; or a .parquet, .arrow or .tar file. The library `datasets` reads it, and keeps the rows of
    Parquet files in its cache, as Arrow files. Images in Arrow files, .tar shards and folders are read where they are.

    A dataset without images, but with a column of embeddings, becomes a table for `suprank evaluate`.

    \b
    A dataset of the Hub, with the levels and splits that it has, or with those that you name:
      suprank data import hf uoft-cs/cifar100 --out cifar100.parquet
      suprank data import hf org/birds --level species --level family --split train --split validation=test --out birds.parquet
    A folder with train-000000.tar, test-000000.tar, ...:
      suprank data import hf shards --level label --out shards.parquet
    Embeddings and their labels:
      suprank data import hf org/birds-embedded --split test --out birds.parquet
      suprank evaluate birds.parquet --labels birds.parquet
    """
    from suprank.data.importers.hf import import_hf

    with terminal.plain_errors("a smaller collection"):
        _check_out(out)
        if quiet:
            _hide_bars()
        with terminal.ProgressBars(quiet) as progress:
            imported = import_hf(
                source,
                image=image,
                levels=level,
                id=id,
                splits=split,
                config=config,
                revision=revision,
                label_separator=label_separator,
                resplit=_holdout(holdout_classes, shared, seed),
                announce=terminal.echo,
                progress=progress,
            )
        _save(imported, out)
        _advise_holdout(imported)


def _hide_bars() -> None:
    """Those of the libraries of Hugging Face, in this process."""
    import datasets
    from huggingface_hub.utils.tqdm import disable_progress_bars

    datasets.disable_progress_bars()
    disable_progress_bars()


@app.command()
def glyphs(
    out: Out,
    font: Annotated[list[Path] | None, typer.Option(help="Additional font file to draw with; repeatable.")] = None,
    installed_fonts: Annotated[bool, typer.Option("--installed-fonts", help="Draw with all fonts of this system too.")] = False,
    size: Annotated[int, typer.Option(min=16, help="Side of the images in pixels.")] = 64,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Draw characters with the fonts that come with matplotlib: three levels, no download, cached after a few seconds."""
    from suprank.data.importers import glyphs

    def draw(progress: Callable[[int, int], None]) -> Manifest:
        fonts = [*(font or ()), *(glyphs.installed_fonts() if installed_fonts else ())]
        return glyphs.read(fonts=fonts, size=size, seed=seed, progress=progress)

    _generate(draw, out, quiet)


@app.command()
def emoji(
    out: Out,
    size: Annotated[int, typer.Option(min=16, help="Side of the images in pixels.")] = 64,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Render emoji by up to six artists, from openly licensed npm packages (100 MB); cached after about a minute."""
    from suprank.data.importers.emoji import LICENSES, read

    manifest = _generate(lambda progress: read(size=size, seed=seed, progress=progress), out, quiet)
    beside = out.with_name(f"{out.stem}-{LICENSES}")
    with terminal.plain_errors("a smaller --size"):
        write_atomically(beside, (manifest.root / LICENSES).read_bytes())
    terminal.echo(f"licenses of the drawings: {beside}")


@app.command("mteb")
def mteb_task(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Name of an image retrieval task, such as CUB200I2IRetrieval.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write the manifest, images and judgments to.")],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Downloaded repository of the task's dataset.",
            show_default="the cache of Hugging Face datasets, or a download",
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of the task.", show_default="the first that mteb evaluates")] = None,
    subset: Annotated[str | None, typer.Option(help="Subset of the task, if it has several.")] = None,
    quiet: Quiet = False,
) -> None:
    """Import an image retrieval task of mteb (MIEB): queries, corpus and judgments; needs mteb.

    \b
    suprank data import mteb CUB200I2IRetrieval --out cub
    suprank embed resnet50 cub/manifest.parquet --out embeddings
    suprank evaluate embeddings --truth cub/qrels.json
    """
    with terminal.plain_errors("a smaller task"):
        terminal.check_folder(out)
        from suprank.integrations.mteb import MANIFEST, QRELS, task_manifest

        with terminal.progress("images", quiet) as progress:
            manifest = task_manifest(task, out, data=data, split=split, subset=subset, progress=progress)
        terminal.echo(", ".join(f"{name}: {count:,} images" for name, count in manifest.splits.items()))
        terminal.echo(f"{out / MANIFEST}: {len(manifest):,} images")
        terminal.echo(f"judgments, for suprank evaluate --truth: {out / QRELS}")


def _benchmark(importer: Importer) -> None:
    """Add the command of a public benchmark."""

    def command(
        out: Out,
        root: Annotated[Path, typer.Argument(metavar="ROOT", help="Folder of the dataset.")],
    ) -> None:
        _run(importer, importer.read, root, out)

    command.__doc__ = f"{importer.title}.\n\n\b\nUnder ROOT:\n{importer.layout}"
    app.command(importer.name, short_help=importer.title)(command)


def _run(
    importer: Importer,
    read: Callable[[Path], dict[str, Manifest]],
    root: Path,
    out: Path,
    split: Callable[[Manifest], Manifest] | None = None,
) -> None:
    """Import and save. `split`, for sources with --holdout-classes, makes the new split of a manifest."""

    def read_and_split(root: Path) -> dict[str, Manifest]:
        return {suffix: split(manifest) if split else manifest for suffix, manifest in read(root).items()}

    with terminal.plain_errors("a smaller collection"), terminal.plain_messages():
        _check_out(out)
        imported = replace(importer, read=read_and_split)(root)
        _save(imported, out)
        if split is not None:
            _advise_holdout(imported)


def _advise_holdout(imported: ImportResult) -> None:
    if all([*manifest.splits] == ["train"] for manifest in imported.manifests.values()):
        terminal.echo(
            "All images are for training, so `suprank train` has nothing to evaluate on. To hold out classes for testing, "
            "import again with --holdout-classes 0.5.",
            err=True,
        )


def _holdout(share: float | None, shared: str | None, seed: int) -> Callable[[Manifest], Manifest]:
    """A function that makes the new split of a manifest; without --holdout-classes it changes nothing."""
    from suprank.data.splits import holdout_classes

    if share is None and (shared is not None or seed):
        raise typer.BadParameter("--shared and --seed need a random split; add --holdout-classes 0.5.")
    if share is None:
        return lambda manifest: manifest
    if not 0 < share < 1:
        text = f"{share:g} must lie between 0 and 1, because train and test both need classes; try 0.5."
        raise typer.BadParameter(text, param_hint="--holdout-classes")
    return lambda manifest: holdout_classes(manifest, share, seed=seed, shared=shared)


def _generate(read: Callable[[Callable[[int, int], None]], Manifest], out: Path, quiet: bool) -> Manifest:
    """Generate a set, or take it from the cache, and save its manifest."""
    from suprank.data.importers import ImportResult
    from suprank.data.importers.base import describe_manifests

    with terminal.plain_errors("a smaller --size"):
        _check_out(out)
        with terminal.progress("drawing", quiet) as progress:
            manifest = read(progress)
        _save(ImportResult({"": manifest}, tuple(describe_manifests({"": manifest}, {}))), out)
    terminal.echo(f"images: {manifest.root}")
    return manifest


def _check_out(out: Path) -> None:
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise typer.BadParameter(f"{out} must end in .parquet or .csv.", param_hint="--out")
    terminal.check_writable(out)


def _save(imported: ImportResult, out: Path) -> None:
    for sentence in imported.sentences:
        terminal.echo(sentence)
    for file, manifest in imported.files(out).items():
        manifest.save(file)
        terminal.echo(f"{file}: {len(manifest):,} images")


def _add_benchmarks() -> None:
    try:
        from suprank.data.importers import BENCHMARKS
    except ModuleNotFoundError as error:  # without the extra `vision` other verbs still work, and these name what is missing
        _Sources.missing = error
        return
    for importer in BENCHMARKS.values():
        _benchmark(importer)


_add_benchmarks()
