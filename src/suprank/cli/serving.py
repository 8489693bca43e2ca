"""A web page until Ctrl-C: where it is, who else can reach it, and a browser on it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import webbrowser
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from types import FrameType

    from fastapi import FastAPI

_PATIENCE = 3.0  # seconds that requests under way may take after Ctrl-C; an upload that stalls would hold up the end for ever


def serve(
    app: FastAPI,
    listening: socket.socket,
    host: str,
    links: Sequence[tuple[str, str]],
    *,
    others: str,
    open_page: bool,
    background: Callable[[], object] | None = None,
) -> NoReturn:
    """Print the links, each a name (or none) and a path, answer until Ctrl-C, and then end this process with exit code 0.

    `others` is what everyone who can reach the host may do, for the warning where that is not this machine alone. The browser
    is opened on the first link, where there is a terminal and `open_page`. `background` is run in a thread meanwhile.
    """
    from suprank.web.security import is_loopback
    from suprank.web.serving import make_server, server_url

    before = signal.signal(signal.SIGINT, lambda *_: _end(0))  # how it is meant to end; uvicorn has its own while it answers
    try:
        if background is not None:
            threading.Thread(target=background, daemon=True).start()
        listening.listen(128)
        address = server_url(listening, host)
        if not is_loopback(host):
            warning = f"WARNING: everyone who can reach {host} {others}; 127.0.0.1 is for this machine alone."
            typer.secho(warning, fg="red", bold=True, err=True)
        for name, path in links:
            named = f"{name}  " if name else ""
            terminal.echo(f"{named}{address}{path}{'  (Ctrl-C ends it)' if (name, path) == links[-1] else ''}")
        if open_page and sys.stdout.isatty():
            webbrowser.open(address + links[0][1])  # waits in the queue of the socket until the server answers
        server = make_server(app)
        shut_down = server.handle_exit

        def handle_exit(number: int, frame: FrameType | None) -> None:
            if hasattr(signal, "setitimer"):
                signal.signal(signal.SIGALRM, lambda *_: _end(0 if number == signal.SIGINT else 128 + number))
                signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
            shut_down(number, frame)

        server.handle_exit = handle_exit  # type: ignore[method-assign, assignment]
        server.run(sockets=[listening])
        _end(0)
    finally:  # not reached but after an error
        signal.signal(signal.SIGINT, before)


def _end(code: int) -> NoReturn:
    """End this process without the interpreter's exit.

    That would unwind threads which are still in native code, such as a search or an import in the background, and C++ answers
    it with an abort. Nothing is left to save: pages only read, or save at once.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, RuntimeError):  # whoever read it has gone; or a signal came in the middle of writing to it
            stream.flush()
    os._exit(code)
