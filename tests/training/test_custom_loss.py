"""A loss of the user's own: how it is found, built and called, and what a run that is resumed with it demands."""

import hashlib
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from suprank import losses
from suprank.system import custom_code
from suprank.system.custom_code import CustomCodeError, UserCodeError
from suprank.training import checkpoint
from suprank.training.custom_loss import CustomLoss, build_custom_loss
from suprank.training.learner import check_loss
from suprank.training.loop import train
from suprank.training.recipe import read_recipe
from tests.training.runs import Recorder, at_step, everything, pictures, recipe, same, signalled, weights

MINE = '''
import torch
from torch import nn

from my_helper import pull


class MyLoss(nn.Module):
    """Pulls images to the center of their class."""

    def __init__(self, num_classes, embedding_size, margin=0.2):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(num_classes, embedding_size))
        self.margin = margin

    def forward(self, embeddings, labels):
        scores = embeddings @ nn.functional.normalize(self.centers, dim=-1).T
        value = pull(scores, labels[:, 0], self.margin)
        self.log = {"share": (scores.argmax(1) == labels[:, 0]).float().mean(), "note": "no number"}
        return value


class Both:
    """No module, with a call that a memory can be given to."""

    def __call__(self, embeddings, labels, *, ref_emb=None, ref_labels=None, ids=None, ref_ids=None):
        return (embeddings @ (embeddings if ref_emb is None else ref_emb).T).mean()


def broken(embedding_size):
    raise ValueError("no such loss")


number = 3
'''

