"""Selections: filters by result, orders, tags, and their CSV."""

import csv
import io
import re
from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from suprank import open_data
from suprank.data import Manifest
from suprank.explorer import Index
from suprank.explorer.web import Explorer, ExplorerRun, Node
from suprank.explorer.web.browsing import ORDERS, ImageSelection
from suprank.explorer.web.export import tagged_manifest
from suprank.explorer.web.image_metrics import RESULTS, ImageMetrics
from suprank.explorer.web.selections import parse_query, selection_parameters, selection_query
from suprank.explorer.web.tree import NodeMetrics
from tests.explorer import runs
from tests.explorer.runs import of_arrays
from tests.explorer.web import drawn
from tests.explorer.web.conftest import client_of


def opened(*sources, **options):
    found = Explorer([ExplorerRun(data, Index.build(data.items.embeddings)) for data in sources], **options)
    found.measure()
    return found


@pytest.fixture(scope="module")
def hand_made(tmp_path_factory):
    """Two runs with four queries; tests/explorer/runs.py says what each of them finds."""
    own, baseline, _, _ = runs.hand_made_lists(tmp_path_factory.mktemp("lists"))
    return opened(open_data(own), open_data(baseline))


@pytest.fixture
def tagged(images, tmp_path):
    """Two runs whose tags go into an empty folder, and a client."""
    found = drawn.explorer(images, two=True, tags=tmp_path / "tags.csv")
    return found, client_of(found)


def rows_of(explorer, query):
    return explorer.browser.rows(parse_query(explorer, query)).tolist()


# The worked example: queries 0 and 1 find their class first in both runs, 2 and 3 in none. At level group, own finds all four
# groups first, the baseline all but that of query 2. Where scores tie, positives are last; so AP at level group is 1, 7/8, 0.73
# and 0.73 for own, and 0.57, 0.57, 0.37 and 0.73 for the baseline.


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("result_a=right", [0, 1]),
        ("result_a=wrong", [2, 3]),
        ("result_a=wrong&result_b=right", []),
        ("level=group&result_a=right&result_b=wrong", [2]),
        ("level=group&result_b=right", [0, 1, 3]),
        ("level=group&result_b=right&q=1-1", [3]),
        ("level=group&result_b=right&node=group:plain", None),
        ("level=group&result_b=right&node=0.1", [1]),
        ("result_a=unmeasured", []),
        ("side=gallery&result_a=right", []),
        ("level=group&order=lowest", [2, 3, 1, 0]),
        ("level=group&order=highest", [0, 1, 2, 3]),
        ("level=group&order=first_better", [0, 2, 1, 3]),
        ("level=group&order=second_better", [3, 1, 2, 0]),
        ("level=group&order=second_better&result_b=right", [3, 1, 0]),
        ("order=lowest&side=gallery", list(range(8))),
    ],
)
def test_the_worked_example(hand_made, query, expected):
    if expected is None:
        assert client_of(hand_made).get(f"/?{query}").status_code == 404
    else:
        found = rows_of(hand_made, query)
        assert (found if "order" in query else sorted(found)) == expected
        page = client_of(hand_made).get(f"/?{query}").text
        chosen = selection_parameters(hand_made, parse_query(hand_made, query)).values()
        assert f"<title>{escape(', '.join(filter(None, chosen)))} · own · suprank</title>" in page, "the name of a bookmark"
        side = "gallery" if "side" in query else "query"
        assert sorted(map(int, re.findall(rf'class="frame" href="/item/a/{side}/(\d+)"', page))) == sorted(expected)


def test_each_image_shows_its_ap_and_its_result_in_words(hand_made):
    page = client_of(hand_made).get("/?level=group&order=first_better").text
    tiles = re.findall(r'<li class="tile">.*?</li>', page, re.DOTALL)
    words = [re.findall(r'<span class="hidden">(\w+)</span> *<span class="number">([\d.]+)', tile) for tile in tiles]
    assert words[0] == [("right", "100.0"), ("right", "56.5")]
    assert words[1] == [("right", "73.2"), ("wrong", "36.5")]
    gallery = client_of(hand_made).get("/?side=gallery&result_a=wrong").text
    assert "images of the gallery are not queries" in gallery


