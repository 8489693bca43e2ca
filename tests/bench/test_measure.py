import sys

import pytest

pytest.importorskip("typer")

from bench import EVALUATORS, LOSS_CASES, EvaluationBenchmarkRun, LossBenchmarkRun
from measure import app
from typer.testing import CliRunner


def invoke(*arguments, verb="losses"):
    return CliRunner().invoke(app, [verb, *map(str, arguments)], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("losses", "--batch --loss --device --repeats --seconds --max-memory --memory --queries --out"),
        ("evaluation", "--case --items --queries --evaluator --device --threads --quick --out"),
    ],
)
def test_help_lists_the_options(verb, options):
    result = invoke("--help", verb=verb)
    assert result.exit_code == 0
    for option in options.split():
        assert option in result.output


LOSSES = [
    (("--batch", 10), "batch=10 must be a positive multiple of 4"),
    (("--batch", "many"), "--batch"),
    (("--loss", "SupMAP"), "there is no 'SupMAP'; choose from similarity product, SupAP"),
    (("--device", "abacus"), "'abacus' is not a device"),
    (("--device", "cuda:99"), "'cuda:99' cannot be measured"),
    (("--repeats", 0), "--repeats"),
    (("--memory", 48, "--queries", 6), "queries=6 must be a positive multiple of 4; "),
    (("--memory", 48, "--loss", "SmoothAP"), "none of these losses can rank against a memory"),
]
EVALUATION = [
    (("--case", "flickr"), "there is no 'flickr'; choose from sop, inat, gldv2, million."),
    (("--evaluator", "ranx"), "there is no 'ranx'; choose from similarity product alone, faiss, suprank"),
    (("--case", "sop", "--items", 70_000), "items=70000 must be from 2 to 60502, which is all of sop; try 60502."),
    (("--threads", 0), "--threads"),
    (("--device", "abacus"), "'abacus' is not a device"),
]


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [*(("losses", *one) for one in LOSSES), *(("evaluation", *one) for one in EVALUATION)],
)
def test_bad_arguments_exit_with_2_and_say_why(verb, arguments, message):
    result = invoke("--device", "cpu", *arguments, verb=verb)
    assert result.exit_code == 2
    assert message.removesuffix("; ") in " ".join(result.output.replace("│", " ").split())


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(tmp_path):
    (tmp_path / "file").touch()
    result = invoke("--device", "cpu", "--batch", 16, "--loss", "SupAP", "--out", tmp_path / "file" / "folder")
    assert result.exit_code == 2
    assert "the folder cannot be made (File exists)" in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize("content", ["no json", "{}", "[]", '{"measurements": [{"case": 1}]}'])
def test_render_refuses_a_file_that_is_no_run(tmp_path, content):
    (tmp_path / "losses.json").write_text(content)
    result = CliRunner().invoke(app, ["render", str(tmp_path / "losses.json")])
    assert result.exit_code == 2
    assert "is not a run" in " ".join(result.output.replace("│", " ").split())


@pytest.fixture
def in_this_process(monkeypatch):
    """Measure here: tests/bench has the processes of their own, each of which takes seconds to start."""
    import torch
    from bench import evaluation_benchmark, loss_benchmark

    def measure_loss(case, workload, *, repeats, seconds, max_bytes):
        return loss_benchmark.measure_here(case, workload, device=torch.device("cpu"), repeats=repeats, seconds=seconds)

    def measure_evaluator(evaluator, collection, settings):
        options = {"device": settings.device, "repeats": settings.repeats, "seconds": settings.seconds}
        return evaluation_benchmark.measure_here(evaluator, collection, **options)

    monkeypatch.setattr(loss_benchmark, "measure_in_child", measure_loss)
    monkeypatch.setattr(evaluation_benchmark, "measure_in_child", measure_evaluator)


@pytest.mark.usefixtures("in_this_process")
def test_a_tiny_run_prints_tables_and_writes_three_files(tmp_path):
    pytest.importorskip("matplotlib")
    result = invoke(
        "--device", "cpu", "--batch", 16, "--memory", 48, "--queries", 8, "--loss", "supap", "--repeats", 1, "--out", tmp_path
    )
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["losses.json", "losses.md", "losses.png"]
    run = LossBenchmarkRun.load(tmp_path / "losses.json")
    assert [(found.case, found.items) for found in run.measurements] == [("SupAP", 16), ("SupAP", 48)]
    assert (
        "python benchmarks/measure.py losses --device cpu --batch 16 --memory 48 --queries 8 --loss SupAP --repeats 1"
        in run.command
    )
    assert (tmp_path / "losses.md").read_text(encoding="utf-8") in result.stdout


