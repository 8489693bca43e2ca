"""`suprank hierarchy embed`: encode the labels of a project as vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import plain_errors
from suprank.cli.hierarchy.new import ProjectFolder, Quiet

if TYPE_CHECKING:
    from suprank.hierarchy.embedding import EmbedResult


def embed(
    project: ProjectFolder,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="ENCODER",
            help="Encoder: tfidf, sentence:MODEL_OR_FOLDER, clip:MODEL/WEIGHTS_OR_FILE or precomputed:FILE.npz.",
            show_default="the recipe's",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Prompt of sentence and clip; {} is the label.", show_default="the recipe's"),
    ] = None,
    with_description: Annotated[
        bool, typer.Option("--with-description", help="Encode the descriptions of labels, too.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size of sentence and clip.")] = 256,
    device: Annotated[
        str | None, typer.Option(help="Device of sentence and clip: cpu, cuda or cuda:N.", show_default="a GPU if there is one")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Encode the active labels as vectors, which `cluster` then groups.

    tfidf compares spellings and needs no model. sentence and clip need `pip install "suprank\\[encoders]"` and weights, from a
    folder or file, or by a name, which downloads them. precomputed reads vectors computed elsewhere, from an .npz file with the
    arrays labels (texts or keys) and embeddings, and optionally fingerprint. What the recipe strips, such as years in brackets,
    is not encoded. If the same encoder has encoded the same labels before, nothing happens.

    \b
    suprank hierarchy embed birds
    suprank hierarchy embed landmarks --encoder clip:ViT-L-14/laion2b_s32b_b82k --prompt "A picture of a {}"
    suprank hierarchy embed landmarks --encoder clip:ViT-B-32//models/vit-b-32.pt
    suprank hierarchy embed landmarks --encoder precomputed:clip-vectors.npz
    """
    with plain_errors():
        from suprank.hierarchy.embedding import embed_labels
        from suprank.hierarchy.project import Project

        opened = Project(project)
        if device is not None:  # torch takes a second to import
            terminal.device(device)
        with terminal.progress("encoding", quiet) as progress:
            result = embed_labels(
                opened,
                encoder,
                prompt=prompt,
                with_description=with_description,
                batch_size=batch_size,
                device=device,
                progress=progress,
            )
    for line in _summary(result):
        terminal.echo(line)


def _summary(result: EmbedResult) -> list[str]:
    unchanged = "" if result.fresh else ": it existed already, nothing to encode"
    lines = [f"{result.labels:,} labels × {result.dim}, {_encoder_name(result.encoder)}, in {result.file}{unchanged}"]
    if result.without_signal:
        lines.append(f"{result.without_signal:,} labels have no text signal; they get a cluster of their own")
    return lines


def _encoder_name(encoder: dict[str, Any]) -> str:
    prompt = encoder.get("prompt")
    return encoder["name"] if prompt in (None, "{}") else f"{encoder['name']} of {prompt!r}"
