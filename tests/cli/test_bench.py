import sys

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from suprank.bench import CASES, Run
from suprank.cli.bench import app


def invoke(*arguments):
    return CliRunner().invoke(app, ["losses", *map(str, arguments)], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def test_help_lists_the_options():
    result = invoke("--help")
    assert result.exit_code == 0
    for option in ("--batch", "--loss", "--device", "--repeats", "--seconds", "--max-memory", "--memory", "--queries", "--out"):
        assert option in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch", 10), "batch=10 must be a positive multiple of 4"),
        (("--batch", "many"), "--batch"),
        (("--loss", "SupMAP"), "there is no 'SupMAP'; choose from similarity product, SupAP"),
        (("--device", "abacus"), "'abacus' is not a device"),
        (("--device", "cuda:99"), "'cuda:99' cannot be measured"),
        (("--repeats", 0), "--repeats"),
        (("--memory", 48, "--queries", 6), "queries=6 must be a positive multiple of 4; "),
        (("--memory", 48, "--loss", "SmoothAP"), "none of these losses is measured against a memory"),
    ],
)
def test_bad_arguments_exit_with_2_and_say_why(arguments, message):
    result = invoke("--device", "cpu", *arguments)
    assert result.exit_code == 2
    assert message.removesuffix("; ") in " ".join(result.output.replace("│", " ").split())


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(tmp_path):
    (tmp_path / "file").touch()
    result = invoke("--device", "cpu", "--batch", 16, "--loss", "SupAP", "--out", tmp_path / "file" / "folder")
    assert result.exit_code == 2
    assert "cannot be made: Not a directory" in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize("content", ["no json", "{}", "[]", '{"measurements": [{"case": 1}]}'])
def test_render_refuses_a_file_that_is_no_run(tmp_path, content):
    (tmp_path / "losses.json").write_text(content)
    result = CliRunner().invoke(app, ["render", str(tmp_path / "losses.json")])
    assert result.exit_code == 2
    assert "is not a run" in " ".join(result.output.replace("│", " ").split())


def test_a_tiny_run_prints_tables_and_writes_three_files(tmp_path):
    pytest.importorskip("matplotlib")
    result = invoke(
        "--device", "cpu", "--batch", 16, "--memory", 48, "--queries", 8, "--loss", "supap", "--repeats", 1, "--out", tmp_path
    )
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["losses.json", "losses.md", "losses.png"]
    run = Run.load(tmp_path / "losses.json")
    assert [(found.case, found.items) for found in run.measurements] == [("SupAP", 16), ("SupAP", 48)]
    assert "suprank bench losses --device cpu --batch 16 --memory 48 --queries 8 --loss SupAP --repeats 1" in run.command
    assert (tmp_path / "losses.md").read_text(encoding="utf-8") in result.stdout


def test_ctrl_c_keeps_what_was_measured(tmp_path, monkeypatch):
    import suprank.bench

    def interrupted(planned, settings, *, starting):
        case, workload = planned[0]
        starting(case, workload)
        yield suprank.bench.Measurement(case.name, case.kind, 16, 16, 0, 0.001, 1, 0.001, 2**20)
        raise KeyboardInterrupt

    monkeypatch.setattr(suprank.bench, "measurements", interrupted)
    result = invoke("--device", "cpu", "--batch", 16, "--out", tmp_path)
    assert result.exit_code == 130
    assert [found.case for found in Run.load(tmp_path / "losses.json").measurements] == [next(iter(CASES))]


def test_without_matplotlib_the_numbers_are_still_written(tmp_path, monkeypatch):
    import suprank.bench

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "suprank.bench.plot", raising=False)
    monkeypatch.setattr(suprank.bench, "measurements", lambda planned, settings, *, starting: iter(()))
    result = invoke("--device", "cpu", "--batch", 16, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "suprank bench render" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["losses.json", "losses.md"]


def test_render_draws_a_saved_run(tmp_path):
    pytest.importorskip("matplotlib")
    import torch

    Run.here([], command="suprank bench losses", device=torch.device("cpu")).save(tmp_path / "losses.json")
    result = CliRunner().invoke(app, ["render", str(tmp_path / "losses.json")])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["losses.json", "losses.md", "losses.png"]
