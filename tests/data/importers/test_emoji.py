"""Emoji from npm packages, here tiny ones made by the test: who draws what, how, and under which license."""

from __future__ import annotations

import csv
import io
import itertools
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from suprank.data.importers import emoji, npm
from suprank.data.importers.emoji import ARTISTS, LICENSES, NAMES, Icon, collect_drawings, find_icon, render_icon
from suprank.data.importers.npm import NpmError
from suprank.system.platforms import default_cache

pytest.importorskip("resvg_py")

REFERENCE = Path(__file__).parents[3] / "../shared/data/emoji64.zip"
LISTED = [  # code points, short name, subgroup, group, how many of the six artists draw it
    ("1F600", "grinning", "face-smiling", "Smileys", 6),
    ("1F601", "grin", "face-smiling", "Smileys", 4),
    ("1F602", "joy", "face-smiling", "Smileys", 3),
    ("1F436", "dog", "animal-mammal", "Animals", 5),
    ("1F431", "cat", "animal-mammal", "Animals", 6),
    ("2600-FE0F", "sunny", "sky", "Travel", 6),
]
COLORS = {"grinning": "#f00", "grin": "#f60", "joy": "#fc0", "dog": "#00f", "sunny": "#ff0"}
WITH_CODES = ("noto", "twemoji", "fluent-flat")  # the others have icons and names only, as in the real packages


def _body(color: str) -> str:
    return f'<path fill="{color}" d="M0 0h8v16H0z"/>'


def _packages() -> dict[str, dict[str, object]]:
    """Archive → its JSON files. The left half of a drawing is colored, except the cat's: it is the dog seen in a mirror."""
    packages: dict[str, dict[str, object]] = {}
    for place, (artist, package) in enumerate(ARTISTS.items()):
        drawn = [(code, name) for code, name, *_, artists in LISTED if place < artists]
        icons = {name: {"body": _body(COLORS[name])} for name in ("dog", *(name for _, name in drawn if name != "cat"))}
        packages[package.file] = {
            "icons": {"icons": icons, "aliases": {"cat": {"parent": "dog", "hFlip": True}}, "width": 16, "height": 16},
            "chars": {code.lower().replace("-fe0f", ""): name for code, name in drawn} if artist in WITH_CODES else {},
            "info": {
                "author": {"name": f"{artist} & Co", "url": "https://author"},
                "license": {"title": "MIT", "url": "https://license"},
            },
        }
    rows = [{"unified": c, "short_name": n, "subcategory": s, "category": g} for c, n, s, g, _ in LISTED]
    packages[NAMES.file] = {"emoji": rows, "package": {"license": "MIT"}}
    return packages


def _fake_npm(monkeypatch, packages) -> list[int]:
    """Make `npm.fetch` write these packages; the list returned grows with each call."""
    calls: list[int] = []

    def fetch(wanted, folder):
        calls.append(len(wanted))
        for file, contents in packages.items():
            with tarfile.open(folder / file, "w:gz") as archive:
                for name, content in contents.items():
                    data = json.dumps(content).encode()
                    member = tarfile.TarInfo(f"package/{name}.json")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))

    monkeypatch.setattr(npm, "fetch", fetch)
    return calls


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    _fake_npm(monkeypatch, _packages())
    return emoji.read(cache=tmp_path)


def _pixels(manifest, member: str) -> np.ndarray:
    with zipfile.ZipFile(manifest.root / "images.zip") as archive:
        return np.asarray(Image.open(io.BytesIO(archive.read(member))))


def test_only_emoji_drawn_by_four_of_six_are_kept(tiny):
    assert tiny.levels == ("emoji", "subgroup", "group")
    assert tiny.names["emoji"] == ("cat", "dog", "grin", "grinning", "sunny")
    drawn = {name: tiny.table["label_emoji"].to_pylist().count(name) for name in tiny.names["emoji"]}
    assert drawn == {"cat": 6, "dog": 6, "grin": 4, "grinning": 6, "sunny": 6}  # the dog is there for the cat's sake
    assert tiny.to_tree().levels == tiny.levels


def test_emoji_are_disjoint_between_train_and_test_and_subgroups_shared_where_they_can_be(tiny):
    train, test = (tiny.split(split).table.to_pydict() for split in ("train", "test"))
    assert not set(train["label_emoji"]) & set(test["label_emoji"])
    assert {"face-smiling", "animal-mammal"} <= set(train["label_subgroup"]) & set(test["label_subgroup"])


