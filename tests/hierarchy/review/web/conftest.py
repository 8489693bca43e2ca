"""A small project, an annotator on its pages, and a server on a real port."""

import pytest

from suprank.hierarchy.review import open_branch
from suprank.hierarchy.review.web import create_app
from tests.hierarchy.review.small_project import small_project
from tests.hierarchy.review.web.annotator import Annotator
from tests.web.pages import serving


@pytest.fixture
def project(tmp_path):
    return small_project(tmp_path / "project")


@pytest.fixture
def anna(project):
    return Annotator(project, open_branch(project, "anna"))


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """An annotator shared by tests that change nothing."""
    project = small_project(tmp_path_factory.mktemp("reader") / "project")
    return Annotator(project, open_branch(project, "anna"))


def served(project, names, *middleware):
    """The review on a real port."""
    app = create_app(project, names)
    for one in middleware:
        app.add_middleware(one)
    return serving(app)
