"""A client of the Action API that asks as Wikimedia wants to be asked: named, one request at a time, and patient."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode, urlsplit

import httpx2

from suprank import __version__
from suprank.hierarchy.errors import GaveUpError
from suprank.hierarchy.wikimedia.errors import BadReplyError, RefusedError
from suprank.hierarchy.wikimedia.rate_limit import Pace, retry_after

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_WAIT, LAG_WAIT = 120.0, 5.0
"""Seconds: up to which waits double where the server names none; the least that a lagging database is given."""

NEVER_MET = 3
"""Connections that are tried to a server that has not answered once: its address may be wrong."""

_CONTACT = re.compile(r"[!-'*-?A-~]+@[!-'*-?A-~]+|https?://[!-'*-~]+", re.IGNORECASE)
_STOP = frozenset({"autoblocked", "badtoken", "blocked", "permissiondenied", "readapidenied", "unknown_action"})
_FINAL = frozenset({"no-such-entity", "toomanyvalues"})


@dataclass(frozen=True)
class Reply:
    """An answer as it came: to which request, and what JSON it is."""

    url: str
    status: int
    headers: dict[str, str]
    body: bytes
    payload: dict[str, Any]


class _LaterError(Exception):
    """The server has no time now. `told` is how many seconds it asks for, `least` the first wait where it does not."""

    def __init__(self, why: str, told: float | None, least: float = 1.0) -> None:
        super().__init__(why)
        self.told, self.least = told, least


def user_agent(contact: str) -> str:
    """What we call ourselves. The contact is of the person who runs it, for all who run a library would share its limits.

    Example:
        >>> user_agent("you@example.org").partition(") ")[0].partition(" ")[2]
        '(you@example.org'
    """
    if not _CONTACT.fullmatch(contact):
        raise ValueError(
            f"{contact!r} is neither an e-mail address nor the address of a page (https://...); Wikimedia wants to know how to "
            "reach whoever runs this."
        )
    return f"suprank/{__version__} ({contact}) httpx2/{httpx2.__version__}"


class Client:
    """Asks, one request after the other; use it in a `with` block.

    Waits where the server says so (429, 503, a lagging database) or cannot be reached, doubling the wait each time, and gives
    up (`GaveUpError`) once it has waited for `patience` seconds without one good answer in between.
    """

    def __init__(
        self,
        contact: str,
        pace: Pace,
        *,
        maxlag: int = 5,
        timeout: float = 60.0,
        patience: float = 1800.0,
        say: Callable[[str], None] = lambda why: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.agent, self.pace, self.maxlag, self.timeout, self.patience = user_agent(contact), pace, maxlag, timeout, patience
        self.say, self.chance = say, chance
        self.requests = 0
        self._waits, self._waited = 0, 0.0
        self._met: set[str] = set()
        self._http = httpx2.Client(headers={"User-Agent": self.agent}, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self._http.close()

    def reply(self, url: str, form: dict[str, str], *, post: bool = False) -> Reply:
        """The answer to a request, once there is one; `BadReplyError` where there is, but not one that can be read."""
        whole = {**form, "format": "json", "maxlag": str(self.maxlag)}
        while True:
            self.pace.turn()
            try:
                return self._once(url, whole, post)
            except _LaterError as later:
                self._wait(str(later), later.told, later.least)

    def answered(self) -> None:
        """A good answer was had: what went wrong before it is forgotten."""
        self._waits, self._waited = 0, 0.0

    def rest(self, why: str) -> None:
        """Wait before a reply that was bad is asked for again."""
        self._wait(why, None)

    def _wait(self, why: str, told: float | None, least: float = 1.0) -> None:
        growing = min(least * 2.0**self._waits, LONGEST_WAIT)
        seconds = growing * (1 + self.chance() / 2) if told is None else max(told, growing)
        self._waits += 1
        if self._waited + seconds > self.patience:
            raise GaveUpError(
                f"{why}. That is {self._waits} in a row, the next wait would be {seconds:.0f} s, and --patience is "
                f"{self.patience:.0f} s. What was fetched is kept: the same command goes on from there, later."
            )
        self._waited += seconds
        self.say(f"waiting {seconds:.0f} s: {why}")
        self.pace.pause(seconds)
        self.say("")

    def _once(self, url: str, form: dict[str, str], post: bool) -> Reply:
        host = urlsplit(url).netloc
        self.requests += 1
        status, headers, body = self._fetched(url, host, form, post)
        self._met.add(host)
        told = retry_after(headers.get("retry-after"))
        if status in (429, 503):
            raise _LaterError(f"{host} answered {status}", told)
        if status == 403:
            raise GaveUpError(
                f"{host} answered 403, and is not asked again: {_text(body)!r}. We are {self.agent!r} to it; give --contact an "
                "e-mail address or a page by which you can be reached. What was fetched is kept."
            )
        if status in (413, 414):
            raise RefusedError("toomanyvalues", f"{host} answered {status}")
        if 300 <= status < 500:
            to = f" ({headers['location']})" if "location" in headers else ""
            raise GaveUpError(f"{host} answered {status}{to}: {_text(body)!r}. Is {url} the address of an api.php?")
        if status != 200:
            raise BadReplyError(f"{host} answered {status}", body)
        if "json" not in headers.get("content-type", ""):
            raise BadReplyError(f"{host} answered {headers.get('content-type', 'something')!r}, not JSON", body)
        try:
            payload = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BadReplyError(f"{host} answered what is not JSON ({error})", body) from None
        if not isinstance(payload, dict):
            raise BadReplyError(f"{host} answered JSON that is no object", body)
        if "error" in payload:
            raise _error(host, payload["error"], told, body)
        kept = {name: headers[name] for name in ("content-type", "date") if name in headers}
        return Reply(f"{url}?{urlencode(form)}", status, kept, body, payload)

    def _fetched(self, url: str, host: str, form: dict[str, str], post: bool) -> tuple[int, httpx2.Headers, bytes]:
        """Status, headers and body, where all of the body came."""
        # A POST that only reads need not go to the data center that writes.
        sent: dict[str, Any] = {"data": form, "headers": {"Promise-Non-Write-API-Action": "true"}} if post else {"params": form}
        body = b""
        latest = self.pace.clock() + 5 * self.timeout
        try:
            with self._http.stream("POST" if post else "GET", url, **sent) as response:
                for piece in response.iter_bytes():
                    body += piece
                    if self.pace.clock() > latest:  # the timeout is of a pause within the reply, not of the whole
                        raise BadReplyError(f"{host} was still sending after {5 * self.timeout:.0f} s", body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            if host not in self._met and self._waits + 1 >= NEVER_MET:
                raise GaveUpError(f"{host} cannot be reached ({error}). Is {url} right, and is there a network?") from None
            raise _LaterError(f"{host} cannot be reached ({error})", None) from None
        except httpx2.RequestError as error:  # resets, timeouts, bodies cut short or wrongly packed
            raise BadReplyError(f"{host}: {error or type(error).__name__}", body) from None
        return response.status_code, response.headers, body


def _error(host: str, error: Any, told: float | None, body: bytes) -> Exception:
    """What an answer that is an error means; such answers come with status 200."""
    if not isinstance(error, dict):
        return BadReplyError(f"{host} answered an error", body)
    code, info, key = str(error.get("code", "")), str(error.get("info", "")), error.get("id")
    if code == "maxlag":
        return _LaterError(f"{host} lags: {info}", told, LAG_WAIT)
    if code == "ratelimited":
        return _LaterError(f"{host} says it is asked too often: {info}", told, LAG_WAIT)
    if code in _STOP:
        return GaveUpError(f"{host} refuses: {code}: {info}. What was fetched is kept.")
    if code in _FINAL:
        return RefusedError(code, info, key if isinstance(key, str) else None)
    return BadReplyError(f"{host} answered {code}: {info}", body)


def _text(body: bytes) -> str:
    """A page for people, in one line."""
    return " ".join(re.sub(r"<[^<>]*>", " ", body.decode("utf-8", "replace")).split())[:500]
