"""How far a recipe lets the network and the proxies go, beside the authors' settings.

Adam moves a weight by at most the rate in a step, so the sum of the rates bounds the way of a weight, and a proxy of norm n
turns by at most atan(rate · √dim / n). The authors' settings are from their repositories: SupRank d3d0e3c, ROADMAP fed37d7.
"""

from math import atan, degrees, hypot, sqrt
from typing import NamedTuple

import pytest

from suprank.paper.contents import contents
from suprank.paper.studies import Study
from suprank.training.config import OptimizerConfig, ProxiesConfig
from suprank.training.optimizers import learning_rate
from suprank.training.presets import presets
from suprank.training.recipe import read_recipe
from suprank.training.recipe_files import recipes_folder

STEPS = {"sop": 330, "cub": 24, "inat-base": 1_273, "inat-full": 1_273, "hgldv2": 1_457}
"""Of an epoch: batches of 256 that draw every training image once; on SOP 5 for each pair of categories."""

OURS = {"cub112": 24, "emoji": 16, "emoji48": 18, "emoji64": 18, "glyphs": 16, "omniglot40": 76, "omniglot56": 76, "photos": 16}
"""Presets that the authors do not have, with about the steps of an epoch."""

WITH_SGD = {"dyml-vehicle", "dyml-animal", "dyml-product"}
"""A gradient decides there how far a step goes, not the rate alone; the rates themselves are the authors' (test_recipes.py)."""


class Run(NamedTuple):
    """Steps and rates of a training run."""

    epochs: int
    steps: int
    backbone: OptimizerConfig
    frozen_epochs: int = 0

    @property
    def way(self) -> float:
        """The farthest that a weight of the backbone can go."""
        moving = range(self.frozen_epochs * self.steps, self.epochs * self.steps)
        return sum(_rates(self.backbone, self.epochs, self.steps, moving))


def _rates(config, epochs, steps, which):
    return (learning_rate(config, config.lr, step / steps, epochs, 1 / steps) for step in which)


def _turn(proxies, epochs, steps, dim=512) -> float:
    """Degrees by which a proxy can turn: drawn from ±1/√dim its norm is √⅓, and a step across it makes it longer."""
    norm, angle = sqrt(1 / 3), 0.0
    for rate in _rates(proxies, epochs, steps, range(epochs * steps)):
        angle += atan(rate * sqrt(dim) / norm)
        norm = hypot(norm, rate * sqrt(dim))
    return min(degrees(angle), 180)


def _cosine(lr, min_lr=0.0):
    return OptimizerConfig(lr=lr, min_lr=min_lr)


AUTHORS = {
    "sop": Run(100, 330, _cosine(5e-5), 5),  # SupRank, optimizer/sop.yaml and the README
    "cub": Run(200, 42, OptimizerConfig(lr=1e-6, schedule="constant")),  # README of ROADMAP, with batches of 128
    "inat-base": Run(100, 1_273, _cosine(1e-5, 1e-6), 5),  # SupRank, optimizer/inat.yaml and the README
    "inat-full": Run(100, 1_273, _cosine(1e-5, 1e-6), 5),
    "hgldv2": Run(40, 1_457, _cosine(1e-4)),  # SupRank, optimizer/gldv2.yaml
}

DIFFERS = {"hgldv2": "the paper's text has 1e-5, the authors' config 1e-4"}
"""Presets that allow less than a third of the authors' way, or more than three times, and why."""


def _run(name) -> Run:
    config = read_recipe(name)
    steps = STEPS[name.partition("/")[0]] if config.batch.batches is None else config.batch.batches
    return Run(config.run.epochs, steps, config.optimizer, config.run.frozen_epochs)


def test_every_preset_is_compared_or_has_no_setting_of_the_authors():
    assert STEPS.keys() == AUTHORS.keys()
    assert set(presets(recipes_folder())) == AUTHORS.keys() | OURS.keys() | WITH_SGD


@pytest.mark.parametrize("preset", AUTHORS)
def test_a_weight_can_go_as_far_as_with_the_authors_setting(preset):
    share = _run(f"{preset}/roadmap").way / AUTHORS[preset].way
    assert (not 1 / 3 <= share <= 3) == (preset in DIFFERS), f"{preset} allows {share:.2f} of it"


@pytest.mark.parametrize("preset", [*AUTHORS, *OURS])
@pytest.mark.parametrize("method", ["roadmap", "nsm", "happier", "csl", "proxy-nca"])
def test_proxies_can_turn_to_any_direction(preset, method):
    config = read_recipe(f"{preset}/{method}")
    assert config.proxies.name.startswith("adam")
    assert _turn(config.proxies, config.run.epochs, {**STEPS, **OURS}[preset], config.model.dim or 512) > 90


def test_proxies_with_the_rate_of_the_head_stand_still_on_cub():
    assert _turn(ProxiesConfig(lr=2e-6), 100, STEPS["cub"]) == pytest.approx(5.4, abs=0.1)


def test_the_study_of_batch_sizes_on_sop_draws_equally_many_images():
    study = Study.create(contents()["fig:relative_increase_sop"])
    images = []
    for training in study.trainings:
        batch = read_recipe(training.recipe, list(training.overrides)).batch
        images.append(batch.size * (batch.batches or STEPS["sop"]))
    assert set(images) == {84_480}
    assert len(images) == 10
