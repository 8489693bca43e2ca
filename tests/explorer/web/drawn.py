"""A collection that we draw ourselves: twelve kinds of figures in four families, and two ways to embed them that differ."""

import math

import numpy as np
from PIL import Image, ImageDraw

from suprank.data import Manifest
from suprank.explorer import Index
from suprank.explorer.web import Explorer, ExplorerRun
from tests.explorer.runs import of_arrays

SIDE = 96
KINDS = {
    "star": ("four-pointed star", "five-pointed star", "eight-pointed star"),
    "polygon": ("triangle", "square", "hexagon"),
    "flower": ("clover", "six petals", "nine petals"),
    "wheel": ("ring", "cross", "cogwheel"),
}


def _radius(kind, angle):
    """The outline of a figure: how far from the center, 0 to 1."""
    if kind.endswith("star"):
        points = {"four": 4, "five": 5, "eigh": 8}[kind[:4]]
        way = abs((angle * points / (2 * math.pi)) % 1 - 0.5) * 2
        return 0.4 + 0.6 * way**1.6
    if kind in ("triangle", "square", "hexagon"):
        sides = {"triangle": 3, "square": 4, "hexagon": 6}[kind]
        turn = 2 * math.pi / sides
        return math.cos(turn / 2) / math.cos((angle % turn) - turn / 2)
    if kind in ("clover", "six petals", "nine petals"):
        petals = {"clover": 3, "six petals": 6, "nine petals": 9}[kind]
        return 0.45 + 0.55 * abs(math.cos(petals * angle / 2)) ** 0.7
    if kind == "cogwheel":
        return 1.0 if (angle * 12 / (2 * math.pi)) % 1 < 0.5 else 0.8
    if kind == "cross":
        return 1.0 if abs(((angle / (math.pi / 2)) % 1) - 0.5) < 0.17 else 0.33
    return 1.0


def figure(kind, seed, side=SIDE):
    """A figure of this kind, somewhat turned, placed and colored."""
    draw = np.random.default_rng(seed)
    scale = 4
    colors = draw.uniform(0, 1, 2)
    back, front = (_color(colors[0], 0.18, 0.97), _color((colors[0] + 0.3 + 0.4 * colors[1]) % 1, 0.75, 0.72))
    picture = Image.new("RGB", (side * scale, side * scale), back)
    pen = ImageDraw.Draw(picture)
    turn, size = draw.uniform(0, 2 * math.pi), draw.uniform(0.33, 0.44) * side * scale
    x, y = (side * scale * draw.uniform(0.46, 0.54, 2)).tolist()
    angles = np.linspace(0, 2 * math.pi, 720, endpoint=False)
    radii = [_radius(kind, angle) * size for angle in angles]
    pen.polygon(
        [(x + r * math.cos(a + turn), y + r * math.sin(a + turn)) for a, r in zip(angles, radii, strict=True)], fill=front
    )
    if kind in ("ring", "cogwheel"):
        hole = size * (0.55 if kind == "ring" else 0.3)
        pen.ellipse([x - hole, y - hole, x + hole, y + hole], fill=back)
    return picture.resize((side, side), Image.Resampling.LANCZOS)


def _color(hue, saturation, value):
    import colorsys

    return tuple(round(255 * one) for one in colorsys.hsv_to_rgb(hue, saturation, value))


def by_shape(picture):
    """An embedding that sees the outline: how often the distance from the middle swings round it, whatever the colors."""
    pixels = np.asarray(picture.resize((SIDE, SIDE)), np.float32)
    inside = np.abs(pixels - pixels[2, 2]).sum(-1) > 60
    y, x = np.nonzero(inside)
    if not len(x):
        return np.ones(12, np.float32)
    angle, radius = np.arctan2(y - y.mean(), x - x.mean()), np.hypot(y - y.mean(), x - x.mean())
    image = ((angle + np.pi) / (2 * np.pi) * 64).astype(int) % 64
    profile = np.array([radius[image == one].max(initial=0) for one in range(64)])
    waves = np.abs(np.fft.rfft(profile / profile.max()))[:26] / 64
    filled = np.array([inside.mean(), float(radius.min() > 6)])
    rough = np.convolve(waves, [0.25, 0.5, 0.25], "same")  # so that it confuses kinds of one family, as a good model does
    return np.concatenate([rough[1:11] * 9, filled]).astype(np.float32)


def by_pixels(picture):
    """An embedding that sees colors: a few pixels."""
    return (np.asarray(picture.resize((6, 6)), np.float32).reshape(-1) - 128) / 128


def manifest(root, each=8, **further):
    """Draws `each` figures of every kind into a folder; their manifest."""
    rows = {"path": [], "split": [], "label_kind": [], "label_family": []}
    for family, kinds in KINDS.items():
        for kind in kinds:
            for number in range(each):
                path = f"{family}/{kind.replace(' ', '_')}/{number}.png"
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                figure(kind, len(rows["path"])).save(root / path)
                for name, value in zip(rows, (path, "test", kind, family), strict=True):
                    rows[name].append(value)
    return Manifest.from_columns({**rows, **further}, root=root)


_VECTORS = {}


def data(images, embed, name="by shape"):
    """Data of these images; they are embedded once."""
    paths = tuple(images.root / path for path in images.paths.to_pylist())
    if (paths, embed) not in _VECTORS:
        _VECTORS[paths, embed] = np.stack([embed(Image.open(path)) for path in paths])
    return of_arrays(name, _VECTORS[paths, embed], images)


def explorer(images, *, two=False, upload=True, **options):
    """One run that sees shapes; beside it, if wanted, one that sees pixels. All is measured already."""
    chosen = [("by shape", by_shape), ("by pixels", by_pixels)][: 1 + two]
    sources = [(data(images, embed, name), embed) for name, embed in chosen]
    opened = [ExplorerRun(one, Index.build(one.items.embeddings), embed if upload else None) for one, embed in sources]
    found = Explorer(opened, **options)
    found.measure()
    return found
