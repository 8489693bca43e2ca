"""suprank hierarchy embed: what it prints, and how it ends."""

import subprocess
import sys

import numpy as np
import pytest

from suprank.cli.main import main
from suprank.hierarchy import Project
from tests.cli.collection import done, invoke, refused
from tests.hierarchy.labeled import PLACES, labeled


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return labeled("p")


def test_labels_are_embedded_once():
    first = done("hierarchy", "embed", "p")
    assert first.stdout.startswith("10 labels × ")
    assert ", tfidf, in p/embeddings/" in first.stdout
    assert "10/10" in first.stderr
    again = done("hierarchy", "embed", "p", "--quiet")
    assert again.stdout == first.stdout.rstrip("\n") + ": it existed already, nothing to encode\n"
    assert again.stderr == ""


def test_vectors_from_a_file_and_labels_without_signal(project):
    np.savez("v.npz", labels=np.array(PLACES), embeddings=np.eye(10)[:, :9])
    shown = done("hierarchy", "embed", "p", "--encoder", "precomputed:v.npz")
    assert shown.stdout.splitlines()[0].startswith("10 labels × 9, precomputed, in p/embeddings/")
    assert shown.stdout.splitlines()[1] == "1 labels have no text signal; they get a cluster of their own"
    assert project.steps()["embed"].settings["encoder"] == "precomputed:v.npz"


def test_a_file_of_other_labels_ends_with_the_code_of_a_malformed_file():
    np.savez("v.npz", labels=np.array(["church"]), embeddings=np.eye(1))
    ended = invoke("hierarchy", "embed", "p", "--encoder", "precomputed:v.npz")
    assert ended.exit_code == 3
    assert "v.npz lacks 9 of 10 labels: 'castle'" in ended.stderr
    assert "embed" not in Project("p").steps()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--encoder", "precomputed:nothing.npz"), "there is no file nothing.npz"),
        (("--device", "tpu9"), "'tpu9' is not a device"),
        (("--batch-size", 0), "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused(arguments, said):
    assert said in refused("hierarchy", "embed", "p", *arguments)


def test_a_folder_without_a_project_is_refused():
    assert "suprank hierarchy new" in refused("hierarchy", "embed", "nowhere")


def test_a_missing_package_names_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    monkeypatch.setattr(sys, "argv", ["suprank", "hierarchy", "embed", "p", "--encoder", "clip:ViT-B-32/openai"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == 'suprank: this needs open_clip, which is not installed; pip install "suprank[all]"\n'


def test_spelling_does_not_wait_for_torch():
    script = "import sys; from suprank.cli.app import app; app(standalone_mode=False); print('torch' in sys.modules)"
    arguments = ("hierarchy", "embed", "p", "--quiet")
    ended = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120)
    assert ended.stdout.splitlines()[-1] == "False", ended.stderr
