"""The page as a whole: what it holds, what it must not hold, and what becomes of labels, broken images and other folders."""

import base64
import dataclasses
import hashlib
import json
import re
import shutil

import numpy as np
import pytest

from suprank import open_data
from suprank.data import Manifest
from suprank.evaluation import evaluate
from suprank.evaluation.explanations import explain_metric
from suprank.explorer.findings.class_means import class_map
from suprank.explorer.report import report_page
from tests.explorer.report.reading import of, parsed
from tests.explorer.runs import GROUPS, RECIPE, collection, embeddings, hand_made_lists, of_arrays, run, vectors

ALL = [
    *("verdict", "failures", "metrics", "better", "behind", "worst", "failing", "random"),
    *("levels", "training", "curves", "scores", "map", "recipe"),
]


def ids(elements):
    return [one.attributes["id"] for one in of(elements, "section")]


def small(data, *others, **options):
    return report_page(data, *others, **{"queries": 2, "top": 3, **options})


# What it holds


def test_every_section_is_there_and_in_the_table_of_contents(elements):
    assert ids(elements) == ALL
    (contents,) = of(elements, "nav")
    links = [one.attributes["href"] for one in of(elements, "a") if contents in one.above]
    assert links == [f"#{name}" for name in ALL]


def test_ids_are_unique_and_every_reference_finds_its_own(elements):
    known = [one.attributes["id"] for one in elements if "id" in one.attributes]
    assert len(set(known)) == len(known)
    references = [one.attributes["href"] for one in elements if one.attributes.get("href", "").startswith("#")]
    references += [
        f"#{name}"
        for one in elements
        for value in one.attributes.values()
        for name in re.findall(r"url\(#(.+?)\)", value or "")
    ]
    assert len(references) > 100
    assert {reference[1:] for reference in references} <= set(known)


def test_the_table_has_every_metric_by_level_with_intervals_and_verdicts(elements):
    (table,) = of(elements, "table", class_="metrics")
    explained = [one.text.split(maxsplit=1) for one in of(elements, "tr", class_="metric") if table in one.above]
    assert [name for name, _ in explained] == ["R@1", "R@10", "mAP@R", "AP", "H-AP", "NDCG", "ASI"]
    assert all(text.strip() == explain_metric(name) for name, text in explained)
    rows = [" ".join(one.text.split()) for one in of(elements, "tr") if table in one.above]
    assert [" ".join(row.split()[:2]) for row in rows if row.startswith("R@1, ")] == ["R@1, class", "R@1, group"]
    (h_ap,) = [row for row in rows if row.startswith("H-AP, all")]
    assert len(re.findall(r"\[\d+\.\d, \d+\.\d\]", h_ap)) == 2
    assert any(one.text == "significantly better" for one in of(elements, "span", class_="hidden"))


def test_each_gallery_shows_its_queries_with_the_lists_of_both_runs(elements):
    for name in ("better", "worst", "random"):
        shown = [one for one in of(elements, "article", class_="gallery") if one.within(id=name)]
        assert len(shown) == 4
        strips = [one for one in of(elements, "ol", class_="strip") if shown[0] in one.above]
        assert len(strips) == 2
        tiles = [one for one in of(elements, "figure", class_="tile") if strips[0] in one.above]
        assert len(tiles) == 5


def test_a_tile_says_its_level_and_score_in_words_and_not_by_its_color_alone(elements):
    tiles = [one for one in of(elements, "figure", class_="tile") if "query" not in one.attributes["class"]]
    names = {"level-0": "other", "level-1": "same group", "level-2": "same class"}
    assert {one.attributes["class"].split()[1] for one in tiles} == set(names)
    for tile in tiles:
        inside = [one for one in elements if tile in one.above]
        (level,) = of(inside, "span", class_="level")
        (score,) = of(inside, "span", class_="score")
        assert level.text == names[tile.attributes["class"].split()[1]]
        assert re.fullmatch(r"−?\d\.\d{3}", score.text)
        (picture,) = of(inside, "svg", role="img")
        assert level.text in picture.attributes["aria-label"]


