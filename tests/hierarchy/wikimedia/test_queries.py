"""Whatever a reply holds, it is refused as bad or can be stored."""

import copy
import sqlite3
from contextlib import closing
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.hierarchy.wikimedia.errors import BadReplyError
from suprank.hierarchy.wikimedia.queries import ITEM, PAGE, write
from suprank.hierarchy.wikimedia.replies import entities_of, pages_of
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
        found = pages_of(["A", "D"], [with_junk(PAGES, path, junk)])
    except BadReplyError:
        return
    write(db, PAGE, found)
    assert db.execute("SELECT count(*) FROM page WHERE state = 'ok' AND qid NOT GLOB 'Q[1-9]*'").fetchone()[0] == 0


@given(st.sampled_from(list(places(ENTITIES))), JUNK)
def test_entities(db, path, junk):
    try:
        found = entities_of(["Q1", "Q9"], with_junk(ENTITIES, path, junk), ["P31", "P301"], ["en"])
    except BadReplyError:
        return
    write(db, ITEM, found)
    assert db.execute("SELECT count(*) FROM statement WHERE value NOT GLOB 'Q[1-9]*'").fetchone()[0] == 0
