import pytest

from suprank.experiments.sweep import running
from tests.experiments.sweep.runs import trainer_command


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, empty; training is the stand-in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "train_command", trainer_command)
    monkeypatch.setattr(running, "POLL_SECONDS", 0.01)
    return tmp_path
