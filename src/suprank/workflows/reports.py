"""Write what a run retrieves into one HTML file."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from suprank.models import Head

MAX_SUMMARY = 5000
"""Characters of the author's summary: about a screen of text."""

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
    summary: str | PathLike[str] | None = None,
    device: str | None = None,
    trust_code: bool = False,
    head: str | PathLike[str] | Head | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Write the report page of one run, or of two side by side, and return its path.

    `run` and `against` are folders of `suprank train` or `suprank embed`. Test images that are not embedded yet are embedded
    first, into RUN/embeddings. With `against_frozen` the run is compared with its own backbone before training. `queries` is
    the number of queries in each gallery, `top` the number of items shown for each, and `map_classes` the number of classes on
    the map, those with the most images, or 0 for all; `map_images` single test images are placed among them. Runs with a
    backbone of your own are loaded only with `trust_code`. `head`, a folder of `suprank adapt` or a `Head`, is applied to the
    embeddings of `run`, and never to what it is compared with, which may be the same run. `progress(what, done, total)` is
    called as the work goes on.

    `summary`, a text or the path of a text file, is shown at the top as the author's; blank lines separate its paragraphs.

    Example:
        >>> suprank.report("runs/happier", against="runs/smooth-ap")  # doctest: +SKIP
        PosixPath('report.html')
    """
    from suprank.explorer.report import report_page
    from suprank.explorer.source import comparison_warning
    from suprank.files.atomic import write_atomically
    from suprank.files.writable import check_writable
    from suprank.workflows.heads import load_head, with_head
    from suprank.workflows.run_embeddings import check_run_or_embeddings, open_source

    if against is not None and against_frozen:
        raise ValueError("against and against_frozen both name what to compare with; give one.")
    if map_classes < 0:
        raise ValueError(f"map_classes={map_classes} must be a number of classes, or 0 for all.")
    text = None if summary is None else read_summary(summary)
    page_file = Path(out)
    check_writable(page_file)
    folders = [Path(folder) for folder in (run, against) if folder is not None]
    for folder in folders:
        check_run_or_embeddings(folder)
    if find_spec("openTSNE") is None:  # checked before minutes of embedding
        raise ModuleNotFoundError("the map of the classes needs openTSNE", name="openTSNE")
    loaded = None if head is None else load_head(head, device)
    show = progress or (lambda what, done, total: None)
    how: dict[str, Any] = {"trust_code": trust_code, "shown_in": "the report"}
    sources = [open_source(folder, test, device, show, **how) for folder in folders]
    if loaded is not None:
        sources[0] = with_head(sources[0], loaded, show)
    if against_frozen:
        sources.append(open_source(folders[0], test, device, show, frozen=True, **how))
    if len(sources) > 1 and (warning := comparison_warning(*sources)):
        _log.warning("%s", warning)
    page = report_page(
        *sources,
        title=title,
        summary=text,
        queries=queries,
        top=top,
        map_classes=map_classes,
        map_images=map_images,
        seed=seed,
        progress=show,
    )
    write_atomically(page_file, page.encode())
    return page_file


def read_summary(summary: str | PathLike[str]) -> str:
    """The text of a summary: that of the file if `summary` is the path of one, else `summary` itself."""
    text = str(summary)
    if _is_file(summary):
        try:
            text = Path(summary).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{summary} is not a text file in UTF-8; save the summary as plain text.") from error
    elif not isinstance(summary, str) or (not any(map(str.isspace, text)) and text.lower().endswith((".txt", ".md"))):
        raise FileNotFoundError(f"there is no summary file {summary}; give an existing text file, or the text itself.")
    if not text.strip():
        raise ValueError("the summary is empty; write a sentence, or leave it out.")
    if len(text) > MAX_SUMMARY:
        raise ValueError(f"the summary has {len(text):,} characters, but at most {MAX_SUMMARY:,} are shown; shorten it.")
    return text


def _is_file(path: str | PathLike[str]) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # a text that is too long for a file name
        return False
