"""How a verb ends when something is wrong: one line, and an exit code that a script can go by."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

MALFORMED, UNRESOLVED, GAVE_UP, LINT = 3, 4, 5, 6
"""A file is not what it must be; done but for some requests that failed; a server gave up on us; lint found errors."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """What the library refuses, said in one line: exit code 3 for a malformed file, 5 for a server, 2 for all else."""
    from suprank.hierarchy.errors import GaveUpError, MalformedError

    try:
        with terminal.plain_errors("fewer labels"):
            yield
    except typer.BadParameter as error:
        codes: dict[type, int] = {MalformedError: MALFORMED, GaveUpError: GAVE_UP}
        code = codes.get(type(error.__cause__))
        if code is None:
            raise
        terminal.echo(f"Error: {error.message}", err=True)
        raise typer.Exit(code) from error
