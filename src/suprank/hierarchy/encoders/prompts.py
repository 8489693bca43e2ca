"""What an encoder sees of a label: without what the recipe strips, with its description, inside a prompt."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from suprank.hierarchy.encoders.precomputed import Precomputed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from suprank.hierarchy.encoders.protocol import Encoder


def encoded_text(text: str, strip: Iterable[str] = (), description: str = "", prompt: str | None = None) -> str:
    """The text of a label for an encoder. A label that would be stripped whole stays as it is.

    Example:
        >>> encoded_text("bath  (1172–1954)", [r"\\s*\\([^()]*\\d{3,4}[^()]*\\)"], "place to swim", "A picture of a {}")
        'A picture of a bath, place to swim'
    """
    left = text
    for pattern in strip:
        left = re.sub(pattern, "", left)
    left = " ".join(left.split()) or " ".join(text.split())
    if description:
        left = f"{left}, {description}"
    return left if prompt is None else prompt.replace("{}", left)


def prompt_for(
    encoder: Encoder | Precomputed, prompt: str | None, of_recipe: str, *, with_description: bool = False
) -> str | None:
    """What stands around a label: the prompt that is given, else the recipe's; none for an encoder that takes none.

    To ask for a prompt or a description where there is no place for one is an error; a recipe's prompt is passed over.
    """
    made = isinstance(encoder, Precomputed)
    if made and (prompt is not None or with_description):
        raise ValueError("precomputed vectors are made already: a prompt or a description cannot go into them; leave it out.")
    if prompt is not None and not encoder.prompted:
        raise ValueError("tfidf takes no prompt: its letters would make all labels alike; leave it out.")
    around = of_recipe if prompt is None else prompt
    if around.count("{}") != 1:
        raise ValueError(f"prompt {around!r} must say once, with {{}}, where the label goes.")
    return around if encoder.prompted else None
