"""The page of a label: confusions, nearest classes and images at the border, on lists that are written down by hand."""

import re
from collections import Counter
from math import cos, radians, sqrt

import numpy as np
import pytest

from suprank import open_data
from suprank.data import Manifest
from suprank.explorer import Index
from suprank.explorer.web import Explorer, ExplorerRun, ImageId, Node, label_findings
from suprank.explorer.web.label_page import label_views
from tests.browsers import NEEDS_BROWSER, guarded_pages
from tests.explorer import runs
from tests.explorer.runs import of_arrays
from tests.explorer.web.conftest import client_of, served


def explore(*sources, measured=True):
    found = Explorer([ExplorerRun(data, Index.build(data.items.embeddings)) for data in sources])
    if measured:
        found.measure()
    return found


def on_circle(degrees, species, family=None, gallery=None):
    """Data of images at these angles; with `gallery`, (degrees, species) of the items, distractors if None."""

    def side(degrees, split, **labels):
        count = len(degrees)
        splits = [split if name else "distractor" for name in labels["label_species"]]
        columns = {"path": [f"{split}{row}.png" for row in range(count)], "split": splits}
        angle = np.radians(degrees)
        vectors = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
        return vectors, Manifest.from_columns({**columns, **{k: v for k, v in labels.items() if v}}, root=".")

    if gallery is None:
        return of_arrays("circle", *side(degrees, "test", label_species=species, label_family=family))
    return of_arrays(
        "circle", *side(degrees, "query", label_species=species), *side(gallery[0], "gallery", label_species=gallery[1])
    )


def text(explorer, node):
    """The words of a page's content, without its tags."""
    page = client_of(explorer).get(f"/label?node={node}")
    assert page.status_code == 200
    main = page.text.split("<main")[1].split("</main>")[0]
    return re.sub(r"\s+([.,;:])", r"\1", " ".join(re.sub(r"<[^>]*>", " ", main).split()))


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    own, baseline, *_ = runs.hand_made_lists(tmp_path_factory.mktemp("lists"))
    return explore(open_data(own), open_data(baseline))


def test_the_hand_made_lists_confuse_the_third_class_with_the_fourth_and_the_first(lists):
    own, baseline = label_views(lists, Node(0, 2))  # query 2 finds item 6, of class 3, and in the other run item 0, of class 0
    for view, found, item in ((own, 3, 6), (baseline, 0, 0)):
        (instead,) = view.found_instead.rows
        assert (instead.label.node, instead.mistakes, instead.queries) == (Node(0, found), 1, 1)
        assert (instead.query, instead.item.image) == (ImageId(view.run, "query", 2), ImageId(view.run, "gallery", item))
        assert instead.item.score == pytest.approx(4 / sqrt(30))  # the scores of a query are 4, 3, 2, 1
        (by,) = view.found_by.rows  # query 3 finds item 4
        assert (by.label.node, by.mistakes, by.item.image.row, by.unavoidable) == (Node(0, 3), 1, 4, False)
        (image,) = view.border.close
        assert (image.own.score, image.other.score) == pytest.approx((0, 4 / sqrt(30)))
        assert image.label.node == Node(0, found)
    assert own.found_instead.rows[0].item.level == 1  # the same group
    assert baseline.found_instead.rows[0].item.level == 0
    (image,) = label_views(lists, Node(0, 1))[0].border.close
    assert image.margin == pytest.approx(2 / sqrt(30))  # 4 of item 2, and 2 of item 0
    group = label_views(lists, Node(1, 1))
    assert [(view.found_instead.queries, view.searched) for view in group] == [(0, 2), (1, 2)]


def test_the_page_says_it_in_words_with_links(lists):
    said = text(lists, "0.2")
    assert "1 query, 2 images in the gallery" in said
    assert said.count("Its only query finds another class first.") == 2
    assert "Klasse 1·1 &amp; &lt;b&gt;: 1 of 1 query (100.0%)" in said
    assert "Klasse 1·1 &amp; &lt;b&gt;: 1 of its 1 query (100.0%)" in said
    assert "Klasse 1·1 &amp; &lt;b&gt; is closer than its own class, by 0.730." in said
    assert "R@1 class" in said
    page = client_of(lists).get("/label?node=0.2").text
    for address in ("/label?node=1.1", "/label?node=0.3", "/label?node=0.0", "/tree?node=0.2", "/item/b/query/2", "/?node=0.2"):
        assert f'href="{address}' in page
    for forbidden in ("<script>", "<style", " style=", " onerror="):
        assert forbidden not in page + client_of(lists).get("/label?node=1.0").text  # that group is called <script>...
    assert "all 2 of its queries find this group first" in text(lists, "1.1")
    assert 'href="/label?node=1.1"' in client_of(lists).get("/tree?node=1.1").text


