"""Exit codes of the commands, and errors in one line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

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
        if not isinstance(error.__cause__, MalformedError):
            raise
        _exit(MALFORMED, error.message, error)
    except GaveUpError as error:
        _exit(GAVE_UP, str(error), error)


def _exit(code: int, message: str, cause: Exception) -> NoReturn:
    terminal.echo(f"Error: {message}", err=True)
    raise typer.Exit(code) from cause
