"""Write the images and labels of a manifest as a Hugging Face dataset, or as WebDataset shards."""

from __future__ import annotations

import os
import re
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from suprank.data.columns import PREFIX, decode_dictionaries, is_label_sets
from suprank.data.image_files import SEPARATOR, ImageFiles
from suprank.data.images import image_extension
from suprank.data.manifest import Manifest
from suprank.files.atomic import explain_full_disk
from suprank.system.progress import Progress, progress_function

SHARD_SIZE = "500MB"
IMAGE = "image"
ROW_GROUP_BYTES = 32_000_000
"""Bytes of images in a row group of Parquet, which are in memory at a time."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def export_manifest(
    manifest: Manifest,
    out: str | os.PathLike[str],
    *,
    format: Literal["hf", "webdataset"] = "hf",
    shard_size: int | str = SHARD_SIZE,
    progress: bool | Progress = True,
) -> list[Path]:
    """Write a folder with `data/<split>-00000-of-00003.parquet`, or `.tar`, and so on, and return these shards.

    `datasets.load_dataset(out)` reads both, and `webdataset` the second. Image files are copied byte for byte. "hf" writes the
    columns `image`, `label_<level>`, finest first, as ClassLabel with the ids and names of the manifest, and its other columns.
    "webdataset" writes samples, named after the row in the manifest, of the image, a .json of labels and other columns, and a
    .cls with the id of the finest class if there is one.

    `shard_size` is in bytes, or text such as "500MB". The folder is complete or absent: it is written under another name and
    renamed. An existing folder is refused unless it is empty. `progress` draws a
    bar of the images, or is called with (done, total).
    """
    limit, files, done = parse_size(shard_size), ImageFiles(manifest.root), 0
    files.index(manifest.paths)
    show = progress_function(progress, "exporting")
    writers: dict[str, type[_ParquetShard] | type[_TarShard]] = {"hf": _ParquetShard, "webdataset": _TarShard}
    if format not in writers:
        raise ValueError(f"format {format!r} must be one of {', '.join(writers)}.")
    writer_class = writers[format]
    with _new_folder(Path(out)) as folder:
        (folder / "data").mkdir()
        for split in manifest.splits:
            rows = deque(np.flatnonzero(np.asarray(manifest.table["split"]) == split).tolist())
            shards: list[Path] = []
            while rows:
                shards.append(folder / "data" / f"{split}-{len(shards):05d}.{writer_class.extension}")
                with closing(writer_class(shards[-1], manifest)) as writer:
                    while rows and writer.size < limit:
                        row = rows.popleft()
                        writer.write(row, files.read(manifest.paths[row].as_py()))
                        done += 1
                        show(done, len(manifest))
            for shard in shards:  # now that their number is known
                shard.rename(shard.with_stem(f"{shard.stem}-of-{len(shards):05d}"))
    return sorted(Path(out, "data").iterdir())


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


class _ParquetShard:
    """A Parquet file of images and the columns of a manifest, with the features that `datasets` writes into its schema."""

    extension = "parquet"

    def __init__(self, path: Path, manifest: Manifest) -> None:
        import datasets

        if IMAGE in manifest.table.column_names:
            raise ValueError("the manifest has a column 'image', and the images are to be called so; rename the column.")
        self._manifest, self._waiting, self.size = manifest, 0, 0
        self._rows: list[int] = []
        self._images: list[bytes] = []
        table = decode_dictionaries(manifest.table.slice(0, 1).drop_columns(["path", "split"]))
        features = {IMAGE: datasets.Image(), **datasets.Features.from_arrow_schema(table.schema)}
        for level in manifest.levels:
            label = datasets.ClassLabel(names=list(manifest.names[level]))
            several = is_label_sets(manifest.table[PREFIX + level].type)
            features[PREFIX + level] = datasets.List(label) if several else label
        self._schema = datasets.Features(features).arrow_schema
        self._file = pq.ParquetWriter(path, self._schema, use_dictionary=False)

    def write(self, row: int, image: bytes) -> None:
        self._rows.append(row)
        self._images.append(image)
        self._waiting, self.size = self._waiting + len(image), self.size + len(image)
        if self._waiting >= ROW_GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        table = self._manifest.take(self._rows).table
        names = [PurePosixPath(path.rpartition(SEPARATOR)[2]).name for path in table["path"].to_pylist()]
        images = [{"bytes": image, "path": name} for image, name in zip(self._images, names, strict=True)]
        columns = {name: _ids(table[name]) if name.startswith(PREFIX) else table[name] for name in self._schema.names[1:]}
        arrays = [column.cast(self._schema.field(name).type) for name, column in columns.items()]
        self._file.write_table(pa.Table.from_arrays([pa.array(images), *arrays], schema=self._schema))
        self._rows, self._images, self._waiting = [], [], 0

    def close(self) -> None:
        if self._rows:
            self._write_group()
        self._file.close()


class _TarShard:
    """A shard of WebDataset."""

    extension = "tar"

    def __init__(self, path: Path, manifest: Manifest) -> None:
        try:
            from webdataset import TarWriter
        except ImportError as error:
            text = 'WebDataset shards are written by webdataset; pip install "suprank[export]"'
            raise ImportError(text, name="webdataset") from error
        self._manifest, self.size = manifest, 0
        self._classes = manifest.labels_at(manifest.levels[:1]) if manifest.levels and not manifest.has_label_sets else None
        self._file = TarWriter(str(path), mtime=0.0)  # of 1970, so that equal content gives equal bytes

    def write(self, row: int, image: bytes) -> None:
        path = self._manifest.paths[row].as_py()
        known = self._manifest.table.slice(row, 1).drop_columns(["path", "split"]).to_pylist() or [{}]
        sample = {"__key__": f"{row:09d}", image_extension(image, path): image, "json": known[0]}
        if self._classes is not None and self._classes[row, 0] >= 0:
            sample["cls"] = int(self._classes[row, 0])
        self._file.write(sample)
        self.size += len(image)

    def close(self) -> None:
        self._file.close()


def _ids(column: pa.ChunkedArray) -> pa.Array:
    """The class ids of a label column of a manifest, as integers or lists of integers."""
    column = column.combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    if not is_label_sets(column.type):
        return column.indices
    lengths = np.where(np.asarray(column.is_valid()), np.diff(np.asarray(column.offsets)), 0)
    offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
    return pa.ListArray.from_arrays(offsets, column.flatten().indices, mask=column.is_null())


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
