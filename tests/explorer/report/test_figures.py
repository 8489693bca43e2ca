"""Figures as SVG: text is text, colors are the page's, and nothing of a label is markup."""

import re
from xml.etree import ElementTree

from suprank.explorer.report.figures import as_svg, ink, level_ink, new_figure, run_ink

HOSTILE = "</text><script>alert(1)</script> $\\frac{ 漢字"


def figure(name="a", label=HOSTILE):
    with new_figure() as (one, axes):
        axes.plot([0, 1], [0, 1], color=run_ink(1), marker="o")
        axes.fill_between([0, 1], [1, 1], color=level_ink(2))
        axes.set(xlabel=label, title="a title")
        return as_svg(one, name, label)


def test_labels_are_text_whatever_they_hold_and_need_no_glyph_of_ours():
    root = ElementTree.fromstring(figure())
    assert HOSTILE in [element.text for element in root.iter("text")]
    assert root.attrib["aria-label"] == HOSTILE
    assert not list(root.iter("script"))


def test_colors_are_the_pages_own():
    svg = figure()
    for name in ("currentColor", "var(--line)", "var(--run-1)", "var(--level-2)"):
        assert name in svg
    assert "#0a0b" not in svg
    assert len({ink("currentColor"), ink("var(--line)"), run_ink(0), run_ink(1), level_ink(0), level_ink(None)}) == 6


def test_there_is_no_inline_style_no_namespace_and_nothing_about_who_made_it():
    svg = figure()
    assert not re.search(r"style|xmlns|http|metadata|<!--", svg.replace(HOSTILE, ""))


def test_ids_are_the_figures_own_and_references_find_them():
    root = ElementTree.fromstring(figure("mine"))
    ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    assert all(one.startswith("mine-") for one in ids)
    references = {element.attrib["href"][1:] for element in root.iter("use")}
    references |= {
        one for element in root.iter() for value in element.attrib.values() for one in re.findall(r"url\(#(.+?)\)", value)
    }
    assert references
    assert references <= ids


def test_the_same_figure_is_the_same_text():
    assert figure() == figure()


def test_a_name_with_what_xml_forbids_is_drawn_without_it():
    with new_figure() as (figure, axes):
        axes.set_title("a\x07\x00 b")
        svg = as_svg(figure, "n", "a\x07 b")
    assert "a b" in svg
    assert "\x00" not in svg