def test_drawings_are_rgb_on_white_at_the_size_asked_for(monkeypatch, tmp_path):
    _fake_npm(monkeypatch, _packages())
    pixels = _pixels(emoji.read(cache=tmp_path, size=32), "1f600/noto.webp")
    assert pixels.shape == (32, 32, 3)
    assert pixels[16, 4].tolist() == [255, 0, 0]
    assert pixels[16, 28].tolist() == [255, 255, 255]


def test_an_alias_may_be_the_mirror_image_of_its_parent(tiny):
    dog, cat = (_pixels(tiny, f"{code}/emojione.webp") for code in ("1f436", "1f431"))
    assert dog[32, 8].tolist() == [0, 0, 255]
    assert np.array_equal(dog[:, ::-1], cat)


def _icons(*names: str, **aliases: str) -> dict[str, object]:
    """A package with an icon for each name, and aliases to their parents."""
    return {"icons": {name: {"body": name} for name in names}, "aliases": {key: {"parent": of} for key, of in aliases.items()}}


def _names(drawn):
    return {code: {artist: drawing.name for artist, drawing in artists.items()} for code, artists in drawn.items()}


def test_an_alias_of_another_emojis_icon_is_not_believed():
    names = [{"unified": "1F997"}, {"unified": "1F3CF"}]
    codes = {"a": {"1f3cf": "cricket-game", "1f997": "cricket"}, "b": {}, "c": {}, "d": {}, "e": {}}
    icons = {artist: _icons("cricket-game", "cricket") for artist in "abcd"} | {
        "e": _icons("cricket-game", cricket="cricket-game")
    }
    drawn = collect_drawings(names, icons, codes)
    assert sorted(drawn["1F3CF"]) == ["a", "b", "c", "d", "e"]
    assert sorted(drawn["1F997"]) == ["a", "b", "c", "d"]


def test_the_color_selector_does_not_matter_and_aliases_do():
    icons = {artist: _icons("sun") for artist in "abc"} | {"d": _icons("old-sun", sun="old-sun")}
    drawn = collect_drawings([{"unified": "2600-FE0F"}], icons, {"a": {"2600": "sun"}, "b": {}, "c": {}, "d": {}})
    assert _names(drawn) == {"2600-FE0F": {"a": "sun", "b": "sun", "c": "sun", "d": "sun"}}


def test_a_drawing_that_stands_for_several_emoji_counts_for_the_first():
    codes = {artist: {"1": "boys", "2": "girls"} for artist in "abcde"}
    icons = {artist: _icons("boys", "girls") for artist in "abcde"}
    icons["e"]["icons"]["girls"] = icons["e"]["icons"]["boys"]
    names = [{"unified": "1"}, {"unified": "2"}]
    assert {code: "".join(artists) for code, artists in collect_drawings(names, icons, codes).items()} == {
        "1": "abcde",
        "2": "abcd",
    }
    icons["d"]["icons"]["girls"] = icons["d"]["icons"]["boys"]
    assert list(collect_drawings(names, icons, codes)) == ["1"]  # three artists are too few


def test_an_icon_that_is_not_square_keeps_its_proportions_in_the_middle():
    wide = find_icon({"icons": {"w": {"body": '<path d="M0 0h32v16H0z"/>', "width": 32}}, "height": 16}, "w")
    assert wide.box == (0, 0, 32, 16)
    dark = np.asarray(render_icon(wide, 64, "w"))[:, :, 0] < 128
    assert dark.any(1).sum() == 32
    assert dark[16:48].all()


def test_licenses_stand_beside_the_manifest(tiny):
    text = (tiny.root / LICENSES).read_text()
    for artist, package in ARTISTS.items():
        assert (
            f"| {artist} | {package.name} {package.version} | [{artist} & Co](https://author) | [MIT](https://license) |"
            in text
        )
    assert NAMES.name in text


def test_a_set_is_fetched_once_and_then_needs_no_npm(monkeypatch, tmp_path):
    calls, seen = _fake_npm(monkeypatch, _packages()), []
    first = emoji.read(cache=tmp_path, progress=lambda done, total: seen.append((done, total)))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert emoji.read(cache=tmp_path).table.equals(first.table)
    assert calls == [7]
    assert seen[-1] == (5, 5)


