"""Options that several commands have: each is declared once, and means the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

ManifestFile = Annotated[Path, typer.Argument(metavar="MANIFEST", help="A .parquet or .csv file from `suprank data import`.")]
Root = Annotated[
    Path | None, typer.Option(help="Folder that the images' paths are relative to.", show_default="as saved in the manifest")
]
Split = Annotated[list[str] | None, typer.Option(help="Use only images of this split; repeatable.", show_default="all")]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Run the Python code that a file names, now and until it changes.")
]
AgainstFrozen = Annotated[
    bool,
    typer.Option("--against-frozen", help="Compare with the run's backbone before training, on images read the same way."),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Weights of the backbone, if MODEL is the name of one.",
        show_default="timm's, downloaded once; for FILE.py:NAME its own",
    ),
]
Resize = Annotated[
    int | None,
    typer.Option(min=0, help="Short side before the crop, in pixels; 0 crops the image as it is.", show_default="the model's"),
]
Squash = Annotated[
    bool | None,
    typer.Option(
        "--squash/--no-squash",
        help="Resize to a square without keeping the aspect ratio, as is usual on SOP.",
        show_default="the model's",
    ),
]
Decoder = Annotated[
    Literal["pil", "turbo"] | None,
    typer.Option(
        help="What decodes JPEGs; turbo is faster, with the same pixels.",
        show_default="the model's",
    ),
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Images per forward pass.", show_default="64, or 16 on a CPU")]
Workers = Annotated[int | None, typer.Option(min=0, help="Processes that load images.", show_default="one per core")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.", show_default="cuda if available")]
OnBroken = Annotated[Literal["raise", "skip"], typer.Option(help="Stop at the first broken image, or leave such images out.")]
HeadFolder = Annotated[
    Path | None, typer.Option("--head", metavar="HEAD", help="A head of `suprank adapt` that the embeddings go through.")
]
TestSet = Annotated[str | None, typer.Option(metavar="NAME", help="Test set of the run's recipe.", show_default="the first")]
RowLabels = Annotated[Path | None, typer.Option(metavar="FILE", help="The manifest of the rows of a file of embeddings.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