def test_better_mistakes_are_led_by_the_query_on_which_the_runs_differ_most(runs, elements):
    better, worse, _ = runs
    values = [evaluate(open_data(folder), metrics=["H-AP"], per_query=True).per_query["H-AP"] for folder in (better, worse)]
    ahead = values[0] - values[1]
    (first, *_) = [one for one in of(elements, "article") if one.within(id="better")]
    shown = [float(found) for found in re.findall(r"H-AP (\d+\.\d)", first.text)]
    best = int(ahead.argmax())
    assert shown == [pytest.approx(100 * value[best], abs=0.051) for value in values]


def test_where_both_fail_no_list_has_the_class_and_the_page_counts_such_queries(tmp_path):
    own, baseline, _, _ = hand_made_lists(tmp_path)
    found = parsed(report_page(open_data(own), open_data(baseline), queries=8, top=4))
    (section,) = of(found, "section", id="failing")
    assert "among the first 4: 2 of 4 that have one to find." in section.text
    assert "with the same group over all of them: 50.0 % (own), 25.0 % (baseline)." in section.text
    headings = [one.text for one in of(found, "h3") if section in one.above]
    assert [heading.partition(" &")[0] for heading in headings] == ["Klasse 1·0", "Klasse 1·1"], "the nearer own list first"
    tiles = [one for one in of(found, "figure", class_="tile") if section in one.above]
    assert len([one for one in tiles if "level-2" in one.attributes["class"]]) == 0
    assert len([one for one in tiles if "level-1" in one.attributes["class"]]) == 2 + 0 + 2 + 2


@pytest.mark.usefixtures("undrawn")
def test_where_no_query_fails_in_both_the_page_says_so(tmp_path):
    manifest = collection(tmp_path)
    perfect = of_arrays("a", vectors(manifest, noise=0.01), manifest)
    (section,) = of(parsed(small(perfect, of_arrays("b", vectors(manifest), manifest))), "section", id="failing")
    assert "There is no query for which both runs fail in the first 3 items." in section.text


def test_an_image_is_embedded_once_however_often_it_is_shown(page, elements):
    symbols = of(elements, "symbol")
    assert len(symbols) == 24, "every picture is shown somewhere"
    assert page.count("data:image/webp") == 24
    uses = [one for one in of(elements, "use") if re.fullmatch(r"#i\d+", one.attributes.get("href", ""))]
    assert len(uses) > 4 * len(symbols)


def test_the_maps_have_every_class_with_its_image(elements):
    (data,) = of(elements, "script", type="application/json")
    found = json.loads(data.text)
    assert sorted(found["classes"]["name"]) == sorted(f"Klasse {group}·{one} & <b>" for group in range(3) for one in range(4))
    assert found["classes"]["count"] == [2] * 12
    symbols = {one.attributes["id"] for one in of(elements, "symbol")}
    assert {f"i{image}" for image in found["classes"]["image"]} <= symbols
    assert len(of(elements, "svg", class_="points")) == 2
    (legend,) = of(elements, "ul", class_="legend")
    assert sorted(one.text.rsplit(" ", 1)[0] for one in of(elements, "button") if legend in one.above) == sorted(GROUPS)


@pytest.mark.usefixtures("undrawn")  # test_figures draws a figure twice
def test_the_same_runs_give_the_same_page(runs):
    better, worse, _ = runs
    one, other = (small(open_data(better), open_data(worse)) for _ in range(2))
    assert one == other


# What it must not hold


def test_the_policy_allows_this_style_and_this_script_and_nothing_else(elements):
    (policy,) = [one.attributes["content"] for one in of(elements, "meta") if "http-equiv" in one.attributes]
    (style,), (data, script) = of(elements, "style"), of(elements, "script")
    assert data.attributes["type"] == "application/json", "which no browser runs"
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(one.text.encode()).digest()).decode()}'" for one in (style, script)]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": hashes[0],
        "script-src": hashes[1],
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_nothing_is_asked_of_any_network_and_nothing_is_styled_or_run_inline(elements):
    for one in elements:
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert re.match(r"#|data:image/webp;base64,", one.attributes.get(name, "#")), one
        assert "style" not in one.attributes, one
        assert not [name for name in one.attributes if name.startswith("on")]
    assert "url(" not in of(elements, "style")[0].text


