"""suprank data import: make a manifest of a public dataset, a folder tree, a table, a Hugging Face dataset, or a drawn set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suprank.cli import terminal
from suprank.cli.options import Quiet


def import_images(
    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="Kind of images, or public dataset.", show_default="list all sources")
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PLACE KEY=VALUE",
            help="Where the images are, unless they are drawn: a folder, for some sources an archive or a name; then keys of "
            "the source, which `suprank data import SOURCE` lists.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="MANIFEST", help="File to write: .parquet or .csv; for mteb a folder.")
    ] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Of folder, the name of a level; of csv and hf, a label column. Repeatable, finest first.",
            show_default="columns that begin with label_; of hf also others that form a tree",
        ),
    ] = None,
    holdout_classes: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Make a new random split: this share of the classes becomes test, the others train."
        ),
    ] = None,
    shared: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="Finest level whose classes are shared by train and test.",
            show_default="every coarser level",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random split, or of drawn images.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Make a manifest of images: of your own, of a public dataset, or drawn. Images stay where they are.

    Without arguments, all sources are listed; with only a source, what it expects and its keys.

    \b
    Folders coarse/.../fine/image, perhaps in an archive or in folders of splits:
      suprank data import folder photos --out photos.parquet --holdout-classes 0.5
    A table of your own; labels as in dog|person; a table in an archive:
      suprank data import csv photos table=labels.csv path=file \\
        constant_split=train --level species --level genus --out birds.parquet
      suprank data import csv photos table=labels.csv label_separator='|' \\
        --out sets.parquet
      suprank data import csv pack.zip --out pack.parquet
    A dataset of the Hugging Face Hub, with its levels and splits or yours; shards:
      suprank data import hf uoft-cs/cifar100 --out cifar100.parquet
      suprank data import hf org/birds --level species \\
        split=train split=validation=test --out birds.parquet
      suprank data import hf shards --level label --out shards.parquet
    A public dataset, drawings, and a task of mteb with its judgments:
      suprank data import cub CUB_200_2011 --out cub.parquet
      suprank data import glyphs --out glyphs.parquet
      suprank data import mteb CUB200I2IRetrieval --out cub
    """
    with terminal.plain_errors("a smaller collection"), terminal.plain_messages():
        from suprank.cli.import_sources import SOURCES, ImportRequest, describe, find_source, parse_keys, splitter

        if source is None:
            for name, one in SOURCES.items():
                terminal.echo(f"{name:13}  {one.title}")
            terminal.echo("`suprank data import SOURCE` says what a source expects, and its keys.")
            return
        chosen = find_source(source)
        if out is None and not arguments:
            terminal.echo(describe(source))
            return
        if out is None:
            raise typer.BadParameter("name the file to write.", param_hint="--out")
        words = list(arguments or ())
        if chosen.place and not words:
            raise typer.BadParameter(describe(source), param_hint=chosen.place)
        place = words.pop(0) if chosen.place else ""
        given = {"--level": level, "--holdout-classes": holdout_classes, "--shared": shared, "--seed": seed}
        for option, value in given.items():
            if value and option not in chosen.options:
                raise typer.BadParameter(f"{source} does not take it; leave it out.", param_hint=option)
        split = splitter(holdout_classes, shared, seed) if "--shared" in chosen.options else None
        keys = parse_keys(chosen.keys, words, source)
        with terminal.ProgressBars(quiet) as bars:
            chosen.run(ImportRequest(place, keys, out, level, split, seed, quiet, bars))
