"""suprank explore: a local web page to look at what a run retrieves, or two runs side by side."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal
from suprank.cli.serving import serve

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from suprank.embedding import ImageLoaderSettings
    from suprank.explorer import Source
    from suprank.explorer.web import Nearest, Run
    from suprank.models import Embedder


def explore(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN [RUN2]", help="A folder of `suprank train` or `suprank embed`; a second to compare with."),
    ] = None,
    embeddings: Annotated[
        Path | None, typer.Option(metavar="DIR|FILE.npy", help="Look at these embeddings; a file needs --manifest.")
    ] = None,
    manifest: Annotated[Path | None, typer.Option(metavar="FILE", help="The rows of --embeddings FILE.npy.")] = None,
    test: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which test set of the recipe.", show_default="the first")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="DIR|NAME", help="What embeds an uploaded image, where RUN is no run.", show_default="the run's"),
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INDEX",
            help="An index of the gallery from `suprank index build`; one for each run.",
            show_default="none for small galleries; for large ones, one that is built once",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; only 127.0.0.1 is for this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser.")] = False,
    device: Annotated[str | None, typer.Option(help="Where to embed: cpu, cuda or cuda:N.", show_default="cuda if any")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """A local web page: search by an image, a label or a path, walk the label tree, compare two runs on the same query.

    The test images of a run are embedded on the first call, into RUN/embeddings, and kept. Nothing else is written, but for an
    index beside the embeddings of a large gallery. Ctrl-C ends it.

    \b
    suprank explore runs/happier
    suprank explore runs/happier runs/smooth-ap
    suprank explore embeddings --model resnet50
    suprank explore --embeddings test.npy --manifest test.parquet --no-browser --port 8080
    """
    folders = [*(runs or []), *([] if embeddings is None else [embeddings])]
    if not 1 <= len(folders) <= 2:
        raise typer.BadParameter(f"{len(folders)} runs are given; give one to look at, or two to compare.")
    if manifest is not None and (embeddings is None or embeddings.is_dir()):
        raise typer.BadParameter("--manifest tells the rows of --embeddings FILE.npy; a folder has its own.")
    with terminal.plain_errors("a smaller gallery"):
        from suprank.cli.terminal import ProgressBars
        from suprank.explorer.source import comparison_warning
        from suprank.explorer.web import Explorer, Run, create_app
        from suprank.web.serving import bind_socket
        from suprank.workflows.run_embeddings import check_run_or_embeddings

        terminal.device(device)
        for folder in folders:
            check_run_or_embeddings(folder)
        addresses: list[str | None] = [*(index or []), *[None] * (len(folders) - len(index or []))]
        if len(addresses) > len(folders):
            raise ValueError(f"{len(addresses)} indexes are given for {len(folders)} runs; give one for each at most.")
        with bind_socket(host, port) as listening:  # first: a port that is taken is found out before minutes of work
            found: list[Run] = []
            with ProgressBars(quiet) as bars:
                for folder, address in zip(folders, addresses, strict=True):
                    source, beside = _source(folder, manifest, test, device, bars)
                    nearest = _nearest(source, address, beside, bars)
                    found.append(Run(source, nearest, _embedding(folder, model, device)))
            if len(found) > 1 and (warning := comparison_warning(*(run.source for run in found))):
                terminal.echo(f"warning: {warning}", err=True)
            explorer = Explorer(found)
            for run, looked in zip(found, explorer.runs, strict=True):
                if alone := [level for level in run.source.levels if level not in looked.source.levels]:
                    terminal.echo(
                        f"{run.source.name} is looked at without {', '.join(alone)}: the other run has no such level", err=True
                    )
            others, app = "sees these images, without a password", create_app(explorer, host=host)
            serve(app, listening, host, [("", "")], others=others, open_page=not no_browser, background=explorer.measure)


def _source(
    folder: Path, manifest: Path | None, test: str | None, device: str | None, progress: Callable[[str, int, int], None]
) -> tuple[Source, Path]:
    """What is looked at, and where an index of it would lie."""
    from suprank.data import Manifest
    from suprank.explorer import Source, embeddings_folder
    from suprank.workflows.run_embeddings import open_source

    if folder.is_file():
        import numpy as np

        if manifest is None or folder.suffix != ".npy":
            raise ValueError(f"{folder} is a file; of embeddings in a .npy file, --manifest tells the rows.")
        vectors = np.load(folder, mmap_mode="r", allow_pickle=False)
        return Source.of(folder.stem, vectors, Manifest.read(manifest)), folder.with_suffix(".index")
    source = open_source(folder, test, device, progress)
    return source, (folder if source.recipe is None else embeddings_folder(folder, source.test)) / "index"


def _nearest(source: Source, address: str | None, beside: Path, bars: Callable[[str, int, int], None]) -> Nearest:
    """The index at the address; without one, exact search, or, in a large gallery, an index that is built once and kept."""
    from suprank.explorer.index import build_index, open_index
    from suprank.explorer.index.kinds import chosen_kind
    from suprank.explorer.web import Exact, Indexed

    gallery = source.gallery
    if address is not None:
        return Indexed(gallery, open_index(address))
    if chosen_kind("auto", len(gallery), gallery.dim) == "exact":
        return Exact(gallery)
    try:
        if (beside / "meta.json").is_file():
            try:
                return Indexed(gallery, open_index(beside))
            except ValueError as error:
                terminal.echo(f"{error} It is built anew.", err=True)
        what = f"{source.name}: indexing"
        built = build_index(beside, gallery.embeddings, overwrite=True, progress=lambda done, total: bars(what, done, total))
        return Indexed(gallery, built)
    except OSError as error:
        terminal.echo(
            f"every search compares all {len(gallery):,} images, because no index can be kept here: {error}", err=True
        )
        return Exact(gallery)


def _embedding(folder: Path, model: str | None, device: str | None) -> Callable[[Image], NDArray[np.float32]] | None:
    """What embeds an uploaded image as the folder's images were; None where there is no model. It is loaded when needed."""
    from suprank.workflows.run_embeddings import image_embedder, load_run_model

    if (folder / "recipe.toml").is_file():
        saved = any((folder / one).is_dir() for one in ("model", "best"))
        return image_embedder(partial(load_run_model, folder), device) if saved else None
    return None if model is None else image_embedder(partial(_named, model), device)


def _named(model: str) -> tuple[Embedder, ImageLoaderSettings]:
    from suprank.embedding import ImageLoaderSettings
    from suprank.workflows.embeddings import load_embedder

    embedder = load_embedder(model, None)
    return embedder, ImageLoaderSettings.for_model(embedder)
