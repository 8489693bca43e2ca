"""Commands that meet a bad image, a signal or the death of a worker end within seconds, with all their processes."""

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from suprank.data import Manifest
from suprank.training import checkpoint
from suprank.training.recipe import to_toml
from tests.cli.commands import ended
from tests.models.tiny import embedder
from tests.training.runs import DESCRIPTION, lines, pictures, recipe

SECONDS = 30  # a busy machine; without the fix it is for ever
IMAGES = ("--image-size", 32, "--resize", 0, "--workers", 2, "--device", "cpu", "--quiet")
EMBED = ("embed", "model", "--out", "e", "--size", *IMAGES[1:])
TRAIN = ("train", "mine.toml", "--out", "trained", "--quiet", "data.workers=2", "run.epochs=1")
COMMANDS = {
    "embed": ((*EMBED, "--batch-size", 4, "manifest.parquet"), "3-1.png"),
    "models create --pca": (
        ("models", "create", "model", "--pca", "manifest.parquet", "--out", "e", "--dim", 4, "--batch-size", 4, *IMAGES),
        "3-5.png",
    ),
    "train, a test image": (TRAIN, "3-1.png"),
    "train, a training image": (TRAIN, "3-5.png"),
    "train, a training image in memory": ((*TRAIN, "data.cache_images=true"), "3-5.png"),
    "report": (("report", "run", "--out", "page", "--device", "cpu", "--quiet"), "3-1.png"),
    "explore": (("explore", "run", "--port", 0, "--device", "cpu", "--quiet"), "3-1.png"),
}

HARMS = dict.fromkeys(COMMANDS, ("broken",)) | {"embed": ("broken", "missing")}


LONG = {
    "embed": [*map(str, EMBED), "--batch-size", "4", "many.parquet"],
    "train": ["train", "mine.toml", "data.workers=2", "run.epochs=100000", "evaluation.every=0", "--out", "trained"],
}
READY = {"embed": "e/test", "train": "trained/metrics.jsonl"}
"""What is there when the workers have been started."""
SIGNALS = {
    "Ctrl-C": ("embed", "group", signal.SIGINT),
    "SIGTERM to embed and its workers": ("embed", "group", signal.SIGTERM),
    "kill -9 of embed": ("embed", "command", signal.SIGKILL),
    "Ctrl-C in training": ("train", "group", signal.SIGINT),
    "SIGTERM to train alone": ("train", "command", signal.SIGTERM),
    "kill -9 of a worker of embed": ("embed", "worker", signal.SIGKILL),
    "kill -9 of a worker of train": ("train", "worker", signal.SIGKILL),
}
CODES = {"Ctrl-C": 130, "Ctrl-C in training": 130, "SIGTERM to train alone": 143}


def prepare(folder):
    """Write pictures, a model, a recipe, and a run that has not been embedded."""
    pictures(folder)
    embedder(dim=8).save(folder / "model")
    settings = recipe("manifest.parquet", evaluation={"batch_size": 4}, data={"workers": 2})
    (folder / "mine.toml").write_text(to_toml(settings))
    shutil.copytree(folder / "model", folder / "run/model")
    shutil.copy(folder / "mine.toml", folder / "run/recipe.toml")
    return folder


@pytest.fixture(scope="module")
def results(forked, tmp_path_factory):
    """How each command ended with a broken or missing image; and how it ended when it was stopped or lost a worker at work."""
    source = prepare(tmp_path_factory.mktemp("source"))
    test = Manifest.read(source / "manifest.parquet").split("test")
    test.take(np.tile(np.arange(len(test)), 2000)).save(source / "many.parquet")  # there is always something left to do

    def copy():
        return Path(shutil.copytree(source, tmp_path_factory.mktemp("case"), dirs_exist_ok=True))

    cases = {}
    for command, (arguments, image) in COMMANDS.items():
        for harm in HARMS[command]:
            place = copy()
            if harm == "broken":
                (place / image).write_bytes(b"no picture")
            else:
                (place / image).unlink()
            cases[f"{command}, {harm}"] = {"arguments": [str(one) for one in arguments], "folder": str(place)}
    for name, (command, to, number) in SIGNALS.items():
        stop = {"to": to, "signal": number, "ready": READY[command]}
        cases[name] = {"arguments": LONG[command], "folder": str(copy())} | stop
    shutil.rmtree(source)  # so that each manifest finds the images beside it
    results = ended(forked, cases, tmp_path_factory.mktemp("cases"))
    return {name: result | {"folder": cases[name]["folder"]} for name, result in results.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "harm"), [(command, harm) for command, harms in HARMS.items() for harm in harms])
def test_a_command_that_meets_a_bad_image_names_it_and_ends_at_once(results, command, harm):
    result = results[f"{command}, {harm}"]
    assert result["code"] == 2, result
    assert result["seconds"] < SECONDS
    assert result["left"] == []
    assert COMMANDS[command][1] in result["stderr"]
    assert "Traceback" not in result["stderr"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SIGNALS)
def test_a_command_that_is_stopped_or_loses_a_worker_ends_with_all_its_processes(results, name):
    result = results[name]
    _, to, number = SIGNALS[name]
    assert result["code"] == (2 if to == "worker" else CODES.get(name, -number)), result
    assert result["seconds"] < SECONDS
    assert result["left"] == []
    assert "Traceback" not in result["stderr"]
    if to == "worker":
        output = " ".join(result["stderr"].replace("│", " ").split())
        assert "of 2, which decodes images, was killed by SIGKILL, most likely because the machine" in output
        assert "workers; data.workers in a recipe" in output


@pytest.mark.slow
def test_ctrl_c_in_training_says_how_to_go_on(results):
    result = results["Ctrl-C in training"]
    folder = Path(result["folder"], "trained")
    step = checkpoint.newest_step(folder / "checkpoints")
    assert step == lines(folder)[-1]["step"]
    assert result["stderr"].splitlines() == [
        DESCRIPTION,
        f"stopped at step {step}; resume with: suprank {' '.join(LONG['train'])} --resume",
        "suprank: stopped.",
    ]