def test_a_label_that_is_markup_is_shown_as_text_everywhere(page, elements):
    assert "<script>alert" not in page
    assert len(of(elements, "script")) == 2
    assert not of(elements, "b") or all("alert" not in one.text for one in of(elements, "b"))
    hostile = "<script>alert('group')</script>"
    for name in ("map", "better"):
        (section,) = of(elements, "section", id=name)
        assert hostile in section.text


def test_names_of_runs_levels_and_titles_are_escaped_too(runs):
    hostile = "<script>alert(1)</script>$x^{"
    _, _, manifest = runs
    columns = {"path": manifest.paths.to_pylist(), "split": ["test"] * len(manifest)}
    for place, level in enumerate(manifest.levels):
        columns[f"label_{level}{hostile}".replace("/", "")] = [manifest.names[level][one] for one in manifest.labels[:, place]]
    renamed = Manifest.from_columns(columns, root=manifest.root)
    data = dataclasses.replace(of_arrays(hostile, vectors(renamed), renamed), name=hostile)
    other = dataclasses.replace(of_arrays("b", vectors(renamed, seed=3), renamed), name=f"{hostile}2")
    page = small(data, other, title=hostile)
    assert "<script>alert" not in page
    found = parsed(page)
    assert len(of(found, "script")) == 2
    assert of(found, "h1")[0].text == hostile
    assert any("class<script>" in one.text for one in of(found, "text")), "the bars name the levels"


@pytest.mark.usefixtures("undrawn")
def test_no_path_of_this_machine_is_in_the_page(runs, page, tmp_path):
    _, _, manifest = runs
    for folder in {str(manifest.root), str(manifest.root.parent), str(tmp_path.parents[1])}:
        assert folder not in page
    elsewhere = run(tmp_path / "run", manifest, recipe=RECIPE.replace('"m.parquet"', '"/home/someone/secret/m.parquet"'))
    shown = small(open_data(elsewhere))
    assert "m.parquet" in shown
    assert "secret" not in shown


# The map


@pytest.mark.usefixtures("undrawn")
def test_the_map_shows_as_many_classes_as_asked_for_and_says_of_how_many(runs):
    data = open_data(runs[0])
    for classes, shown, words in (
        (2, 2, "The map shows the 2 classes with the most images, of 12. More are shown with a larger map_classes."),
        (0, 12, "The map shows all 12 classes."),
        (13, 12, "The map shows all 12 classes."),
    ):
        found = parsed(small(data, map_classes=classes))
        (points,) = of(found, "svg", class_="points")
        assert sum(one.attributes["d"].count("M") for one in of(found, "path") if points in one.above) == shown
        assert words in of(found, "section", id="map")[0].text


def test_the_map_says_how_many_classes_have_a_neighbor_of_their_group_in_each_run(runs, elements):
    shares = [100 * class_map(open_data(folder)).same_coarse for folder in runs[:2]]
    words = f"has the same group: {shares[0]:.1f} % (better), {shares[1]:.1f} % (worse); by chance 27.3 %."
    assert words in of(elements, "section", id="map")[0].text


# Other folders


@pytest.mark.usefixtures("undrawn")
def test_a_run_alone_has_no_comparison(runs):
    page = small(open_data(runs[0]))
    assert ids(parsed(page)) == [name for name in ALL if name not in ("better", "behind", "failing")]
    assert "difference" not in of(parsed(page), "table", class_="metrics")[0].text


@pytest.mark.usefixtures("undrawn")
def test_a_folder_of_embeddings_has_no_curves_and_no_recipe(tmp_path, runs):
    folder = embeddings(tmp_path / "embedded", runs[2])
    shown = ids(parsed(small(open_data(folder))))
    assert shown == [name for name in ALL if name not in ("training", "better", "behind", "failing", "recipe")]


