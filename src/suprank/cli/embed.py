"""suprank embed: the images of a manifest through a model, into files that `suprank evaluate` takes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from suprank.embedding import ImageLoaderSettings
    from suprank.models import Embedder


class Precision(StrEnum):
    """What the network computes in; embeddings are float32 either way."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class Stored(StrEnum):
    """What embeddings are stored in."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


Model = Annotated[str, typer.Option(metavar="DIR|NAME", help="A saved embedder, or the name of a timm backbone.")]
Weights = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Weights of the backbone, where one is named.", show_default="timm's, downloaded once"),
]
Size = Annotated[int | None, typer.Option(min=1, help="Side of the square crop in pixels.", show_default="the model's")]
Resize = Annotated[
    int | None,
    typer.Option(min=0, help="Short side before the crop; 0 crops the image as it is.", show_default="the model's"),
]
Squash = Annotated[
    bool | None,
    typer.Option(
        "--squash/--no-squash", help="Resize both sides, losing the aspect, as is usual on SOP.", show_default="the model's"
    ),
]
FastJpeg = Annotated[
    bool | None,
    typer.Option(
        "--fast-jpeg/--full-jpeg",
        help="Decode large JPEGs at a fraction of their size; pixels differ by a few gray levels.",
        show_default="the model's",
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Images that the network sees at once.", show_default="64, or 16 on a CPU")
]
Workers = Annotated[int | None, typer.Option(min=0, help="Processes that read images.", show_default="one a core")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.", show_default="cuda if there is one")]
Skip = Annotated[bool, typer.Option("--skip-broken", help="Leave broken images out instead of stopping at the first.")]


def embed(
    model: Model,
    manifest: Annotated[Path, typer.Option(help="A .parquet or .csv file from `suprank data import`.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the embeddings.")],
    weights: Weights = None,
    root: Annotated[Path | None, typer.Option(help="Where the images are.", show_default="as saved in the manifest")] = None,
    split: Annotated[
        list[str] | None, typer.Option(help="Only this split, repeatable.", show_default="all but train, if there are others")
    ] = None,
    size: Size = None,
    resize: Resize = None,
    squash: Squash = None,
    fast_jpeg: FastJpeg = None,
    scale: Annotated[
        list[float] | None, typer.Option(help="A scale of the images, repeatable: their mean.", show_default="1")
    ] = None,
    precision: Annotated[
        Precision | None, typer.Option(help="What the network computes in.", show_default="the model's")
    ] = None,
    dtype: Annotated[Stored, typer.Option(help="Of the embeddings on disk.")] = Stored.FLOAT32,
    batch_size: BatchSize = None,
    workers: Workers = None,
    device: Device = None,
    skip_broken: Skip = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Embeddings of a manifest's images: DIR/<split>/embeddings.npy and items.parquet, ready for `suprank evaluate`.

    A model that `suprank train` saved knows how the run read and embedded its test images, and that is repeated here. Options
    that change it are named on stderr, since metrics then differ from the run's report.

    A run that was stopped goes on where it was when the same command is given again. Under torchrun the processes share
    the images. Distractors are embedded with the gallery.

    \b
    suprank embed --model resnet50 --manifest cub.parquet --out embeddings
    suprank evaluate --embeddings embeddings
    torchrun --nproc-per-node 8 -m suprank.cli.main embed --model model --manifest sop.parquet --out embeddings
    """
    with terminal.plain_errors("a smaller --batch-size"):
        from suprank.data import Manifest
        from suprank.embedding import embed_collection, launched

        terminal.device(device)
        terminal.check_folder(out)
        scales = tuple(scale or (1.0,))
        if min(scales) <= 0:
            raise typer.BadParameter(f"{min(scales)} is no scale; give numbers above 0, such as 0.7.", param_hint="--scale")
        read = Manifest.read(manifest, root=root)
        embedder = embedder_of(model, weights)
        images = {"size": size, "resize": resize, "squash": squash, "fast_jpeg": fast_jpeg}
        reading = reading_of(embedder, images, batch_size or usual_batch(device), workers, skip_broken)
        with launched() as processes, ExitStack() as bars:
            if processes.rank == 0:
                say_overrides(embedder, reading, model, precision, scales)
            folders = embed_collection(
                embedder,
                read,
                out,
                reading=reading,
                splits=split,
                device=processes.device(device),
                precision=None if precision is None else precision.value,
                scales=scales,
                dtype=dtype.value,
                processes=processes,
                progress=_bars(bars, quiet or processes.rank > 0),
            )
            if processes.rank == 0:
                for part, folder in folders.items():
                    terminal.echo(f"{part}: {folder}")


