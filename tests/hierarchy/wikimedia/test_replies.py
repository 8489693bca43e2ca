"""What replies say, read by hand; and whatever they hold, they are refused or can be stored."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.hierarchy.wikimedia.replies import Entity, best_values, is_qid, page_title, read_entities, read_move, read_pages
from tests.hierarchy.wikimedia.fake_server import claim


def page(title, qid=None, **more):
    return {"ns": 14, "title": title, **({"pageprops": {"wikibase_item": qid}} if qid else {}), **more}


def test_titles_are_joined_by_both_maps_whatever_the_order():
    query = {
        "normalized": [
            {"fromencoded": False, "from": "Happy_Valley", "to": "Happy Valley"},
            {"fromencoded": True, "from": "Cafe%CC%81", "to": "Café"},
        ],
        "redirects": [{"from": "Happy Valley", "to": "Racecourse"}, {"from": "Abroad", "to": "de:A"}],
        "interwiki": [{"title": "de:A", "iw": "de"}],
        "pages": [
            page("Gone", missing=True),
            page("Racecourse", "Q837662"),
            page("No item yet"),
            page("Café", "Q1"),
            page("No item", "Q0|Q1"),
            {"title": "Bad", "invalid": True, "invalidreason": "it is bad"},
        ],
    }
    assert read_pages(
        ["Bad", "Happy_Valley", "No item yet", "Gone", "Cafe\u0301", "No item", "Abroad"], [{"query": query}]
    ) == {
        "Bad": "invalid",
        "Happy_Valley": "Q837662",
        "No item yet": "no_item",
        "Gone": "missing",
        "Cafe\u0301": "Q1",
        "No item": "no_item",
        "Abroad": "missing",
    }


def test_properties_that_come_in_a_later_part_count():
    parts = [{"query": {"pages": [page("A"), page("B", "Q2")]}}, {"query": {"pages": [page("A", "Q1"), page("B")]}}]
    assert read_pages(["A", "B"], parts) == {"A": "Q1", "B": "Q2"}


@pytest.mark.parametrize(("hops", "found"), [(3, "Q1"), (4, "redirect_loop")])
def test_three_redirects_are_followed_and_a_fourth_is_not(hops, found):
    chain = [{"from": f"T{n}", "to": f"T{n + 1}"} for n in range(hops)]
    assert read_pages(["T0"], [{"query": {"redirects": chain, "pages": [page(f"T{hops}", "Q1")]}}]) == {"T0": found}


def test_qids():
    assert [is_qid(text) for text in ("Q1", "Q42", "Q0", "q1", "Q1x", "Q٣", "", None, 1)] == [True] * 2 + [False] * 7


def test_preferred_is_best_else_normal_and_deprecated_never():
    assert best_values([claim("Q1"), claim("Q2", "preferred"), claim("Q3", "deprecated")]) == {"Q2": False}
    assert best_values([claim("Q1"), claim("Q3", "deprecated")]) == {"Q1": False}
    assert best_values([claim("Q3", "deprecated")]) == {}


def test_unknown_values_older_ones_and_end_dates():
    old, text = claim("Q1"), claim("Q1")
    old["mainsnak"]["datavalue"]["value"] = {"entity-type": "item", "numeric-id": 17}
    text["mainsnak"]["datavalue"] = {"type": "string", "value": "church"}
    goes_on = {**claim("Q4"), "qualifiers": {"P582": [{"snaktype": "novalue", "property": "P582"}]}}
    claims = [claim(None, snaktype="somevalue"), claim("Q3", ended=True), goes_on, old, text, claim("L1")]
    assert best_values(claims) == {"Q3": True, "Q4": False, "Q17": False}
    twice = [claim("Q5", ended=True), claim("Q6", ended=True), claim("Q5"), claim("Q6", ended=True)]
    assert best_values(twice) == {"Q5": False, "Q6": True}


def test_merged_missing_and_bare_entities_and_names_along_the_languages():
    labels = {"mul": {"language": "mul", "value": "Kirche"}, "fr": {"language": "fr", "value": "église"}}
    described = {"fr": {"language": "fr", "value": "un bâtiment"}}
    payload = {
        "entities": {
            "Q111": {"id": "Q222", "claims": {"P31": [claim("Q1")]}, "labels": labels, "descriptions": described},
            "Q9": {"id": "Q9", "missing": ""},
            "Q8": {"id": "Q8", "claims": [], "labels": []},
        }
    }
    assert read_entities(["Q111", "Q9", "Q8"], payload, ["P31", "P301"], ["en", "mul", "fr"]) == {
        "Q111": Entity("Q222", {"P31": {"Q1": False}, "P301": {}}, "Kirche", "un bâtiment"),
        "Q9": "item_missing",
        "Q8": Entity("Q8", {"P31": {}, "P301": {}}),
    }


def test_the_log_of_moves():
    assert read_move({"query": {"logevents": [{"params": {"target_title": "Category:New"}}]}}) == "Category:New"
    assert read_move({"query": {"logevents": []}}) == ""


PAGES = {
    "query": {
        "normalized": [{"fromencoded": False, "from": "A", "to": "B"}],
        "redirects": [{"from": "B", "to": "C"}],
        "pages": [page("C", "Q1"), page("D", invalid=True)],
    }
}
ENTITIES = {
    "entities": {
        "Q1": {
            "id": "Q2",
            "labels": {"en": {"language": "en", "value": "church"}},
            "descriptions": {"en": {"language": "en", "value": "a church"}},
            "claims": {"P31": [claim("Q5"), claim("Q6", "preferred", ended=True)]},
        },
        "Q9": {"id": "Q9", "missing": ""},
    }
}
JUNK = st.sampled_from([None, 0, -1, 2**70, 1.5, True, "", "x", "Q7", "\ud800", [], ["x"], {}, {"id": "Q3"}, [[]], [{}]])
REFUSED = (ValueError, LookupError, TypeError, AttributeError)


def places(value, path=()):
    """The path to everything inside a payload."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def with_junk(payload, path, junk):
    changed = copy.deepcopy(payload)
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = junk
    return changed


