"""Parse the replies of Commons and Wikidata into what they say about each requested key."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from suprank.hierarchy.errors import BadReplyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


HOPS = 3
"""How many redirects, or category items, are followed in a row."""

INSTANCE_OF, SUBCLASS_OF, END_TIME = "P31", "P279", "P582"
_QID = re.compile(r"Q[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class PageInfo:
    """A requested title: the page that it leads to, and that page's item."""

    title: str
    state: str
    resolved: str | None = None
    qid: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Statement:
    """A value of a property, or None for Wikidata's "unknown" and "no value". `best` means that no other has a better rank."""

    property: str
    position: int
    value: str | None
    rank: str
    ended: bool
    best: bool


@dataclass(frozen=True)
class EntityInfo:
    """A requested entity; `id` differs from `requested_id` if it was merged into another."""

    requested_id: str
    state: str
    id: str
    revision: int | None = None
    text: str | None = None
    language: str | None = None
    description: str | None = None
    statements: tuple[Statement, ...] = ()


def is_qid(text: object) -> bool:
    """Whether this is the id of an item; any other key would fail its whole batch."""
    return isinstance(text, str) and _QID.fullmatch(text) is not None


@contextmanager
def _expect_shape(topic: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise BadReplyError(f"a reply on {topic} has an unexpected shape ({type(error).__name__}: {error})") from None


def parse_pages(titles: Sequence[str], payloads: Sequence[Mapping[str, Any]]) -> list[PageInfo]:
    """What a `prop=pageprops` query says about each title, from all parts of a continued reply."""
    with _expect_shape("pages"):
        queries = [payload.get("query", {}) for payload in payloads]
        pages: dict[str, dict[str, Any]] = {}
        for page in (page for query in queries for page in query.get("pages", ())):
            before = pages.setdefault(page["title"], {})
            before |= {**page, "pageprops": {**before.get("pageprops", {}), **page.get("pageprops", {})}}
        spelled = {
            unquote(one["from"]) if one.get("fromencoded") else one["from"]: one["to"]
            for query in queries
            for one in query.get("normalized", ())
        }
        redirects = {one["from"]: one["to"] for query in queries for one in query.get("redirects", ())}
        elsewhere = {one["title"] for query in queries for one in query.get("interwiki", ())}
        return [_parse_page(title, spelled.get(title, title), redirects, elsewhere, pages) for title in titles]


def _parse_page(
    title: str, resolved: str, redirects: Mapping[str, str], elsewhere: set[str], pages: Mapping[str, Mapping[str, Any]]
) -> PageInfo:
    for _ in range(HOPS + 1):
        if resolved not in redirects:
            break
        resolved = redirects[resolved]
    else:
        return PageInfo(title, "redirect_loop", _text(resolved))
    if resolved in elsewhere:
        return PageInfo(title, "missing", resolved, reason="it is a redirect to another wiki")
    page = pages[resolved]
    if "invalid" in page:
        return PageInfo(title, "invalid", reason=_text(page.get("invalidreason")))
    if "missing" in page:
        return PageInfo(title, "missing", resolved)
    qid = page["pageprops"].get("wikibase_item")
    if qid is None:
        return PageInfo(title, "no_item", resolved)
    if not is_qid(qid):
        return PageInfo(title, "no_item", resolved, reason=f"{qid!a} is not an item")
    return PageInfo(title, "ok", resolved, qid)


def parse_entities(
    qids: Sequence[str], payload: Mapping[str, Any], properties: Iterable[str], languages: Sequence[str] = ()
) -> list[EntityInfo]:
    """What `wbgetentities` says about each id: statements of these properties, and the name in the first available language."""
    with _expect_shape("entities"):
        return [_parse_entity(qid, payload["entities"][qid], tuple(properties), languages) for qid in qids]


def _parse_entity(qid: str, entity: Mapping[str, Any], properties: Sequence[str], languages: Sequence[str]) -> EntityInfo:
    if "missing" in entity:  # its value is the empty string; a redirect to a redirect is "missing" too
        return EntityInfo(qid, "missing", qid)
    if not is_qid(entity["id"]):
        raise ValueError(f"{entity['id']!r} is not the id of an item")
    claims = entity.get("claims") or {}  # an empty one comes as a list
    label = _first_language(entity.get("labels"), languages)
    return EntityInfo(
        qid,
        "ok",
        entity["id"],
        _integer(entity.get("lastrevid")),
        _text(label.get("value")),
        _text(label.get("language")),
        _text(_first_language(entity.get("descriptions"), languages).get("value")),
        tuple(statement for name in properties for statement in parse_statements(name, claims.get(name, ()))),
    )


def _first_language(texts: Mapping[str, Mapping[str, str]] | None, languages: Sequence[str]) -> Mapping[str, str]:
    """The text in the first of the languages that has one."""
    return next((texts[language] for language in languages if language in texts), {}) if texts else {}


def _text(value: object) -> str | None:
    """A text that can be stored; JSON can write half a letter, which UTF-8 cannot."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    if value is not None:
        value.encode()
    return value


def _integer(value: object) -> int | None:
    if value is not None and not (isinstance(value, int) and abs(value) < 2**63):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def parse_statements(name: str, claims: Sequence[Mapping[str, Any]]) -> list[Statement]:
    """The statements of a property in order. The best are those of preferred rank or, if there are none, of normal rank."""
    ranks = {claim["rank"] for claim in claims}
    best = "preferred" if "preferred" in ranks else "normal"
    return [
        Statement(
            name, position, _item_value(claim["mainsnak"]), _text(claim["rank"]) or "", _has_ended(claim), claim["rank"] == best
        )
        for position, claim in enumerate(claims)
    ]


def _item_value(snak: Mapping[str, Any]) -> str | None:
    if snak["snaktype"] != "value" or snak["datavalue"]["type"] != "wikibase-entityid":
        return None
    value = snak["datavalue"]["value"]
    qid = value.get("id") or f"Q{value['numeric-id']}"
    return qid if is_qid(qid) else None


def _has_ended(claim: Mapping[str, Any]) -> bool:
    """Whether a claim has an end date, even an unknown one; "no value" means that it continues."""
    return any(snak["snaktype"] != "novalue" for snak in (claim.get("qualifiers") or {}).get(END_TIME, ()))


def parse_move(payload: Mapping[str, Any]) -> str | None:
    """The title that a page was moved to, by the last entry of the log of moves; None if there is none."""
    with _expect_shape("the log of moves"):
        entries = payload["query"]["logevents"]
        return _text(entries[0]["params"]["target_title"]) if entries else None
