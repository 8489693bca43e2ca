"""axe-core looks at pages for what keeps people with a keyboard, a screen reader or weak eyes from using them."""

from functools import cache
from importlib.resources import files

EVERY_IMPACT = ("minor", "moderate", "serious", "critical")


def contrast(one, other):
    """Contrast ratio of two colors, 1 to 21, as WCAG 2 defines it."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color):
    parts = [value / 255 for value in bytes.fromhex(color.removeprefix("#"))]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@cache
def axe_core():
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


def violations(page, impacts=("serious", "critical")):
    """What axe-core finds on an open page, of these impacts: the rule, how often it is broken, and where first."""
    page.evaluate(axe_core())  # not a script element, which the pages' content policy forbids
    found = page.evaluate("axe.run({resultTypes: ['violations']})")
    assert found["passes"], "there is something on the page"
    return [
        f"{one['id']} × {len(one['nodes'])}: {one['nodes'][0]['html']}"
        for one in found["violations"]
        if one["impact"] in impacts
    ]
