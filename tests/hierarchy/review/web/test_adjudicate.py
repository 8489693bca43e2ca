"""The adjudication page: its forms as a browser without scripts sends them, and its shortcuts in a real browser."""

import re
from html import unescape

import pytest

from suprank.hierarchy.adjudication import Adjudication, open_final_branch
from suprank.hierarchy.review import Branch, Rename
from suprank.hierarchy.review.web import create_app
from tests.browsers import NEEDS_BROWSER, guarded_pages
from tests.hierarchy.adjudication.test_final_branch import ANNA, BEN
from tests.hierarchy.adjudication.two_branches import two_branches
from tests.hierarchy.review.small_project import tree
from tests.hierarchy.review.web.annotator import web_client
from tests.hierarchy.review.web.conftest import served
from tests.hierarchy.review.web.test_app import add_images


@pytest.fixture
def project(tmp_path):
    project = two_branches(tmp_path / "project", ANNA, BEN, weights={"river": 9, "fort": 5})
    open_final_branch(project, "anna", "ben")
    return project


@pytest.fixture
def final(project):
    return Branch(project, "final")


@pytest.fixture
def client(project, final):
    client = web_client(create_app(project, ["final"]))
    assert client.get(f"/final/adjudicate/enter?token={final.token}").status_code == 200
    return client


def fingerprints(page):
    return [unescape(one) for one in re.findall(r'name="was" value="([^"]*)"', page)]


def subjects(page):
    return [unescape(one) for one in re.findall(r'<span class="text">([^<]*)</span>', page)]


def send(client, act, address="/final/adjudicate", **fields):
    """The form of the page, with this button pressed."""
    page = client.get(address).text
    token = re.search(r'<form class="adjudicate".*?name="token" value="([^"]+)"', page, re.DOTALL)[1]
    newest = re.search(r'name="newest" value="(\d+)"', page)[1]
    return client.post(address, data={"token": token, "newest": newest, "act": act, "was": fingerprints(page), **fields})


def test_open_cases_are_shown_with_both_answers_sorted_by_weight(client):
    page = client.get("/final/adjudicate").text
    assert subjects(page) == ["river", "fort", "heritage"]
    assert "0 of 5 resolved" in page
    assert [unescape(one) for one in re.findall(r'<span class="place">([^<]*)</span>', page)] == [
        *("lake", "stream", "fort", "castle", "excluded: vague", "castle")
    ]
    assert subjects(client.get("/final/adjudicate?kind=name").text) == ["church | cathedral"]
    assert subjects(client.get("/final/adjudicate?kind=parent").text) == ["castle"]


def test_a_button_takes_one_answer_and_saves_who_decided_and_why(client, final, project):
    answer = send(client, "second:6", who="carl & dora", reason="it flows")
    assert answer.status_code == 200
    assert "Resolved the label &#39;river&#39;: ben." in answer.text
    assert 'value="carl &amp; dora"' in answer.text  # kept for the next one
    assert tree(final)[0]["stream"] == ("natural", ["river"])
    assert "1 of 5 resolved" in answer.text
    page = client.get("/final/adjudicate?show=resolved").text
    assert subjects(page) == ["river"]
    assert "carl &amp; dora" in page
    assert "it flows" in page
    assert "side second chosen" in page
    assert "side first chosen" not in page


def test_selected_labels_go_to_another_group_or_are_excluded(client, final):
    send(client, "other", row=["4", "8"], other="stronghold")
    assert tree(final)[0]["stronghold"] == (None, ["fort", "heritage"])
    send(client, "excluded", row=["6"], reason="no place")
    assert tree(final)[1]["river"] == "no place"
    assert len(final.log()) == 3


def test_all_at_once_until_nothing_is_left(client, final):
    page = client.get("/final/adjudicate").text
    assert "Resolve many at once" not in page  # no two labels have the same two answers
    send(client, "second:all")
    assert "unsettled" not in tree(final)[1].values()
    assert len(final.log()) == 2
    send(client, "first:all", "/final/adjudicate?kind=name"), send(client, "second:all", "/final/adjudicate?kind=parent")
    page = client.get("/final/adjudicate").text
    assert "5 of 5 resolved" in page
    assert "All disagreements are resolved." in page
    assert "suprank hierarchy export" in page


