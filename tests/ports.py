"""Ports for processes that are to meet at one."""

from __future__ import annotations

import itertools
import os
import socket

_ports = itertools.count(os.getpid() * 64)
"""Processes beside this one begin elsewhere. Below 32768, where no system takes a port for an outgoing connection."""


def free_port() -> int:
    """A port that nobody listens at, for a process that is about to."""
    while True:
        port = 20_000 + next(_ports) % 12_000
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
