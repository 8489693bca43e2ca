"""Read the rows of a dataset's files, without the images: Parquet and Arrow, WebDataset shards, folders of images."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.data.archives import Archive
from suprank.data.columnar import holds_bytes, read_arrow
from suprank.data.columns import is_list
from suprank.data.image_files import SEPARATOR, ImageFiles
from suprank.data.importers.dataset_files import (
    ARROW,
    IMAGEFOLDER,
    METADATA,
    PARQUET,
    WEBDATASET,
    DatasetFiles,
    schema_classes,
    schema_features,
)
from suprank.data.importers.folder import IMAGES
from suprank.files.binary import open_parquet, read_columns
from suprank.files.reading import reading
from suprank.files.tables import parse_table

IMAGE = "image"
SPLIT = "__split__"
"""The column of `Rows.table` with the split of each row."""

_SAMPLE = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_TEXT = ("cls", "txt", "text", "id", "index")
_JSON = ("json", "jsn")
_ROWS_AT_ONCE = 256
_ADDRESS = re.compile(r"^(https?|s3|gs|hf|ftp)://")

Progress = Callable[[int, int], None]
"""Called with (files done, files in all)."""


@dataclass(frozen=True)
class Rows:
    """The rows of all files: a table whose image columns hold paths of a manifest, and the class names of its columns."""

    table: pa.Table
    images: Sequence[str]
    class_names: Mapping[str, Sequence[str]] = field(default_factory=dict)


def read_rows(root: Path, files: DatasetFiles, image: str | None = None, progress: Progress = lambda done, total: None) -> Rows:
    """Read everything but the images. `image` names the image column, if there are several, or if it holds paths."""
    if files.kind == IMAGEFOLDER:
        return _read_folder(root, files, progress)
    readers = {PARQUET: _read_columns, ARROW: _read_columns, WEBDATASET: _read_samples}
    parts: list[Rows] = []
    listed = [(split, name) for split, names in files.splits.items() for name in names]
    for done, (split, name) in enumerate(listed):
        progress(done, len(listed))
        try:
            part = readers[files.kind](root, name, image)
        except UnicodeEncodeError as error:
            raise ValueError(f"{root / name} has a member whose name is not UTF-8 ({error}); rename it.") from error
        if part.table.num_rows:
            split_column = pa.repeat(split, part.table.num_rows)
            parts.append(Rows(part.table.append_column(SPLIT, split_column), part.images, part.class_names))
    progress(len(listed), len(listed))
    if not parts:
        raise ValueError(f"{root}: the files have no rows.")
    return _join_parts(parts, files.class_names, root)


def _join_parts(parts: Sequence[Rows], class_names: Mapping[str, Sequence[str]], root: Path) -> Rows:
    names: dict[str, Sequence[str]] = {}
    for part in parts:
        for column, classes in part.class_names.items():
            if names.setdefault(column, classes) != classes:
                raise ValueError(f"{root}: the files name the classes of {column!r} differently; convert them to one list.")
    try:
        table = pa.concat_tables([part.table for part in parts], promote_options="permissive").combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"{root}: columns of one name have different types in its files ({error}); write one type.") from error
    images = list(dict.fromkeys(column for part in parts for column in part.images))
    return Rows(table, images, dict(class_names) | names)  # a card may be older than the files


# Parquet and Arrow


def _read_columns(root: Path, name: str, image: str | None) -> Rows:
    path = root / name
    parquet = path.suffix.lower() == ".parquet"
    mapped = None if parquet else read_arrow(path)
    source: Any = open_parquet(path) if mapped is None else reading(path, "Arrow file")
    with source as file:
        schema = file.schema_arrow if mapped is None else mapped.schema
        features = schema_features(schema.metadata)
        stored = _byte_columns(schema, features, image)
        as_paths = [name for name in _path_columns(schema, features, image) if name not in stored]
        wanted = [one.name for one in schema if _is_label_like(one.type)]
        table = read_columns(file, wanted) if mapped is None else mapped.select(wanted)
        rows = (file.metadata if mapped is None else mapped).num_rows
        if not wanted:  # a table without columns would have no rows
            table = pa.table({})
        for column in stored:
            paths = _stored_paths(root, name, column, rows, mapped)
            table = table.append_column(column, paths) if table.num_columns else pa.table({column: paths})
        for column in as_paths:
            index = table.column_names.index(column)
            table = table.set_column(index, column, _file_paths(table[column], root, name, column))
    table = table.replace_schema_metadata(None)
    return Rows(table, [*stored, *as_paths], schema_classes(schema.metadata))


def _byte_columns(schema: pa.Schema, features: Mapping[str, Any], image: str | None) -> list[str]:
    """The columns with the bytes of images: those of the feature Image, or all with bytes if none is; and the one named."""
    found = [one.name for one in schema if holds_bytes(one.type)]
    kinds = {name: feature.get("_type") if isinstance(feature, dict) else None for name, feature in features.items()}
    if "Image" in kinds.values():
        return [name for name in found if kinds.get(name) == "Image" or name == image]
    return [name for name in found if kinds.get(name) in (None, "Value") or name == image]


def _path_columns(schema: pa.Schema, features: Mapping[str, Any], image: str | None) -> list[str]:
    """The columns of text that hold paths of images: those of the feature Image, and the one that was named."""
    named = [one for one, feature in features.items() if isinstance(feature, dict) and feature.get("_type") == "Image"]
    text = [one.name for one in schema if pa.types.is_string(one.type) or pa.types.is_large_string(one.type)]
    return [column for column in text if column in named or column == image]


def _is_label_like(kind: pa.DataType) -> bool:
    if is_list(kind) or pa.types.is_dictionary(kind):
        return _is_label_like(kind.value_type)
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
    )


def _stored_paths(root: Path, name: str, column: str, rows: int, mapped: pa.Table | None) -> pa.Array:
    """`file::column/row` for every row with bytes; the path of a file for rows that have one instead."""
    numbers = pa.array(np.arange(rows)).cast(pa.string())
    paths = pc.binary_join_element_wise(f"{name}{SEPARATOR}{column}/", numbers, "")
    if mapped is None and _without_nulls(root / name, column):
        return paths
    if mapped is not None:
        return _paths_of_cells(mapped[column], paths, root, name, column)
    found, start = [pa.array([], pa.string())], 0
    with open_parquet(root / name) as file:
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[column]):  # not all images at once
            cells = batch.column(0)
            found.append(_paths_of_cells(cells, paths.slice(start, len(cells)), root, name, column))
            start += len(cells)
    return pa.chunked_array(found)


def _paths_of_cells(cells: Any, paths: pa.Array, root: Path, name: str, column: str) -> pa.Array:
    nothing = pa.scalar(None, pa.string())
    if not pa.types.is_struct(cells.type):
        return pc.if_else(cells.is_valid(), paths, nothing)
    inner = dict(zip((one.name for one in cells.type), cells.flatten(), strict=True))
    has_bytes = inner["bytes"].is_valid()
    if "path" not in inner or pc.all(has_bytes).as_py():
        return pc.if_else(has_bytes, paths, nothing)
    elsewhere = _file_paths(pc.if_else(has_bytes, nothing, inner["path"].cast(pa.string())), root, name, column)
    return pc.coalesce(pc.if_else(has_bytes, paths, nothing), elsewhere)


def _without_nulls(path: Path, column: str) -> bool:
    """Whether the statistics of a Parquet file say that no row lacks its bytes."""
    with open_parquet(path) as file:
        metadata = file.metadata
    leaves = [one for one in range(metadata.num_columns) if metadata.schema.column(one).path in (column, f"{column}.bytes")]
    chunks = [metadata.row_group(group).column(leaf) for group in range(metadata.num_row_groups) for leaf in leaves]
    return all(one.is_stats_set and one.statistics.has_null_count and not one.statistics.null_count for one in chunks)


def _file_paths(cells: Any, root: Path, name: str, column: str) -> pa.Array:
    """Paths relative to the root: given relative to it or to the file that lists them, or absolute and under the root."""
    beside = PurePosixPath(name).parent
    starts = tuple({f"{root.resolve().as_posix()}/", f"{root.absolute().as_posix()}/"})
    found: list[str | None] = []
    for text in cells.to_pylist():
        if text is None:
            found.append(None)
            continue
        if _ADDRESS.match(text):
            raise ValueError(
                f"column {column!r} of {root / name} holds addresses of images ({text}), not images; download them first, for "
                f"example with img2dataset, which writes WebDataset shards."
            )
        for start in starts:
            text = text.removeprefix(start)
        if text.startswith("/"):
            raise ValueError(
                f"column {column!r} of {root / name} holds the path {text}, which is not under {root}; move the images there, "
                f"or save the dataset with its images in it (`save_to_disk` and `push_to_hub` do)."
            )
        found.append(str(beside / text) if (root / beside / text).exists() else text)
    return pa.array(found, pa.string())


# WebDataset


def _read_samples(root: Path, name: str, image: str | None) -> Rows:
    """The samples of a shard in its order: a sample is all members with one name up to the first dot."""
    archive = Archive(root / name)
    members = list(archive.members)
    samples: dict[str, dict[str, str]] = {}
    for index in np.argsort(archive.members.entries[:, 0], kind="stable").tolist():  # type: ignore[union-attr]
        member = members[index]
        found = _SAMPLE.match(member)
        if found and not any(part.startswith((".", "__MACOSX")) for part in member.split("/")):
            samples.setdefault(found[1], {})[found[2].lower()] = member
    rows: list[dict[str, Any]] = []
    columns: list[str] = []
    for key, fields in samples.items():
        pictures = {one: member for one, member in fields.items() if f".{one.rpartition('.')[2]}" in IMAGES}
        if not pictures:
            raise ValueError(f"{root / name}: sample {key!r} has no image, only {', '.join(sorted(fields))}; leave it out.")
        row: dict[str, Any] = {one: f"{name}{SEPARATOR}{member}" for one, member in pictures.items()}
        if len(pictures) == 1 and (image is None or image == IMAGE):  # .jpg and .png may occur in one shard
            row = {IMAGE: next(iter(row.values()))}
        columns.extend(column for column in row if column not in columns)
        rows.append(row | _annotations(archive, fields, key, row))
    return Rows(_table(rows), columns)


def _annotations(archive: Archive, fields: Mapping[str, str], key: str, taken: Mapping[str, Any]) -> dict[str, Any]:
    """What the members beside an image say: class, text, and the entries of JSON."""
    found: dict[str, Any] = {}
    for one, member in fields.items():
        if one in _TEXT:
            found[one] = archive.read(member).decode(errors="replace").strip()
        elif one in _JSON:
            with reading(f"{archive.path}: {member}", "JSON file"):
                entries = json.loads(archive.read(member))
            if isinstance(entries, dict):
                free = {name: value for name, value in entries.items() if _is_plain(value) and name not in taken}
                found = free | found
    return found


def _is_plain(value: Any) -> bool:
    plain = (str, int, float, bool, type(None))
    return isinstance(value, plain) or (isinstance(value, list) and all(isinstance(one, plain) for one in value))


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A table of rows that may lack columns. A column of mixed types becomes text, one of lists and values is refused."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # the last for numbers of more than 64 bits
            lists = any(isinstance(value, list) for value in values)
            texts = [None if value is None else [str(one) for one in _as_list(value)] for value in values]
            columns[name] = pa.array(texts if lists else [None if one is None else str(one) for one in values])
    return pa.table(columns)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# Folders of images


def _read_folder(root: Path, files: DatasetFiles, progress: Progress) -> Rows:
    """Images with a metadata file, or else in folders named after their classes; in folders or in .zip archives."""
    reader = ImageFiles(root)
    members = {split: list(_members(reader, names)) for split, names in files.splits.items()}
    # A folder for each split is no class, so that one split has to have several; another may have images of one.
    labeled = any(len({_folder_name(name) for name in listed if _is_image(name)}) > 1 for listed in members.values())
    parts = []
    for done, (split, listed) in enumerate(members.items()):
        progress(done, len(files.splits))
        tables = [name for name in listed if PurePosixPath(name.replace(SEPARATOR, "/")).name in METADATA]
        images = [name for name in listed if _is_image(name)]
        rows = _read_metadata_files(reader, tables) if tables else _folder_rows(images, labeled)
        if len(files.splits) > 1 and tables:  # a table above the folders of the splits lists the images of all
            rows = Rows(rows.table.filter(pc.is_in(rows.table[rows.images[0]], value_set=pa.array(images))), rows.images)
        if rows.table.num_rows:
            column = pa.repeat(split, rows.table.num_rows)
            parts.append(Rows(rows.table.append_column(SPLIT, column), rows.images))
    progress(len(files.splits), len(files.splits))
    if not parts:
        raise ValueError(f"{root} has no images; their names end in {', '.join(sorted(IMAGES))}.")
    return _join_parts(parts, files.class_names, root)


def _members(reader: ImageFiles, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if name.lower().endswith(".zip"):
            inside = (one for one in reader.archive(name).members if not one.startswith("__MACOSX"))
            yield from (f"{name}{SEPARATOR}{member}" for member in inside)
        else:
            yield name


def _is_image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in IMAGES


def _read_metadata_files(reader: ImageFiles, tables: Sequence[str]) -> Rows:
    """The rows of metadata files; `file_name` is relative to the file, and `mask_file_name` makes an image column `mask`."""
    parts, images = [], []
    for name in tables:
        table = _metadata_table(reader, name)
        folder = name[: -len(PurePosixPath(name.replace(SEPARATOR, "/")).name)]
        pictures = [column for column in table.column_names if column == "file_name" or column.endswith("_file_name")]
        if not pictures:
            raise ValueError(
                f"{reader.root / name} has no column 'file_name' with the paths of the images, only "
                f"{', '.join(table.column_names)}; add it, or use `suprank data import csv --path COLUMN`."
            )
        for column in pictures:
            paths = pc.binary_join_element_wise(folder, table[column].cast(pa.string()), "")
            called = IMAGE if column == "file_name" else column.removesuffix("_file_name")
            table = table.set_column(table.column_names.index(column), called, paths)
            images.append(called)
        parts.append(table)
    joined = pa.concat_tables(parts, promote_options="permissive")
    return Rows(joined, list(dict.fromkeys(images)))


def _metadata_table(reader: ImageFiles, name: str) -> pa.Table:
    data, about = reader.read(name), str(reader.root / name)
    if not name.endswith(".jsonl"):
        return parse_table(data, about, PurePosixPath(name).suffix).table.replace_schema_metadata(None)
    with reading(about, "list of images"):
        rows = [json.loads(line) for line in data.decode("utf-8-sig").split("\n") if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{about} has a line that is not a JSON object; write one for each image.")
    return _table([{key: value for key, value in row.items() if _is_plain(value)} for row in rows])


def _folder_rows(images: Iterable[str], labeled: bool) -> Rows:
    paths = sorted(images)
    columns = {IMAGE: pa.array(paths, pa.string())}
    if labeled:
        columns["label"] = pa.array([_folder_name(path) for path in paths], pa.string())
    return Rows(pa.table(columns), [IMAGE])


def _folder_name(path: str) -> str | None:
    """The folder that an image is in; None at the top of the dataset or of an archive, whose name is no class."""
    return PurePosixPath(path.rpartition(SEPARATOR)[2]).parent.name or None
