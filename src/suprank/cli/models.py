"""suprank models: create an embedder, export it, and push it to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from suprank.cli import terminal
from suprank.cli.options import (
    BatchSize,
    Decoder,
    Device,
    OnBroken,
    Quiet,
    Resize,
    Squash,
    TestSet,
    TrustCode,
    Weights,
    Workers,
)
from suprank.cli.train import is_first_process

app = typer.Typer(no_args_is_help=True, help="Create, export and share embedders.")


@app.command()
def create(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A timm name: resnet50, deit_small, vit_base, ...; hf-hub:org/name for a timm model on the Hub; FILE.py:NAME; "
            "or with --pca or --head a saved embedder.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write the embedder to.")],
    weights: Weights = None,
    untrained: Annotated[bool, typer.Option("--untrained", help="Start from random weights.")] = False,
    pooling: Annotated[
        Literal["timm", "avg", "max", "avg+max", "gem", "gem-fixed", "token"] | None,
        typer.Option(help="Pooling of the features.", show_default="timm"),
    ] = None,
    normalization: Annotated[
        Literal["none", "layer", "l2"] | None, typer.Option(help="Normalization before the projection.", show_default="none")
    ] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="Width of a linear projection.", show_default="none")] = None,
    freeze_batchnorm: Annotated[bool, typer.Option("--freeze-batchnorm", help="Keep its statistics during training.")] = False,
    imagenet_colors: Annotated[
        bool,
        typer.Option("--imagenet-colors", help="Normalize with ImageNet's mean and std, as the authors do for ViT-B/16."),
    ] = False,
    image_size: Annotated[int | None, typer.Option(min=1, help="Image side in pixels.", show_default="the model's")] = None,
    resize: Resize = None,
    squash: Squash = None,
    decoder: Decoder = None,
    head: Annotated[
        Path | None, typer.Option(metavar="HEAD", help="A head of `suprank adapt`, for the model that it was trained on.")
    ] = None,
    pca: Annotated[
        Path | None, typer.Option(metavar="MANIFEST", help="Start the projection as a PCA of the features of these images.")
    ] = None,
    whiten: Annotated[bool, typer.Option("--whiten", help="Divide each direction by its standard deviation.")] = False,
    root: Annotated[
        Path | None, typer.Option(help="Folder of the images of the PCA.", show_default="as saved in the manifest")
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(help="Use images of this split for the PCA; repeatable.", show_default="train")
    ] = None,
    batch_size: BatchSize = None,
    workers: Workers = None,
    on_broken: OnBroken = "raise",
    device: Device = None,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
) -> None:
    """Create an embedder: backbone → pooling → normalization → projection → L2 → head, saved as a folder.

    \b
    The paper's, on CUB and SOP:
      suprank models create resnet50 --normalization layer --dim 512 --freeze-batchnorm --out model
    With a projection by PCA and whitening:
      suprank models create resnet101 --pooling gem --pca sfm120k.parquet --dim 2048 --whiten --out model
    With a head, for a saved embedder or the backbone whose embeddings it was trained on:
      suprank models create model --head head --out adapted
    """
    with terminal.plain_errors("a smaller backbone, or a smaller --batch-size"), terminal.plain_messages():
        from suprank.data import Manifest
        from suprank.data.transforms import IMAGENET_MEAN, IMAGENET_STD
        from suprank.workflows.embeddings import default_batch_size, is_saved_embedder, load_embedder, loader_settings, save_pca
        from suprank.workflows.heads import embedder_with_head, image_settings, load_head

        terminal.device(device)
        terminal.check_folder(out)
        if untrained and weights is not None:
            raise ValueError("--untrained and --weights contradict each other; give one.")
        if head is not None and pca is not None:
            raise ValueError("--head and --pca contradict each other: a head is for one projection; give one.")
        if pca is None and (whiten or root or split or batch_size or workers is not None or on_broken != "raise" or device):
            raise ValueError(
                "--whiten, --root, --split, --batch-size, --workers, --on-broken and --device are for a PCA; give --pca too."
            )
        if pca is not None and dim is None:
            raise ValueError("--pca needs --dim, the number of directions to keep: the width of the embeddings.")
        saved = is_saved_embedder(model)
        if saved and head is None and pca is None:
            raise ValueError(f"{model} is a saved embedder already; give --pca or --head to make another one of it.")
        settings: dict[str, Any] = {
            "pooling": pooling,
            "normalization": normalization,
            "dim": dim if pca is None else None,
            "freeze_batchnorm": freeze_batchnorm or None,
            "mean": IMAGENET_MEAN if imagenet_colors else None,
            "std": IMAGENET_STD if imagenet_colors else None,
        }
        images: dict[str, Any] = {"image_size": image_size, "resize": resize, "squash": squash, "decoder": decoder}
        loaded = None if head is None else load_head(head, "cpu")  # first: timm's weights may have to be downloaded
        if loaded is not None and not saved:  # a saved embedder has settings of its own
            images = {**image_settings(loaded), **_without_none(images)}
        if pca is None or not saved:
            settings |= images
        manifest = None if pca is None else Manifest.read(pca, root=root).split(*(split or ("train",)))
        embedder = load_embedder(
            model, weights, pretrained=False if untrained else None, trust_code=trust_code, **_without_none(settings)
        )
        if manifest is not None:
            assert dim is not None
            size = {("size" if name == "image_size" else name): value for name, value in images.items()}
            loading = loader_settings(embedder, size, batch_size or default_batch_size(device), workers, on_broken)
            with terminal.progress("analyzing", quiet or not is_first_process()) as progress:
                embedder = save_pca(
                    embedder, manifest, out, dim=dim, whiten=whiten, loading=loading, device=device, progress=progress
                )
        else:
            if loaded is not None:
                embedder = embedder_with_head(embedder, loaded)
            embedder.save(out)
    if is_first_process():
        millions = sum(parameter.numel() for parameter in embedder.parameters()) / 1e6
        terminal.echo(f"{out}: {model}, {millions:.1f} M parameters, embeddings of width {embedder.dim}")


def _without_none(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


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


@app.command()
def push(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder of `suprank train`, or of a saved embedder.")],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="Repository on the Hugging Face Hub: org/name.")],
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="REPORT",
            help="Metrics for the model card: a .json file of `suprank evaluate --out`, or a folder of `suprank embed` with "
            "MODEL.",
            show_default="those of the run; none for a saved embedder",
        ),
    ] = None,
    test: TestSet = None,
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    branch: Annotated[
        str | None, typer.Option(metavar="NAME", help="Branch to push to; created if need be.", show_default="main")
    ] = None,
    license: Annotated[
        str | None, typer.Option(metavar="ID", help="License of the model: mit, apache-2.0, cc-by-4.0, ...")
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Dataset on the Hub that it was trained on; repeatable.")
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Model on the Hub that it was trained from.", show_default="timm's, for a run from it"),
    ] = None,
    gallery: Annotated[
        bool,
        typer.Option(
            "--gallery", help="Add a picture of random test images with their first results, which publishes these images."
        ),
    ] = False,
    dry_run: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Push nothing: write the files to this folder, and print the model card."),
    ] = None,
    trust_code: TrustCode = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Push a model to the Hugging Face Hub, with a model card: metrics, data, recipe, and with --gallery a picture of results.

    A run is evaluated as `suprank evaluate RUN` does, and the card has the same numbers. Log in first with `hf auth login`, or
    set HF_TOKEN. Pushed are safetensors, settings and the card, and never code.

    \b
    See what would be pushed:
      suprank models push runs/cub org/cub-retrieval --license mit --gallery --dry-run card
    Push it:
      suprank models push runs/cub org/cub-retrieval --license mit --gallery --private
    A saved embedder, with the metrics of embeddings that it made:
      suprank embed model cub.parquet --out embeddings
      suprank models push model org/cub-retrieval --report embeddings
    """
    with terminal.plain_errors("a smaller model"), terminal.plain_messages():
        from huggingface_hub.utils.tqdm import disable_progress_bars

        from suprank.files.outputs import refuse_foreign_files
        from suprank.models.hub_names import check_repo_id
        from suprank.models.model_folder import SETTINGS
        from suprank.workflows.publish import push_to_hub, write_repository

        terminal.device(device)
        check_repo_id(repo)
        if dry_run is not None:
            terminal.check_folder(dry_run)
            refuse_foreign_files(dry_run, SETTINGS, "a model", "name another")
        if quiet:
            disable_progress_bars()
        with terminal.ProgressBars(quiet) as bars:
            options: dict[str, Any] = {
                "report": report,
                "test": test,
                "license": license,
                "datasets": dataset or (),
                "base_model": base_model,
                "gallery": gallery,
                "trust_code": trust_code,
                "device": device,
                "progress": bars,
            }
            if dry_run is not None:
                card = write_repository(dry_run, model, repo, **options)
                terminal.echo(f"{card}\n{dry_run}: {', '.join(sorted(file.name for file in dry_run.iterdir()))}")
                return
            commit = push_to_hub(model, repo, private=private or None, branch=branch, **options)
    terminal.echo(f"{commit.repo_url}: pushed as commit {commit.oid[:12]}")
