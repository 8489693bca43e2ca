"""What `suprank report` and `suprank.report` hand on to the page."""

import re

import pytest

import suprank
from suprank import open_data
from suprank.explorer.report import report_page
from suprank.workflows.reports import read_summary
from tests.cli.collection import done, refused
from tests.explorer.report.reading import of, parsed


@pytest.mark.usefixtures("undrawn")
def test_the_command_and_the_function_write_the_page_with_the_chosen_classes(runs, tmp_path):
    page = report_page(open_data(runs[0]), queries=1, top=2, map_classes=3, map_images=5)
    assert "“Show images” adds 5 single images" in page
    assert "The map shows the 3 classes with the most images, of 12" in page
    out = tmp_path / "command.html"
    done("report", runs[0], "--out", out, "--queries", 1, "--top", 2, "--map-classes", 3, "--map-images", 5, "-q")
    assert out.read_text(encoding="utf-8") == page
    written = suprank.report(runs[0], out=tmp_path / "function.html", queries=1, top=2, map_classes=3, map_images=5)
    assert written.read_text(encoding="utf-8") == page


@pytest.mark.usefixtures("undrawn")
def test_the_authors_summary_is_a_text_or_a_file_and_is_shown_as_text(runs, tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("\ufeffWe take <b>this</b> one.\n\nAsk Zoë.\n", encoding="utf-8")
    out = tmp_path / "command.html"
    done("report", runs[0], "--out", out, "--queries", 1, "--top", 1, "--summary", file, "-q")
    page = parsed(out.read_text(encoding="utf-8"))
    (summary,) = of(page, "div", class_="summary")
    assert summary.within(id="verdict")
    assert [one.text for one in of(page, "p") if summary in one.above] == ["We take <b>this</b> one.", "Ask Zoë."]
    (lead,) = of(page, "p", class_="lead")
    assert page.index(summary) < page.index(lead)
    assert not of(parsed(report_page(open_data(runs[0]), queries=1, top=1)), "div", class_="summary")


def test_a_summary_is_read_from_a_file_only_if_there_is_one(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("from the file")
    assert read_summary(file) == read_summary(str(file)) == "from the file"
    assert read_summary("One sentence about a.txt") == "One sentence about a.txt"
    assert read_summary("long " * 900) == "long " * 900, "too long for the name of a file"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe\x00", "not a text file in UTF-8"),
        (b" \n", "summary is empty"),
        (b"a" * 5001, "has 5,001 characters, but at most 5,000"),
        (None, "there is no summary file .*; give an existing text file, or the text itself"),
    ],
)
def test_a_summary_that_cannot_be_shown_is_refused_before_any_work(tmp_path, content, words):
    file = tmp_path / "summary.md"
    if content is not None:
        file.write_bytes(content)
    assert re.search(words, " ".join(refused("report", tmp_path, "--summary", file, "-q").split()))
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        suprank.report(tmp_path / "no run", out=tmp_path / "page.html", summary=str(file))


def test_a_negative_number_of_classes_is_refused_before_any_work(runs, tmp_path):
    assert "--map-classes" in refused("report", runs[0], "--out", tmp_path / "page.html", "--map-classes", -1, "-q")
    with pytest.raises(ValueError, match="map_classes=-1 must be a number of classes, or 0 for all"):
        suprank.report(runs[0], out=tmp_path / "page.html", map_classes=-1)
    assert not (tmp_path / "page.html").exists()
