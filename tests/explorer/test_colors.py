"""Colors: what a level looks like, and that it can be seen on both pages."""

import re
from importlib.resources import files

import pytest

from suprank.explorer import colors
from tests.accessibility import contrast

STYLE = (files("suprank.web") / "style.css").read_text(encoding="utf-8")


@pytest.mark.parametrize("levels", range(1, 8))
def test_levels_go_from_red_over_orange_to_green_each_in_a_shade_of_its_own(levels):
    shades = colors.level_colors(levels)
    assert len(set(shades)) == len(shades) == levels + 1
    assert shades[0].light == "#c62828"
    assert shades[-1].light == "#2e7d32"
    assert len(colors.level_names([str(level) for level in range(levels)])) == len(shades)


def test_every_color_stands_out_from_its_page():
    """3:1 is what WCAG 2 asks of what is not text (1.4.11)."""
    for levels in range(1, 8):
        for shade in (*colors.level_colors(levels), *colors.CLASSES, colors.UNKNOWN):
            for color, page in zip(shade, colors.PAGE, strict=True):
                assert contrast(color, page) >= 3, (shade, page)


def test_text_can_be_read_on_both_pages_and_panels():
    """4.5:1 is what WCAG 2 asks of text (1.4.3)."""
    light, dark, *_ = [
        dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.S)
    ]
    for theme, page, text in zip((light, {**light, **dark}), colors.PAGE, colors.TEXT, strict=True):
        assert (theme["--page"], theme["--text"]) == (page, text), "one place says the same as the other"
        for name in ("--text", "--quiet", "--accent", "--good", "--bad"):
            for behind in ("--page", "--panel"):
                assert contrast(theme[name], theme[behind]) >= 4.5, (name, behind)
        assert contrast(theme["--accent-text"], theme["--accent"]) >= 4.5
        assert min(contrast(theme[run], theme["--page"]) for run in ("--run-0", "--run-1")) >= 3


def test_contrast_is_that_of_wcag():
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


def test_the_style_of_levels_has_both_themes_and_a_class_each():
    style = colors.level_style(2)
    assert style.count("--level-1:") == 2
    for name in ("0", "1", "2", "none"):
        assert f".level-{name}{{--level:var(--level-{name})}}" in style
