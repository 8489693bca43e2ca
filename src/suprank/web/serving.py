"""The page on a port: bound first, so that one that is taken is found out before any work is done."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def bound(host: str, port: int) -> socket.socket:
    """A socket on this host and port; 0 takes a free one."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(place)
        except OSError:
            found.close()
            raise
    except OSError as error:
        said = f"{host} port {port} cannot be listened on ({error.strerror or error})"
        raise OSError(f"{said}; choose another --port, or 0 for a free one.") from error
    return found


def address_of(listening: socket.socket, host: str) -> str:
    """What to type into a browser.

    Example:
        >>> with bound("127.0.0.1", 0) as listening:
        ...     address_of(listening, "127.0.0.1").startswith("http://127.0.0.1:")
        True
    """
    named = f"[{host}]" if ":" in host else host
    return f"http://{named}:{listening.getsockname()[1]}"


def server_of(app: ASGIApp) -> uvicorn.Server:
    """What answers; `server.run(sockets=[...])` until Ctrl-C. It logs errors only: who looked at what is nobody's business."""
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", server_header=False, access_log=False, lifespan="off"))
