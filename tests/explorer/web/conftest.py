"""The drawn collection, once for all tests of the page, and a client without a network."""

import io

import pytest
from starlette.testclient import TestClient

from suprank.explorer.web import create_app
from tests.explorer.web import drawn
from tests.web.pages import serving


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    return drawn.manifest(tmp_path_factory.mktemp("drawn"))


@pytest.fixture(scope="session")
def one(images):
    return drawn.explorer(images)


@pytest.fixture(scope="session")
def two(images):
    return drawn.explorer(images, two=True)


@pytest.fixture(scope="session")
def client(one):
    return client_of(one)


def client_of(explorer, host="127.0.0.1"):
    return TestClient(create_app(explorer, host=host), base_url=f"http://{host}:8000", raise_server_exceptions=False)


def png(picture):
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def send_upload(client, data, name="a.png"):
    return client.post("/upload", files={"image": (name, data, "image/png")})


def served(explorer):
    """The page on a real port."""
    return serving(create_app(explorer))
