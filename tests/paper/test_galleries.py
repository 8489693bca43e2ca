"""Figures of trained models: which queries are shown, how their results are framed, and what the facts say."""

import io
import warnings

import numpy as np
import pytest
from PIL import Image

from suprank import open_data
from suprank.data import Manifest
from suprank.explorer.report import report_page
from tests.explorer import runs
from tests.explorer.report.reading import of, parsed
from tests.explorer.runs import of_arrays

pytest.importorskip("matplotlib")
pytest.importorskip("openTSNE")

from matplotlib.colors import to_hex

from suprank.paper.class_maps import LEGEND_ENTRIES
from suprank.paper.galleries import FRAMES, MARKS, class_map, gallery, images_of_label


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """The folders of `runs.hand_made_lists`: the model and its baseline."""
    return runs.hand_made_lists(tmp_path_factory.mktemp("lists"))[:2]


def frames(figure):
    """What the frames say of each result: 0, 1 or 2, a list for each row of results from the top."""
    framed = [axes for axes in figure.axes if to_hex(axes.spines["left"].get_edgecolor()) in FRAMES]
    rows = {}
    for axes in framed:
        shared = FRAMES.index(to_hex(axes.spines["left"].get_edgecolor()))
        assert [text.get_text() for text in axes.texts] == [MARKS[shared]], "the mark says the same as the color"
        rows.setdefault(round(axes.get_position().y0, 6), []).append(shared)
    return [rows[height] for height in sorted(rows, reverse=True)]


def saved(figure, kind="png"):
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the ear of rice in the name of a group
        figure.savefig(file, format=kind, dpi=40)
    return file.getvalue()


# Results of two models


def test_better_mistakes_are_near_misses_of_the_model_and_negatives_of_the_baseline(lists):
    own, baseline = lists
    found = gallery(baseline, own, kind="better_mistakes", results=4, names=("Smooth-AP", "HAPPIER"))
    # Only for the first query is every mistake of the model a near miss: 2 same class, 2 same group; 1 same class, 3 other.
    assert frames(found.figure) == [[2, 2, 1, 1], [2, 0, 0, 0]]
    assert (
        "Query Klasse 0·0 & <b>, <script>alert('group')</script>: HAPPIER: 2 same class, 2 same group, 0 other; " in found.alt
    )
    assert "Smooth-AP: 1 same class, 0 same group, 3 other." in found.alt
    assert found.facts == {
        "qualifying": 1,
        "qualifying_with_models_swapped": 0,
        "near_misses_run": pytest.approx(7 / 12),
        "near_misses_baseline": pytest.approx(2 / 14),
        "shown": 1,
        "queries": 4,
        "results": 4,
        "coarse_level": "group",
        "run": "HAPPIER",
        "baseline": "Smooth-AP",
    }
    picture = Image.open(io.BytesIO(saved(found.figure)))
    assert picture.width > picture.height


def test_where_both_fail_the_model_has_the_coarse_label_more_often(lists):
    own, baseline = lists
    found = gallery(baseline, own, kind="both_fail", queries=5, results=4)
    # Both fail on the last two queries; on the last of them the baseline has no more negatives than the model.
    assert frames(found.figure) == [[1, 1, 0, 0], [0, 0, 0, 0]]
    assert (found.facts["both_fail"], found.facts["qualifying"], found.facts["qualifying_with_models_swapped"]) == (2, 1, 0)
    assert (found.facts["near_misses_run"], found.facts["near_misses_baseline"]) == (0.5, 0.25)
    assert (found.facts["run"], found.facts["baseline"]) == ("own", "baseline")


def test_without_a_query_that_qualifies_the_nearest_is_shown_and_said(lists):
    own, baseline = lists
    swapped = gallery(own, baseline, kind="both_fail", queries=1, results=4)
    assert swapped.facts["qualifying"] == 0
    assert swapped.facts["note"] == (
        "For no query do both models fail while the baseline retrieves more negatives; the queries that come nearest are shown."
    )
    assert frames(swapped.figure) == [[1, 1, 0, 0], [1, 1, 0, 0]], "the last query: both fail, with two negatives each"
    perfect = gallery(own, own, kind="better_mistakes", queries=1, results=1)
    assert "note" in perfect.facts
    assert "note" not in gallery(baseline, own, kind="both_fail", results=4).facts