def test_images_are_ordered_by_the_size_of_their_class():
    columns = {"path": list("abcdef"), "split": ["test"] * 6, "label_kind": ["x", "y", "y", "z", "y", "z"]}
    explorer = opened(of_arrays("s", np.eye(6, dtype=np.float32), Manifest.from_columns(columns, root=".")))
    assert rows_of(explorer, "order=fewest") == [0, 3, 5, 1, 2, 4]
    assert rows_of(explorer, "order=most") == [1, 2, 4, 3, 5, 0]
    assert rows_of(explorer, "result_a=unmeasured") == [0], "no other image has its label"


@pytest.fixture(scope="module")
def sampled(images):
    """Two runs; of the first, only ten queries are measured."""
    found = drawn.explorer(images, two=True)
    some = NodeMetrics(found.data, max_pairs=10 * 96)
    some.measure()
    found.node_metrics = (some, found.node_metrics[1])
    found.browser._metrics = found.image_metrics = ImageMetrics(found.searcher, found.node_metrics)
    return found


@given(
    selection=st.builds(
        ImageSelection,
        text=st.sampled_from(["", "star", "3.png"]),
        side=st.just("gallery"),
        split=st.none(),
        tag=st.just(""),
        results=st.just(("", "")),
        node=st.sampled_from([None, Node(0, 3), Node(1, 1)]),
        level=st.integers(0, 1),
        order=st.sampled_from(ORDERS),
    ),
    run=st.integers(0, 1),
)
def test_right_wrong_and_unmeasured_are_all_and_an_order_is_a_permutation(sampled, selection, run):
    browser = sampled.browser
    everything = browser.rows(selection._replace(order=ORDERS[0])).tolist()
    assert Counter(browser.rows(selection).tolist()) == Counter(everything)
    parts = [selection._replace(results=((one, "") if run == 0 else ("", one))) for one in RESULTS]
    assert Counter(row for part in parts for row in browser.rows(part).tolist()) == Counter(everything)
    assert parse_query(sampled, selection_query(sampled, parts[0])) == parts[0]


def test_of_a_sample_only_measured_queries_are_listed_and_it_is_said(sampled):
    listed = rows_of(sampled, "result_a=right") + rows_of(sampled, "result_a=wrong")
    assert sorted(listed) == sampled.node_metrics[0].rows.tolist()
    assert sorted(rows_of(sampled, "order=lowest")[:10]) == sorted(listed)
    assert "is measured on 10 of 96 queries" in client_of(sampled).get("/?result_a=wrong").text


def test_a_sample_has_the_same_images_in_both_runs_whatever_the_order_of_their_rows(images, monkeypatch):
    monkeypatch.setattr("suprank.explorer.web.explorer.NodeMetrics", partial(NodeMetrics, max_pairs=10 * 96))
    shifted = images.take([*range(3, 96), 0, 1, 2])
    explorer = opened(drawn.data(images, drawn.by_shape), drawn.data(shifted, drawn.by_pixels))
    first = explorer.node_metrics[0].rows
    assert len(first) == 10
    assert explorer.node_metrics[1].rows.tolist() == sorted((first - 3) % 96)
    assert sorted(rows_of(explorer, "order=first_better")[:10]) == first.tolist()
    assert sorted(rows_of(explorer, "result_b=right") + rows_of(explorer, "result_b=wrong")) == first.tolist()


def test_a_second_run_without_labels_is_unmeasured_and_that_is_said(images):
    flat = Manifest.from_columns(images.table.drop_columns(["label_kind", "label_family"]), root=images.root, levels=())
    explorer = opened(drawn.data(images, drawn.by_shape), drawn.data(flat, drawn.by_pixels, "flat"))
    page = client_of(explorer).get("/").text
    assert "AP and R@1 of flat cannot be measured: the images have no labels." in page
    assert page.count('<span class="hidden">right</span>') > 10
    assert page.count('<span class="hidden">unmeasured</span>') == 48
    assert rows_of(explorer, "result_b=right") == []
    assert len(rows_of(explorer, "result_b=unmeasured")) == 96


