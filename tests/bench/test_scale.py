"""benchmarks/scale.py: each measurement has a process, results are kept and resumed, tables show exponents, peers and aims."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scale.py"


@pytest.fixture(scope="module")
def scale():
    return runpy.run_path(str(SCRIPT))


def run(*words):
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1] / "src")}
    return subprocess.run([sys.executable, str(SCRIPT), *words], env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("power", "start"), [(1, 0.0), (2, 0.0), (0.5, 0.0), (1, 3.0)])
def test_the_exponent_is_the_power_of_the_size(scale, power, start):
    sizes = [10_000, 100_000, 1_000_000]
    assert scale["exponent"](sizes, [start + 1e-5 * size**power for size in sizes], start) == pytest.approx(power)


def test_times_too_short_to_fit_have_no_exponent(scale):
    assert scale["exponent"]([10, 100, 1000], [1e-5, 1e-4, 1.0]) is None


def test_a_row_is_measured_saved_and_not_measured_again_on_resuming(tmp_path):
    out = tmp_path / "scale.json"
    words = ("--quick", "--row", "tree-text", "--out", str(out), "--folder", str(tmp_path))
    first = run(*words)
    assert first.returncode == 0, first.stderr
    measured = json.loads(out.read_text())["measurements"]
    assert [(one["row"], one["size"], one["who"], one["note"]) for one in measured] == [
        ("tree-text", 1_000, "suprank", ""),
        ("tree-text", 10_000, "suprank", ""),
    ]
    assert 0 < measured[0]["cpu_s"] < measured[1]["cpu_s"]
    assert measured[1]["peak_mib"] > 20
    assert "| `LabelTree.text` of so many classes |" in first.stdout
    out.write_text(json.dumps({**json.loads(out.read_text()), "measurements": measured[:1]}))
    again = run(*words, "--resume")
    assert [line.split()[1] for line in again.stdout.splitlines() if line.startswith("tree-text")] == ["10,000"]
    assert json.loads(out.read_text())["measurements"][0] == measured[0]
    assert [file.name for file in tmp_path.iterdir()] == ["scale.json"], "data are deleted"


def test_a_library_that_is_missing_and_a_limit_that_is_passed_are_noted(scale, tmp_path, monkeypatch):
    data = tmp_path / "none-10"
    data.mkdir()
    assert scale["_run_child"]("suprank", "tree-text", 3_000_000, data, tmp_path, 0.5) == ({}, "not done in 0 s")
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(tmp_path))
    (tmp_path / "polars.py").write_text("raise ModuleNotFoundError(\"No module named 'polars'\")")
    assert scale["_run_child"]("polars", "manifest-read", 10, data, tmp_path, 60.0) == ({}, "polars is not installed")


def test_the_table_names_peers_exponents_and_missed_aims(scale, tmp_path):
    costs = {"wall_s": 2.0, "peak_mib": 2048.0, "date": "2026-11-17T00:00:00", "load": 0.5}
    measured = [
        {"row": "to-tree", "size": 1_000_000, "who": "suprank", "cpu_s": 0.5, **costs},
        {"row": "to-tree", "size": 4_000_000, "who": "suprank", "cpu_s": 2.0, **costs},
        {"row": "to-tree", "size": 4_000_000, "who": "polars group_by", "note": "polars is not installed"},
        {"row": "evaluate", "size": 1_000_000, "who": "suprank", "cpu_s": 30.0, **costs},
        {"row": "evaluate", "size": 1_000_000, "who": "faiss flat, 100 best", "cpu_s": 25.0, **costs},
        {"row": "suprank recipes", "size": 100, "who": "suprank", "cpu_s": 0.7, **costs},
    ]
    file = tmp_path / "scale.json"
    file.write_text(
        json.dumps({"cores": 2, "threads": "all", "python": "3.11", "versions": {"polars": "1.20"}, "measurements": measured})
    )
    tables = scale["_tables"](file)
    tree, evaluation = [line.split(" | ")[1:] for line in tables["scale"].splitlines() if line.startswith("| `")]
    assert tree == ["500 ms", "2 s", "2 s", "2.0 GiB", "1.00", "1 s: **missed**", "polars group_by: polars is not installed |"]
    assert evaluation[5] == "1.5 × faiss flat, 100 best: met, 1.20 ×"
    assert "| `suprank recipes` | 700 ms | 2 s | 2.0 GiB | 600 ms: **missed** |" in tables["lists"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--row", "to-tre"), "there is no row 'to-tre'; the rows are archive-list,"),
        (("--quick",), "--quick is for trying out"),
    ],
)
def test_wrong_arguments_are_refused(words, message):
    refused = run(*words)
    assert refused.returncode == 2
    assert message in refused.stderr
