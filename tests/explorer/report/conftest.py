"""Pages of small runs, made once."""

import pytest
from markupsafe import Markup

from suprank import open_data
from suprank.explorer.report import figures, report_page
from tests.explorer.report.reading import parsed
from tests.explorer.runs import collection, run


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Two folders of runs on the same 24 pictures, 12 classes in 3 groups, one called <script>; and the pictures."""
    folder = tmp_path_factory.mktemp("report")
    manifest = collection(folder / "data", classes=4, images=2)
    return (
        run(folder / "better", manifest, noise=0.8),
        run(folder / "worse", manifest, loss="smooth-ap", noise=2.5, seed=1),
        manifest,
    )


@pytest.fixture(scope="session")
def page(runs):
    """The report of both."""
    better, worse, _ = runs
    return report_page(open_data(better), open_data(worse), queries=4, top=5)


@pytest.fixture(scope="session")
def elements(page):
    """The elements of the page of both."""
    return parsed(page)


@pytest.fixture
def undrawn(monkeypatch):
    """Figures without their drawing, which takes most of the time of a page: for tests of everything else."""
    monkeypatch.setattr(figures, "as_svg", lambda figure, name, title: Markup('<svg id="{}"></svg>').format(name))
