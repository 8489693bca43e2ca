"""suprank hierarchy cluster: the vectors that it makes first, and how that ends."""

import re
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


def test_labels_are_encoded_once_and_as_the_last_time(project):
    first = done("hierarchy", "cluster", "p", "-k", 3)
    assert re.match(r"10 labels × \d+, tfidf\nclustering 1: 10 labels in 3 clusters", first.stdout)
    assert "10/10" in first.stderr
    assert done("hierarchy", "cluster", "p", "-k", 2, "--quiet").stdout.startswith("clustering 2: 10 labels in 2 clusters")
    np.savez("v.npz", labels=np.array([*PLACES, "bridge"]), embeddings=np.eye(11)[:, :9])
    shown = done("hierarchy", "cluster", "p", "-k", 3, "--encoder", "precomputed:v.npz").stdout.splitlines()
    assert shown[:2] == ["10 labels × 9, precomputed", "1 labels have no text signal; they get a cluster of their own"]
    assert done("hierarchy", "cluster", "p", "-k", 3).stdout.startswith("clustering 3: ")
    with project.transaction() as db:
        db.execute("UPDATE label SET text = 'bridge', key = 'bridge' WHERE text = ?", (PLACES[0],))
    assert done("hierarchy", "cluster", "p", "-k", 3).stdout.startswith("10 labels × 9, precomputed\n")
    assert "encoded before" in done("hierarchy", "cluster", "p", "-k", 3, "--encoder", "precomputed:v.npz").stdout


def test_a_file_of_other_labels_ends_with_the_code_of_a_malformed_file():
    np.savez("v.npz", labels=np.array(["church"]), embeddings=np.eye(1))
    ended = invoke("hierarchy", "cluster", "p", "--encoder", "precomputed:v.npz")
    assert ended.exit_code == 3
    assert "v.npz lacks 9 of 10 labels: 'castle'" in ended.stderr
    assert "embed" not in Project("p").steps()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--encoder", "precomputed:nothing.npz"), "there is no file nothing.npz"),
        (("--device", "tpu9"), "'tpu9' is not a device"),
    ],
)
def test_what_cannot_be_is_refused(arguments, said):
    assert said in refused("hierarchy", "cluster", "p", *arguments)


def test_a_folder_without_a_project_is_refused():
    assert "suprank hierarchy new" in refused("hierarchy", "cluster", "nowhere")


def test_a_missing_package_names_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    monkeypatch.setattr(sys, "argv", ["suprank", "hierarchy", "cluster", "p", "--encoder", "clip:ViT-B-32/openai"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == 'suprank: this needs open_clip, which is not installed; pip install "suprank[all]"\n'


def test_spelling_does_not_wait_for_torch():
    script = "import sys; from suprank.cli.app import app; app(standalone_mode=False); print('torch' in sys.modules)"
    arguments = ("hierarchy", "cluster", "p", "--quiet")
    ended = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120)
    assert ended.stdout.splitlines()[-1] == "False", ended.stderr
