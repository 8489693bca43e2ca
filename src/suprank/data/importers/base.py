"""The base of all importers: name and layout, a report of missing images, and counts beside the published ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from suprank.data.columns import PREFIX
from suprank.data.image_files import missing_rows
from suprank.data.manifest import Manifest
from suprank.files.locking import build_once
from suprank.system.platforms import default_cache

_SHOWN = 3  # missing images that a sentence names before it only counts
IMAGES = "images"


@dataclass(frozen=True)
class Importer:
    """A source of images that `suprank data import <name>` turns into a manifest.

    `read` parses the label files under a root into manifests: "" is the main one, others are additional test sets, by the
    suffix of their file. `published` has for each split the number of images, and of classes of each level, of the complete
    dataset; splits of an additional test set are called `<suffix>/<split>`.
    """

    name: str
    title: str
    layout: str
    read: Callable[[Path], dict[str, Manifest]]
    published: Mapping[str, Mapping[str, int]]

    def __call__(self, root: Path) -> ImportResult:
        """Import the dataset under `root`, and report what is missing."""
        root = Path(root)
        if not root.exists():
            raise FileNotFoundError(f"{root} does not exist; {self.name} expects under it:\n{self.layout}")
        manifests = self.read(root)
        return ImportResult(manifests, tuple(describe_manifests(manifests, self.published)))


@dataclass(frozen=True)
class ImportResult:
    """Manifests by suffix ("" is the main one), and sentences on their counts and on what is missing."""

    manifests: Mapping[str, Manifest]
    sentences: tuple[str, ...]

    def files(self, out: Path) -> dict[Path, Manifest]:
        """The file of each manifest: `out`, and `<stem>-<suffix>` beside it for additional test sets."""
        return {
            out.with_name(f"{out.stem}-{suffix}{out.suffix}") if suffix else out: manifest
            for suffix, manifest in self.manifests.items()
        }


def require_file(root: Path, file: str, name: str, layout: str) -> Path:
    """The path of a file under `root`; if it does not exist, the error shows the layout that importer `name` expects."""
    path = root / file
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; {name} expects under {root}:\n{layout}")
    return path


def split_counts(manifest: Manifest) -> dict[str, dict[str, int]]:
    """Split → {"images": ..., level: number of its classes, ...}."""
    counts = {}
    for split, images in manifest.splits.items():
        labels = manifest.labels[np.asarray(pc.equal(manifest.table["split"], split))]
        classes = {
            level: len(np.unique(labels[:, column][labels[:, column] >= 0])) for column, level in enumerate(manifest.levels)
        }
        counts[split] = {IMAGES: images} | classes
    return counts


def describe_manifests(manifests: Mapping[str, Manifest], published: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Sentences on the counts of each split beside the published ones, on missing images, and on labels that form no tree."""
    lines, seen = [], set()
    for suffix, manifest in manifests.items():
        for split, found in split_counts(manifest).items():
            key = f"{suffix}/{split}" if suffix else split
            seen.add(key)
            lines.append(_compare(key, found, published.get(key, {})))
        if placeholders := manifest.placeholders():
            lines.append(f"placeholders for blanks: {_list_counts(placeholders)}")
        lines.extend(_missing_images(manifest))
        lines.extend(f"not a tree: {sentence}" for sentence in manifest.two_parents())
    lines.extend(f"{key}: nothing found; published: {_list_counts(published[key])}" for key in published if key not in seen)
    return lines


def _compare(key: str, found: Mapping[str, int], expected: Mapping[str, int]) -> str:
    differ = {what: number for what, number in expected.items() if found.get(what) != number}
    if not expected:
        return f"{key}: {_list_counts(found)}"
    return f"{key}: {_list_counts(found)}" + (f"; published: {_list_counts(differ)}" if differ else ", as published")


def _list_counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in numbers.items())


def _missing_images(manifest: Manifest) -> list[str]:
    rows = missing_rows(manifest.paths, manifest.root)
    if not len(rows):
        return []
    first = ", ".join(manifest.paths[int(row)].as_py() for row in rows[:_SHOWN])
    more = ", ..." if len(rows) > _SHOWN else ""
    return [f"{len(rows):,} of {len(manifest):,} images do not exist under {manifest.root} ({first}{more})"]


def generated(
    name: str, settings: Sequence[object], build: Callable[[Path], None], cache: str | os.PathLike[str] | None
) -> Manifest:
    """The manifest of images that `build(folder)` generates once for these settings, in `cache` (by default suprank's)."""
    key = hashlib.sha256(repr((name, *settings)).encode()).hexdigest()[:16]
    place = default_cache() if cache is None else Path(cache).expanduser()
    folder = build_once(place / name / key, build, "set SUPRANK_CACHE to a folder that is")
    return Manifest.read(folder / "manifest.parquet", root=folder)


# Text lists


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The number (from 1) and the text of every line that is not blank, without the white space around it.

    The text is UTF-8, with or without a byte order mark; lines end in LF, CRLF or CR, and the last one need not end at all.
    """
    with path.open(encoding="utf-8-sig") as file:
        try:
            for number, line in enumerate(file, 1):
                if text := line.strip():
                    yield number, text
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text ({error}); unpack it, or download it again.") from error


def line_error(path: Path, number: int, line: str, rule: str) -> ValueError:
    """The error for a line that breaks a rule ("it should be ...")."""
    return ValueError(f"{path}:{number}: {line!r}: {rule}. Correct the line, or download the file again.")


def manifest_from_rows(rows: Sequence[tuple[str, ...]], levels: Sequence[str], root: Path, about: Path) -> Manifest:
    """The manifest of rows (path, split, label of each level, finest first) from the file or folder `about`."""
    if not rows:
        raise ValueError(f"{about} lists no images; download it again.")
    names = ("path", "split", *(PREFIX + level for level in levels))
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return Manifest.from_columns(columns, root=root, levels=levels, about=str(about))