def embedder_of(model: str, weights: Path | None, **settings: object) -> Embedder:
    """The embedder saved in a folder; or a timm backbone by name, with weights of a file or timm's own."""
    from suprank.models import Embedder

    if Path(model).is_dir():
        if weights is not None or settings:
            raise ValueError(f"{model} is a saved embedder, with weights and settings of its own; leave the others out.")
        return Embedder.load(model)
    if "/" in model:
        raise FileNotFoundError(f"{model} is not a folder; give a saved embedder, or the name of a timm backbone.")
    return Embedder.create(model, pretrained=weights is None, weights=weights, **settings).eval()


def reading_of(
    embedder: Embedder, images: dict[str, Any], batch_size: int, workers: int | None, skip_broken: bool
) -> ImageLoaderSettings:
    """How to read images for a model: `images` are the options on their size and decoding."""
    from suprank.embedding import ImageLoaderSettings

    on_broken = "skip" if skip_broken else "raise"
    return ImageLoaderSettings.for_model(embedder, **images, batch_size=batch_size, workers=workers, on_broken=on_broken)


def read_as(reading: ImageLoaderSettings) -> dict[str, Any]:
    """How images are read, as entries of an `EmbedderConfig`."""
    settings = reading.settings
    assert settings is not None, "made by ImageLoaderSettings.for_model"
    entries = settings._asdict()
    side = entries.pop("size")
    return {**entries, "image_size": (side, side)}


def say_overrides(
    embedder: Embedder,
    reading: ImageLoaderSettings,
    model: str,
    precision: Precision | None = None,
    scales: tuple[float, ...] = (1.0,),
) -> None:
    """Name on stderr the options that read or embed images otherwise than a saved model does by itself."""
    from suprank.embedding import ImageLoaderSettings, Provenance

    if not Path(model).is_dir():
        return  # a timm backbone has no evaluation of ours that numbers could differ from
    own = ImageLoaderSettings.for_model(embedder).settings if embedder.input.size[0] == embedder.input.size[1] else None
    if own is None or reading.settings is None:
        return
    usual = Provenance(embedder.config.backbone, 0, **own._asdict(), precision=embedder.config.precision or "fp32")
    chosen = replace(
        usual,
        **reading.settings._asdict(),
        precision=precision.value if precision else usual.precision,
        scales=scales,
    )
    if differences := chosen.differences(usual):
        terminal.echo(
            f"warning: options override what {model} was saved with: {'; '.join(differences)}. Metrics then differ from those "
            f"of the run that trained it.",
            err=True,
        )


def usual_batch(device: str | None) -> int:
    """Images at once where nobody says. On a CPU, 64 images of 224 pixels took 1.4 times as long as 16."""
    import torch

    on_cpu = torch.device(device).type == "cpu" if device else not torch.cuda.is_available()
    return 16 if on_cpu else 64


def _bars(stack: ExitStack, quiet: bool) -> Callable[[str, int, int], None]:
    """A bar for each part, begun when it begins."""
    begun: dict[str, Callable[[int, int], None]] = {}

    def progress(part: str, done: int, total: int) -> None:
        if part not in begun:
            stack.close()
            begun[part] = stack.enter_context(terminal.progress(f"embedding {part}", quiet))
        begun[part](done, total)

    return progress
