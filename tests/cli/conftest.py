"""One process of which all tests of a worker fork commands."""

import pytest

from tests.cli.forked import Forked


@pytest.fixture(scope="session")
def forked(tmp_path_factory):
    process = Forked(tmp_path_factory.mktemp("forked"))
    yield process
    process.close()
