"""suprank models push: share an embedder on the Hugging Face Hub."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal
from suprank.cli.embed import Device
from suprank.cli.train import TrustCode

if TYPE_CHECKING:
    from collections.abc import Iterator


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
        from suprank.files.folders import refuse_foreign_files
        from suprank.models.hub import check_token
        from suprank.models.hub_names import check_repo_id
        from suprank.models.model_folder import SETTINGS
        from suprank.workflows.hub import hub_repository

        terminal.device(device)
        check_repo_id(repo)
        if dry_run is None:
            check_token(repo)
        else:
            terminal.check_folder(dry_run)
            refuse_foreign_files(dry_run, SETTINGS, "a model", "name another")
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
