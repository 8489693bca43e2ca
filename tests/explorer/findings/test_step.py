"""The step that a run's loss ranks by."""

import numpy as np
import pytest
import torch

from suprank.explorer.findings import step
from suprank.ranking import SupStep
from suprank.training.loss_names import LOSSES


def test_the_papers_step_at_the_gaps_where_it_bends():
    found = step({"loss": {"name": "roadmap", "tau": 0.01, "rho": 100.0, "delta": 0.05}})
    gap, value = found.bound.gap, found.bound.value
    assert value[gap == 0] == pytest.approx(1)
    assert value[np.searchsorted(gap, 0) - 1] == pytest.approx(0.5)
    assert value[gap == 0.1] == pytest.approx(100 * 0.05 + 1 / (1 + np.exp(-5)) + 0.5)
    assert found.bound.derivative[gap > 0.05] == pytest.approx(100)
    assert found.bound.jumps == (0.0,)
    assert found.bounds
    assert found.sigmoid.value[gap == 0] == pytest.approx(0.5)
    assert (value == SupStep()(torch.from_numpy(gap)).numpy()).all()


def test_the_authors_recipes_jump_elsewhere():
    sop = step({"loss": {"name": "sup-ap", "value_at_delta": 1.44}})
    assert sop.bound.jumps == (0.0, 0.05)
    assert sop.bounds
    inaturalist = step({"loss": {"name": "happier", "jump": 0, "value_at_delta": 1.0}})
    assert inaturalist.bound.jumps == (0.05,)
    assert not inaturalist.bounds
    assert inaturalist.parameters["value_at_delta"] == 1.0


def test_every_loss_of_the_paper_has_its_step_and_no_other_has():
    for name, loss in LOSSES.items():
        found = step({"loss": {"name": name}})
        kind = (loss.surrogate or "").partition("-")[0]
        assert (found is not None) == bool(kind), name
        if found is not None:
            assert (found.bound is not None) == (kind == "sup"), name


def test_a_smooth_loss_has_its_sigmoid_alone():
    found = step({"loss": {"name": "smooth-ap", "tau": 0.05}})
    assert found.parameters == {"tau": 0.05}
    assert found.sigmoid.value[found.sigmoid.gap == 0] == pytest.approx(0.5)
    assert not found.bounds


def test_without_a_recipe_there_is_none():
    assert step(None) is None
    assert step({}) is None
