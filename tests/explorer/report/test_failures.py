"""Where it fails: the numbers by hand and by scikit-learn, the words for special cases, and the section in a real browser."""

import dataclasses
import re

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from suprank import open_data
from suprank.data import Manifest
from suprank.explorer.findings.collect import RunFindings
from suprank.explorer.findings.confusions import nearest_items
from suprank.explorer.findings.query_metrics import reorder_queries
from suprank.explorer.report.example_sections import example_sections
from suprank.explorer.report.failures_section import MAX_IMAGES, changes_part, failures_section
from suprank.explorer.report.header import header
from suprank.explorer.report.page import Thumbnails, render_page
from suprank.explorer.report.table_sections import metric_rows
from tests.browsers import NEEDS_BROWSER
from tests.explorer.report.reading import of, parsed
from tests.explorer.runs import GROUPS, collection, embeddings, evaluated, hand_made_lists, of_arrays, vectors


def findings(data, **sampling):
    """A run with only what the section uses."""
    return RunFindings(data, evaluated(data), *[None] * 5, nearest_items(data, **sampling))


def both(*sources):
    runs = [findings(data) for data in sources]
    same = [sources[0].match(data) for data in sources]
    return runs, [reorder_queries(run.report, rows) for run, rows in zip(runs, same, strict=True)]


class Shown:
    """The section of some runs, as a reader of the page finds it: parts by their heading, with sentences and tables."""

    def __init__(self, runs, reports=None):
        self.thumbnails = Thumbnails()
        section = failures_section(runs, reports or [run.report for run in runs], self.thumbnails)
        sources, names = [run.data for run in runs], [run.name for run in runs]
        images = self.thumbnails.embedded()
        page = render_page("t", names, header(sources, []), [section], images, levels=len(sources[0].levels))
        self.elements = parsed(page)
        self.parts = {}
        for part in of(self.elements, "div", class_="part"):
            inside = [one for one in self.elements if part in one.above]
            self.parts[of(inside, "h3")[0].text] = inside

    def words(self, title):
        return " ".join(one.text for one in of(self.parts[title], "p", class_="about"))

    def rows(self, title, table=0):
        """The cells of a table's body, row by row."""
        chosen = of(self.parts[title], "table")[table]
        rows = [
            one for one in of(self.parts[title], "tr") if chosen in one.above and any(up.tag == "tbody" for up in one.above)
        ]
        return [[_text(one) for one in self.elements if one.above[-1:] == [row]] for row in rows]


def _text(element):
    return " ".join(element.text.split())


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    return [open_data(folder) for folder in hand_made_lists(tmp_path_factory.mktemp("lists"))[:2]]


@pytest.fixture(scope="module")
def hand_made(lists):
    return Shown(*both(*lists))


def named(*classes):
    return [f"Klasse {name} & <b>" for name in classes]


# The lists that are written down in tests/explorer/runs.py


def test_what_is_found_first_is_told_by_level(hand_made):
    # own finds rows 0, 2, 6 and 4, of classes 0, 1, 3 and 2; the baseline rows 0, 2, 0 and 4. Classes 2 and 3 are one group.
    title = "What is found first"
    assert hand_made.words(title) == (
        "own: of the 4 queries, 50.0 % find an image of the right class first, 50.0 % another class of the right group, "
        "and 0.0 % an image of the wrong group."
    )
    assert hand_made.rows(title) == [
        ["right class", "50.0 2", "50.0 2"],
        ["wrong class, right group", "50.0 2", "25.0 1"],
        ["wrong group", "0.0 0", "25.0 1"],
    ]
    bars = of(hand_made.parts[title], "svg")
    assert bars[1].attributes["aria-label"] == "right class 50.0 %, wrong class, right group 25.0 %, wrong group 25.0 %"
    places = [(one.attributes["x"], one.attributes["width"]) for one in of(hand_made.parts[title], "rect")]
    assert places[:3] == [("0.00", "50.00"), ("50.00", "50.00"), ("100.00", "0.00")]
    assert places[3:] == [("0.00", "50.00"), ("50.00", "25.00"), ("75.00", "25.00")]


