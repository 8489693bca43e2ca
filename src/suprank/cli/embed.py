"""suprank embed: embed the images of a manifest with a model, into files for `suprank evaluate`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from suprank.cli import terminal
from suprank.cli.options import (
    BatchSize,
    Decoder,
    Device,
    HeadFolder,
    ManifestFile,
    OnBroken,
    Quiet,
    Resize,
    Root,
    Squash,
    TrustCode,
    Weights,
    Workers,
)
from suprank.cli.train import is_first_process

On = Annotated[str, typer.Option(metavar="local|ray[=HOST:PORT]", help="Where to embed: here, or on a Ray cluster.")]


def embed(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder with a saved embedder, the name of a timm backbone, hf-hub:org/name for either on the Hugging Face "
            "Hub, or FILE.py:NAME for your own.",
        ),
    ],
    manifest: ManifestFile,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write the embeddings to.")],
    weights: Weights = None,
    head: HeadFolder = None,
    trust_code: TrustCode = False,
    root: Root = None,
    split: Annotated[
        list[str] | None,
        typer.Option(help="Embed only this split; repeatable.", show_default="all but train, if there are others"),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Side of the square crop in pixels.", show_default="the model's")
    ] = None,
    resize: Resize = None,
    squash: Squash = None,
    fast_jpeg: Annotated[
        bool | None,
        typer.Option(
            "--fast-jpeg/--full-jpeg",
            help="Decode large JPEGs at a fraction of their size; pixels differ by a few gray levels.",
            show_default="the model's",
        ),
    ] = None,
    decoder: Decoder = None,
    scale: Annotated[
        list[float] | None,
        typer.Option(help="Scale of the images; repeatable: embeddings are averaged over the scales.", show_default="1"),
    ] = None,
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        typer.Option(help="Number format the network computes in.", show_default="the model's"),
    ] = None,
    dtype: Annotated[Literal["float32", "float16"], typer.Option(help="Number format of the embeddings on disk.")] = "float32",
    batch_size: BatchSize = None,
    workers: Workers = None,
    device: Device = None,
    on_broken: OnBroken = "raise",
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Embed one of N shares only, from 1 to N; the same command without it joins them."),
    ] = None,
    on: On = "local",
    quiet: Quiet = False,
) -> None:
    """Embed the images of a manifest: DIR/<split>/embeddings.npy and items.parquet, ready for `suprank evaluate`.

    A model that `suprank train` saved knows how the run loaded and embedded its test images, and the same is done here.
    Options that change it are named on stderr, because metrics may then differ from the run's report.

    If the command is interrupted, give it again to continue where it stopped. Under torchrun the processes share the images.
    Distractors are embedded with the gallery.

    With --shard 3/16, the third of 16 machines, or jobs of a scheduler, embeds its share of the images. They need no
    connection: DIR is one folder that all see, or one of each, copied into one later. Then the same command without --shard
    computes what is missing, and joins the shares.

    With --on ray, or --on ray=10.0.0.1:6379, whichever machine of a Ray cluster is free embeds the next 256 to 2,048 images.
    All machines see DIR and the images under the same names. What a machine has not done when it dies is done by the others.

    \b
    suprank embed resnet50 cub.parquet --out embeddings
    suprank evaluate embeddings
    suprank embed hf-hub:org/name cub.parquet --out embeddings
    suprank embed mine.py:build cub.parquet --out embeddings
    suprank embed resnet50 cub.parquet --head head --out adapted
    torchrun --nproc-per-node 8 -m suprank embed runs/sop/model sop.parquet --out embeddings
    suprank embed runs/sop/model sop.parquet --out /shared/embeddings --shard 3/16
    suprank embed runs/sop/model sop.parquet --out /shared/embeddings --on ray
    """
    scales = tuple(scale or (1.0,))
    if min(scales) <= 0:
        raise typer.BadParameter(f"{min(scales)} is not a scale; give numbers above 0, such as 0.7.", param_hint="--scale")
    share = None if shard is None else _parse_shard(shard)
    with terminal.plain_errors("a smaller --batch-size"), terminal.plain_messages():
        from suprank.workflows.embeddings import embed as embed_manifest

        if on == "local":
            terminal.device(device)
        terminal.check_folder(out)
        with terminal.ProgressBars(quiet) as bars:
            folders = embed_manifest(
                model,
                manifest,
                out,
                weights=weights,
                head=head,
                trust_code=trust_code,
                root=root,
                splits=split,
                size=size,
                resize=resize,
                squash=squash,
                fast_jpeg=fast_jpeg,
                decoder=decoder,
                scales=scales,
                precision=precision,
                dtype=dtype,
                batch_size=batch_size,
                workers=workers,
                device=device,
                on_broken=on_broken,
                shard=share,
                on=on,
                progress=lambda part, done, total: bars(f"embedding {part}", done, total),
            )
        if is_first_process():
            for part, where in folders.items():
                terminal.echo(f"{part}: {where}")


def _parse_shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise typer.BadParameter(f"{text!r} is not I/N, with I from 1 to N, such as 3/16.", param_hint="--shard")
    return int(found[1]), int(found[2])
