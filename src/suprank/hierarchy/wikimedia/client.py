"""A client of the MediaWiki API with Wikimedia's etiquette: it says who runs it, sends one request at a time, and waits.

urllib3 repeats what a server puts off, and requests-cache keeps every reply in a file, so that no request is made twice.
"""

from __future__ import annotations

import re
import time
import zlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests_cache import CachedSession, SerializerPipeline, Stage, json_serializer, utf8_encoder
from requests_cache.backends.sqlite import SQLiteCache
from urllib3.exceptions import InvalidHeader, MaxRetryError
from urllib3.util import Retry

from suprank import __version__
from suprank.files.outputs import check_writable
from suprank.hierarchy.errors import GaveUpError
from suprank.hierarchy.project import FullError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from requests_cache import AnyResponse
    from urllib3.response import BaseHTTPResponse

    from suprank.hierarchy.recipe import ScrapeRecipe

    Answer = TypeVar("Answer")

ATTEMPTS = 3
"""How often a request with an unreadable reply is sent, and how often a server that never answered is called."""

FIRST_WAIT, MAX_WAIT = 1.0, 120.0
"""Seconds: waits double from the first to the second, unless the server asks for more."""

MAX_PARTS = 100
"""A reply that is continued more often than this goes in circles."""

_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # what a reply of another shape raises
_CONTACT = re.compile(r"[!-'*-?A-~]+@[!-'*-?A-~]+|https?://[!-'*-~]+", re.IGNORECASE)
_STOP_CODES = frozenset({"autoblocked", "badtoken", "blocked", "permissiondenied", "readapidenied", "unknown_action"})
_LATER_CODES = frozenset({"maxlag", "ratelimited"})
_REFUSED_CODES = frozenset({"no-such-entity", "toomanyvalues"})
_COMPRESSED = SerializerPipeline(
    [*json_serializer.stages, utf8_encoder, Stage(zlib, "compress", "decompress")], "compressed JSON", is_binary=True
)  # requests-cache's default is pickle, which can run code of whoever wrote the file


class BadReplyError(ValueError):
    """A reply was cut short, is not JSON, has an unexpected shape, or is an error; `code` is that of an error of the API."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class Waits:
    """Waits between requests. They double, and end with `GaveUpError` after `patience` seconds without a good reply."""

    def __init__(self, patience: float, report: Callable[[str], None]) -> None:
        self.patience, self.report = patience, report
        self.reset()

    def reset(self) -> None:
        """Forget earlier waits, after a good reply."""
        self.count, self.seconds = 0, 0.0

    def wait(self, reason: str, requested: float = 0.0) -> None:
        """Sleep, at least as long as the server requests."""
        seconds = max(requested, min(FIRST_WAIT * 2.0**self.count, MAX_WAIT))
        self.count += 1
        self.seconds += seconds
        if self.seconds > self.patience:
            raise GaveUpError(
                f"{reason}. That is {self.count} in a row, the next wait would be {seconds:.0f} s, and patience is "
                f"{self.patience:.0f} s. Replies so far are saved: run the same command later to continue."
            )
        self.report(f"waiting {seconds:.0f} s: {reason}")
        time.sleep(seconds)


class _Retry(Retry):
    """urllib3's retries, with our waits."""

    RETRY_AFTER_STATUS_CODES = frozenset({200, 429, 503})
    """A database that lags behind (maxlag) answers 200, with the time to wait."""

    def __init__(self, waits: Waits, **options: Any) -> None:
        super().__init__(**options)
        self.waits = waits

    def new(self, **changes: Any) -> Self:
        return super().new(waits=self.waits, **changes)

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:
        last = self.history[-1]
        if response is None:
            self.waits.wait(f"the server cannot be reached ({last.error})")
            return
        try:
            requested = self.get_retry_after(response)
        except InvalidHeader:
            requested = None
        busy = "a database of the server lags" if last.status == 200 else f"the server answered {last.status}"
        self.waits.wait(busy, requested or 0.0)


class _Adapter(HTTPAdapter):
    """Sends at most `rate` requests per minute in total, evenly spaced, whichever server they go to."""

    def __init__(self, rate: float, retries: Retry) -> None:
        super().__init__(max_retries=retries)
        self.rate, self.count, self.next_turn = rate, 0, 0.0

    def send(self, *arguments: Any, **options: Any) -> requests.Response:
        time.sleep(max(0.0, self.next_turn - time.monotonic()))
        self.next_turn = time.monotonic() + 60 / self.rate
        self.count += 1
        response = super().send(*arguments, **options)
        response.headers.pop("Vary", None)  # with a cookie in it, requests-cache would not find the reply the next time
        return response


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
    return f"suprank/{__version__} ({contact}) requests/{version('requests')}"


