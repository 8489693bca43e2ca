"""suprank index: build, search, change and describe an index of embeddings, in a folder or in a server."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suprank.cli import terminal
from suprank.cli.embed import Device, Resize, Size, Squash, Weights
from suprank.workflows.embeddings import load_embedder, loader_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from suprank.data import Manifest
    from suprank.evaluation.embeddings import Source
    from suprank.explorer.index import Index

app = typer.Typer(no_args_is_help=True, help="Search embeddings by script: an index in a folder, or in a server.")

_LESS = "a smaller collection, or a server"
_AT_ONCE = 1024  # queries whose hits are looked up and printed together


class Kind(StrEnum):
    """Of an index in a folder."""

    AUTO = "auto"
    EXACT = "exact"
    IVF = "ivf"
    HNSW = "hnsw"


class Codes(StrEnum):
    """What an approximate index holds a number in."""

    FLOAT16 = "float16"
    INT8 = "int8"


Where = Annotated[
    list[str] | None,
    typer.Option(metavar="LEVEL=NAME", help="Only items with this label (or split=NAME), repeatable.", show_default="all"),
]
IndexAt = Annotated[
    str,
    typer.Argument(metavar="INDEX", help="A folder; or qdrant://host:6333/collection, milvus://host:19530/collection."),
]
Given = Annotated[
    Path,
    typer.Argument(metavar="EMBEDDINGS", help="A folder of `suprank embed` or of a run; or a .npy, .parquet or .pt file."),
]
Part = Annotated[
    str | None,
    typer.Option(help="Of the folder: gallery, test, query or train.", show_default="the first of these but query"),
]
Of = Annotated[
    Path | None, typer.Option("--manifest", help="Paths and labels of the rows, where a file of embeddings is given.")
]
Ids = Annotated[Path | None, typer.Option(metavar="FILE.npy", help="Ids of the rows, integers.", show_default="the next ones")]
Timeout = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="For an answer of a server.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@app.command()
def build(
    embeddings: Given,
    out: Annotated[str, typer.Option(metavar="INDEX", help="A folder to make, or a server's address.")],
    part: Part = None,
    manifest: Of = None,
    ids: Annotated[
        Path | None, typer.Option(metavar="FILE.npy", help="Ids of the rows, integers.", show_default="0, 1, ...")
    ] = None,
    kind: Annotated[Kind, typer.Option(help="Of search; auto is exact up to 100,000 × 512 numbers, then ivf.")] = Kind.AUTO,
    codes: Annotated[
        Codes | None, typer.Option(help="Of a number in ivf and hnsw; int8 is half the size.", show_default="float16")
    ] = None,
    recall: Annotated[
        float | None, typer.Option(help="Share of the 10 best that ivf and hnsw are to find.", show_default="0.95")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there.")] = False,
    timeout: Timeout = 10.0,
    quiet: Quiet = False,
) -> None:
    """Make an index of embeddings: a folder, or a collection of a Qdrant or Milvus server.

    Of an approximate index the recall is measured and kept: see `suprank index info`. Keys of servers are read from the
    environment, QDRANT_API_KEY and MILVUS_TOKEN.

    \b
    suprank index build embeddings --out birds.index
    suprank index build vectors.npy --manifest birds.parquet --out qdrant://localhost:6333/birds
    """
    with terminal.plain_errors(_LESS):
        from suprank.explorer.index import build_index

        if "://" not in out:
            terminal.check_folder(Path(out))
        rows, items = _read(embeddings, part, manifest)
        local = {key: value for key, value in (("codes", codes and codes.value), ("recall", recall)) if value is not None}
        with _what_is_in(), terminal.progress("indexing", quiet) as progress:
            index = build_index(
                out,
                rows,
                items,
                ids=_ids(ids),
                kind=kind.value,
                overwrite=overwrite,
                timeout=timeout,
                progress=progress,
                **local,
            )
        with closing(index):
            terminal.echo(_told(index.info()))


@app.command()
def search(
    index: IndexAt,
    embeddings: Annotated[Path | None, typer.Option(metavar="FILE", help="Queries, one a row: .npy, .parquet or .pt.")] = None,
    image: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="An image to search by, repeatable.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="DIR|NAME", help="What embeds images: what the index was embedded with.")
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="Items a query.")] = 10,
    where: Where = None,
    weights: Weights = None,
    size: Size = None,
    resize: Resize = None,
    squash: Squash = None,
    device: Device = None,
    timeout: Timeout = 10.0,
) -> None:
    """The best items of each query, a line of JSON each: query, rank, id, path, score and labels.

    The query is the number of the row, or the image's path. The score is the cosine. An item of the index finds itself.

    \b
    suprank index search birds.index --image jay.jpg --model model --k 5
    suprank index search birds.index --embeddings queries.npy --where family=Corvidae
    """
    if (embeddings is None) == (not image):
        raise typer.BadParameter("queries are rows of --embeddings, or images by --image and --model; give one of the two.")
    if (model is not None) != bool(image):
        raise typer.BadParameter("--image and --model go together: the model embeds the image.", param_hint="--model")
    with terminal.plain_errors("fewer queries at once"):
        from suprank.evaluation.embeddings import Embeddings
        from suprank.explorer.index import open_index

        terminal.device(device)
        conditions = _where(where)
        with closing(open_index(index, timeout=timeout)) as opened:
            if image and model is not None:
                options = {"size": size, "resize": resize, "squash": squash}
                _print(opened, _embedded(image, model, weights, options, device), k, conditions, image)
            elif embeddings is not None:
                rows = Embeddings.of(embeddings)
                for start in range(0, len(rows), _AT_ONCE):
                    some = range(start, min(start + _AT_ONCE, len(rows)))
                    _print(opened, rows.rows(slice(start, some.stop)).numpy(), k, conditions, some)


@app.command()
def add(
    index: IndexAt,
    embeddings: Given,
    part: Part = None,
    manifest: Of = None,
    ids: Ids = None,
    timeout: Timeout = 10.0,
    quiet: Quiet = False,
) -> None:
    """Add embeddings to an index, all or nothing where it is a folder. Ids that are taken are refused.

    \b
    suprank index add birds.index more-embeddings --part test
    """
    with terminal.plain_errors(_LESS):
        from suprank.explorer.index import open_index

        with closing(open_index(index, timeout=timeout)) as opened:
            rows, items = _read(embeddings, part, manifest)
            with _what_is_in(), terminal.progress("adding", quiet) as progress:
                new = opened.add(rows, items, ids=_ids(ids), progress=progress)
            terminal.echo(f"{index}: {len(new):,} items added, ids {new.min()} to {new.max()}; {len(opened):,} are there")


@app.command()
def remove(
    index: IndexAt,
    ids: Annotated[list[str] | None, typer.Option(metavar="ID,...", help="Ids, repeatable.")] = None,
    where: Where = None,
    timeout: Timeout = 10.0,
) -> None:
    """Take items out of an index, by their ids or by their labels. Ids that are not there are refused.

    \b
    suprank index remove birds.index --ids 17,404
    suprank index remove birds.index --where split=distractor
    """
    if bool(ids) == bool(where):
        raise typer.BadParameter("say what to remove, by --ids or by --where; give one of the two.")
    with terminal.plain_errors(_LESS):
        from suprank.explorer.index import open_index

        named = _numbers(ids or ())
        conditions = _where(where)
        with closing(open_index(index, timeout=timeout)) as opened:
            gone = opened.ids(conditions) if conditions else named
            if not len(gone):
                raise ValueError(f"{index} has no item with {' and '.join(where or ())}; nothing is removed.")
            opened.remove(gone)
            terminal.echo(f"{index}: {len(gone):,} items removed; {len(opened):,} are there")


@app.command()
def info(index: IndexAt, timeout: Timeout = 10.0) -> None:
    """What an index is, as JSON: kind, dimensions, items, levels, size, and the recall that was measured when it was built."""
    with terminal.plain_errors(_LESS):
        from suprank.explorer.index import open_index

        with closing(open_index(index, timeout=timeout)) as opened:
            terminal.echo(json.dumps(opened.info(), indent=2, ensure_ascii=False))


@contextmanager
def _what_is_in() -> Iterator[None]:
    """Of an addition to a server that is stopped, says what was added before."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        for note in getattr(stopped, "__notes__", ()):
            terminal.echo(note, err=True)
        raise


