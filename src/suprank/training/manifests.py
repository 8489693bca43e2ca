"""The manifest that a recipe names: a file, or one of the datasets that are drawn on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suprank.data import Manifest

if TYPE_CHECKING:
    from collections.abc import Callable


def open_manifest(name: str, root: str | None = None, progress: Callable[[int, int], None] | None = None) -> Manifest:
    """Read the manifest in a file, or the one called `emoji` or `glyphs`, which is drawn on the first call and cached."""
    show = progress or (lambda done, total: None)
    if name == "glyphs":
        from suprank.data.importers import glyphs

        return glyphs.read(progress=show)
    if name == "emoji":
        from suprank.data.importers import emoji

        return emoji.read(progress=show)
    return Manifest.read(name, root=root)
