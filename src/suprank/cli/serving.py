"""Serve a web page until Ctrl-C: print its address, warn if others can reach it, and open a browser."""

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

_GRACE_SECONDS = 3.0  # seconds for running requests after Ctrl-C; a stalled upload would delay the exit forever


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
    """Print the links, each a name (may be empty) and a path, serve until Ctrl-C, and then exit this process with code 0.

    If the host is not loopback, a warning says what everyone who can reach it may do: `others`, such as "can see the images".
    With `open_page` and a terminal, a browser opens the first link. `background` runs in a thread in the meantime.
    """
    from suprank.web.security import is_loopback
    from suprank.web.serving import make_server, server_url

    # Ctrl-C is the normal way to stop; uvicorn installs its own handler while it serves.
    previous = signal.signal(signal.SIGINT, lambda *_: _exit(0))
    try:
        if background is not None:
            threading.Thread(target=background, daemon=True).start()
        listening.listen(128)
        address = server_url(listening, host)
        if not is_loopback(host):
            warning = f"WARNING: everyone who can reach {host} {others}; 127.0.0.1 is reachable from this machine only."
            typer.secho(warning, fg="red", bold=True, err=True)
        for name, path in links:
            prefix = f"{name}  " if name else ""
            terminal.echo(f"{prefix}{address}{path}{'  (press Ctrl-C to stop)' if (name, path) == links[-1] else ''}")
        if open_page and sys.stdout.isatty():
            webbrowser.open(address + links[0][1])  # the request waits in the socket's queue until the server runs
        server = make_server(app)
        shut_down = server.handle_exit

        def handle_exit(number: int, frame: FrameType | None) -> None:
            if hasattr(signal, "setitimer"):
                signal.signal(signal.SIGALRM, lambda *_: _exit(0 if number == signal.SIGINT else 128 + number))
                signal.setitimer(signal.ITIMER_REAL, _GRACE_SECONDS)
            shut_down(number, frame)

        server.handle_exit = handle_exit  # type: ignore[method-assign, assignment]
        server.run(sockets=[listening])
        _exit(0)
    finally:  # reached only after an error
        signal.signal(signal.SIGINT, previous)


def _exit(code: int) -> NoReturn:
    """Exit this process at once, without the interpreter's cleanup.

    The cleanup would unwind threads that are still in native code, such as a search or an import in the background, and C++
    aborts then. Nothing is left to save: pages only read, or save immediately.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, RuntimeError):  # the reader is gone, or a signal came while writing to it
            stream.flush()
    os._exit(code)
