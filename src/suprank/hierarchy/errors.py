"""Errors that a script may want to tell apart. The command line gives the first two an exit code of their own."""

from suprank.files.tables import MalformedError

__all__ = ["GaveUpError", "MalformedError"]


class GaveUpError(OSError):
    """A server did not answer, or asked us to stop. Replies so far are saved; the same command continues from there."""


class BadReplyError(OSError):
    """A reply was cut short, is not JSON, or has an unexpected shape. The request may be repeated or split."""

    EXCERPT = 200
    """How many bytes of the reply the message quotes."""

    def __init__(self, reason: str, body: bytes = b"") -> None:
        excerpt = f": {body[: self.EXCERPT].decode('utf-8', 'backslashreplace')}" if body else ""
        super().__init__(f"{reason}{excerpt}".encode("utf-8", "backslashreplace").decode())


class RequestRefusedError(BadReplyError):
    """The server will never answer this request. `code` is its reason, and `key` the key that it refuses, if it names one."""

    def __init__(self, code: str, info: str, key: str | None = None) -> None:
        super().__init__(f"{code}: {info}")
        self.code, self.key = code, key
