"""What importers of text lists share: lines with their numbers, one kind of error, rows into a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suprank.data.columns import PREFIX
from suprank.data.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of every line that is not blank, without the white space around it.

    UTF-8, with or without a byte order mark; lines end in LF, CRLF or CR, and the last one need not end at all.
    """
    with path.open(encoding="utf-8-sig") as file:
        try:
            for number, line in enumerate(file, 1):
                if text := line.strip():
                    yield number, text
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text ({error}); unpack it, or download it again.") from error


def malformed(path: Path, number: int, line: str, rule: str) -> ValueError:
    """The error of a line that breaks a rule ("it should be ...")."""
    return ValueError(f"{path}:{number}: {line!r}: {rule}. Mend the line, or download the file again.")


def manifest(rows: Sequence[tuple[str, ...]], levels: Sequence[str], root: Path, about: Path) -> Manifest:
    """The manifest of rows (path, split, label of each level, finest first), which came from the file or folder `about`."""
    if not rows:
        raise ValueError(f"{about} lists no images; download it again.")
    names = ("path", "split", *(PREFIX + level for level in levels))
    return Manifest.of(dict(zip(names, zip(*rows, strict=True), strict=True)), root=root, levels=levels, about=str(about))
