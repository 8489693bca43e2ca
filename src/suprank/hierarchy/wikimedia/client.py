"""A client of the MediaWiki API with Wikimedia's etiquette: it says who runs it, sends one request at a time, and waits."""

from __future__ import annotations

import json
import math
import random
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode, urlsplit

import httpx2

from suprank import __version__
from suprank.hierarchy.errors import BadReplyError, GaveUpError, RequestRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_WAIT, LAG_WAIT = 120.0, 5.0
"""Seconds: waits double up to the first, if the server names none; a lagging database is given at least the second."""

FIRST_CONNECTIONS = 3
"""Attempts to connect to a server that has never answered: its address may be wrong."""

_CONTACT = re.compile(r"[!-'*-?A-~]+@[!-'*-?A-~]+|https?://[!-'*-~]+", re.IGNORECASE)
_STOP_CODES = frozenset({"autoblocked", "badtoken", "blocked", "permissiondenied", "readapidenied", "unknown_action"})
_REFUSED_CODES = frozenset({"no-such-entity", "toomanyvalues"})


class RateLimiter:
    """Lets requests pass one after the other, at most `rate` per minute in total, whichever server they go to.

    Requests are spaced evenly: no minute has more than `rate` of them, except for one on its edge.
    """

    def __init__(
        self, rate: float, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"the rate must be positive, not {rate} requests per minute; Wikimedia allows 200 with a contact.")
        self.rate, self.clock, self.sleep = rate, clock, sleep
        self._next = -math.inf

    def wait_turn(self) -> None:
        """Return when the next request may be sent."""
        while (left := self._next - self.clock()) > 0:
            self.sleep(left)
        self._next = self.clock() + 60 / self.rate

    def pause(self, seconds: float) -> None:
        """Let no request pass for this long."""
        until = self.clock() + seconds
        while (left := until - self.clock()) > 0:
            self.sleep(left)


def retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """The seconds that a `Retry-After` header asks for, as a number or a date; None if it is missing or unreadable.

    Example:
        >>> [retry_after(text) for text in ("7", "1.5", "soon", None)]
        [7.0, 1.5, None, None]
    """
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            date = parsedate_to_datetime(header)
        except ValueError:
            return None
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        seconds = (date - (now or datetime.now(UTC))).total_seconds()
    return None if math.isnan(seconds) else max(seconds, 0.0)


@dataclass(frozen=True)
class Reply:
    """A reply as received, with the URL of its request and the JSON that it contains."""

    url: str
    status: int
    headers: dict[str, str]
    body: bytes
    payload: dict[str, Any]


class _RetryLaterError(Exception):
    """The server is busy. `seconds` is the wait it asks for; if it names none, the first wait is `least`."""

    def __init__(self, reason: str, seconds: float | None, least: float = 1.0) -> None:
        super().__init__(reason)
        self.seconds, self.least = seconds, least


def user_agent(contact: str) -> str:
    """The User-Agent header. The contact is of whoever runs it, because all users of a library would share its limits.

    Example:
        >>> user_agent("you@example.org").partition(") ")[0].partition(" ")[2]
        '(you@example.org'
    """
    if not _CONTACT.fullmatch(contact):
        raise ValueError(
            f"{contact!r} is neither an e-mail address nor a URL (https://...); Wikimedia wants to know how to reach whoever "
            "runs this."
        )
    return f"suprank/{__version__} ({contact}) httpx2/{httpx2.__version__}"


