"""Compare a manifest with its files: missing and broken images, duplicates across splits, and statistics of its classes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from suprank.data.class_statistics import ClassStatistics, class_statistics
from suprank.data.duplicates import DuplicateGroup, Duplicates, digest_codes, find_duplicates
from suprank.data.file_scan import FileScan, scan_files
from suprank.data.image_files import SEPARATOR, ImageFiles, archive_names, container_names, find_files
from suprank.data.images import MAX_ASPECT
from suprank.data.manifest import Manifest
from suprank.data.members import UnreadableArchiveError
from suprank.system.progress import Progress, progress_function

_SHOWN = 5  # paths that a sentence lists before it only counts


@dataclass(frozen=True)
class ManifestReport:
    """The result of `check_manifest`.

    missing     paths without a file
    broken      (path, reason) of files that are unreadable, damaged or not images
    copies      rows with equal content: across splits, within a split, with different labels
    by_content  whether copies were found by a hash of the content, or only as rows with equal paths
    sides       "short", "long" → least, median and greatest side in pixels, as stored; empty if nothing was decoded
    kinds       "JPEG RGB" and the like → number of files
    elongated   (path, width, height) of images over `MAX_ASPECT` times as long as wide, of which only the middle is used
    """

    images: int
    files: int
    splits: Mapping[str, int]
    classes: ClassStatistics
    missing: tuple[str, ...]
    broken: tuple[tuple[str, str], ...]
    copies: Duplicates
    by_content: bool
    sides: Mapping[str, tuple[int, float, int]]
    kinds: Mapping[str, int]
    elongated: tuple[tuple[str, int, int], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is missing, broken or leaking from train into evaluation, and no label has two parents."""
        return not (self.missing or self.broken or self.copies.leaks or self.classes.two_parents)

    def to_json(self) -> str:
        """All fields, with `ok` and the leaks, as JSON."""
        everything = {"ok": self.ok, "leaks": self.copies.leaks} | asdict(self)
        return json.dumps(everything, ensure_ascii=False, indent=2)

    def sentences(self) -> list[str]:
        """The report in lines to print: counts first, then remarks, then problems, the worst last."""
        return [*self._counts(), *_remarks(self.classes, self.copies), *self._elongated_images(), *self._problems()]

    def _counts(self) -> Iterator[str]:
        yield f"{self.images:,} images in {self.files:,} files: {_list_counts(self.splits)}"
        for level, counts in self.classes.counts.items():
            shared = self.classes.shared.get(level)
            both = "" if shared is None else f"; {shared or 'none'} of train's in evaluation"
            yield f"{level} classes: {_list_counts(counts)}{both}"
        if self.classes.multi_label:
            yield f"images with several labels: {_list_counts(self.classes.multi_label)}"
        if self.classes.placeholders:
            yield f"placeholders for blanks: {_list_counts(self.classes.placeholders)}"
        if self.classes.sizes:
            sizes = ", ".join(f"{images}: {count:,}" for images, count in self.classes.sizes.items())
            yield f"images a class → classes: {sizes}"
        if self.sides:
            sides = [f"{side} side {low:,} to {high:,}, median {middle:g}" for side, (low, middle, high) in self.sides.items()]
            yield f"pixels: {'; '.join(sides)}"
            yield f"formats: {_list_counts(self.kinds)}"

    def _elongated_images(self) -> Iterator[str]:
        if self.elongated:
            listed = _list_some(f"{path} ({width:,} × {height:,} pixels)" for path, width, height in self.elongated)
            yield f"{_files(self.elongated)} more than {MAX_ASPECT} times as long as wide, so only the middle is used: {listed}"

    def _problems(self) -> Iterator[str]:
        yield from (f"not a tree: {sentence}" for sentence in self.classes.two_parents)
        if self.copies.leaks:
            leaks = _list_some(map(_describe_group, self.copies.leaks))
            yield f"{_files(self.copies.leaks)} both in train and in evaluation: {leaks}"
        if self.broken:
            yield f"{_files(self.broken)} broken: {_list_some(f'{path} ({reason})' for path, reason in self.broken)}"
        if self.missing:
            yield f"{_files(self.missing)} missing: {_list_some(self.missing)}"


