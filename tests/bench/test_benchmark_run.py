from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench import LOSS_CASES, LossBenchmarkRun, LossMeasurement

MIB = 2**20
PUBLISHED = sorted((Path(__file__).parents[2] / "benchmarks" / "results").rglob("losses.json"))


@pytest.fixture
def run():
    found = [LossMeasurement(case.name, case.kind, 256, 256, 0, 0.0123, 5, 0.012, 3 * MIB, 0.5) for case in LOSS_CASES.values()]
    found += [
        LossMeasurement("SupAP", "ours", 512, 512, 0, note="out of memory"),
        LossMeasurement("SupHAP", "ours", 8, 96, 96, 2.5, 1, 2.5, 5000 * MIB),
    ]
    return LossBenchmarkRun.here(found, command="python benchmarks/measure.py losses", device=torch.device("cpu"))


def test_a_run_reads_back_what_it_saved(run, tmp_path):
    run.save(tmp_path / "losses.json")
    assert LossBenchmarkRun.load(tmp_path / "losses.json") == run


def test_a_loss_we_no_longer_have_keeps_its_kind(run):
    gone = LossMeasurement("gone", "peer", 256, 256, 0, 0.0123, 5, 0.012, 3 * MIB)
    lines = replace(run, measurements=(*run.measurements, gone)).markdown().splitlines()
    assert lines.index("| gone | 12.3 ms |  |") < lines.index("| **plain torch** |  |  |")


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parent.name)
def test_published_runs_still_read(path):
    assert "| SupAP | " in LossBenchmarkRun.load(path).markdown()


@pytest.mark.parametrize("kept", ["batches", "memory", "nothing"])
def test_the_figure_is_drawn_whatever_was_measured(run, kept, tmp_path):
    pytest.importorskip("matplotlib")
    from bench.benchmark_plots import draw_losses

    found = [one for one in run.measurements if {"batches": not one.memory, "memory": one.memory, "nothing": False}[kept]]
    draw_losses(LossBenchmarkRun.here(found, command="", device=torch.device("cpu")), tmp_path / "losses.png")
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")


def test_every_case_has_a_panel_and_there_a_look_of_its_own():
    pytest.importorskip("matplotlib")
    from bench.benchmark_plots import panels

    found = panels(LOSS_CASES)
    assert len(found) == 4
    assert {case for looks in found.values() for case in looks} == set(LOSS_CASES)
    assert all(len(set(looks.values())) == len(looks) for looks in found.values())


def test_references_stand_in_the_first_panel_and_beside_others():
    pytest.importorskip("matplotlib")
    from bench.benchmark_plots import panels

    assert list(panels(["SupAP", "PML FastAPLoss"])) == ["Flat losses"]
    assert [list(looks) for looks in panels(["SupHAP", "SupAP"]).values()] == [["SupAP"], ["SupAP", "SupHAP"]]
    assert [list(looks) for looks in panels(["gone", "SupHAP"]).values()] == [["SupHAP"], ["gone"]]
