"""suprank compare: what is run, what is left alone, and what is written and said."""

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from suprank import experiments
from suprank.evaluation import Report
from suprank.evaluation.units import TRAINING
from suprank.executors.local import ExperimentStopped
from suprank.experiments import plots
from suprank.experiments.experiment import Executor
from suprank.training.recipe import to_toml
from suprank.training.run_folder import RunFolder
from tests.cli.collection import done, invoke, refused
from tests.experiments.runs import pretend, training_by, write_recipe
from tests.training import runs

SINGLE = "No row is bold: a single training says nothing about another one of the same recipe; train each with several seeds."
train_in_processes = Executor.train


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder with recipes, where training is `pretend`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Executor, "train", training_by(pretend))
    for name, weight in {"low": 0.1, "high": 0.5, "broken": 0.6, "more": 0.8}.items():
        write_recipe(name, weight)
    write_recipe("fast", 0.9, optimizer={"lr": 0.25})
    return tmp_path


@pytest.fixture
def undrawn(monkeypatch):
    """Without the figure, which takes most of the time."""
    for function in ("draw_comparison", "draw_sweep"):
        monkeypatch.setattr(plots, function, lambda table: [])


def begun(*names):
    return [len(Path("c", name, "begun").read_text()) for name in names]


def rows(name="comparison"):
    """The labels of the table's rows."""
    lines = Path("c", f"{name}.md").read_text().split("\n\n")[0].splitlines()[2:]
    return [line.split(" | ")[0].removeprefix("| ") for line in lines]


