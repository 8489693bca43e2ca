"""Middleware that checks who may send requests, and adds security headers to every response."""

from __future__ import annotations

import ipaddress
import re
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
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # under no-referrer, forms of our own pages would have the Origin null
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class SecurityMiddleware:
    """Adds `HEADERS` to the responses of `app`, and refuses requests from other sites.

    - A server on a loopback address accepts only requests to a loopback host. Otherwise a web page whose name is made to point
      to 127.0.0.1 after it was loaded (DNS rebinding) would have the same origin as ours, and could read it.
    - Forms sent by other sites are refused on every host. Browsers mark them with Sec-Fetch-Site; older browsers send Origin,
      which is null for a sandboxed page. Our cookies are strict, so foreign forms also come without them.
    - A client that disconnects while it sends a form is ignored.
    - Redirects stay on the host of the request's connection, whatever its Host header says.
    """

    def __init__(self, app: ASGIApp, *, host: str) -> None:
        self.app, self.local = app, is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; websockets are closed."""
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

        refusal = self._refusal(Headers(scope=scope), scope["method"])
        if refusal is not None:
            await refusal(scope, receive, with_headers)
        else:
            with suppress(ClientDisconnect):  # during an upload: there is nobody to answer, and it is no error
                await self.app(scope, receive, with_headers)

    def _refusal(self, headers: Headers, method: str) -> PlainTextResponse | None:
        host = headers.get("host", "")
        if self.local and not is_loopback(host_of(host)):
            message = f"This server answers only on its own machine, not as {host!r}; use 127.0.0.1 or localhost."
            return PlainTextResponse(message, 421)
        if method not in ("GET", "HEAD") and not _is_own(headers):
            return PlainTextResponse(
                "This form was sent by another site; open the page itself and send the form from there.", 403
            )
        return None


def _own_path(location: str) -> str:
    """A redirect without its host: starlette's own redirects, from /tree/ to /tree, repeat the Host header of the request."""
    parts = urlsplit(location)
    query, fragment = f"?{parts.query}" if parts.query else "", f"#{parts.fragment}" if parts.fragment else ""
    return f"/{parts.path.lstrip('/')}{query}{fragment}"


def _is_own(headers: Headers) -> bool:
    """Whether a form comes from one of our pages, or from no page at all, such as a script."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("none", "same-origin")
    origin, host = headers.get("origin"), headers.get("host", "")
    return origin is None or origin in (f"http://{host}", f"https://{host}")


def host_of(header: str) -> str:
    """The host in a Host header, without the port and the brackets of IPv6; "" if it is anything but a host and a port.

    Example:
        >>> [host_of(header) for header in ("localhost:8000", "[::1]:8000", "[::1].evil.example", "localhost:80.evil.example")]
        ['localhost', '::1', '', '']
    """
    parts = re.fullmatch(r"(?:\[([0-9A-Fa-f]*:[0-9A-Fa-f:.]+)\]|([^\[\]:@/\s]+))(?::[0-9]*)?", header)
    return "" if parts is None else parts[1] or parts[2]


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address, which other machines cannot reach.

    Example:
        >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "", "localhost.evil.example")]
        [True, True, True, False, False, False]
    """
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