def test_one_level_of_labels_has_no_hierarchical_sections(runs):
    manifest = runs[2]
    names = [manifest.names["class"][one] for one in manifest.labels[:, 0]]
    flat = Manifest.from_columns(
        {"path": manifest.paths.to_pylist(), "split": ["test"] * len(manifest), "label_class": names}, root=manifest.root
    )
    found = parsed(small(of_arrays("flat", vectors(flat), flat)))
    assert ids(found) == ["verdict", "failures", "metrics", "worst", "random", "curves", "scores", "map"]
    assert not [one for one in of(found, "section") if re.search("H-AP|H-P", one.text)]
    assert {one.attributes["class"] for one in of(found, "figure", class_="tile")} == {
        "tile query",
        "tile level-0",
        "tile level-1",
    }


def test_a_single_image_has_a_page_too(tmp_path):
    manifest = collection(tmp_path / "data", groups=1, classes=1, images=1)
    page = small(of_arrays("lone", vectors(manifest), manifest))
    assert "scores" not in ids(parsed(page))
    assert "no relevant items" in page


@pytest.mark.usefixtures("undrawn")
def test_queries_go_against_a_gallery_where_there_is_one(tmp_path):
    manifest = collection(tmp_path / "data", splits=("query", "gallery", "gallery"))
    page = small(open_data(embeddings(tmp_path / "embedded", manifest)))
    assert "8 queries, 16 items" in page


@pytest.mark.usefixtures("undrawn")
def test_broken_and_missing_images_are_tiles_with_their_path(tmp_path):
    manifest = collection(tmp_path / "data")
    folder = embeddings(tmp_path / "embedded", manifest)
    (manifest.root / "pictures/0-0-0.png").unlink()
    (manifest.root / "pictures/0-0-1.png").write_bytes(b"no image")
    found = parsed(report_page(open_data(folder), queries=24, top=5))
    missing = {one.text for one in of(found, "span", class_="missing")}
    assert missing == {f"unreadable image: pictures/0-0-{place}.png" for place in (0, 1)}
    assert len(of(found, "symbol")) == 22
    assert "Unreadable images2" in of(found, "dl")[0].text.replace("\n", "")
    shutil.rmtree(manifest.root)
    found = parsed(small(open_data(folder)))
    assert not of(found, "symbol"), "the page is made all the same"


@pytest.mark.usefixtures("undrawn")
def test_runs_of_one_name_are_told_apart_by_the_folders_above(tmp_path, runs):
    manifest = runs[2]
    sources = [open_data(run(tmp_path / place / "same", manifest, seed=seed)) for seed, place in enumerate(("a", "b"))]
    page = small(*sources)
    assert of(parsed(page), "h1")[0].text == "a/same against b/same"


def test_runs_with_other_images_are_refused(tmp_path, runs):
    other = collection(tmp_path / "data", images=3)
    with pytest.raises(ValueError, match="different queries"):
        small(open_data(runs[0]), of_arrays("other", vectors(other), other))


@pytest.mark.usefixtures("undrawn")
def test_runs_evaluated_at_other_levels_are_compared_at_those_of_both(tmp_path, runs):
    manifest = runs[2]
    flat = run(tmp_path / "flat", manifest, recipe=RECIPE.replace("[loss]", 'levels = ["class"]\n\n[loss]'))
    sources = open_data(runs[0]), open_data(flat)
    for one, other in (sources, sources[::-1]):
        page = small(one, other)
        assert "group (better only)" in page
        assert {row.text for row in of(parsed(page), "td")} & {"class", "group"} == set()
    coarse = sources[0].at_levels(["group"])
    with pytest.raises(ValueError, match="evaluated at class and better at group.*share a level"):
        small(sources[1], coarse)


def test_images_without_labels_are_refused(runs):
    manifest = runs[2]
    bare = Manifest.from_columns(
        {"path": manifest.paths.to_pylist(), "split": ["test"] * len(manifest)}, root=manifest.root, levels=()
    )
    with pytest.raises(ValueError, match="no labels"):
        small(of_arrays("bare", vectors(manifest), bare))


def test_a_query_that_nothing_is_relevant_to_is_shown_and_said(tmp_path):
    manifest = collection(tmp_path / "data", groups=4, classes=1, images=2)
    lone = manifest.take(np.arange(len(manifest) - 1))  # the last class has one image left
    page = small(of_arrays("lone", vectors(lone), lone), queries=8)
    assert "no relevant items" in page
    assert "Queries without a positive are left out: 1 at class, 1 at group." in page