def test_confusions_and_borders_are_those_of_a_search_for_each_image(two):
    for run, level in ((0, 0), (0, 1), (1, 0)):
        labels = two.runs[run].data.items.labels[:, level]
        first = [two.searcher.neighbors(ImageId(run, "gallery", row), limit=1)[run].hits[0] for row in range(len(labels))]
        counts = Counter((labels[row], labels[hit.image.row]) for row, hit in enumerate(first))
        for label in range(len(two.tree.names(level))):
            view = label_views(two, Node(level, label))[run]
            for table, wrong in (
                (view.found_instead, {found: n for (own, found), n in counts.items() if own == label != found}),
                (view.found_by, {own: n for (own, found), n in counts.items() if found == label != own}),
            ):
                assert (table.queries, table.labels) == (sum(wrong.values()), len(wrong))
                assert [row.mistakes for row in table.rows] == sorted(wrong.values(), reverse=True)[:6]
                assert all(row.mistakes == wrong[row.label.node.label] for row in table.rows)
            wrong = [row for row in np.flatnonzero(labels == label) if labels[first[row].image.row] != label]
            border = view.border
            assert (border.beyond_total, border.compared) == (len(wrong), (labels == label).sum())
            assert {one.query.row for one in border.beyond} <= set(wrong)
            margins = [[one.margin for one in some] for some in (border.close, border.beyond)]
            assert margins == [sorted(margins[0], key=abs), sorted(margins[1])]
            assert len(border.close) == 6


def test_the_nearest_classes_are_those_of_the_closest_means():
    data = on_circle([0, 10, 26, 30, 50, 90], ["crow", "crow", "crow", "jay", "jay", "wren"], ["corvid"] * 5 + ["small"])
    explorer = explore(data)
    (crow,) = label_views(explorer, Node(0, 0))
    assert crow.typical.row == 1
    mean = np.degrees(np.arctan2(*np.sum([[np.sin(radians(a)), np.cos(radians(a))] for a in (0, 10, 26)], 0)))
    assert [(one.label.name, one.typical.level) for one in crow.nearest_classes] == [("jay", 1), ("wren", 0)]
    assert [one.typical.score for one in crow.nearest_classes] == pytest.approx([cos(radians(a - mean)) for a in (40, 90)])
    said = text(explorer, "0.0")
    assert "same family jay" in said
    assert "other family wren" in said


def test_few_images_are_in_one_list_with_the_farthest_beyond_the_border_first():
    data = on_circle([0, 10, 26, 30, 50, 90], ["crow", "crow", "crow", "jay", "jay", "wren"])
    explorer = explore(data)
    assert "1 of 3 images is closer to another species than to its own, the farthest first." in text(explorer, "0.0")
    (crow,) = label_views(explorer, Node(0, 0))
    assert [one.query.row for one in crow.border.close] == [2, 1, 0]  # at 26, 10 and 0 degrees; the jay is at 30
    assert [one.margin for one in crow.border.close] == pytest.approx(
        [cos(radians(a)) - cos(radians(b)) for a, b in ((16, 4), (10, 20), (10, 30))], abs=1e-6
    )
    assert crow.border.beyond == ()


def test_a_large_label_compares_some_images_and_says_which(monkeypatch):
    monkeypatch.setattr(label_findings, "BORDER_PAIRS", 0)
    monkeypatch.setattr(label_findings, "BORDER_IMAGES", 8)
    degrees = [*range(40), 60, 61]  # the crow at 60 stands beside the jay
    data = on_circle(degrees, ["crow"] * 41 + ["jay"])
    before = explore(data, measured=False)
    assert "Compared are 8 of its 41 images, evenly spaced." in text(before, "0.0")
    after = explore(data)
    assert "Compared are 8 of its 41 images: 1 that finds another label first, and 7 others, evenly spaced." in text(
        after, "0.0"
    )
    (view,) = label_views(after, Node(0, 0))
    assert [one.query.row for one in view.border.beyond] == [40]
    assert len({*after.findings[0].border(0, 0).border.queries.tolist()}) == 8


# Edges


def test_what_is_measured_later_is_said():
    data = on_circle([0, 10, 50, 60], ["crow", "crow", "jay", "jay"])
    said = text(explore(data, measured=False), "0.0")
    assert "AP and R@1 are being measured; reload this page in a while." in said
    assert said.count("are being searched; reload this page in a while.") == 2
    assert "Images at the border" in said


def test_a_search_that_ends_while_the_page_is_rendered_changes_nothing():
    explorer = explore(on_circle([0, 5, 10, 8], ["crow", "jay", "crow", "jay"]), measured=False)
    (view,) = label_views(explorer, Node(0, 0))
    assert view.found_instead.queries == 0
    explorer.measure()
    assert (view.searching, view.nearest, view.searched) == (True, None, 0)
    (view,) = label_views(explorer, Node(0, 0))
    assert (view.searching, view.searched, view.found_instead.queries) == (False, 2, 2)


