"""`glyphs`: characters of many scripts, drawn with the fonts that come with matplotlib; no download is needed.

A class is a character, its images are drawings in the font faces that have it, each a little rotated, slanted, scaled, moved
and in two grays of its own. The levels are character → group ("Greek capitals") → script ("Greek"). Half of the characters of
every group are for testing, so that test characters are new and their groups and scripts are not.
"""

from __future__ import annotations

import io
import os
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, features

from suprank.data.archives import write_images_zip
from suprank.data.importers.alphabets import GROUPS, characters, label
from suprank.data.importers.base import generated
from suprank.data.importers.typefaces import Face, Shape, can_draw, distinct_shapes, load_face, shapes_of, unique_names
from suprank.data.manifest import Manifest
from suprank.data.splits import holdout_classes

RECIPE = 1
"""Increased when the drawings change, so that nobody gets those of an older suprank from the cache."""

LEVELS = ("character", "group", "script")

MIN_FACES = 4
"""A character is included if at least this many faces draw it, each differently."""

_TEX = string.ascii_letters + string.digits  # elsewhere these fonts have TeX's characters at the code points of others
_FACES: Mapping[str, str | None] = {
    **{f"DejaVuSans{style}.ttf": None for style in ("", "-Bold", "-Oblique", "-BoldOblique")},
    **{f"DejaVuSerif{style}.ttf": None for style in ("", "-Bold", "-Italic", "-BoldItalic")},
    **{f"DejaVuSansMono{style}.ttf": None for style in ("", "-Bold")},
    **{f"STIXGeneral{style}.ttf": None for style in ("", "Bol", "Italic", "BolIta")},
    **{f"cm{style}10.ttf": _TEX for style in ("r", "b", "ss", "ti", "tt")},
    "cmmi10.ttf": string.ascii_letters,
    "cmsy10.ttf": string.ascii_uppercase,
}
"""matplotlib's font files → the characters to use from them; None: all."""

_EM = 0.7  # font size, as a share of the image's side
_FRAME = 0.75  # share of the side that an undisturbed character may fill; larger ones are drawn smaller
_MIDDLE = 0.33  # height over the baseline, in font sizes, that is at the middle of the image
_FINER = 2  # characters are drawn this much larger, then sampled down as they are rotated

# The range of variations: rotation (radians), slant, width and height (log scale), shift right and down (shares of the side),
# gray of the ink, gray of the paper. They are chosen so that nearest neighbors in pixels have the same character for one test
# image in four or three, and yet every drawing is easy to read.
_LEAST = (-0.12, -0.12, -0.12, -0.12, -0.05, -0.05, 0, 150)
_MOST = (0.12, 0.12, 0.12, 0.12, 0.05, 0.05, 90, 255)


