"""A folder tree `coarse/…/fine/image`, on disk or in an archive: the folders of an image are its labels."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suprank.data.archives import Archive
from suprank.data.columnar import ColumnMembers
from suprank.data.columns import PREFIX, SPLITS
from suprank.data.importers.base import Importer
from suprank.data.manifest import Manifest
from suprank.data.members import Members

if TYPE_CHECKING:
    from numpy.typing import NDArray

IMAGES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2")
)
"""The extensions of images, in lower or upper case."""

UNKNOWN_SPLITS = frozenset(("val", "valid", "validation", "dev", "eval"))
"""Common names of splits that a manifest does not have."""

LAYOUT = """\
coarse/…/fine/image.jpg              any number of levels, the same for all images; the root may be a .zip or .tar archive
train/coarse/…/fine/image.jpg        or with folders for splits: train, test, query, gallery, distractor"""

_MACOS = b"__MACOSX"
_SHOWN = 3  # skipped files that a sentence lists before it only counts
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Folder:
    """A folder with images: its path under the root, and their names, sorted."""

    parts: tuple[str, ...]
    images: pa.Array

    def __str__(self) -> str:
        return "/".join(self.parts) or "the root itself"


@dataclass
class Skipped:
    """Files and folders that were left out, by reason."""

    hidden: list[str] = field(default_factory=list)
    no_image: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)

    def sentences(self) -> Iterator[str]:
        """One for each reason, with the first few names."""
        for names, what in (
            (self.hidden, "hidden files or folders"),
            (self.no_image, "files without the extension of an image"),
            (self.empty, "folders without images"),
        ):
            if names:
                more = ", ..." if len(names) > _SHOWN else ""
                yield f"left out {len(names):,} {what} ({', '.join(names[:_SHOWN])}{more})"


def read(root: Path, *, levels: Sequence[str] | None = None, split: str = "train") -> dict[str, Manifest]:
    """The manifest of all images under `root`, sorted by path.

    The folder of an image is its finest class, the folder above it the next coarser one, up to the root. `levels` names the
    levels, finest first; by default they are "class", or "class" and "group", or "level 1" (the finest), "level 2" and so on.
    Classes of the same name under two parents are distinguished by them: "cats/large", "dogs/large".

    If all folders in the root are called train, test, query, gallery or distractor, they are splits, and the classes are below;
    otherwise every image gets the split `split`. Images directly in `distractor` have no labels.

    `root` may be a .zip or .tar archive: paths are then `archive.zip::member`, relative to the folder of the archive, and a
    single folder around everything, as archives often have, is not a level. Links to folders are followed, except that a link
    to a folder above itself is refused. Hidden files, files without the extension of an image, and empty folders are left out
    and logged as warnings. Images at different depths are an error.
    """
    root, skipped = Path(root), Skipped()
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist; give a folder, or a .zip or .tar archive.")
    archive = not root.is_dir()
    found = _in_archive(Archive(root).members, skipped) if archive else _on_disk(root, skipped)
    folders = sorted(found, key=lambda folder: folder.parts)
    for sentence in skipped.sentences():
        _log.warning("%s: %s", root, sentence)
    if not folders:
        raise ValueError(f"{root} has no images; their names end in {', '.join(sorted(IMAGES))}.")
    above = int(archive and _has_outer_folder(folders))
    in_splits = _has_split_folders(folders, above, root)
    splits = [folder.parts[above].lower() if in_splits and folder.parts else split for folder in folders]
    classes = [folder.parts[above + in_splits :] for folder in folders]
    _check_depth(folders, classes, splits, root)
    depth = max(map(len, classes))
    columns = _images(folders, splits, f"{root.name}::" if archive else "")
    columns |= _labels(folders, classes, _level_names(levels, depth, folders[-1], root))
    return {"": Manifest.from_columns(columns, root=root.parent if archive else root, about=str(root))}


# Listing


def _on_disk(root: Path, skipped: Skipped) -> Iterator[Folder]:
    """Every folder with images below the root, by one `scandir` each."""
    waiting: list[tuple[tuple[str, ...], tuple[tuple[int, int], ...]]] = [((), ())]
    while waiting:
        parts, above = waiting.pop()
        here = root.joinpath(*parts)
        status = here.stat()
        identity = status.st_dev, status.st_ino
        if status.st_ino and identity in above:  # 0 on file systems that do not number their files
            raise ValueError(
                f"{here} is a link to {root.joinpath(*parts[: above.index(identity)])}, a folder above it, and would be "
                f"followed forever; remove the link."
            )
        names: list[str] = []
        folders: list[str] = []
        with os.scandir(here) as entries:
            for entry in entries:
                (folders if entry.is_dir() else names).append(entry.name)
        for name in sorted(folders):
            if _is_hidden(name):
                skipped.hidden.append("/".join((*parts, name)))
            else:
                waiting.append(((*parts, name), (*above, identity)))
        images = _select_images(parts, names, skipped)
        if images:
            yield Folder(parts, _to_arrow(images, parts))
        elif not folders and parts:
            skipped.empty.append("/".join(parts))


def _in_archive(members: Members | ColumnMembers, skipped: Skipped) -> Iterator[Folder]:
    """Every folder with images in an archive, from the names of its members, a million in a second."""
    if isinstance(members, ColumnMembers):
        return  # these have no folders
    names = members.to_arrow()
    above = pc.replace_substring_regex(names, r"(?s)[^/]*$", "")
    files = pc.replace_substring_regex(names, r"(?s)^.*/", "")
    coded = above.dictionary_encode()
    codes = np.asarray(coded.indices)
    folders = [tuple(folder.decode(errors="surrogateescape").split("/")[:-1]) for folder in coded.dictionary.to_pylist()]
    in_hidden = np.array([any(map(_is_hidden, parts)) for parts in folders], np.bool_)[codes]
    skipped.hidden.extend(_names(names, in_hidden))
    order = np.argsort(codes, kind="stable")  # names of a folder stay sorted
    order = order[~in_hidden[order]]
    hidden = np.asarray(pc.or_(pc.starts_with(files, "."), pc.is_in(files, value_set=pa.array([b"", _MACOS], files.type))))
    images = _have_image_extension(files) & ~hidden
    skipped.hidden.extend(_names(names, order[hidden[order]]))
    skipped.no_image.extend(_names(names, order[~hidden[order] & ~images[order]]))
    order = order[images[order]]
    found, sizes = np.unique(codes[order], return_counts=True)
    try:
        texts = files.take(pa.array(order)).cast(pa.large_string())
    except pa.ArrowInvalid:  # one is not UTF-8
        texts = None
    end = 0
    for code, size in zip(found.tolist(), sizes.tolist(), strict=True):
        begin, end = end, end + size
        if texts is None:
            inside = [name.decode(errors="surrogateescape") for name in files.take(pa.array(order[begin:end])).to_pylist()]
            yield Folder(folders[code], _to_arrow(inside, folders[code]))
        else:
            yield Folder(folders[code], texts[begin:end])


def _names(names: pa.LargeBinaryArray, chosen: NDArray[Any]) -> Iterator[str]:
    rows = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
    return (name.decode(errors="surrogateescape") for name in names.take(pa.array(rows)).to_pylist())


def _have_image_extension(files: pa.LargeBinaryArray) -> NDArray[np.bool_]:
    """Whether each name ends in the extension of an image, in lower or upper case."""
    lower = pc.ascii_lower(files.view(pa.large_string()))  # which need not be UTF-8 for this
    return np.any([np.asarray(pc.ends_with(lower, extension)) for extension in IMAGES], axis=0)


def _to_arrow(names: Sequence[str], parts: tuple[str, ...]) -> pa.Array:
    try:
        return pa.array(names, pa.large_string())
    except UnicodeEncodeError as error:  # Python represents such names with lone surrogates, which no file format can store
        raise _not_utf8("/".join((*parts, error.object))) from None


def _not_utf8(name: str) -> ValueError:
    return ValueError(f"the name {name!r} is not UTF-8; rename the file or folder.")


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in ("", _MACOS.decode())


def _select_images(parts: tuple[str, ...], names: Iterable[str], skipped: Skipped) -> tuple[str, ...]:
    """The images among the files of a folder, sorted."""
    images = []
    for name in sorted(names):
        if _is_hidden(name):
            skipped.hidden.append("/".join((*parts, name)))
        elif os.path.splitext(name)[1].lower() in IMAGES:  # noqa: PTH122 (a Path for each of a million names takes seconds)
            images.append(name)
        else:
            skipped.no_image.append("/".join((*parts, name)))
    return tuple(images)


# Interpreting


def _has_outer_folder(folders: Sequence[Folder]) -> bool:
    """Whether a single folder contains all others, and is neither a split nor the only class."""
    tops = {folder.parts[:1] for folder in folders}
    return len(tops) == 1 and all(len(folder.parts) > 1 for folder in folders) and folders[0].parts[0].lower() not in SPLITS


def _has_split_folders(folders: Sequence[Folder], above: int, root: Path) -> bool:
    """Whether all folders at the top have names of splits."""
    tops = {folder.parts[above] for folder in folders if len(folder.parts) > above}
    splits = {top for top in tops if top.lower() in SPLITS}
    unknown = sorted(top for top in tops if top.lower() in UNKNOWN_SPLITS)
    if splits and unknown:
        raise ValueError(
            f"{root}: {sorted(splits)[0]!r} is a split, but {unknown[0]!r} is not; rename it to one of "
            f"{', '.join(SPLITS)}, or move it away."
        )
    if splits and splits != tops:
        _log.warning("%s: %r is treated as a class, because %r beside it is not a split", root, min(splits), min(tops - splits))
    return bool(tops) and splits == tops


def _check_depth(folders: Sequence[Folder], classes: Sequence[tuple[str, ...]], splits: Sequence[str], root: Path) -> None:
    """Raise unless all images are at the same depth, in a class; those of `distractor` need no class."""
    first: dict[int, Folder] = {}
    for folder, labels, split in zip(folders, classes, splits, strict=True):
        if labels or split != "distractor":
            first.setdefault(len(labels), folder)
    if 0 in first or not first:
        one = first.get(0, folders[0])
        raise ValueError(
            f"{root}: {one} has images ({one.images[0]}) without a class; put images into folders named after their classes."
        )
    if len(first) > 1:
        (low, shallow), *_, (high, deep) = sorted(first.items())
        raise ValueError(
            f"{root}: images in {shallow} are {low} levels deep and images in {deep} {high}, but all images must "
            f"have the same number of labels; move one of the folders."
        )


def _level_names(levels: Sequence[str] | None, depth: int, example: Folder, root: Path) -> tuple[str, ...]:
    if levels is None:
        return ("class", "group")[:depth] if depth <= 2 else tuple(f"level {level}" for level in range(1, depth + 1))
    if len(levels) != depth:
        raise ValueError(
            f"{root}: {len(levels)} levels are named ({', '.join(levels)}), but folders are {depth} deep ({example}); name "
            f"that many, finest first."
        )
    return tuple(levels)


def _images(folders: Sequence[Folder], splits: Sequence[str], start: str) -> dict[str, pa.Array]:
    above = [f"{start}{'/'.join((*folder.parts, ''))}" for folder in folders]
    try:
        column = pa.array(above, pa.large_string())
    except UnicodeEncodeError as error:
        raise _not_utf8(f"{error.object}{folders[above.index(error.object)].images[0]}") from None
    rows = pa.array(np.repeat(np.arange(len(folders)), [len(folder.images) for folder in folders]))
    names = pa.concat_arrays([folder.images for folder in folders])
    paths = pc.binary_join_element_wise(column.take(rows), names, pa.scalar("", pa.large_string()))
    return {"path": paths.cast(pa.string()), "split": pa.array(splits).take(rows)}


def _labels(folders: Sequence[Folder], classes: Sequence[tuple[str, ...]], levels: Sequence[str]) -> dict[str, pa.Array]:
    """One column per level; distractors without labels have none at any level."""
    repeated = pa.array(np.repeat(np.arange(len(folders)), [len(folder.images) for folder in folders]))
    columns = {}
    for level, name in enumerate(levels):
        places = [labels[: len(levels) - level] if labels else None for labels in classes]
        names = _distinct({place for place in places if place})
        columns[PREFIX + name] = (
            pa.array([names[place] if place else None for place in places]).dictionary_encode().take(repeated)
        )
    return columns


def _distinct(places: set[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """A unique name for each folder: its own name, after as many parent folders as needed."""
    names: dict[tuple[str, ...], str] = {}
    length, left = 1, places
    while left:
        shared = Counter(place[-length:] for place in left)
        names |= {place: "/".join(place[-length:]) for place in left if shared[place[-length:]] == 1}
        left = {place for place in left if shared[place[-length:]] > 1}
        length += 1
    return names


FOLDER = Importer(
    name="folder",
    title="your own images, in folders named after their classes",
    layout=LAYOUT,
    read=read,
    published={},
)
