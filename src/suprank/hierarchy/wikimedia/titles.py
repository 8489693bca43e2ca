"""Addresses of pages → titles, as a wiki spells them, and the batches in which they are asked for."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING
from urllib.parse import quote_plus, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BATCH_BYTES = 6000
"""Of encoded titles; fifty long ones in another script make 13 kB, more than servers take in an address."""

_ADDRESS = re.compile(r"(?:https?:)?//(?P<host>[^/?#]*)(?P<path>[^#]*)", re.IGNORECASE | re.DOTALL)
_ILLEGAL = re.compile(r"[#<>\[\]|{}\x00-\x1f\x7f\ufffd]|%[0-9A-Fa-f]{2}")
_LONGEST = 255  # bytes, of a title without its namespace


def title_of(source: str, site: str) -> str:
    """The title of a page, from its address at `site` (any address there, of which the host counts) or from `Category:X`.

    A title that no wiki can have is refused: it would be one bad key in a batch of good ones, or, with a |, two of them.

    Example:
        >>> title_of("http://commons.wikimedia.org/wiki/Category:Sparkassen-Arena,_G%C3%B6ttingen", "https://commons.wikimedia.org")
        'Category:Sparkassen-Arena, Göttingen'
    """
    text = source.strip()
    if not text:
        raise ValueError("it has no address")
    address = _ADDRESS.match(text)
    encoded = _path(address["host"], address["path"], site) if address else text
    try:
        decoded = unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"{text!r} is not UTF-8 where it is percent-encoded") from None
    if wrong := _ILLEGAL.search(decoded):
        raise ValueError(f"{text!r} has {wrong[0]!r} in it, which no title may have")
    title = " ".join(unicodedata.normalize("NFC", decoded).replace("_", " ").split())
    space, colon, name = (part.strip() for part in title.partition(":"))
    if space.casefold() == "category" and colon:
        title = f"Category:{name}"
    elif not address:
        raise ValueError(f"{text!r} is neither an address nor Category:...")
    else:
        name = title
    if not name:
        raise ValueError(f"{text!r} names no page")
    if len(name.encode()) > _LONGEST:
        raise ValueError(f"{text[:80]!r}... is longer than the {_LONGEST} bytes of a title")
    return title


def _path(host: str, path: str, site: str) -> str:
    """The part of an address that is the title, still encoded."""
    wanted = urlsplit(site).netloc.casefold()
    if host.casefold().replace(".m.", ".", 1) != wanted:
        raise ValueError(f"it is a page of {host or 'no site'}, not of {wanted}")
    if not path.startswith("/wiki/"):
        raise ValueError(f"{path!r} is not /wiki/ and a title")
    title, _, query = path.removeprefix("/wiki/").partition("?")
    return title if "=" in query else path.removeprefix("/wiki/")  # a name may end in a question mark


def batches(keys: Iterable[str], size: int, most_bytes: int = BATCH_BYTES) -> Iterator[list[str]]:
    """The keys in their order, in batches of at most `size` and, encoded, `most_bytes`; a longer key comes alone.

    Example:
        >>> list(batches(["a", "b", "c"], 2)), list(batches(["aaa", "é", "b"], 50, 14))
        ([['a', 'b'], ['c']], [['aaa'], ['é', 'b']])
    """
    batch: list[str] = []
    length = 0
    for key in keys:
        encoded = len(quote_plus(key)) + 3  # and the | before the next
        if batch and (len(batch) == size or length + encoded > most_bytes):
            yield batch
            batch, length = [], 0
        batch.append(key)
        length += encoded
    if batch:
        yield batch
