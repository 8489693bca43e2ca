"""suprank index: build, search, change, compact, copy and describe an index of embeddings, in a folder or on a server."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suprank.cli import terminal
from suprank.cli.embed import Device, HeadFolder, Resize, Size, Squash, Weights
from suprank.cli.index_vectors import embed_images, read_queries, read_rows
from suprank.cli.train import TrustCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from suprank.explorer.index import Index

app = typer.Typer(no_args_is_help=True, help="Search embeddings by script, with an index in a folder or on a server.")

_SMALLER = "a smaller collection, or use a server"
_QUERIES_AT_ONCE = 1024  # whose hits are looked up and printed together


class Kind(StrEnum):
    """Kind of an index in a folder."""

    AUTO = "auto"
    EXACT = "exact"
    IVF = "ivf"
    HNSW = "hnsw"


class Codes(StrEnum):
    """How an approximate index stores a number."""

    FLOAT16 = "float16"
    INT8 = "int8"


WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where", metavar="LEVEL=NAME", help="Only items with this label (or split=NAME), repeatable.", show_default="all"
    ),
]
IndexArgument = Annotated[
    str,
    typer.Argument(metavar="INDEX", help="A folder, qdrant://host:6333/collection or milvus://host:19530/collection."),
]
EmbeddingsArgument = Annotated[
    Path,
    typer.Argument(metavar="EMBEDDINGS", help="A folder of `suprank embed` or of a run, or a .npy, .parquet or .pt file."),
]
PartOption = Annotated[
    str | None,
    typer.Option(
        "--part",
        help="Part of the folder to index: gallery, test, query or train.",
        show_default="gallery, else test, else train",
    ),
]
ManifestOption = Annotated[
    Path | None, typer.Option("--manifest", help="Paths and labels of the rows, if EMBEDDINGS is a file.")
]
KindOption = Annotated[Kind, typer.Option(help="Kind of search; auto is exact up to 100,000 × 512 numbers, and ivf above.")]
CodesOption = Annotated[
    Codes | None, typer.Option(help="How ivf and hnsw store a number; int8 takes half the space.", show_default="float16")
]
RecallOption = Annotated[
    float | None, typer.Option(help="Share of the 10 best items that ivf and hnsw should find.", show_default="0.95")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing index.")]
Timeout = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait for a server's answer.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")]


@app.command()
def build(
    embeddings: EmbeddingsArgument,
    out: Annotated[str, typer.Option(metavar="INDEX", help="A new folder, or a server's address.")],
    part: PartOption = None,
    manifest: ManifestOption = None,
    head: HeadFolder = None,
    ids: Annotated[
        Path | None, typer.Option(metavar="FILE.npy", help="Integer ids of the rows.", show_default="0, 1, ...")
    ] = None,
    kind: KindOption = Kind.AUTO,
    codes: CodesOption = None,
    recall: RecallOption = None,
    overwrite: Overwrite = False,
    timeout: Timeout = 10.0,
    quiet: Quiet = False,
) -> None:
    """Build an index of embeddings: a folder, or a collection on a Qdrant or Milvus server.

    The recall of an approximate index is measured and stored; `suprank index info` shows it. API keys of servers are read from
    the environment variables QDRANT_API_KEY and MILVUS_TOKEN.

    \b
    suprank index build embeddings --out birds.index
    suprank index build embeddings --head head --out birds.index
    suprank index build vectors.npy --manifest birds.parquet --out qdrant://localhost:6333/birds
    """
    with terminal.plain_errors(_SMALLER), terminal.plain_messages():
        from suprank.explorer.index import build_index

        if "://" not in out:
            terminal.check_folder(Path(out))
        rows, items, made_by = read_rows(embeddings, part, manifest, head, quiet)
        local = _options_given(codes=codes and codes.value, recall=recall)
        with _notes_on_interrupt(), terminal.progress("indexing", quiet) as progress:
            index = build_index(
                out,
                rows,
                items,
                ids=_ids(ids),
                kind=kind.value,
                overwrite=overwrite,
                made_by=made_by,
                timeout=timeout,
                progress=progress,
                **local,
            )
        with closing(index):
            terminal.echo(_summary(index.info()))


@app.command()
def search(
    index: IndexArgument,
    embeddings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Queries, one per row: a .npy, .parquet or .pt file.")
    ] = None,
    image: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="An image to search for, repeatable.")] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="DIR|NAME", help="The model that embeds --image; must be the model of the index."),
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="Items per query.")] = 10,
    where: WhereOption = None,
    weights: Weights = None,
    head: HeadFolder = None,
    trust_code: TrustCode = False,
    size: Size = None,
    resize: Resize = None,
    squash: Squash = None,
    device: Device = None,
    timeout: Timeout = 10.0,
) -> None:
    """Print the best items for each query, one line of JSON each: query, rank, id, path, score and labels.

    The query is the row number, or the path of the image. The score is the cosine. An item of the index finds itself. If the
    index was built with --head, give it here too, or a --model that has it.

    \b
    suprank index search birds.index --image jay.jpg --model model --k 5
    suprank index search birds.index --embeddings queries.npy --where family=Corvidae
    suprank index search birds.index --embeddings queries.npy --head head
    """
    if (embeddings is None) == (not image):
        raise typer.BadParameter("give the queries either as --embeddings, or as --image with --model.")
    if (model is not None) != bool(image):
        raise typer.BadParameter("--image and --model go together: the model embeds the image.", param_hint="--model")
    with terminal.plain_errors("fewer queries at once"), terminal.plain_messages():
        from suprank.explorer.index import open_index
        from suprank.explorer.index.protocol import refuse_unknown_names

        terminal.device(device)
        filters = _filters(where)
        with closing(open_index(index, timeout=timeout)) as opened:
            refuse_unknown_names(opened, filters, index)
            if image and model is not None:
                options = {"size": size, "resize": resize, "squash": squash}
                queries = embed_images(image, model, weights, head, trust_code, options, device, opened)
                _print_hits(opened, queries, k, filters, [*map(str, image)])
            elif embeddings is not None:
                rows = read_queries(embeddings, head, device, opened)
                for start in range(0, len(rows), _QUERIES_AT_ONCE):
                    numbers = range(start, min(start + _QUERIES_AT_ONCE, len(rows)))
                    _print_hits(opened, rows.rows(slice(start, numbers.stop)).numpy(), k, filters, numbers)


@app.command()
def add(
    index: IndexArgument,
    embeddings: EmbeddingsArgument,
    part: PartOption = None,
    manifest: ManifestOption = None,
    head: HeadFolder = None,
    ids: Annotated[
        Path | None, typer.Option(metavar="FILE.npy", help="Integer ids of the rows.", show_default="the next free ones")
    ] = None,
    timeout: Timeout = 10.0,
    quiet: Quiet = False,
) -> None:
    """Add embeddings to an index. If an id is already taken, nothing is added.

    \b
    suprank index add birds.index more-embeddings --part test
    """
    with terminal.plain_errors(_SMALLER), terminal.plain_messages():
        from suprank.explorer.index import open_index

        with closing(open_index(index, timeout=timeout)) as opened:
            rows, items, _ = read_rows(embeddings, part, manifest, head, quiet, opened)
            with _notes_on_interrupt(), terminal.progress("adding", quiet) as progress:
                new = opened.add(rows, items, ids=_ids(ids), progress=progress)
            terminal.echo(f"{index}: added {len(new):,} items with ids {new.min()} to {new.max()}; it now has {len(opened):,}")


@app.command()
def remove(
    index: IndexArgument,
    ids: Annotated[list[str] | None, typer.Option(metavar="ID,...", help="Ids of the items, repeatable.")] = None,
    where: WhereOption = None,
    timeout: Timeout = 10.0,
) -> None:
    """Remove items from an index, by id or by label. If an id does not exist, nothing is removed.

    \b
    suprank index remove birds.index --ids 17,404
    suprank index remove birds.index --where split=distractor
    """
    if bool(ids) == bool(where):
        raise typer.BadParameter("say what to remove, either by --ids or by --where.")
    with terminal.plain_errors(_SMALLER):
        from suprank.explorer.index import open_index
        from suprank.explorer.index.protocol import refuse_unknown_names

        wanted = _parse_ids(ids or ())
        filters = _filters(where)
        with closing(open_index(index, timeout=timeout)) as opened:
            if filters:
                refuse_unknown_names(opened, filters, index)
                wanted = opened.ids(filters)
            if not len(wanted):
                raise ValueError(f"{index} has no item with {' and '.join(where or ())}; nothing is removed.")
            opened.remove(wanted)
            terminal.echo(f"{index}: removed {len(wanted):,} items; it now has {len(opened):,}")


@app.command()
def compact(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="The folder of an index.")], quiet: Quiet = False
) -> None:
    """Merge the segments of an index in a folder into one, and free the space of removed items.

    Additions and removals write little, and leave small segments and removed items behind, which slow down searches a bit.
    Most are cleaned up along the way; this command cleans up the rest, before an index is copied or kept, say. It takes as much
    memory as building the index.

    \b
    suprank index compact birds.index
    """
    with terminal.plain_errors(_SMALLER), terminal.plain_messages():
        from suprank.explorer.index import LocalIndex
        from suprank.explorer.index.address import is_address

        if is_address(index):
            raise ValueError(f"{index} is not a folder; a server compacts its collections itself.")
        with closing(LocalIndex.open(index)) as opened:
            before = opened.info()
            with terminal.progress("compacting", quiet) as progress:
                opened.compact(progress)
            after = opened.info()
        result = f"1 segment of {after['items']:,}, {after['bytes'] / 2**20:,.1f} MiB"
        if (before["segments"], before["removed"]) == (1, 0):
            terminal.echo(f"{index} is already compact: {result}")
        else:
            many = f"{before['segments']} segment{'s' * (before['segments'] > 1)}"
            terminal.echo(f"{index}: {many} with {before['removed']:,} removed items → {result}")


@app.command()
def copy(
    index: IndexArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A new folder, or a server's address.")],
    kind: KindOption = Kind.AUTO,
    codes: CodesOption = None,
    recall: RecallOption = None,
    overwrite: Overwrite = False,
    timeout: Timeout = 10.0,
    quiet: Quiet = False,
) -> None:
    """Copy an index to a server, to another one, or back to a folder, with ids, vectors, paths, labels and head.

    Afterwards both are searched for up to 100 items, and the share of the 10 best that they have in common is printed. If a
    copy to a server is interrupted, the same command copies the rest.

    \b
    suprank index copy birds.index milvus://localhost:19530/birds
    suprank index copy qdrant://localhost:6333/birds birds.index --kind ivf
    """
    with terminal.plain_errors(_SMALLER), terminal.plain_messages():
        from suprank.explorer.index import copy_index

        if "://" not in target:
            terminal.check_folder(Path(target))
        local = _options_given(kind=None if kind is Kind.AUTO else kind.value, codes=codes and codes.value, recall=recall)
        with _notes_on_interrupt(), terminal.progress("copying", quiet) as progress:
            copied = copy_index(index, target, overwrite=overwrite, timeout=timeout, progress=progress, **local)
        with closing(copied.index):
            terminal.echo(f"{_summary(copied.index.info())}; {copied.agreement:.1%} of the 10 best are those of {index}")


@app.command()
def info(index: IndexArgument, timeout: Timeout = 10.0) -> None:
    """Describe an index as JSON: kind, dimensions, items, levels, size, and the recall measured when it was built."""
    with terminal.plain_errors(_SMALLER):
        from suprank.explorer.index import open_index

        with closing(open_index(index, timeout=timeout)) as opened:
            terminal.echo(json.dumps(opened.info(), indent=2, ensure_ascii=False))


@contextmanager
def _notes_on_interrupt() -> Iterator[None]:
    """If an addition or copy to a server is interrupted, print what is already there."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        for note in getattr(interrupt, "__notes__", ()):
            terminal.echo(note, err=True)
        raise


