"""Bind a port and create the server. The port is bound first, so that a port in use is reported before any work is done."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind a socket to this host and port; port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            if os.name != "nt":  # there it would share a port that is in use
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        problem = f"{host} port {port} is not available ({error.strerror or error})"
        raise OSError(f"{problem}; choose another port, or 0 for a free one.") from error
    return bound


def server_url(listening: socket.socket, host: str) -> str:
    """The URL of a server on a listening socket.

    Example:
        >>> with bind_socket("127.0.0.1", 0) as listening:
        ...     server_url(listening, "127.0.0.1").startswith("http://127.0.0.1:")
        True
    """
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"


def make_server(app: ASGIApp) -> uvicorn.Server:
    """The server; `server.run(sockets=[...])` runs until Ctrl-C. It logs errors only, and no requests, for privacy."""
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", server_header=False, access_log=False, lifespan="off"))
