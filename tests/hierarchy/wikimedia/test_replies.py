"""Payloads of section 2.4 of the study, read by hand."""

import pytest

from suprank.hierarchy.errors import BadReplyError
from suprank.hierarchy.wikimedia.replies import (
    EntityInfo,
    PageInfo,
    is_qid,
    parse_entities,
    parse_move,
    parse_pages,
    parse_statements,
)
from tests.hierarchy.wikimedia.fake_server import claim


def page(title, **more):
    return {"ns": 14, "title": title, **more}


def item(qid):
    return {"pageprops": {"wikibase_item": qid}}


def test_titles_are_joined_by_both_maps_whatever_the_order():
    payload = {
        "batchcomplete": True,
        "query": {
            "normalized": [{"fromencoded": False, "from": "Category:Happy_Valley", "to": "Category:Happy Valley"}],
            "redirects": [{"from": "Category:Happy Valley", "to": "Category:Racecourse"}],
            "pages": [
                page("Category:Gone", missing=True),
                page("Category:Racecourse", pageid=1, **item("Q837662")),
                page("Category:No item yet", pageid=2),
                {"title": "Category:Bad", "invalid": True, "invalidreason": "it is bad"},
            ],
        },
    }
    asked = ["Category:Bad", "Category:Happy_Valley", "Category:No item yet", "Category:Gone"]
    assert parse_pages(asked, [payload]) == [
        PageInfo("Category:Bad", "invalid", reason="it is bad"),
        PageInfo("Category:Happy_Valley", "ok", "Category:Racecourse", "Q837662"),
        PageInfo("Category:No item yet", "no_item", "Category:No item yet"),
        PageInfo("Category:Gone", "missing", "Category:Gone"),
    ]


def test_a_title_that_was_sent_decomposed_comes_back_encoded():
    query = {"normalized": [{"fromencoded": True, "from": "Cafe%CC%81", "to": "Café"}], "pages": [page("Café", **item("Q1"))]}
    assert parse_pages(["Cafe\u0301"], [{"query": query}])[0].qid == "Q1"


def test_properties_that_come_in_a_later_part_count():
    parts = [
        {"query": {"pages": [page("A"), page("B", **item("Q2"))]}},
        {"query": {"pages": [page("A", **item("Q1")), page("B")]}},
    ]
    assert [one.qid for one in parse_pages(["A", "B"], parts)] == ["Q1", "Q2"]


def redirected(hops):
    chain = [{"from": f"T{n}", "to": f"T{n + 1}"} for n in range(hops)]
    return parse_pages(["T0"], [{"query": {"redirects": chain, "pages": [page(f"T{hops}", **item("Q1"))]}}])[0]


def test_three_redirects_are_followed_and_a_fourth_is_not():
    assert redirected(3) == PageInfo("T0", "ok", "T3", "Q1")
    assert redirected(4).state == "redirect_loop"


def test_a_loop_of_redirects_ends():
    loop = {"query": {"redirects": [{"from": "A", "to": "B"}, {"from": "B", "to": "A"}], "pages": []}}
    assert parse_pages(["A"], [loop])[0].state == "redirect_loop"


def test_a_redirect_to_another_wiki_is_missing():
    query = {"redirects": [{"from": "A", "to": "de:A"}], "interwiki": [{"title": "de:A", "iw": "de"}]}
    assert parse_pages(["A"], [{"query": query}])[0].state == "missing"


def test_what_is_no_item_is_not_taken_for_one():
    found = parse_pages(["A"], [{"query": {"pages": [page("A", **item("Q0|Q1"))]}}])[0]
    assert (found.state, found.qid, found.reason) == ("no_item", None, "'Q0|Q1' is not an item")
    assert [is_qid(text) for text in ("Q1", "Q42", "Q0", "q1", "Q1x", "Q٣", "", None, 1)] == [True] * 2 + [False] * 7


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"query": []},
        {"query": {"pages": "none"}},
        {"query": {"pages": [{"pageid": 1}]}},
        {"query": {"pages": [page("B")]}},
        {"query": {"pages": [page("A", pageprops=None)]}},
    ],
)
def test_a_reply_that_does_not_speak_of_every_title_is_bad_not_empty(payload):
    with pytest.raises(BadReplyError, match="shape"):
        parse_pages(["A"], [payload])


