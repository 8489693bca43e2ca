"""Hugging Face datasets: of the Hub, of `save_to_disk`, Parquet and Arrow files, folders of images, WebDataset shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.data.columnar import holds_bytes, is_vector, read_arrow
from suprank.data.columns import PREFIX, is_list, require_column
from suprank.data.image_files import SEPARATOR
from suprank.data.importers.base import Importer, ImportResult, describe_manifests
from suprank.data.importers.dataset_files import Files, dataset_files
from suprank.data.importers.webdataset import read_samples
from suprank.data.manifest import Manifest
from suprank.files.reading import reading

LAYOUT = """\
org/name                              a dataset of the Hub: Parquet files, WebDataset shards or a folder of images
a folder of `save_to_disk`, a folder of .parquet, .arrow or .tar files, or one such file
a folder of images                    with metadata.csv or metadata.jsonl, or in folders named after their classes"""

LABELS = ("label", "labels", "cls", "class", "category", "target")
"""Columns that are taken for labels even if they hold numbers without names."""

EMBEDDING = "embedding"
_ADDRESS = r"^(https?|s3|gs|hf|ftp)://"
_PATH, _SPLIT = "__path__", "__split__"

Progress = Callable[[str, int, int], None]
"""Called with (what is done, done, total)."""


class _Rows(NamedTuple):
    """The rows of a dataset: where their images are, in `_PATH`, their split in `_SPLIT`, and what is known of them.

    `class_names` are those of the columns that have them. `vectors` is the column of embeddings if there are no images.
    """

    table: pa.Table
    class_names: Mapping[str, Sequence[str]]
    vectors: str | None = None

    @property
    def names(self) -> list[str]:
        """The columns that say something on an image."""
        return [name for name in self.table.column_names if name not in (_PATH, _SPLIT)]


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
    resplit: Callable[[Manifest], Manifest] | None = None,
    announce: Callable[[str], None] = lambda sentence: None,
    progress: Progress = lambda what, done, total: None,
) -> ImportResult:
    """The manifest of a dataset of the Hub (`org/name`), or of a local folder or file, and sentences on what was chosen.

    The library `datasets` finds the files, splits and classes, and keeps rows of Parquet files in Arrow files in its cache;
    `announce` is called with how much that takes, before. Images are then read where they are: a path is that of a file,
    `shard.tar::member`, or `data.arrow::image/17` for the image in row 17.

    `image` is the image column, needed if there are several. `levels` are the label columns, finest first; by default those
    called `label_<level>`, or else columns with class names, or else text that repeats, as long as they form a tree. `id` is a
    column of image ids; by default `id`, if its values differ. `splits` are those to use, such as "train" or
    "validation=test". `config` and `revision` are those of the Hub. Class ids are those of the dataset if it names its classes.
    `resplit` makes another split of the manifest, such as `holdout_classes`.

    A dataset without images, but with a column of vectors, is a set of embeddings: the saved .parquet file has them, with
    their labels.
    """
    about = str(source)
    files, sentences = dataset_files(about, config=config, revision=revision, splits=splits, announce=announce)
    place = Path(source)
    folder = place if place.is_dir() else place.parent if place.exists() else None
    shards = any(path.suffix.lower() == ".tar" for paths in files.values() for path in paths)
    rows = _shard_rows(files, image, about, progress) if shards else _arrow_rows(files, image, about, folder)
    root, paths = _relative(rows.table[_PATH], folder)
    chosen, reasons = _levels(rows, levels, label_separator, about)
    columns = {"path": paths, "split": rows.table[_SPLIT]}
    columns |= {PREFIX + level: _labels(rows, column, about) for level, column in chosen.items()}
    _check_labeled(columns, about)
    ids, id_sentences = _ids(rows, id, about)
    columns |= ids | _others(rows, {*chosen.values(), id})
    names = {level: rows.class_names[column] for level, column in chosen.items() if _has_usable_names(rows, column)}
    manifest = Manifest.from_columns(
        columns, root=root, levels=list(chosen), about=about, names=names, label_separator=label_separator
    )
    manifests = {"": manifest if resplit is None else resplit(manifest)}
    if rows.vectors is not None:
        reasons.append(
            f"no images, but embeddings in {rows.vectors!r}: they and their labels are in the .parquet that is saved"
        )
    return ImportResult(manifests, (*sentences, *reasons, *id_sentences, *describe_manifests(manifests, {})))


# Rows


def _arrow_rows(files: Files, image: str | None, about: str, folder: Path | None) -> _Rows:
    """The rows of Arrow files; images with bytes are `file.arrow::column/row`, others have the path of their file."""
    import datasets

    parts: list[pa.Table] = []
    class_names: dict[str, Sequence[str]] = {}
    vectors: str | None = None
    for split, path in ((split, path) for split, paths in files.items() for path in paths):
        mapped = read_arrow(path)
        if not mapped.num_rows:
            continue
        with reading(path, "Arrow file of `datasets`"):
            features = datasets.Features.from_arrow_schema(mapped.schema)
        stored = [one.name for one in mapped.schema if holds_bytes(one.type)]
        typed = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
        floats = [one.name for one in mapped.schema if is_vector(one.type)]
        if image is None and not stored and not typed and floats:
            vectors = EMBEDDING if EMBEDDING in floats else floats[0]
        column = vectors or _image_column(mapped, typed or stored, image, about)
        kept = mapped.select([one.name for one in mapped.schema if _is_plain(one.type) and (one.name != column or vectors)])
        parts.append(_with_places(kept, _places(mapped, column, path, folder or path.parent), split))
        for name, names in ((name, _class_names(feature)) for name, feature in features.items()):
            if names and class_names.setdefault(name, names) != names:
                raise ValueError(f"{about}: the files name the classes of {name!r} differently; convert them to one list.")
    return _Rows(_concatenate(parts, about), class_names, vectors)


def _shard_rows(files: Files, image: str | None, about: str, progress: Progress) -> _Rows:
    """The samples of WebDataset shards; images are `shard.tar::member`."""
    parts = []
    listed = [(split, path) for split, paths in files.items() for path in paths]
    for done, (split, path) in enumerate(listed):
        progress("reading labels", done, len(listed))
        table, images = read_samples(path, image)
        if table.num_rows:
            column = _image_column(table, images, image, about)
            parts.append(_with_places(table.drop_columns(images), table[column], split))
    progress("reading labels", len(listed), len(listed))
    return _Rows(_concatenate(parts, about), {})


def _with_places(table: pa.Table, places: Any, split: str) -> pa.Table:
    columns = dict(zip(table.column_names, table.columns, strict=True))  # of a table without columns, which has no rows
    return pa.table(columns | {_PATH: places, _SPLIT: pa.repeat(split, len(places))})


def _concatenate(parts: Sequence[pa.Table], about: str) -> pa.Table:
    if not parts:
        raise ValueError(f"{about}: the files have no rows.")
    try:
        table = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(
            f"{about}: columns of one name have different types in its files ({error}); write one type."
        ) from error
    blank = np.flatnonzero(table[_PATH].is_null())
    if len(blank):
        raise ValueError(
            f"{about}: {len(blank):,} of {table.num_rows:,} rows have no image, the first is row {blank[0]}; leave them out "
            "(`dataset.filter`)."
        )
    return table


def _image_column(table: pa.Table, images: Sequence[str], image: str | None, about: str) -> str:
    names = table.column_names
    if image is not None:
        require_column(names, image, about)
        if image not in images and not holds_bytes(table[image].type) and not _is_text(table[image].type):
            listed = f"the image columns are {', '.join(images)}." if images else "it has no image column."
            raise ValueError(f"{about}: column {image!r} holds {table[image].type}, not images; {listed}")
        return image
    if not images:
        for name in (one for one in names if _is_text(table[one].type)):
            if pc.any(pc.match_substring_regex(table[name], _ADDRESS)).as_py():
                raise _addresses_error(about, name)
        raise ValueError(
            f"{about} has no image column; its columns are {', '.join(names)}. If one holds paths, name it with image."
        )
    if len(images) > 1:
        raise ValueError(f"{about} has several image columns ({', '.join(images)}); choose one with image.")
    return images[0]


def _addresses_error(about: str, column: str) -> ValueError:
    return ValueError(
        f"{about}: column {column!r} holds addresses of images, not images; download them first, for example with "
        "img2dataset, which writes WebDataset shards."
    )


def _places(table: pa.Table, column: str, path: Path, folder: Path) -> Any:
    """Where each image is: its address if its bytes are in the row, or else the path of its file; null if it has neither."""
    numbers = pa.array(np.arange(table.num_rows)).cast(pa.string())
    addresses = pc.binary_join_element_wise(f"{path.absolute()}{SEPARATOR}{column}/", numbers, "")
    cells, nothing = table[column], pa.scalar(None, pa.string())
    if _is_text(cells.type):
        return _loose_files(cells.cast(pa.string()), column, path, folder)
    values = pc.struct_field(cells, "bytes") if pa.types.is_struct(cells.type) else cells
    stored = values.is_valid().combine_chunks()
    addresses = pc.if_else(stored, addresses, nothing)
    if not pa.types.is_struct(cells.type) or cells.type.get_field_index("path") < 0:
        return addresses
    files = pc.if_else(stored, nothing, pc.struct_field(cells, "path").cast(pa.string()).combine_chunks())
    return addresses if files.null_count == len(files) else pc.coalesce(addresses, _loose_files(files, column, path, folder))


def _loose_files(files: Any, column: str, path: Path, folder: Path) -> Any:
    """The absolute paths of images, which have to be in the folder of the dataset or in the caches of Hugging Face."""
    import datasets
    from huggingface_hub import constants

    if pc.any(pc.match_substring_regex(files, _ADDRESS)).as_py():
        raise _addresses_error(str(path), column)
    files = pc.if_else(pc.starts_with(files, "/"), files, pc.binary_join_element_wise(f"{folder.absolute()}/", files, ""))
    own = [folder.absolute(), folder.resolve(), Path(constants.HF_HUB_CACHE), Path(datasets.config.HF_DATASETS_CACHE)]
    inside = reduce(pc.or_, [pc.starts_with(files, f"{one}/") for one in own])
    outside = files.filter(pc.invert(inside))
    if len(outside):
        raise ValueError(
            f"{path}: column {column!r} has the path {outside[0]}, which is not under {folder}; move the images there, or save "
            f"the dataset with its images in it (`push_to_hub` does)."
        )
    return files


def _relative(places: pa.ChunkedArray, folder: Path | None) -> tuple[Path, pa.ChunkedArray]:
    """The folder that all places are under, if possible the one that was imported, and their paths relative to it."""
    ends = pc.min_max(places).as_py()  # what the first and the last begin with, all do
    root = Path(os.path.commonpath([os.path.dirname(end.partition(SEPARATOR)[0]) for end in ends.values()]))  # noqa: PTH120
    if folder is not None and root.is_relative_to(folder.absolute()):
        root = folder.absolute()
    return root, pc.utf8_slice_codeunits(places, len(f"{root}/".replace("//", "/")))


# Labels


def _levels(rows: _Rows, levels: Sequence[str] | None, separator: str | None, about: str) -> tuple[dict[str, str], list[str]]:
    """Level → its column, finest first, and a sentence on the choice if nobody made it."""
    names = rows.names
    if levels is not None:
        chosen = {}
        for level in levels:
            column = next((name for name in (level, PREFIX + level) if name in names), level)
            require_column(names, column, about)
            if not _is_label(kind := rows.table[column].type):
                raise ValueError(
                    f"{about}: column {column!r} holds {kind}, which is no label; labels are class names, text, whole numbers, "
                    "or lists of these."
                )
            if column.removeprefix(PREFIX) in chosen:
                raise ValueError(f"{about}: level {level!r} is named twice; name each level once, finest first.")
            chosen[column.removeprefix(PREFIX)] = column
        return chosen, []
    if ours := [name for name in names if name.startswith(PREFIX)]:
        return {name.removeprefix(PREFIX): name for name in ours}, []
    found = _tree(rows, _candidates(rows), separator, about)
    if not found:
        raise ValueError(
            f"{about} has no column of class names; its columns are {', '.join(names) or 'none besides the images'}. Name the "
            f"label columns with levels, finest first."
        )
    left = [name for name in names if name not in found and name in rows.class_names]
    also = f"; not used: {', '.join(left)}" if left else ""
    return {name: name for name in found}, [f"levels, finest first: {', '.join(found)}{also} (choose with levels)"]


def _candidates(rows: _Rows) -> list[str]:
    """Columns with class names; or else one that is called like a label; or else text that repeats."""
    if classes := [name for name in rows.names if name in rows.class_names]:
        return classes
    if called := [name for name in rows.names if name.lower() in LABELS and _is_label(rows.table[name].type)]:
        return called[:1]
    texts = [name for name in rows.names if _is_text(rows.table[name].type)]
    return [name for name in texts if 1 < pc.count_distinct(rows.table[name]).as_py() <= rows.table.num_rows // 2]


def _tree(rows: _Rows, candidates: Sequence[str], separator: str | None, about: str) -> list[str]:
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


def _is_label(kind: pa.DataType) -> bool:
    inner = kind.value_type if is_list(kind) or pa.types.is_dictionary(kind) else kind
    return bool(_is_text(inner) or pa.types.is_dictionary(inner) or pa.types.is_integer(inner) or pa.types.is_null(inner))


def _is_plain(kind: pa.DataType) -> bool:
    """Whether a manifest may have a column of this type."""
    inner = kind.value_type if is_list(kind) else kind
    return _is_label(kind) or bool(pa.types.is_floating(inner) or pa.types.is_boolean(inner))


def _class_names(feature: Any) -> list[str]:
    """The names of a feature ClassLabel, or of lists of it."""
    return list(getattr(getattr(feature, "feature", feature), "names", None) or [])


def _has_usable_names(rows: _Rows, column: str) -> bool:
    names = rows.class_names.get(column, ())
    return bool(names) and len(set(names)) == len(names)


def _labels(rows: _Rows, column: str, about: str) -> pa.Array:
    """The labels of a column as text, or as lists of text: class ids become names, and −1 blank."""
    cells = rows.table[column].combine_chunks()
    cells = cells.chunk(0) if isinstance(cells, pa.ChunkedArray) else cells
    names = rows.class_names.get(column, ())
    if not is_list(cells.type):
        return _names_of_ids(cells, names, column, about)
    members = _names_of_ids(cells.flatten(), names, column, about)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(cells), 0), np.int64)
    valid = np.asarray(members.is_valid())
    owners = np.repeat(np.arange(len(lengths)), lengths)[valid]
    offsets = np.append(0, np.cumsum(np.bincount(owners, minlength=len(lengths))))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), members.filter(pa.array(valid)))


def _names_of_ids(cells: pa.Array, names: Sequence[str], column: str, about: str) -> pa.Array:
    if not pa.types.is_integer(cells.type):
        return cells if pa.types.is_dictionary(cells.type) else cells.cast(pa.string())
    ids = pc.if_else(pc.equal(cells, -1), pa.scalar(None, cells.type), cells)
    low, high = pc.min_max(ids).as_py().values()
    if low is not None and names and not 0 <= low <= high < len(names):
        raise ValueError(
            f"{about}: column {column!r} holds class {low if low < 0 else high}, but names {len(names):,} classes; correct the "
            "names or the labels."
        )
    return pa.array(names, pa.string()).take(ids) if names else ids.cast(pa.string())


def _check_labeled(columns: Mapping[str, pa.Array], about: str) -> None:
    """Raise if a split has no labels at all, as the test images of a competition."""
    finest = next((labels for name, labels in columns.items() if name.startswith(PREFIX)), columns["split"].combine_chunks())
    for split in pc.unique(columns["split"]).to_pylist():
        labels = finest.filter(pc.equal(columns["split"].combine_chunks(), split))
        if split != "distractor" and labels.null_count == len(labels):
            raise ValueError(
                f"{about}: the images of split {split} have no labels; name those to use with splits, such as "
                f"train and validation=test."
            )


# Other columns


def _ids(rows: _Rows, id: str | None, about: str) -> tuple[dict[str, pa.Array], list[str]]:
    """The column of image ids: the one named; or `id`, if it is that of a manifest or its values differ."""
    if id is not None:
        require_column(rows.names, id, about)
        return {"id": rows.table[id]}, []
    if "id" not in rows.names:
        return {}, []
    column = rows.table["id"]
    plain = _is_label(column.type) and not is_list(column.type) and not column.null_count
    if plain and (_is_export(rows) or pc.count_distinct(column).as_py() == len(column)):
        return {"id": column}, []
    return {}, ["column id is left out, because values repeat or are blank; if equal ids mean one image, name it with id"]


def _others(rows: _Rows, used: set[str | None]) -> dict[str, pa.Array]:
    """The other columns, as they are; `box` is that of a manifest, and `cls` of WebDataset repeats its finest label."""
    ours = _is_export(rows)
    left_out = {"id", "path", "split", "cls" if ours else "box"}
    others = [name for name in rows.names if name not in used | left_out and not name.startswith(PREFIX)]
    return {name: rows.table[name] for name in others}


def _is_export(rows: _Rows) -> bool:
    """Whether this was exported from a manifest."""
    return any(name.startswith(PREFIX) for name in rows.names)


HF = Importer(name="hf", title="a Hugging Face dataset, or WebDataset shards", layout=LAYOUT, read=read, published={})
