"""Write the images and labels of a manifest as a Hugging Face dataset, or as WebDataset shards."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from suprank.data.columns import PREFIX, is_label_sets, is_list
from suprank.data.image_files import SEPARATOR, ImageFiles
from suprank.data.images import image_extension
from suprank.data.manifest import Manifest
from suprank.files.atomic import explain_full_disk

SHARD_SIZE = "500MB"
IMAGE = "image"
ROW_GROUP_BYTES = 32_000_000
"""Bytes of images in a row group of Parquet, which are in memory at a time."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}

Progress = Callable[[int, int], None]
"""Called with (images done, images in all)."""


def export_hf(
    manifest: Manifest,
    out: str | os.PathLike[str],
    *,
    shard_size: int | str = SHARD_SIZE,
    progress: Progress = lambda done, total: None,
) -> list[Path]:
    """Write Parquet shards that `datasets.load_dataset(out)` reads, with a dataset card; return the shards.

    The columns are `image` (feature Image), `label_<level>`, finest first (ClassLabel, with the ids and names of the manifest),
    and the others of the manifest except `path`. Splits keep their names. Image files are copied byte for byte, and stored
    uncompressed, so that suprank reads them in place in any order.

    `shard_size` is in bytes, or text such as "500MB". The folder is complete or absent: it is written under another name and
    renamed. An existing folder is refused unless it is empty.
    """
    limit = parse_size(shard_size)
    plan = _plan(manifest)
    with _new_folder(Path(out)) as folder:
        counts: dict[str, list[int]] = {}
        done = 0
        for split in manifest.splits:
            counts[split] = []
            rows = _split_rows(manifest, split)
            for shard, batches in enumerate(_shards(manifest, plan.files, rows, limit)):
                written = 0
                with _parquet_writer(folder / "data" / f"{split}-{shard:05d}.parquet", plan.schema) as writer:
                    for chosen, images in batches:
                        writer.write_table(plan.table(chosen, images))
                        written += len(chosen)
                        done += len(chosen)
                        progress(done, len(manifest))
                counts[split].append(written)
        _number_shards(folder / "data", counts)
        _write_card(folder, plan, counts)
    return sorted(Path(out).glob("data/*.parquet"))


def export_webdataset(
    manifest: Manifest,
    out: str | os.PathLike[str],
    *,
    shard_size: int | str = SHARD_SIZE,
    progress: Progress = lambda done, total: None,
) -> list[Path]:
    """Write shards `<split>-000000.tar` with samples of an image, its `.json` and its `.cls`; return the shards.

    A sample is named after its row in the manifest. Its JSON has the labels, finest first, and the other columns of the
    manifest except `path` and `split`; `.cls` is the id of its finest class, left out if it has none or several. Images are
    copied byte for byte. `shard_size` and the folder are as for `export_hf`.
    """
    limit = parse_size(shard_size)
    files, table = ImageFiles(manifest.root), _plain_columns(manifest)
    files.index(manifest.paths)
    classes = manifest.labels_at(manifest.levels[:1]) if manifest.levels else None
    done = 0
    with _new_folder(Path(out)) as folder:
        for split in manifest.splits:
            for shard, batches in enumerate(_shards(manifest, files, _split_rows(manifest, split), limit)):
                with tarfile.open(folder / f"{split}-{shard:06d}.tar", "w") as archive:
                    for rows, images in batches:
                        described = table.take(pa.array(rows)).to_pylist() if table.num_columns else [{}] * len(rows)
                        for row, image, entries in zip(rows.tolist(), images, described, strict=True):
                            path = manifest.paths[row].as_py()
                            _add(archive, f"{row:09d}.{image_extension(image, path)}", image)
                            if classes is not None and classes.ndim == 2 and classes[row, 0] >= 0:
                                _add(archive, f"{row:09d}.cls", str(classes[row, 0]).encode())
                            _add(archive, f"{row:09d}.json", json.dumps(entries, ensure_ascii=False).encode())
                        done += len(rows)
                        progress(done, len(manifest))
    return sorted(Path(out).glob("*.tar"))


