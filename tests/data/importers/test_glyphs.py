"""Characters drawn from matplotlib's fonts: enough of them, really different, split by class, the same each time."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import time
import unicodedata
import zipfile
from collections import Counter, defaultdict
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from suprank.data.importers import glyphs
from suprank.data.importers.alphabets import GROUPS, Group, characters, label

FONTS = Path(matplotlib.get_data_path(), "fonts", "ttf")
ONE_MORE = FONTS / "DejaVuSansMono-Oblique.ttf"  # not among the faces that glyphs takes by itself
FEW = (
    Group("Latin", "Latin capitals", "0041-0044", "Lu"),
    Group("Greek", "Greek capitals", "0391-0394", "Lu"),
    Group("Cyrillic", "Cyrillic small letters", "0430-0439", "Ll"),
)


def _few():
    return {character: group for group in FEW for character in group.characters()}


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    began = time.perf_counter()
    manifest = glyphs.read(cache=tmp_path_factory.mktemp("cache"))
    print(f"glyphs: {len(manifest):,} images in {time.perf_counter() - began:.1f} s")
    return manifest


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(glyphs, "characters", _few)


def _images(manifest):
    archive = zipfile.ZipFile(manifest.root / "images.zip")
    members = [path.partition("::")[2] for path in manifest.paths.to_pylist()]
    return {member: Image.open(io.BytesIO(archive.read(member))) for member in members}


def _digest(manifest):
    pixels = b"".join(member.encode() + image.tobytes() for member, image in _images(manifest).items())
    return hashlib.sha256(pixels + str(manifest.table.to_pylist()).encode()).hexdigest()


def test_labels_are_readable_and_unique():
    labels = [label(character) for character in characters()]
    assert len(set(labels)) == len(labels)
    assert label("Æ") == "Latin capital letter Ae"
    assert label("Ж") == "Cyrillic capital letter Zhe"
    assert label("7") == "Digit seven"


def test_groups_have_different_names_and_hold_only_what_unicode_assigns():
    assert len({group.name for group in GROUPS}) == len(GROUPS)
    assert not [character for character in characters() if unicodedata.category(character) == "Cn"]


def test_there_are_600_characters_on_three_levels(everything):
    tree = everything.to_tree()
    assert everything.levels == ("character", "group", "script")
    assert len(everything.names["character"]) >= 600
    assert len(everything.names["group"]) >= 20
    assert len(everything.names["script"]) >= 8
    assert tree.levels == everything.levels


def test_every_character_has_at_least_four_faces(everything):
    assert min(Counter(everything.table["label_character"].to_pylist()).values()) >= 4
    assert len(set(everything.table["font"].to_pylist())) >= 15


def test_characters_are_disjoint_between_train_and_test_and_groups_are_shared(everything):
    train, test = (everything.split(split).table.to_pydict() for split in ("train", "test"))
    assert not set(train["label_character"]) & set(test["label_character"])
    assert set(train["label_group"]) == set(test["label_group"])
    assert set(train["label_script"]) == set(test["label_script"])
    sizes = [len(set(side["label_character"])) for side in (train, test)]
    assert abs(sizes[0] - sizes[1]) <= 1


def test_images_are_gray_of_one_size_and_nothing_is_blank_or_cut(everything):
    images = _images(everything.take(range(0, len(everything), 3)))
    assert {(image.mode, image.size) for image in images.values()} == {("L", (64, 64))}
    pixels = np.stack([np.asarray(image) for image in images.values()]).astype(int)
    paper = np.median(pixels[:, [0, -1]].reshape(len(pixels), -1), axis=1)[:, None, None]
    ink = np.abs(pixels - paper) > 25
    edges = ink[:, 0].sum(1) + ink[:, -1].sum(1) + ink[:, :, 0].sum(1) + ink[:, :, -1].sum(1)
    assert ink.sum((1, 2)).min() >= 10
    assert (edges > 4).mean() < 0.001


def test_letters_that_look_the_same_in_another_script_are_left_out(everything):
    drawn = set(everything.table["character"].to_pylist())
    assert {"A", "O", "Γ", "Ж"} <= drawn
    assert not {"Α", "А", "Ο", "О"} & drawn  # Greek and Cyrillic A and O


def test_tex_fonts_draw_letters_and_digits_only(everything):
    drawn = defaultdict(set)
    for row in everything.table.select(["font", "character"]).to_pylist():
        drawn[row["font"]].add(row["character"])
    assert drawn["cmr10"] == set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
    assert drawn["cmsy10"] == set("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def test_a_set_is_made_once_and_read_after(few, tmp_path, monkeypatch):
    calls = []
    first = glyphs.read(cache=tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (len(first), len(first))
    monkeypatch.setattr(glyphs, "_build", None)  # would fail if called
    assert glyphs.read(cache=tmp_path).table.equals(first.table)


def test_equal_arguments_give_equal_pixels_in_another_process_too(few, tmp_path):
    here = _digest(glyphs.read(cache=tmp_path / "here"))
    code = (
        "import sys; from tests.data.importers import test_glyphs as t; t.glyphs.characters = t._few;"
        "print(t._digest(t.glyphs.read(cache=sys.argv[1])))"
    )
    root = Path(__file__).parents[3]
    environment = {"PYTHONPATH": f"{root}:{root / 'src'}", "PYTHONHASHSEED": "7"}
    there = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "there")], capture_output=True, text=True, env=environment, check=True
    )
    assert there.stdout.strip() == here


def test_seed_and_size_make_other_sets(few, tmp_path):
    usual, seeded = (glyphs.read(cache=tmp_path, seed=seed) for seed in (0, 1))
    assert _digest(usual) != _digest(seeded)
    assert {image.size for image in _images(glyphs.read(cache=tmp_path, size=32)).values()} == {(32, 32)}


def test_your_own_fonts_add_drawings_and_leave_the_others_as_they_were(few, tmp_path):
    usual = _images(glyphs.read(cache=tmp_path))
    with_mine = _images(glyphs.read(cache=tmp_path, fonts=[ONE_MORE]))
    assert usual.keys() < with_mine.keys()
    assert {member.split("/")[1] for member in with_mine.keys() - usual.keys()} == {"DejaVuSansMono-Oblique.png"}
    assert all(image.tobytes() == with_mine[member].tobytes() for member, image in usual.items())


def test_a_font_that_repeats_another_adds_nothing_even_under_its_name(few, tmp_path):
    copy = tmp_path / "DejaVuSans.ttf"
    copy.write_bytes((FONTS / "DejaVuSans.ttf").read_bytes())
    assert len(glyphs.read(cache=tmp_path, fonts=[copy])) == len(glyphs.read(cache=tmp_path))


def test_fonts_of_one_name_are_told_apart(few, tmp_path):
    namesake = tmp_path / "DejaVuSans.ttf"
    namesake.write_bytes(ONE_MORE.read_bytes())
    found = glyphs.read(cache=tmp_path, fonts=[namesake])
    assert "DejaVuSans-2" in found.table["font"].to_pylist()
    assert len(set(found.paths.to_pylist())) == len(found)


def test_a_character_that_a_font_lacks_is_never_drawn_as_a_box(few, tmp_path, monkeypatch):
    han = Group("Han", "Han characters", "4E00-4E05", "Lo")  # none of the fonts has them; all would draw the box
    monkeypatch.setattr(glyphs, "characters", lambda: _few() | dict.fromkeys(han.characters(), han))
    assert "Han" not in glyphs.read(cache=tmp_path).names["script"]


def test_bad_fonts_are_named(tmp_path):
    broken = tmp_path / "mine.ttf"
    broken.write_text("not a font")
    with pytest.raises(ValueError, match="mine.ttf is not a font that can be read .*; give .ttf or .otf files"):
        glyphs.read(cache=tmp_path, fonts=[broken])
    with pytest.raises(FileNotFoundError, match="absent.ttf does not exist"):
        glyphs.read(cache=tmp_path, fonts=[tmp_path / "absent.ttf"])
    with pytest.raises(ValueError, match="STIXNonUni.ttf has none of the characters that glyphs draws; leave it out"):
        glyphs.read(cache=tmp_path, fonts=[FONTS / "STIXNonUni.ttf"])
    with pytest.raises(ValueError, match="size=8 is too small"):
        glyphs.read(cache=tmp_path, size=8)


def test_a_matplotlib_without_its_fonts_is_an_error_with_a_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(matplotlib, "get_data_path", lambda: str(tmp_path))
    with pytest.raises(FileNotFoundError, match="in the 0 fonts found; matplotlib should have 21: install it again, or give"):
        glyphs.read(cache=tmp_path)


@pytest.mark.slow
def test_pixels_alone_are_not_enough(everything):
    import torch

    test = everything.split("test")
    pixels = np.stack([np.asarray(image.reduce(2), np.float32).ravel() for image in _images(test).values()])
    embeddings = torch.nn.functional.normalize(torch.from_numpy(pixels - pixels.mean(1, keepdims=True)))
    scores = (embeddings @ embeddings.T).fill_diagonal_(-1)
    labels = torch.from_numpy(test.labels[:, 0])
    found = (labels[scores.argmax(1)] == labels).float().mean().item()
    assert 0.25 < found < 0.5


BITMAPS = """STARTFONT 2.1
FONT -x-x-Medium-R-Normal--8-80-75-75-C-80-ISO10646-1
SIZE 8 75 75
FONTBOUNDINGBOX 8 2 0 0
CHARS 1
STARTCHAR A
ENCODING 65
SWIDTH 500 0
DWIDTH 8 0
BBX 8 2 0 0
BITMAP
FF
81
ENDCHAR
ENDFONT
"""


def test_installed_fonts_that_cannot_be_drawn_with_are_left_out(monkeypatch, tmp_path):
    (tmp_path / "broken.ttf").write_text("not a font")
    (tmp_path / "bitmaps.ttf").write_text(BITMAPS)  # of one size, like fonts of colored emoji
    signs = FONTS / "STIXNonUni.ttf"  # has none of the usual characters
    files = [tmp_path / "broken.ttf", tmp_path / "bitmaps.ttf", signs, ONE_MORE]
    monkeypatch.setattr("matplotlib.font_manager.findSystemFonts", lambda: [str(file) for file in files])
    assert glyphs.installed_fonts() == [ONE_MORE]
