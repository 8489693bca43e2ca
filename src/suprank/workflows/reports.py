"""Write what a run retrieves into one HTML file."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from suprank.system.progress import stage_progress

if TYPE_CHECKING:
    from os import PathLike

    from suprank.models import Head
    from suprank.system.progress import StageProgress

MAX_SUMMARY = 5000
"""Characters of the author's summary: about a screen of text."""

_log = logging.getLogger(__name__)


def report(
    run: str | PathLike[str],
    against: str | PathLike[str] | None = None,
    out: str | PathLike[str] = "report.html",
    *,
    against_frozen: bool = False,
    labels: str | PathLike[str] | None = None,
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
    progress: bool | StageProgress = True,
) -> Path:
    """Write the report page of one run, or of two side by side, and return its path.

    `run` and `against` are whatever `open_data` opens; files of embeddings take the manifest of their rows as `labels`. Test
    images that are not embedded yet are embedded first, into RUN/embeddings. With `against_frozen` the run is compared with its
    own backbone before training. `queries` is the number of queries in each gallery, `top` the number of items shown for each,
    and `map_classes` the number of classes on the map, those with the most images, or 0 for all; `map_images` single test
    images are placed among them. Runs with a backbone of your own are loaded only with `trust_code`. `head`, a folder of
    `suprank adapt` or a `Head`, is applied to the embeddings of `run`, and never to what it is compared with, which may be the
    same run. `progress` draws a bar for each stage of the work, or is called with (what, done, total).

    `summary`, a text or the path of a text file, is shown at the top as the author's; blank lines separate its paragraphs.

    Example:
        >>> suprank.report("runs/happier", against="runs/smooth-ap")  # doctest: +SKIP
        PosixPath('report.html')
    """
    from suprank.explorer.report import report_page
    from suprank.files.atomic import write_atomically
    from suprank.files.outputs import check_writable
    from suprank.workflows.heads import load_head
    from suprank.workflows.opening import open_data, test_of

    if against is not None and against_frozen:
        raise ValueError("against and against_frozen both name what to compare with; give one.")
    if map_classes < 0:
        raise ValueError(f"map_classes={map_classes} must be a number of classes, or 0 for all.")
    text = None if summary is None else read_summary(summary)
    page_file = Path(out)
    check_writable(page_file)
    if find_spec("openTSNE") is None:  # checked before minutes of embedding
        raise ModuleNotFoundError("the map of the classes needs openTSNE", name="openTSNE")
    show = stage_progress(progress)
    applied = None if head is None else load_head(head, device)
    places = [(run, applied, False)]
    if against is not None or against_frozen:
        places.append((run if against is None else against, None, against_frozen))
    shown = [
        open_data(
            place,
            None if Path(place).is_dir() else labels,
            test=test_of(place, test, [place for place, _, _ in places]),
            frozen=frozen,
            head=one,
            trust_code=trust_code,
            device=device,
            shown_in="the report",
            progress=show,
        )
        for place, one, frozen in places
    ]
    for data in shown:
        data.require_labels()
    if len(shown) > 1 and (warning := shown[0].comparison_warning(shown[1])):
        _log.warning("%s", warning)
    page = report_page(
        *shown,
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
