"""The page of the settling: its forms as a browser without a script sends them, and its keys in a real browser."""

import re
from html import unescape

import pytest
from starlette.testclient import TestClient

from suprank.hierarchy.adjudication import Settling, begin_final
from suprank.hierarchy.review import Branch, Rename
from suprank.hierarchy.review.web import create_app
from tests.browsers import NEEDED, launched, watched
from tests.hierarchy.adjudication.test_beginning import ANNA, BEN
from tests.hierarchy.adjudication.two import two_branches
from tests.hierarchy.review.small import tree
from tests.hierarchy.review.web.conftest import served


@pytest.fixture
def project(tmp_path):
    made = two_branches(tmp_path / "project", ANNA, BEN, weights={"river": 9, "fort": 5})
    begin_final(made, "anna", "ben")
    return made


@pytest.fixture
def final(project):
    return Branch(project, "final")


@pytest.fixture
def client(project, final):
    with TestClient(create_app(project, ["final"]), base_url="http://127.0.0.1:8000") as opened:
        assert opened.get(f"/final/settle/enter?token={final.token}").status_code == 200
        yield opened


def standing(page):
    return [unescape(one) for one in re.findall(r'name="was" value="([^"]*)"', page)]


def subjects(page):
    return [unescape(one) for one in re.findall(r'<span class="text">([^<]*)</span>', page)]


def send(client, act, address="/final/settle", **fields):
    """The form of the page, with this button pressed."""
    page = client.get(address).text
    token = re.search(r'<form class="settle".*?name="token" value="([^"]+)"', page, re.DOTALL)[1]
    newest = re.search(r'name="newest" value="(\d+)"', page)[1]
    return client.post(address, data={"token": token, "newest": newest, "act": act, "was": standing(page), **fields})


def test_what_waits_is_shown_with_both_views_the_heaviest_first(client):
    page = client.get("/final/settle").text
    assert subjects(page) == ["river", "fort", "heritage"]
    assert "0 of 5 settled" in page
    assert [unescape(one) for one in re.findall(r'<span class="place">([^<]*)</span>', page)] == [
        *("lake", "stream", "fort", "castle", "excluded: vague", "castle")
    ]
    assert subjects(client.get("/final/settle?kind=name").text) == ["church | cathedral"]
    assert subjects(client.get("/final/settle?kind=parent").text) == ["castle"]


def test_a_button_takes_one_side_and_keeps_who_and_why(client, final, project):
    answer = send(client, "second:6", who="carl & dora", reason="it flows")
    assert answer.status_code == 200
    assert "Settled the label &#39;river&#39;: ben." in answer.text
    assert 'value="carl &amp; dora"' in answer.text  # kept for the next one
    assert tree(final)[0]["stream"] == ("natural", ["river"])
    assert "1 of 5 settled" in answer.text
    page = client.get("/final/settle?show=settled").text
    assert subjects(page) == ["river"]
    assert "carl &amp; dora" in page
    assert "it flows" in page
    assert "side second chosen" in page
    assert "side first chosen" not in page


def test_undo_puts_it_back(client, final):
    start = tree(final)
    page = send(client, "second:6").text
    form = re.search(r'<form action="/final/undo".*?</form>', page, re.DOTALL)[0]
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
    answer = client.post("/final/undo", data={name: unescape(value) for name, value in fields.items()})
    assert tree(final) == start
    assert str(answer.url).startswith("http://127.0.0.1:8000/final/settle")
    assert subjects(answer.text) == ["river", "fort", "heritage"]


def test_ticked_ones_go_to_another_group_or_out(client, final):
    send(client, "other", row=["4", "8"], other="stronghold")
    assert tree(final)[0]["stronghold"] == (None, ["fort", "heritage"])
    send(client, "excluded", row=["6"], reason="no place")
    assert tree(final)[1]["river"] == "no place"
    assert len(final.log()) == 3


def test_all_at_once_until_nothing_is_left(client, final):
    page = client.get("/final/settle").text
    assert "Many at once" not in page  # no two labels stand in the same two places
    send(client, "second:all")
    assert "unsettled" not in tree(final)[1].values()
    assert len(final.log()) == 2
    send(client, "first:all", "/final/settle?kind=name"), send(client, "second:all", "/final/settle?kind=parent")
    page = client.get("/final/settle").text
    assert "5 of 5 settled" in page
    assert "Everything is settled." in page
    assert "suprank hierarchy export" in page


def test_labels_of_one_pair_of_places_are_settled_together(tmp_path):
    first = {f"{kind} {number}": [kind] for kind in ("a", "b") for number in range(3)}
    second = {text: ["a"] for text in first}
    project = two_branches(tmp_path / "project", first, second)
    final = begin_final(project, "anna", "ben")
    with TestClient(create_app(project, ["final"]), base_url="http://127.0.0.1:8000") as client:
        client.get(f"/final/settle/enter?token={final.token}")
        page = client.get("/final/settle").text
        assert "Many at once" in page
        key = re.search(r'value="first:pair:([^"]+)"', page)[1]
        assert "3 labels" in client.get(f"/final/settle?pair={key}").text
        send(client, f"first:pair:{key}")
        assert tree(final)[0]["b"] == (None, ["b 0", "b 1", "b 2"])
        assert len(final.log()) == 2


def test_what_somebody_else_settled_is_409_with_the_fresh_state_and_the_typing_kept(client, project, final):
    page = client.get("/final/settle").text
    settling = Settling(project)
    (river, *_) = settling.now().subjects["label"]
    settling.settle([river.disagreement], "second", who="dora")
    before = tree(final)
    answer = client.post("/final/settle", data={"act": "first", "row": ["6", "4"], "was": standing(page), "reason": "why not"})
    assert answer.status_code == 409
    assert "decided meanwhile; nothing was saved" in answer.text
    assert subjects(answer.text) == ["fort", "heritage"]
    assert 'value="why not"' in answer.text
    assert re.search(r'value="4" checked', answer.text)
    assert tree(final) == before