def test_the_page_shows_the_same_query_first_where_both_fail(lists):
    own, baseline = lists
    found = gallery(baseline, own, kind="both_fail", queries=1, results=4)
    elements = parsed(report_page(open_data(own), open_data(baseline), queries=1, top=4))
    (article,) = [one for one in of(elements, "article") if one.within(id="failing")]
    assert "Klasse 1·0 & <b> · größte Ähre 🌾" in article.text
    assert "Query Klasse 1·0 & <b>, größte Ähre 🌾: own" in found.alt
    strips = [one for one in of(elements, "ol", class_="strip") if article in one.above]
    tiles = [[one.attributes["class"] for one in of(elements, "figure") if strip in one.above] for strip in strips]
    assert [[int(name[-1]) for name in strip] for strip in tiles] == frames(found.figure)


def test_a_fine_class_is_shown_once(tmp_path):
    manifest = runs.collection(tmp_path, groups=2, classes=3, images=5)
    noise = np.random.default_rng(0).normal(size=(2, 30, 8)).astype(np.float32)
    own = of_arrays("own", noise[0] + 5 * np.eye(8, dtype=np.float32)[manifest.labels[:, 1]], manifest)
    found = gallery(of_arrays("other", noise[1], manifest), own, kind="both_fail", queries=30, results=2)
    assert found.facts["qualifying"] > 6
    assert 1 < found.facts["shown"] <= 6
    assert found.alt.count("Query ") == found.facts["shown"]
    assert len({part.partition(" &")[0] for part in found.alt.split("Query ")[1:]}) == found.facts["shown"]


def test_a_named_level_is_the_coarse_one(tmp_path):
    manifest = runs.collection(tmp_path, groups=2, classes=2, images=3)
    columns = manifest.table.to_pydict() | {"label_world": ["one"] * 12}
    deep = Manifest.from_columns(columns, root=tmp_path, levels=["class", "group", "world"])
    own, other = (of_arrays(f"{seed}", runs.vectors(manifest, noise=3.0, seed=seed), deep) for seed in (0, 1))
    assert gallery(other, own, kind="both_fail", results=3).facts["coarse_level"] == "world"
    named = gallery(other, own, kind="both_fail", results=3, level="group")
    assert named.facts["coarse_level"] == "group"
    assert "same group" in named.alt
    with pytest.raises(ValueError, match="level='class' is not a coarse level of 0 and 1; choose from group, world"):
        gallery(other, own, kind="both_fail", level="class")
    assert class_map(own, level="group").facts["coarse_classes"] == 2
    assert class_map(own).facts["coarse_classes"] == 1


def test_what_cannot_be_drawn_is_refused_with_the_reason(lists, tmp_path):
    own, baseline = (open_data(folder) for folder in lists)
    flat = own.at_levels(["class"])
    with pytest.raises(ValueError, match="baseline share only the level class, and a coarse one is needed"):
        gallery(baseline, flat, kind="both_fail")
    with pytest.raises(ValueError, match="kind='worst' must be 'better_mistakes' or 'both_fail'"):
        gallery(baseline, own, kind="worst")
    with pytest.raises(ValueError, match="results=0 must be at least 1"):
        gallery(baseline, own, kind="both_fail", results=0)
    single = runs.collection(tmp_path, groups=2, classes=2, images=1)
    alone = of_arrays("alone", runs.vectors(single), single)
    with pytest.raises(ValueError, match="no query with another image of its class"):
        gallery(alone, alone, kind="both_fail")
    with pytest.raises(ValueError, match="own ranks 8 items and alone 4"):
        gallery(alone, own, kind="both_fail")


def test_images_that_cannot_be_read_are_counted_and_have_a_tile(tmp_path):
    own, baseline, _, manifest = runs.hand_made_lists(tmp_path)
    (manifest.root / "pictures/0-0-0.png").write_bytes(b"no image")  # the query
    (manifest.root / "pictures/1-0-1.png").unlink()  # the baseline's second result
    found = gallery(baseline, own, kind="better_mistakes", results=4)
    assert found.facts["unreadable"] == 2
    assert [axes.texts[0].get_text() for axes in found.figure.axes].count("unreadable") == 2
    saved(found.figure)


# Maps of the classes


def test_the_map_shows_every_class_with_the_color_of_its_group(tmp_path):
    manifest = runs.collection(tmp_path, groups=4, classes=5, images=3)
    data = of_arrays("x", runs.vectors(manifest, dim=32, noise=0.5), manifest)
    found = class_map(data, title="$x^{ <b>")
    (axes,) = found.figure.axes
    (points,) = axes.collections
    assert len(points.get_offsets()) == 20
    colors = [to_hex(color) for color in points.get_facecolors()]
    assert sorted(colors.count(color) for color in set(colors)) == [5] * 4
    (legend,) = found.figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert sorted(texts) == sorted(f"{name[:27]}… (5)" if len(name) > 28 else f"{name} (5)" for name in data.names["group"])
    assert found.facts["classes"] == 20
    assert found.facts["images"] == 60
    assert 0 <= found.facts["nearest_same_coarse"] <= 1
    assert found.facts["nearest_same_coarse_by_chance"] == pytest.approx(4 / 19)
    assert f"for {100 * found.facts['nearest_same_coarse']:.1f} % of them the nearest class has the same group" in found.alt
    saved(found.figure, "svg")
    assert (class_map(data, seed=0).figure.axes[0].collections[0].get_offsets() == points.get_offsets()).all()