def test_the_weakest_classes_come_first_with_what_they_are_mistaken_for(hand_made):
    # Of classes 2 and 3 both models find no item in the first four, so that theirs are 7th and 8th: (1/7 + 2/8) / 2.
    # The other queries have AP 1 in own; in the baseline the items are first and last: (1 + 2/8) / 2.
    assert "The 4 classes with the lowest mean AP, of 4 that have a query (no class has two)." in hand_made.words(
        "Weakest classes"
    )
    rows = hand_made.rows("Weakest classes")
    names = named("1·0", "1·1", "0·0", "0·1")
    assert [row[0] for row in rows] == [
        f"{name}{group}" for name, group in zip(names, np.repeat(GROUPS[1::-1], 2), strict=True)
    ]
    assert [row[1] for row in rows] == ["own: 19.6baseline: 19.6"] * 2 + ["own: 100.0baseline: 62.5"] * 2
    assert [row[2] for row in rows] == ["own: 0.0baseline: 0.0"] * 2 + ["own: 100.0baseline: 100.0"] * 2
    assert [row[3] for row in rows] == ["2"] * 4
    assert [row[4] for row in rows[:2]] == [f"{name}1 of 1 query" for name in names[1::-1]]
    assert rows[2][4] == "none, finds its own class first"
    assert [row[6] for row in rows[1:3]] == [f"{names[0]}same group", f"{names[2]}same class"]


def test_confused_pairs_say_how_often_in_both_directions_and_runs(hand_made):
    title = "Most confused classes"
    assert hand_made.words(title).startswith(
        "One pair of classes is confused: a query of one finds an image of the other first."
    )
    (pair,) = of(hand_made.parts[title], "li")
    one, other = named("1·0", "1·1")
    assert _text(pair) == (
        f"own: 1 of 1 queries of {one} find {other} first, 1 of 1 the other way. "
        f"baseline: 0 of 1, and 1 of 1 the other way. Both are in the group {GROUPS[1]}."
    )
    pictures = [one.attributes["aria-label"] for one in of(hand_made.parts[title], "svg", role="img")]
    assert pictures == [f"query: {one}", f"found first: {other}, same group"]


def test_matrices_show_the_share_of_each_label_in_each_run(hand_made):
    title = "Which group is mistaken for which"
    assert hand_made.rows(title) == [[f"1 {GROUPS[0]}", "2", "100", "0"], [f"2 {GROUPS[1]}", "2", "0", "100"]]
    assert hand_made.rows(title, 1)[1] == [f"2 {GROUPS[1]}", "2", "50", "50"]
    cells = [one for one in of(hand_made.parts[title], "td") if "title" in one.attributes]
    assert [one.attributes["title"] for one in cells[-2:]] == ["1 of 2 queries"] * 2
    assert [one.attributes["class"] for one in cells[-2:]] == ["number wrong shade-6", "number right shade-6"]
    assert cells[1].attributes["class"] == "number wrong shade-0"
    assert [row[2:] for row in hand_made.rows("Which class is mistaken for which")] == [
        ["100", "0", "0", "0"],
        ["0", "100", "0", "0"],
        ["0", "0", "0", "100"],
        ["0", "0", "100", "0"],
    ]


def test_gains_and_losses_are_counted_by_class(hand_made):
    title = "Largest gains and losses by class"
    assert hand_made.words(title) == (
        "By mean AP, own is ahead in 2 of the 4 classes that have a query (no class has two), baseline in 0, and 2 are equal. "
        "These have the largest differences."
    )
    (table,) = of(hand_made.parts[title], "table")
    assert _text(table).startswith("own is ahead")
    rows = [row[:4] for row in hand_made.rows(title)]
    assert rows == [[f"{name}{GROUPS[0]}", "own: 100.0baseline: 62.5", "+37.5", "1"] for name in named("0·0", "0·1")]


