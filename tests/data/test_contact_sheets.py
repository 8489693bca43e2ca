"""The contact sheet: which classes and images it shows, where, and what stands in for a broken one."""

import numpy as np
import pytest
from PIL import Image, ImageFont

from suprank.data import contact_sheets as module
from suprank.data.contact_sheets import contact_sheet
from suprank.data.manifest import Manifest
from tests.data.pictures import encoded, folder

RED, BLUE = (255, 0, 0), (0, 0, 255)


def colored(root, rows):
    """A manifest of one-colored pictures: (color, fine, coarse) each."""
    for place, (color, _, _) in enumerate(rows):
        (root / f"{place}.png").write_bytes(encoded(Image.new("RGB", (20, 10), color)))
    columns = {"label_fine": [fine for _, fine, _ in rows], "label_coarse": [coarse for _, _, coarse in rows]}
    return Manifest.from_columns(
        {"path": [f"{n}.png" for n in range(len(rows))], "split": ["train"] * len(rows)} | columns, root=root
    )


def thumbnail(sheet, row, column, size=32):
    left, top = module._TEXT_WIDTH + module._GAP + column * (size + module._GAP), module._GAP + row * (size + module._GAP)
    return np.asarray(sheet)[top : top + size, left : left + size]


def test_a_row_is_a_class_and_its_images_are_uncut_in_the_middle(tmp_path):
    manifest = colored(tmp_path, [(BLUE, "b", "c"), (RED, "a", "c"), (BLUE, "b", "c")])
    sheet = contact_sheet(manifest, size=32, per_class=5)
    assert sheet.size == (240 + 2 * 36 + 4, 2 * 36 + 4)
    assert (thumbnail(sheet, 0, 0)[8:24] == RED).all()
    assert (thumbnail(sheet, 0, 0)[:8] == 0xE4).all()
    assert (thumbnail(sheet, 0, 0)[24:] == 0xE4).all()
    for column in range(2):
        assert (thumbnail(sheet, 1, column)[8:24] == BLUE).all()
    assert (thumbnail(sheet, 0, 1) == 255).all()
    assert (np.asarray(sheet)[:, :240] < 128).any(), "no text was written"


def test_an_image_with_two_labels_is_in_the_row_of_each(tmp_path):
    manifest = colored(tmp_path, [(BLUE, ["b", "a"], ["c", "d"]), (RED, ["a"], ["c"])])
    sheet = contact_sheet(manifest, size=32, per_class=5)
    assert [(thumbnail(sheet, 0, column)[8:24] == color).all() for column, color in enumerate((BLUE, RED))] == [True, True]
    assert (thumbnail(sheet, 1, 0)[8:24] == BLUE).all()
    assert (thumbnail(sheet, 1, 1) == 255).all()


def test_the_same_seed_gives_the_same_sheet_and_another_one_another(tmp_path):
    manifest = folder(tmp_path, count=40)
    first, again, other = (contact_sheet(manifest, classes=3, size=32, seed=seed) for seed in (0, 0, 1))
    assert (np.asarray(first) == np.asarray(again)).all()
    assert (np.asarray(first) != np.asarray(other)).any()


def test_classes_come_in_turn_from_all_coarse_ones_and_stand_beside_their_relatives():
    fine = np.arange(102)
    coarse = np.where(fine < 100, 1, np.where(fine == 100, 0, 2))  # a hundred under one, and one each under two others
    chosen = module._choose_classes(np.stack([fine, coarse], 1), 4, np.random.default_rng(0))
    assert chosen[0] == 100
    assert chosen[3] == 101
    assert 0 <= chosen[1] < chosen[2] < 100


def test_coarser_levels_and_unlabeled_manifests_have_their_rows(tmp_path):
    manifest = colored(tmp_path, [(BLUE, "a", "c"), (RED, "b", "d"), (RED, "e", "d")])
    sheet = contact_sheet(manifest, size=32, level=1)
    assert sheet.height == 2 * 36 + 4
    assert (thumbnail(sheet, 1, 1)[16] == RED).all()
    bare = Manifest.from_columns(manifest.table.select(["path", "split"]), root=tmp_path, levels=())
    assert contact_sheet(bare, size=32).size == (240 + 3 * 36 + 4, 36 + 4)


def test_distractors_without_labels_are_shown_only_where_there_is_nothing_else(tmp_path):
    manifest = colored(tmp_path, [(BLUE, "a", "c"), (RED, "b", "d")])
    some = Manifest.from_columns(
        {"path": ["0.png", "1.png"], "split": ["test", "distractor"], "label_a": ["a", None]}, root=manifest.root
    )
    assert contact_sheet(some, size=32).height == 36 + 4
    none = some.take(np.array([1]))
    assert (thumbnail(contact_sheet(none, size=32), 0, 0)[16] == RED).all()


def test_a_broken_or_missing_image_is_a_crossed_box(tmp_path):
    manifest = colored(tmp_path, [(BLUE, "a", "c"), (RED, "a", "c")])
    (tmp_path / "0.png").write_bytes(b"broken")
    (tmp_path / "1.png").unlink()
    sheet = contact_sheet(manifest, size=32)
    for column in range(2):
        box = thumbnail(sheet, 0, column)
        assert (box[16, 2] == 0xE4).all()
        assert (box[8, 8] == 0x77).all()
        assert (box[8, 24] == 0x77).all()


@pytest.mark.parametrize("wrong", [{"classes": 0}, {"per_class": 0}, {"size": 0}])
def test_nothing_to_show_is_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match="=0 must be at least 1"):
        contact_sheet(folder(tmp_path), **wrong)


@pytest.mark.parametrize("level", [2, -1])
def test_an_unknown_level_is_refused_with_those_there_are(tmp_path, level):
    with pytest.raises(ValueError, match=rf"level={level} is not a level.*choose from 0 \(fine\), 1 \(coarse\)"):
        contact_sheet(folder(tmp_path), level=level)


def test_long_names_lose_their_middle(tmp_path):
    font = module._font(15)
    cut = module._shorten("Blackfoot_(Canadian_Aboriginal_Syllabics)/character11", font, 200)
    assert cut.startswith("Blackfoot")
    assert cut.endswith("character11")
    assert "…" in cut
    assert font.getlength(cut) <= 200
    assert module._shorten("two\nlines", font, 200) == "two lines"


def test_without_matplotlib_the_text_is_in_pils_own_font(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert isinstance(module._font(15), ImageFont.FreeTypeFont | ImageFont.ImageFont)
    contact_sheet(folder(tmp_path), size=32)
