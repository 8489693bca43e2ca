"""What is searched, what is suggested next, and that stored trials come back as they were."""

from pathlib import Path

import numpy as np
import pytest

from suprank.experiments.trials import (
    Study,
    Trial,
    best_trial,
    default_space,
    parse_space,
    recipe_value,
    startup_trials,
    stored_trials,
)
from suprank.training.loss_specs import loss_specs
from suprank.training.search_space import Choices, FloatRange
from tests.experiments.runs import config

SPACE = {"optimizer.lr": FloatRange(1e-5, 1e-3, log=True), "batch.images_per_class": Choices((2, 4, 8))}


OWN = {"optimizer.lr": 1e-4, "batch.images_per_class": 4}


def searched(folder, trials, value, *, name="nsm", space=SPACE, own=OWN):
    """The trials of a whole search, of which some may be in the folder already."""
    folder.mkdir(exist_ok=True)
    study = Study(folder, name, space, own, trials)
    while new := list(study.ask()):
        for number, params in new:
            study.tell(Trial(number, params, (value(params), value(params)), 1.0))
    return stored_trials(folder, name)


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


# Studies


class Killed(BaseException):
    pass


def killed_searches(folder, trials, kills):
    """A search that is killed at each of these calls of the storage, counted from the one before; and its trials."""
    from optuna.storages import JournalStorage

    calls, write = {"left": 0}, JournalStorage._write_log

    def written(storage, *arguments):
        calls["left"] -= 1
        if calls["left"] == 0:
            raise Killed
        return write(storage, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JournalStorage, "_write_log", written)
        for kill in kills:
            calls["left"] = kill
            with pytest.raises(Killed):
                searched(folder, trials, near)
    return searched(folder, trials, near)


def test_a_search_that_is_killed_anywhere_has_the_trials_of_one_that_is_not(folder):
    whole = searched(folder / "whole", 12, near)
    assert [trial.number for trial in whole] == list(range(12))
    for kill in range(1, 45):  # every write: of the study, of the enqueued trial, between ask and tell, in the middle of ask
        assert killed_searches(folder / str(kill), 12, [kill]) == whole, f"killed at write {kill}"
    for number, kills in enumerate([(3, 20, 20), (1, 2, 3), (10, 11, 30), (6, 40, 5)]):
        assert killed_searches(folder / f"three {number}", 12, kills) == whole


def test_the_first_trials_do_not_wait_for_others_and_later_ones_learn_from_them(folder):
    assert startup_trials(12) == 4
    assert [startup_trials(trials) for trials in (2, 3, 30, 90)] == [2, 3, 10, 10]
    whole = searched(folder / "near", 12, near)
    other = searched(folder / "other", 12, lambda params: 1 - near(params))
    (folder / "new").mkdir()
    assert [number for number, _ in Study(folder / "new", "nsm", SPACE, OWN, 12).ask()] == [0, 1, 2, 3]
    assert whole[0].params == OWN, "the recipe as it is"
    assert [trial.params for trial in whole[:4]] == [trial.params for trial in other[:4]]
    assert [trial.params for trial in whole[4:]] != [trial.params for trial in other[4:]]


def test_random_trials_draw_the_same_rates_for_every_recipe(folder):
    more = {**SPACE, "loss.tau": FloatRange(0.01, 0.1)}
    one = searched(folder, 3, near)
    other = searched(folder, 3, near, name="csl", space=more, own={**OWN, "loss.tau": 0.02})
    assert [trial.params["optimizer.lr"] for trial in one] == [trial.params["optimizer.lr"] for trial in other]
    assert len({trial.params["optimizer.lr"] for trial in one}) == 3


def test_suggestions_are_in_their_ranges_short_to_write_and_come_near_the_best(folder):
    whole = searched(folder, 30, near)
    rates = [trial.params["optimizer.lr"] for trial in whole]
    assert all(1e-5 <= rate <= 1e-3 and rate == float(f"{rate:.3g}") for rate in rates)
    assert 1e-4 < best_trial(whole).params["optimizer.lr"] < 9e-4
    assert sum(trial.params["batch.images_per_class"] == 4 for trial in whole[10:]) > 10


def test_stored_trials_come_back_as_they_were_and_optuna_says_what_it_said_before(folder, capfd):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.INFO)
    assert stored_trials(folder, "nsm") == []
    study = Study(folder, "nsm", SPACE, OWN, 2)
    assert [number for number, _ in study.ask()] == [0, 1]
    good, bad = Trial(0, OWN, (0.25, 0.5), 3.5), Trial(1, OWN, (0.75, None), 1.0, "its loss was nan")
    study.tell(good)
    study.tell(bad._replace(params={}))
    first, second = stored_trials(folder, "nsm")
    assert first == good
    assert second == bad._replace(params=second.params)
    assert stored_trials(folder, "roadmap") == []
    assert (good.value, bad.value) == (0.375, 0.0)
    assert best_trial([bad]) is None
    assert best_trial([bad, good, good._replace(number=2)]) is good, "the first of equals"
    with pytest.raises(ValueError, match="has trials of nsm in another space"):
        Study(folder, "nsm", {"optimizer.lr": SPACE["optimizer.lr"]}, OWN, 2)
    assert optuna.logging.get_verbosity() == optuna.logging.INFO
    assert capfd.readouterr().err == ""


def test_a_journal_that_was_cut_off_is_read_to_the_last_whole_line_and_one_of_nonsense_is_refused(folder):
    whole = searched(folder, 4, near)
    journal = folder / "optuna.journal"
    Path(f"{journal}.lock").touch()  # of a process that was killed while it wrote
    with journal.open("a") as file:
        file.write('{"op_code": 0, "work')
    assert searched(folder, 4, near) == whole
    journal.write_text("nonsense\n{}\n")
    with pytest.raises(ValueError, match="optuna.journal is damaged .* delete it"):
        stored_trials(folder, "nsm")
