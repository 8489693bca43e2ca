"""A manifest held against its files: what is missing, broken, or in two splits at once; and what its classes look like."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from suprank.data.archives import UnreadableArchiveError
from suprank.data.classes import Classes, classes
from suprank.data.duplicates import Copies, Group, copies, ranked
from suprank.data.file_scan import Contents, Progress, contents
from suprank.data.files import SEPARATOR, Files, absent, archives_in, holders_of
from suprank.data.images import MAX_ASPECT
from suprank.data.manifest import Manifest

_NAMED = 5  # paths that a sentence names before it only counts


@dataclass(frozen=True)
class Checked:
    """What `checked` found.

    missing     paths without a file
    broken      (path, reason): unreadable, damaged, no image
    copies      rows with one content: across splits, within a split, with different labels
    by_content  whether copies were found by a hash of the content, or only where rows name one path
    sides       "short", "long" → least, median and greatest side in pixels, as stored; empty if nothing was decoded
    kinds       "JPEG RGB" and the like → number of files
    elongated   (path, width, height) of images over `MAX_ASPECT` times as long as wide: only the middle is seen
    """

    images: int
    files: int
    splits: Mapping[str, int]
    classes: Classes
    missing: tuple[str, ...]
    broken: tuple[tuple[str, str], ...]
    copies: Copies
    by_content: bool
    sides: Mapping[str, tuple[int, float, int]]
    kinds: Mapping[str, int]
    elongated: tuple[tuple[str, int, int], ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing missing, broken or leaking from train into evaluation, and no label under two parents."""
        return not (self.missing or self.broken or self.copies.leaks or self.classes.two_parents)

    def to_json(self) -> str:
        """Everything, with `ok` and the leaks."""
        everything = {"ok": self.ok, "leaks": self.copies.leaks} | asdict(self)
        return json.dumps(everything, ensure_ascii=False, indent=2)

    def sentences(self) -> list[str]:
        """The findings to print, a line each: counts first, then what one would rather know, the worst last."""
        return [*self._counts(), *_noteworthy(self.classes, self.copies), *self._odd(), *self._wrong()]

    def _counts(self) -> Iterator[str]:
        yield f"{self.images:,} images in {self.files:,} files: {_each(self.splits)}"
        for level, counts in self.classes.counts.items():
            shared = self.classes.shared.get(level)
            both = "" if shared is None else f"; {shared or 'none'} of train's in evaluation"
            yield f"{level} classes: {_each(counts)}{both}"
        if self.classes.sizes:
            sizes = ", ".join(f"{images}: {count:,}" for images, count in self.classes.sizes.items())
            yield f"images a class → classes: {sizes}"
        if self.sides:
            sides = [f"{side} side {low:,} to {high:,}, median {middle:g}" for side, (low, middle, high) in self.sides.items()]
            yield f"pixels: {'; '.join(sides)}"
            yield f"formats: {_each(self.kinds)}"

    def _odd(self) -> Iterator[str]:
        if self.elongated:
            named = _some(f"{path} ({width:,} × {height:,} pixels)" for path, width, height in self.elongated)
            yield f"{_files(self.elongated)} more than {MAX_ASPECT} times as long as wide, seen in part: {named}"

    def _wrong(self) -> Iterator[str]:
        yield from (f"not a tree: {sentence}" for sentence in self.classes.two_parents)
        if self.copies.leaks:
            yield f"{_files(self.copies.leaks)} both in train and in evaluation: {_some(map(_said, self.copies.leaks))}"
        if self.broken:
            yield f"{_files(self.broken)} broken: {_some(f'{path} ({reason})' for path, reason in self.broken)}"
        if self.missing:
            yield f"{_files(self.missing)} missing: {_some(self.missing)}"


