"""Hugging Face datasets: from the Hub, from folders that `datasets` writes, Parquet and Arrow files, and WebDataset shards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.data.archives import write_zip
from suprank.data.columnar import ROW_GROUP, ColumnMembers
from suprank.data.columns import PREFIX, is_list, require_column
from suprank.data.image_files import SEPARATOR, ImageFiles, archive_names
from suprank.data.importers.base import Importer, ImportResult, describe_manifests
from suprank.data.importers.dataset_files import ARROW, PARQUET, WEBDATASET, DatasetFiles, files_in_folder, manifest_splits
from suprank.data.importers.hub import REPOSITORY, download_dataset
from suprank.data.importers.shards import SPLIT, Rows, read_rows
from suprank.data.manifest import Manifest
from suprank.files.binary import open_parquet

LAYOUT = """\
org/name                              a dataset of the Hub: Parquet files, WebDataset shards or a folder of images
a folder of `save_to_disk`, a folder of .parquet, .arrow or .tar files, or one such file
a folder of images                    with metadata.csv or metadata.jsonl, or in folders named after their classes"""

LABELS = ("label", "labels", "cls", "class", "category", "target")
"""Columns that are taken for labels even if they hold numbers without names."""

_FILES = {".parquet": PARQUET, ".arrow": ARROW, ".tar": WEBDATASET}
_LARGE_GROUP = 1 << 20  # bytes to decode for one image that are worth a word

Progress = Callable[[str, int, int], None]
"""Called with (what is done, done, total)."""


def _silent(what: str, done: int, total: int) -> None:
    pass


def read(source: str | Path) -> dict[str, Manifest]:
    """The manifest of a dataset, with the choices that `import_hf` makes by default."""
    return dict(import_hf(source).manifests)


def import_hf(
    source: str | Path,
    *,
    image: str | None = None,
    levels: Sequence[str] | None = None,
    id: str | None = None,
    splits: Sequence[str] | None = None,
    config: str | None = None,
    revision: str | None = None,
    label_separator: str | None = None,
    copy: str | Path | None = None,
    resplit: Callable[[Manifest], Manifest] | None = None,
    progress: Progress = _silent,
) -> ImportResult:
    """The manifest of a dataset of the Hub (`org/name`), or of a local folder or file, and sentences on what was chosen.

    Images stay where they are: paths are those of files, or `shard.tar::member`, or `shard.parquet::image/17` for the image
    in row 17. `copy`, a folder, copies the images of Parquet files whose columns are compressed into .zip archives, which
    are faster to read in random order.

    `image` is the image column, needed if there are several. `levels` are the label columns, finest first; by default those
    called `label_<level>`, or else columns with class names, or else text that repeats, as long as they form a tree. `id` is a
    column of image ids; by default `id`, if its values differ. `splits` are those to use, such as "train" or
    "validation=test"; see `manifest_splits`. `config` and `revision` are those of the Hub. Class ids are those of the dataset
    if it names its classes. `resplit` makes another split of the manifest, such as `holdout_classes`.
    """
    root, files, sentences = _find_source(source, config, splits, revision, progress)
    rows = read_rows(root, files, image, lambda done, total: progress("reading labels", done, total))
    about = str(source)
    picture = _image_column(rows, image, about)
    _check_images(rows, picture, about)
    chosen, reasons = _levels(rows, levels, label_separator, about)
    columns = {"path": rows.table[picture], "split": rows.table[SPLIT]}
    columns |= {PREFIX + level: _labels(rows, column, about) for level, column in chosen.items()}
    _check_labeled(columns, about)
    ids, id_sentences = _ids(rows, id, about)
    columns |= ids | _others(rows, {*rows.images, SPLIT, *chosen.values(), id})
    names = {level: rows.class_names[column] for level, column in chosen.items() if _usable_names(rows, column)}
    manifest = Manifest.from_columns(
        columns, root=root, levels=list(chosen), about=about, names=names, label_separator=label_separator
    )
    sentences += [*reasons, *id_sentences]
    if copy is not None:
        manifest, copied = copy_images(manifest, Path(copy), progress)
        sentences += copied
    else:
        sentences += _slow_files(manifest)
    manifests = {"": manifest if resplit is None else resplit(manifest)}
    return ImportResult(manifests, (*sentences, *describe_manifests(manifests, {})))


def _find_source(
    source: str | Path, config: str | None, splits: Sequence[str] | None, revision: str | None, progress: Progress
) -> tuple[Path, DatasetFiles, list[str]]:
    """The folder of the dataset, its files by split of the manifest, and sentences on the splits."""
    path = Path(source)
    if path.exists():
        if revision is not None:
            raise ValueError(
                f"{path} is a local {'folder' if path.is_dir() else 'file'}, which has no revisions; leave it out."
            )
        files = files_in_folder(path, config) if path.is_dir() else _one_file(path, config)
        mapping, sentences = manifest_splits(files.splits, splits, str(path))
        return path if path.is_dir() else path.parent, files.select(mapping), sentences
    if not REPOSITORY.fullmatch(str(source)):
        raise FileNotFoundError(
            f"{source} does not exist; give a folder, a .parquet, .arrow or .tar file, or a dataset of the Hub such as "
            "org/name."
        )
    return download_dataset(
        str(source),
        config=config,
        splits=splits,
        revision=revision,
        progress=lambda done, total: progress("downloading", done, total),
    )


def _one_file(path: Path, config: str | None) -> DatasetFiles:
    if path.suffix.lower() not in _FILES:
        raise ValueError(f"{path} is not a folder, nor a {', '.join(_FILES)} file.")
    if config is not None:
        raise ValueError(f"{path} is a file, which has no configuration {config!r}; leave it out.")
    return DatasetFiles(_FILES[path.suffix.lower()], {"train": [path.name]})


# Columns


def _image_column(rows: Rows, image: str | None, about: str) -> str:
    if image is not None:
        require_column([name for name in rows.table.column_names if name != SPLIT], image, about)
        if image not in rows.images:
            raise ValueError(
                f"{about}: column {image!r} holds {rows.table[image].type}, not images; "
                + (f"the image columns are {', '.join(rows.images)}." if rows.images else "it has no image column.")
            )
        return image
    if not rows.images:
        addresses = _address_column(rows.table)
        if addresses is not None:
            raise ValueError(
                f"{about} has no image column: {addresses!r} holds addresses of images. Download them first, for example with "
                f"img2dataset, which writes WebDataset shards."
            )
        listed = ", ".join(name for name in rows.table.column_names if name != SPLIT)
        raise ValueError(f"{about} has no image column; its columns are {listed}. If one holds paths, name it: --image COLUMN.")
    if len(rows.images) > 1:
        raise ValueError(f"{about} has several image columns ({', '.join(rows.images)}); choose one with image (--image).")
    return rows.images[0]


def _address_column(table: pa.Table) -> str | None:
    """The first column of text that begins with the address of something on the web."""
    texts = [name for name in table.column_names if _is_text(table[name].type)]
    first = {name: table[name].drop_null().slice(0, 1).to_pylist() for name in texts}
    return next((name for name, cells in first.items() if cells and cells[0].startswith(("http://", "https://"))), None)


def _check_images(rows: Rows, picture: str, about: str) -> None:
    blank = np.flatnonzero(rows.table[picture].is_null())
    if len(blank):
        raise ValueError(
            f"{about}: {len(blank):,} of {rows.table.num_rows:,} rows have no image in {picture!r}, the first is row "
            f"{blank[0]}; leave them out (`dataset.filter`)."
        )


def _check_labeled(columns: dict[str, pa.Array], about: str) -> None:
    """Raise if a split has no labels at all, as the test images of a competition."""
    finest = next((name for name in columns if name.startswith(PREFIX)), None)
    if finest is None:
        return
    for split in pc.unique(columns["split"]).to_pylist():
        labels = columns[finest].filter(pc.equal(columns["split"], split))
        if split != "distractor" and labels.null_count == len(labels):
            raise ValueError(
                f"{about}: the images of split {split} have no labels; name the splits to use with splits (--split), such as "
                f"--split train --split validation=test."
            )


def _levels(rows: Rows, levels: Sequence[str] | None, separator: str | None, about: str) -> tuple[dict[str, str], list[str]]:
    """Level → its column, finest first, and a sentence on the choice if nobody made it."""
    names = [name for name in rows.table.column_names if name not in rows.images and name != SPLIT]
    if levels is not None:
        chosen = {}
        for level in levels:
            column = next((name for name in (level, PREFIX + level) if name in names), level)
            require_column(names, column, about)
            _check_label_type(rows, column, about)
            if column.removeprefix(PREFIX) in chosen:
                raise ValueError(f"{about}: level {level!r} is named twice; name each level once, finest first.")
            chosen[column.removeprefix(PREFIX)] = column
        return chosen, []
    ours = [name for name in names if name.startswith(PREFIX)]
    if ours:
        return {name.removeprefix(PREFIX): name for name in ours}, []
    found = _tree(rows, _candidates(rows, names), separator, about)
    if not found:
        raise ValueError(
            f"{about} has no column of class names; its columns are {', '.join(names) or 'none besides the images'}. Name the "
            f"label columns with levels (--level), finest first."
        )
    left = [name for name in names if name not in found and rows.class_names.get(name)]
    also = f"; not used: {', '.join(left)}" if left else ""
    return {name: name for name in found}, [f"levels, finest first: {', '.join(found)}{also} (choose with --level)"]


def _candidates(rows: Rows, names: Sequence[str]) -> list[str]:
    """Columns with class names; or else columns that are called like labels; or else text that repeats."""
    classes = [name for name in names if rows.class_names.get(name)]
    if classes:
        return classes
    called = [name for name in names if name.lower() in LABELS and _label_type(rows.table[name].type)]
    if called:
        return called[:1]
    texts = [name for name in names if _is_text(rows.table[name].type)]
    return [name for name in texts if 1 < pc.count_distinct(rows.table[name]).as_py() <= rows.table.num_rows // 2]


def _tree(rows: Rows, candidates: Sequence[str], separator: str | None, about: str) -> list[str]:
    """The candidates, most classes first, as long as every class has one parent in the next."""
    coded = {}
    for name in candidates:
        if is_list(rows.table[name].type) or separator is not None:  # which parent belongs to which label is not known here
            return [name]
        coded[name] = np.asarray(pc.fill_null(_labels(rows, name, about).dictionary_encode().indices, -1))
    classes = {name: len(np.unique(codes[codes >= 0])) for name, codes in coded.items()}
    ordered = sorted(coded, key=lambda name: -classes[name])
    chosen = ordered[:1]
    for name in ordered[1:]:
        fine, coarse = np.unique(np.stack([coded[chosen[-1]], coded[name]]), axis=1)
        blank_above = np.any((fine >= 0) & (coarse < 0))
        if classes[name] < classes[chosen[-1]] and len(np.unique(fine)) == len(fine) and not blank_above:
            chosen.append(name)
    return chosen


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _label_type(kind: pa.DataType) -> bool:
    inner = kind.value_type if is_list(kind) or pa.types.is_dictionary(kind) else kind
    return bool(_is_text(inner) or pa.types.is_dictionary(inner) or pa.types.is_integer(inner) or pa.types.is_null(inner))


def _check_label_type(rows: Rows, column: str, about: str) -> None:
    kind = rows.table[column].type
    if not _label_type(kind):
        raise ValueError(
            f"{about}: column {column!r} holds {kind}, which is no label; labels are class names, text, whole numbers, or "
            f"lists of these."
        )


def _usable_names(rows: Rows, column: str) -> bool:
    names = rows.class_names.get(column) or ()
    return bool(names) and len(set(names)) == len(names) and pa.types.is_integer(_inner(rows.table[column].type))


def _inner(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if is_list(kind) else kind


def _labels(rows: Rows, column: str, about: str) -> pa.Array:
    """The labels of a column as text, or as lists of text: class ids become names, and −1 blank."""
    cells = rows.table[column].combine_chunks()
    cells = cells.chunk(0) if isinstance(cells, pa.ChunkedArray) else cells
    if is_list(cells.type):
        members = _names_of_ids(cells.flatten(), rows.class_names.get(column) or (), column, about)
        lengths = np.asarray(pc.fill_null(pc.list_value_length(cells), 0), np.int64)
        keep = np.asarray(members.is_valid())
        owners = np.repeat(np.arange(len(lengths)), lengths)[keep]
        offsets = np.append(0, np.cumsum(np.bincount(owners, minlength=len(lengths))))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), members.filter(pa.array(keep)))
    return _names_of_ids(cells, rows.class_names.get(column) or (), column, about)


def _names_of_ids(cells: pa.Array, names: Sequence[str], column: str, about: str) -> pa.Array:
    if not pa.types.is_integer(cells.type):
        return cells.cast(pa.string()) if not pa.types.is_dictionary(cells.type) else cells
    ids = pc.if_else(pc.equal(cells, -1), pa.scalar(None, cells.type), cells)
    bounds = pc.min_max(ids).as_py()
    if bounds["min"] is not None and names and not 0 <= bounds["min"] <= bounds["max"] < len(names):
        raise ValueError(
            f"{about}: column {column!r} holds class {bounds['min'] if bounds['min'] < 0 else bounds['max']}, but names "
            f"{len(names):,} classes; correct the names or the labels."
        )
    return pa.array(names, pa.string()).take(ids) if names else ids.cast(pa.string())


def _ids(rows: Rows, id: str | None, about: str) -> tuple[dict[str, pa.Array], list[str]]:
    """The column of image ids: the one named; or `id`, if it is that of a manifest or its values differ."""
    names = rows.table.column_names
    if id is not None:
        require_column(names, id, about)
        return {"id": rows.table[id]}, []
    if "id" not in names:
        return {}, []
    column = rows.table["id"]
    ours = any(name.startswith(PREFIX) for name in names)
    text = _label_type(column.type) and not is_list(column.type)
    if text and not column.null_count and (ours or pc.count_distinct(column).as_py() == len(column)):
        return {"id": column}, []
    return {}, ["column id is left out, because values repeat or are blank; if equal ids mean one image, give --id id"]


def _others(rows: Rows, used: set[str | None]) -> dict[str, pa.Array]:
    """The other columns, as they are; `box` is that of a manifest."""
    others = [name for name in rows.table.column_names if name not in used and name not in ("id", "path", "split")]
    ours = any(name.startswith(PREFIX) for name in rows.table.column_names)
    # Of a manifest that was exported, `cls` of WebDataset repeats the finest label.
    kept = [name for name in others if not name.startswith(PREFIX) and (name != "box" or ours) and (name != "cls" or not ours)]
    return {name: rows.table[name] for name in kept}


# Images in Parquet files


def _slow_files(manifest: Manifest) -> list[str]:
    """A sentence if images are in compressed columns, of which a whole row group is decoded to read one image."""
    largest = 0
    for name in _compressed_files(manifest):
        with open_parquet(manifest.root / name) as file:
            metadata = file.metadata
        sizes = [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
        largest = max([largest, *sizes])
    if largest < _LARGE_GROUP:
        return []
    return [
        f"images are in compressed Parquet columns: reading one in random order decodes up to {largest / 1e6:,.0f} MB. "
        f"Embedding and evaluating read in order and are not slowed down; for training, copy the images once with --copy "
        "FOLDER."
    ]


def _compressed_files(manifest: Manifest) -> list[str]:
    """The Parquet files of a manifest whose images are read by row groups."""
    files = ImageFiles(manifest.root)
    found = []
    for name in archive_names(manifest.paths):
        members = files.archive(name).members if name.endswith(".parquet") else None
        if isinstance(members, ColumnMembers) and any(rows.method == ROW_GROUP for rows in members.columns.values()):
            found.append(name)
    return found


def copy_images(manifest: Manifest, folder: Path, progress: Progress = _silent) -> tuple[Manifest, list[str]]:
    """Copy the images of Parquet and Arrow files into .zip archives in a folder, one for each file; return the new manifest.

    An archive that is complete is not written again, so that a copy that was stopped continues. Images in other places would
    have two roots, so they are refused.
    """
    names = archive_names(manifest.paths)
    wrong = [path for path in names if Path(path).suffix not in (".parquet", ".arrow")]
    inside = pc.match_substring(manifest.paths, SEPARATOR)
    if wrong or not pc.all(inside).as_py():
        where = wrong[0] if wrong else manifest.paths.filter(pc.invert(inside))[0].as_py()
        raise ValueError(f"{where} is read in place as fast as a copy; leave out --copy.")
    parts = pc.split_pattern(manifest.paths, SEPARATOR, max_splits=1)
    archives, members = pc.list_element(parts, 0), pc.list_element(parts, 1)
    copies = {name: f"{name}.zip" for name in names}
    reader, done = ImageFiles(manifest.root), 0
    for name, copy in copies.items():
        rows = members.filter(pc.equal(archives, name)).unique().to_pylist()
        status = (manifest.root / name).stat()
        listed = hashlib.sha256("\n".join(rows).encode()).hexdigest()
        stamp = f"{len(rows)} images of {name}, {status.st_size} bytes, {status.st_mtime_ns}, {listed}".encode()
        (folder / copy).parent.mkdir(parents=True, exist_ok=True)
        advance = partial(_advance, progress, done, len(manifest))
        write_zip(folder / copy, _images(reader, name, rows, advance), stamp)
        done += len(rows)
        progress("copying", done, len(manifest))
    paths = pa.array(copies.values()).take(pc.index_in(archives, pa.array(copies.keys())))
    moved = manifest.with_columns(path=pc.binary_join_element_wise(paths, members, SEPARATOR))
    return Manifest(moved.table, folder, moved.levels), [f"copied the images to {folder}"]


def _advance(progress: Progress, before: int, total: int, count: int) -> None:
    progress("copying", before + count, total)


def _images(
    reader: ImageFiles, archive: str, members: Sequence[str], advance: Callable[[int], None]
) -> Iterator[tuple[str, bytes]]:
    for count, member in enumerate(members):
        yield member, reader.read(f"{archive}{SEPARATOR}{member}")
        advance(count + 1)


HF = Importer(name="hf", title="a Hugging Face dataset, or WebDataset shards", layout=LAYOUT, read=read, published={})
