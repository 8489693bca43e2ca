"""A small project, an annotator on its pages, and a server on a real port."""

import threading
from contextlib import contextmanager

import pytest

from suprank.hierarchy.review import open_branch
from suprank.hierarchy.review.web import create_app
from suprank.web.serving import bind_socket, make_server, server_url
from tests.hierarchy.review.small_project import small_project
from tests.hierarchy.review.web.annotator import Annotator


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


@contextmanager
def served(project, names, *middleware):
    """Serve the review on a real port, in a thread, and yield its URL."""
    listening = bind_socket("127.0.0.1", 0)
    listening.listen(128)
    app = create_app(project, names)
    for one in middleware:
        app.add_middleware(one)
    server = make_server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield server_url(listening, "127.0.0.1")
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
