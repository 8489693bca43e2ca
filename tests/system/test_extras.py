"""One extra is enough for each verb and each package, and it is what a missing part names, in the shell and in Python."""

from pathlib import Path

import numpy as np
import pytest

from suprank.cli.app import app
from suprank.system.extras import COMMANDS, OPTIONAL, PACKAGES, required_extra
from tests.cli.collection import done, photographs
from tests.extras import PROJECT, Case, distributions, outcomes
from tests.hierarchy.branches import plain, write_branch
from tests.models.tiny import embedder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """photos/, m.parquet, model/, run/ with a recipe and a model, e/ with embeddings, a project p/ and labels.txt."""
    root = tmp_path_factory.mktemp("made")
    photographs(root / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        done("data", "import", "folder", "photos", "split=test", "--out", "m.parquet")
        embedder(dim=8).save("model")
        embedder(dim=8).save("run/model")
        Path("run/recipe.toml").write_text(RECIPE)
        done("embed", "model", "m.parquet", "--out", "e", *IMAGES)
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
    assert {*COMMANDS.values(), *OPTIONAL.values(), *PACKAGES.values()} <= PROJECT["optional-dependencies"].keys()
    for extra in {"vision", "train", "explore", "hierarchy", *COMMANDS.values(), *OPTIONAL.values()}:
        assert distributions("cli") <= distributions(extra), f"{extra} brings the command line too"


def test_extras_include_each_other():
    for extra, others in {
        "train": ["vision"],
        "explore": ["vision"],
        "all": ["train", "explore", "hierarchy", "export", "ray", "servers"],
        "dev": ["all"],
        "export": ["vision"],
        "servers": ["explore"],
    }.items():
        for other in others:
            assert distributions(other) <= distributions(extra), (extra, other)
    for extra, packages in {
        "vision": "datasets simplejpeg",
        "train": "lightning torchmetrics",
        "all": "accelerate datasets mteb open-clip-torch sentence-transformers",
        "export": "onnx onnxruntime onnxscript webdataset",
        "ray": "ray",
        "servers": "pymilvus",
    }.items():
        assert set(packages.split()) <= distributions(extra), extra


NEEDS_MORE = {  # a call of each verb that ends at the part it lacks, where only `cli` is installed
    "compare": ("compare", "glyphs/nsm", "--out", "other", "--on", "slurm partition=gpu"),
    "data": ("data", "check", "m.parquet"),
    "demo": ("demo", "--data", "m.parquet", "--out", "d"),
    "embed": ("embed", "model", "m.parquet", "--out", "f"),
    "explore": ("explore", "e"),
    "hierarchy review": ("hierarchy", "review", "p", "--annotator", "anna"),
    "models": ("models", "create", "test_resnet.untrained", "--out", "n"),
    "models export": ("models", "export", "model", "--out", "m.pt2"),
    "report": ("report", "e"),
    "search": ("search", "x.npy", "--queries", "x.npy"),
    "train": ("train", "glyphs/happier", "--out", "t"),
}


PREPARE = """
import functools, pyarrow, suprank.cli.main, torch, typer.main
torch.set_num_threads(1)
typer.main.get_command = functools.cache(typer.main.get_command)  # or else 0.08 s for each command
"""
SUFFICE = {  # calls of the verbs that do something small
    "hierarchy": [
        ("hierarchy", "new", "q", "--labels", "labels.txt"),
        ("hierarchy", "cluster", "q", "-q"),
        ("hierarchy", "status", "q"),
        ("hierarchy", "export", "p", "--out", "o"),
    ],
    "vision": [
        ("recipes",),
        ("data", "import", "folder", "photos", "--out", "n.parquet"),
        ("data", "show", "m.parquet", "--out", "s.png"),
        ("embed", "model", "m.parquet", "--out", "f", *IMAGES),
        ("evaluate", "f", "-q"),
        ("evaluate", "run", "--against-frozen", "-q"),
        "from suprank.data.jpeg import check_decoder; check_decoder('turbo')",
    ],
    "train": [
        ("train", "glyphs/happier", "data.manifest=m.parquet", "--dry-run"),
        ("compare", "glyphs/happier", "data.manifest=m.parquet", "--dry-run", "--out", "c"),
        # for `demo` and `paper`
        "import suprank.experiments.train_run, suprank.training.loop, suprank.explorer.report, suprank.cli.report, openTSNE",
        "import suprank.cli.paper, suprank.paper.output, suprank.paper.class_maps, suprank.paper.galleries",
        "from suprank.evaluation import RetrievalMetrics; from suprank.losses import MultiSimilarity; MultiSimilarity()",
    ],
    "explore": [
        ("search", "e", "--image", "photos/group0/class00/0.png", "--model", "model"),
        ("report", "e", "--out", "page.html", "--queries", 1, "--top", 2, "-q"),
    ],
    "export": ["import onnx, onnxruntime, onnxscript, suprank.models.export"],
}
IN_PYTHON = {package: f"import {package}" for package in PACKAGES}
IN_PYTHON["suprank.data"] += "; suprank.data.Manifest"
IN_PYTHON["suprank.evaluation.runs"] += "; suprank.evaluation.runs.Qrels.from_dict({1: {2: 1}})"
IN_PYTHON["suprank.explorer"] += "; suprank.explorer.Index"
IN_PYTHON["suprank.models"] += "; suprank.models.Embedder"
IN_PYTHON["suprank.training"] += "; suprank.training.TrainConfig"


@pytest.fixture(scope="module")
def results(folder):
    """The outcomes of `IN_PYTHON` without an extra, of `NEEDS_MORE` with `cli` alone, and of each extra in `SUFFICE`."""
    train, explore, export = (Case(extra, SUFFICE[extra]) for extra in ("train", "explore", "export"))
    vision = Case("vision", SUFFICE["vision"], [train, explore, export])
    hierarchy = Case("hierarchy", SUFFICE["hierarchy"])
    cli = Case("cli", [PREPARE], [Case("cli", NEEDS_MORE.values()), hierarchy, vision])
    _, (_, in_python), _, (_, needs_more), *suffice = outcomes(
        Case("", ["import torch"], [Case("", IN_PYTHON.values()), cli]), folder
    )
    return in_python, needs_more, dict(suffice)


@pytest.mark.slow
def test_a_package_that_lacks_a_part_names_its_extra_in_python(results):
    for package, (code, said) in zip(IN_PYTHON, results[0], strict=True):
        assert code == -1, package
        assert said.splitlines()[-1].startswith(f"ModuleNotFoundError: {package} needs "), said
        assert said.endswith(f', which is not installed; pip install "suprank[{PACKAGES[package]}]"\n'), said


@pytest.mark.slow
def test_a_verb_that_lacks_a_part_names_the_extra_that_suffices(results):
    for verb, (code, said) in zip(NEEDS_MORE, results[1], strict=True):
        assert code == 1, (verb, code, said)
        assert said.endswith(f'which is not installed; pip install "suprank[{required_extra(verb.split())}]"\n'), (verb, said)


@pytest.mark.slow
@pytest.mark.parametrize("extra", SUFFICE)
def test_the_extra_of_a_verb_suffices(results, extra):
    for step, (code, said) in zip(SUFFICE[extra], results[2][extra], strict=True):
        assert code == 0, (step, said)