@given(st.sampled_from(list(places(PAGES))), JUNK)
def test_pages_of_any_shape(path, junk):
    try:
        found = read_pages(["A", "D"], [with_junk(PAGES, path, junk)])
    except REFUSED:
        return
    assert found.keys() == {"A", "D"}
    assert all(is_qid(one) or one in ("invalid", "missing", "no_item", "redirect_loop") for one in found.values())


@given(st.sampled_from(list(places(ENTITIES))), JUNK)
def test_entities_of_any_shape(path, junk):
    try:
        found = read_entities(["Q1", "Q9"], with_junk(ENTITIES, path, junk), ["P31", "P301"], ["en"])
    except REFUSED:
        return
    for one in found.values():
        if one != "item_missing":
            assert all(map(is_qid, (one.qid, *one.values["P31"])))
            assert f"{one.text}{one.description}".encode()


SITE = "https://commons.wikimedia.org/w/api.php"


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("http://commons.wikimedia.org/wiki/Category:Sparkassen-Arena,_G%C3%B6ttingen", "Category:Sparkassen-Arena, Göttingen"),
        ("http://commons.wikimedia.org/wiki/Category:St._Mary's_(Hull)", "Category:St. Mary's (Hull)"),
        ("https://commons.m.wikimedia.org/wiki/Category:A?uselang=de#top", "Category:A"),
        ("http://commons.wikimedia.org/wiki/Category:What_is_this?", "Category:What is this?"),
        ("http://commons.wikimedia.org/wiki/Category:50%25_off", "Category:50% off"),
        ("//commons.wikimedia.org/wiki/Old_gallery", "Old gallery"),
        ("  Category:Bare_title ", "Category:Bare title"),
        ("category : two  blanks", "Category:two blanks"),
        ("http://commons.wikimedia.org/wiki/Category:Cafe%CC%81", "Category:Café"),  # composed, as wikis store it
    ],
)
def test_addresses_become_titles(source, title):
    assert page_title(source, SITE) == title


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("   ", "neither a URL nor Category"),
        ("Paris", "neither a URL nor Category"),
        ("Category:", "a title of 0 bytes"),
        ("https://commons.wikimedia.org/wiki/", "a title of 0 bytes"),
        ("https://en.wikipedia.org/wiki/Category:Paris", "a page of en.wikipedia.org, not of https://commons.wikimedia.org"),
        ("https://commons.wikimedia.org/w/index.php?title=Category:A", "is not /wiki/ and a title"),
        ("http://commons.wikimedia.org/wiki/Category:G%F6ttingen", "can't decode"),
        ("http://commons.wikimedia.org/wiki/Category:a%7Cb", r"contains '\|'"),
        ("Category:line\nbreak", "which no title may contain"),
        ("http://commons.wikimedia.org/wiki/Category:a%2541", "contains '%41'"),
        ("Category:" + "ö" * 128, "a title of 256 bytes"),
    ],
)
def test_what_cannot_be_a_title_says_why(source, complaint):
    with pytest.raises(ValueError, match=complaint):
        page_title(source, SITE)
