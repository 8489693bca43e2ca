"""A web page until Ctrl-C: where it is, who else can reach it, and a browser on it."""

from __future__ import annotations

import sys
import webbrowser
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from fastapi import FastAPI


def serve(
    app: FastAPI, listening: socket.socket, host: str, links: Sequence[tuple[str, str]], *, others: str, open_page: bool
) -> None:
    """Print the links, each a name (or none) and a path, and answer until Ctrl-C.

    `others` is what everyone who can reach the host may do, for the warning where that is not this machine alone. The browser
    is opened on the first link, where there is a terminal and `open_page`.
    """
    from suprank.web.safety import is_loopback
    from suprank.web.serving import address_of, server_of

    listening.listen(128)
    address = address_of(listening, host)
    if not is_loopback(host):
        warning = f"WARNING: everyone who can reach {host} {others}; 127.0.0.1 is for this machine alone."
        typer.secho(warning, fg="red", bold=True, err=True)
    for name, path in links:
        named = f"{name}  " if name else ""
        typer.echo(f"{named}{address}{path}{'  (Ctrl-C ends it)' if (name, path) == links[-1] else ''}")
    if open_page and sys.stdout.isatty():
        webbrowser.open(address + links[0][1])  # waits in the queue of the socket until the server answers
    with suppress(KeyboardInterrupt):  # how it is meant to end
        server_of(app).run(sockets=[listening])
