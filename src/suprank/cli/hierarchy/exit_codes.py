"""Exit codes of the commands, and errors in one line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

MALFORMED, UNRESOLVED, GAVE_UP, LINT = 3, 4, 5, 6
"""A file is malformed; some requests failed for good; a server did not answer or asked us to stop; lint found errors."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Print errors of the library in one line, and exit with 3 for a malformed file, 5 for a server, 2 for anything else."""
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