class Client:
    """Asks servers one request after the other, and keeps the replies in a file; use it in a `with` block.

    It waits if a server says so (429, 502 to 504, a lagging database) or cannot be reached, and gives up (`GaveUpError`) once
    it has waited for the recipe's `patience` without a good reply in between. `report_wait` hears why it waits.
    """

    def __init__(
        self, contact: str, replies: Path, recipe: ScrapeRecipe, report_wait: Callable[[str], None] = lambda reason: None
    ) -> None:
        self.agent, self.replies, self.recipe = user_agent(contact), replies, recipe
        check_writable(replies)
        self.waits = Waits(recipe.patience, report_wait)
        retries = _Retry(
            self.waits,
            total=10**6,  # patience is the limit
            connect=ATTEMPTS - 1,  # at first, its address may be wrong
            other=ATTEMPTS - 1,
            read=False,
            redirect=False,
            allowed_methods=None,
            status_forcelist={429, 502, 503, 504},
        )
        self._adapter = _Adapter(recipe.rate, retries)
        self._cache = SQLiteCache(replies, serializer=_COMPRESSED)
        self._session = CachedSession(backend=self._cache, allowable_methods=("POST",), decode_content=True)
        # A POST that only reads need not go to the data center that writes.
        self._session.headers.update({"User-Agent": self.agent, "Promise-Non-Write-API-Action": "true"})
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, self._adapter)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._session.close()

    @property
    def requests_made(self) -> int:
        """How many requests were made; those that a stored reply answers are not."""
        return self._adapter.count

    def ask(self, url: str, form: Mapping[str, str], read: Callable[[list[dict[str, Any]]], Answer]) -> Answer:
        """What `read` makes of the reply, a list of its parts; `BadReplyError` if it still fails after some attempts.

        A reply that cannot be read is not kept.
        """
        parts: list[AnyResponse] = []
        attempts = 0
        while True:
            try:
                answer = read(list(self._payloads(url, form, parts)))
            except (GaveUpError, requests.RequestException, *_UNREADABLE) as error:
                self._cache.delete(*(part.cache_key for part in parts), vacuum=False)
                if isinstance(error, GaveUpError):
                    raise
                bad = error if isinstance(error, BadReplyError) else _bad_reply(url, error, parts)
            else:
                self.waits.reset()
                self._adapter.max_retries = self._adapter.max_retries.new(connect=None, other=None)
                return answer
            if bad.code in _REFUSED_CODES:
                self.waits.reset()
                raise bad
            attempts += bad.code not in _LATER_CODES
            if attempts == ATTEMPTS:
                raise bad
            self.waits.wait(str(bad))

    def _payloads(self, url: str, form: Mapping[str, str], parts: list[AnyResponse]) -> Iterator[dict[str, Any]]:
        """The JSON of a reply and of what continues it; `parts` becomes the list of responses."""
        parts.clear()
        form = {**form, "format": "json", "maxlag": str(self.recipe.maxlag)}
        while len(parts) < MAX_PARTS:
            parts.append(self._post(url, form))
            yield (payload := self._payload(parts[-1]))
            if "continue" not in payload:
                return
            form = {**form, **{str(name): str(value) for name, value in payload["continue"].items()}}
        raise ValueError(f"a reply is continued without end: {payload['continue']}")

    def _post(self, url: str, form: Mapping[str, str]) -> AnyResponse:
        try:
            response = self._session.post(url, data=form, timeout=self.recipe.timeout, allow_redirects=False)
        except requests.ConnectionError as error:
            if not isinstance(error.args[0], MaxRetryError):  # a reply that was cut short
                raise
            raise GaveUpError(
                f"{urlsplit(url).netloc} cannot be reached ({error.args[0].reason}). Is {url} right, and is there a network?"
            ) from None
        # requests-cache is silent about that.
        if response.status_code == 200 and not response.from_cache and not self._cache.contains(response.cache_key):
            raise FullError(f"{self.replies} cannot be written. Make room on the disk, and run the same command to continue.")
        return response

    def _payload(self, response: AnyResponse) -> dict[str, Any]:
        """The JSON object in a response."""
        host, status = urlsplit(response.url).netloc, response.status_code
        if 300 <= status < 500 and status not in (413, 414):
            to = f" ({response.headers['location']})" if "location" in response.headers else ""
            raise GaveUpError(
                f"{host} answered {status}{to} and will not be asked again: {_page_text(response)!r}. Is {response.url} the "
                f"address of an api.php, and can you be reached by our user agent, {self.agent!r}? Replies so far are saved."
            )
        if status != 200:
            raise BadReplyError(f"{host} answered {status}: {_page_text(response)}", "toomanyvalues" if status < 500 else "")
        payload = response.json()
        if not isinstance(payload, dict):
            raise TypeError("it is not an object")
        if "error" in payload:
            code, info = str(payload["error"]["code"]), payload["error"].get("info", "")
            if code in _STOP_CODES:
                raise GaveUpError(f"{host} refuses: {code}: {info}. Replies so far are saved.")
            raise BadReplyError(f"{host} answered {code}: {info}", code)
        return payload


def _bad_reply(url: str, error: Exception, parts: list[AnyResponse]) -> BadReplyError:
    """An error of reading a reply, with the beginning of the reply."""
    begins = f": {parts[-1].text[:200]}" if parts else ""
    message = f"{urlsplit(url).netloc}: a reply cannot be read ({type(error).__name__}: {error}){begins}"
    return BadReplyError(message.encode("utf-8", "backslashreplace").decode())


def _page_text(response: AnyResponse) -> str:
    """The text of an HTML page, in one line."""
    return " ".join(re.sub(r"<[^<>]*>", " ", response.text).split())[:500]
