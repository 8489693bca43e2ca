"""`reading(path, kind)`: whatever goes wrong while a file is read becomes one sentence that names the file."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike


@contextmanager
def reading(path: str | PathLike[str], kind: str) -> Iterator[None]:
    """Turn any failure inside the block into a ValueError of one sentence that names the file; `kind` is what it should be.

    A damaged or forged file can make a parser raise anything: RecursionError, OverflowError, zlib.error, tokenize.TokenError.
    Errors that name the file already pass as they are; so do a missing package, memory that is used up, and the operating
    system's own errors of that file (no such file, permission denied).

    Example:
        >>> with reading("run.txt", "run"):
        ...     int("seven")
        Traceback (most recent call last):
        ValueError: run.txt is not a readable run: invalid literal for int() with base 10: 'seven'.
    """
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        if str(path) in str(error) or (isinstance(error, OSError) and error.filename is not None):
            raise
        reason = (str(error).strip().splitlines() or [""])[0].strip().rstrip(".") or type(error).__name__
        raise ValueError(f"{path} is not a readable {kind}: {reason}.") from error


def shorten(text: str) -> str:
    """The text in quotes, cut to what an error message has room for."""
    text = text.rstrip("\n")
    return repr(text if len(text) <= 60 else text[:57] + "...")
