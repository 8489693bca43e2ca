"""What a server can answer that is not an answer."""

KEPT = 200
"""Bytes of a bad reply that are kept to be looked at."""


class BadReplyError(OSError):
    """A reply that is none: cut short, not JSON, or of another shape than was asked for. To be asked again, in parts."""

    def __init__(self, why: str, body: bytes = b"") -> None:
        began = f": {body[:KEPT].decode('utf-8', 'backslashreplace')}" if body else ""
        super().__init__(f"{why}{began}".encode("utf-8", "backslashreplace").decode())


class RefusedError(BadReplyError):
    """The server will not answer this request, however often: `code` says why, `key` of which key, where it says so."""

    def __init__(self, code: str, info: str, key: str | None = None) -> None:
        super().__init__(f"{code}: {info}")
        self.code, self.key = code, key