def values(claims):
    return [(one.value, one.best, one.ended) for one in parse_statements("P31", claims)]


def test_preferred_is_best_else_normal_and_deprecated_never():
    assert values([claim("Q1"), claim("Q2", "preferred"), claim("Q3", "deprecated")]) == [
        ("Q1", False, False),
        ("Q2", True, False),
        ("Q3", False, False),
    ]
    assert values([claim("Q1"), claim("Q3", "deprecated")]) == [("Q1", True, False), ("Q3", False, False)]
    assert values([claim("Q3", "deprecated")]) == [("Q3", False, False)]


def test_unknown_values_and_end_dates():
    goes_on = {**claim("Q4"), "qualifiers": {"P582": [{"snaktype": "novalue", "property": "P582"}]}}
    claims = [claim(None, snaktype="somevalue"), claim(None, snaktype="novalue"), claim("Q3", ended=True), goes_on]
    assert values(claims) == [(None, True, False), (None, True, False), ("Q3", True, True), ("Q4", True, False)]


def test_an_older_value_has_only_its_number_and_other_kinds_of_values_are_none():
    old, text, lexeme = claim("Q1"), claim("Q1"), claim("L1")
    old["mainsnak"]["datavalue"]["value"] = {"entity-type": "item", "numeric-id": 17}
    text["mainsnak"]["datavalue"] = {"type": "string", "value": "church"}
    assert [value for value, _, _ in values([old, text, lexeme])] == ["Q17", None, None]


def entity(qid, **more):
    return {"type": "item", "id": qid, "lastrevid": 5, "claims": {}, **more}


def test_merged_and_missing_entities():
    payload = {
        "entities": {
            "Q111": entity("Q222", redirects={"from": "Q111", "to": "Q222"}, claims={"P31": [claim("Q1")]}),
            "Q9": {"id": "Q9", "missing": ""},
            "Q8": entity("Q8", claims=[]),
        }
    }
    merged, missing, bare = parse_entities(["Q111", "Q9", "Q8"], payload, ["P31", "P301"])
    assert (merged.requested_id, merged.id, merged.revision, [one.value for one in merged.statements]) == (
        "Q111",
        "Q222",
        5,
        ["Q1"],
    )
    assert missing == EntityInfo("Q9", "missing", "Q9")
    assert (bare.state, bare.statements) == ("ok", ())


def test_names_fall_back_along_the_languages_and_remember_which():
    labels = {"mul": {"language": "mul", "value": "Kirche"}, "fr": {"language": "fr", "value": "église"}}
    described = {"fr": {"language": "fr", "value": "un bâtiment"}}
    payload = {"entities": {"Q1": entity("Q1", labels=labels, descriptions=described), "Q2": entity("Q2", labels=[])}}
    named, bare = parse_entities(["Q1", "Q2"], payload, (), ["en", "mul", "fr"])
    assert (named.text, named.language, named.description) == ("Kirche", "mul", "un bâtiment")
    assert (bare.text, bare.language, bare.description) == (None, None, None)


@pytest.mark.parametrize(
    "payload", [{}, {"entities": []}, {"entities": {"Q2": entity("Q2")}}, {"entities": {"Q1": {"type": "item"}}}]
)
def test_a_reply_that_does_not_speak_of_every_entity_is_bad(payload):
    with pytest.raises(BadReplyError, match="shape"):
        parse_entities(["Q1"], payload, ["P31"])


def test_the_log_of_moves():
    assert parse_move({"query": {"logevents": [{"params": {"target_title": "Category:New"}}]}}) == "Category:New"
    assert parse_move({"query": {"logevents": []}}) is None
    with pytest.raises(BadReplyError):
        parse_move({"query": {}})
