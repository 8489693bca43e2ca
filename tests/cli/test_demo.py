"""suprank demo: what it trains and on what, its table, how it ends and goes on; refusals."""

import json
import os
import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from suprank.cli import demo as verb
from suprank.data import Manifest
from suprank.evaluation import Report
from suprank.executors.local import Crashed, ExperimentStopped
from suprank.experiments.experiment import Executor
from suprank.training import checkpoint
from suprank.training.recipe import read_recipe
from tests.cli.collection import done, invoke, photographs, refused
from tests.experiments.runs import training_by

pytestmark = pytest.mark.xdist_group("demo")  # its trainings are started once, and not by every worker of pytest

ROOT = Path(__file__).parents[2]
SMALL = {
    **{"images.size": 32, "images.test_resize": 32, "batch.size": 32, "logging.every": 1, "logging.tensorboard": False},
    "engine.accelerator": "cpu",
}
settings = verb._settings


def small_settings(*arguments):
    """The demo's settings, for the 72 training images below."""
    return settings(*arguments) | SMALL


def command_line():
    """`suprank` with small trainings, for a process of its own."""
    from suprank.cli.main import main

    verb._settings = small_settings
    main()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder with the manifest of 144 pictures of 36 classes in 6 groups, half of the classes for test."""
    folder = tmp_path_factory.mktemp("pictures")
    root = photographs(folder / "photos", groups=6, classes=6, side=32)
    done("data", "import", "folder", root, "--holdout-classes", 0.5, "--out", folder / "m.parquet")
    return folder


@pytest.fixture(autouse=True)
def folder(pictures, monkeypatch, tmp_path):
    """The working folder, in which the manifest is m.parquet."""
    monkeypatch.chdir(tmp_path)
    Manifest.read(pictures / "m.parquet").save("m.parquet")
    return tmp_path


def report(h_ap, levels):
    values = {"R@1": 0.5, "mAP@R": 0.2, "AP": 0.4, **{f"AP/{level}": 0.25 for level in levels[1:]}, "ASI": 0.3, "NDCG": 0.6}
    counts = {"n_queries": 72, "n_items": 72, "levels": levels, "without_positives": dict.fromkeys(levels, 0)}
    return Report({**values, "H-AP": h_ap}, **counts)


@pytest.fixture
def training(monkeypatch):
    """In place of training: remembers what it was asked for, writes reports, and ends as it is told to."""
    fake = SimpleNamespace(runs=[], jobs=0, error=None, stopped=None, levels=("class", "group"))

    def write(config, folder):
        fake.runs.append((config, folder))
        if fake.error is not None:
            raise fake.error
        for epoch, value in ((0, 0.125), (config.run.epochs, 0.5 if config.loss.name == "happier" else 0.375)):
            path = folder / "reports" / f"test-epoch-{epoch:04}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            report(value, fake.levels).save(path)
        metrics = {"test": {"R@1": 0.5}}
        (folder / "result.json").write_text(json.dumps({"epoch": 8, "step": 9, "seconds": 1, "metrics": metrics}))

    def train(executor, tasks, *rest):
        fake.jobs = executor.jobs
        if fake.stopped is not None:
            raise ExperimentStopped(fake.stopped)
        return training_by(write)(executor, tasks, *rest)

    monkeypatch.setattr(Executor, "train", train)
    monkeypatch.setattr(verb, "_page", lambda folder, *runs_and_name: folder / "report.html")
    return fake


def row(output, metric):
    """The cells in the row of that name: untrained, Smooth-AP, HAPPIER, and the difference."""
    (line,) = [line for line in output.splitlines() if re.match(rf"\W+{metric} ", line)]
    return [cell.strip() for cell in line.split("│")[2:-1]]


# With real training


@pytest.fixture(scope="module")
def interrupted(forked, pictures):
    """The demo in a process of its own, that a terminal's Ctrl-C has stopped when both trainings had begun."""
    command = ("demo", "--data", "m.parquet", "--epochs", 16)
    process = forked.start(*command, cwd=pictures, call="tests.cli.test_demo:command_line")
    try:
        begun = [pictures / f"runs/demo/m-seed0-16epochs/{name},seed=0/metrics.jsonl" for name in ("smooth-ap", "happier")]
        end = time.monotonic() + 120
        while not all(file.is_file() and '"loss"' in file.read_text() for file in begun):
            assert time.monotonic() < end, process.end(1)
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        code, out, errors = process.end(120)
    finally:
        process.kill()
    return SimpleNamespace(folder=pictures, code=code, out=out, errors=errors)