def test_labels_with_the_same_two_answers_are_resolved_together(tmp_path):
    first = {f"{kind} {number}": [kind] for kind in ("a", "b") for number in range(3)}
    second = {text: ["a"] for text in first}
    project = two_branches(tmp_path / "project", first, second)
    final = open_final_branch(project, "anna", "ben")
    client = web_client(create_app(project, ["final"]))
    client.get(f"/final/adjudicate/enter?token={final.token}")
    page = client.get("/final/adjudicate").text
    assert "Resolve many at once" in page
    key = re.search(r'value="first:pair:([^"]+)"', page)[1]
    assert "3 labels" in client.get(f"/final/adjudicate?pair={key}").text
    send(client, f"first:pair:{key}")
    assert tree(final)[0]["b"] == (None, ["b 0", "b 1", "b 2"])
    assert len(final.log()) == 2


def test_a_case_somebody_else_resolved_is_409_with_the_current_state_and_the_form_kept(client, project, final):
    page = client.get("/final/adjudicate").text
    adjudication = Adjudication(project)
    (river, *_) = adjudication.status().cases["label"]
    adjudication.resolve([river.disagreement], "second", who="dora")
    before = tree(final)
    answer = client.post(
        "/final/adjudicate", data={"act": "first", "row": ["6", "4"], "was": fingerprints(page), "reason": "why not"}
    )
    assert answer.status_code == 409
    assert "decided in the meantime; nothing was saved" in answer.text
    assert subjects(answer.text) == ["fort", "heritage"]
    assert 'value="why not"' in answer.text
    assert re.search(r'value="4" checked', answer.text)
    assert tree(final) == before


@pytest.mark.parametrize("act", ["first:all", "second:pair:3.4"])
def test_resolving_many_is_refused_if_something_was_decided_in_the_meantime(client, project, final, act):
    page = client.get("/final/adjudicate").text
    adjudication = Adjudication(project)
    adjudication.resolve([adjudication.status().cases["label"][0].disagreement], "second", who="dora")
    final.undo()  # one more is open than dora left, and as many as were shown
    before = tree(final)
    newest = re.search(r'name="newest" value="(\d+)"', page)[1]
    answer = client.post("/final/adjudicate", data={"act": act, "newest": newest, "token": "t"})
    assert answer.status_code == 409
    assert "nothing was saved" in answer.text
    assert tree(final) == before


def test_refusals_keep_the_page(client, final):
    for act, fields, message in (
        ("first", {}, "Choose at least one disagreement to resolve."),
        ("excluded", {"row": ["6"]}, "Give a reason"),
        ("other", {"row": ["6"], "other": " "}, "A name must have 1 to 200 characters"),
        ("", {"row": ["6"]}, "Use one of the buttons"),
        ("nonsense:6", {}, "Use one of the buttons"),
        ("first:999", {}, "Choose at least one disagreement to resolve."),
    ):
        answer = send(client, act, **fields)
        assert (answer.status_code, message in answer.text) == (400, True), act
    assert len(final.log()) == 1
    assert client.get("/final/adjudicate?kind=x").status_code == 400
    assert client.get("/final/adjudicate?offset=-1").status_code == 400
    assert subjects(client.get("/final/adjudicate?offset=5000").text) == ["river", "fort", "heritage"]


def test_the_same_click_counts_once(client, final):
    page = client.get("/final/adjudicate").text
    data = {"token": "abc", "act": "second:6", "was": fingerprints(page)}
    assert [client.post("/final/adjudicate", data=data).status_code for _ in range(2)] == [200, 200]
    assert len(final.log()) == 2


def test_the_page_says_that_an_annotator_continued(client, project):
    Branch(project, "ben").apply(Rename(1, "minster"))
    page = client.get("/final/adjudicate").text
    assert "ben (1 action) continued after this adjudication started." in page
    assert subjects(client.get("/final/adjudicate?kind=name").text) == ["church | cathedral"]