def test_a_gallery_is_called_better_mistakes_only_if_the_mistakes_are_nearer(lists):
    def sections(*sources):
        runs, reports = both(*sources)
        shown = example_sections(runs, reports, np.arange(4), Thumbnails(), queries=8, top=4, seed=0)
        return {one.id: one for one in shown}

    tree = sections(*lists)
    assert list(tree) == ["better", "behind", "worst", "failing", "random"]
    assert tree["better"].title == "Better mistakes"
    # The baseline's lists have no near miss; own has 2 of 2 in the first list, 1 of 2 in the second and 2 of 4 in the third.
    assert (
        tree["better"]
        .about[0]
        .endswith(
            "In these lists, 5 of 8 mistakes of own and 0 of 10 mistakes of baseline share at least the group with the query."
        )
    )
    swapped = sections(*lists[::-1])
    assert (swapped["better"].title, swapped["behind"].title) == ("Where baseline is ahead", "Where own is ahead")
    flat = sections(*(data.at_levels(["class"]) for data in lists))
    assert flat["better"].title == "Where own is ahead"
    assert "mistakes" not in flat["better"].about[0]


# Larger collections


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    manifest = collection(tmp_path_factory.mktemp("drawn"), groups=3, classes=3, images=6)
    return [of_arrays(f"run {seed}", vectors(manifest, noise=2.5, seed=seed), manifest) for seed in range(2)]


def test_the_numbers_agree_with_the_table_of_metrics_and_with_scikit_learn(drawn):
    runs, reports = both(*drawn)
    shown = Shown(runs, reports)
    first = shown.rows("What is found first")
    counts = np.array([[int(cell.split()[1]) for cell in row[1:]] for row in first])
    for run, report in enumerate(reports):
        recalls = {row.level: row.cells[0].value for group in metric_rows([report]) for row in group if row.metric == "R@1"}
        assert first[0][1 + run].split()[0] == recalls["class"]
        assert f"{100 * counts[:2, run].sum() / 54:.1f}" == recalls["group"]
        nearest = runs[run].nearest
        labels = drawn[run].items.labels[:, 1]
        theirs = 100 * confusion_matrix(labels, labels[nearest.items], normalize="true")
        printed = [[int(cell) for cell in row[2:]] for row in shown.rows("Which group is mistaken for which", run)]
        assert np.abs(theirs - printed).max() <= 0.5
    tables = [shown.rows("Largest gains and losses by class", table) for table in (0, 1)]
    differences = [float(row[2].replace("−", "-")) for rows in tables for row in rows]
    means = [[report.per_query["AP"][drawn[0].queries.labels[:, 0] == one].mean() for one in range(9)] for report in reports]
    assert sorted(differences) == pytest.approx(sorted(100 * np.subtract(*means)), abs=0.051)


def test_runs_in_another_order_with_other_label_numbers_are_the_same(drawn):
    order = np.random.default_rng(3).permutation(54)
    one, other = drawn
    shuffled = of_arrays("run 1", other.items.embeddings[order], other.items.manifest.take(order))
    numbers = np.array([len(shuffled.names[level]) - 1 for level in shuffled.levels])
    shuffled.items.labels[:] = numbers - shuffled.items.labels
    shuffled = dataclasses.replace(shuffled, names={level: names[::-1] for level, names in shuffled.names.items()})
    straight, mixed = Shown(*both(one, other)), Shown(*both(one, shuffled))
    for title in ("What is found first", "Weakest classes", "Most confused classes", "Largest gains and losses by class"):
        assert [_text(row) for row in mixed.parts[title]] == [_text(row) for row in straight.parts[title]]


def with_three_levels(root, noise):
    """40 classes in 20 groups in 2 kingdoms."""
    manifest = collection(root, groups=20, classes=2, images=3, side=8)
    kingdoms = [f"kingdom {label % 2}" for label in manifest.labels[:, 1]]
    names = {level: np.array(manifest.names[level])[manifest.labels[:, place]] for place, level in enumerate(manifest.levels)}
    columns = {"label_class": names["class"], "label_group": names["group"], "label_kingdom": kingdoms}
    table = {"path": manifest.paths.to_pylist(), "split": ["test"] * len(manifest), **columns}
    deep = Manifest.from_columns(table, root=manifest.root)
    return of_arrays("deep", vectors(deep, noise=noise), deep)


