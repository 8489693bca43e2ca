"""suprank models: create an embedder, give it a PCA projection or a head, export it, list backbones."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from suprank.cli import terminal
from suprank.cli.embed import (
    BatchSize,
    DecoderName,
    Device,
    FastJpeg,
    Resize,
    Size,
    SkipBroken,
    Squash,
    Weights,
    Workers,
)
from suprank.cli.train import TrustCode
from suprank.workflows.embeddings import as_embedder_config, default_batch_size, load_embedder, loader_settings

app = typer.Typer(no_args_is_help=True, help="Create, project, export and share embedders.")

Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder to write the embedder to.")]


class Pooling(StrEnum):
    """How the features of all positions become one vector."""

    TIMM = "timm"
    AVG = "avg"
    MAX = "max"
    AVG_MAX = "avg+max"
    GEM = "gem"
    GEM_FIXED = "gem-fixed"
    TOKEN = "token"


class Normalization(StrEnum):
    """How the pooled vector is normalized before the projection."""

    NONE = "none"
    LAYER = "layer"
    L2 = "l2"


@app.command()
def create(
    backbone: Annotated[
        str,
        typer.Argument(
            metavar="BACKBONE",
            help="A timm name: resnet50, deit_small, vit_base, ...; hf-hub:org/name for a timm model on the Hub; or "
            "FILE.py:NAME.",
        ),
    ],
    out: Out,
    weights: Weights = None,
    untrained: Annotated[bool, typer.Option("--untrained", help="Start from random weights.")] = False,
    pooling: Annotated[Pooling, typer.Option(help="Pooling of the features.")] = Pooling.TIMM,
    normalization: Annotated[Normalization, typer.Option(help="Normalization before the projection.")] = Normalization.NONE,
    dim: Annotated[int | None, typer.Option(min=1, help="Width of a linear projection.", show_default="none")] = None,
    freeze_batchnorm: Annotated[bool, typer.Option("--freeze-batchnorm", help="Keep its statistics during training.")] = False,
    image_size: Annotated[int | None, typer.Option(min=1, help="Image side in pixels.", show_default="the backbone's")] = None,
    imagenet_colors: Annotated[
        bool,
        typer.Option("--imagenet-colors", help="Normalize with ImageNet's mean and std, as the authors do for ViT-B/16."),
    ] = False,
) -> None:
    """Create an embedder: backbone → pooling → normalization → projection → L2, saved as a folder.

    \b
    The paper's, on CUB and SOP:
      suprank models create resnet50 --normalization layer --dim 512 --freeze-batchnorm --out model
    """
    with terminal.plain_errors("a smaller backbone"):
        if untrained and weights is not None:
            raise ValueError("--untrained and --weights contradict each other; give one.")
        from suprank.data.transforms import IMAGENET_MEAN, IMAGENET_STD
        from suprank.models import Embedder
        from suprank.system.custom_code import is_code_name

        terminal.check_folder(out)
        embedder = Embedder.create(
            backbone,
            pretrained=not untrained and weights is None and not is_code_name(backbone),
            weights=weights,
            pooling=pooling.value,
            normalization=normalization.value,
            dim=dim,
            freeze_batchnorm=freeze_batchnorm,
            image_size=image_size,
            mean=IMAGENET_MEAN if imagenet_colors else None,
            std=IMAGENET_STD if imagenet_colors else None,
        )
        embedder.save(out)
    millions = sum(parameter.numel() for parameter in embedder.parameters()) / 1e6
    terminal.echo(f"{out}: {backbone}, {millions:.1f} M parameters, embeddings of width {embedder.dim}")


@app.command()
def pca(
    out: Out,
    dim: Annotated[int, typer.Option(min=1, help="Number of directions to keep: the width of the embeddings.")],
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder with a saved embedder, or the name of a timm backbone.")
    ],
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="Images whose features are analyzed.")],
    whiten: Annotated[bool, typer.Option("--whiten", help="Divide each direction by its standard deviation.")] = False,
    weights: Weights = None,
    trust_code: TrustCode = False,
    root: Annotated[Path | None, typer.Option(help="Folder of the images.", show_default="as saved in the manifest")] = None,
    split: Annotated[list[str] | None, typer.Option(help="Use images of this split, repeatable.", show_default="train")] = None,
    size: Size = None,
    resize: Resize = None,
    squash: Squash = None,
    fast_jpeg: FastJpeg = None,
    decoder: DecoderName = None,
    batch_size: BatchSize = None,
    workers: Workers = None,
    device: Device = None,
    skip_broken: SkipBroken = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Compute the projection by PCA of a manifest's features: an embedder with a linear layer of width DIM.

    \b
    suprank models pca resnet101 sfm120k.parquet --dim 2048 --whiten --out model
    """
    with terminal.plain_errors("a smaller --batch-size"):
        from suprank.data import Manifest
        from suprank.embedding import feature_moments, torchrun_processes
        from suprank.models import pca_projection

        terminal.device(device)
        terminal.check_folder(out)
        images = Manifest.read(manifest, root=root).split(*(split or ("train",)))
        embedder = load_embedder(model, weights, trust_code=trust_code)
        if dim > embedder.features_dim:
            raise ValueError(f"--dim {dim} is more than the {embedder.features_dim} features of {model}; give fewer.")
        chosen_decoder = None if decoder is None else decoder.value
        sizes = {"size": size, "resize": resize, "squash": squash, "fast_jpeg": fast_jpeg, "decoder": chosen_decoder}
        loading = loader_settings(
            embedder, sizes, batch_size or default_batch_size(device), workers, "skip" if skip_broken else "raise"
        )
        with torchrun_processes() as processes, terminal.progress("analyzing", quiet or processes.rank > 0) as progress:
            moments = feature_moments(
                embedder, images, loading=loading, device=processes.device(device), processes=processes, progress=progress
            )
            if processes.rank == 0:
                projected = embedder.with_projection(*pca_projection(moments, dim, whiten=whiten))
                # The model loads images as those of its projection were loaded.
                projected.config = projected.config.model_copy(update=as_embedder_config(loading))
                projected.save(out)
                how = ", whitened" if whiten else ""
                terminal.echo(f"{out}: {moments.count:,} images, {embedder.features_dim} features → {dim}{how}")


