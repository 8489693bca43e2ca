"""A loss of the user's own through the command line: train, resume, two processes, compare, and evaluate without it.

Compare trains in this process here. That each process loads code of the user's own is for the test of two, and for
`test_train_run.py`.
"""

import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from suprank.experiments.experiment import Executor
from suprank.training.loop import train
from suprank.training.recipe import read_recipe, to_toml
from tests.cli.collection import done, invoke, refused
from tests.cli.test_own_backbone import MINE as NETWORK
from tests.experiments.runs import training_by
from tests.training.runs import pictures, recipe

ROOT = Path(__file__).parents[2]

MINE = """
import torch
from torch import nn

class MyLoss(nn.Module):
    def __init__(self, num_classes, embedding_size, margin=0.0):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(num_classes, embedding_size))
        self.margin = margin

    def forward(self, embeddings, labels):
        scores = embeddings @ nn.functional.normalize(self.centers, dim=-1).T
        own = nn.functional.one_hot(labels[:, 0], len(self.centers))
        return nn.functional.cross_entropy((scores - self.margin * own) / 0.1, labels[:, 0])
"""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, manifest, forget_consents):
    """The working folder: a loss, a recipe with it, and one with ROADMAP under the same budget."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(Executor, "train", training_by(lambda config, folder: train(config, folder, resume=True)))
    for function in ("draw_sweep", "draw_comparison"):  # the figure takes longer than the runs
        monkeypatch.setattr(f"suprank.experiments.plots.{function}", lambda table: [])
    Path("mine.py").write_text(MINE)
    short = {"model": {"freeze_batchnorm": True}, "run": {"epochs": 2}, "evaluation": {"every": 0, "metrics": ("R@1", "H-AP")}}
    mine = {"name": "mine.py:MyLoss", "arguments": {"margin": 0.1}}
    Path("mine.toml").write_text(to_toml(recipe(manifest, loss=mine, **short)))
    Path("roadmap.toml").write_text(to_toml(recipe(manifest, **short)))
    return tmp_path


def weights(run):
    return safetensors.torch.load(Path(run, "model/model.safetensors").read_bytes())


def test_a_dry_run_checks_the_loss_and_prints_the_recipe():
    dry_run = done("train", "mine.toml", "--dry-run", "--trust-code").stdout
    assert 'name = "mine.py:MyLoss"\narguments = {margin = 0.1}' in dry_run
    assert "loss.arguments does not fit mine.py:MyLoss" in refused("train", "mine.toml", "loss.arguments.size=3", "--dry-run")
    assert "mine.py:MyLoss cannot be called with a memory" in refused("train", "mine.toml", "memory.size=9", "--dry-run")
    assert "loss.margin: mine.py:MyLoss has no key 'margin'; write its arguments below [loss.arguments]" in refused(
        "train", "mine.toml", "loss.margin=3", "--dry-run"
    )
    Path("mine.py").unlink()
    assert "there is no file" in refused("train", "mine.toml", "--dry-run")


def test_the_code_of_a_strangers_recipe_is_not_run_without_consent():
    Path("mine.py").write_text("from pathlib import Path\nPath('was-run').touch()\n" + MINE)
    for command in (
        ("train", "mine.toml", "--dry-run"),
        ("train", "mine.toml", "--out", "out"),
        ("compare", "mine.toml", "loss.arguments.margin=0.1,0.4", "--out", "out"),
        ("compare", "mine.toml", "roadmap.toml", "--out", "out"),
        ("compare", "mine.toml", "roadmap.toml", "--out", "out", "--tune", 2, "--dry-run"),
    ):
        reason = refused(*command)
        assert f"its loss is mine.py:MyLoss, and loading it runs {Path('mine.py').absolute()} (SHA-256 " in reason
        assert "trust_code=True" in reason
        assert not Path("was-run").exists()
        assert not Path("out").exists()
    done("train", "roadmap.toml", "loss=", "loss.name=mine.py:MyLoss", "--dry-run")
    assert Path("was-run").exists()
    done("train", "mine.toml", "--dry-run")  # the same source, name and role


def test_a_recipe_cannot_run_a_shell_command_even_if_it_is_trusted():
    recipe = Path("roadmap.toml").read_text().partition("[loss]")[0]
    Path("shell.toml").write_text(recipe + '[loss]\nname = "os:system"\narguments = {command = "touch was-run"}\n')
    for options in ((), ("--trust-code",)):
        assert "os:system: os has no system" in refused("train", "shell.toml", "--dry-run", *options)
    assert not Path("was-run").exists()


def test_train_resume_and_evaluate_without_the_code():
    done("train", "mine.toml", "--out", "whole", "-q", "--trust-code")
    assert "has no YourLoss" in refused("train", "mine.toml", "loss.name=mine.py:YourLoss", "--out", "other")
    Path("mine.py").write_text(MINE + "\n# changed\n")
    assert invoke("train", "mine.toml", "--out", "whole", "--resume", "-q").exit_code == 0, "it is finished"
    Path("mine.py").unlink()
    assert "R@1" in done("evaluate", "whole", "--metric", "R@1").stdout
    assert tuple(Path("whole/code").rglob("*.py")) == (Path("whole/code/loss/mine.py"),)


def test_two_processes_train_the_network_and_the_parameters_of_one(forked, folder):
    """Each of them loads the loss, and here a backbone too, by itself."""
    Path("network.py").write_text(NETWORK)
    command = ("train", "mine.toml", "model.backbone=network.py:build", "--trust-code")
    done(*command, "--out", "one", "-q")
    variables = {"PYTHONPATH": os.environ["PYTHONPATH"], "GLOO_SOCKET_IFNAME": "lo"}
    first = forked.start(*command, "engine.devices=2", "--out", "two", "-q", cwd=folder, variables=variables)
    code, _, errors = first.end(timeout=300)
    assert code == 0, errors
    for name, value in weights("one").items():
        torch.testing.assert_close(
            weights("two")[name], value, rtol=1e-3, atol=1e-5, msg=lambda why, name=name: f"{name}: {why}"
        )
    used = read_recipe("two/recipe.toml")
    assert (used.loss.name, used.model.backbone, used.engine.devices) == ("mine.py:MyLoss", "network.py:build", 2)


def test_compare_puts_it_beside_roadmap():
    result = done("compare", "mine.toml", "roadmap.toml", "--out", "c", "-q", "--trust-code")
    rows = [line.split(" | ")[0] for line in Path("c/comparison.md").read_text().splitlines()]
    assert rows[2:4] == ["| mine", "| roadmap"]
    assert "R@1" in result.stdout
    settings = json.loads(Path("c/experiment.json").read_text())["methods"]["mine"]["settings"]
    assert (settings["loss.name"], settings["loss.arguments"]) == ("mine.py:MyLoss", {"margin": 0.1})
    assert Path("c/mine,seed=0/code/loss/mine.py").is_file()
    Path("mine.py").write_text(MINE.replace("/ 0.1", "/ 0.2"))
    again = ("compare", "mine.toml", "roadmap.toml", "--seeds", 2, "--out", "c", "-q", "--trust-code")
    assert "has changed since the run in" in refused(*again)


def test_compare_goes_over_its_arguments():
    done("compare", "mine.toml", "loss.arguments.margin=0.1,0.4", "--out", "s", "-q", "--trust-code")
    assert Path("s/comparison.md").read_text().splitlines()[2].startswith("| 0.1 |")
    found = [weights(f"s/mine,loss.arguments.margin={margin},seed=0") for margin in (0.1, 0.4)]
    assert any(not torch.equal(found[0][name], found[1][name]) for name in found[0])