def test_a_build_that_stops_leaves_nothing_and_the_next_is_whole(monkeypatch, tmp_path):
    _fake_npm(monkeypatch, _packages())

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        emoji.read(cache=tmp_path, progress=stop)
    assert not list((tmp_path / "emoji").glob("*.unfinished"))
    assert len(emoji.read(cache=tmp_path)) == 28


def test_without_npm_the_error_names_glyphs(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not emoji.available()
    with pytest.raises(NpmError, match="no command npm here; .*Or use glyphs.*suprank data import glyphs"):
        emoji.read(cache=tmp_path)


def test_a_broken_drawing_is_named(monkeypatch, tmp_path):
    packages = _packages()
    packages[ARTISTS["twemoji"].file]["icons"]["icons"]["grin"]["body"] = "<path"
    _fake_npm(monkeypatch, packages)
    with pytest.raises(ValueError, match="@iconify-json/twemoji: icon 'grin' is an SVG that cannot be rendered"):
        emoji.read(cache=tmp_path)


def test_an_alias_that_is_turned_is_refused_rather_than_drawn_wrong():
    package = {"icons": {"a": {"body": ""}}, "aliases": {"b": {"parent": "a", "rotate": 1}}}
    with pytest.raises(ValueError, match="icon 'b' is an alias with parent, rotate; only mirrored aliases"):
        find_icon(package, "b")


def test_a_size_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="size=0 .* must be at least 1"):
        emoji.read(cache=tmp_path, size=0)


def test_renderings_are_deterministic():
    drawing = Icon("x", _body("teal"), (0, 0, 16, 16))
    assert render_icon(drawing, 64, "x").tobytes() == render_icon(drawing, 64, "x").tobytes()


def _reference():
    """The pack's labels and images by (code points, artist), if it is there."""
    if not REFERENCE.is_file():
        pytest.skip("needs ../shared/data/emoji64.zip")
    archive = zipfile.ZipFile(REFERENCE)
    with archive.open("manifest.csv") as file:
        rows = list(csv.DictReader(io.TextIOWrapper(file, "utf-8")))
    return {(row["codepoints"], row["vendor"]): row for row in rows}, archive


def _real():
    """The real set, if this machine has made it."""
    if not list((default_cache() / "emoji").glob("*/manifest.parquet")):
        pytest.skip("the real set is not in the cache; make it with `suprank data import emoji`")
    return emoji.read()


def test_a_real_set_has_the_drawings_of_the_reference_pack_but_for_copies():
    real, (reference, archive) = _real(), _reference()
    rows = {(row["codepoints"], row["vendor"]): row for row in real.table.to_pylist()}
    assert rows.keys() <= reference.keys()
    emoji_left_out = {code for code, _ in reference.keys() - rows.keys()} - {code for code, _ in rows}
    assert len(emoji_left_out) == 14  # astronaut, and families, which twemoji draws alike
    labels = ("label_emoji", "label_subgroup", "label_group")
    assert all(rows[key][name] == reference[key][name] for key in rows for name in labels)
    mine = zipfile.ZipFile(real.root / "images.zip")
    for key in list(rows)[::50]:
        ours, theirs = (
            np.asarray(Image.open(io.BytesIO(data)), int)
            for data in (mine.read(rows[key]["path"].partition("::")[2]), archive.read(reference[key]["path"]))
        )
        assert np.abs(ours - theirs).mean() < 15  # theirs lost a little to WebP


@pytest.mark.slow
def test_the_real_packages_still_make_the_set(tmp_path, monkeypatch):
    if not emoji.available():
        pytest.skip("needs npm")
    number, blank = itertools.count(), Image.new("RGB", (16, 16))
    monkeypatch.setattr(  # every tenth drawing is rendered, and all are saved
        emoji, "render_icon", lambda *arguments, **options: blank if next(number) % 10 else render_icon(*arguments, **options)
    )
    try:
        real = emoji.read(cache=tmp_path, size=16)
    except NpmError as error:
        pytest.skip(f"needs the npm registry: {error}")
    assert len(real) == 8604
    assert [len(real.names[level]) for level in real.levels] == [1600, 96, 9]