@app.command("add-head")
def add_head(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder with a saved embedder, or the name of a timm backbone.")
    ],
    head: Annotated[Path, typer.Argument(metavar="HEAD", help="A folder of `suprank adapt`.")],
    out: Out,
    weights: Weights = None,
    trust_code: TrustCode = False,
) -> None:
    """Put a head of `suprank adapt` on the model whose embeddings it was trained on, and save both as one embedder.

    A timm backbone then reads images as those embeddings were made, if their folder said how: size, resize, and so on.

    \b
    suprank models add-head resnet50 head --out adapted
    suprank embed adapted cub.parquet --out embeddings
    """
    with terminal.plain_errors("a smaller backbone"), terminal.plain_messages():
        from suprank.workflows.heads import embedder_with_head, image_settings, load_head

        terminal.check_folder(out)
        loaded = load_head(head, "cpu")  # first: timm's weights may have to be downloaded
        images = {} if Path(model).is_dir() else image_settings(loaded)  # a saved embedder has settings of its own
        adapted = embedder_with_head(load_embedder(model, weights, trust_code=trust_code, **images), loaded)
        adapted.save(out)
    terminal.echo(f"{out}: {model} with the head {head}, embeddings of width {adapted.dim}")


@app.command()
def export(
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write: .onnx or .pt2; for a head also .npz.")],
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A folder with a saved embedder, or a head of `suprank adapt`.")
    ],
    trust_code: TrustCode = False,
) -> None:
    """Export an embedder or a head as ONNX (.onnx) or as a torch.export program (.pt2), and check that it gives the same
    embeddings.

    A head without an MLP can also be exported as a NumPy archive (.npz) with weight, bias and normalization, for vector
    databases.

    \b
    suprank models export model --out model.onnx
    suprank models export head --out head.onnx
    suprank models export head --out head.npz
    """
    with terminal.plain_errors("a smaller model"):
        from suprank.models import Embedder, Head, export_matrix, export_onnx, export_program
        from suprank.models.head import is_head

        if out.suffix not in (".onnx", ".pt2", ".npz"):
            raise ValueError(f"{out} must end in .onnx or .pt2, or for a head in .npz.")
        terminal.check_writable(out)
        loaded = Head.load(model) if is_head(model) else Embedder.load(model, trust_code=trust_code)
        if out.suffix != ".npz":
            {".onnx": export_onnx, ".pt2": export_program}[out.suffix](loaded, out)
        elif isinstance(loaded, Head):
            export_matrix(loaded, out)
        else:
            raise ValueError(f"{model} is a model, and only a head is a matrix; export it as .onnx or .pt2.")
    terminal.echo(f"{out}: gives the embeddings of {model}")
