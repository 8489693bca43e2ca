"""What a form sends: texts, ticks, versions that were seen, and the click that makes it one act."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, HTTPException, Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.datastructures import FormData

    from suprank.hierarchy.review.acts import Act

MAX_BYTES = 4_000_000
"""Of a form: ticks of half a million labels."""


@dataclass(frozen=True)
class Sent:
    """A form. Fields that are not there are empty."""

    fields: FormData

    def text(self, name: str) -> str:
        """What was typed, as it was typed."""
        value = self.fields.get(name, "")
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int | None:
        """A whole number; None where the field is empty or something else."""
        text = self.text(name).strip()
        return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None

    def numbers(self, *names: str) -> tuple[int, ...]:
        """The whole numbers in fields of these names, each once: ticks, and lists with blanks or commas between."""
        return tuple(dict.fromkeys(int(one) for text in self._texts(names) for one in re.findall(r"[0-9]{1,15}", text)))

    def seen(self, name: str = "seen") -> dict[int, int]:
        """Groups and the versions the annotator saw, from `ID:VERSION`."""
        pairs = [re.findall(r"([0-9]{1,15}):([0-9]{1,15})", text) for text in self._texts((name,))]
        return {int(group): int(version) for found in pairs for group, version in found}

    def click(self, act: Act | str) -> str | None:
        """The token of the click for `Branch.do`. It holds the act too: a page that was gone back to has its old token, and
        another act from there is another click."""
        token = self.text("token")[:64]
        return f"{token}.{hashlib.sha256(repr(act).encode()).hexdigest()[:16]}" if token else None

    def _texts(self, names: Iterable[str]) -> list[str]:
        return [value for name in names for value in self.fields.getlist(name) if isinstance(value, str)]


async def form(request: Request) -> Sent:
    """The form of a request; 413 where it is too large."""
    length = request.headers.get("content-length", "")
    if not re.fullmatch(r"[0-9]{1,15}", length) or int(length) > MAX_BYTES:
        raise HTTPException(413, f"The form has more than {MAX_BYTES // 1_000_000} MB; choose fewer labels.")
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise HTTPException(400, "This is no form of this page; use its buttons.")
    return Sent(await request.form(max_fields=100_000))


Form = Annotated[Sent, Depends(form)]
