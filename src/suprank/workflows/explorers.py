"""Open runs or embeddings in the explorer, and serve its page."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from suprank.system.progress import stage_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from suprank.embedding import ImageLoaderSettings
    from suprank.evaluation.provenance import Provenance
    from suprank.evaluation.retrieval_data import RetrievalData
    from suprank.explorer.web import Explorer, ExplorerRun
    from suprank.models import Embedder, Head
    from suprank.system.progress import StageProgress

_log = logging.getLogger(__name__)


def explore(
    *runs: str | PathLike[str],
    host: str = "127.0.0.1",
    port: int = 8000,
    labels: str | PathLike[str] | None = None,
    test: str | None = None,
    model: str | None = None,
    device: str | None = None,
    trust_code: bool = False,
    head: str | PathLike[str] | Head | None = None,
    tags: str | PathLike[str] | None = None,
    read_only: bool = False,
    progress: bool | StageProgress = True,
) -> None:
    """Serve the explorer page of one run, or of two side by side, until Ctrl-C; its address is printed.

    The arguments are those of `open_explorer`. On another host than 127.0.0.1, everyone who can reach it sees the images
    and, without `read_only`, can change tags. Port 0 takes a free one.

    Example:
        >>> suprank.explore("runs/happier", "runs/smooth-ap")  # doctest: +SKIP
        http://127.0.0.1:8000  (press Ctrl-C to stop)
    """
    from suprank.explorer.web import create_app
    from suprank.web.serving import bind_socket, make_server, server_url

    with bind_socket(host, port) as listening:  # first: a port in use is reported before minutes of work
        explorer = open_explorer(
            runs, labels, test, model, device, progress, trust_code=trust_code, head=head, tags=tags, read_only=read_only
        )
        listening.listen(128)
        threading.Thread(target=explorer.measure, daemon=True).start()
        print(f"{server_url(listening, host)}  (press Ctrl-C to stop)", flush=True)
        with suppress(KeyboardInterrupt):
            make_server(create_app(explorer, host=host)).run(sockets=[listening])


def open_explorer(
    runs: Sequence[str | PathLike[str]],
    labels: str | PathLike[str] | None = None,
    test: str | None = None,
    model: str | None = None,
    device: str | None = None,
    progress: bool | StageProgress = True,
    *,
    trust_code: bool = False,
    head: str | PathLike[str] | Head | None = None,
    tags: str | PathLike[str] | None = None,
    read_only: bool = False,
) -> Explorer:
    """Open one run or two for the explorer: embed test images where needed, and index a large gallery.

    A run is whatever `open_data` opens; files of embeddings take the manifest of their rows as `labels`. `test` names a test
    set of the recipe. `model` embeds uploaded images, by default that of the run. Models with a backbone of your own are loaded
    only with `trust_code`.

    `head`, a folder of `suprank adapt` or a `Head`, is applied to the embeddings of the first run and to uploaded images; a
    second run, which may be the same, is shown as it is.

    Tags are kept in the file `tags`, by default `tags.csv` in the folder of the first run or `NAME.tags.csv` beside `NAME.npy`.
    With `read_only`, the page does not let anybody change them.
    """
    from suprank.explorer.web import Explorer
    from suprank.workflows.heads import load_head
    from suprank.workflows.opening import open_data, test_of

    if not 1 <= len(runs) <= 2:
        raise ValueError(f"{len(runs)} runs are given; give one, or two to compare.")
    show = stage_progress(progress)
    loaded = None if head is None else load_head(head, device)
    shown = []
    for run, applied in zip(runs, (loaded, None), strict=False):
        data = open_data(
            run,
            None if Path(run).is_dir() else labels,
            test=test_of(run, test, runs),
            head=applied,
            trust_code=trust_code,
            device=device,
            shown_in="the explorer page",
            progress=show,
        )
        shown.append(_explorer_run(data, model, device, show, trust_code, applied))
    if len(shown) > 1 and (warning := shown[0].data.comparison_warning(shown[1].data)):
        _log.warning("%s", warning)
    explorer = Explorer(shown, tags=_tags_file(tags), read_only=read_only)
    for before, after in zip(shown, explorer.runs, strict=True):
        if omitted := [level for level in before.data.levels if level not in after.data.levels]:
            _log.info("%s is shown without %s, which the other run does not have", before.data.name, ", ".join(omitted))
    if len(shown) > 1 and (explorer.searcher.counterpart_rows("gallery", 1) < 0).all():
        names = " and ".join(run.data.name for run in shown)
        _log.warning("%s have no image in common, so only an uploaded image is searched in both.", names)
    return explorer


def _tags_file(given: str | PathLike[str] | None) -> Path | None:
    if given is None:
        return None
    file = Path(given)
    if file.suffix.lower() != ".csv" or file.is_dir():
        raise ValueError(f"{file} cannot keep the tags; name a .csv file, such as tags.csv.")
    return file


def _explorer_run(
    data: RetrievalData, model: str | None, device: str | None, progress: StageProgress, trust_code: bool, head: Head | None
) -> ExplorerRun:
    """The data with their index, and a function that embeds uploaded images."""
    from suprank.explorer.index import Index
    from suprank.explorer.web import ExplorerRun

    title = f"{data.name}: indexing"
    index = Index.cached(data.items.embeddings, index_folder(data), progress=partial(progress, title), warn=_log.info)
    embed = query_embedder(data, model, head, device, trust_code)
    return ExplorerRun(data, index, None, embed) if isinstance(embed, str) else ExplorerRun(data, index, embed)


def index_folder(data: RetrievalData) -> Path:
    """Where the index of the items is kept: beside the embeddings, with the head in its name if one is applied."""
    where, head = data.origin.embeddings, data.origin.head
    assert where is not None, "opened from files"
    folder = where.with_suffix(".index") if where.is_file() else where / "index"
    return folder if head is None else folder.with_name(f"{folder.name}-{head[:12]}")


def query_embedder(
    data: RetrievalData, model: str | None, head: Head | None, device: str | None, trust_code: bool
) -> Callable[[Image], NDArray[np.float32]] | str:
    """A function that embeds a picture to search for, loading the model on first use; or a sentence why there is none.

    That is `model`, or else the run's own, with the head on top. A model that needs code which is not trusted is none, and that
    is logged.
    """
    from suprank.system.custom_code import CustomCodeError, require_consent, trusting
    from suprank.workflows.opening import is_run
    from suprank.workflows.run_embeddings import image_embedder, load_run_model, saved_model

    place, made_by = data.origin.place, data.origin.made_by
    run = place if place is not None and is_run(place) else None
    if model is not None and is_run(model):
        run, model = Path(model), None
    chosen = Path(model) if model is not None else None if run is None else saved_model(run)
    if chosen is None:
        lacks = "has embeddings, but no model" if run is None else "has neither a folder “model” nor “best”"
        return f"{data.name} {lacks}; name the model that embedded it with model."
    from suprank.models.model_folder import custom_backbone  # imports torch

    if model is not None:
        _check_model_folder(chosen)
    try:
        with trusting(trust_code):
            require_consent(custom_backbone(chosen) or "", "backbone", chosen)
    except CustomCodeError as error:
        _log.warning("images cannot be uploaded: %s", error)
        return f"The model of {data.name} cannot be loaded: {error}"
    load: Callable[[], tuple[Embedder, ImageLoaderSettings]]
    if model is not None:
        load = partial(_load_model, model, trust_code, made_by)
    else:
        assert run is not None
        load = partial(load_run_model, run, trust_code=trust_code)
    scales = (1.0,) if made_by is None else made_by.scales
    return image_embedder(partial(_load_or_explain, load, chosen, head, made_by), device, scales)


def _check_model_folder(model: Path) -> None:
    """Refuse a folder that is not a saved embedder at the start, before anybody uploads an image."""
    from suprank.models.model_folder import SETTINGS

    if model.is_dir() and not (model / SETTINGS).is_file():
        raise ValueError(
            f"{model} is not the folder of a model, which has a file {SETTINGS}; give the model that embedded the images, or "
            f"the run that trained it."
        )


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