def check_manifest(
    manifest: Manifest,
    *,
    progress: bool | Progress = True,
    workers: int | None = None,
    decode: bool = True,
    hashes: bool = True,
) -> ManifestReport:
    """Check every file of the manifest once, with `workers` threads (None: one per core).

    `decode=False` skips whether files are complete images and how large they are; `hashes=False` skips whether two have the
    same content; with both, no file is opened. A missing root raises; a missing or unreadable archive is reported, with all its
    images. It takes about 100 bytes of memory a file.
    """
    files = ImageFiles(manifest.root)
    coded = manifest.paths.chunk(0).dictionary_encode()
    paths = coded.dictionary
    broken = _in_unreadable_archives(files, paths)
    listed = np.delete(np.arange(len(paths)), list(broken))
    exist, indices = find_files(paths.take(pa.array(listed)), files)
    missing, readable, indices = listed[~exist], listed[exist], indices[exist]
    opened = paths.take(pa.array(readable if decode or hashes else [], pa.int64()))
    scan = scan_files(
        files, opened, indices, decode=decode, hashes=hashes, workers=workers, progress=progress_function(progress, "checking")
    )
    broken |= {int(readable[index]): reason for index, reason in scan.broken.items()}
    content = np.arange(len(paths))  # each file its own, unless hashes are equal
    hashed = np.flatnonzero(scan.digests[:, 0] | scan.digests[:, 1])
    content[readable[hashed]] = len(paths) + digest_codes(scan.digests[hashed])
    return ManifestReport(
        images=len(manifest),
        files=len(paths),
        splits=manifest.splits,
        classes=class_statistics(manifest),
        missing=tuple(paths.take(pa.array(missing)).to_pylist()),
        broken=tuple((paths[row].as_py(), reason) for row, reason in sorted(broken.items())),
        copies=find_duplicates(manifest, content[coded.indices.to_numpy()]),
        by_content=hashes,
        sides=_side_statistics(scan),
        kinds=dict(scan.kinds.most_common()),
        elongated=tuple(
            (opened[int(index)].as_py(), *scan.sizes[index].tolist())
            for index in np.flatnonzero(scan.sizes.max(1) > MAX_ASPECT * scan.sizes.min(1))
        ),
    )


def _in_unreadable_archives(files: ImageFiles, paths: pa.Array) -> dict[int, str]:
    """Row → reason, for all members of archives that cannot be listed. The other archives are listed on the way."""
    reasons = {}
    for name in archive_names(paths):
        try:
            files.archive(name)
        except UnreadableArchiveError as error:
            reasons[name + SEPARATOR] = str(error)
        except FileNotFoundError:
            pass  # its members are missing
    if not reasons:
        return {}
    containers = container_names(paths).to_pylist()
    return {row: reasons[container] for row, container in enumerate(containers) if container in reasons}


def _side_statistics(scan: FileScan) -> dict[str, tuple[int, float, int]]:
    """The smallest, median and largest short and long side in pixels, over the images that could be decoded."""
    sizes = scan.sizes[scan.sizes[:, 0] > 0]
    if not len(sizes):
        return {}
    sides = {"short": sizes.min(1), "long": sizes.max(1)}
    return {name: (int(side.min()), float(np.median(side)), int(side.max())) for name, side in sides.items()}


# Sentences


def _remarks(labels: ClassStatistics, duplicates: Duplicates) -> Iterator[str]:
    for split, count in labels.singletons.items():
        nothing = ", and so no positive to retrieve" if split == "test" else ""
        yield f"{_number(count, 'class has', 'classes have')} one image in {split}{nothing}"
    if labels.unanswerable:
        yield f"{_number(labels.unanswerable, 'query has', 'queries have')} no image of the same class in the gallery"
    for split, count in duplicates.within.items():
        yield f"{_number(count, 'image of ' + split + ' is a copy', 'images of ' + split + ' are copies')} of another one there"
    if duplicates.contradictions:
        several = _number(len(duplicates.contradictions), "file has", "files have")
        yield f"{several} copies with another label: {_list_some(map(_describe_group, duplicates.contradictions))}"
    leaks = set(duplicates.leaks)
    others = [group for group in duplicates.across if group not in leaks]
    if others:
        yield f"{_files(others)} in several splits: {_list_some(map(_describe_group, others))}"


def _list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def _number(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _files(listed: Sequence[object]) -> str:
    return _number(len(listed), "file is", "files are")


def _describe_group(group: DuplicateGroup) -> str:
    return " = ".join(f"{split} {path}" for split, path in group[:3]) + (" = ..." if len(group) > 3 else "")


def _list_some(texts: Iterable[str]) -> str:
    listed = list(texts)
    return "; ".join(listed[:_SHOWN]) + (f"; and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else "")