def read(
    *,
    fonts: Sequence[str | os.PathLike[str]] = (),
    size: int = 64,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """The manifest of the characters, which are drawn in seconds at the first call and read from the cache after that.

    `fonts` are font files of your own, to use besides matplotlib's. `size` is the side of the images in pixels, at least 16,
    `seed` that of the split and of the variations; `cache` a folder in place of suprank's. `progress(done, total)` counts
    images. Equal arguments, fonts and Pillow give equal pixels.

    Characters with fewer than `MIN_FACES` different drawings are left out, and so are those that look like an earlier one
    (Greek Α is Latin A in most fonts), because their images could not be distinguished.
    """
    if size < 16:
        raise ValueError(f"size={size} is too small to draw characters; it must be at least 16, and 64 is usual.")
    faces = _faces([Path(path) for path in fonts], em(size))
    sources = [(face.name, face.digest) for face in faces]
    settings = (RECIPE, GROUPS, size, seed, features.version("freetype2"), sources)
    return generated("glyphs", settings, lambda folder: _build(folder, faces, size, seed, progress), cache)


def installed_fonts() -> list[Path]:
    """The font files of this system that `read` can draw with; others, such as those of colored emoji, are left out."""
    font_manager = _matplotlib("font_manager")
    return [path for path in map(Path, sorted(font_manager.findSystemFonts())) if can_draw(path, characters().keys())]


def em(size: int) -> int:
    """The font size in pixels at which shapes are drawn for images of this side."""
    return round(_EM * size * _FINER)


def _faces(fonts: Sequence[Path], em: int) -> list[Face]:
    """The faces of matplotlib and of the given fonts, at a size of `em` pixels."""
    folder = Path(_matplotlib().get_data_path(), "fonts", "ttf")
    ours = [load_face(folder / file, em, trusted) for file, trusted in _FACES.items() if (folder / file).is_file()]
    given = [load_face(path, em) for path in fonts]
    for path, font in zip(fonts, given, strict=True):
        if not font.has & characters().keys():
            raise ValueError(f"{path} has none of the characters that glyphs draws; leave it out.")
    return unique_names([*ours, *given])


def _matplotlib(module: str = "") -> Any:
    try:
        return import_module(f"matplotlib.{module}".rstrip("."))
    except ImportError as error:
        raise ImportError('glyphs are drawn with the fonts of matplotlib: pip install "suprank[vision]"') from error


def _build(folder: Path, faces: Sequence[Face], size: int, seed: int, progress: Callable[[int, int], None] | None) -> None:
    groups = characters()
    shapes = distinct_shapes(((character, shapes_of(character, faces)) for character in groups), MIN_FACES)
    if not shapes:
        raise FileNotFoundError(
            f"no character has {MIN_FACES} different shapes in the {len(faces)} fonts found; matplotlib should have "
            f"{len(_FACES)}: install it again, or give fonts of your own."
        )
    labels = {one: (label(one), groups[one].name, groups[one].script) for one in shapes}
    write(folder, shapes, labels, size, seed, progress)


def write(
    folder: Path,
    shapes: Mapping[str, Sequence[Shape]],
    labels: Mapping[str, tuple[str, str, str]],
    size: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Draw the shapes of each character into a zip file of the folder, with a manifest of its labels (name, group, script)."""
    rows = [(character, shape) for character, several in shapes.items() for shape in several]
    columns = {
        "path": write_images_zip(folder, _images(shapes, size, seed, progress)),
        "split": ["train"] * len(rows),
        **{f"label_{level}": [labels[one][place] for one, _ in rows] for place, level in enumerate(LEVELS)},
        "character": [character for character, _ in rows],
        "font": [shape.face for _, shape in rows],
    }
    manifest = Manifest.from_columns(columns, root=folder, about="glyphs")
    holdout_classes(manifest, 0.5, seed=seed).save(folder / "manifest.parquet")


def _images(
    shapes: Mapping[str, Sequence[Shape]], size: int, seed: int, progress: Callable[[int, int], None] | None
) -> Iterator[tuple[str, bytes]]:
    done, total = 0, sum(len(several) for several in shapes.values())
    for character, several in shapes.items():
        # One per character: another font leaves other characters as they were.
        generator = np.random.default_rng([seed, ord(character)])
        for shape in several:
            file = io.BytesIO()
            _draw(shape, size, generator).save(file, "PNG", compress_level=1)
            yield f"{ord(character):04x}/{shape.face}.png", file.getvalue()
            done += 1
        if progress is not None:
            progress(done, total)


def _draw(shape: Shape, size: int, generator: np.random.Generator) -> Image.Image:
    """Draw the shape in the middle of a gray image with a random rotation, slant, scale, shift, ink and paper."""
    turn, slant, wider, taller, right, down, ink, paper = generator.uniform(_LEAST, _MOST)
    turned = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    scales = np.exp([wider, taller]) * _fit_scale(shape, size) / _FINER
    forward = turned @ np.array([[1, slant], [0, 1]]) * scales
    back = np.linalg.inv(forward)  # PIL maps each pixel of the image to a point of the bitmap
    border = 2  # PIL does not blend outside of the bitmap: a transparent border lets edges fade
    origin = _middle(shape, size) - back @ (size * np.array([0.5 + right, 0.5 + down])) + border
    bitmap = ImageOps.expand(Image.frombytes("L", shape.size, shape.pixels), border)
    data = (*back[0], origin[0], *back[1], origin[1])
    coverage = bitmap.transform((size, size), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
    return Image.fromarray(np.rint(paper + (ink - paper) / 255 * np.asarray(coverage)).astype(np.uint8))


def _fit_scale(shape: Shape, size: int) -> float:
    """The factor that makes a shape fit into the frame: 1 for most."""
    return min(1.0, _FRAME * size * _FINER / max(shape.size))


def _middle(shape: Shape, size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The point of the bitmap that is put at the middle of the image.

    Vertically it is at half the height of a capital, so that a comma stays below an apostrophe, but no further from the bitmap
    than the frame allows.
    """
    width, height = shape.size
    slack = _FRAME * size * _FINER / _fit_scale(shape, size) / 2
    line = -shape.top - _MIDDLE * _EM * size * _FINER
    return np.array([width / 2, np.clip(line, height - slack, slack)])
