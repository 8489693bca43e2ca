"""What is searched, what is suggested next, and that stored trials come back as they were."""

from pathlib import Path

import numpy as np
import pytest

from suprank.experiments.trials import (
    Trial,
    TrialStorage,
    best_trial,
    default_space,
    parse_space,
    recipe_value,
    startup_trials,
    suggest,
)
from suprank.training.loss_specs import loss_specs
from suprank.training.search_space import Choices, FloatRange
from tests.experiments.runs import config

SPACE = {"optimizer.lr": FloatRange(1e-5, 1e-3, log=True), "batch.images_per_class": Choices((2, 4, 8))}


def searched(space, trials, value, stored=()):
    """The trials of a whole search, of which some are there already."""
    found = list(stored)
    for number in range(len(found), trials):
        params = suggest(space, found, number, trials)
        found.append(Trial(number, params, (value(params), value(params)), 1.0))
    return found


def near(params):
    """Highest at a rate of 0.0003 with four images a class."""
    return 0.9 - abs(np.log10(params["optimizer.lr"] / 3e-4)) / 10 - 0.1 * (params["batch.images_per_class"] != 4)


def test_the_space_has_rates_and_images_per_class_and_what_the_loss_declares():
    space = default_space(config(optimizer={"lr": 2e-4}))
    assert {key: str(one) for key, one in space.items()} == {
        "optimizer.lr": "2e-05:0.002:log",
        "proxies.lr": "0.001:0.1:log",
        "batch.images_per_class": "2,4,8",
        "loss.tau": "0.002:0.1:log",
        "loss.temperature": "0.02:0.2:log",
        "loss.weight": "0.02:0.9",
    }
    pairs = default_space(config(loss={"name": "roadmap", "decomposability": "pairs"}))
    assert "proxies.lr" not in pairs
    assert "loss.temperature" not in pairs
    assert "loss.negative_ceiling" in pairs


def test_a_range_is_widened_to_the_recipes_own_value():
    space = default_space(
        config(loss={"name": "roadmap", "weight": 0.0, "tau": 0.5}, batch={"size": 96, "images_per_class": 3})
    )
    assert space["loss.weight"] == FloatRange(0.0, 0.9)
    assert space["loss.tau"] == FloatRange(0.002, 0.5, log=True)
    assert space["batch.images_per_class"] == Choices((3, 2, 4, 8))


@pytest.mark.parametrize("name", loss_specs())
def test_every_loss_declares_ranges_around_its_defaults_whose_ends_it_takes(name):
    spec = loss_specs()[name]
    space = spec().search_space()
    assert space, "the baselines are tuned as well"
    for key, one in space.items():
        own = key.removeprefix("loss.")
        assert one.including(getattr(spec(), own)) == one
        for end in one.ends:
            spec.model_validate({"name": name, own: end})