def test_before_they_are_measured_no_list_is_shown_and_the_page_says_what_to_do(images):
    data = drawn.data(images, drawn.by_shape)
    explorer = Explorer([ExplorerRun(data, Index.build(data.items.embeddings))])
    client = client_of(explorer)
    for query in ("result_a=right", "order=lowest"):
        page = client.get(f"/?{query}").text
        assert "are being measured; reload this page" in page
        assert 'class="tile"' not in page
    assert client.get("/").text.count('class="tile"') == 48
    for address in ("/selection.csv", "/selection.csv?result_a=right"):
        answer = client.get(address)
        assert (answer.status_code, "being measured" in answer.text) == (503, True)
    explorer.measure()
    assert 'class="tile"' in client.get("/?result_a=right").text


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/?result_a=maybe", "result_a=&#39;maybe&#39; must be one of right, wrong, unmeasured."),
        ("/?result_b=right", "result_b is the result of a second run"),
        ("/?order=random", "order=&#39;random&#39; must be one of mixed, lowest"),
        ("/?order=first_better", "needs two runs"),
        ("/?level=genus", "level=&#39;genus&#39; must be one of kind, family."),
        ("/?tag=" + "x" * 61, "a tag has at most 60"),
        ("/selection.csv?order=x", "must be one of"),
        ("/tree?order=first_better", "must be one of name, images, worst, best."),
    ],
)
def test_bad_parameters_are_400_with_a_sentence(client, address, said):
    answer = client.get(address)
    assert answer.status_code == 400
    assert said in answer.text


# CSV


def test_the_csv_has_what_the_page_shows_and_reads_as_a_manifest(hand_made, tmp_path):
    answer = client_of(hand_made).get("/selection.csv?level=group&order=first_better")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="selection.csv"'
    found = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [row["path"] for row in found] == [f"pictures/{name}-0.png" for name in ("0-0", "1-0", "0-1", "1-1")]
    assert [float(row["AP/group own"]) for row in found] == pytest.approx([1, 41 / 56, 7 / 8, 41 / 56], abs=1e-6)
    assert [row["result/group baseline"] for row in found] == ["right", "wrong", "right", "right"]
    assert [row["result/class own"] for row in found] == ["right", "wrong", "right", "wrong"]
    (tmp_path / "selection.csv").write_bytes(answer.content)
    again = Manifest.read(tmp_path / "selection.csv")
    assert (again.levels, again.splits) == (("class", "group"), {"query": 4})
    assert "<script>alert('group')</script>" in again.names["group"]
    gallery = client_of(hand_made).get("/selection.csv?side=gallery").text.splitlines()
    assert len(gallery) == 9
    assert gallery[1].endswith("," * 9), "images of the gallery have no metrics and no tags"


def test_cells_of_the_csv_are_safe_in_a_spreadsheet_and_a_terminal(tmp_path):
    columns = {
        "path": ["=cmd.png", "b\x1b[31m.png"],
        "split": ["test"] * 2,
        "label_kind": ["@x", '-"y", z'],
        "id": ["+1", "2"],
        "box": [[0, 0, 1.5, 2], None],
    }
    data = of_arrays("s", np.eye(2, dtype=np.float32), Manifest.from_columns(columns, root="."))
    explorer = opened(data, tags=tmp_path / "t.csv")
    explorer.tags.change(data.items.manifest, [1], add="seen")
    text = client_of(explorer).get("/selection.csv").text
    assert text.startswith("path,split,label_kind,id,box,AP/kind,result/kind,tags\n")
    assert list(csv.reader(io.StringIO(text, newline="")))[1:] == [
        ["'=cmd.png", "test", "'@x", "+1", "0 0 1.5 2", "", "", ""],
        [r"b\u001b[31m.png", "test", '\'-"y", z', "2", "", "", "", "seen"],
    ]


# Tags


