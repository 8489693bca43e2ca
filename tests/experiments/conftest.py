import pytest

from suprank.experiments.experiment import Executor
from tests.experiments.runs import pretend, training_by


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    """The working folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder; training is `pretend`."""
    monkeypatch.setattr(Executor, "train", training_by(pretend))
    return tmp_path