def test_a_comparison_runs_all_and_writes_tables_and_figure(monkeypatch):
    command = ["compare", "high.toml", "low.toml", "batch.size=64", "--seeds", "2", "--out", "c"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/suprank", *command])
    result = done(*command)
    assert Path("c/comparison.md").read_text() == (
        "| recipe | R@1, % | AP, % | H-AP, % | s |\n"
        "| --- | ---: | ---: | ---: | ---: |\n"
        "| high | 50.50 ± 0.71 | – | 25.25 ± 0.35 | 1.5 |\n"
        "| low | 10.50 ± 0.71 | – | 5.25 ± 0.35 | 1.5 |\n"
        "\n"
        "In percent, after the last epoch, mean ± standard deviation (n − 1) over 2 seeds. s: seconds that the training steps "
        "of a run took. No row is bold: high,seed=0 has no report of its last epoch.\n"
    )
    written = Path("c/comparison.tex").read_text()
    assert written.startswith("% suprank compare high.toml low.toml batch.size=64 --seeds 2 --out c\n")
    assert r"high & 50.5$_{\pm 0.7}$ & -- & 25.2$_{\pm 0.4}$ \\" in written
    assert "50.50 ± 0.71" in result.stdout
    assert "**" not in result.stdout
    assert "high,seed=1: done  R@1 51.00  0:00:00  (2 of 4 done, 0 running, 0 failed, about " in result.stderr
    assert "(4 of 4 done, 0 running, 0 failed, best so far: R@1 51.00 (high,seed=1))" in result.stderr
    assert Path("c/comparison.csv").read_text().splitlines()[4].startswith('"low,seed=1",low,1,yes,3,30,1.5,0.11,')
    assert Path("c/comparison.png").stat().st_size > 1000
    assert ">high</text>" in Path("c/comparison.svg").read_text()
    noted = json.loads(Path("c/experiment.json").read_text())
    assert noted["methods"]["low"]["settings"]["batch.size"] == 64
    assert noted["commands"] == ["suprank compare high.toml low.toml batch.size=64 --seeds 2 --out c"]


def save_reports(query_values, classes):
    """Give every run of the folder `c` a report with these values of R@1, by label, and a little noise."""
    noise = np.random.default_rng(0)
    for folder in sorted(Path("c").glob("*,seed=*")):
        own = query_values[folder.name.partition(",")[0]] + noise.normal(0, 0.01, len(classes))
        per_query = {"R@1": own, "H-AP": own}
        report = Report(
            {key: float(values.mean()) for key, values in per_query.items()},
            n_queries=len(own),
            n_items=len(own),
            per_query=per_query,
            classes={"class": classes},
            settings={TRAINING: {"classes_seen": 0}},
        )
        report.save(RunFolder(folder).report_file("test", 3))


@pytest.mark.usefixtures("undrawn")
def test_bold_needs_several_trainings_and_a_difference_on_many_classes():
    classes = np.arange(80) // 4
    everywhere, in_two = np.full(80, 0.5), np.where(classes < 2, 0.5, 0.1)
    done("compare", "high.toml", "low.toml", "--out", "c", "--metric", "R@1", "--quiet")
    save_reports({"high": everywhere, "low": np.full(80, 0.1)}, classes)
    done("compare", "--collect", "--out", "c", "--metric", "R@1")
    assert "**" not in Path("c/comparison.md").read_text()
    assert Path("c/comparison.md").read_text().endswith(f"{SINGLE}\n")
    done("compare", "high.toml", "low.toml", "--seeds", 2, "--out", "c", "--metric", "R@1", "--quiet")
    for better, bold in ((everywhere, True), (in_two, False)):
        save_reports({"high": better, "low": np.full(80, 0.1)}, classes)
        done("compare", "--collect", "--out", "c", "--metric", "R@1")
        written = Path("c/comparison.md").read_text()
        assert ("| high | **50.50 ± 0.71** |" in written) == bold
        assert ("**" in written) == bold
        assert ("textbf" in Path("c/comparison.tex").read_text()) == bold
        assert "Measured on 20 classes that no model has seen (unit: class)." in written
        assert (
            "t-test over trainings and classes, p < 0.05 after Holm's correction for the 1 comparison of the table" in written
        )


@pytest.mark.usefixtures("undrawn")
def test_what_is_finished_is_not_run_again_and_further_recipes_and_seeds_are_added():
    done("compare", "low.toml", "high.toml", "--out", "c", "--jobs", 2)
    result = done("compare", "more.toml", "high.toml", "--out", "c")
    assert "1 of 2 runs are finished already" in result.stderr
    assert begun("low,seed=0", "high,seed=0", "more,seed=0") == [1, 1, 1]
    assert rows() == ["low", "high", "more"]
    done("compare", "low.toml", "--seeds", 2, "--out", "c", "--quiet")
    assert begun("low,seed=0", "low,seed=1") == [1, 1]
    assert "| low | 2 of 2 | 10.50 ± 0.71 |" in Path("c/comparison.md").read_text()
    assert "| high | 1 of 1 | 50.00 |" in Path("c/comparison.md").read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_fails_is_shown_and_resumed_when_the_command_is_given_again():
    command = ("compare", "low.toml", "broken.toml", "more.toml", "--out", "c")
    result = invoke(*command)
    assert result.exit_code == 1
    log = Path("c/logs/broken,seed=0.log").absolute()
    assert f"broken,seed=0 failed: the disk is full\nIts log is {log}." in result.stderr
    assert "(1 of 3 done, 0 running, 1 failed, about " in result.stderr
    assert "1 of 3 runs failed: broken,seed=0" in result.stderr
    assert "| broken | 0 of 1 | – | – | – | – |" in Path("c/comparison.md").read_text()
    Path("repaired").touch()
    done(*command)
    assert begun("low,seed=0", "broken,seed=0", "more,seed=0") == [1, 2, 1]
    assert "0 of 1" not in Path("c/comparison.md").read_text()


def test_tables_of_some_recipes_are_made_of_one_folder_without_running_anything(monkeypatch):
    done("compare", "low.toml", "high.toml", "more.toml", "--out", "c", "--quiet")
    command = ["compare", "more", "low.toml", "--collect", "--name", "some", "--metric", "ap/group", "--out", "c"]
    monkeypatch.setattr(sys, "argv", ["suprank", *command])
    done(*command)
    assert rows("some") == ["more", "low"]
    assert rows() == ["low", "high", "more"]
    assert "| recipe | AP/group, % | s |" in Path("c/some.md").read_text()
    assert Path("c/some.tex").read_text().startswith(f"% {shlex.join(['suprank', *command])}\n")
    assert len(Path("c/some.csv").read_text().splitlines()) == 3
    assert Path("c/some.svg").exists()
    assert Path("c/some.png").exists()
    done("compare", "--collect", "--out", "c", "--name", "all")
    assert rows("all") == ["low", "high", "more"]
    assert begun("low,seed=0", "high,seed=0", "more,seed=0") == [1, 1, 1]


@pytest.mark.usefixtures("undrawn")
def test_recipes_may_differ_in_what_is_allowed_and_the_table_says_so():
    write_recipe("small", 0.3, batch={"size": 64})
    write_recipe("long", run={"epochs": 300})
    assert "allow it by may_differ=batch.size" in refused("compare", "low.toml", "small.toml", "--out", "c")
    command = ("compare", "low.toml", "small.toml", "--may-differ", "batch.size", "--out", "c")
    assert len(done(*command, "--dry-run").stdout.splitlines()) == 2
    result = done(*command, "--quiet")
    note = "batch.size is 256 in low, 64 in small."
    assert note in result.stderr
    assert Path("c/comparison.md").read_text().endswith(f"{note} {SINGLE}\n")
    done("compare", "--collect", "--name", "again", "--out", "c")
    assert Path("c/again.md").read_text().endswith(f"{note} {SINGLE}\n")
    done("compare", "high.toml", "small.toml", "--out", "c", "--quiet")  # what was allowed once stays allowed
    assert rows() == ["low", "small", "high"]
    assert "run.epochs is 300 in long" in refused("compare", "long.toml", "--out", "c")
    unknown = refused("compare", "low.toml", "--may-differ", "batch.sise", "--out", "c")
    assert "may_differ=batch.sise is neither a key nor a table of the recipes" in unknown


def test_a_dry_run_prints_commands_and_makes_nothing(folder):
    result = done("compare", "low.toml", "high.toml", "batch.size=64", "--out", "c", "--dry-run")
    first, second = result.stdout.splitlines()
    out = f"--out {folder}/c/low,seed=0 --resume"
    assert first == f"suprank train {folder}/low.toml batch.size=64 run.seed=0 {out}"
    assert "high.toml" in second
    assert not Path("c").exists()


def test_what_cannot_be_compared_is_refused_before_anything_is_made():
    write_recipe("long", run={"epochs": 300})
    for words, complaint in {
        (): "there is no recipe to compare; name some",
        ("batch.size=64",): "there is no recipe to compare",
        ("low.toml", "low.toml"): "is given twice; leave one out",
        ("low.toml", "cub/roadmop"): "did you mean cub/roadmap",
        ("low.toml", "long.toml"): "run.epochs is 100 in low, 300 in long. Give one value for all, run.epochs=...",
        ("low.toml", "loss.weight=0,1.5"): "low,loss.weight=1.5,seed=0 cannot be run",
        ("low.toml", "loss.weight=0,"): "has an empty value",
        ("low.toml", "loss.weight=0,1", "--relative-to", "loss.rho=1"): "relative_to=loss.rho=1 is no value of an axis",
        ("low.toml", "loss.weight=0,1", "--tune", 3): "loss.weight has several values, and tune would",
        ("low.toml", "run.seed=0,1", "--seeds", 2): "both give the seeds",
        ("low.toml", "--collect"): "has no experiment.json, so there is nothing to collect",
        ("low.toml", "--metric", "nonsense"): "metric",
        ("low.toml", "--name", "a/b"): "name='a/b' must be the beginning of a file's name",
        ("low.toml", "--name", ""): "must be the beginning of a file's name",
    }.items():
        assert complaint in refused("compare", *words, "--out", "c")
    assert not Path("c").exists()
    done("compare", "low.toml", "long.toml", "run.epochs=3", "--out", "c", "--dry-run")


@pytest.mark.usefixtures("undrawn")
def test_what_collecting_would_not_read_is_refused():
    done("compare", "low.toml", "--out", "c", "--quiet")
    assert "--collect runs nothing, so batch.size=64 would" in refused("compare", "batch.size=64", "--collect", "--out", "c")
    assert "--collect runs nothing, so --seeds 2 would" in refused("compare", "--seeds", 2, "--collect", "--out", "c")
    assert "so --may-differ run would" in refused("compare", "--may-differ", "run", "--collect", "--out", "c")
    assert "high is not in the experiment; choose from low" in refused("compare", "high", "--collect", "--out", "c")
    assert "no run measured NDCG" in refused("compare", "--metric", "NDCG", "--collect", "--out", "c")


def test_tuning_needs_its_number_of_trials_and_collecting_none():
    for option in (("--folds", 2), ("--search", "loss.tau="), ("--fold-level", "genus")):
        assert f"{option[0]} is an option of the search" in refused("compare", "low.toml", *option, "--out", "c")
    assert "--collect runs nothing, so --tune 3 would" in refused("compare", "--tune", 3, "--collect", "--out", "c")
    assert "search=loss.tau must be KEY=LOW:HIGH" in refused(
        "compare", "low.toml", "--tune", 3, "--search", "loss.tau", "--out", "c"
    )
    assert not Path("c").exists()


def test_a_dry_run_of_a_search_says_how_many_runs_it_has():
    result = done("compare", "low.toml", "high.toml", "--tune", 5, "--folds", 3, "--seeds", 2, "--out", "c", "--dry-run")
    assert len(result.stdout.splitlines()) == 4
    assert "evaluation.every=0 evaluation.at_start=false" in result.stdout
    assert "before these, 30 runs of the search; after them, 4 with the best settings." in result.stderr


def test_without_optuna_the_extra_that_brings_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = invoke("compare", "low.toml", "--tune", 2, "--out", "c")
    assert result.exception.name == "optuna", "by which `main` knows the extra"
    assert 'tuning needs optuna, which is not installed; pip install "suprank[train]"' in str(result.exception)
    assert not Path("c").exists()


def test_stopping_says_how_to_go_on(monkeypatch):
    def stopped(*arguments):
        raise ExperimentStopped(2)
        yield

    monkeypatch.setattr(Executor, "train", stopped)
    result = invoke("compare", "low.toml", "high.toml", "--out", "c")
    assert result.exit_code == 130
    assert "stopped by SIGINT" in result.stderr
    assert "same command again" in result.stderr


# Several values of a key


def test_values_have_a_table_and_a_figure_and_so_has_the_increase_over_one():
    values = ("loss.weight=0.1,0.5", "batch.size=32,64", "--relative-to", "loss.weight=0.1")
    result = done("compare", "low.toml", *values, "--metric", "R@1", "--out", "c")
    assert Path("c/comparison.md").read_text().splitlines()[:4] == [
        "| loss.weight | batch.size | R@1, % | s |",
        "| --- | --- | ---: | ---: |",
        "| 0.1 | 32 | 10.00 | 1.5 |",
        "| 0.1 | 64 | 10.00 | 1.5 |",
    ]
    assert r"loss.weight=0.1, batch.size=32 & 10.0 \\" in Path("c/comparison.tex").read_text()
    assert "λ" in Path("c/comparison.svg").read_text()
    assert Path("c/comparison-relative.md").read_text().splitlines()[2] == "| 0.5 | 32 | 400.00 |"
    assert "relative to λ = 0.1" in Path("c/comparison-relative.svg").read_text()
    assert "400.00" in result.stdout


@pytest.mark.usefixtures("undrawn")
def test_a_value_in_brackets_is_printed_as_it_is():
    result = done("compare", "low.toml", "model.weights='[b]','[i]'", "--out", "c", "--quiet")
    assert "'[b]'" in result.stdout
    assert "| '[b]' |" in Path("c/comparison.md").read_text()


def test_without_matplotlib_there_are_tables_and_no_figure(monkeypatch):
    monkeypatch.delitem(sys.modules, "suprank.experiments.plots")
    monkeypatch.delattr(experiments, "plots")
    monkeypatch.delitem(sys.modules, "matplotlib.figure")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = done("compare", "low.toml", "--out", "c", "--quiet")
    assert "no figure, because matplotlib is not installed" in result.stderr
    assert Path("c/comparison.tex").exists()
    assert not Path("c/comparison.png").exists()


@pytest.mark.slow
def test_a_loss_is_trained_and_compared(folder, monkeypatch):
    monkeypatch.setattr(Executor, "train", train_in_processes)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    manifest = runs.pictures(folder / "pictures")
    Path("tree.toml").write_text(to_toml(runs.recipe(manifest, loss={"name": "happier", "weight": 0.1})))
    done("compare", "tree.toml", "run.epochs=1", "--out", "c", "--quiet")
    assert rows() == ["tree"]
    numbers = re.findall(r"\| \**(\d+\.\d\d)\** ", Path("c/comparison.md").read_text())
    assert len(numbers) == 3, "R@1, AP and H-AP"
    assert all(0 < float(number) <= 100 for number in numbers)
    assert json.loads(Path("c/tree,seed=0/result.json").read_text())["epoch"] == 1
    assert Path("c/tree,seed=0/model/model.safetensors").exists()


PAGE = (Path(__file__).parents[2] / "docs" / "comparing.md").read_text().replace("\\\n", "")


@pytest.mark.parametrize("command", re.findall(r"^\$ suprank (compare (?:(?!--collect).)+)$", PAGE, flags=re.MULTILINE))
def test_the_commands_of_the_documentation_are_ones_that_can_be_run(command):
    command = re.sub(
        r"(\S+/)\{(.+?)\}", lambda found: " ".join(found[1] + one for one in found[2].split(",")), command
    )  # shell
    assert len(done(*shlex.split(command), "--dry-run").stdout.splitlines()) >= 2


def test_every_table_of_the_documentation_is_of_runs_that_it_makes():
    made = set(re.findall(r"[\w-]+", " ".join(re.findall(r"cub112/\{(.+?)\}", PAGE))))
    collected = re.findall(r"^\$ suprank compare (.+?) --metric.+--collect.*--out cub112$", PAGE, flags=re.MULTILINE)
    assert len(collected) == 5
    assert {name for line in collected for name in line.split()} <= made
