"""Whatever a reply holds, it is refused as bad or can be stored."""

import copy
import sqlite3
from contextlib import closing
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.hierarchy.errors import BadReplyError
from suprank.hierarchy.wikimedia.queries import BATCH_BYTES, ITEM, PAGE, key_batches, page_title, write_infos
from suprank.hierarchy.wikimedia.replies import parse_entities, parse_pages
from tests.hierarchy.wikimedia.fake_server import claim

PAGES = {
    "query": {
        "normalized": [{"fromencoded": False, "from": "A", "to": "B"}],
        "redirects": [{"from": "B", "to": "C"}],
        "pages": [{"title": "C", "pageprops": {"wikibase_item": "Q1"}}, {"title": "D", "invalid": True, "invalidreason": "no"}],
    }
}
ENTITIES = {
    "entities": {
        "Q1": {
            "id": "Q2",
            "lastrevid": 3,
            "labels": {"en": {"language": "en", "value": "church"}},
            "descriptions": {"en": {"language": "en", "value": "a church"}},
            "claims": {"P31": [claim("Q5"), claim("Q6", "preferred", ended=True)]},
        },
        "Q9": {"id": "Q9", "missing": ""},
    }
}
JUNK = st.sampled_from([None, 0, -1, 2**70, 1.5, True, "", "x", "Q7", "\ud800", [], ["x"], {}, {"id": "Q3"}, [[]], [{}]])


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


@pytest.fixture(scope="module")
def db():
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript((files("suprank.hierarchy") / "schema.sql").read_text(encoding="utf-8"))
        db.executemany("INSERT INTO page (title) VALUES (?)", [("A",), ("D",)])
        yield db


@given(st.sampled_from(list(places(PAGES))), JUNK)
def test_pages(db, path, junk):
    try:
        found = parse_pages(["A", "D"], [with_junk(PAGES, path, junk)])
    except BadReplyError:
        return
    write_infos(db, PAGE, found)
    assert db.execute("SELECT count(*) FROM page WHERE state = 'ok' AND qid NOT GLOB 'Q[1-9]*'").fetchone()[0] == 0


@given(st.sampled_from(list(places(ENTITIES))), JUNK)
def test_entities(db, path, junk):
    try:
        found = parse_entities(["Q1", "Q9"], with_junk(ENTITIES, path, junk), ["P31", "P301"], ["en"])
    except BadReplyError:
        return
    write_infos(db, ITEM, found)
    assert db.execute("SELECT count(*) FROM statement WHERE value NOT GLOB 'Q[1-9]*'").fetchone()[0] == 0


SITE = "https://commons.wikimedia.org/w/api.php"


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("http://commons.wikimedia.org/wiki/Category:Happy_Valley_Racecourse", "Category:Happy Valley Racecourse"),
        ("https://commons.wikimedia.org/wiki/Category:Happy_Valley_Racecourse", "Category:Happy Valley Racecourse"),
        ("http://commons.wikimedia.org/wiki/Category:Sparkassen-Arena,_G%C3%B6ttingen", "Category:Sparkassen-Arena, Göttingen"),
        ("http://commons.wikimedia.org/wiki/Category:St._Mary's_(Hull)", "Category:St. Mary's (Hull)"),
        ("http://commons.wikimedia.org/wiki/Category:King%E2%80%99s_Gate", "Category:King’s Gate"),
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
        ("", "no URL"),
        ("   ", "no URL"),
        ("Paris", "neither a URL nor Category"),
        ("Category:", "names no page"),
        ("https://commons.wikimedia.org/wiki/", "names no page"),
        ("https://en.wikipedia.org/wiki/Category:Paris", "a page of en.wikipedia.org, not of commons.wikimedia.org"),
        ("https://commons.wikimedia.org/w/index.php?title=Category:A", "is not /wiki/ and a title"),
        ("http://commons.wikimedia.org/wiki/Category:G%F6ttingen", "not UTF-8"),
        ("Category:Bad|title", r"contains '\|'"),
        ("http://commons.wikimedia.org/wiki/Category:a%7Cb", r"contains '\|'"),
        ("Category:line\nbreak", "which no title may contain"),
        ("http://commons.wikimedia.org/wiki/Category:a%2541", "contains '%41'"),
        ("Category:" + "ö" * 128, "longer than the 255 bytes"),
    ],
)
def test_what_cannot_be_a_title_says_why(source, complaint):
    with pytest.raises(ValueError, match=complaint):
        page_title(source, SITE)


@given(st.lists(st.text(min_size=1, max_size=40), max_size=120), st.integers(1, 50))
def test_batches_keep_all_keys_in_order_and_stay_small(keys, size):
    from urllib.parse import urlencode

    found = list(key_batches(keys, size, 300))
    assert [key for batch in found for key in batch] == keys
    for batch in found:
        assert 1 <= len(batch) <= size
        assert len(batch) == 1 or len(urlencode({"titles": "|".join(batch)})) <= 300 + len("titles=")


def test_fifty_long_titles_in_another_script_are_several_batches():
    keys = [f"Category:{'東京都' * 20} {number}" for number in range(50)]
    assert len(list(key_batches(keys, 50))) == -(-50 // (BATCH_BYTES // (60 * 9 + 20)))
