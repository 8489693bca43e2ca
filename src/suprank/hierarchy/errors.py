"""Errors that a script may want to tell apart. The command line gives each an exit code of its own."""

from suprank.files.tables import MalformedError

__all__ = ["GaveUpError", "MalformedError"]


class GaveUpError(RuntimeError):
    """A server did not answer, or asked us to stop. Replies so far are saved; the same command continues from there."""
