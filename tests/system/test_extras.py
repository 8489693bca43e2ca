"""The tables of extras: what they name is enough, and is what a missing part names, in the shell and in Python."""

from pathlib import Path

import numpy as np
import pytest

from suprank.cli.app import app
from suprank.system.extras import COMMANDS, OPTIONAL, PACKAGES, required_extras
from tests.cli.collection import done, photographs
from tests.extras import PROJECT, distributions, outcomes, python
from tests.hierarchy.branches import plain, write_branch
from tests.models.tiny import embedder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """photos/, m.parquet, model/, run/ with a recipe and a model, e/ with embeddings, a project p/ and labels.txt."""
    root = tmp_path_factory.mktemp("made")
    photographs(root / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        done("data", "import", "folder", "photos", "--split", "test", "--out", "m.parquet")
        embedder(dim=8).save("model")
        embedder(dim=8).save("run/model")
        Path("run/recipe.toml").write_text(RECIPE)
        done("embed", "--model", "model", "--manifest", "m.parquet", "--out", "e", *IMAGES)
        write_branch(plain(root / "p"))
        Path("labels.txt").write_text("jay\nteal\nheron\nwren\ncrow\n")
        np.save("x.npy", np.random.default_rng(0).standard_normal((20, 8), dtype=np.float32))
    return root


RECIPE = """
data = { manifest = "m.parquet", workers = 0 }
images = { size = 32, test_resize = 0 }
model = { backbone = "test_resnet", pretrained = false, dim = 8 }
loss = { name = "roadmap" }
"""
IMAGES = ("--size", 32, "--resize", 0, "--device", "cpu", "--workers", 0, "-q")


def test_every_command_is_in_the_table_and_every_extra_in_the_project():
    assert {one.name or one.callback.__name__ for one in app.registered_commands} | {
        one.name for one in app.registered_groups
    } == {command.split()[0] for command in COMMANDS if command}
    for extras in {*COMMANDS.values(), *OPTIONAL.values(), *PACKAGES.values()}:
        assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    for extras in {*COMMANDS.values(), *OPTIONAL.values()}:
        assert {"typer", "rich"} <= distributions(extras.split(",")), "each brings the command line too"


NEEDS_MORE = {  # a call of each verb that ends at the part it lacks, where only `cli` is installed
    "compare": ("compare", "glyphs/nsm", "--out", "c", "--slurm", "partition=gpu"),
    "data": ("data", "check", "m.parquet"),
    "demo": ("demo", "--data", "m.parquet", "--out", "d"),
    "embed": ("embed", "--model", "model", "--manifest", "m.parquet", "--out", "f"),
    "explore": ("explore", "e"),
    "hierarchy embed": ("hierarchy", "embed", "p"),
    "hierarchy review": ("hierarchy", "review", "p", "--annotator", "anna"),
    "index": ("index", "build", "x.npy", "--out", "i"),
    "index search": ("index", "search", "i", "--image", "a.png", "--model", "model"),
    "models": ("models", "list"),
    "models export": ("models", "export", "--model", "model", "--out", "m.pt2"),
    "report": ("report", "e"),
    "train": ("train", "glyphs/happier", "--out", "t"),
}


SUFFICE = {  # calls of the verbs that do something small
    "bench": [("bench", "losses", "--device", "cpu", "--batch", 16, "--loss", "SupAP", "--repeats", 1, "--out", "b")],
    "cli,vision": [
        ("recipes",),
        ("data", "import", "folder", "photos", "--out", "n.parquet"),
        ("data", "show", "m.parquet", "--out", "s.png"),
        ("embed", "--model", "model", "--manifest", "m.parquet", "--out", "f", *IMAGES),
        ("evaluate", "--embeddings", "f", "-q"),
        ("evaluate", "--embeddings", "run", "--against-frozen", "-q"),
        ("models", "list", "resnet1*"),
    ],
    "cli,train": [
        ("train", "glyphs/happier", "data.manifest=m.parquet", "--dry-run"),
        ("compare", "glyphs/happier", "data.manifest=m.parquet", "--dry-run", "--out", "c"),
        ("sweep", "glyphs/happier", "data.manifest=m.parquet", "--dry-run", "--out", "c"),
    ],
    "cli,explore": [("index", "build", "x.npy", "--out", "i", "-q"), ("index", "search", "i", "--embeddings", "x.npy")],
    "cli,explore,vision": [
        ("index", "build", "e", "--out", "j", "-q"),
        ("index", "search", "j", "--image", "photos/group0/class00/0.png", "--model", "model", *IMAGES[:6]),
        ("report", "e", "--out", "page.html", "--queries", 1, "--top", 2, "-q"),
    ],
    "cli,export": ["import onnx, onnxruntime, onnxscript, suprank.models.export"],
    COMMANDS["demo"]: [
        "from suprank.system import torchvision_operators as t; t.declare(); import suprank.experiments.parallel, "
        "suprank.training.loop, suprank.explorer.report, suprank.cli.report, openTSNE"
    ],
    "hierarchy": [
        ("hierarchy", "new", "q", "--labels", "labels.txt"),
        ("hierarchy", "embed", "q", "-q"),
        ("hierarchy", "cluster", "q", "-q"),
        ("hierarchy", "status", "q"),
        ("hierarchy", "export", "p", "--out", "o"),
    ],
}


@pytest.fixture(scope="module")
def results(folder):
    """The outcomes of `NEEDS_MORE` with `cli` alone, and of each set of extras in `SUFFICE`."""
    needs_more, *suffice = outcomes([("cli", NEEDS_MORE.values()), *SUFFICE.items()], folder)
    return needs_more, dict(zip(SUFFICE, suffice, strict=True))


@pytest.mark.slow
def test_a_verb_that_lacks_a_part_names_the_extras_that_suffice(results):
    for verb, (code, said) in zip(NEEDS_MORE, results[0], strict=True):
        assert code == 1, (verb, code, said)
        assert said.endswith(f'which is not installed; pip install "suprank[{required_extras(verb.split())}]"\n'), (verb, said)


@pytest.mark.slow
@pytest.mark.parametrize("extras", SUFFICE)
def test_the_extras_of_a_verb_suffice(results, extras):
    for step, (code, said) in zip(SUFFICE[extras], results[1][extras], strict=True):
        assert code == 0, (step, said)


IMPORT = """
import importlib, sys
for package in sys.argv[1:]:
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        print(error)
import suprank.training
try:
    suprank.training.TrainConfig
except ModuleNotFoundError as error:
    print(error)
"""


def test_a_package_that_lacks_a_part_names_its_extra_in_python():
    packages = [package for package in PACKAGES if package not in ("suprank.bench", "suprank.training")]
    said = python([], IMPORT, *packages).stdout.splitlines()
    for line, package in zip(said, [*packages, "suprank.training"], strict=True):
        assert line.startswith(f"{package} needs "), said
        assert line.endswith(f', which is not installed; pip install "suprank[{PACKAGES[package]}]"'), said
