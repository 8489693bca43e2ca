"""What every importer shares: its name and layout, a look at what is missing, and the published counts beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suprank.data.files import absent
from suprank.data.manifest import Manifest

_NAMED = 3  # absent images that a sentence names before it only counts
IMAGES = "images"


@dataclass(frozen=True)
class Importer:
    """A public dataset that `suprank data import <name>` turns into a manifest.

    `read` parses the label files under a root into manifests: the one under "" is the main one, others are further test
    sets, by the suffix their file gets. `published` says for each split how many images, and classes of each level, the
    complete dataset has; splits of a further test set are called `<suffix>/<split>`.
    """

    name: str
    title: str
    layout: str
    read: Callable[[Path], dict[str, Manifest]]
    published: Mapping[str, Mapping[str, int]]

    def __call__(self, root: Path) -> Imported:
        """The manifests under `root`, with what is missing."""
        root = Path(root)
        if not root.exists():
            raise FileNotFoundError(f"{root} is not there; {self.name} expects under it:\n{self.layout}")
        manifests = self.read(root)
        return Imported(manifests, tuple(report(manifests, self.published)))


@dataclass(frozen=True)
class Imported:
    """Manifests by suffix ("" is the main one), and sentences on their counts and on what is missing."""

    manifests: Mapping[str, Manifest]
    sentences: tuple[str, ...]

    def files(self, out: Path) -> dict[Path, Manifest]:
        """Where each manifest goes: `out`, and `<stem>-<suffix>` beside it for further test sets."""
        return {
            out.with_name(f"{out.stem}-{suffix}{out.suffix}") if suffix else out: manifest
            for suffix, manifest in self.manifests.items()
        }


def required(root: Path, file: str, name: str, layout: str) -> Path:
    """The file under `root`, or an error that says what the importer `name` expects."""
    path = root / file
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; {name} expects under {root}:\n{layout}")
    return path


def counts(manifest: Manifest) -> dict[str, dict[str, int]]:
    """Split → {"images": ..., level: number of its classes, ...}."""
    splits = np.asarray(manifest.table["split"])
    found = {}
    for split, images in manifest.splits.items():
        labels = manifest.labels[splits == split]
        classes = {
            level: len(np.unique(labels[:, column][labels[:, column] >= 0])) for column, level in enumerate(manifest.levels)
        }
        found[split] = {IMAGES: images} | classes
    return found


def report(manifests: Mapping[str, Manifest], published: Mapping[str, Mapping[str, int]]) -> list[str]:
    lines, seen = [], set()
    for suffix, manifest in manifests.items():
        for split, found in counts(manifest).items():
            key = f"{suffix}/{split}" if suffix else split
            seen.add(key)
            lines.append(_compared(key, found, published.get(key, {})))
        lines.extend(_absent(manifest))
        lines.extend(f"not a tree: {sentence}" for sentence in manifest.two_parents())
    lines.extend(f"{key}: nothing found; published: {_said(published[key])}" for key in published if key not in seen)
    return lines


def _compared(key: str, found: Mapping[str, int], expected: Mapping[str, int]) -> str:
    differ = {what: number for what, number in expected.items() if found.get(what) != number}
    if not expected:
        return f"{key}: {_said(found)}"
    return f"{key}: {_said(found)}" + (f"; published: {_said(differ)}" if differ else ", as published")


def _said(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in numbers.items())


def _absent(manifest: Manifest) -> list[str]:
    rows = absent(manifest.paths, manifest.root)
    if not len(rows):
        return []
    first = ", ".join(manifest.paths[int(row)].as_py() for row in rows[:_NAMED])
    more = ", ..." if len(rows) > _NAMED else ""
    return [f"{len(rows):,} of {len(manifest):,} images are not under {manifest.root} ({first}{more})"]
