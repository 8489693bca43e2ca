"""Read query parameters and submitted forms within limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.datastructures import FormData
    from starlette.requests import Request


async def limited_form(request: Request, max_bytes: int, too_large: str, *, max_fields: int = 100) -> FormData:
    """The fields of a form in a request; status 413 with the sentence `too_large` above `max_bytes`, 400 for anything else.

    Only forms as browsers send them are read, so none in chunks. Forms of other sites never get here: see `SecurityMiddleware`.
    """
    length = request.headers.get("content-length", "")
    if "transfer-encoding" in request.headers or not re.fullmatch(r"[0-9]{1,15}", length) or int(length) > max_bytes:
        raise HTTPException(413, too_large)
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise HTTPException(400, "This is not a form of this page; use the buttons on the page.")
    return await request.form(max_fields=max_fields, max_part_size=max_bytes)


def page_offset(parameters: Mapping[str, str]) -> int:
    """The query parameter `offset`, at which a page of a list starts; status 400 if it is not a number."""
    text = parameters.get("offset") or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise HTTPException(400, f"offset={text!r} must be a whole number, 0 or more.")
    return int(text)