def test_ctrl_c_saves_both_trainings_and_says_that_the_same_command_goes_on(interrupted):
    assert interrupted.code == 130
    assert "stopped by SIGINT; the runs have saved what they had. Give the same command again" in interrupted.errors
    assert "Traceback" not in interrupted.errors
    assert "HAPPIER − Smooth-AP" not in interrupted.out
    for name in ("smooth-ap", "happier"):
        assert checkpoint.newest_step(interrupted.folder / f"runs/demo/m-seed0-16epochs/{name},seed=0/checkpoints") > 0


def test_the_same_command_goes_on_to_a_table_and_once_finished_shows_it_at_once(interrupted, monkeypatch):
    monkeypatch.chdir(interrupted.folder)
    monkeypatch.setattr(verb, "_settings", small_settings)
    result = done("demo", "--data", "m.parquet", "--epochs", 16)
    assert "train  72 images: 18 class, 6 group" in result.stdout
    assert "test   72 images: 18 class, 6 group" in result.stdout
    folder = Path("runs/demo/m-seed0-16epochs")
    assert all("resuming from" in (folder / "logs" / f"{name},seed=0.log").read_text() for name in ("smooth-ap", "happier"))
    assert "(2 of 2 done, 0 running, 0 failed, best so far: " in result.stderr
    reports = [
        Report.load(folder / name)
        for name in (
            *("happier,seed=0/reports/test-epoch-0000.json", "smooth-ap,seed=0/reports/test-epoch-0016.json"),
            "happier,seed=0/reports/test-epoch-0016.json",
        )
    ]
    for metric in ("R@1", "AP", "H-AP", "NDCG", "ASI", "AP/group"):
        numbers = [100 * one[metric] for one in reports]
        assert row(result.stdout, metric) == [f"{number:.1f}" for number in numbers] + [f"{numbers[2] - numbers[1]:+.1f}"]
    assert reports[2]["H-AP"] > reports[0]["H-AP"], "training helps"
    for label, name in {"Smooth-AP": "smooth-ap,seed=0", "HAPPIER": "happier,seed=0"}.items():
        assert f"{label}: {folder / name / 'model'}\n" in result.stdout
        assert (folder / name / "model").is_dir()
    assert f"What they retrieve, side by side: {folder / 'report.html'}\n" in result.stdout
    page = (folder / "report.html").read_text()
    assert "<title>HAPPIER against Smooth-AP on m</title>" in page
    assert "happier,seed=0" not in page, "what both names share says nothing"
    assert all(f'<section id="{name}"' in page for name in ("metrics", "training", "map", "better", "worst", "random"))

    monkeypatch.setattr("suprank.executors.local.CONTEXT", None)  # no process is begun
    monkeypatch.setattr("suprank.workflows.reports.report", None)  # nor is the page made again
    again = done("demo", "--data", "m.parquet", "--epochs", 16)
    assert again.stdout == result.stdout
    assert "2 of 2 runs are finished already." in again.stderr


# What is trained


def test_both_methods_are_trained_alike_but_for_the_loss(training):
    done("demo", "--data", "m.parquet", "--epochs", 3, "--seed", 7, "--out", "here")
    (plain, one), (whole, other) = training.runs
    here = Path("here/m-seed7-3epochs").absolute()
    assert (one, other) == (here / "smooth-ap,seed=7", here / "happier,seed=7")
    assert (plain.loss.name, whole.loss.name) == ("smooth-ap", "happier")
    assert plain.model_copy(update={"loss": whole.loss, "proxies": whole.proxies}) == whole
    assert (whole.data.manifest, whole.run.epochs, whole.run.seed) == ("m.parquet", 3, 7)
    assert whole.evaluation.at_start, "for the column of the untrained network"
    done("demo", "--data", "m.parquet")
    assert [(config.run.epochs, config.evaluation.every) for config, _ in training.runs[2:]] == [(8, 4)] * 2


