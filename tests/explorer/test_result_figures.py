"""A picture of queries and their first results, for model cards."""

import io
import re
import shutil

from PIL import Image

from suprank import open_data
from suprank.data import Manifest
from suprank.explorer.result_figures import results_picture
from tests.explorer import runs


def test_the_picture_shows_each_query_with_its_first_results_and_says_how_near_they_are(tmp_path):
    own, _, _, _ = runs.hand_made_lists(tmp_path)
    picture = results_picture(open_data(own), queries=4, results=4)
    assert (picture.queries, picture.images) == (4, 4 * 5)
    counts = re.findall(r"(\d) same class, (\d) same group, (\d) other", picture.alt)
    assert counts == [("2", "2", "0"), ("2", "1", "1"), ("0", "2", "2"), ("0", "2", "2")], "as FIRST_ITEMS has it by hand"
    assert "Klasse 0·0 & <b>, <script>alert('group')</script>: 2 same class" in picture.alt
    with Image.open(io.BytesIO(picture.png)) as image:
        assert image.width > 500
        colors = {color for _, color in image.convert("RGB").getcolors(2**20)}
    assert {(0x2E, 0x7D, 0x32), (0xF5, 0x9E, 0x0B), (0xC6, 0x28, 0x28)} <= colors, "frames in green, orange and red"


def test_images_with_several_labels_have_no_frames(tmp_path):
    manifest = runs.collection(tmp_path, groups=2, classes=1, images=2)
    columns = {"path": manifest.paths.to_pylist(), "split": ["test"] * 4, "label_tag": ["a|b", "a", "b", "a|b"]}
    several = Manifest.from_columns(columns, root=tmp_path, label_separator="|")
    folder = runs.embeddings(tmp_path / "e", several, rows=runs.vectors(manifest))
    picture = results_picture(open_data(folder), queries=1, results=2)
    assert "2 items" in picture.alt
    assert "same tag" not in picture.alt


def test_without_readable_images_or_queries_there_is_no_picture(tmp_path):
    own, _, _, _ = runs.hand_made_lists(tmp_path)
    shutil.rmtree(tmp_path / "pictures")
    assert results_picture(open_data(own), queries=1, results=2) is None
    alone = runs.collection(tmp_path / "alone", groups=2, classes=1, images=1)
    assert results_picture(open_data(runs.embeddings(tmp_path / "f", alone)), queries=1, results=2) is None