def test_a_loss_of_ones_own_declares_its_ranges_in_its_class(folder):
    (folder / "mine.py").write_text(
        "from torch import nn\nfrom suprank.training import FloatRange\n"
        "class MyLoss(nn.Module):\n    search_space = {'margin': FloatRange(0.1, 0.4), 'scale': FloatRange(1, 9)}\n"
        "    def __init__(self, embedding_size, margin=0.2, scale=2.0):\n        super().__init__()\n"
        "        self.proxies = nn.Linear(embedding_size, 2)\n"
    )
    own = config(loss={"name": "mine.py:MyLoss", "arguments": {"scale": 3.0}})
    space = default_space(own)
    assert space["loss.arguments.margin"] == FloatRange(0.1, 0.4)
    assert "proxies.lr" in space, "it has parameters"
    assert recipe_value(own, "loss.arguments.scale") == 3.0
    assert recipe_value(own, "loss.arguments.margin") == 0.2
    (folder / "odd.py").write_text("class MyLoss:\n    search_space = {'margin': (0, 1)}\n    __call__ = print\n")
    with pytest.raises(ValueError, match="odd.py:MyLoss: search_space=.* must map arguments to FloatRange or Choices"):
        default_space(config(loss={"name": "odd.py:MyLoss"}))


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("loss.tau", "must be KEY=LOW:HIGH"),
        ("tau=0:1", "must be KEY=LOW:HIGH"),
        ("loss.tau=1:0", "a range from 1 to 0 is empty"),
        ("loss.tau=0:1:log", "must begin above 0"),
        ("loss.tau=0:1:ln", "LOW:HIGH, or LOW:HIGH:log"),
        ("loss.tau=a:b", "could not convert"),
        ("loss.tau=3", "two or more different values"),
        ("loss.tau=3,3", "two or more different values"),
    ],
)
def test_what_is_no_range_is_refused(argument, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_space([argument])


def test_a_key_is_given_once():
    with pytest.raises(ValueError, match="once for a key"):
        parse_space(["loss.tau=0:1", "loss.tau=0:2"])


# Suggestions


def test_a_search_is_the_same_whenever_it_is_interrupted():
    whole = searched(SPACE, 9, near)
    for stored in range(1, 9):
        assert searched(SPACE, 9, near, whole[:stored]) == whole


def test_the_first_trials_do_not_wait_for_others_and_later_ones_learn_from_them():
    assert startup_trials(12) == 4
    assert [startup_trials(trials) for trials in (2, 3, 30, 90)] == [2, 3, 10, 10]
    whole = searched(SPACE, 12, near)
    assert [suggest(SPACE, (), number, 12) for number in range(1, 4)] == [trial.params for trial in whole[1:4]]
    assert suggest(SPACE, searched(SPACE, 4, lambda params: 0.5), 4, 12) != whole[4].params


def test_random_trials_draw_the_same_rates_for_every_recipe():
    more = {**SPACE, "loss.tau": FloatRange(0.01, 0.1)}
    assert suggest(SPACE, (), 1, 9)["optimizer.lr"] == suggest(more, (), 1, 9)["optimizer.lr"]


def test_suggestions_are_in_their_ranges_short_to_write_and_come_near_the_best():
    whole = searched(SPACE, 30, near)
    rates = [trial.params["optimizer.lr"] for trial in whole]
    assert all(1e-5 <= rate <= 1e-3 and rate == float(f"{rate:.3g}") for rate in rates)
    assert 1e-4 < best_trial(whole).params["optimizer.lr"] < 9e-4
    assert sum(trial.params["batch.images_per_class"] == 4 for trial in whole[10:]) > 10


# Storage


def test_stored_trials_come_back_as_they_were(folder):
    storage = TrialStorage(folder)
    assert storage.load("nsm", SPACE) == []
    params = {"optimizer.lr": 1e-4, "batch.images_per_class": 4}
    good, bad = Trial(0, params, (0.25, 0.5), 3.5), Trial(1, params, (0.75, None), 1.0, "its loss was nan")
    storage.add("nsm", SPACE, good)
    storage.add("nsm", SPACE, bad)
    assert TrialStorage(folder).load("nsm", SPACE) == [good, bad]
    assert storage.load("roadmap", SPACE) == []
    assert (good.value, bad.value) == (0.375, 0.0)
    assert best_trial([bad]) is None
    assert best_trial([bad, good, good._replace(number=2)]) is good, "the first of equals"
    with pytest.raises(ValueError, match="has trials of nsm in another space"):
        storage.load("nsm", {"optimizer.lr": SPACE["optimizer.lr"]})


@pytest.mark.parametrize("content", ["nonsense\n{}\n", '{"op_code": 0, "work'])
def test_a_journal_that_is_none_or_was_cut_off_is_refused_in_a_sentence(folder, content):
    Path("optuna.journal").write_text(content)
    with pytest.raises(ValueError, match="optuna.journal is damaged .* delete it"):
        TrialStorage(folder).load("nsm", SPACE)