def _read(given: Path, part: str | None, manifest: Path | None) -> tuple[Source, Manifest | None]:
    """Embeddings and the rows they belong to: of a file, of a folder of `suprank embed`, of one of its parts, or of a run."""
    from suprank.data import Manifest
    from suprank.embedding.result import ITEMS, embedded_parts, read_embedded
    from suprank.explorer import embeddings_folder

    if not given.exists():
        raise FileNotFoundError(f"there is no {given}; give a folder of `suprank embed` or of a run, or a file of embeddings.")
    if not given.is_dir():
        if part is not None:
            raise ValueError(f"--part {part} is of a folder, and {given} is none.")
        return given, None if manifest is None else Manifest.read(manifest)
    if manifest is not None:
        raise ValueError(f"{given} brings the manifest of its rows; leave --manifest out.")
    folder = embeddings_folder(given) if (given / "recipe.toml").is_file() else given
    if (folder / ITEMS).is_file():
        folder, part = folder.parent, folder.name
    there = embedded_parts(folder)
    chosen = part or next((one for one in ("gallery", "test", "train") if one in there), "gallery")
    found = read_embedded(folder, chosen)
    others = [one for one in there if one != chosen]
    left = f"; {found.broken:,} broken images are left out" if found.broken else ""
    if left or others:
        beside = f", beside {', '.join(others)}" if others else ""
        terminal.echo(f"{chosen} of {folder} is taken{beside}{left}", err=True)
    return found.embeddings, found.items