def test_tags_are_given_listed_filtered_and_removed(tagged):
    explorer, client = tagged
    answer = client.post("/tags", data={"image": "a/gallery/3", "tag": "blurry", "back": "level=1"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/item/a/gallery/3?level=1#tags")
    as_json = {"accept": "application/json"}
    answer = client.post("/tags", data={"image": "b/gallery/5", "tag": "<b>"}, headers=as_json)
    assert answer.json() == {"tags": ["<b>"]}, "an image of the second run is the same image"
    assert rows_of(explorer, "tag=blurry") == [3]
    assert sorted(rows_of(explorer, "tag=%2B")) == [3, 5]
    assert len(rows_of(explorer, "tag=-")) == 94
    page = client.get("/?tag=blurry").text
    assert page.count('class="tile"') == 1
    assert "blurry (1)" in page
    assert "&lt;b&gt;" in client.get("/tags").text
    assert '<a href="/?tag=blurry">blurry</a>' in client.get("/item/a/gallery/3").text
    client.post("/tags", data={"image": "a/gallery/3", "tag": "blurry", "act": "remove"})
    assert rows_of(explorer, "tag=blurry") == []
    assert "blurry (0)" in client.get("/?tag=blurry").text


def test_all_images_of_a_selection_are_tagged_after_a_confirmation(tagged):
    explorer, client = tagged
    query = "result_b=wrong&node=family:star"
    chosen = rows_of(explorer, query)
    assert 0 < len(chosen) < 24
    page = client.get(f"/tag-all?{query}&name=check&act=add").text
    assert f"Tag {len(chosen)} image" in page
    form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))
    form = {name: value.replace("&amp;", "&") for name, value in form.items()}
    answer = client.post("/tag-all", data={**form, "total": "1000"})
    assert (answer.status_code, "nothing was changed" in answer.text) == (409, True)
    assert client.post("/tag-all", data=form).status_code == 200
    assert sorted(rows_of(explorer, "tag=check")) == sorted(chosen)
    client.post("/tag-all", data={**form, "act": "remove"})
    assert rows_of(explorer, "tag=check") == []


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_the_manifest_with_tags_is_downloaded(tagged, tmp_path, suffix):
    explorer, client = tagged
    client.post("/tags", data={"image": "a/gallery/3", "tag": "blurry"})
    client.post("/tags", data={"image": "a/gallery/3", "tag": "ä, b"})
    answer = client.get(f"/manifest{suffix}")
    assert answer.headers["content-disposition"] == f'attachment; filename="manifest{suffix}"'
    (tmp_path / f"down{suffix}").write_bytes(answer.content)
    again = Manifest.read(tmp_path / f"down{suffix}")
    assert again.table["tags"].to_pylist()[2:5] == ["", "blurry;ä, b", ""]
    assert again.paths.to_pylist() == explorer.data.items.manifest.paths.to_pylist()
    assert again.levels == ("kind", "family")
    assert client.get("/manifest.exe").status_code == 404


def test_the_manifest_of_queries_and_gallery_has_both(hand_made, tmp_path):
    (tmp_path / "m.parquet").write_bytes(client_of(hand_made).get("/manifest.parquet").content)
    again = Manifest.read(tmp_path / "m.parquet")
    assert again.splits == {"query": 4, "gallery": 8}
    assert (again.root / again.paths[0].as_py()).is_file()


@pytest.mark.parametrize("distractors", [True, False])
def test_images_of_two_folders_keep_their_tags_in_the_manifest(tmp_path, distractors):
    columns = {"split": ["test"] * 2, "label_kind": ["k"] * 2, "broken": [False] * 2}
    one = Manifest.from_columns({"path": ["x.png", "y.png"], **columns}, root=tmp_path / "queries")
    other = Manifest.from_columns({"path": ["x.png", "deep/y.png"], **columns}, root=tmp_path / "others")
    gallery = one.join(other) if distractors else other
    vectors = np.eye(4, dtype=np.float32)
    data = of_arrays("s", vectors[:2], one, vectors[: len(gallery)], gallery)
    explorer = opened(data, tags=tmp_path / "tags.csv")
    explorer.tags.change(one, [1], add="of a query")
    explorer.tags.change(gallery, [1], add="in the gallery")
    found = tagged_manifest(explorer)
    assert found.paths.to_pylist() == ["queries/x.png", "queries/y.png", "others/x.png", "others/deep/y.png"]
    assert found.table["tags"].to_pylist() == (
        ["", "in the gallery;of a query", "", ""] if distractors else ["", "of a query", "", "in the gallery"]
    )