def _options_given(**options: Any) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def _ids(file: Path | None) -> NDArray[np.int64] | None:
    from suprank.evaluation.embedding_files import check_file
    from suprank.files.binary import open_npy

    if file is None:
        return None
    check_file(file, "--ids")
    return open_npy(file, f"--ids ({file})")


def _parse_ids(texts: Sequence[str]) -> NDArray[np.int64]:
    import numpy as np

    words = [word.strip() for text in texts for word in text.split(",")]
    wrong = [word for word in words if not word.isdecimal() or int(word) >= 2**63]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is not an id; give integers, such as 17,404.", param_hint="--ids")
    return np.array([int(word) for word in words], np.int64)


def _filters(conditions: Sequence[str] | None) -> dict[str, list[str]]:
    filters: dict[str, list[str]] = {}
    for text in conditions or ():
        key, equals, name = text.partition("=")
        if not key or not equals or not name:
            raise typer.BadParameter(f"{text!r} is not LEVEL=NAME, such as family=Corvidae.", param_hint="--where")
        filters.setdefault(key.removeprefix("label_"), []).append(name)
    return filters


def _summary(info: dict[str, Any]) -> str:
    """One line about a new index."""
    line = f"{info['address']}: {info['items']:,} items × {info['dim']}, {info['kind']}"
    if "recall" not in info:
        return line
    recall, size = info["recall"], f"{info['bytes'] / 2**20:,.1f} MiB"
    if not recall["queries"]:
        return f"{line}, {size}"
    return (
        f"{line}, {info['codes']}, {size}, finds {recall['value']:.1%} of the {recall['at']} best ({recall['queries']} queries)"
    )


def _print_hits(
    index: Index, queries: NDArray[np.float32], k: int, filters: dict[str, list[str]], names: Sequence[int] | Sequence[str]
) -> None:
    from suprank.explorer.index import search_records

    for record in search_records(index, queries, k, filters, names):
        terminal.echo(json.dumps(record, ensure_ascii=False))
