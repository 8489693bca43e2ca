"""Commands that meet a bad image, a signal or the death of a worker end within seconds, with all their processes."""

import shutil
import signal

import numpy as np
import pytest

from suprank.data import Manifest
from suprank.training.loop import train
from suprank.training.recipe import to_toml
from tests.cli.commands import ended
from tests.models.tiny import embedder
from tests.training.runs import pictures, recipe

SECONDS = 30  # a busy machine; without the fix it is for ever
EMBED = ("embed", "--model", "model", "--out", "e", "--size", 32, "--resize", 0, "--workers", 2, "--device", "cpu", "--quiet")
TRAIN = ("train", "mine.toml", "--out", "trained", "--quiet", "data.workers=2", "run.epochs=1")
COMMANDS = {
    "embed": ((*EMBED, "--batch-size", 4, "--manifest", "manifest.parquet"), "3-1.png"),
    "models pca": (
        ("models", "pca", "--dim", 4, "--manifest", "manifest.parquet", *EMBED[1:], "--batch-size", 4),
        "3-5.png",
    ),
    "train, a test image": (TRAIN, "3-1.png"),
    "train, a training image": (TRAIN, "3-5.png"),
    "train, a test image held in memory": ((*TRAIN, "data.hold=true"), "3-1.png"),
    "train, a training image held in memory": ((*TRAIN, "data.hold=true"), "3-5.png"),
    "report": (("report", "run", "--out", "page", "--device", "cpu", "--quiet"), "3-1.png"),
    "explore": (("explore", "run", "--port", 0, "--device", "cpu", "--quiet"), "3-1.png"),
}

HARMS = dict.fromkeys(COMMANDS, ("broken",)) | dict.fromkeys(("embed", "report"), ("broken", "missing"))


def prepared(folder):
    """The folder with pictures, a model, and a recipe."""
    pictures(folder)
    embedder(dim=8).save(folder / "model")
    (folder / "mine.toml").write_text(to_toml(recipe("manifest.parquet", evaluation={"batch_size": 4})))
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """How each command ended where an image is broken, and where it is missing."""
    trained = prepared(tmp_path_factory.mktemp("trained"))
    train(recipe(trained / "manifest.parquet", run={"epochs": 1}), trained / "run")
    cases = {}
    for command, (arguments, image) in COMMANDS.items():
        for harm in HARMS[command]:
            place = prepared(tmp_path_factory.mktemp("case"))
            if arguments[1] == "run":  # that has not been embedded
                shutil.copytree(trained / "run", place / "run")
                text = (trained / "run/recipe.toml").read_text().replace(str(trained), str(place))
                (place / "run/recipe.toml").write_text(text.replace("workers = 0", "workers = 2"))
            if harm == "broken":
                (place / image).write_bytes(b"no picture")
            else:
                (place / image).unlink()
            cases[f"{command}, {harm}"] = {"arguments": [str(one) for one in arguments], "folder": str(place)}
    return ended(cases)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "harm"), [(command, harm) for command, harms in HARMS.items() for harm in harms])
def test_a_command_that_meets_a_bad_image_names_it_and_ends_at_once(results, command, harm):
    result = results[f"{command}, {harm}"]
    assert result["code"] == 2, result
    assert result["seconds"] < SECONDS
    assert result["left"] == []
    assert COMMANDS[command][1] in result["stderr"]
    assert "Traceback" not in result["stderr"]


def many(folder):
    """The folder with a manifest of so many rows that there is always something left to do."""
    prepared(folder)
    one = Manifest.read(folder / "manifest.parquet").split("test")
    rows = one.take(np.tile(np.arange(len(one)), 5000))
    rows.save(folder / "many.parquet")
    return str(folder)


LONG = {
    "embed": [*map(str, EMBED), "--batch-size", "4", "--manifest", "many.parquet"],
    "train": [*TRAIN[:5], "data.workers=2", "run.epochs=100000", "evaluation.every=0"],
}
READY = {"embed": "e/test", "train": "trained/metrics.jsonl"}
"""What is there when the workers have been started."""
SIGNALS = {
    "Ctrl-C": ("embed", "group", signal.SIGINT),
    "SIGTERM to embed and its workers": ("embed", "group", signal.SIGTERM),
    "kill -9 of embed": ("embed", "command", signal.SIGKILL),
    "SIGTERM to train alone": ("train", "command", signal.SIGTERM),
    "kill -9 of a worker of embed": ("embed", "worker", signal.SIGKILL),
    "kill -9 of a worker of train": ("train", "worker", signal.SIGKILL),
}
CODES = {"Ctrl-C": 130, "SIGTERM to train alone": 143}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """How commands ended that were stopped, or lost a worker, while they were at work."""
    cases = {}
    for name, (command, to, number) in SIGNALS.items():
        place = many(tmp_path_factory.mktemp("case"))
        cases[name] = {"arguments": LONG[command], "folder": place, "to": to, "signal": number, "ready": READY[command]}
    return ended(cases)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIGNALS)
def test_a_command_that_is_stopped_or_loses_a_worker_ends_with_all_its_processes(stopped, name):
    result = stopped[name]
    _, to, number = SIGNALS[name]
    assert result["code"] == (2 if to == "worker" else CODES.get(name, -number)), result
    assert result["seconds"] < SECONDS
    assert result["left"] == []
    assert "Traceback" not in result["stderr"]
    if to == "worker":
        said = " ".join(result["stderr"].replace("│", " ").split())
        assert "of 2, which decodes images, was killed by SIGKILL, most likely because the machine" in said
        assert "--workers on the command line, data.workers in a recipe" in said