def parse_size(size: int | str) -> int:
    """Bytes, from a number or text such as "500MB" or "1 GiB".

    Example:
        >>> parse_size("500MB"), parse_size("1.5 GiB"), parse_size(1000)
        (500000000, 1610612736, 1000)
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]I?)?B?\s*", str(size).upper())
    number = float(found[1]) * _UNITS[found[2] or ""] if found else 0.0
    if number < 1:
        raise ValueError(f"shard size {size!r} must be a number of bytes such as 500MB or 1GiB.")
    return int(number)


# Reading


def _split_rows(manifest: Manifest, split: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.flatnonzero(np.asarray(manifest.table["split"]) == split)


def _shards(
    manifest: Manifest, files: ImageFiles, rows: np.ndarray[Any, np.dtype[np.int64]], limit: int
) -> Iterator[Iterator[tuple[np.ndarray[Any, np.dtype[np.int64]], list[bytes]]]]:
    """The batches (rows, images) of each shard of about `limit` bytes. A shard has to be consumed before the next begins."""
    position = 0

    def batches() -> Iterator[tuple[np.ndarray[Any, np.dtype[np.int64]], list[bytes]]]:
        nonlocal position
        written = 0
        while position < len(rows) and written < limit:
            begin, images, size = position, [], 0
            while position < len(rows) and size < ROW_GROUP_BYTES and written + size < limit:
                path = manifest.paths[int(rows[position])].as_py()
                images.append(files.read(path))
                size += len(images[-1])
                position += 1
            written += size
            yield rows[begin:position], images

    while position < len(rows):
        before = position
        yield batches()
        assert position > before, "the batches of a shard were not consumed"


def _plain_columns(manifest: Manifest) -> pa.Table:
    """The columns besides path and split, with labels as text: a list where images have several."""
    table = manifest.table.drop_columns(["path", "split"])
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pa.string()))
        elif is_label_sets(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pa.list_(pa.string())))
        elif not _is_exported(field.type):
            raise _unsupported(field)
    return table


# Hugging Face


@dataclass(frozen=True)
class _Plan:
    """The columns of an exported dataset: arrow fields, features of `datasets`, and where each comes from."""

    manifest: Manifest
    files: ImageFiles
    schema: pa.Schema
    features: dict[str, Any]

    def table(self, rows: np.ndarray[Any, np.dtype[np.int64]], images: Sequence[bytes]) -> pa.Table:
        paths = [_file_name(path) for path in self.manifest.paths.take(pa.array(rows)).to_pylist()]
        columns: list[Any] = [pa.array([{"bytes": one, "path": path} for one, path in zip(images, paths, strict=True)])]
        chosen = self.manifest.table.take(pa.array(rows))
        for name in self.schema.names[1:]:
            column = chosen[name].combine_chunks()
            column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            columns.append(_ids(column) if name.startswith(PREFIX) else column)
        arrays = [column.cast(field.type) for column, field in zip(columns, self.schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _file_name(path: str) -> str:
    return PurePosixPath(path.rpartition(SEPARATOR)[2]).name


def _ids(column: pa.Array) -> pa.Array:
    """The class ids of a label column of a manifest, as integers or lists of integers."""
    if not is_label_sets(column.type):
        return column.indices.cast(pa.int64())
    lengths = np.diff(np.asarray(column.offsets))
    values = column.flatten().indices.cast(pa.int64())
    offsets = np.append(0, np.cumsum(np.where(np.asarray(column.is_valid()), lengths, 0)))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=column.is_null())


def _plan(manifest: Manifest) -> _Plan:
    files = ImageFiles(manifest.root)
    files.index(manifest.paths)
    fields = [pa.field(IMAGE, pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())]))]
    features: dict[str, Any] = {IMAGE: {"_type": "Image"}}
    for field in manifest.table.schema:
        if field.name in ("path", "split"):
            continue
        if field.name == IMAGE:
            raise ValueError("the manifest has a column 'image', and the images are to be called so; rename the column.")
        if field.name.startswith(PREFIX):
            names = list(manifest.names[field.name.removeprefix(PREFIX)])
            label = {"names": names, "_type": "ClassLabel"}
            several = is_label_sets(field.type)
            features[field.name] = {"feature": label, "_type": "List"} if several else label
            fields.append(pa.field(field.name, pa.list_(pa.int64()) if several else pa.int64()))
        elif _is_exported(kind := field.type.value_type if pa.types.is_dictionary(field.type) else field.type):
            fields.append(pa.field(field.name, kind))
            features[field.name] = _feature(fields[-1])
        else:
            raise _unsupported(field)
    info = {"huggingface": json.dumps({"info": {"features": features}})}
    return _Plan(manifest, files, pa.schema(fields, metadata=info), features)


_DTYPES = {pa.string(): "string", pa.large_string(): "large_string", pa.float64(): "float64", pa.float32(): "float32"}
_DTYPES |= {pa.bool_(): "bool", pa.float16(): "float16", pa.null(): "null"}


def _dtype(kind: pa.DataType) -> str | None:
    """The name that `datasets` has for a type of arrow; None if this is no plain value."""
    return str(kind) if pa.types.is_integer(kind) else _DTYPES.get(kind)


def _is_exported(kind: pa.DataType) -> bool:
    return _dtype(kind.value_type if is_list(kind) else kind) is not None


def _feature(field: pa.Field) -> dict[str, Any]:
    if is_list(field.type):
        return {"feature": {"dtype": _dtype(field.type.value_type), "_type": "Value"}, "_type": "List"}
    return {"dtype": _dtype(field.type), "_type": "Value"}


def _unsupported(field: pa.Field) -> ValueError:
    return ValueError(
        f"column {field.name!r} holds {field.type}, which is not exported; leave it out, or make it text, numbers or lists of "
        "these."
    )


@contextmanager
def _parquet_writer(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Images plain and uncompressed, as `datasets` writes them since version 5: each is then a range of bytes of the file."""
    path.parent.mkdir(exist_ok=True)
    leaves = {f"{IMAGE}.bytes": "NONE", f"{IMAGE}.path": "SNAPPY"}
    for field in list(schema)[1:]:
        leaves[f"{field.name}.list.element" if is_list(field.type) else field.name] = "SNAPPY"
    encoded = [leaf for leaf in leaves if leaf != f"{IMAGE}.bytes"]
    with pq.ParquetWriter(path, schema, compression=leaves, use_dictionary=encoded, write_page_index=True) as writer:
        yield writer


