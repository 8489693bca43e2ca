"""Open runs or embeddings in the explorer, and serve its page."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from suprank.embedding import ImageLoaderSettings
    from suprank.evaluation.provenance import Provenance
    from suprank.explorer import Source
    from suprank.explorer.web import Explorer, ExplorerRun
    from suprank.models import Embedder, Head

    Progress = Callable[[str, int, int], None]

_log = logging.getLogger(__name__)


def explore(
    *runs: str | PathLike[str],
    host: str = "127.0.0.1",
    port: int = 8000,
    manifest: str | PathLike[str] | None = None,
    test: str | None = None,
    model: str | None = None,
    device: str | None = None,
    trust_code: bool = False,
    head: str | PathLike[str] | Head | None = None,
    tags: str | PathLike[str] | None = None,
    read_only: bool = False,
) -> None:
    """Serve the explorer page of one run, or of two side by side, until Ctrl-C: what `suprank explore` does.

    The arguments are those of `open_explorer`. On another host than 127.0.0.1, everyone who can reach it sees the images
    and, without `read_only`, can change tags and saved selections.

    Example:
        >>> suprank.explore("runs/happier", "runs/smooth-ap")  # doctest: +SKIP
        http://127.0.0.1:8000  (press Ctrl-C to stop)
    """
    from suprank.explorer.web import serve

    explorer = open_explorer(
        runs, manifest, test, model, device, trust_code=trust_code, head=head, tags=tags, read_only=read_only
    )
    serve(explorer.runs, host=host, port=port, tags=explorer.tags.file, read_only=read_only)


def open_explorer(
    runs: Sequence[str | PathLike[str]],
    manifest: str | PathLike[str] | None = None,
    test: str | None = None,
    model: str | None = None,
    device: str | None = None,
    progress: Progress = lambda what, done, total: None,
    *,
    trust_code: bool = False,
    head: str | PathLike[str] | Head | None = None,
    tags: str | PathLike[str] | None = None,
    read_only: bool = False,
) -> Explorer:
    """Open one run or two for the explorer: embed test images where needed, and index a large gallery.

    A run is a folder of `suprank train` or `suprank embed`, or a .npy file whose rows `manifest` describes. `test` names a test
    set of the recipe. `model` embeds uploaded images, by default that of the run. Models with a backbone of your own are
    loaded only with `trust_code`.

    `head`, a folder of `suprank adapt` or a `Head`, is applied to the embeddings of the first run and to uploaded images; a
    second run, which may be the same, is shown as it is.

    Tags are kept in the file `tags`, by default `tags.csv` in the folder of the first run or `NAME.tags.csv` beside `NAME.npy`,
    and saved selections beside it. With `read_only`, the page does not let anybody change them.
    """
    from suprank.explorer.source import comparison_warning
    from suprank.explorer.web import Explorer
    from suprank.workflows.heads import load_head
    from suprank.workflows.run_embeddings import check_run_or_embeddings

    folders = [Path(run) for run in runs]
    if not 1 <= len(folders) <= 2:
        raise ValueError(f"{len(folders)} runs are given; give one, or two to compare.")
    for folder in folders:
        check_run_or_embeddings(folder)
    heads = [None if head is None else load_head(head, device), None]
    opened = [
        _open_run(folder, None if manifest is None else Path(manifest), test, model, device, progress, trust_code, one)
        for folder, one in zip(folders, heads, strict=False)
    ]
    if len(opened) > 1 and (warning := comparison_warning(*(run.source for run in opened))):
        _log.warning("%s", warning)
    explorer = Explorer(opened, tags=_tags_file(tags, folders[0]), read_only=read_only)
    for before, after in zip(opened, explorer.runs, strict=True):
        if omitted := [level for level in before.source.levels if level not in after.source.levels]:
            _log.info("%s is shown without %s, which the other run does not have", before.source.name, ", ".join(omitted))
    if len(opened) > 1 and (explorer.searcher.counterpart_rows("gallery", 1) < 0).all():
        names = " and ".join(run.source.name for run in opened)
        _log.warning("%s have no image in common, so only an uploaded image is searched in both.", names)
    return explorer


def _tags_file(given: str | PathLike[str] | None, run: Path) -> Path | None:
    """The file of the tags: the given one, or the one beside a .npy file; None for the default in the folder of the run."""
    if given is None:
        return run.with_suffix(".tags.csv") if run.is_file() else None
    file = Path(given)
    if file.suffix.lower() != ".csv" or file.is_dir():
        raise ValueError(f"{file} cannot keep the tags; name a .csv file, such as tags.csv.")
    return file


def _open_run(
    folder: Path,
    manifest: Path | None,
    test: str | None,
    model: str | None,
    device: str | None,
    progress: Progress,
    trust_code: bool,
    head: Head | None,
) -> ExplorerRun:
    """Read a run or embeddings, apply the head, and open or build its index."""
    from suprank.explorer.index import Index
    from suprank.explorer.web import ExplorerRun
    from suprank.workflows.heads import with_head

    source, index_folder = open_place(folder, manifest, test, device, progress, trust_code)
    if head is not None:
        source = with_head(source, head, progress)
        index_folder = index_folder.with_name(f"{index_folder.name}-{head.fingerprint()[:12]}")
    index = Index.cached(
        source.gallery.embeddings, index_folder, progress=partial(progress, f"{source.name}: indexing"), warn=_log.info
    )
    embed = query_embedder(folder, model, head, source.provenance, device, trust_code)
    return ExplorerRun(source, index, None, embed) if isinstance(embed, str) else ExplorerRun(source, index, embed)


def open_place(
    folder: Path, manifest: Path | None, test: str | None, device: str | None, progress: Progress, trust_code: bool
) -> tuple[Source, Path]:
    """The source, and the folder where its index would be stored."""
    from suprank.explorer import Source, embeddings_folder
    from suprank.workflows.run_embeddings import open_source

    if folder.is_file():
        if folder.suffix != ".npy":
            raise ValueError(
                f"{folder} is not a .npy file of embeddings; give a folder of `suprank train` or `suprank embed`, or a .npy "
                f"file with manifest."
            )
        if manifest is None:
            raise ValueError(f"{folder} is a file of embeddings without a manifest; give one with manifest.")
        return Source.from_files(folder, manifest), folder.with_suffix(".index")
    source = open_source(folder, test, device, progress, trust_code=trust_code, shown_in="the explorer page")
    return source, (folder if source.recipe is None else embeddings_folder(folder, source.test)) / "index"


def query_embedder(
    folder: Path, model: str | None, head: Head | None, made_by: Provenance | None, device: str | None, trust_code: bool
) -> Callable[[Image], NDArray[np.float32]] | str:
    """A function that embeds a picture to search for, loading the model on first use; or a sentence why there is none.

    That is `model`, or else the run's own, with the head on top. `made_by` says what made the embeddings. A model that
    needs code which is not trusted is none, and that is logged.
    """
    from suprank.system.custom_code import CustomCodeError, require_consent, trusting
    from suprank.workflows.run_embeddings import image_embedder, load_run_model, saved_model

    is_run = (folder / "recipe.toml").is_file()
    chosen = Path(model) if model is not None else saved_model(folder) if is_run else None
    if chosen is None:
        lacks = "has neither a folder “model” nor “best”" if is_run else "has embeddings, but no model"
        return f"{folder.resolve().name} {lacks}; name the model that embedded it with model."
    from suprank.models.model_folder import custom_backbone  # imports torch

    if model is not None:
        _check_model_folder(chosen)
    try:
        with trusting(trust_code):
            require_consent(custom_backbone(chosen) or "", "backbone", chosen)
    except CustomCodeError as error:
        _log.warning("images cannot be uploaded: %s", error)
        return f"The model of {folder.resolve().name} cannot be loaded: {error}"
    load_saved = partial(load_run_model, folder, trust_code=trust_code)
    load = load_saved if model is None else partial(_load_model, model, trust_code, made_by)
    scales = (1.0,) if made_by is None else made_by.scales
    return image_embedder(partial(_load_or_explain, load, chosen, head, made_by), device, scales)


def _check_model_folder(model: Path) -> None:
    """Refuse a folder that is not a saved embedder at the start, before anybody uploads an image."""
    from suprank.models.model_folder import SETTINGS

    if model.is_dir() and not (model / SETTINGS).is_file():
        run = (model / "model" / SETTINGS).is_file()
        instead = f"give model={model / 'model'}" if run else "give the model that embedded the images"
        raise ValueError(f"{model} is not the folder of a model, which has a file {SETTINGS}; {instead}.")


def _load_or_explain(
    load: Callable[[], tuple[Embedder, ImageLoaderSettings]], model: Path, head: Head | None, made_by: Provenance | None
) -> tuple[Embedder, ImageLoaderSettings]:
    """The loaded model with the head; if that fails, an error that the page shows instead of the terminal."""
    from suprank.evaluation.provenance import check_comparable
    from suprank.explorer.web.searching import WrongModelError
    from suprank.workflows.embeddings import query_provenance
    from suprank.workflows.heads import embedder_with_head, head_fingerprint

    try:
        embedder, settings = load()
        if head is not None and head_fingerprint(embedder) != head.fingerprint():
            embedder = embedder_with_head(embedder, head)
        own = query_provenance(embedder, settings, (1.0,) if made_by is None else made_by.scales)
        check_comparable(made_by, own, ("the gallery", f"the model {model}"), _log.info)
    except (OSError, ValueError, RuntimeError) as error:
        raise WrongModelError(f"The model {model} cannot embed the image: {error}") from error
    return embedder, settings


def _load_model(model: str, trust_code: bool, made_by: Provenance | None) -> tuple[Embedder, ImageLoaderSettings]:
    """The model, with images read as those of the gallery were."""
    from suprank.embedding import ImageLoaderSettings
    from suprank.workflows.embeddings import load_embedder

    embedder = load_embedder(model, trust_code=trust_code)
    if made_by is None:
        return embedder, ImageLoaderSettings.for_model(embedder)
    images = ImageLoaderSettings.for_model(embedder, size=made_by.size, resize=made_by.resize, squash=made_by.squash)
    return embedder, images
