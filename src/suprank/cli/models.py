"""suprank models: create an embedder, give it a PCA projection or a head, export it, push and pull it, list backbones."""

from __future__ import annotations

from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    TrustCode,
    Weights,
    Workers,
)
from suprank.workflows.embeddings import as_embedder_config, default_batch_size, load_embedder, loader_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        str | None, typer.Argument(metavar="MODEL", help="A folder with a saved embedder, or the name of a timm backbone.")
    ] = None,
    manifest: Annotated[Path | None, typer.Argument(metavar="MANIFEST", help="Images whose features are analyzed.")] = None,
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
    model_option: Annotated[str | None, typer.Option("--model", hidden=True)] = None,
    manifest_option: Annotated[Path | None, typer.Option("--manifest", hidden=True)] = None,
) -> None:
    """Compute the projection by PCA of a manifest's features: an embedder with a linear layer of width DIM.

    \b
    suprank models pca resnet101 sfm120k.parquet --dim 2048 --whiten --out model
    """
    chosen_model = terminal.subject(model, model_option, "MODEL", "--model")
    chosen_manifest = terminal.subject(manifest, manifest_option, "MANIFEST", "--manifest")
    with terminal.plain_errors("a smaller --batch-size"):
        from suprank.data import Manifest
        from suprank.embedding import feature_moments, torchrun_processes
        from suprank.models import pca_projection

        terminal.device(device)
        terminal.check_folder(out)
        images = Manifest.read(chosen_manifest, root=root).split(*(split or ("train",)))
        embedder = load_embedder(chosen_model, weights, trust_code=trust_code)
        if dim > embedder.features_dim:
            raise ValueError(f"--dim {dim} is more than the {embedder.features_dim} features of {chosen_model}; give fewer.")
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
        Path | None, typer.Argument(metavar="MODEL", help="A folder with a saved embedder, or a head of `suprank adapt`.")
    ] = None,
    trust_code: TrustCode = False,
    model_option: Annotated[Path | None, typer.Option("--model", hidden=True)] = None,
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
    folder = terminal.subject(model, model_option, "MODEL", "--model")
    with terminal.plain_errors("a smaller model"):
        from suprank.models import Embedder, Head, export_matrix, export_onnx, export_program
        from suprank.models.head import is_head

        if out.suffix not in (".onnx", ".pt2", ".npz"):
            raise ValueError(f"{out} must end in .onnx or .pt2, or for a head in .npz.")
        terminal.check_writable(out)
        loaded = Head.load(folder) if is_head(folder) else Embedder.load(folder, trust_code=trust_code)
        if out.suffix != ".npz":
            {".onnx": export_onnx, ".pt2": export_program}[out.suffix](loaded, out)
        elif isinstance(loaded, Head):
            export_matrix(loaded, out)
        else:
            raise ValueError(f"{folder} is a model, and only a head is a matrix; export it as .onnx or .pt2.")
    terminal.echo(f"{out}: gives the embeddings of {folder}")


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
    test: Annotated[
        str | None, typer.Option(metavar="NAME", help="Test set of the run's recipe.", show_default="the first")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    revision: Annotated[
        str | None, typer.Option(metavar="BRANCH", help="Branch to push to; created if need be.", show_default="main")
    ] = None,
    commit_message: Annotated[str | None, typer.Option(metavar="TEXT", help="Message of the commit.")] = None,
    create_pr: Annotated[
        bool, typer.Option("--create-pr", help="Open a pull request instead of pushing to the branch.")
    ] = False,
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
    bootstrap: Annotated[int, typer.Option(min=0, help="Bootstrap samples for 95% intervals; 0 for none.")] = 1000,
    dry_run: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Push nothing: write the files to this folder, and print the model card."),
    ] = None,
    trust_code: TrustCode = False,
    device: Device = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
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
        from suprank.models.hub import check_token
        from suprank.models.hub_names import check_repo_id
        from suprank.workflows.hub import hub_repository

        terminal.device(device)
        check_repo_id(repo)
        if dry_run is None:
            check_token(repo)
        else:
            terminal.check_folder(dry_run)
            _refuse_other_files(dry_run)
        with terminal.ProgressBars(quiet) as bars:
            repository = hub_repository(
                model,
                repo,
                report=report,
                test=test,
                license=license,
                datasets=dataset or (),
                base_model=base_model,
                gallery=gallery,
                bootstrap=bootstrap,
                trust_code=trust_code,
                device=device,
                progress=bars,
            )
        if repository.images:
            terminal.echo(f"the card shows {repository.images} test images, which are published with it", err=True)
        if license is None:
            terminal.echo("the card names no license; --license ID names one", err=True)
        if dry_run is not None:
            repository.save(dry_run)
            terminal.echo(f"{repository.card}\n{dry_run}: {', '.join(sorted(file.name for file in dry_run.iterdir()))}")
            return
        with _download_bars(quiet):
            commit = repository.push(
                private=private or None, revision=revision, commit_message=commit_message, create_pr=create_pr
            )
    terminal.echo(f"{commit.pr_url or commit.repo_url}: pushed as commit {commit.oid[:12]}")


@app.command()
def pull(
    repo: Annotated[str, typer.Argument(metavar="REPO", help="Repository on the Hugging Face Hub: org/name.")],
    out: Out,
    revision: Annotated[
        str | None, typer.Option(metavar="REVISION", help="Branch, tag or commit.", show_default="the main branch")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Download an embedder from the Hugging Face Hub into a folder, with its model card.

    The folder is a model for every command, and needs no network. Commands also take hf-hub:org/name itself, which is
    downloaded into a cache. No code is downloaded. An interrupted download continues where it stopped.

    \b
    suprank models pull org/cub-retrieval --out model
    suprank embed model cub.parquet --out embeddings
    """
    with terminal.plain_errors("a smaller model"):
        from suprank.models.hub import download_folder
        from suprank.models.hub_names import HubName
        from suprank.models.model_folder import read_model

        terminal.check_folder(out)
        _refuse_other_files(out)
        name = HubName.parse(repo)
        if revision is not None and name.revision not in (None, revision):
            raise ValueError(f"{repo} and --revision {revision} name two revisions; give one of them.")
        with _download_bars(quiet):
            commit = download_folder(HubName(name.repo_id, name.revision or revision), out)
        config, _ = read_model(out)
    assert commit.revision is not None
    terminal.echo(f"{out}: {name.repo_id} at commit {commit.revision[:12]}, {config.backbone}")


def _refuse_other_files(folder: Path) -> None:
    """Refuse a folder that is used for something else than a model."""
    from suprank.files.folders import refuse_foreign_files
    from suprank.models.hub import LOCAL_CACHE
    from suprank.models.model_folder import SETTINGS

    if not (folder / LOCAL_CACHE).is_dir():  # of a download that was interrupted
        refuse_foreign_files(folder, SETTINGS, "a model", "name another")


@contextmanager
def _download_bars(quiet: bool) -> Iterator[None]:
    """Progress bars of huggingface_hub, or none."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if not quiet or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@app.command("list")
def backbones(
    pattern: Annotated[str, typer.Argument(help="Pattern of names, with * for anything.")] = "*",
    pretrained: Annotated[bool, typer.Option("--pretrained", help="List only backbones with pretrained weights.")] = False,
) -> None:
    """List the backbones of timm."""
    with terminal.plain_errors(""):
        from suprank.models.networks import network_names

        for name in network_names(pattern, pretrained=pretrained):
            terminal.echo(name)