class Client:
    """Sends requests one after the other; use it in a `with` block.

    It waits if the server says so (429, 503, a lagging database) or cannot be reached, and doubles the wait each time. It gives
    up (`GaveUpError`) once it has waited for `patience` seconds without a good reply in between.
    """

    def __init__(
        self,
        contact: str,
        rate_limiter: RateLimiter,
        *,
        maxlag: int = 5,
        timeout: float = 60.0,
        patience: float = 1800.0,
        report_wait: Callable[[str], None] = lambda reason: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.agent, self.maxlag, self.timeout, self.patience = user_agent(contact), maxlag, timeout, patience
        self.rate_limiter, self.report_wait, self.chance = rate_limiter, report_wait, chance
        self.requests = 0
        self._waits, self._waited = 0, 0.0
        self._answered: set[str] = set()
        self._http = httpx2.Client(headers={"User-Agent": self.agent}, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.close()

    def fetch(self, url: str, form: dict[str, str], *, post: bool = False) -> Reply:
        """Send a request until it is answered; `BadReplyError` if the reply cannot be read."""
        parameters = {**form, "format": "json", "maxlag": str(self.maxlag)}
        while True:
            self.rate_limiter.wait_turn()
            try:
                return self._fetch_once(url, parameters, post)
            except _RetryLaterError as later:
                self._wait(str(later), later.seconds, later.least)

    def reset_patience(self) -> None:
        """Forget earlier waits, after a good reply."""
        self._waits, self._waited = 0, 0.0

    def back_off(self, reason: str) -> None:
        """Wait before a request with a bad reply is repeated."""
        self._wait(reason, None)

    def _wait(self, reason: str, requested: float | None, least: float = 1.0) -> None:
        doubled = min(least * 2.0**self._waits, MAX_WAIT)
        seconds = doubled * (1 + self.chance() / 2) if requested is None else max(requested, doubled)
        self._waits += 1
        if self._waited + seconds > self.patience:
            raise GaveUpError(
                f"{reason}. That is {self._waits} in a row, the next wait would be {seconds:.0f} s, and patience is "
                f"{self.patience:.0f} s. Replies so far are saved: run the same command later to continue."
            )
        self._waited += seconds
        self.report_wait(f"waiting {seconds:.0f} s: {reason}")
        self.rate_limiter.pause(seconds)
        self.report_wait("")

    def _fetch_once(self, url: str, form: dict[str, str], post: bool) -> Reply:
        host = urlsplit(url).netloc
        self.requests += 1
        status, headers, body = self._download(url, host, form, post)
        self._answered.add(host)
        wait = retry_after(headers.get("retry-after"))
        if status in (429, 503):
            raise _RetryLaterError(f"{host} answered {status}", wait)
        if status == 403:
            raise GaveUpError(
                f"{host} answered 403 and will not be asked again: {_page_text(body)!r}. Our user agent is {self.agent!r}; "
                "give contact an e-mail address or a page by which you can be reached. Replies so far are saved."
            )
        if status in (413, 414):
            raise RequestRefusedError("toomanyvalues", f"{host} answered {status}")
        if 300 <= status < 500:
            to = f" ({headers['location']})" if "location" in headers else ""
            raise GaveUpError(f"{host} answered {status}{to}: {_page_text(body)!r}. Is {url} the address of an api.php?")
        if status != 200:
            raise BadReplyError(f"{host} answered {status}", body)
        if "json" not in headers.get("content-type", ""):
            raise BadReplyError(f"{host} answered {headers.get('content-type', 'something')!r}, not JSON", body)
        try:
            payload = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BadReplyError(f"{host} did not answer JSON ({error})", body) from None
        if not isinstance(payload, dict):
            raise BadReplyError(f"{host} answered JSON that is not an object", body)
        if "error" in payload:
            raise _api_error(host, payload["error"], wait, body)
        saved = {name: headers[name] for name in ("content-type", "date") if name in headers}
        return Reply(f"{url}?{urlencode(form)}", status, saved, body, payload)

    def _download(self, url: str, host: str, form: dict[str, str], post: bool) -> tuple[int, httpx2.Headers, bytes]:
        """Status, headers and the complete body."""
        # A POST that only reads need not go to the data center that writes.
        sent: dict[str, Any] = {"data": form, "headers": {"Promise-Non-Write-API-Action": "true"}} if post else {"params": form}
        body = b""
        deadline = self.rate_limiter.clock() + 5 * self.timeout
        try:
            with self._http.stream("POST" if post else "GET", url, **sent) as response:
                for piece in response.iter_bytes():
                    body += piece
                    if self.rate_limiter.clock() > deadline:  # httpx's timeout is for each pause within the reply
                        raise BadReplyError(f"{host} was still sending after {5 * self.timeout:.0f} s", body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            if host not in self._answered and self._waits + 1 >= FIRST_CONNECTIONS:
                raise GaveUpError(f"{host} cannot be reached ({error}). Is {url} right, and is there a network?") from None
            raise _RetryLaterError(f"{host} cannot be reached ({error})", None) from None
        except httpx2.RequestError as error:  # resets, timeouts, bodies cut short or badly compressed
            raise BadReplyError(f"{host}: {error or type(error).__name__}", body) from None
        return response.status_code, response.headers, body


def _api_error(host: str, error: Any, wait: float | None, body: bytes) -> Exception:
    """The exception for an error in the JSON of a reply; such replies have status 200."""
    if not isinstance(error, dict):
        return BadReplyError(f"{host} answered an error", body)
    code, info, key = str(error.get("code", "")), str(error.get("info", "")), error.get("id")
    if code == "maxlag":
        return _RetryLaterError(f"{host} lags: {info}", wait, LAG_WAIT)
    if code == "ratelimited":
        return _RetryLaterError(f"{host} limits the rate: {info}", wait, LAG_WAIT)
    if code in _STOP_CODES:
        return GaveUpError(f"{host} refuses: {code}: {info}. Replies so far are saved.")
    if code in _REFUSED_CODES:
        return RequestRefusedError(code, info, key if isinstance(key, str) else None)
    return BadReplyError(f"{host} answered {code}: {info}", body)


def _page_text(body: bytes) -> str:
    """The text of an HTML page, in one line."""
    return " ".join(re.sub(r"<[^<>]*>", " ", body.decode("utf-8", "replace")).split())[:500]