def test_28_epochs_are_the_recipe_whose_results_are_listed(training):
    done("demo", "--data", "m.parquet", "--epochs", 28)
    config, _ = training.runs[1]
    recipe = read_recipe("emoji/happier", ["data.manifest=m.parquet"])
    assert (config.run, config.optimizer, config.batch) == (recipe.run, recipe.optimizer, recipe.batch)


def test_it_ends_with_three_commands_that_exist(training):
    *_, title, importing, train, report = done("demo", "--data", "m.parquet").stdout.splitlines()
    assert title == "Next, with your own photos, in folders named after their classes (photos/<class>/*.jpg):"
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    for command in (importing, train.replace("happier", "roadmap"), report):  # the page trains on one level
        assert f"\n$ {command.strip()}\n" in page, "which another test runs as written"


def test_a_manifest_elsewhere_is_found_by_a_relative_path(training, folder, monkeypatch):
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    done("demo", "--data", "../m.parquet")
    config, _ = training.runs[1]
    assert config.data.manifest == "../m.parquet"


def test_a_core_trains_one_network_at_a_time_and_further_cores_prepare_images(training, monkeypatch):
    for cores, at_once, workers in ((1, 1, 0), (2, 2, 0), (3, 2, 0), (4, 2, 1), (16, 2, 2)):
        monkeypatch.setattr("suprank.data.workers.default_workers", lambda cores=cores: cores)
        done("demo", "--data", "m.parquet", "--seed", cores)
        assert training.jobs == at_once
        assert [config.data.workers for config, _ in training.runs[-2:]] == [workers, workers]


def drawn(monkeypatch, missing=()):
    """The sets asked for, which are all of the small manifest; `missing` cannot be had."""
    asked = []

    def open_manifest(name, root=None, progress=None):
        asked.append(name)
        if name in missing:
            raise OSError("npm [bold] found no network.")
        return Manifest.read("m.parquet")

    monkeypatch.setattr("suprank.training.manifests.open_manifest", open_manifest)
    return asked


def test_emoji_are_the_first_choice_where_npm_is_and_glyphs_elsewhere(training, monkeypatch):
    asked = drawn(monkeypatch)
    for there, name in ((True, "emoji"), (False, "glyphs")):
        monkeypatch.setattr("suprank.data.importers.emoji.available", lambda there=there: there)
        assert f"Training on {name}.\n" in done("demo").stdout
        config, run = training.runs[-1]
        # Its own recipe, but for what a demo changes.
        changed = {"data": {"workers": config.data.workers}, "run": {"epochs": 8}, "evaluation": {"every": 4}}
        own = read_recipe(f"{name}/happier")
        tables = {table: getattr(own, table).model_copy(update=entries) for table, entries in changed.items()}
        assert config == own.model_copy(update=tables)
        assert run == Path(f"runs/demo/{name}-seed0-8epochs/happier,seed=0").absolute()
    assert asked == ["emoji", "glyphs"]


def test_glyphs_can_be_asked_for_where_emoji_are_there(training, monkeypatch):
    asked = drawn(monkeypatch)
    monkeypatch.setattr("suprank.data.importers.emoji.available", lambda: True)
    done("demo", "--data", "glyphs")
    assert asked == ["glyphs"]


def test_glyphs_stand_in_for_emoji_that_cannot_be_fetched_but_not_for_those_asked_for(training, monkeypatch):
    drawn(monkeypatch, missing=["emoji"])
    monkeypatch.setattr("suprank.data.importers.emoji.available", lambda: True)
    output = done("demo").stdout
    assert "no emoji: npm [bold] found no network.\nTaking glyphs instead." in output
    assert training.runs[0][0].data.manifest == "glyphs"
    assert "found no network." in refused("demo", "--data", "emoji")


# What is shown


