"""What the files of a training run say: the logged curves, and the step function of the loss."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from suprank import open_data
from suprank.explorer.findings import loss_step, training_history
from suprank.ranking import SupStep
from tests.explorer import runs


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return runs.collection(tmp_path_factory.mktemp("data"))


def test_losses_rates_and_metrics_are_told_apart(tmp_path, pictures):
    found = training_history(open_data(runs.run(tmp_path / "r", pictures)))
    assert list(found.losses) == ["loss", "SupHAP", "ProxySoftmax"]
    assert found.losses["loss"].steps.tolist() == list(range(1, 11))
    assert math.isnan(found.losses["ProxySoftmax"].values[2]), "null is a value that was not finite"
    assert list(found.rates) == ["backbone"]
    assert found.metrics["H-AP"].epochs.tolist() == [0, 1, 2]
    assert "AP/group" in found.metrics
    assert set(found.others) == {"gradient norm", "gradient norm of proxies", "images per second"}


def test_only_this_test_sets_metrics_are_shown(tmp_path, pictures):
    data = open_data(runs.run(tmp_path / "r", pictures))
    with (tmp_path / "r/metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "epoch": 2, "time": 0, "fine/H-AP": 0.5}\n{"step": 11, "lo')  # torn: of a run in progress
    origin = replace(data.origin, test="fine", recipe={"data": {"tests": {"fine": "f.parquet"}}})
    found = training_history(replace(data, origin=origin))
    assert list(found.metrics) == ["H-AP"]
    assert found.metrics["H-AP"].values.tolist() == [0.5]
    assert not any("/" in name for name in found.others)


def test_without_lines_there_is_no_history(tmp_path, pictures):
    assert training_history(open_data(runs.embeddings(tmp_path / "e", pictures))) is None
    folder = runs.run(tmp_path / "r", pictures)
    (folder / "metrics.jsonl").unlink()
    assert training_history(open_data(folder)) is None


def test_the_papers_step_at_the_gaps_where_it_bends():
    found = loss_step({"loss": {"name": "roadmap", "tau": 0.01, "rho": 100.0, "delta": 0.05}})
    gap, value = found.upper_bound.gap, found.upper_bound.value
    assert value[gap == 0] == pytest.approx(1)
    assert value[np.searchsorted(gap, 0) - 1] == pytest.approx(0.5)
    assert value[gap == 0.1] == pytest.approx(100 * 0.05 + 1 / (1 + np.exp(-5)) + 0.5)
    assert found.upper_bound.derivative[gap > 0.05] == pytest.approx(100)
    assert found.upper_bound.jumps == (0.0,)
    assert found.is_bound
    assert found.sigmoid.value[gap == 0] == pytest.approx(0.5)
    assert (value == SupStep()(torch.from_numpy(gap)).numpy()).all()


def test_the_authors_recipes_jump_elsewhere():
    sop = loss_step({"loss": {"name": "sup-ap", "value_at_delta": 1.44}})
    assert sop.upper_bound.jumps == (0.0, 0.05)
    assert sop.is_bound
    inaturalist = loss_step({"loss": {"name": "happier", "jump": 0, "value_at_delta": 1.0}})
    assert inaturalist.upper_bound.jumps == (0.05,)
    assert not inaturalist.is_bound
    assert inaturalist.parameters["value_at_delta"] == 1.0


UPPER_BOUND = "sup-ap sup-recall sup-hap sup-ndcg roadmap rod-recall happier rod-ndcg"
SIGMOID = "smooth-ap smooth-recall smooth-hap smooth-ndcg"
NO_STEP = (
    "pair-calibration nsm fast-ap softbin-ap blackbox-ap triplet-sh triplet-dw supcon siglip circle contrastive-xbm "
    "multi-similarity proxy-nca proxy-anchor arcface cosface csl sum-triplet-sh sum-nsm sum-proxy-nca mine.py:MyLoss"
)


def test_every_loss_of_the_paper_has_its_step_and_no_other_has():
    for name in UPPER_BOUND.split():
        assert loss_step({"loss": {"name": name}}).upper_bound is not None, name
    for name in SIGMOID.split():
        assert loss_step({"loss": {"name": name}}).upper_bound is None, name
    for name in NO_STEP.split():
        assert loss_step({"loss": {"name": name}}) is None, name


def test_a_smooth_loss_has_its_sigmoid_alone():
    found = loss_step({"loss": {"name": "smooth-ap", "tau": 0.05}})
    assert found.parameters == {"tau": 0.05}
    assert found.sigmoid.value[found.sigmoid.gap == 0] == pytest.approx(0.5)
    assert not found.is_bound


def test_without_a_recipe_there_is_none():
    assert loss_step(None) is None
    assert loss_step({}) is None
