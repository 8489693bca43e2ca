"""suprank data export: write the images and labels of a manifest in the formats of other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(no_args_is_help=True, help="Write a manifest with its images as a Hugging Face dataset or WebDataset shards.")

ManifestFile = Annotated[Path, typer.Argument(metavar="MANIFEST", help="A .parquet or .csv file from `suprank data import`.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; a folder that is not empty is refused.")]
Root = Annotated[
    Path | None, typer.Option(help="Folder that the images' paths are relative to.", show_default="as saved in the manifest")
]
Split = Annotated[list[str] | None, typer.Option(help="Export only images of this split; repeatable.", show_default="all")]
ShardSize = Annotated[str, typer.Option(metavar="SIZE", help="Size of a shard, such as 500MB or 1GiB.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@app.command()
def hf(
    manifest: ManifestFile,
    out: Out,
    root: Root = None,
    split: Split = None,
    shard_size: ShardSize = "500MB",
    quiet: Quiet = False,
) -> None:
    """Write Parquet shards with images and class names, and a dataset card: a folder for `datasets.load_dataset`.

    Columns are image, label_<level> (finest first), and the others of the manifest. Image files are copied as they are.

    \b
    suprank data export hf birds.parquet --out birds-hf
    python -c 'import datasets; print(datasets.load_dataset("birds-hf"))'
    hf upload org/birds birds-hf --repo-type dataset        # to share it
    """
    from suprank.data.export import export_hf

    _export(export_hf, manifest, out, root, split, shard_size, quiet)


@app.command()
def webdataset(
    manifest: ManifestFile,
    out: Out,
    root: Root = None,
    split: Split = None,
    shard_size: ShardSize = "500MB",
    quiet: Quiet = False,
) -> None:
    """Write .tar shards of samples: an image, .json with its labels and other columns, .cls with the id of its finest class.

    \b
    suprank data export webdataset birds.parquet --out shards --shard-size 1GB
    suprank data import hf shards --out shards.parquet      # reads the shards in place
    """
    from suprank.data.export import export_webdataset

    _export(export_webdataset, manifest, out, root, split, shard_size, quiet)


def _export(
    export: Callable[..., list[Path]],
    manifest: Path,
    out: Path,
    root: Path | None,
    split: list[str] | None,
    shard_size: str,
    quiet: bool,
) -> None:
    with terminal.plain_errors("a smaller --shard-size"):
        terminal.check_folder(out)
        from suprank.data.manifest import Manifest

        collection = Manifest.read(manifest, root=root)
        collection = collection.split(*split) if split else collection
        with terminal.progress("exporting", quiet) as progress:
            shards = export(collection, out, shard_size=shard_size, progress=progress)
    terminal.echo(f"{out}: {len(collection):,} images in {len(shards):,} shards")