def test_the_table_sets_both_beside_the_untrained_network(training):
    shown = done("demo", "--data", "m.parquet").stdout
    assert row(shown, "H-AP") == ["12.5", "37.5", "50.0", "+12.5"]
    assert row(shown, "AP/group") == ["25.0", "25.0", "25.0", "+0.0"]
    metrics = [line.split()[1] for line in shown.splitlines() if line.startswith("│")]
    assert metrics == ["R@1", "AP", "H-AP", "NDCG", "ASI", "AP/group"]


def test_the_page_is_made_again_when_a_run_has_ended_since(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        "suprank.workflows.reports.report", lambda run, against, out, title, progress: made.append((run.name, against.name))
    )
    runs = [tmp_path / name for name in ("smooth-ap", "happier")]
    for run in runs:
        run.mkdir()
        (run / "result.json").write_text("{}")
    page = verb._page(tmp_path, *runs, "emoji")
    page.write_text("a page")
    os.utime(page, (time.time() + 9, time.time() + 9))
    verb._page(tmp_path, *runs, "emoji")
    assert made == [("happier", "smooth-ap")], "the tree's run against the flat one's, once"
    os.utime(runs[0] / "result.json", (time.time() + 99, time.time() + 99))
    verb._page(tmp_path, *runs, "emoji")
    assert len(made) == 2


def test_one_level_is_enough(training):
    training.levels = ("class",)
    whole = Manifest.read("m.parquet")
    columns = {
        "path": whole.paths.to_pylist(),
        "split": ["test" if path < "group3" else "train" for path in whole.paths.to_pylist()],
        "label_class": [path.split("/")[1] for path in whole.paths.to_pylist()],
    }
    Manifest.from_columns(columns, root=whole.root).save("one.parquet")
    shown = done("demo", "--data", "one.parquet").stdout
    assert "test   72 images: 18 class\n" in shown
    assert row(shown, "H-AP")[-1] == "+12.5"
    assert "AP/" not in shown


# How it ends


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_demo_ends_with_the_shells_code_and_without_a_table(training, number):
    training.stopped = number
    ended = invoke("demo", "--data", "m.parquet")
    assert ended.exit_code == 128 + number
    assert "Give the same command again to resume them" in ended.stderr
    assert "H-AP" not in ended.stdout


@pytest.mark.parametrize("error", [Crashed(-9), ValueError("batch_size=128 needs 32 classes."), RuntimeError("a bug")])
def test_a_run_that_fails_is_said_with_its_log_and_there_is_no_table(training, error):
    training.error = error
    ended = invoke("demo", "--data", "m.parquet")
    assert ended.exit_code == 1
    assert str(error) in ended.stderr
    assert f"Its log is {Path('runs/demo/m-seed0-8epochs/logs/happier,seed=0.log').absolute()}." in ended.stderr
    assert "2 of 2 runs failed: smooth-ap,seed=0, happier,seed=0. Given again, the command resumes them." in ended.stderr
    assert "H-AP" not in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epochs", "0"), "run.epochs: 0 should be greater than or equal to 1"),
        (("--epochs", "many"), "valid integer"),
        (("--seed", "-1"), "run.seed: -1 should be greater than or equal to 0"),
        (("--seed", str(2**31)), "run.seed: 2147483648 should be less than 2147483648"),
        (("--seed", str(2**70)), "run.seed"),
        (("--data", "gone.parquet"), "gone.parquet: the manifest does not exist"),
        (("--data", "emojis"), "a manifest is a .parquet or .csv file"),
        (("--data", "train.parquet"), "there is no split 'test' here"),
        (("--data", "test.parquet"), "there is no split 'train' here"),
        (("--out", "m.parquet"), "m.parquet is a file; name a folder."),
    ],
)
def test_a_wrong_argument_is_refused_with_the_rule_and_the_way_out(arguments, message):
    for split in ("train", "test"):
        Manifest.read("m.parquet").split(split).save(f"{split}.parquet")
    data = () if "--data" in arguments else ("--data", "m.parquet")
    assert message in refused("demo", *data, *arguments)
