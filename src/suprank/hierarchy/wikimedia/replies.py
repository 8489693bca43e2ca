"""What replies of Commons and Wikidata say about the pages and entities that were asked for."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Payload = Mapping[str, Any]

HOPS = 3
"""How many redirects, or category items, are followed in a row."""

END_TIME = "P582"
_QID = re.compile(r"Q[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Entity:
    """An entity of Wikidata, by the id it has now: the best values of some properties, and whether each has ended."""

    qid: str
    values: dict[str, dict[str, bool]]
    text: str = ""
    description: str = ""


def is_qid(text: object) -> bool:
    """Whether this is the id of an item; any other key would fail its whole batch."""
    return isinstance(text, str) and _QID.fullmatch(text) is not None


def read_pages(titles: Sequence[str], payloads: Sequence[Payload]) -> dict[str, str]:
    """Title → the QID of its page, or the reason why it has none, by a `prop=pageprops` query."""
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

    def item(title: str) -> str:
        for _ in range(HOPS + 1):
            if title not in redirects:
                break
            title = redirects[title]
        else:
            return "redirect_loop"
        if title in elsewhere or "missing" in pages[title]:
            return "missing"
        if "invalid" in pages[title]:
            return "invalid"
        qid = pages[title]["pageprops"].get("wikibase_item", "")
        return str(qid) if is_qid(qid) else "no_item"

    return {title: item(spelled.get(title, title)) for title in titles}


def read_move(payload: Payload) -> str:
    """The title that a page was moved to, by the last entry of the log of moves; "" if there is none."""
    entries = payload["query"]["logevents"]
    return _text(entries[0]["params"]["target_title"]) if entries else ""


def read_entities(
    qids: Sequence[str], payload: Payload, properties: Iterable[str], languages: Sequence[str] = ()
) -> dict[str, Entity | str]:
    """QID → entity, or the reason why there is none, by `wbgetentities`; the name is that of the first available language."""

    def entity(qid: str) -> Entity | str:
        found = payload["entities"][qid]
        if "missing" in found:  # its value is the empty string; a redirect to a redirect is "missing" too
            return "item_missing"
        if not is_qid(found["id"]):
            raise ValueError(f"{found['id']!r} is not the id of an item")
        claims = found.get("claims") or {}  # an empty one comes as a list
        values = {name: best_values(claims.get(name, ())) for name in properties}
        names = [_first_language(found.get(kind) or {}, languages) for kind in ("labels", "descriptions")]
        return Entity(found["id"], values, *names)

    return {qid: entity(qid) for qid in qids}


def best_values(claims: Sequence[Payload]) -> dict[str, bool]:
    """The items that a property has as values, each with whether it has ended: those of preferred rank, or else of normal rank.

    A value that is given twice has ended if both have.
    """
    ranks = {claim["rank"] for claim in claims}
    values: dict[str, bool] = {}
    for claim in claims:
        qid = _item_value(claim["mainsnak"])
        if qid is not None and claim["rank"] == ("preferred" if "preferred" in ranks else "normal"):
            values[qid] = _has_ended(claim) and values.get(qid, True)
    return values


def _item_value(snak: Payload) -> str | None:
    """The QID of a value; None for values of other kinds, and for Wikidata's "unknown" and "no value"."""
    if snak["snaktype"] != "value" or snak["datavalue"]["type"] != "wikibase-entityid":
        return None
    value = snak["datavalue"]["value"]
    qid = value.get("id") or f"Q{value['numeric-id']}"
    return qid if is_qid(qid) else None


def _has_ended(claim: Payload) -> bool:
    """Whether a claim has an end date, even an unknown one; "no value" means that it continues."""
    return any(snak["snaktype"] != "novalue" for snak in (claim.get("qualifiers") or {}).get(END_TIME, ()))


def _first_language(texts: Payload, languages: Sequence[str]) -> str:
    """The text in the first of the languages that has one, or ""."""
    return next((_text(texts[language]["value"]) for language in languages if language in texts), "")


def _text(value: object) -> str:
    """A text that can be stored; JSON can write half a letter, which UTF-8 cannot."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    value.encode()
    return value


_URL = re.compile(r"(?:https?:)?//(?P<host>[^/?#]*)(?P<path>[^#]*)", re.IGNORECASE | re.DOTALL)
_ILLEGAL = re.compile(r"[#<>\[\]|{}\x00-\x1f\x7f\ufffd]|%[0-9A-Fa-f]{2}")
_MAX_TITLE_BYTES = 255  # bytes of a title without its namespace


def page_title(source: str, site: str) -> str:
    """The title of a page, from its URL at `site` (any URL there; only the host matters) or from `Category:X`.

    A title that no wiki can have is refused, because it would spoil its batch.

    Example:
        >>> page_title("http://commons.wikimedia.org/wiki/Category:Sparkassen-Arena,_G%C3%B6ttingen", "https://commons.wikimedia.org")
        'Category:Sparkassen-Arena, Göttingen'
    """
    text = source.strip()
    url = _URL.match(text)
    encoded = _encoded_title(url["host"], url["path"], site) if url else text
    decoded = unquote(encoded, errors="strict")
    if illegal := _ILLEGAL.search(decoded):
        raise ValueError(f"{text!r} contains {illegal[0]!r}, which no title may contain")
    title = " ".join(unicodedata.normalize("NFC", decoded).replace("_", " ").split())
    space, colon, name = (part.strip() for part in title.partition(":"))
    if space.casefold() == "category" and colon:
        title = f"Category:{name}"
    elif url:
        name = title
    else:
        raise ValueError(f"{text!r} is neither a URL nor Category:...")
    if not 0 < len(name.encode()) <= _MAX_TITLE_BYTES:
        raise ValueError(f"{text[:80]!r} has a title of {len(name.encode())} bytes; wikis allow 1 to {_MAX_TITLE_BYTES}")
    return title


def _encoded_title(host: str, path: str, site: str) -> str:
    """The part of a URL that is the title, still encoded."""
    if host.casefold().replace(".m.", ".", 1) != urlsplit(site).netloc.casefold():
        raise ValueError(f"it is a page of {host or 'no site'}, not of {site}")
    if not path.startswith("/wiki/"):
        raise ValueError(f"{path!r} is not /wiki/ and a title")
    title, _, query = path.removeprefix("/wiki/").partition("?")
    return title if "=" in query else path.removeprefix("/wiki/")  # a title may contain a question mark
