import pytest
import torch

from suprank.bench import CASES, Measurement, Run

MIB = 2**20


@pytest.fixture
def run():
    found = [Measurement(case.name, case.kind, 256, 256, 0, 0.0123, 5, 0.012, 3 * MIB, 0.5) for case in CASES.values()]
    found += [
        Measurement("SupAP", "ours", 512, 512, 0, note="out of memory"),
        Measurement("SupHAP", "ours", 8, 96, 96, 2.5, 1, 2.5, 5000 * MIB),
    ]
    return Run.here(found, command="suprank bench losses", device=torch.device("cpu"))


def test_a_run_reads_back_what_it_saved(run, tmp_path):
    run.save(tmp_path / "losses.json")
    assert Run.load(tmp_path / "losses.json") == run


def test_tables_hold_every_case_with_units_and_notes(run):
    lines = run.markdown().splitlines()
    for name in CASES:
        assert sum(line.startswith(f"| {name} | ") for line in lines) >= 2
    assert "| SupAP | 12.3 ms | out of memory |" in lines
    assert "| SupAP | 3 MiB | out of memory |" in lines
    assert "| SmoothAP | 12.3 ms |  |" in lines
    assert "| SupHAP | 8 × 96 | 2.5 s | 4.88 GiB |" in lines


def test_tables_say_how_and_where_they_were_made(run):
    text = run.markdown()
    assert "    suprank bench losses\n" in text
    assert run.hardware in text
    assert f"torch {torch.__version__}" in text
    assert "perf_counter" in text
    assert f"torch threads: {torch.get_num_threads()}" in text


@pytest.mark.parametrize("kept", ["batches", "memory", "nothing"])
def test_the_figure_is_drawn_whatever_was_measured(run, kept, tmp_path):
    pytest.importorskip("matplotlib")
    from suprank.bench.plot import draw

    found = [one for one in run.measurements if {"batches": not one.memory, "memory": one.memory, "nothing": False}[kept]]
    draw(Run.here(found, command="", device=torch.device("cpu")), tmp_path / "losses.png")
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")
