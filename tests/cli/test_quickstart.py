"""The five commands of the quickstart, run as written on a folder of pictures, with the tiny network that the page names."""

import re
import shlex
import time
import tomllib
from pathlib import Path

import pytest
from huggingface_hub import constants

from suprank.training import auto_settings
from tests.cli.collection import done, photographs, refused

PAGE = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## From your photos to a verdict") : PAGE.index("## Without training")]
COMMANDS = re.findall(r"^\$ suprank (.+)$", SECTION, flags=re.MULTILINE)
(TINY,) = re.findall(r"train a tiny network:\n`(.+)`", SECTION)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, with photos/ of 12 classes in 3 groups."""
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "photos", classes=4, side=32)
    return tmp_path


def test_five_commands_lead_from_a_folder_to_a_verdict(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    importing, check, train, evaluate, report = map(shlex.split, COMMANDS)
    done(*importing)
    assert "48 images" in done(*check).output
    begun = done(*train, *shlex.split(TINY))
    choice = "roadmap on 24 images of 6 classes, cpu: test_resnet at 32 pixels, batches of 24 with 4 of each class"
    assert begun.stderr.splitlines()[0] == choice
    saved = tomllib.loads(Path("runs/photos/recipe.toml").read_text(encoding="utf-8"))
    assert (saved["batch"]["size"], saved["images"]["test_resize"]) == (24, 37)
    compared = done(*evaluate).stdout
    assert re.search(r"R@1 .*\d", compared)
    assert "photos against photos before training" in compared
    done(*report)
    assert "<title>" in Path("report.html").read_text(encoding="utf-8")

    # A resumed run keeps what was chosen, on another device too.
    monkeypatch.setitem(auto_settings.DEFAULTS, "cpu", auto_settings.DEFAULTS["cpu"]._replace(batch=8))
    assert "is finished already" in done(*train, *shlex.split(TINY), "--resume").stderr


def test_without_a_network_each_command_names_its_own_option_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    importing, _, train, *_ = map(shlex.split, COMMANDS)
    done(*importing)
    start = time.monotonic()
    why, way_out = "http://127.0.0.1:9 does not answer", "Without a network, get their file elsewhere and give"
    said = refused(*train, "data.workers=0", "engine.accelerator=cpu")
    assert why in said
    assert f"{way_out} model.weights=FILE, or model.pretrained=false to start from random weights." in said
    said = refused("embed", "test_resnet", "photos.parquet", "--out", "e")
    assert why in said
    assert f"{way_out} weights=FILE." in said
    assert time.monotonic() - start < 20, "10 seconds each"
