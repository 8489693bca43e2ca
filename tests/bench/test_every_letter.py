"""benchmarks/every_letter.py: letters beyond the usual set, in the groups and scripts of the usual one."""

from collections import Counter
from pathlib import Path

import every_letter
import matplotlib

from suprank.data import Manifest
from suprank.data.importers import glyphs
from suprank.data.importers.alphabets import characters

FONTS = sorted(Path(matplotlib.get_data_path(), "fonts", "ttf").glob("DejaVu*.ttf"))


def test_letters_beyond_the_usual_set_are_drawn_with_its_levels(tmp_path):
    every_letter.draw(tmp_path, FONTS, characters=60, drawings=5, size=16, seed=0)
    letters = Manifest.read(tmp_path / "manifest.parquet")
    drawings = Counter(letters.table["character"].to_pylist())
    assert 30 < len(drawings) <= 60, "some look like another"
    assert set(drawings.values()) <= {glyphs.MIN_FACES, 5}
    assert drawings.keys() - characters().keys()
    found = every_letter.characters_and_letters(drawings)
    for row in letters.table.to_pylist():
        group = found[row["character"]]
        assert (row["label_group"], row["label_script"]) == (group.name, group.script)
