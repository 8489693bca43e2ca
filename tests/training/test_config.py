"""The settings of a run: what they refuse, and what they make of each other."""

import pytest
import torch
from pydantic import ValidationError

from suprank.training.config import TrainConfig


def config(**tables):
    tables.setdefault("loss", {"name": "roadmap"})
    return TrainConfig.model_validate({"data": {"manifest": "m.parquet"}, **tables})


def test_nothing_can_be_changed_afterwards():
    with pytest.raises(ValidationError, match="frozen"):
        config().run.epochs = 3


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"loss": {"name": "softbin-ap", "bins": 1}}, "bins=1 must be a whole number from 2 on"),
        ({"loss": {"name": "arcface"}, "memory": {"size": 100}}, "of no use to arcface"),
        ({"loss": {"name": "triplet-sh"}, "proxies": {"lr": 1.0}}, r"\[proxies\] is set, but triplet-sh has no proxies"),
        ({"loss": {"name": "sup-hap", "level_weights": [1, 1], "decay": 2.0}}, "leave one out"),
        ({"loss": {"name": "sup-hap", "level_weights": "some"}}, "'equal'"),
        ({"loss": {"name": "roadmap", "average": "violating"}}, "average has no effect with decomposability='proxies'"),
        (
            {"loss": {"name": "roadmap", "decomposability": "pairs", "temperature": 0.1}},
            "temperature has no effect with decomposability='pairs'; leave it out, or set decomposability='proxies'",
        ),
        ({"batch": {"size": 30, "images_per_class": 4}}, "batch.size=30 must be a multiple of batch.images_per_class=4"),
        ({"batch": {"level": "genus"}}, "level has no effect with the m-per-class sampler"),
        (
            {"batch": {"sampler": "hierarchical", "max_images_per_class": 8}},
            "max_images_per_class has no effect",
        ),
        ({"memory": {"size": 10}, "loss": {"name": "nsm"}}, "of no use to nsm, which does not compare images"),
        ({"memory": {"size": 10, "per_item": True}}, 'size=10 must be "all"'),
        ({"memory": {"start_epoch": 3}}, "start_epoch has no effect without a memory"),
        (
            {"data": {"manifest": "m.csv", "cache_folder": "decoded"}},
            "cache_folder has no effect without cache_images or crop_on",
        ),
        ({"optimizer": {"schedule": "steps"}}, "needs milestones"),
        ({"optimizer": {"min_lr": 1e-6, "schedule": "constant"}}, "min_lr has no effect with schedule='constant'"),
        ({"optimizer": {"momentum": 0.5}}, "momentum has no effect with the optimizer adam"),
        ({"run": {"epochs": 3, "frozen_epochs": 3}}, "run.frozen_epochs=3 must be fewer than run.epochs=3"),
        ({"loss": {"name": "sup-ap"}, "run": {"frozen_epochs": 1}}, "would train nothing, since there is no projection"),
        ({"model": {"start": "folder", "dim": 8}}, "start brings a whole embedder, so dim must be left out"),
        ({"model": {"image_size": 64}}, r"image_size must be left out: the table \[images\] of the recipe sets it"),
        ({"model": {"squash": True}}, r"squash must be left out: the table \[images\] of the recipe sets it"),
        ({"model": {"precision": "bf16"}}, r"precision must be left out: the table \[engine\] of the recipe sets it"),
        ({"images": {"size": 10**9, "test_resize": 0}}, "less than or equal to 8192"),
        ({"images": {"size": 64, "test_resize": 32}}, "test_resize=32 must be size=64 or more, or 0"),
        ({"images": {"crop_scale": (1, 0.5)}}, r"crop_scale=\[1.0, 0.5\] must have the smaller number first; try \[0.5, 1.0\]"),
        ({"images": {"crop_scale": (0.5, 2)}}, "crop_scale=.* must be shares of the area, 1 at most"),
        ({"images": {"crop_ratio": (2, 1)}}, "crop_ratio=.* must have the smaller number first"),
        ({"data": {"manifest": "m", "levels": []}}, "must be one or more levels, once each"),
        ({"data": {"manifest": "m", "levels": ["a", "a"]}}, "must be one or more levels, once each"),
        (
            {"data": {"manifest": "m", "levels": ["a", "b"]}, "batch": {"sampler": "hierarchical", "level": "a"}},
            "batch.level='a' must be one of data.levels=.*, and not the finest",
        ),
        ({"batch": {"max_images_per_class": 6}}, "batch.max_images_per_class=6 must be .*; try 4 or 8"),
        (
            {"batch": {"sampler": "hierarchical", "coarse_per_batch": 3, "size": 8}},
            "batch.coarse_per_batch=3 must be 2 at most: batch.size=8 has room",
        ),
        ({"loss": {"name": "rod-recall", "ks": []}}, r"ks=\(\) must be one or more cut-offs"),
        ({"loss": {"name": "arcface", "margin": 4}}, "margin=4.0 must be an angle between 0 and π"),
        ({"loss": {"name": "csl", "margins": [0.1, float("nan")]}}, "must be 2 finite numbers"),
        ({"evaluation": {"metrics": ["hap5"]}}, "unknown metric 'hap5'; the nearest known name is H-AP"),
        ({"evaluation": {"metrics": []}}, "metrics=.* is empty"),
        ({"evaluation": {"best": "bestness"}}, "unknown metric 'bestness'"),
        ({"evaluation": {"metrics": ["R@1"], "best": "AP"}}, "best='AP' is not among metrics=.*; add it there"),
        ({"evaluation": {"ks": []}}, r"ks=\[\] must be in ascending order, each once; try \[1, 10, 100\]"),
        ({"evaluation": {"ks": [4, 1, 4]}}, r"ks=\[4, 1, 4\] must be in ascending order, each once; try \[1, 4\]"),
        ({"evaluation": {"ks": [1, 2], "metrics": ["R@1"]}}, "has no effect, because metrics=.* names the cut-offs"),
        ({"evaluation": {"level_weights": {"species": 0}}}, "level_weights=.* must have a weight above 0"),
        ({"evaluation": {"level_weights": {"species": 1}, "metrics": ["AP"]}}, "is without wAP; add it"),
        ({"engine": {"accelerator": "cpu", "precision": "fp16"}}, "engine.precision='fp16' is for GPUs"),
        ({"engine": {"accelerator": "cpu", "replay_loss": True}}, "engine.replay_loss=true replays the loss on one GPU"),
        ({"engine": {"devices": 2, "replay_loss": True}}, "engine.replay_loss=true replays the loss on one GPU"),
        ({"engine": {"accelerator": "cpu", "strategy": "fsdp"}}, "engine.strategy='fsdp' shards a network over GPUs"),
    ],
)
def test_what_makes_no_sense_or_has_no_effect_is_refused(tables, message):
    with pytest.raises(ValidationError, match=message):
        config(**tables)


def test_reading_a_recipe_draws_no_random_numbers_of_the_process():
    state = torch.get_rng_state()
    config(loss={"name": "happier"})
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("best", ["R@1", "hit_rate@1", None])
def test_the_metric_that_decides_may_be_spelt_otherwise_than_in_the_list(best):
    assert config(evaluation={"metrics": ["hit_rate@1"], "best": best}).evaluation.best == best


def test_a_network_takes_the_recipes_images_for_its_own():
    made = config(images={"size": 224, "test_resize": 256, "interpolation": "bicubic"}, model={"dim": 8}).embedder
    assert (made.image_size, made.resize, made.interpolation, made.dim) == ((224, 224), 256, "bicubic", 8)
    assert config(images={"size": 96, "test_resize": 0}).embedder.resize == 0


def test_a_loss_of_ones_own_is_read_without_its_code():
    made = config(loss={"name": "nowhere.py:Mine", "arguments": {"margin": 0.3}}, memory={"size": 5}, proxies={"lr": 1.0})
    assert made.loss.arguments == {"margin": 0.3}
    assert TrainConfig.model_validate_json(made.model_dump_json()) == made