def test_the_only_image_of_a_label_has_nothing_to_find():
    explorer = explore(on_circle([0, 10, 12], ["crow", "crow", "wren"]))
    said = text(explorer, "0.1")
    assert "This is the only image of its label." in said
    assert "Its only query finds another species first, since there is no other image of this one to find." in said
    assert "There is no other image of this species to compare with." in said
    assert "wren: 1 of its 1 query (100.0%); it has no other image to find" in text(explorer, "0.0")
    assert "species other" not in said  # with one level there is nothing that two labels could share


def test_a_difference_that_rounds_to_zero_is_still_one():
    explorer = explore(on_circle([0, 10, -9.999, 170, -170], ["crow", "crow", "wren", "wren", "wren"]))
    said = text(explorer, "0.0")
    assert "1 of 2 images is closer to another species than to its own" in said
    assert "wren is closer than its own species, by less than 0.001." in said
    assert "equally close" not in said


def test_a_single_label_has_no_neighbor_and_no_border():
    said = text(explore(on_circle([0, 10], ["crow", "crow"])), "0.0")
    assert "Nothing: all 2 of its queries find this species first." in said
    assert "No query of another species finds this one first." in said
    assert "There is no other species in the gallery." in said
    assert "There is no image of another species to compare with." in said


def test_labels_of_one_side_only_and_items_without_a_label():
    explorer = explore(on_circle([0, 40, 60], ["crow", "jay", "owl"], gallery=([2, 41, 42, 5], [None, "jay", "tit", "crow"])))
    nodes = {name: f"0.{number}" for number, name in enumerate(explorer.tree.names(0))}
    crow = text(explorer, nodes["crow"])
    assert "images without a label (distractors): 1 of 1 query (100.0%)" in crow
    assert "An image without a label is closer than its own species, by 0.003." in crow
    owl = text(explorer, nodes["owl"])
    assert "Only queries have this label." in owl
    assert "The gallery has no image of this label, so nothing can find it." in owl
    assert "none of them has this label" in owl
    assert "There is no image of this species in the gallery to compare with." in owl
    tit = text(explorer, nodes["tit"])
    assert "0 queries, 1 image in the gallery" in tit
    assert "No query has this label, so there is nothing to measure." in tit
    assert "owl: 1 of its 1 query (100.0%); it has no other image to find" in tit


def test_a_second_run_is_matched_by_names_and_may_lack_the_label():
    one = on_circle([0, 10, 50, 60], ["crow", "crow", "jay", "jay"])
    other = on_circle([50, 60, 0, 10], ["jay", "jay", "owl", "owl"])
    explorer = explore(one, other)
    crow, jay = (label_views(explorer, Node(0, explorer.tree.names(0).index(name))) for name in ("crow", "jay"))
    assert crow[1].label is None
    assert "This run has no species “crow”." in text(explorer, "0.0")
    assert jay[1].label == other.names["species"].index("jay")
    (owl,) = jay[1].nearest_classes
    assert (owl.label.name, owl.label.node) == ("owl", None)  # nothing to open: the tree is that of the first run


def test_what_is_no_label_is_not_found(client):
    for node in ("", "x", "9.0", "0.99", "1.99"):
        assert client.get(f"/label?node={node}").status_code == 404
    assert client.get("/label").status_code == 404


def test_a_failure_in_the_background_is_shown(monkeypatch):
    monkeypatch.setattr(label_findings, "nearest_items", lambda data, pairs: 1 / 0)
    said = text(explore(on_circle([0, 10], ["crow", "crow"])), "0.0")
    assert said.count("The first images could not be searched: division by zero") == 2


@NEEDS_BROWSER
@pytest.mark.xdist_group("browser")
def test_a_walk_from_a_label_to_what_it_is_confused_with(browser, two):
    from playwright.sync_api import expect

    with served(two) as address, guarded_pages(browser) as new_page:
        page = new_page(address, width=360)
        page.goto(f"{address}/tree?node=1.2")
        page.get_by_role("link", name="what it is confused with").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"family {two.tree.name(Node(1, 2))}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.evaluate("for (const one of document.images) one.loading = 'eager'")
        page.wait_for_load_state("networkidle")
        assert page.evaluate("[...document.images].every((one) => one.complete && one.naturalWidth > 0)")
        confused = page.locator(".examples a[href^='/label']").first
        name = confused.inner_text()
        confused.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"family {name}")
        page.wait_for_load_state()  # with its script
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.wait_for_url("**/item/**")
