"""A tree of folders, `coarse/…/fine/image`, on disk or in an archive: the folders an image lies in are its labels."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from suprank.data.archives import Archive
from suprank.data.columns import PREFIX, SPLITS
from suprank.data.importers.base import Importer
from suprank.data.manifest import Manifest

IMAGES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2")
)
"""What the names of images end in, in small or capital letters."""

UNKNOWN_SPLITS = frozenset(("val", "valid", "validation", "dev", "eval"))
"""Names that people give to splits, and that ours do not have."""

LAYOUT = """\
coarse/…/fine/image.jpg              any number of levels, the same for all images; the root may be a .zip or .tar archive
train/coarse/…/fine/image.jpg        or with folders for splits: train, test, query, gallery, distractor"""

_NAMED = 3  # skipped files that a sentence names before it only counts
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Folder:
    """A folder that holds images: its place under the root, and their names, sorted."""

    parts: tuple[str, ...]
    images: tuple[str, ...]

    def __str__(self) -> str:
        return "/".join(self.parts) or "the root itself"


@dataclass
class Skipped:
    """What was not taken, and why."""

    hidden: list[str] = field(default_factory=list)
    no_image: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)

    def sentences(self) -> Iterator[str]:
        """One for each reason, with the first few names."""
        for names, what in (
            (self.hidden, "hidden files or folders"),
            (self.no_image, "files that are no images by their extension"),
            (self.empty, "folders without images"),
        ):
            if names:
                more = ", ..." if len(names) > _NAMED else ""
                yield f"left out {len(names):,} {what} ({', '.join(names[:_NAMED])}{more})"


def read(root: Path, *, levels: Sequence[str] | None = None, split: str = "train") -> dict[str, Manifest]:
    """The manifest of all images under `root`, sorted by path.

    The folder that holds an image is its finest class, the one above the next coarser, up to the root. `levels` names them,
    finest first; by default "class", or "class" and "group", or "level 1" (the finest), "level 2" and so on. A name that
    stands under two parents is told apart by them: "cats/large", "dogs/large".

    Where all folders in the root are called train, test, query, gallery or distractor, they are splits, and the classes
    begin below; otherwise every image gets the split `split`. Images that lie in `distractor` itself have no labels.

    `root` may be a .zip or .tar archive: paths are then `archive.zip::member`, relative to its folder, and a single folder
    around everything, as archives often have, is no level. Links to folders are followed, one that leads to a folder it
    lies in is refused. Hidden files, files that are no images by their extension, and empty folders are left out and logged
    as warnings. Images at different depths are an error.
    """
    root, skipped = Path(root), Skipped()
    if not root.exists():
        raise FileNotFoundError(f"{root} is not there; give a folder, or a .zip or .tar archive.")
    archive = not root.is_dir()
    found = _in_archive(Archive(root).members, skipped) if archive else _on_disk(root, skipped)
    folders = sorted(found, key=lambda folder: folder.parts)
    for sentence in skipped.sentences():
        _log.warning("%s: %s", root, sentence)
    if not folders:
        raise ValueError(f"{root} holds no images; their names end in {', '.join(sorted(IMAGES))}.")
    above = int(archive and _wrapped(folders))
    in_splits = _in_splits(folders, above, root)
    splits = [folder.parts[above].lower() if in_splits and folder.parts else split for folder in folders]
    classes = [folder.parts[above + in_splits :] for folder in folders]
    _check_depth(folders, classes, splits, root)
    depth = max(map(len, classes))
    columns = _images(folders, splits, f"{root.name}::" if archive else "")
    columns |= _labels(folders, classes, _level_names(levels, depth, folders[-1], root))
    return {"": Manifest.of(columns, root=root.parent if archive else root, about=str(root))}


# What lies where


def _on_disk(root: Path, skipped: Skipped) -> Iterator[Folder]:
    """Every folder with images below the root, by one `scandir` each."""
    waiting: list[tuple[tuple[str, ...], tuple[tuple[int, int], ...]]] = [((), ())]
    while waiting:
        parts, above = waiting.pop()
        here = root.joinpath(*parts)
        status = here.stat()
        identity = status.st_dev, status.st_ino
        if identity in above:
            raise ValueError(
                f"{here} is a link to {root.joinpath(*parts[: above.index(identity)])}, a folder it lies in, and would be read "
                f"for ever; remove the link."
            )
        names: list[str] = []
        folders: list[str] = []
        with os.scandir(here) as entries:
            for entry in entries:
                (folders if entry.is_dir() else names).append(entry.name)
        for name in sorted(folders):
            if _hidden(name):
                skipped.hidden.append("/".join((*parts, name)))
            else:
                waiting.append(((*parts, name), (*above, identity)))
        images = _chosen(parts, names, skipped)
        if images:
            yield Folder(parts, images)
        elif not folders and parts:
            skipped.empty.append("/".join(parts))


def _in_archive(names: Iterable[str], skipped: Skipped) -> Iterator[Folder]:
    """Every folder with images in an archive, from the names of its members."""
    inside: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        *above, file = name.split("/")
        if any(map(_hidden, above)):
            skipped.hidden.append(name)
        else:
            inside.setdefault(tuple(above), []).append(file)
    for parts, files in inside.items():
        images = _chosen(parts, files, skipped)
        if images:
            yield Folder(parts, images)


def _hidden(name: str) -> bool:
    return name.startswith(".") or name in ("", "__MACOSX")


def _chosen(parts: tuple[str, ...], names: Iterable[str], skipped: Skipped) -> tuple[str, ...]:
    """The images among the files of a folder, sorted."""
    images = []
    for name in sorted(names):
        if _hidden(name):
            skipped.hidden.append("/".join((*parts, name)))
        elif os.path.splitext(name)[1].lower() in IMAGES:  # noqa: PTH122 (a Path for each of a million names takes seconds)
            images.append(name)
        else:
            skipped.no_image.append("/".join((*parts, name)))
    return tuple(images)


# What it means


def _wrapped(folders: Sequence[Folder]) -> bool:
    """Whether one folder lies around all others, that is neither a split nor the only class."""
    tops = {folder.parts[:1] for folder in folders}
    return len(tops) == 1 and all(len(folder.parts) > 1 for folder in folders) and folders[0].parts[0].lower() not in SPLITS


def _in_splits(folders: Sequence[Folder], above: int, root: Path) -> bool:
    """Whether the folders at the top are splits: all of their names must be."""
    tops = {folder.parts[above] for folder in folders if len(folder.parts) > above}
    splits = {top for top in tops if top.lower() in SPLITS}
    unknown = sorted(top for top in tops if top.lower() in UNKNOWN_SPLITS)
    if splits and unknown:
        raise ValueError(
            f"{root}: {sorted(splits)[0]!r} is a split, but {unknown[0]!r} is none we know; call it one of "
            f"{', '.join(SPLITS)}, or move it away."
        )
    if splits and splits != tops:
        _log.warning("%s: %r is taken for a class, because %r beside it is no split", root, min(splits), min(tops - splits))
    return bool(tops) and splits == tops


def _check_depth(folders: Sequence[Folder], classes: Sequence[tuple[str, ...]], splits: Sequence[str], root: Path) -> None:
    """All images are equally deep, and in a class; only those of `distractor` need none."""
    first: dict[int, Folder] = {}
    for folder, labels, split in zip(folders, classes, splits, strict=True):
        if labels or split != "distractor":
            first.setdefault(len(labels), folder)
    if 0 in first or not first:
        one = first.get(0, folders[0])
        raise ValueError(
            f"{root}: {one} holds images ({one.images[0]}) that are in no class; images lie in folders called as their classes."
        )
    if len(first) > 1:
        (low, shallow), *_, (high, deep) = sorted(first.items())
        raise ValueError(
            f"{root}: images in {shallow} are {low} levels deep and images in {deep} {high}, but every image has as many "
            f"labels as the others; move one of them."
        )


def _level_names(levels: Sequence[str] | None, depth: int, example: Folder, root: Path) -> tuple[str, ...]:
    if levels is None:
        return ("class", "group")[:depth] if depth <= 2 else tuple(f"level {level}" for level in range(1, depth + 1))
    if len(levels) != depth:
        raise ValueError(
            f"{root}: {len(levels)} levels are named ({', '.join(levels)}), but folders are {depth} deep ({example}); name as "
            f"many, finest first."
        )
    return tuple(levels)


def _images(folders: Sequence[Folder], splits: Sequence[str], start: str) -> dict[str, pa.Array]:
    paths = [f"{start}{'/'.join((*folder.parts, name))}" for folder in folders for name in folder.images]
    try:
        column = pa.array(paths)
    except UnicodeEncodeError as error:  # Python reads such names into half characters, which no file format can hold
        raise ValueError(f"the name {error.object!r} is not UTF-8; rename the file or folder.") from None
    repeated = np.repeat(np.arange(len(folders)), [len(folder.images) for folder in folders])
    return {"path": column, "split": pa.array(splits).take(pa.array(repeated))}


def _labels(folders: Sequence[Folder], classes: Sequence[tuple[str, ...]], levels: Sequence[str]) -> dict[str, pa.Array]:
    """A column for each level; folders without labels (distractors) have none at any."""
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
    """A name for each folder: its own, with as many of those above before it as tell it from the others."""
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
    title="your own images, in folders called as their classes",
    layout=LAYOUT,
    read=read,
    published={},
)
