"""A small project, an annotator on its page, and the page on a real port."""

import threading
from contextlib import contextmanager

import pytest

from suprank.hierarchy.review import opened_branch
from suprank.hierarchy.review.web import create_app
from suprank.web.serving import address_of, bound, server_of
from tests.hierarchy.review.small import small_project
from tests.hierarchy.review.web.browsing import Annotator


@pytest.fixture
def project(tmp_path):
    return small_project(tmp_path / "project")


@pytest.fixture
def anna(project):
    return Annotator(project, opened_branch(project, "anna"))


@contextmanager
def served(project, names):
    """The page on a real port, in a thread; its address."""
    listening = bound("127.0.0.1", 0)
    listening.listen(128)
    server = server_of(create_app(project, names))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield address_of(listening, "127.0.0.1")
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
