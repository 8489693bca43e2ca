"""suprank sweep: what is run, what is left alone, and what is written and said."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from suprank.cli.main import main
from suprank.experiments import old_runner as runner
from suprank.experiments import plots, slurm
from tests.cli.collection import done, refused
from tests.experiments.runs import trainer_command


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder with a recipe, where training is the stand-in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "train_command", trainer_command)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    Path("r.toml").write_text('[data]\nmanifest = "glyphs"\n[loss]\nname = "roadmap"\n')
    return tmp_path


@pytest.fixture
def undrawn(monkeypatch):
    """Without the figure, which takes most of the time."""
    monkeypatch.setattr(plots, "draw_sweep", lambda table, files: True)


def begun(name):
    return len(Path("s", name, "begun").read_text())


def test_a_sweep_runs_all_and_writes_table_and_figure(monkeypatch):
    command = ["sweep", "r.toml", "loss.weight=0.1,0.5", "batch.size=64", "--seeds", "2", "--out", "s"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/suprank", *command])
    result = done(*command)
    assert Path("s/table.md").read_text() == (
        "| loss.weight | R@1, % | H-AP, % |\n"
        "| --- | ---: | ---: |\n"
        "| 0.1 | 10.50 ± 0.71 | 5.25 ± 0.35 |\n"
        "| 0.5 | 50.50 ± 0.71 | 25.25 ± 0.35 |\n"
    )
    assert "50.50 ± 0.71" in result.stdout
    assert "**" not in result.stdout
    assert "loss.weight=0.5,seed=1: finished" in result.stderr
    assert "4/4" in result.stderr
    assert len(Path("s/table.csv").read_text().splitlines()) == 5
    assert Path("s/plot.png").stat().st_size > 1000
    assert "λ" in Path("s/plot.svg").read_text()
    noted = json.loads(Path("s/sweep.json").read_text())
    assert noted["settings"]["batch.size"] == 64
    assert noted["commands"] == ["suprank sweep r.toml loss.weight=0.1,0.5 batch.size=64 --seeds 2 --out s"]


@pytest.mark.usefixtures("undrawn")
def test_metrics_can_be_chosen_later_without_running_anything():
    done("sweep", "r.toml", "loss.weight=0.1,0.5", "--out", "s", "--quiet")
    done("sweep", "r.toml", "--out", "s", "--collect", "--metric", "ap/group")
    assert Path("s/table.md").read_text().startswith("| loss.weight | AP/group, % |")
    assert "no run measured NDCG; choose from R@1, H-AP, AP/group" in refused(
        "sweep", "r.toml", "--out", "s", "--collect", "--metric", "NDCG"
    )
    assert begun("loss.weight=0.1,seed=0") == 1


def test_the_increase_over_a_value_has_a_table_and_a_figure_of_its_own():
    done("sweep", "r.toml", "loss.weight=0.1,0.5", "batch.size=32,64", "--relative-to", "loss.weight=0.1", "--out", "s")
    assert Path("s/relative.md").read_text().splitlines()[2] == "| 0.5 | 32 | 400.00 | 400.00 |"
    assert "relative to λ = 0.1" in Path("s/relative.svg").read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_value_in_brackets_is_printed_as_it_is():
    result = done("sweep", "r.toml", "loss.weight=0.1", "model.weights='[b]','[i]'", "--out", "s", "--quiet")
    assert "'[b]'" in result.stdout
    assert "| '[b]' |" in Path("s/table.md").read_text()


def test_a_dry_run_prints_commands_and_makes_nothing(folder):
    result = done("sweep", "r.toml", "loss.weight=0.1,0.5", "batch.size=64", "--out", "s", "--dry-run")
    first, second = result.stdout.splitlines()
    assert first.endswith(f"{folder}/r.toml batch.size=64 loss.weight=0.1 run.seed=0 --out {folder}/s/loss.weight=0.1,seed=0")
    assert "loss.weight=0.5" in second
    assert not Path("s").exists()


def test_what_cannot_be_run_is_refused_before_anything_is_made():
    assert "loss.weight=1.5,seed=0 cannot be run" in refused("sweep", "r.toml", "loss.weight=0,1.5", "--out", "s")
    assert "has an empty value" in refused("sweep", "r.toml", "loss.weight=0,", "--out", "s")
    assert "both give the seeds" in refused("sweep", "r.toml", "run.seed=0,1", "--seeds", 2, "--out", "s")
    assert "is no value of an axis" in refused(
        "sweep", "r.toml", "loss.weight=0,1", "--relative-to", "loss.rho=1", "--out", "s"
    )
    assert "nothing to collect" in refused("sweep", "r.toml", "--collect", "--out", "s")
    assert "metric" in refused("sweep", "r.toml", "--metric", "nonsense", "--out", "s")
    assert not Path("s").exists()


@pytest.mark.usefixtures("undrawn")
def test_an_array_is_submitted_and_collected_later(monkeypatch):
    jobs = []
    submit_tasks = slurm.submit_tasks

    def kept(*arguments):
        found = submit_tasks(*arguments)
        jobs.extend(found.values())
        return found

    monkeypatch.setattr(slurm, "submit_tasks", kept)
    command = ("sweep", "r.toml", "loss.weight=0.1,0.5", "--out", "s", "--slurm", "cluster=local", "--slurm", "time=2")
    result = done(*command)
    assert "submitted 2 runs" in result.stderr
    assert f"{jobs[0].job_id}: loss.weight=0.1,seed=0" in result.stderr
    for job in jobs:
        job.result()
    result = done(*command)
    assert "2 of 2 runs are finished already" in result.stderr
    assert "submitted" not in result.stderr
    assert "| 0.5 | 50.00 | 25.00 |" in Path("s/table.md").read_text()
    assert len(jobs) == 2


def test_runs_in_the_queue_are_not_submitted_twice(monkeypatch):
    monkeypatch.setattr(slurm, "queued_jobs", lambda folder: {f"loss.weight={value},seed=0": "7_0" for value in ("0.1", "0.5")})
    result = done("sweep", "r.toml", "loss.weight=0.1,0.5", "--out", "s", "--slurm", "partition=gpu")
    assert "2 runs are in the queue already, or too new for SLURM to know them: 7_0" in result.stderr
    assert "none of 2 runs is finished" in result.stderr


def test_without_submitit_the_extra_that_brings_it_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "submitit.slurm.slurm", None)
    monkeypatch.setitem(sys.modules, "submitit", None)
    command = ["suprank", "sweep", "r.toml", "loss.weight=0.1,0.5", "--out", "s", "--slurm", "partition=gpu"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match="1"):
        main()
    assert 'this needs submitit, which is not installed; pip install "suprank[train]"' in capsys.readouterr().err
    assert not Path("s").exists()


PAGE = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text().replace("\\\n", "")


@pytest.mark.parametrize("command", re.findall(r"^\$ suprank (sweep .+)$", PAGE, flags=re.MULTILINE))
def test_the_commands_of_the_documentation_are_ones_that_can_be_run(command):
    assert len(done(*shlex.split(command), "--dry-run").stdout.splitlines()) >= 12
