"""The samples of WebDataset shards, whose images stay where they are: members of .tar files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from suprank.data.archives import Archive
from suprank.data.image_files import SEPARATOR
from suprank.data.importers.folder import IMAGES
from suprank.data.members import Members
from suprank.files.reading import reading

IMAGE = "image"
_SAMPLE = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_TEXT = ("cls", "txt", "text", "id", "index")
_JSON = ("json", "jsn")


def read_samples(path: Path, image: str | None = None) -> tuple[pa.Table, list[str]]:
    """The samples of a shard in its order, and the columns of images, which hold paths such as `shard.tar::member`.

    A sample is all members with one name up to the first dot. Their columns are those of its .cls, .txt and .json. The image
    of a sample that has one is `image`, because .jpg and .png may occur in one shard; `image` may name another column.
    """
    archive = Archive(path)
    assert isinstance(archive.members, Members)
    samples: dict[str, dict[str, str]] = {}
    for index in np.argsort(archive.members.entries[:, 0], kind="stable").tolist():
        member = archive.members.name_at(index)
        found = _SAMPLE.match(member)
        if found and not any(part.startswith((".", "__MACOSX")) for part in member.split("/")):
            samples.setdefault(found[1], {})[found[2].lower()] = member
    rows: list[dict[str, Any]] = []
    columns: dict[str, None] = {}
    for key, fields in samples.items():
        pictures = {one: f"{path.absolute()}{SEPARATOR}{name}" for one, name in fields.items() if _is_image(one)}
        if not pictures:
            raise ValueError(f"{path}: sample {key!r} has no image, only {', '.join(sorted(fields))}; leave it out.")
        if len(pictures) == 1 and image in (None, IMAGE):
            pictures = {IMAGE: next(iter(pictures.values()))}
        columns |= dict.fromkeys(pictures)
        rows.append(_annotations(archive, fields) | pictures)
    with reading(path, "WebDataset shard with names in UTF-8"):
        return _table(rows), list(columns)


def _is_image(extension: str) -> bool:
    return f".{extension.rpartition('.')[2]}" in IMAGES


def _annotations(archive: Archive, fields: Mapping[str, str]) -> dict[str, Any]:
    """What the members beside an image say: class, text, and the entries of JSON that are values or lists of them."""
    found: dict[str, Any] = {}
    for one, member in fields.items():
        if one in _TEXT:
            found[one] = archive.read(member).decode(errors="replace").strip()
        elif one in _JSON:
            with reading(f"{archive.path}: {member}", "JSON file"):
                entries = json.loads(archive.read(member))
            if isinstance(entries, dict):
                found = {name: value for name, value in entries.items() if _is_plain(value)} | found
    return found


def _is_plain(value: Any) -> bool:
    plain = (str, int, float, bool, type(None))
    return isinstance(value, plain) or (isinstance(value, list) and all(isinstance(one, plain) for one in value))


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A table of rows that may lack columns. A column of mixed types becomes text, or lists of text if it has lists."""
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # the last for numbers of more than 64 bits
            if any(isinstance(value, list) for value in values):
                values = [value if value is None or isinstance(value, list) else [value] for value in values]
                columns[name] = pa.array([None if value is None else [str(one) for one in value] for value in values])
            else:
                columns[name] = pa.array([None if value is None else str(value) for value in values])
    return pa.table(columns)
