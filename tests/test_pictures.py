"""The pictures of the documentation: those that docs/take_pictures.py takes are there and shown, and no reference is broken."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
PAGES = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def script():
    """docs/take_pictures.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("take_pictures", ROOT / "docs" / "take_pictures.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "take_pictures", module)  # where its dataclass looks for its annotations
        spec.loader.exec_module(module)
    return module


TAKE_PICTURES = script()
REFERENCES = {
    (page.parent / path).resolve()
    for page in PAGES
    for path in re.findall(r"!\[[^\]]*\]\(((?:docs/)?pictures/[^)]+)\)", page.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("picture", TAKE_PICTURES.PICTURES, ids=lambda picture: picture.name)
def test_every_picture_that_is_taken_is_there_and_shown(picture):
    file = PICTURES / f"{picture.name}.png"
    assert file in REFERENCES, "no page of the documentation shows it"
    assert file.stat().st_size <= TAKE_PICTURES.MOST_BYTES
    with Image.open(file) as image:
        width, height = image.size
    assert width == picture.width
    assert height == picture.height if picture.element is None else height <= picture.height


def test_no_reference_is_broken_and_no_picture_is_left_over():
    assert {*PICTURES.iterdir()} == REFERENCES


def test_a_picture_that_does_not_exist_is_refused_with_the_names_of_those_that_do():
    with pytest.raises(SystemExit, match="there is no picture report-maps; choose from report-verdict, .*report-map, "):
        TAKE_PICTURES.main(["report-maps"])