def test_ctrl_c_keeps_what_was_measured(tmp_path, monkeypatch):
    import bench

    def interrupted(planned, settings, *, on_start):
        case, workload = planned[0]
        on_start(case, workload)
        yield bench.LossMeasurement(case.name, case.kind, 16, 16, 0, 0.001, 1, 0.001, 2**20)
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "measure_losses", interrupted)
    result = invoke("--device", "cpu", "--batch", 16, "--out", tmp_path)
    assert result.exit_code == 130
    assert [found.case for found in LossBenchmarkRun.load(tmp_path / "losses.json").measurements] == [next(iter(LOSS_CASES))]


def test_without_matplotlib_the_numbers_are_still_written(tmp_path, monkeypatch):
    import bench

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "bench.benchmark_plots", raising=False)
    monkeypatch.setattr(bench, "measure_losses", lambda planned, settings, *, on_start: iter(()))
    result = invoke("--device", "cpu", "--batch", 16, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "python benchmarks/measure.py render" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["losses.json", "losses.md"]


def test_render_draws_a_saved_run(tmp_path):
    pytest.importorskip("matplotlib")
    import torch

    LossBenchmarkRun.here([], command="python benchmarks/measure.py losses", device=torch.device("cpu")).save(
        tmp_path / "losses.json"
    )
    result = CliRunner().invoke(app, ["render", str(tmp_path / "losses.json")])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["losses.json", "losses.md", "losses.png"]


@pytest.mark.usefixtures("in_this_process")
def test_a_tiny_evaluation_prints_tables_and_writes_three_files_that_render_again(tmp_path):
    pytest.importorskip("matplotlib")
    options = ("--device", "cpu", "--case", "SOP", "--items", 300, "--threads", 1, "--seconds", 60, "--out", tmp_path)
    result = invoke(*options, "--evaluator", "Suprank", verb="evaluation")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evaluation.json", "evaluation.md", "evaluation.png"]
    run = EvaluationBenchmarkRun.load(tmp_path / "evaluation.json")
    (found,) = run.measurements
    assert (found.evaluator, found.items, found.note, found.threads) == ("suprank", 300, "", 1)
    assert 0.5 < found.values["R@1"] <= 1
    assert (
        "python benchmarks/measure.py evaluation --device cpu --case sop --items 300 --evaluator suprank --threads 1"
        in run.command
    )
    printed = (tmp_path / "evaluation.md").read_text(encoding="utf-8")
    assert printed in result.stdout

    (tmp_path / "evaluation.md").unlink()
    (tmp_path / "evaluation.png").unlink()
    result = CliRunner().invoke(app, ["render", str(tmp_path / "evaluation.json")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "evaluation.md").read_text(encoding="utf-8") == printed
    assert (tmp_path / "evaluation.png").exists()


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ((), ["sop 5,000 × 5,000", "sop 20,000 × 20,000", "sop 60,502 × 60,502"]),
        (("--quick",), ["sop 1,000 × 1,000", "sop 2,000 × 2,000", "sop 5,000 × 5,000"]),
        (("--quick", "--case", "million"), ["million 1,000 × 1,000", "million 1,000 × 2,000", "million 1,000 × 5,000"]),
        (("--case", "gldv2", "--queries", 10, "--queries", 100), ["gldv2 10 × 761,757", "gldv2 100 × 761,757"]),
        (("--case", "inat", "--items", 500), ["inat 500 × 500"]),
    ],
)
def test_sizes_are_those_asked_for_or_the_collections_own(arguments, sizes, monkeypatch):
    import bench

    planned = []
    monkeypatch.setattr(bench, "measure_evaluation", lambda given, settings, *, on_start: iter(planned.extend(given) or ()))
    result = invoke("--device", "cpu", *arguments, verb="evaluation")
    assert result.exit_code == 0, result.output
    assert list(dict.fromkeys(collection.size for _, collection in planned)) == sizes
    assert len(planned) == len(sizes) * len(EVALUATORS)
