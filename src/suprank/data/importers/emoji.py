"""`emoji`: drawings of each emoji by up to six artists, from npm packages with open licenses.

A class is an emoji, its images are the artists' drawings. The levels are emoji → subgroup ("face-smiling") → group ("Smileys &
Emotion"), as in Unicode. Half of the emoji of every subgroup are for testing, so that test emoji are new and their groups are
not. suprank contains none of the drawings: they are downloaded and rendered on the user's machine, with their licenses.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from suprank.data.archives import write_images_zip
from suprank.data.importers import npm
from suprank.data.importers.base import generated
from suprank.data.importers.npm import NpmError, Package
from suprank.data.manifest import Manifest
from suprank.data.splits import holdout_classes

RECIPE = 1
"""Increased when the images change, so that nobody gets those of an older suprank from the cache."""

MIN_ARTISTS = 4
"""An emoji is included if at least this many of the six artists have a drawing of it that they use for no other emoji."""

LICENSES = "LICENSES.md"
"""The file in the manifest's root with the authors and licenses of the drawings."""

ARTISTS: Mapping[str, Package] = {
    "noto": Package("@iconify-json/noto", "1.2.9"),
    "noto-v1": Package("@iconify-json/noto-v1", "1.2.5"),
    "twemoji": Package("@iconify-json/twemoji", "1.2.5"),
    "emojione": Package("@iconify-json/emojione", "1.2.3"),
    "fluent": Package("@iconify-json/fluent-emoji", "1.2.7"),
    "fluent-flat": Package("@iconify-json/fluent-emoji-flat", "1.2.6"),
}
NAMES = Package("emoji-datasource-google", "16.0.0")
"""Names and groups of the emoji, one row each: variants of skin and hair tone are not rows, and so are not classes."""

available = npm.available


@dataclass(frozen=True)
class Icon:
    """A drawing: SVG elements and their box; `mirrored` if it is the mirror image of another icon."""

    name: str = field(compare=False)  # what errors call it
    body: str = field(repr=False)
    box: tuple[float, float, float, float]
    mirrored: bool = False


def read(
    *,
    size: int = 64,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """The manifest of the emoji, which are downloaded and rendered at the first call and read from the cache after that.

    The first call needs npm, a network (100 MB) and resvg_py; later ones need none of them. `size` is the side of the images in
    pixels, `seed` that of the split; `cache` a folder in place of suprank's. `progress(done, total)` counts rendered emoji.
    An interrupted call leaves nothing behind; the next one starts again, with npm's own cache of downloads.

    Raises `NpmError` if npm or the network is missing. `glyphs` needs neither.
    """
    if size < 1:
        raise ValueError(f"size={size} is the side of the images in pixels and must be at least 1; 64 is usual.")
    settings = (RECIPE, size, seed, *ARTISTS.items(), NAMES)
    return generated("emoji", settings, lambda folder: _build(folder, size, seed, progress), cache)


def _build(folder: Path, size: int, seed: int, progress: Callable[[int, int], None] | None) -> None:
    _renderer()  # before the download
    with tempfile.TemporaryDirectory() as fetched:
        archives = Path(fetched)
        _fetch(archives)
        names = npm.read_json(archives / NAMES.file, "emoji.json")
        icons = {artist: npm.read_json(archives / package.file, "icons.json") for artist, package in ARTISTS.items()}
        codes = {artist: npm.read_json(archives / package.file, "chars.json") for artist, package in ARTISTS.items()}
        (folder / LICENSES).write_text(_licenses(archives), encoding="utf-8")
    drawings = collect_drawings(names, icons, codes)
    described = {emoji["unified"]: emoji for emoji in names}
    rows = [(described[code], artist) for code, artists in drawings.items() for artist in artists]
    columns = {
        "path": write_images_zip(folder, _images(drawings, size, progress)),
        "split": ["train"] * len(rows),
        "label_emoji": [emoji["short_name"] for emoji, _ in rows],
        "label_subgroup": [emoji["subcategory"] for emoji, _ in rows],
        "label_group": [emoji["category"] for emoji, _ in rows],
        "vendor": [artist for _, artist in rows],
        "codepoints": [emoji["unified"] for emoji, _ in rows],
    }
    manifest = Manifest.from_columns(columns, root=folder, about="emoji")
    holdout_classes(manifest, 0.5, seed=seed).save(folder / "manifest.parquet")


def _fetch(folder: Path) -> None:
    try:
        npm.fetch([*ARTISTS.values(), NAMES], folder)
    except NpmError as error:
        raise NpmError(f"{error} Or use glyphs, which needs no download: suprank data import glyphs.") from error


def collect_drawings(
    names: Sequence[Mapping[str, Any]], icons: Mapping[str, Mapping[str, Any]], codes: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, Icon]]:
    """Emoji (its code points) → artist → drawing, for emoji with enough artists.

    Icons have names, and only some packages map code points to names (`codes`; empty for the others). But the packages use the
    same names: an artist has drawn an emoji if one of the names that any package gives to it is an icon or an alias. An alias
    of an icon that belongs to another emoji is ignored: "cricket" is the insect, and was once the game. A drawing that the
    artist uses for several emoji (one silhouette for all families) counts only for the first: the images would be equal, and
    could be in train and in test.
    """
    known = {artist: {_plain(code): name for code, name in given.items()} for artist, given in codes.items()}
    taken = {name for given in known.values() for name in given.values()}
    drawings: dict[str, dict[str, Icon]] = {}
    used: set[tuple[str, Icon]] = set()
    for emoji in names:
        code = _plain(emoji["unified"])
        given = [known[artist][code] for artist in known if code in known[artist]]
        found = {}
        for artist, package in icons.items():
            own = [known[artist][code]] if code in known[artist] else []
            drawing = _drawing([*own, *given], package, taken)
            if drawing is not None and (artist, drawing) not in used:
                found[artist] = drawing
        if len(found) >= MIN_ARTISTS:
            drawings[emoji["unified"]] = found
            used |= found.items()
    return drawings


