"""Rows that are ticked or changed have a tint: what stands on it can still be read, in light and in dark."""

import re
from importlib.resources import files

from tests.accessibility import contrast

STYLE = (files("suprank.web") / "style.css").read_text(encoding="utf-8")
OWN = (files("suprank.hierarchy.review.web") / "page.css").read_text(encoding="utf-8")


def mixed(color, share, page):
    parts = [[int(one[at : at + 2], 16) for at in (1, 3, 5)] for one in (color, page)]
    return "#" + "".join(f"{round(share * one + (1 - share) * other):02x}" for one, other in zip(*parts, strict=True))


def test_text_can_be_read_on_tinted_rows():
    """4.5:1 is what WCAG 2 asks of text (1.4.3)."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.S)
    light, dark, *_ = [dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", block)) for block in blocks]
    tints = re.findall(r"color-mix\(in srgb, var\((--\w+)\) (\d+)%, var\(--page\)\)", OWN)
    assert len(tints) == 2
    for theme in (light, {**light, **dark}):
        for color, percent in tints:
            behind = mixed(theme[color], int(percent) / 100, theme["--page"])
            for name in ("--text", "--quiet", "--accent", "--good", "--bad"):
                assert contrast(theme[name], behind) >= 4.5, (name, color)
