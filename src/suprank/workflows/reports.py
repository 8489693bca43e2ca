"""Write what a run retrieves into one HTML file."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

_log = logging.getLogger(__name__)


def report(
    run: str | PathLike[str],
    against: str | PathLike[str] | None = None,
    out: str | PathLike[str] = "report.html",
    *,
    against_frozen: bool = False,
    test: str | None = None,
    queries: int = 8,
    top: int = 10,
    map_classes: int = 20_000,
    map_images: int = 0,
    seed: int = 0,
    title: str | None = None,
    device: str | None = None,
    trust_code: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Write the report page of one run, or of two side by side, and return its path.

    `run` and `against` are folders of `suprank train` or `suprank embed`. Test images that are not embedded yet are embedded
    first, into RUN/embeddings. With `against_frozen` the run is compared with its own backbone before training. `queries` is
    the number of queries in each gallery, `top` the number of items shown for each, and `map_classes` the number of classes on
    the map, those with the most images, or 0 for all; `map_images` single test images are placed among them. Runs with a
    backbone of your own are loaded only with `trust_code`. `progress(what, done, total)` is called as the work goes on.

    Example:
        >>> suprank.report("runs/happier", against="runs/smooth-ap")  # doctest: +SKIP
        PosixPath('report.html')
    """
    from suprank.explorer.report import report_page
    from suprank.explorer.source import comparison_warning
    from suprank.files.atomic import write_atomically
    from suprank.files.writable import check_writable
    from suprank.workflows.run_embeddings import check_run_or_embeddings, open_source

    if against is not None and against_frozen:
        raise ValueError("against and against_frozen both name what to compare with; give one.")
    if map_classes < 0:
        raise ValueError(f"map_classes={map_classes} must be a number of classes, or 0 for all.")
    page_file = Path(out)
    check_writable(page_file)
    folders = [Path(folder) for folder in (run, against) if folder is not None]
    for folder in folders:
        check_run_or_embeddings(folder)
    if find_spec("openTSNE") is None:  # checked before minutes of embedding
        raise ModuleNotFoundError("the map of the classes needs openTSNE", name="openTSNE")
    show = progress or (lambda what, done, total: None)
    sources = [open_source(folder, test, device, show, trust_code=trust_code) for folder in folders]
    if against_frozen:
        sources.append(open_source(folders[0], test, device, show, frozen=True, trust_code=trust_code))
    if len(sources) > 1 and (warning := comparison_warning(*sources)):
        _log.warning("%s", warning)
    page = report_page(
        *sources,
        queries=queries,
        top=top,
        map_classes=map_classes,
        map_images=map_images,
        seed=seed,
        title=title,
        progress=show,
    )
    write_atomically(page_file, page.encode())
    return page_file
