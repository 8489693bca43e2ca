import pytest

from suprank.experiments.experiment import Executor
from tests.experiments.runs import pretend, training_by


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, empty; training is `pretend`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Executor, "train", training_by(pretend))
    return tmp_path