def checked(
    manifest: Manifest,
    *,
    progress: Progress = lambda done, total: None,
    workers: int | None = None,
    decode: bool = True,
    hashes: bool = True,
) -> Checked:
    """Look at every file of the manifest, each once, with `workers` threads (None: one a core).

    `decode=False` leaves out whether files are whole images and how large; `hashes=False` whether two have the same
    content; without either no file is opened. A missing root raises; a missing or unreadable archive is reported, with all its
    images. Memory: some 100 bytes a file.
    """
    files = Files(manifest.root)
    coded = manifest.paths.chunk(0).dictionary_encode()
    paths = coded.dictionary
    broken = _in_unreadable_archives(files, paths)
    listed = np.setdiff1d(np.arange(len(paths)), list(broken))
    missing = listed[absent(paths.take(pa.array(listed)), files)]
    readable = np.setdiff1d(listed, missing)
    opened = paths.take(pa.array(readable if decode or hashes else [], pa.int64()))
    found = contents(files, opened, decode=decode, hashes=hashes, workers=workers, progress=progress)
    broken |= {int(readable[place]): reason for place, reason in found.broken.items()}
    content = np.arange(len(paths))  # each its own, unless a hash says otherwise
    hashed = np.flatnonzero(found.digests[:, 0] | found.digests[:, 1])
    content[readable[hashed]] = len(paths) + ranked(found.digests[hashed])
    return Checked(
        images=len(manifest),
        files=len(paths),
        splits=manifest.splits,
        classes=classes(manifest),
        missing=tuple(paths.take(pa.array(missing)).to_pylist()),
        broken=tuple((paths[row].as_py(), reason) for row, reason in sorted(broken.items())),
        copies=copies(manifest, content[coded.indices.to_numpy()]),
        by_content=hashes,
        sides=_sides(found),
        kinds=dict(found.kinds.most_common()),
        elongated=tuple(
            (opened[int(place)].as_py(), *found.sizes[place].tolist())
            for place in np.flatnonzero(found.sizes.max(1) > MAX_ASPECT * found.sizes.min(1))
        ),
    )


def _in_unreadable_archives(files: Files, paths: pa.Array) -> dict[int, str]:
    """Row → reason, for all members of archives that cannot be listed. The others are listed now."""
    reasons = {}
    for name in archives_in(paths):
        try:
            files.archive(name)
        except UnreadableArchiveError as error:
            reasons[name + SEPARATOR] = str(error)
        except FileNotFoundError:
            pass  # its members are missing
    if not reasons:
        return {}
    holders = holders_of(paths).to_pylist()
    return {row: reasons[holder] for row, holder in enumerate(holders) if holder in reasons}


def _sides(found: Contents) -> dict[str, tuple[int, float, int]]:
    sizes = found.sizes[found.sizes[:, 0] > 0]
    if not len(sizes):
        return {}
    sides = {"short": sizes.min(1), "long": sizes.max(1)}
    return {name: (int(side.min()), float(np.median(side)), int(side.max())) for name, side in sides.items()}


# Sentences


def _noteworthy(labels: Classes, found: Copies) -> Iterator[str]:
    for split, count in labels.singletons.items():
        nothing = ", and so nothing to retrieve" if split == "test" else ""
        yield f"{_number(count, 'class has', 'classes have')} one image in {split}{nothing}"
    if labels.unanswerable:
        yield f"{_number(labels.unanswerable, 'query has', 'queries have')} no image of the same class in the gallery"
    for split, count in found.within.items():
        yield f"{_number(count, 'image of ' + split + ' is a copy', 'images of ' + split + ' are copies')} of another one there"
    if found.contradictions:
        several = _number(len(found.contradictions), "file has", "files have")
        yield f"{several} copies with another label: {_some(map(_said, found.contradictions))}"
    leaks = set(found.leaks)
    others = [group for group in found.across if group not in leaks]
    if others:
        yield f"{_files(others)} in several splits: {_some(map(_said, others))}"


def _each(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def _number(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _files(found: Sequence[object]) -> str:
    return _number(len(found), "file is", "files are")


def _said(group: Group) -> str:
    return " = ".join(f"{split} {path}" for split, path in group[:3]) + (" = ..." if len(group) > 3 else "")


def _some(texts: Iterable[str]) -> str:
    found = list(texts)
    return "; ".join(found[:_NAMED]) + (f"; and {len(found) - _NAMED:,} more" if len(found) > _NAMED else "")
