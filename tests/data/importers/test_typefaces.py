"""Shapes of characters in fonts: what is the same, and what is only nearly so."""

from __future__ import annotations

from pathlib import Path

import matplotlib

from suprank.data.importers import typefaces
from suprank.data.importers.typefaces import load_face, shapes_of, unique_names

FONTS = Path(matplotlib.get_data_path(), "fonts", "ttf")


def _faces(*names: str):
    return [load_face(FONTS / f"{name}.ttf", 64) for name in names]


def distinct_shapes(characters, faces, fewest):
    return typefaces.distinct_shapes(((character, shapes_of(character, faces)) for character in characters), fewest)


def test_a_face_has_what_its_character_map_lists():
    (sans,) = _faces("DejaVuSans")
    assert "a" in sans.has
    assert "中" not in sans.has
    assert load_face(FONTS / "cmr10.ttf", 64, trusted="abc").has == set("abc")


def test_a_character_has_one_shape_for_each_face_that_differs():
    shapes = distinct_shapes("R", _faces("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans", "cmr10"), fewest=2)
    assert [shape.face for shape in shapes["R"]] == ["DejaVuSans", "DejaVuSans-Bold", "cmr10"]
    assert distinct_shapes("R", _faces("DejaVuSans", "DejaVuSans"), fewest=2) == {}


def test_a_character_drawn_as_an_earlier_one_is_left_out_whichever_comes_first():
    faces = _faces("DejaVuSans", "DejaVuSerif", "STIXGeneral")
    assert list(distinct_shapes("OΟоΩ", faces, fewest=3)) == ["O", "о", "Ω"]  # Latin, Greek, Cyrillic small o, Greek
    assert list(distinct_shapes("ΟO", faces, fewest=3)) == ["Ο"]


def test_height_over_the_baseline_tells_shapes_apart():
    assert list(distinct_shapes(".·", _faces("DejaVuSans", "DejaVuSerif"), fewest=2)) == [".", "·"]


def test_a_character_without_ink_has_no_shape():
    assert distinct_shapes(" ", _faces("DejaVuSans"), fewest=1) == {}


def test_faces_of_one_name_are_numbered():
    assert [one.name for one in unique_names(_faces("cmr10", "cmb10", "cmr10"))] == ["cmr10", "cmb10", "cmr10-2"]


def test_an_outline_that_freetype_cannot_draw_counts_as_missing(monkeypatch):
    (sans,) = _faces("DejaVuSans")

    def getbbox(character, **_):
        if character == "b":
            raise OSError("invalid opcode")
        return 0, -10, 10, 0

    monkeypatch.setattr(sans.font, "getbbox", getbbox)
    assert list(distinct_shapes("abc", [sans], fewest=1)) == ["a", "c"]