def _ids(file: Path | None) -> NDArray[np.int64] | None:
    from suprank.evaluation.embeddings import check_file, npy

    if file is None:
        return None
    check_file(file, "--ids")
    return npy(file, f"--ids ({file})")


def _numbers(given: Sequence[str]) -> NDArray[np.int64]:
    import numpy as np

    words = [word.strip() for text in given for word in text.split(",")]
    wrong = [word for word in words if not word.isdecimal() or int(word) >= 2**63]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is no id; give integers, such as 17,404.", param_hint="--ids")
    return np.array([int(word) for word in words], np.int64)


def _where(given: Sequence[str] | None) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in given or ():
        key, equals, name = text.partition("=")
        if not key or not equals or not name:
            raise typer.BadParameter(f"{text!r} is not LEVEL=NAME, such as family=Corvidae.", param_hint="--where")
        found.setdefault(key.removeprefix("label_"), []).append(name)
    return found


def _told(info: dict[str, Any]) -> str:
    """One line on an index that was built."""
    line = f"{info['address']}: {info['items']:,} items × {info['dim']}, {info['kind']}"
    if "recall" not in info:
        return line
    recall, size = info["recall"], f"{info['bytes'] / 2**20:,.1f} MiB"
    if not recall["queries"]:
        return f"{line}, {size}"
    return (
        f"{line}, {info['codes']}, {size}, finds {recall['value']:.1%} of the {recall['at']} best ({recall['queries']} queries)"
    )


def _embedded(
    files: Sequence[Path], model: str, weights: Path | None, options: dict[str, Any], device: str | None
) -> NDArray[np.float32]:
    """Embeddings of image files, in their order."""
    import numpy as np
    import torch

    from suprank.data import Manifest
    from suprank.models.inference import embed

    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"there is no image {file}; check the path (the working folder is {Path.cwd()}).")
    whole = [file.resolve() for file in files]
    paths = [file.relative_to(file.anchor).as_posix() for file in whole]
    manifest = Manifest.of({"path": paths, "split": ["query"] * len(paths)}, root=whole[0].anchor, levels=())
    embedder = load_embedder(model, weights)
    reading = loader_settings(embedder, {**options, "fast_jpeg": False}, 16, 0, "raise")
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    batches = reading.batches(manifest, np.arange(len(paths)), pinned=False)
    return np.concatenate([rows for _, rows in embed(embedder, batches, device=where, forward=reading.before(embedder))])


def _print(
    index: Index, queries: NDArray[np.float32], k: int, where: dict[str, list[str]], names: Sequence[int] | Sequence[Path]
) -> None:
    for line in _lines(index, queries, k, where, names):
        terminal.echo(json.dumps(line, ensure_ascii=False))


def _lines(
    index: Index, queries: NDArray[np.float32], k: int, where: dict[str, list[str]], names: Sequence[int] | Sequence[Path]
) -> Iterator[dict[str, Any]]:
    import numpy as np

    hits = index.search(queries, k, where)
    different = np.unique(hits.ids[hits.ids >= 0])
    known = {item.id: item for item in index.items(different)}
    for name, ids, scores in zip(names, hits.ids.tolist(), hits.scores.tolist(), strict=True):
        for rank, (one, score) in enumerate(zip(ids, scores, strict=True), start=1):
            if one >= 0:
                yield {
                    "query": str(name) if isinstance(name, Path) else name,
                    "rank": rank,
                    "id": one,
                    "path": known[one].path,
                    "score": round(score, 6),
                    "labels": dict(known[one].labels),
                }