def test_groups_beyond_the_legend_share_an_entry(tmp_path):
    groups = LEGEND_ENTRIES + 3
    manifest = runs.collection(tmp_path, groups=groups, classes=1, images=2)
    found = class_map(of_arrays("x", runs.vectors(manifest), manifest))
    texts = [text.get_text() for text in found.figure.legends[0].get_texts()]
    assert len(texts) == LEGEND_ENTRIES
    assert texts[-1] == "4 others (4)"
    assert sum(len(points.get_offsets()) for points in found.figure.axes[0].collections) == groups


def test_a_single_level_is_a_map_of_one_color_and_a_single_class_is_none(lists):
    flat = open_data(lists[0]).at_levels(["class"])
    found = class_map(flat)
    assert found.facts == {"classes": 4, "images": 8, "method": "PCA"}
    assert not found.figure.legends
    with pytest.raises(ValueError, match="level='group' is not a coarse level of own; choose from none"):
        class_map(flat, level="group")
    gallery_of_one = flat.items.manifest.take(np.array([0, 1]))
    one = of_arrays("one", np.eye(2, dtype=np.float32), gallery_of_one)
    with pytest.raises(ValueError, match="one has fewer than two labeled classes"):
        class_map(one)


def test_a_run_is_opened_by_its_folder(tmp_path):
    folder = runs.run(tmp_path / "happier", runs.collection(tmp_path / "data"))
    assert class_map(str(folder)).facts == class_map(open_data(folder)).facts
    assert "by happier, colored by group" in class_map(folder).alt


# Images of a label


def test_a_grid_shows_images_of_the_label_only(tmp_path):
    manifest = runs.collection(tmp_path, groups=3, classes=2, images=4, side=64)
    found = images_of_label(manifest, "group", "plain", rows=2, columns=3)
    pictures = [axes.images[0].get_array() for axes in found.figure.axes]
    assert len(pictures) == 6
    assert all(picture.shape[0] == picture.shape[1] for picture in pictures)
    assert found.facts == {"label": "plain", "level": "group", "images": 8, "shown": 6, "classes": 2}
    assert found.alt == "6 of the 8 images of the group 'plain'."
    side = pictures[0].shape[0]
    files = [Image.open(manifest.root / path).resize((side, side)) for path in manifest.paths.to_pylist()]
    everything = np.stack([np.asarray(file, np.int64) for file in files])
    nearest = [int(abs(everything - picture).mean((1, 2, 3)).argmin()) for picture in pictures]
    assert len(set(nearest)) == 6
    assert {manifest.names["group"][manifest.labels[row, 1]] for row in nearest} == {"plain"}
    again = images_of_label(manifest, "group", "plain", rows=2, columns=3)
    assert all((a.images[0].get_array() == b).all() for a, b in zip(again.figure.axes, pictures, strict=True))


def test_broken_images_are_replaced_and_too_few_leave_gaps(tmp_path):
    manifest = runs.collection(tmp_path, groups=1, classes=1, images=4)
    name = manifest.names["class"][0]
    (tmp_path / "pictures/0-0-2.png").write_bytes(b"no image")
    found = images_of_label(manifest, "class", name, rows=2, columns=2)
    assert (found.facts["shown"], found.facts["unreadable"]) == (3, 1)
    assert [len(axes.images) for axes in found.figure.axes] == [1, 1, 1, 0]
    assert not any(axes.axison for axes in found.figure.axes)
    for place in range(4):
        (tmp_path / f"pictures/0-0-{place}.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="none of the 4 images of"):
        images_of_label(manifest, "class", name)


def test_unknown_levels_and_labels_are_refused_with_those_that_exist(tmp_path):
    manifest = runs.collection(tmp_path, groups=3, classes=1, images=1)
    with pytest.raises(ValueError, match="level='genus' is not in the manifest; choose from class, group"):
        images_of_label(manifest, "genus", "plain")
    with pytest.raises(ValueError, match="no image has the group 'plane'; there are 3 others, such as plain"):
        images_of_label(manifest, "group", "plane")
    with pytest.raises(ValueError, match="rows=0"):
        images_of_label(manifest, "group", "plain", rows=0)
    subset = manifest.take(np.array([0]))  # which keeps the names of all
    with pytest.raises(ValueError, match="no image has the group 'plain'"):
        images_of_label(subset, "group", "plain")