def _number_shards(folder: Path, counts: dict[str, list[int]]) -> None:
    """Rename `train-00000.parquet` to `train-00000-of-00003.parquet`, now that the number is known."""
    for split, shards in counts.items():
        for shard in range(len(shards)):
            name = folder / f"{split}-{shard:05d}.parquet"
            name.rename(folder / f"{split}-{shard:05d}-of-{len(shards):05d}.parquet")


def _write_card(folder: Path, plan: _Plan, counts: dict[str, list[int]]) -> None:
    from huggingface_hub import metadata_save

    manifest = plan.manifest
    levels = ", ".join(f"`{PREFIX}{level}` ({len(manifest.names[level]):,} classes)" for level in manifest.levels)
    lines = [
        "# Images and labels",
        "",
        "Written by `suprank data export hf`.",
        "",
        "| split | images | shards |",
        "|---|---:|---:|",
        *(f"| {split} | {sum(shards):,} | {len(shards)} |" for split, shards in counts.items()),
        "",
        f"Levels, finest first: {levels or 'none'}.",
        "",
    ]
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")
    sizes = {split: sum(one.stat().st_size for one in folder.glob(f"data/{split}-*")) for split in counts}
    splits = [{"name": split, "num_bytes": sizes[split], "num_examples": sum(shards)} for split, shards in counts.items()]
    data_files = [{"split": split, "path": f"data/{split}-*"} for split in counts]
    info = {"features": [_yaml_feature(name, one) for name, one in plan.features.items()], "splits": splits}
    metadata_save(
        folder / "README.md",
        {"dataset_info": info, "configs": [{"config_name": "default", "data_files": data_files}]},
    )


def _yaml_feature(name: str, feature: dict[str, Any]) -> dict[str, Any]:
    """A feature as a dataset card has it."""
    if feature["_type"] == "List":
        inner = _yaml_feature("", feature["feature"])["dtype"]
        return {"name": name, "list": {"dtype": inner} if isinstance(inner, dict) else inner}
    if feature["_type"] == "ClassLabel":
        return {"name": name, "dtype": {"class_label": {"names": {str(i): one for i, one in enumerate(feature["names"])}}}}
    return {"name": name, "dtype": "image" if feature["_type"] == "Image" else feature["dtype"]}


# Files


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)  # of 1970 and nobody, so that equal content gives equal bytes
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which is renamed to `out` at the end of the block, or removed if the block fails."""
    if out.name in ("", ".."):
        raise ValueError(f"{out} is the folder you are in, or one above it, which cannot be replaced; name a new folder in it.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} exists and is not an empty folder; name a new one, or delete it.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with explain_full_disk(out), tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as private:
        folder = Path(private, out.name)
        folder.mkdir()
        yield folder
        if out.is_dir():
            out.rmdir()
        folder.rename(out)