@pytest.mark.parametrize(
    ("address", "form", "status", "said"),
    [
        ("/tags", {"image": "a/gallery/3", "tag": "a;b"}, 400, "A tag may not contain"),
        ("/tags", {"image": "a/gallery/3", "tag": ""}, 400, "write one"),
        ("/tags", {"image": "a/gallery/3", "tag": "x", "act": "drop"}, 400, "must be add or remove"),
        ("/tags", {"image": "a/gallery/96", "tag": "x"}, 404, "There is no such image"),
        ("/tags", {"image": "../etc", "tag": "x"}, 404, "There is no such image"),
        ("/tags", {"image": "a/gallery/3", "tag": "x" * 200_000}, 413, "write less"),
        ("/tag-all", {"selection": "order=x", "tag": "x", "total": "1"}, 400, "must be one of"),
    ],
)
def test_bad_forms_are_refused_with_a_sentence(tagged, address, form, status, said):
    explorer, client = tagged
    answer = client.post(address, data=form)
    assert (answer.status_code, said in answer.text) == (status, True)
    if status != 413:
        answer = client.post(address, data=form, headers={"accept": "application/json"})
        assert answer.status_code == status
    assert not explorer.tags.file.exists()


WRITES = {
    "/tags": {"image": "a/gallery/3", "tag": "x"},
    "/tag-all": {"selection": "", "tag": "x", "total": "96"},
}


def test_only_forms_of_this_page_change_anything(tagged):
    explorer, client = tagged
    for address, form in WRITES.items():
        assert client.post(address, data=form, headers={"sec-fetch-site": "cross-site"}).status_code == 403
        assert client.post(address, data=form, headers={"origin": "http://evil.example"}).status_code == 403
        assert client.post(address, json=form).status_code == 400
        assert client.get(address, params=form).status_code in (200, 400, 405)
    assert not explorer.tags.file.exists()


def test_a_read_only_page_has_no_controls_and_refuses_changes(images, tmp_path):
    drawn.explorer(images, tags=tmp_path / "tags.csv").tags.change(images, [3], add="blurry")
    (tmp_path / "plain").write_text("")
    cases = {
        "started to be read only": {"tags": tmp_path / "tags.csv", "read_only": True},
        "--tags FILE": {},
        "cannot be written": {"tags": tmp_path / "plain" / "tags.csv"},
    }
    for said, options in cases.items():
        client = client_of(drawn.explorer(images, **options))
        for address, form in WRITES.items():
            answer = client.post(address, data=form)
            assert (answer.status_code, said in answer.text) == (403, True)
        pages = "".join(client.get(address).text for address in ("/", "/item/a/gallery/3", "/tags", "/help"))
        controls = ("+ tag", 'action="/tags"', 'action="/tag-all"', "<kbd>t</kbd>")
        assert [control in pages for control in controls] == [said == "cannot be written"] * 4
        assert ("blurry" in pages) == (said == "started to be read only")


def test_a_damaged_file_of_tags_is_reported_and_images_can_still_be_looked_at(tagged):
    explorer, client = tagged
    explorer.tags.file.write_text("nonsense\nx\n")
    assert "The tags cannot be read" in client.get("/").text
    assert client.get("/item/a/gallery/3").status_code == 200
    answer = client.get("/?tag=x")
    assert (answer.status_code, "has no column" in answer.text) == (409, True)
    assert client.post("/tags", data=WRITES["/tags"]).status_code == 409
    assert client.get("/manifest.csv").status_code == 409
    assert explorer.tags.file.read_text() == "nonsense\nx\n"


def test_a_file_that_cannot_be_read_is_reported_like_a_damaged_one(tagged):
    explorer, client = tagged
    explorer.tags.file.mkdir()
    assert "cannot be read (Is a directory)" in client.get("/").text
    for answer in (client.get("/?tag=x"), client.get("/selection.csv"), client.post("/tags", data=WRITES["/tags"])):
        assert (answer.status_code, "cannot be read" in answer.text) == (409, True)


def test_the_link_of_a_tag_lists_the_side_of_its_image(tmp_path):
    own, *_ = runs.hand_made_lists(tmp_path)
    explorer = opened(open_data(own))
    for side in ("query", "gallery"):
        explorer.tags.change(explorer.browser.sides[side].manifest, [1], add=f"a {side}")
    client = client_of(explorer)
    assert 'href="/?tag=a+query"' in client.get("/").text
    for address in ("/?side=gallery", "/item/a/gallery/1"):
        assert 'href="/?tag=a+gallery&amp;side=gallery"' in client.get(address).text
    assert client.get("/?tag=a+gallery&side=gallery").text.count('class="tile"') == 1