def test_a_level_with_many_labels_is_shown_by_its_strongest_pairs(tmp_path):
    data = with_three_levels(tmp_path, noise=3.0)
    run = findings(data)
    shown = Shown([run])
    assert [row[0] for row in shown.rows("What is found first")] == [
        *("right class", "wrong class, right group", "wrong group, right kingdom", "wrong kingdom"),
    ]
    assert "Which class is mistaken for which" not in shown.parts, "the pairs of classes have a part of their own"
    assert len(of(shown.parts["Most confused classes"], "li")) == 8
    title = "Which group is mistaken for which"
    own, found = data.queries.labels[:, 1], data.items.labels[run.nearest.items, 1]
    counts = confusion_matrix(own, found, labels=range(20))
    pairs = np.triu(counts + counts.T, 1)
    assert shown.words(title).startswith(f"{(pairs > 0).sum()} pairs of group labels are confused")
    rows = shown.rows(title)
    assert len(rows) == 16
    names = data.names["group"]
    times = [int(row[2].split(" of ")[0]) for row in rows]
    assert times == [counts[names.index(row[0]), names.index(row[1])] for row in rows]
    assert sum(times[:2]) == pairs.max()
    assert re.match(r"Both are in the kingdom|They differ in kingdom: kingdom", rows[0][3])
    assert len(shown.rows("Which kingdom is mistaken for which")) == 2
    assert len(shown.thumbnails.embedded()) <= MAX_IMAGES <= 60


def test_a_sample_is_called_a_sample_and_the_weakest_classes_are_exact(drawn, monkeypatch):
    monkeypatch.setattr("suprank.explorer.findings.curves.MIN_QUERIES", 20)
    exact, sampled = Shown([findings(drawn[0])]), Shown([findings(drawn[0], pairs=1)])
    sentence = "Counted on a random sample of 20 of 54 queries."
    for title in ("Most confused classes", "Which group is mistaken for which"):
        assert sentence in sampled.words(title)
        assert sentence not in exact.words(title)
    for title in ("What is found first", "Weakest classes"):
        assert [_text(one) for one in sampled.parts[title]] == [_text(one) for one in exact.parts[title]]


# Special cases


def test_a_class_without_a_query_that_both_runs_measured_has_no_difference(lists):
    runs, reports = both(*lists)
    for first, report in enumerate(reports):  # queries 0 and 2 of the first run, 1 and 3 of the second
        report.per_query["AP"] = np.where(np.arange(4) % 2 == first, report.per_query["AP"], np.nan)
    assert changes_part(runs, reports, Thumbnails()) == []


def test_when_nothing_is_wrong_the_page_says_so(tmp_path):
    manifest = collection(tmp_path)
    perfect = of_arrays("a", vectors(manifest, noise=0.01), manifest)
    shown = Shown(*both(perfect, perfect))
    assert shown.words("What is found first") == "a: each of the 24 queries finds an image of the right class first."
    assert shown.words("Weakest classes") == "There is no weak class: every query finds all images of its class first."
    assert shown.words("Most confused classes") == "No class is mistaken for another: every query finds its own class first."
    gains = "Largest gains and losses by class"
    assert shown.words(gains) == "Both runs have the same mean AP in each of the 6 classes that have at least 2 queries."
    assert not of(shown.parts[gains], "table")


def test_one_class_cannot_be_confused(tmp_path):
    manifest = collection(tmp_path, groups=1, classes=1)
    shown = Shown([findings(of_arrays("a", vectors(manifest), manifest))])
    assert shown.words("Most confused classes") == "There is only one class, so none can be confused."
    assert list(shown.parts) == ["What is found first", "Weakest classes", "Most confused classes"]


