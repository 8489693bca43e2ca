"""The logged curves of a training run."""

import math
from dataclasses import replace

import pytest

from suprank import open_data
from suprank.explorer.findings.training_run import training_history
from tests.explorer import runs


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return runs.collection(tmp_path_factory.mktemp("data"))


def test_the_loss_is_by_step_and_metrics_are_by_epoch(tmp_path, pictures):
    folder = runs.run(tmp_path / "r", pictures)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 0, "epoch": 0, "time": 0, "loss": null}\n')
    found = training_history(open_data(folder))
    assert found.loss.epochs.tolist() == [step / 5 for step in range(11)]
    assert math.isnan(found.loss.values[0]), "null is a value that was not finite"
    assert found.loss.values[1:].tolist() == [1 / step for step in range(1, 11)]
    assert found.metrics["H-AP"].epochs.tolist() == [0, 1, 2]
    assert "AP/group" in found.metrics


def test_only_this_test_sets_metrics_are_shown(tmp_path, pictures):
    data = open_data(runs.run(tmp_path / "r", pictures))
    with (tmp_path / "r/metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "epoch": 2, "time": 0, "fine/H-AP": 0.5}\n{"step": 11, "lo')  # torn: of a run in progress
    origin = replace(data.origin, test="fine", recipe={"data": {"tests": {"fine": "f.parquet"}}})
    found = training_history(replace(data, origin=origin))
    assert list(found.metrics) == ["H-AP"]
    assert found.metrics["H-AP"].values.tolist() == [0.5]


def test_without_lines_there_is_no_history(tmp_path, pictures):
    assert training_history(open_data(runs.embeddings(tmp_path / "e", pictures))) is None
    folder = runs.run(tmp_path / "r", pictures)
    (folder / "metrics.jsonl").unlink()
    assert training_history(open_data(folder)) is None
