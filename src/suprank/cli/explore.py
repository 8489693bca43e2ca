"""suprank explore: a local web page that shows what a run retrieves, or two runs side by side."""

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
    from suprank.explorer.web import ExplorerRun
    from suprank.models import Embedder


def explore(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN [RUN2]",
            help="A folder of `suprank train` or `suprank embed`, or a .npy file with --manifest; a second to compare.",
        ),
    ] = None,
    embeddings: Annotated[Path | None, typer.Option(metavar="DIR|FILE.npy", hidden=True, help="The same as RUN.")] = None,
    manifest: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The manifest of the rows, if RUN is a .npy file.")
    ] = None,
    test: Annotated[
        str | None, typer.Option(metavar="NAME", help="The test set of the recipe to show.", show_default="the first")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|NAME", help="The model that embeds uploaded images, if RUN has none.", show_default="the run's"
        ),
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INDEX",
            help="An index of the gallery from `suprank index build`, one for each run.",
            show_default="none for small galleries; large ones are indexed once",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 127.0.0.1 is reachable from this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    device: Annotated[
        str | None, typer.Option(help="Device for embedding: cpu, cuda or cuda:N.", show_default="cuda if available")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bars.")] = False,
) -> None:
    """Open a local web page: search by image, label or path, browse the label tree, compare two runs on the same query.

    The test images of a run are embedded on the first call, into RUN/embeddings, and reused later. Nothing else is written,
    except an index next to the embeddings of a large gallery. Press Ctrl-C to stop.

    \b
    suprank explore runs/happier
    suprank explore runs/happier runs/smooth-ap
    suprank explore embeddings --model resnet50
    suprank explore test.npy --manifest test.parquet --no-browser --port 8080
    """
    folders = [*(runs or []), *([] if embeddings is None else [embeddings])]
    if not 1 <= len(folders) <= 2:
        raise typer.BadParameter(f"{len(folders)} runs are given; give one, or two to compare.")
    if manifest is not None and all(folder.is_dir() for folder in folders):
        raise typer.BadParameter("--manifest is for a .npy file; a folder has its own manifest.")
    with terminal.plain_errors("a smaller gallery"):
        from suprank.cli.terminal import ProgressBars
        from suprank.explorer.source import comparison_warning
        from suprank.explorer.web import Explorer, create_app
        from suprank.web.serving import bind_socket
        from suprank.workflows.run_embeddings import check_run_or_embeddings

        terminal.device(device)
        for folder in folders:
            check_run_or_embeddings(folder)
        addresses: list[str | None] = [*(index or []), *[None] * (len(folders) - len(index or []))]
        if len(addresses) > len(folders):
            raise ValueError(f"{len(addresses)} indexes are given for {len(folders)} runs; give at most one per run.")
        with bind_socket(host, port) as listening:  # first, so that a port in use is reported before minutes of work
            with ProgressBars(quiet) as bars:
                opened = [
                    _open_run(folder, address, manifest, test, model, device, bars)
                    for folder, address in zip(folders, addresses, strict=True)
                ]
            if len(opened) > 1 and (warning := comparison_warning(*(run.source for run in opened))):
                terminal.echo(f"warning: {warning}", err=True)
            explorer = Explorer(opened)
            for before, after in zip(opened, explorer.runs, strict=True):
                if omitted := [level for level in before.source.levels if level not in after.source.levels]:
                    message = f"{before.source.name} is shown without {', '.join(omitted)}, which the other run does not have"
                    terminal.echo(message, err=True)
            app, others = create_app(explorer, host=host), "can see these images, without a password"
            serve(app, listening, host, [("", "")], others=others, open_page=not no_browser, background=explorer.measure)


def _open_run(
    folder: Path,
    address: str | None,
    manifest: Path | None,
    test: str | None,
    model: str | None,
    device: str | None,
    progress: Callable[[str, int, int], None],
) -> ExplorerRun:
    """Read a run or embeddings, and open or build its search index."""
    from suprank.explorer.web import ExplorerRun, open_search

    source, index_folder = _source(folder, manifest, test, device, progress)
    search = open_search(
        source,
        address,
        index_folder=index_folder,
        progress=partial(progress, f"{source.name}: indexing"),
        warn=partial(terminal.echo, err=True),
    )
    return ExplorerRun(source, search, _embedding(folder, model, device))


def _source(
    folder: Path, manifest: Path | None, test: str | None, device: str | None, progress: Callable[[str, int, int], None]
) -> tuple[Source, Path]:
    """The source, and the folder where its index would be stored."""
    from suprank.explorer import Source, embeddings_folder
    from suprank.workflows.run_embeddings import open_source

    if folder.is_file():
        if manifest is None:
            raise ValueError(f"{folder} is a file of embeddings without a manifest; give one with --manifest.")
        return Source.from_files(folder, manifest), folder.with_suffix(".index")
    source = open_source(folder, test, device, progress)
    return source, (folder if source.recipe is None else embeddings_folder(folder, source.test)) / "index"


def _embedding(folder: Path, model: str | None, device: str | None) -> Callable[[Image], NDArray[np.float32]] | None:
    """A function that embeds an uploaded image, loading the model on first use; None if there is no model."""
    from suprank.workflows.run_embeddings import image_embedder, load_run_model

    if (folder / "recipe.toml").is_file():
        saved = any((folder / name).is_dir() for name in ("model", "best"))
        return image_embedder(partial(load_run_model, folder), device) if saved else None
    return None if model is None else image_embedder(partial(_load_model, model), device)


def _load_model(model: str) -> tuple[Embedder, ImageLoaderSettings]:
    from suprank.embedding import ImageLoaderSettings
    from suprank.workflows.embeddings import load_embedder

    embedder = load_embedder(model, None)
    return embedder, ImageLoaderSettings.for_model(embedder)
