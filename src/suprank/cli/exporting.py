"""suprank data export: write the images and labels of a manifest in the formats of other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from suprank.cli import terminal
from suprank.cli.options import ManifestFile, Quiet, Root, Split


def export(
    manifest: ManifestFile,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; a folder that is not empty is refused.")],
    format: Annotated[
        Literal["hf", "webdataset"],
        typer.Option(help="Parquet files for Hugging Face datasets, or .tar shards for WebDataset."),
    ] = "hf",
    root: Root = None,
    split: Split = None,
    shard_size: Annotated[str, typer.Option(metavar="SIZE", help="Size of a shard, such as 500MB or 1GiB.")] = "500MB",
    quiet: Quiet = False,
) -> None:
    """Write a manifest with its images as a Hugging Face dataset or as WebDataset shards. Image files are copied as they are.

    \b
    Parquet files with class names: load them in Python, and share them on the Hub:
      suprank data export birds.parquet --out birds-hf
      python -c 'import datasets; print(datasets.load_dataset("birds-hf"))'
      hf upload org/birds birds-hf --repo-type dataset
    Shards of samples (an image, .json with its labels and other columns, .cls with the id of its finest class):
      suprank data export birds.parquet --format webdataset --out shards --shard-size 1GB
    """
    with terminal.plain_errors("a smaller --shard-size"):
        terminal.check_folder(out)
        from suprank.data.export import export_manifest
        from suprank.data.manifest import Manifest

        collection = Manifest.read(manifest, root=root)
        collection = collection.split(*split) if split else collection
        with terminal.progress("exporting", quiet) as progress:
            shards = export_manifest(collection, out, format=format, shard_size=shard_size, progress=progress)
    terminal.echo(f"{out}: {len(collection):,} images in {len(shards):,} shards")