def _drawing(candidates: Sequence[str], package: Mapping[str, Any], taken: Set[str]) -> Icon | None:
    """The first of the names that is an icon of the package; otherwise the first that is a trustworthy alias; or None."""
    aliases = package.get("aliases", {})
    trusted = [
        name for name in candidates if name in aliases and (aliases[name].get("hFlip") or aliases[name]["parent"] not in taken)
    ]
    direct = [name for name in candidates if name in package["icons"]]
    return next((find_icon(package, name) for name in (*direct, *trusted)), None)


def _plain(code: str) -> str:
    """Code points without the selector FE0F, which requests color and which packages include or omit."""
    return "-".join(part for part in code.lower().split("-") if part != "fe0f")


def _images(
    drawings: Mapping[str, Mapping[str, Icon]], size: int, progress: Callable[[int, int], None] | None
) -> Iterator[tuple[str, bytes]]:
    for done, (code, artists) in enumerate(drawings.items(), 1):
        for artist, drawing in artists.items():
            file = io.BytesIO()
            image = render_icon(drawing, size, about=ARTISTS[artist].name)
            image.save(file, "WEBP", lossless=True, method=1)  # a quarter of the default's time, 4 % more bytes
            yield f"{code.lower()}/{artist}.webp", file.getvalue()
        if progress is not None:
            progress(done, len(drawings))


def find_icon(package: Mapping[str, Any], name: str) -> Icon:
    """An icon of an Iconify package by its name or an alias, which may be the mirror image of its parent."""
    original, mirrored = name, False
    while original not in package["icons"]:
        alias = package["aliases"][original]
        if alias.keys() - {"parent", "hFlip", "hidden"}:
            raise ValueError(f"icon {name!r} is an alias with {', '.join(alias)}; only mirrored aliases (hFlip) are supported.")
        mirrored ^= alias.get("hFlip", False)
        original = alias["parent"]
    entry = package["icons"][original]
    sides = {"left": 0, "top": 0, "width": 16, "height": 16}  # Iconify's defaults
    left, top, width, height = (entry.get(side, package.get(side, default)) for side, default in sides.items())
    return Icon(name, entry["body"], (left, top, width, height), mirrored)


def render_icon(icon: Icon, size: int, about: str) -> Image.Image:
    """Render the icon in RGB on white, in the middle of a square image; errors name the package `about`."""
    view = " ".join(f"{number:g}" for number in icon.box)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{size}" height="{size}" viewBox="{view}">{icon.body}</svg>'
    )
    try:
        data = _renderer()(svg_string=svg, background="white")
    except ValueError as error:
        raise ValueError(
            f"{about}: icon {icon.name!r} is an SVG that cannot be rendered ({error}); the package has changed."
        ) from error
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return ImageOps.mirror(image) if icon.mirrored else image


def _renderer() -> Callable[..., bytes]:
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise ImportError('emoji are rendered with resvg_py: pip install "suprank[vision]"') from error
    return svg_to_bytes


def _licenses(archives: Path) -> str:
    """The authors and licenses that the packages name, as a table in Markdown."""
    lines = ["# Licenses of the drawings", "", "| as | package | author | license |", "|---|---|---|---|"]
    for artist, package in ARTISTS.items():
        info = npm.read_json(archives / package.file, "info.json")
        author, terms = info["author"], info["license"]
        drew = f"[{author['name']}]({author['url']})"
        lines.append(f"| {artist} | {package.name} {package.version} | {drew} | [{terms['title']}]({terms['url']}) |")
    terms = npm.read_json(archives / NAMES.file, "package.json")["license"]
    lines.append(f"| names and groups | {NAMES.name} {NAMES.version} | | {terms} |")
    return "\n".join([*lines, "", "Rendered by suprank at one size, on white; otherwise unchanged.", ""])
