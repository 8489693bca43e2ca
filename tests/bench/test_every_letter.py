"""benchmarks/every_letter.py: letters beyond the usual set, their groups, and limits."""

from collections import Counter
from pathlib import Path

import every_letter
import matplotlib
import pytest
from every_letter import characters_and_letters, letter_label, without_placeholders

from suprank.data import Manifest
from suprank.data.importers import glyphs
from suprank.data.importers.alphabets import characters
from suprank.data.importers.typefaces import Shape

FONTS = sorted(Path(matplotlib.get_data_path(), "fonts", "ttf").glob("DejaVu*.ttf"))


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """Sixty of the letters of matplotlib's fonts, in up to five faces each."""
    folder = tmp_path_factory.mktemp("letters")
    every_letter.draw(folder, FONTS, characters=60, drawings=5, size=16, seed=0)
    return Manifest.read(folder / "manifest.parquet")


def test_letters_are_limited_to_so_many_characters_and_drawings(letters):
    drawings = Counter(letters.table["character"].to_pylist())
    assert 30 < len(drawings) <= 60, "some look like another"
    assert set(drawings.values()) <= {glyphs.MIN_FACES, 5}
    assert len(set(letters.paths.to_pylist())) == len(letters)
    assert drawings.keys() - characters().keys(), "there are letters beyond the usual groups"


def test_every_letter_has_the_levels_of_the_usual_set(letters):
    found = characters_and_letters(letters.table["character"].to_pylist())
    for row in letters.table.to_pylist():
        group = found[row["character"]]
        assert (row["label_group"], row["label_script"]) == (group.name, group.script)
    test, train = (set(letters.split(split).table["character"].to_pylist()) for split in ("test", "train"))
    assert not test & train


def test_han_is_grouped_by_radical_and_hangul_by_its_first_consonant():
    found = characters_and_letters("水河語一龠가힣각")
    assert {one: found[one].name for one in "水河語一龠"} == {
        "水": "Radical 85 水",
        "河": "Radical 85 水",
        "語": "Radical 149 言",
        "一": "Radical 1 一",
        "龠": "Radical 214 龠",
    }
    assert [found[one].name for one in "가각힣"] == ["Hangul in kiyeok", "Hangul in kiyeok", "Hangul in hieuh"]
    assert letter_label("語") == "Han 語"


def test_other_letters_are_of_the_script_of_the_usual_set():
    found = characters_and_letters("ᙎ𐌟")  # the usual set has other Canadian syllabics, and older letters of Old Italic
    assert [found[one].script for one in "ᙎ𐌟"] == ["Canadian syllabics", "Old Italic"]


def test_signs_and_letters_without_a_place_are_left_out():
    signs = characters_and_letters("\u3400\ufb01\u3001𠀀")  # a later Han block, a ligature, a comma, a Han character beyond
    assert signs.keys() == characters().keys()


def test_a_shape_that_a_face_draws_for_three_characters_is_a_placeholder():
    box = Shape("A", (2, 2), b"\xff\xff\xff\xff", 0)
    own = {one: [Shape(face, (1, 1), one.encode(), 0) for face in "BC"] for one in "xyz"}
    shapes = {one: [box, *several] for one, several in own.items()}
    assert without_placeholders(shapes, 2) == own
    assert without_placeholders({"x": [box], "y": [box]}, 1) == {"x": [box], "y": [box]}, "two may look alike"
    assert without_placeholders(shapes, 3) == {}