HELPER = """
from torch.nn.functional import cross_entropy

def pull(scores, fine, margin):
    return cross_entropy((scores - margin) / 0.1, fine)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, with a loss in a file and what it imports."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    Path("my_helper.py").write_text(HELPER)
    return tmp_path


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("pictures"))


SIZES = {"num_classes": 4, "embedding_size": 8}
BATCH = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), torch.arange(6)[:, None] % 4


# Finding and loading


def test_the_constructor_gets_the_sizes_that_it_names_and_the_arguments_of_the_recipe():
    made = build_custom_loss("mine.py:MyLoss", {"margin": 0.5}, SIZES).loss
    assert (made.centers.shape, made.margin) == ((4, 8), 0.5)
    assert build_custom_loss("mine.py:MyLoss", {"num_classes": 9}, SIZES).loss.centers.shape == (9, 8)
    assert build_custom_loss("mine.py:Both", {}, SIZES).loss(*BATCH).ndim == 0


def test_a_file_is_loaded_once_and_again_when_it_has_changed():
    first = custom_code.load("mine.py:MyLoss")
    assert custom_code.load("./mine.py:MyLoss") is first
    Path("mine.py").write_text(MINE.replace("0.2", "0.3"))
    assert custom_code.load("mine.py:MyLoss")(**SIZES).margin == 0.3


def test_annotations_of_a_file_stay_objects():
    Path("mine.py").write_text("def margin(squared: bool = False):\n    return 0.1")
    assert custom_code.load("mine.py:margin").__annotations__ == {"squared": bool}


def test_a_module_that_python_finds_needs_no_file():
    assert custom_code.load("suprank.losses.surrogate:SupAP") is losses.SupAP
    made = build_custom_loss("suprank.losses.decomposability:ProxySoftmax", {"temperature": 0.2}, SIZES).loss
    assert (made.num_classes, made.temperature) == (4, 0.2)
    source = custom_code.find_source("suprank.losses.surrogate:SupAP")
    assert source.path.name == "surrogate.py"


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        (
            "nowhere.py:MyLoss",
            {},
            "nowhere.py:MyLoss: there is no file .*nowhere.py; a path is relative to the working directory",
        ),
        ("no.such.module:MyLoss", {}, "Python finds no module 'no.such.module'; .* or name a file, no/such/module.py:MyLoss"),
        ("mine.py:", {}, "'mine.py:' should be FILE.py:NAME or package.module:NAME"),
        ("mine.py:YourLoss", {}, "mine.py has no YourLoss; it has Both, MyLoss, broken"),
        ("mine.py:number", {}, "mine.py:number is a int; name a class"),
        ("mine.py:MyLoss", {"size": 3}, r"loss.arguments does not fit mine.py:MyLoss\(.*margin=0.2\): .*unexpected.*'size'"),
        ("mine.py:Both", {"margin": 1}, "loss.arguments does not fit"),
        (
            "python:MyLoss",
            {},
            r"given to train\(\) as an object, which cannot be loaded by name; call train\(config, folder, loss",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_way_out(name, arguments, reason):
    with pytest.raises(CustomCodeError, match=reason):
        build_custom_loss(name, arguments, SIZES)


def test_an_error_of_the_users_code_keeps_its_traceback():
    with pytest.raises(UserCodeError, match="mine.py:broken raised ValueError: no such loss") as raised:
        build_custom_loss("mine.py:broken", {}, SIZES)
    assert isinstance(raised.value.__cause__, ValueError)
    Path("mine.py").write_text("import not_installed_at_all\nclass MyLoss: ...")
    with pytest.raises(UserCodeError, match="raised ModuleNotFoundError"):
        build_custom_loss("mine.py:MyLoss", {}, SIZES)
    with pytest.raises(UserCodeError, match="a loss raised TypeError"):
        CustomLoss(lambda: None, "a loss")(*BATCH)


# The call


def test_labels_are_of_all_levels_or_of_the_finest():
    seen = []

    def note(embeddings, labels, ref_labels=None):
        seen.append((labels.tolist(), None if ref_labels is None else ref_labels.tolist()))
        return embeddings.sum()

    labels = torch.tensor([[0, 5], [1, 5]])
    for finest_only in (False, True):
        CustomLoss(note, "note", finest_only=finest_only)(torch.ones(2, 3), labels, ref_labels=labels)
    assert seen == [([[0, 5], [1, 5]], [[0, 5], [1, 5]]), ([0, 1], [0, 1])]


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (lambda embeddings, labels: embeddings.sum(1), r"must return a tensor with a single number, .* of shape \[6\]"),
        (lambda embeddings, labels: 0.5, "and it returned a float"),
        (lambda embeddings, labels: embeddings.detach().sum(), "returned a value without a gradient"),
    ],
)
def test_what_a_loss_returns_is_checked(loss, reason):
    with pytest.raises(CustomCodeError, match=reason):
        CustomLoss(loss, "mine")(BATCH[0].clone().requires_grad_(), BATCH[1])


def test_a_class_and_a_thing_that_cannot_be_called_are_no_losses():
    with pytest.raises(CustomCodeError, match="this is the class SupAP; give an instance of it"):
        CustomLoss(losses.SupAP, "mine")
    with pytest.raises(CustomCodeError, match="this is a int"):
        CustomLoss(3, "mine")


def test_single_numbers_in_its_log_are_logged():
    made = build_custom_loss("mine.py:MyLoss", {}, SIZES)
    made(*BATCH)
    assert list(made.log) == ["share"]
    assert CustomLoss(lambda embeddings, labels: embeddings.sum(), "mine").log == {}


def test_a_memory_needs_a_loss_that_takes_it(manifest):
    config = recipe(manifest, loss={"name": "mine.py:MyLoss"}, memory={"size": 10})
    with pytest.raises(
        CustomCodeError, match="memory.size is set, but .* takes no ref_emb, ref_labels, ids, ref_ids. Add them, or"
    ):
        check_loss(build_custom_loss("mine.py:MyLoss", {}, SIZES), config)
    for takes in (custom_code.load("mine.py:Both")(), lambda embeddings, labels, **others: None, losses.SupAP()):
        check_loss(CustomLoss(takes, "mine"), config)


def test_proxies_for_a_loss_without_parameters_are_refused(manifest):
    config = recipe(manifest, loss={"name": "mine.py:Both"}, proxies={"lr": 1.0})
    with pytest.raises(ValueError, match=r"\[proxies\] is set, but mine.py:Both has no parameters to train"):
        check_loss(build_custom_loss("mine.py:Both", {}, SIZES), config)
    given = nn.Identity()
    check_loss(CustomLoss(given, custom_code.object_name(given)), config)  # a recipe that was made for another loss will do


# Runs


def own(manifest, **tables):
    return recipe(manifest, loss={"name": "mine.py:MyLoss", "arguments": {"margin": 0.3}}, proxies={"lr": 0.1}, **tables)


@pytest.fixture(scope="module")
def plain(manifest, tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "mine.py").write_text(MINE)
    (folder / "my_helper.py").write_text(HELPER)
    before = Path.cwd()
    os.chdir(folder)
    try:
        recorder = Recorder()
        train(own(manifest), folder / "run", callbacks=[recorder])
    finally:
        os.chdir(before)
    return folder / "run", recorder


def test_a_run_trains_the_loss_and_its_parameters_and_keeps_a_copy_of_the_code(plain):
    run, recorder = plain
    values = [step.values for step in recorder.events_of("on_step_end")]
    assert values[-1]["loss"] < values[0]["loss"]
    assert "share" in values[0]
    assert "gradient norm of proxies" in values[0]
    assert recorder.events[0][3].startswith("mine.py:MyLoss on 48 images")
    assert everything(run)["loss"]["loss.loss.centers"].shape == (8, 8)
    assert (run / "code/loss/mine.py").read_text() == MINE
    assert (run / "code/SHA256SUMS").read_text() == f"{hashlib.sha256(MINE.encode()).hexdigest()}  loss/mine.py\n"
    assert read_recipe(run / "recipe.toml").loss.arguments == {"margin": 0.3}


def test_a_resumed_run_ends_with_the_bits_of_one_that_was_not_interrupted(manifest, plain, folder):
    for step in (2, 7):
        stopped = train(own(manifest), folder / "run", resume=True, callbacks=Recorder(on_step_end=at_step(step, signalled)))
        assert stopped.stop_signal == signal.SIGTERM
    train(own(manifest), folder / "run", resume=True)
    assert same(everything(folder / "run"), everything(plain[0]))


def test_code_that_changed_or_vanished_is_refused_until_it_is_restored(manifest, folder):
    config, run = own(manifest, run={"epochs": 1}), folder / "run"
    stop = Recorder(on_step_end=at_step(1, signalled))
    train(config, run, callbacks=stop)
    Path("mine.py").write_text(MINE.replace("0.2", "0.4"))
    with pytest.raises(
        CustomCodeError, match=r"mine.py has changed since the run in .*run began, .* \(.*run/code/loss/mine.py\), or"
    ):
        train(config, run, resume=True)
    Path("mine.py").unlink()
    with pytest.raises(CustomCodeError, match=r"there is no file .*mine.py; .* keeps a copy: .*run/code/loss/mine.py\."):
        train(config, run, resume=True)
    assert checkpoint.newest_step(run / "checkpoints") == 1
    Path("mine.py").write_bytes((run / "code/loss/mine.py").read_bytes())
    train(config, run, resume=True)
    Path("mine.py").unlink()  # a finished run needs it no more
    messages = Recorder()
    train(config, run, resume=True, callbacks=messages)
    assert "is finished already" in messages.events_of("on_message")[0]


def test_code_that_is_not_there_leaves_no_folder(manifest, folder):
    with pytest.raises(CustomCodeError, match="there is no file"):
        train(recipe(manifest, loss={"name": "other.py:MyLoss"}), folder / "run")
    assert not (folder / "run").exists()


class Center(nn.Module):
    """A loss that is given as an object."""

    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(8, 8, generator=torch.Generator().manual_seed(1)))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, embeddings, labels):
        self.calls += 1
        return nn.functional.cross_entropy(embeddings @ self.centers.T / 0.1, labels[:, 0])


def test_an_object_can_be_trained_with_and_is_given_again_to_resume(manifest, folder):
    config = recipe(manifest)
    whole = train(config, folder / "whole", loss=Center())
    saved = everything(folder / "whole")
    assert saved["loss"]["loss.loss.calls"] == 9
    assert read_recipe(whole.folder / "recipe.toml").loss.name == "python:Center"
    assert (whole.folder / "code/loss" / Path(__file__).name).is_file()
    train(config, folder / "run", loss=Center(), callbacks=Recorder(on_step_end=at_step(4, signalled)))
    for again, reason in [(None, "loss.name was 'python:Center' and is 'roadmap'"), (losses.SupAP(), "is 'python:SupAP'")]:
        with pytest.raises(ValueError, match=reason):
            train(config, folder / "run", resume=True, loss=again)
    with pytest.raises(CustomCodeError, match="given to train"):
        train(read_recipe(folder / "run/recipe.toml"), folder / "run", resume=True)
    train(config, folder / "run", resume=True, loss=Center())
    assert same(everything(folder / "run"), saved)
    assert same(weights(folder / "run"), weights(folder / "whole"))


def test_a_function_will_do(manifest, folder):
    def spread(embeddings, labels):
        return (embeddings @ embeddings.T).mean()

    result = train(recipe(manifest, run={"epochs": 1}), folder / "run", loss=spread)
    assert result.reports["test"]["R@1"] > 0
    assert read_recipe(folder / "run/recipe.toml").loss.name.startswith("python:test_a_function_will_do")
