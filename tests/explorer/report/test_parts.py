"""Thumbnails, maps and tables: the parts of the page that need no page to be tested."""

import base64
import io
import math

import numpy as np
import pytest
from PIL import Image

from suprank.data import Manifest
from suprank.evaluation import Report
from suprank.explorer.report.failures_section import MAX_IMAGES
from suprank.explorer.report.page import BUDGET, SIDE, Thumbnails
from suprank.explorer.report.table_sections import metric_rows, recipe_rows, table_keys
from tests.explorer.runs import collection, of_arrays, vectors

# Thumbnails


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    manifest = collection(tmp_path_factory.mktemp("data"), groups=1, classes=1, side=300)
    return of_arrays("some", vectors(manifest), manifest).items


def test_a_thumbnail_is_small_and_keeps_its_aspect(images):
    found = Thumbnails().get(images, 0)
    picture = Image.open(io.BytesIO(base64.b64decode(found.uri.partition(",")[2])))
    assert picture.format == "WEBP"
    assert picture.size == (found.width, found.height) == (SIDE, round(SIDE * 300 / 308))


def test_an_image_is_embedded_once_whichever_run_asks(images):
    other = of_arrays("other", vectors(images.manifest), images.manifest).items
    thumbnails = Thumbnails()
    assert thumbnails.get(images, 3) is thumbnails.get(other, 3)
    assert len(thumbnails.embedded()) == 1


def test_a_spent_budget_leaves_out_what_is_not_needed_and_keeps_what_is(images):
    thumbnails = Thumbnails(budget=1)
    first = thumbnails.get(images, 0, needed=False)
    assert first is not None
    assert thumbnails.get(images, 1, needed=False) is None
    assert thumbnails.get(images, 0, needed=False) is first, "it is there already"
    assert thumbnails.get(images, 1) is not None


def test_a_page_of_noise_stays_below_10_mb(tmp_path):
    """Noise is the worst that WebP can meet; 5 sections of 8 queries, two lists of 10 each, and the failures. A map takes the
    rest."""
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(tmp_path / "0.png")
    columns = {"path": ["0.png"], "split": ["test"], "label_class": ["noise"]}
    noise = of_arrays("x", np.ones((1, 2), np.float32), Manifest.from_columns(columns, root=tmp_path))
    images = len(Thumbnails().get(noise.items, 0).uri) * (5 * 8 * 21 + MAX_IMAGES)
    others = 1_500_000  # figures and tables
    assert images < BUDGET < 10_000_000 - others
    assert images + 3_000_000 < 10_000_000 - others, "two maps of 20,000 classes with names of 60 characters are not left out"


def test_what_is_reserved_is_not_there_for_images(images):
    thumbnails = Thumbnails(budget=1000)
    thumbnails.reserve(1000)
    assert thumbnails.get(images, 0, needed=False) is None


# Tables


def report(shift=0.0, levels=("class", "group")):
    draw = np.random.default_rng(0)
    keys = ["AP", *(f"AP/{level}" for level in (*levels, "overall")), "H-AP", "NDCG", "P@1"]
    per_query = {key: draw.uniform(0.2, 0.6, 200) + shift for key in keys}
    values = {key: float(column.mean()) for key, column in per_query.items()}
    known = {"per_query": per_query, "classes": {"class": np.arange(200) // 5}}
    return Report(values, n_queries=200, n_items=200, levels=levels, **known).with_intervals()


def test_rows_are_by_level_and_say_nothing_twice():
    assert table_keys([report()]) == ["AP/class", "AP/group", "H-AP", "NDCG"]
    ((fine, coarse), (h_ap,), (_,)) = metric_rows([report()])
    assert (fine.metric, fine.level, coarse.level, h_ap.level) == ("AP", "class", "group", "all")
    assert fine.about == "Average precision of the whole ranking; 100 if all items of the query's class come before all others."
    assert fine.cells[0].interval.startswith("[")


def test_every_cut_off_that_people_quote_has_its_row_and_no_mean_over_levels_has():
    keys = ("R@100", "R@1/class", "R@1/mean-of-levels", "R@2/class", "R@32", "AP/class", "AP/mean-of-levels", "AP/overall")
    values = dict.fromkeys(keys, 0.5)
    found = table_keys([Report(values, n_queries=2, n_items=2, levels=("class", "group"))])
    assert found == ["R@1/class", "R@2/class", "R@32", "AP/class"]


def test_a_difference_is_marked_only_where_it_is_more_than_chance():
    mine, theirs = report(0.1), report()
    keys = table_keys([mine, theirs])
    up = metric_rows([mine, theirs], mine.compare(theirs, keys))[0][0]
    assert (up.difference, up.verdict, up.mark, up.mark_text) == ("+10.0", "better", "▲", "significantly better")
    down = metric_rows([theirs, mine], theirs.compare(mine, keys))[0][0]
    assert (down.difference, down.verdict, down.mark) == ("−10.0", "worse", "▼")
    even = metric_rows([mine, mine], mine.compare(mine, keys))[0][0]
    assert (even.difference, even.verdict, even.mark) == ("+0.0", "", "")


def test_what_is_undefined_is_a_dash():
    nothing = Report({"AP": math.nan}, n_queries=1, n_items=1, levels=("class",))
    assert metric_rows([nothing])[0][0].cells[0].value == "–"


def test_recipes_are_set_beside_each_other_without_paths_of_the_machine():
    one = {"data": {"manifest": "/home/me/m.parquet", "cache_images": True}, "loss": {"ks": [1, 2]}}
    rows = {row.name: row for row in recipe_rows([one, {"loss": {"ks": [1]}}])}
    assert rows["data.manifest"].values == ("m.parquet", "–")
    assert rows["data.cache_images"].values[0] == "true"
    assert rows["loss.ks"].values == ("[1, 2]", "[1]")
    assert rows["loss.ks"].differs
    assert not recipe_rows([one, one])[0].differs
