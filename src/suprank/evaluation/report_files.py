"""Files of a report: JSON, and the values per query in `<stem>.queries.npz` beside it."""

from __future__ import annotations

import hashlib
import io
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank import __version__
from suprank.files.atomic import own_file, write_atomically
from suprank.files.binary import read_npz

if TYPE_CHECKING:
    from pathlib import Path

    from suprank.evaluation.report import Report

FORMAT = "suprank report"
VERSION = 1  # of the files; raise it when an older suprank could not read them


def write_report(report: Report, path: Path) -> None:
    """See `Report.save`."""
    arrays: dict[str, np.ndarray] = {}
    if report.per_query is not None:
        arrays["per_query"] = np.array(list(report.per_query.values())).reshape(len(report.per_query), report.n_queries)
    if report.query_ids is not None:
        arrays["query_ids"] = report.query_ids
    if report.classes is not None:
        arrays["classes"] = np.array(list(report.classes.values()), np.int64).reshape(len(report.classes), report.n_queries)
    digest = None
    if arrays:
        archive = io.BytesIO()
        np.savez_compressed(archive, allow_pickle=False, **arrays)
        digest = hashlib.sha256(archive.getvalue()).hexdigest()
        write_file(_archive_path(path), archive.getvalue())
    content = {
        "format": FORMAT,
        "version": VERSION,
        "suprank": __version__,
        "queries": report.n_queries,
        "items": report.n_items,
        "levels": report.levels,
        "values": {key: _nan_to_null(value) for key, value in report.items()},
        "intervals": None
        if report.intervals is None
        else {key: [*map(_nan_to_null, bounds)] for key, bounds in report.intervals.items()},
        "without_positives": report.without_positives,
        "settings": report.settings,
        "per_query": None if report.per_query is None else list(report.per_query),
        "classes": None if report.classes is None else list(report.classes),
        "queries_sha256": digest,
    }
    write_file(path, (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_report(path: Path, report: type[Report]) -> Report:
    """See `Report.load`."""
    content = _read_json(path)
    try:
        archive = {} if content["queries_sha256"] is None else _read_archive(path, content["queries_sha256"])
        names, levels = content["per_query"], content["classes"]
        intervals = content["intervals"]
        return report(
            means={key: _null_to_nan(value) for key, value in content["values"].items()},
            n_queries=content["queries"],
            n_items=content["items"],
            levels=tuple(content["levels"]),
            without_positives=content["without_positives"],
            settings=content["settings"],
            per_query=None if names is None else dict(zip(names, archive["per_query"], strict=True)),
            query_ids=archive.get("query_ids"),
            classes=None if levels is None else dict(zip(levels, archive["classes"], strict=True)),
            intervals=None
            if intervals is None
            else {key: (_null_to_nan(low), _null_to_nan(high)) for key, (low, high) in intervals.items()},
        )
    except (KeyError, TypeError, AttributeError) as wrong:
        raise ValueError(f"{path} is a damaged report ({type(wrong).__name__}: {wrong}); evaluate again.") from wrong


def is_report(path: Path) -> bool:
    """Whether a file begins as those of `write_report` do."""
    with path.open("rb") as file:
        return f'"format": "{FORMAT}"'.encode() in file.read(64)


def write_file(path: Path, content: bytes) -> None:
    """Write atomically, and create missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def _archive_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.queries.npz")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as wrong:  # of JSON or of UTF-8
        raise ValueError(f"{path} is not a complete JSON file ({wrong}); give the file that Report.save wrote.") from wrong
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("version"), int):
        raise ValueError(f"{path} is JSON, but not a {FORMAT}; give the file that Report.save wrote.")
    if content["version"] > VERSION:
        raise ValueError(
            f"{path} has version {content['version']}, written by suprank {content.get('suprank')}, but this suprank "
            f"({__version__}) reads up to version {VERSION}; upgrade suprank."
        )
    return content


def _read_archive(path: Path, digest: str) -> dict[str, np.ndarray]:
    """The arrays that were saved together with the JSON file."""
    beside = _archive_path(path)
    if not beside.exists():
        raise FileNotFoundError(f"{path} has its values per query in {beside}, which is missing; move both files together.")
    if hashlib.sha256(own_file(beside).read_bytes()).hexdigest() != digest:
        raise ValueError(f"{beside} does not belong to {path}, or is damaged; move both files together, or evaluate again.")
    return read_npz(beside)


def _nan_to_null(value: float) -> float | None:
    return None if math.isnan(value) else value


def _null_to_nan(value: float | None) -> float:
    return math.nan if value is None else value