@pytest.mark.parametrize("act", ["first:all", "second:pair:3.4"])
def test_many_at_once_are_refused_where_something_was_decided_since_they_were_shown(client, project, final, act):
    page = client.get("/final/settle").text
    settling = Settling(project)
    settling.settle([settling.now().subjects["label"][0].disagreement], "second", who="dora")
    final.undo()  # one more waits than dora left, and as many as were shown
    before = tree(final)
    newest = re.search(r'name="newest" value="(\d+)"', page)[1]
    answer = client.post("/final/settle", data={"act": act, "newest": newest, "token": "t"})
    assert answer.status_code == 409
    assert "nothing was saved" in answer.text
    assert tree(final) == before


def test_refusals_keep_the_page(client, final):
    for act, fields, said in (
        ("first", {}, "Choose at least one to settle."),
        ("excluded", {"row": ["6"]}, "Give a reason"),
        ("other", {"row": ["6"], "other": " "}, "A name has 1 to 200 characters"),
        ("", {"row": ["6"]}, "Use one of the buttons"),
        ("nonsense:6", {}, "Use one of the buttons"),
        ("first:999", {}, "Choose at least one to settle."),
    ):
        answer = send(client, act, **fields)
        assert (answer.status_code, said in answer.text) == (400, True), act
    assert len(final.log()) == 1
    assert client.get("/final/settle?kind=x").status_code == 400
    assert client.get("/final/settle?offset=-1").status_code == 400
    assert subjects(client.get("/final/settle?offset=5000").text) == ["river", "fort", "heritage"]


def test_the_same_click_counts_once(client, final):
    page = client.get("/final/settle").text
    data = {"token": "abc", "act": "second:6", "was": standing(page)}
    assert [client.post("/final/settle", data=data).status_code for _ in range(2)] == [200, 200]
    assert len(final.log()) == 2


def test_it_is_told_that_an_annotator_went_on(client, project):
    Branch(project, "ben").do(Rename(1, "minster"))
    page = client.get("/final/settle").text
    assert "ben (1 act) went on after this began." in page
    assert subjects(client.get("/final/settle?kind=name").text) == ["church | cathedral"]


def test_only_who_has_the_link_may_settle_and_only_on_final(project, final, client):
    with TestClient(create_app(project, ["final"]), base_url="http://127.0.0.1:8000") as stranger:
        assert stranger.get("/final/settle").status_code == 403
        assert stranger.post("/final/settle", data={"act": "first:all"}).status_code == 403
        assert stranger.get("/final/settle/enter?token=guess").status_code == 403
        assert stranger.get("/anna/settle/enter?token=").status_code == 403
        entered = stranger.get(f"/final/settle/enter?token={final.token}", follow_redirects=False)
        assert (entered.status_code, entered.headers["location"]) == (303, "/final/settle")  # the token is out of the address
        stranger.cookies.clear()
        assert stranger.get("/settle/settle.css").headers["content-type"].startswith("text/css")
        assert stranger.get("/settle/settle.js").status_code == 200
        assert stranger.get("/settle/settling.py").status_code == 404
    with TestClient(create_app(project, ["anna", "final"]), base_url="http://127.0.0.1:8000") as both:
        both.get(f"/anna/enter?token={Branch(project, 'anna').token}")
        assert both.get("/anna/settle").status_code == 404
    assert len(final.log()) == 1


def test_names_are_escaped_everywhere(tmp_path):
    evil = '"><script>alert(1)</script>'
    project = two_branches(tmp_path / "project", {evil: [f"a{evil}"], "b": ["b"]}, {evil: ["b"], "b": [f"c{evil}"]})
    final = begin_final(project, "anna", "ben")
    with TestClient(create_app(project, ["final"]), base_url="http://127.0.0.1:8000") as client:
        client.get(f"/final/settle/enter?token={final.token}")
        send(client, "first:all", reason=evil, who=evil)
        for address in ("/final/settle", "/final/settle?show=all", "/final/settle?kind=name", f"/final/settle?pair={evil}"):
            page = client.get(address).text
            assert "<script>alert" not in page, address
        assert "&lt;script&gt;alert" in client.get("/final/settle?show=all").text


@pytest.mark.xdist_group("browser")
@NEEDED
def test_settling_with_the_keyboard_in_a_browser(project, final):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with served(project, ["final"]) as address, launched() as browser, watched(browser) as new_page:
        page = new_page(address)
        page.goto(f"{address}/final/settle/enter?token={final.token}")
        page.wait_for_url("**/final/settle")
        page.keyboard.press("j")
        page.keyboard.press("j")  # on the fort
        page.keyboard.press("2")
        playwright.expect(page.get_by_text("1 of 5 settled")).to_be_visible()
        assert tree(final)[0]["castle"][1] == ["castle", "fort"]
        playwright.expect(page.locator(".here .text")).to_have_text("heritage")  # the next one, in its place
        page.keyboard.press("m")
        page.keyboard.type("relic")
        page.keyboard.press("Enter")
        playwright.expect(page.get_by_text("2 of 5 settled")).to_be_visible()
        assert tree(final)[0]["relic"] == (None, ["heritage"])
        page.locator("h1").click()
        page.keyboard.press("u")
        playwright.expect(page.get_by_text("1 of 5 settled")).to_be_visible()
        page.set_viewport_size({"width": 360, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