def test_classes_of_one_image_have_nothing_to_find(tmp_path):
    manifest = collection(tmp_path, groups=2, classes=2, images=1)
    data = of_arrays("a", vectors(manifest), manifest)
    shown = Shown(*both(data, data))
    assert shown.words("What is found first") == "No query has another image of its class to find."
    assert list(shown.parts) == ["What is found first", "Which group is mistaken for which"]
    flat = Shown([findings(data.at_levels(["class"]))])
    assert list(flat.parts) == ["What is found first"]


def test_queries_without_a_positive_are_left_out_and_counted(tmp_path):
    manifest = collection(tmp_path, groups=2, classes=2, images=2)
    lone = manifest.take(np.arange(7))  # one image of the last class is left; it is the query's only mistake
    shown = Shown([findings(of_arrays("a", vectors(lone, noise=0.01), lone))])
    assert "Each of the 6 queries finds" in shown.words("What is found first")
    assert "One query has no other image of the same class to find and is left out." in shown.words("What is found first")
    assert shown.words("Most confused classes").startswith("No class is mistaken for another")
    assert not of(shown.parts["Weakest classes"], "table")


def test_images_without_a_label_are_named_as_such(tmp_path, monkeypatch):
    manifest = collection(tmp_path, groups=2, classes=1, images=3, splits=("query", "gallery", "gallery"))
    rows = vectors(manifest, noise=0.01)
    rows[2] = rows[1] + 5 * rows[4]  # class 0 keeps an item far from its query
    rows[1] = rows[0]
    data = open_data(embeddings(tmp_path / "e", manifest, rows))
    data.items.labels[0] = -1
    shown = Shown([findings(data)])
    assert shown.words("Most confused classes").endswith("an image without a label is first.")
    assert shown.rows("Weakest classes")[0][4] == "images without a label1 of 1 query"
    assert shown.rows("Which class is mistaken for which")[0][2:] == ["0", "0", "100"]
    monkeypatch.setattr("suprank.explorer.report.confusion_parts.MATRIX_LABELS", 1)
    words = Shown([findings(data)]).words("Which group is mistaken for which")
    assert words == "None is: where a query does not find its own, an image without a label is first."


def test_images_without_labels_have_no_such_section(tmp_path):
    manifest = collection(tmp_path)
    bare = Manifest.from_columns(
        {"path": manifest.paths.to_pylist(), "split": ["test"] * len(manifest)}, root=manifest.root, levels=()
    )
    run = RunFindings(of_arrays("bare", vectors(manifest), bare), *[None] * 7)
    assert failures_section([run], [None], Thumbnails()) is None


# In a real browser


@NEEDS_BROWSER
@pytest.mark.xdist_group("browser")
def test_the_section_is_near_the_verdict_and_readable_on_a_phone(browser, page, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(page, encoding="utf-8")
    shown = browser.new_page(viewport={"width": 1280, "height": 900})
    shown.goto(file.as_uri())
    verdict, failures = (shown.locator(f"#{name}").bounding_box() for name in ("verdict", "failures"))
    assert failures["y"] - (verdict["y"] + verdict["height"]) < 1.5 * 900
    bar = shown.locator("#failures .bars rect").first
    assert bar.bounding_box()["width"] > 50
    shades = shown.locator(".matrix .right.shade-6").first.evaluate("one => getComputedStyle(one).backgroundColor")
    assert shades not in ("rgba(0, 0, 0, 0)", "rgb(255, 255, 255)")
    shown.set_viewport_size({"width": 390, "height": 844})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390
    row = shown.locator("#failures .classes tbody tr").first
    name, ap, r1 = (row.locator("th, td").nth(place).bounding_box() for place in range(3))
    assert name["width"] > 100
    assert name["height"] < 140, "names wrap between words"
    assert r1["x"] + r1["width"] < 390, "the first columns need no scrolling"
    region = shown.locator("#failures .scroll", has=shown.locator(".classes")).first
    region.evaluate("one => one.scrollTo(one.scrollWidth, 0)")
    assert row.locator("th").bounding_box()["x"] >= 0, "the name stays while the table scrolls"
    assert ap["width"] > 0
    shown.close()
