"""A backbone of the user's own through the command line: train, resume; evaluate and embed with its code.

`test_own_loss.py` trains one by two processes.
"""

import hashlib
import os
import shutil
import signal
from pathlib import Path

import pytest

import suprank
from suprank.models import UntrustedCodeError
from suprank.system.custom_code import CustomCodeError
from suprank.training.loop import train
from suprank.training.recipe import to_toml
from suprank.workflows.explorers import open_explorer
from tests.cli.collection import done, refused
from tests.training.runs import Recorder, at_step, pictures, recipe, same, signalled, weights

ROOT = Path(__file__).parents[2]

MINE = """
from torch import nn


def build():
    return nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.ReLU(), nn.Conv2d(8, 12, 3, padding=1))
"""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("pictures"))


def config(manifest, **model):
    settings = {"backbone": "mine.py:build", "pretrained": True, **model}
    return recipe(manifest, model=settings, run={"epochs": 1}, evaluation={"every": 0, "metrics": ("R@1", "H-AP")})


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, manifest, forget_consents):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    Path("mine.py").write_text(MINE)
    Path("mine.toml").write_text(to_toml(config(manifest)))
    return tmp_path


def test_a_run_is_evaluated_with_its_code_only_if_it_is_trusted(manifest, caplog, forget_consents):
    done("train", "mine.toml", "model.pooling=gem", "--out", "run", "-q", "--trust-code")
    assert Path("run/code/backbone/mine.py").read_text() == MINE
    digest = hashlib.sha256(MINE.encode()).hexdigest()
    assert Path("run/code/SHA256SUMS").read_text() == f"{digest}  backbone/mine.py\n"
    forget_consents()
    for command in (["evaluate", "run"], ["report", "run"], ["embed", "run/model", str(manifest), "--out", "e"]):
        reason = refused(*command)
        assert "its backbone is mine.py:build, and loading it runs" in reason
        assert "if you trust it, say so with trust_code=True" in reason
    with pytest.raises(UntrustedCodeError):
        suprank.evaluate("run", frozen=True)
    trusted = done("evaluate", "run", "--trust-code", "--against-frozen", "--metric", "R@1", "--device", "cpu").stdout
    assert "R@1" in trusted
    assert not caplog.messages
    forget_consents()
    explorer = open_explorer(["run"], device="cpu")  # what is embedded already needs no code
    assert explorer.runs[0].embed is None
    assert "images cannot be uploaded: run/model needs code that is not part of suprank" in caplog.text
    assert open_explorer(["run"], device="cpu", trust_code=True).runs[0].embed is not None
    assert open_explorer(["run"], device="cpu").runs[0].embed is not None, "the consent is remembered"
    done("embed", "run/model", manifest, "--out", "e", "--trust-code", "--workers", "0", "--device", "cpu", "-q")
    assert "R@1" in done("evaluate", "e", "--metric", "R@1").stdout


def test_code_that_changed_since_the_run_is_told(manifest, caplog):
    train(config(manifest), "run")
    Path("mine.py").write_text(MINE + "\n# changed\n")
    suprank.evaluate("run", trust_code=True, device="cpu")
    assert "mine.py has changed since the run in run began, so that its metrics may differ. The run keeps a copy" in caplog.text
    Path("mine.py").unlink()
    shutil.rmtree("run/embeddings")
    with pytest.raises(CustomCodeError, match="there is no file .* keeps a copy: run/code/backbone/mine.py"):
        suprank.evaluate("run", trust_code=True, device="cpu")


def test_a_backbone_that_is_named_is_loaded(manifest, forget_consents):
    done("embed", "./mine.py:build", manifest, "--out", "e", "--size", "32", "--workers", "0", "--device", "cpu", "-q")
    assert "R@1" in done("evaluate", "e", "--metric", "R@1").stdout
    assert "model: mine.py:build" in done("models", "create", "mine.py:build", "--out", "model", "--dim", "4").stdout
    forget_consents()
    assert "mine.py:build" in refused("models", "export", "model", "--out", "m.pt2")


def test_a_dry_run_checks_the_backbone():
    assert 'backbone = "mine.py:build"' in done("train", "mine.toml", "--dry-run", "--trust-code").stdout
    assert "mine.py has no other; it has build" in refused("train", "mine.toml", "model.backbone=mine.py:other", "--dry-run")
    assert "choose from timm, avg, max" in refused("train", "mine.toml", "model.pooling=token", "--dry-run")


def test_resuming_needs_the_unchanged_file(manifest):
    settings = config(manifest)
    train(settings, "whole")
    stopped = train(settings, "run", callbacks=Recorder(on_step_end=at_step(1, signalled)))
    assert stopped.stop_signal == signal.SIGTERM
    Path("mine.py").write_text(MINE.replace("ReLU", "GELU"))
    with pytest.raises(CustomCodeError, match=r"mine.py has changed since the run in run began, .*run/code/backbone/mine.py"):
        train(settings, "run", resume=True)
    Path("mine.py").unlink()
    with pytest.raises(CustomCodeError, match=r"there is no file .* keeps a copy: run/code/backbone/mine.py"):
        train(settings, "run", resume=True)
    Path("mine.py").write_bytes(Path("run/code/backbone/mine.py").read_bytes())
    train(settings, "run", resume=True)
    assert same(weights(Path("run")), weights(Path("whole")))


def test_a_run_cannot_start_from_a_saved_model_that_needs_code(manifest):
    train(config(manifest), "run")
    started = recipe(manifest)
    started = started.model_copy(update={"model": type(started.model)(start="run/model")})
    with pytest.raises(
        UntrustedCodeError, match="model.start='run/model' needs the code mine.py:build, and training loads only"
    ):
        train(started, "next")
