"""Replies of Commons and Wikidata → what they say of each key that was asked for."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from suprank.hierarchy.wikimedia.errors import BadReplyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

HOPS = 3
"""Redirects, or category items, that are followed one after the other."""

INSTANCE_OF, SUBCLASS_OF, ENDED = "P31", "P279", "P582"
_QID = re.compile(r"Q[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class PageFound:
    """A title that was asked for: what it leads to, and the item of that."""

    title: str
    state: str
    resolved: str | None = None
    qid: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Statement:
    """A value of a property; none where Wikidata has "unknown" or "no value" there. `best`: of the best rank there is."""

    property: str
    position: int
    value: str | None
    rank: str
    ended: bool
    best: bool


@dataclass(frozen=True)
class EntityFound:
    """An entity that was asked for; `id` is another where it was merged into that one."""

    asked: str
    state: str
    id: str
    revision: int | None = None
    text: str | None = None
    language: str | None = None
    description: str | None = None
    statements: tuple[Statement, ...] = ()


def is_qid(text: object) -> bool:
    """Whether this is an id of an item; one that is not would fail its whole batch."""
    return isinstance(text, str) and _QID.fullmatch(text) is not None


@contextmanager
def _shape(of: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise BadReplyError(f"a reply on {of} is not of the shape it should be ({type(error).__name__}: {error})") from None


def pages_of(asked: Sequence[str], payloads: Sequence[Mapping[str, Any]]) -> list[PageFound]:
    """What a `prop=pageprops` query says of each title, from all parts of a reply that was continued."""
    with _shape("pages"):
        queries = [one.get("query", {}) for one in payloads]
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
        return [_page(title, spelled.get(title, title), redirects, elsewhere, pages) for title in asked]


def _page(
    title: str, there: str, redirects: Mapping[str, str], elsewhere: set[str], pages: Mapping[str, Mapping[str, Any]]
) -> PageFound:
    for _ in range(HOPS + 1):
        if there not in redirects:
            break
        there = redirects[there]
    else:
        return PageFound(title, "redirect_loop", _text(there))
    if there in elsewhere:
        return PageFound(title, "missing", there, reason="it is a redirect to another wiki")
    page = pages[there]
    if "invalid" in page:
        return PageFound(title, "invalid", reason=_text(page.get("invalidreason")))
    if "missing" in page:
        return PageFound(title, "missing", there)
    qid = page["pageprops"].get("wikibase_item")
    if qid is None:
        return PageFound(title, "no_item", there)
    return (
        PageFound(title, "ok", there, qid) if is_qid(qid) else PageFound(title, "no_item", there, reason=f"{qid!a} is no item")
    )


def entities_of(
    asked: Sequence[str], payload: Mapping[str, Any], properties: Iterable[str], languages: Sequence[str] = ()
) -> list[EntityFound]:
    """What `wbgetentities` says of each id: its statements of these properties, and its name in the first language it has."""
    with _shape("entities"):
        return [_entity(qid, payload["entities"][qid], tuple(properties), languages) for qid in asked]


def _entity(asked: str, entity: Mapping[str, Any], properties: Sequence[str], languages: Sequence[str]) -> EntityFound:
    if "missing" in entity:  # its value is the empty string; a redirect to a redirect is "missing" too
        return EntityFound(asked, "missing", asked)
    if not is_qid(entity["id"]):
        raise ValueError(f"{entity['id']!r} is no id of an item")
    claims = entity.get("claims") or {}  # an empty one comes as a list
    label = _first(entity.get("labels"), languages)
    return EntityFound(
        asked,
        "ok",
        entity["id"],
        _whole(entity.get("lastrevid")),
        _text(label.get("value")),
        _text(label.get("language")),
        _text(_first(entity.get("descriptions"), languages).get("value")),
        tuple(statement for name in properties for statement in statements_of(name, claims.get(name, ()))),
    )


def _first(texts: Mapping[str, Mapping[str, str]] | None, languages: Sequence[str]) -> Mapping[str, str]:
    """A name in the first of the languages that has one."""
    return next((texts[one] for one in languages if one in texts), {}) if texts else {}


def _text(found: object) -> str | None:
    """A text that can be stored; JSON can write half a letter, which UTF-8 cannot."""
    if found is not None and not isinstance(found, str):
        raise TypeError(f"{found!r} is no text")
    if found is not None:
        found.encode()
    return found


def _whole(found: object) -> int | None:
    if found is not None and not (isinstance(found, int) and abs(found) < 2**63):
        raise TypeError(f"{found!r} is no whole number")
    return found


def statements_of(name: str, claims: Sequence[Mapping[str, Any]]) -> list[Statement]:
    """The statements of a property in their order. Best are those of preferred rank, or, without any, of normal rank."""
    ranks = {claim["rank"] for claim in claims}
    best = "preferred" if "preferred" in ranks else "normal"
    return [
        Statement(name, position, _value(claim["mainsnak"]), _text(claim["rank"]) or "", _ended(claim), claim["rank"] == best)
        for position, claim in enumerate(claims)
    ]


def _value(snak: Mapping[str, Any]) -> str | None:
    if snak["snaktype"] != "value" or snak["datavalue"]["type"] != "wikibase-entityid":
        return None
    value = snak["datavalue"]["value"]
    qid = value.get("id") or f"Q{value['numeric-id']}"
    return qid if is_qid(qid) else None


def _ended(claim: Mapping[str, Any]) -> bool:
    """Whether it has an end date, be it unknown; "no value" says that it goes on."""
    return any(snak["snaktype"] != "novalue" for snak in (claim.get("qualifiers") or {}).get(ENDED, ()))


def moved_to(payload: Mapping[str, Any]) -> str | None:
    """Where the log of moves says a page went, by its last entry."""
    with _shape("the log of moves"):
        entries = payload["query"]["logevents"]
        return _text(entries[0]["params"]["target_title"]) if entries else None
