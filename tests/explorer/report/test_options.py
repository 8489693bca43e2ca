"""What `suprank report` and `suprank.report` hand on to the page."""

import pytest

import suprank
from suprank.explorer import Source
from suprank.explorer.report import report_page
from tests.cli.collection import done, refused


@pytest.mark.usefixtures("undrawn")
def test_the_command_and_the_function_write_the_page_with_the_chosen_classes(runs, tmp_path):
    page = report_page(Source.read(runs[0]), queries=1, top=2, map_classes=3, map_images=5)
    assert "“Show images” adds 5 single images" in page
    assert "The map shows the 3 classes with the most images, of 6" in page
    out = tmp_path / "command.html"
    done("report", runs[0], "--out", out, "--queries", 1, "--top", 2, "--map-classes", 3, "--map-images", 5, "-q")
    assert out.read_text(encoding="utf-8") == page
    written = suprank.report(runs[0], out=tmp_path / "function.html", queries=1, top=2, map_classes=3, map_images=5)
    assert written.read_text(encoding="utf-8") == page


def test_a_negative_number_of_classes_is_refused_before_any_work(runs, tmp_path):
    assert "--map-classes" in refused("report", runs[0], "--out", tmp_path / "page.html", "--map-classes", -1, "-q")
    with pytest.raises(ValueError, match="map_classes=-1 must be a number of classes, or 0 for all"):
        suprank.report(runs[0], out=tmp_path / "page.html", map_classes=-1)
    assert not (tmp_path / "page.html").exists()
