"""The manifest that a recipe names: a file, or one of the sets that are drawn on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suprank.data import Manifest

if TYPE_CHECKING:
    from collections.abc import Callable


def manifest_of(name: str, root: str | None = None, progress: Callable[[int, int], None] | None = None) -> Manifest:
    """The manifest called `emoji` or `glyphs`, made on the first call and kept, or the one in a file of that name."""
    show = progress or (lambda done, total: None)
    if name == "glyphs":
        from suprank.data.importers import glyphs

        return glyphs.read(progress=show)
    if name == "emoji":
        from suprank.data.importers import emoji

        return emoji.read(progress=show)
    return Manifest.read(name, root=root)
