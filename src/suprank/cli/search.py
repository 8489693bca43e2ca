"""suprank search: the nearest items of stored embeddings, by script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from suprank.cli import terminal
from suprank.cli.options import HeadFolder, Quiet, RowLabels, TestSet, TrustCode


def search(
    embeddings: Annotated[
        Path,
        typer.Argument(
            metavar="EMBEDDINGS",
            help="A folder of `suprank embed` or of a run, a .npy, .parquet or .pt file, or a Hugging Face dataset with "
            "a column of embeddings.",
        ),
    ],
    image: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="An image to search for, repeatable.")] = None,
    queries: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Vectors to search for, one per row: a .npy, .parquet or .pt file.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="DIR|NAME", help="The model that embeds --image: that of EMBEDDINGS.", show_default="the run's"),
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="Items per query.")] = 10,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="LEVEL=NAME", help="Only items with this label (or split=NAME), repeatable.", show_default="all"),
    ] = None,
    labels: RowLabels = None,
    test: TestSet = None,
    head: HeadFolder = None,
    kind: Annotated[
        str,
        typer.Option(
            metavar="auto|exact|ivf|hnsw", help="Kind of index; auto is exact up to 100,000 × 512 numbers, and ivf above."
        ),
    ] = "auto",
    recall: Annotated[float, typer.Option(help="Share of the 10 best items that ivf and hnsw should find.")] = 0.95,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Search http://host:19530/collection, on a Milvus server, instead.")
    ] = None,
    upload: Annotated[bool, typer.Option("--upload", help="Upload EMBEDDINGS to --server first.")] = False,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
) -> None:
    """Print the best items for each query, one line of JSON each: query, rank, id, path, score and labels.

    The query is the image, or the row number of the vector. The id is the row of the item, and the score the cosine. An item
    finds itself. The index of a large collection is kept beside EMBEDDINGS, and made again when these are others; stderr says
    its kind, and the recall that was measured.

    \b
    suprank search embeddings --image jay.jpg --model model --k 5 --where family=Corvidae
    suprank search runs/happier --image jay.jpg --image crow.jpg
    suprank search vectors.npy --labels birds.parquet --queries queries.npy --kind hnsw
    suprank search embeddings --server http://localhost:19530/birds --upload
    suprank search embeddings --server http://localhost:19530/birds --queries queries.npy
    """
    with terminal.plain_errors("fewer queries at once"), terminal.plain_messages():
        from suprank.workflows.searches import search as search_embeddings

        with terminal.ProgressBars(quiet) as bars:
            found = search_embeddings(
                embeddings,
                queries,
                image or (),
                model=model,
                k=k,
                where=_filter(where or ()),
                labels=labels,
                test=test,
                head=head,
                kind=kind,
                recall=recall,
                server=server,
                upload=upload,
                trust_code=trust_code,
                progress=bars,
            )
        for record in found:
            terminal.echo(json.dumps(record, ensure_ascii=False))


def _filter(conditions: Sequence[str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for text in conditions:
        key, equals, name = text.partition("=")
        if not key or not equals or not name:
            raise typer.BadParameter(f"{text!r} is not LEVEL=NAME, such as family=Corvidae.", param_hint="--where")
        names.setdefault(key.removeprefix("label_"), []).append(name)
    return names