def test_only_the_link_gives_access_and_only_to_final(project, final, client):
    stranger = web_client(create_app(project, ["final"]))
    assert stranger.get("/final/adjudicate").status_code == 403
    assert stranger.post("/final/adjudicate", data={"act": "first:all"}).status_code == 403
    assert stranger.get("/final/adjudicate/enter?token=guess").status_code == 403
    assert stranger.get("/anna/adjudicate/enter?token=").status_code == 403
    entered = stranger.get(f"/final/adjudicate/enter?token={final.token}", follow_redirects=False)
    # The redirect takes the token out of the URL.
    assert (entered.status_code, entered.headers["location"]) == (303, "/final/adjudicate")
    stranger.cookies.clear()
    assert ".subjects" in stranger.get("/style.css").text
    both = web_client(create_app(project, ["anna", "final"]))
    both.get(f"/anna/enter?token={Branch(project, 'anna').token}")
    assert both.get("/anna/adjudicate").status_code == 404
    assert len(final.log()) == 1


def test_names_are_escaped_everywhere(tmp_path):
    evil = '"><script>alert(1)</script>'
    project = two_branches(tmp_path / "project", {evil: [f"a{evil}"], "b": ["b"]}, {evil: ["b"], "b": [f"c{evil}"]})
    final = open_final_branch(project, "anna", "ben")
    client = web_client(create_app(project, ["final"]))
    client.get(f"/final/adjudicate/enter?token={final.token}")
    send(client, "first:all", reason=evil, who=evil)
    for address in (
        "/final/adjudicate",
        "/final/adjudicate?show=all",
        "/final/adjudicate?kind=name",
        f"/final/adjudicate?pair={evil}",
    ):
        page = client.get(address).text
        assert "<script>alert" not in page, address
    assert "&lt;script&gt;alert" in client.get("/final/adjudicate?show=all").text


def test_cases_have_sample_images_of_the_label_or_of_the_labels_of_the_group(project, final, tmp_path):
    add_images(project, tmp_path / "i", "kind", ["river", "river", "castle", "church", "church"])
    client = web_client(create_app(project, ["final"]))
    page = client.get(f"/final/adjudicate/enter?token={final.token}").text

    def images(page):
        return {
            re.search(r'class="text">([^<]*)<', row)[1]: re.findall(r"/final/picture/(\d)", row)
            for row in page.split("<li data-row>")[1:]
        }

    assert images(page) == {"river": ["0", "1"], "fort": [], "heritage": []}
    assert images(client.get("/final/adjudicate?kind=name").text) == {"church | cathedral": ["3"]}
    assert images(client.get("/final/adjudicate?kind=parent").text) == {"castle": ["2"]}
    assert client.get("/final/picture/3").status_code == 200


@pytest.mark.xdist_group("browser")
@NEEDS_BROWSER
def test_adjudicating_with_the_keyboard_in_a_browser(project, final, browser):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with served(project, ["final"]) as address, guarded_pages(browser) as new_page:
        page = new_page(address)
        page.goto(f"{address}/final/adjudicate/enter?token={final.token}")
        page.wait_for_url("**/final/adjudicate")
        page.keyboard.press("j")
        page.keyboard.press("j")  # on the fort
        page.keyboard.press("2")
        playwright.expect(page.get_by_text("1 of 5 resolved")).to_be_visible()
        assert tree(final)[0]["castle"][1] == ["castle", "fort"]
        playwright.expect(page.locator(".here .text")).to_have_text("heritage")  # the next one, in its place
        page.keyboard.press("m")
        page.keyboard.type("relic")
        page.keyboard.press("Enter")
        playwright.expect(page.get_by_text("2 of 5 resolved")).to_be_visible()
        assert tree(final)[0]["relic"] == (None, ["heritage"])
        page.locator("h1").click()
        page.keyboard.press("u")
        playwright.expect(page.get_by_text("1 of 5 resolved")).to_be_visible()
        page.set_viewport_size({"width": 360, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
