"""What a run measured on its way."""

import math

from suprank.explorer import Source
from suprank.explorer.findings import history
from tests.explorer import runs


def test_losses_rates_and_metrics_are_told_apart(tmp_path):
    found = history(Source.read(runs.run(tmp_path / "r", runs.collection(tmp_path / "d"))))
    assert list(found.losses) == ["loss", "SupHAP", "ProxySoftmax"]
    assert found.losses["loss"].steps.tolist() == list(range(1, 11))
    assert math.isnan(found.losses["ProxySoftmax"].values[2]), "null is a value that was not finite"
    assert list(found.rates) == ["backbone"]
    assert found.metrics["H-AP"].epochs.tolist() == [0, 1, 2]
    assert "AP/group" in found.metrics
    assert set(found.others) == {"gradient norm", "images per second"}


def test_only_this_test_sets_metrics_are_shown(tmp_path):
    source = Source.read(runs.run(tmp_path / "r", runs.collection(tmp_path / "d")))
    lines = [*source.curves, {"step": 10, "epoch": 2, "time": 0, "fine/H-AP": 0.5}]
    recipe = {"data": {"tests": {"fine": "f.parquet"}}}
    other = Source("r", (), {}, source.queries, source.gallery, test="fine", recipe=recipe, curves=lines)
    found = history(other)
    assert list(found.metrics) == ["H-AP"]
    assert found.metrics["H-AP"].values.tolist() == [0.5]
    assert not any("/" in name for name in found.others)


def test_without_lines_there_is_no_history(tmp_path):
    pictures = runs.collection(tmp_path / "d")
    assert history(Source.read(runs.embeddings(tmp_path / "e", pictures))) is None
    folder = runs.run(tmp_path / "r", pictures)
    (folder / "metrics.jsonl").unlink()
    assert history(Source.read(folder)) is None
