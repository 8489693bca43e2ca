"""What stands around every answer: which hosts may ask, and headers that keep the page to itself."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "; ".join(
    (
        "default-src 'none'",
        "img-src 'self' data:",
        "style-src 'self'",
        "script-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Safety:
    """Answers through `app`, with `HEADERS`; refuses foreign hosts where the page is for this machine alone.

    Bound to loopback, a request must name a loopback host: a page of the web whose name was made to point to 127.0.0.1 after it
    was loaded (DNS rebinding) would else be of the same origin as ours, and read it. Forms that other sites send are refused
    everywhere. Browsers tell these by Sec-Fetch-Site; old ones, which do not, by Origin, which is null for our own forms,
    under no-referrer. Cookies of ours are strict besides, so that a foreign form comes without them. A client that disconnects
    while it sends a form is ignored. Redirects stay on the host that was asked, whatever Host the request names.
    """

    def __init__(self, app: ASGIApp, *, host: str) -> None:
        self.app, self.local = app, is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; websockets are not for us."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close"})
                return
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if "location" in headers:
                    headers["location"] = _own_path(headers["location"])
            await send(message)

        refused = self._refused(Headers(scope=scope), scope["method"])
        if refused is not None:
            await refused(scope, receive, with_headers)
        else:
            with suppress(ClientDisconnect):  # in the middle of an upload: there is nobody to answer, and nothing went wrong
                await self.app(scope, receive, with_headers)

    def _refused(self, headers: Headers, method: str) -> PlainTextResponse | None:
        named = headers.get("host", "")
        if self.local and not is_loopback(host_of(named)):
            said = f"This page is for its own machine: it was asked for as {named!r}; ask for 127.0.0.1 or localhost."
            return PlainTextResponse(said, 421)
        if method not in ("GET", "HEAD") and not _is_own(headers):
            return PlainTextResponse("Another site sent this form; open the page itself, and send it from there.", 403)
        return None


def _own_path(location: str) -> str:
    """Where a redirect leads, without the host: starlette's, of /tree/ to /tree, name the host that the request named."""
    parts = urlsplit(location)
    return f"/{parts.path.lstrip('/')}" + (f"?{parts.query}" if parts.query else "")


def _is_own(headers: Headers) -> bool:
    """Whether a form comes from a page of ours, or from no page at all: a person, a program."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("none", "same-origin")
    origin = headers.get("origin", "null")
    return origin == "null" or origin.partition("://")[2] == headers.get("host", "")


def host_of(header: str) -> str:
    """The name in a Host header, without the port and the brackets of IPv6.

    Example:
        >>> host_of("localhost:8000"), host_of("[::1]:8000"), host_of("::1")
        ('localhost', '::1', '::1')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header if header.count(":") > 1 else header.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and cannot be reached from another.

    Example:
        >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "", "localhost.evil.example")]
        [True, True, True, False, False, False]
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
