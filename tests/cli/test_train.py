"""suprank train: from a recipe to a run, what it shows on the way, and how it ends. The training itself is a fake."""

import io
import re
import shlex
import signal
from pathlib import Path

import pytest
from rich.console import Console

from suprank.cli.train import default_folder, is_first_process
from suprank.cli.training_display import TrainingDisplay, metrics_line, step_line
from suprank.data import Manifest
from suprank.evaluation import Report
from suprank.training import checkpoint, loop
from suprank.training.callbacks import Callback, CallbackList, StepValues
from suprank.training.loop import NonFiniteLossError, TrainResult
from suprank.training.recipe import read_recipe
from tests.cli.collection import done, invoke, refused

RECIPE = """
[data]
manifest = "m.parquet"

[loss]
name = "roadmap"
"""


def report(**values):
    counts = {"n_queries": 4, "n_items": 5, "levels": ("species", "genus"), "without_positives": {"species": 0, "genus": 0}}
    return Report(values or {"R@1": 0.75, "AP/species": 0.5, "AP/genus": 0.625, "H-AP": float("nan")}, **counts)


def values(step=1, **changed):
    rates = {"backbone": 1e-5, "head": 1e-5}
    given = {"step": step, "epoch": 0.5, "values": {"loss": 0.25, "surrogate": 1 / 3}, "rates": rates}
    return StepValues(**{**given, "images_per_second": 1234.5, "seconds_left": 3723.4, **changed})


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(RECIPE)
    columns = {"path": ["a.png", "b.png"], "split": ["train", "test"], "label_species": ["a", "b"]}
    Manifest.from_columns(columns, root=".").save("m.parquet")
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK", "WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


class Training:
    """In place of `loop.train`: records its arguments, calls the display, and ends as a test wants."""

    def __init__(self):
        self.calls = []
        self.reports = {"test": report()}
        self.stop_signal = None
        self.error = None

    def __call__(self, config, folder, *, resume=False, callbacks=None):
        self.calls.append((config, folder, resume))
        assert isinstance(callbacks, Callback)
        callbacks.on_train_start(0, 10, "roadmap on 5 images")
        callbacks.on_step_end(values())
        callbacks.on_evaluation_end(1, self.reports)
        callbacks.on_message("a warning")
        if self.error is not None:
            raise self.error
        best = {"epoch": 1, "metric": "AP", "value": 0.5, "metrics": {}}
        return TrainResult(Path(folder), self.reports, best, self.stop_signal)


@pytest.fixture(autouse=True)
def training(monkeypatch):
    fake = Training()
    monkeypatch.setattr(loop, "train", fake)
    return fake


def test_a_recipe_with_overrides_is_trained_and_its_metrics_and_model_are_printed(training):
    shown = done("train", "mine.toml", "loss.weight=0.3", "run.epochs=7", "--out", "here")
    ((config, folder, resume),) = training.calls
    assert config == read_recipe("mine.toml", ["loss.weight=0.3", "run.epochs=7"])
    assert (config.loss.weight, config.run.epochs) == (0.3, 7)
    assert (folder, resume) == (Path("here"), False)
    assert re.search(r"AP\s*│\s*50.00\s*│\s*62.50", shown.stdout)
    assert "4 queries, 5 items" in shown.stdout
    assert "model: here/model\nbest:  here/best, epoch 1, AP 50.00\n" in shown.stdout
    assert "\ntest\n" not in shown.stdout, "one test set needs no name"
    assert shown.stderr == "roadmap on 5 images\nepoch 1: R@1 75.00  AP 50.00  H-AP --\na warning\n"


def test_every_test_set_has_a_table_under_its_name(training):
    training.reports = {"fine": report(), "coarse": report()}
    shown = done("train", "mine.toml")
    assert shown.stdout.index("\nfine\n") < shown.stdout.index("\ncoarse\n")
    assert shown.stdout.count("4 queries, 5 items") == 2
    assert "epoch 1 coarse: R@1 75.00" in shown.stderr


def test_six_metrics_are_printed_unless_the_recipe_names_its_own(training):
    names = ("R@1", "R@10", "P@1", "P@10", "MRR", "AP", "mAP@R", "NDCG", "ASI", "H-AP")
    training.reports = {"fine": report(**dict.fromkeys(names, 0.5)), "coarse": report()}
    shown = done("train", "mine.toml", "--out", "my run").stdout
    assert re.findall(r"^│ (\S+)", shown, re.MULTILINE)[:6] == ["R@1", "mAP@R", "AP", "H-AP", "NDCG", "ASI"]
    assert "\n3 more metrics: suprank evaluate 'my run' --test fine --all\n" in shown, "P@1 is R@1"
    named = done("train", "mine.toml", 'evaluation.metrics=["R@1", "AP"]', "evaluation.ks=").stdout
    assert re.findall(r"^│ (\S+)", named, re.MULTILINE)[:10] == list(names)
    assert "more metrics" not in named


def test_a_run_without_test_images_ends_with_a_word_on_how_to_hold_some_out(training):
    training.reports = {}
    assert "no metrics: there are no test images. `suprank data import` holds some out by --holdout-classes" in (
        done("train", "mine.toml").stderr
    )


def test_a_dry_run_prints_a_recipe_that_reads_the_same_and_trains_nothing(training):
    shown = done("train", "mine.toml", "run.seed=5", "--dry-run").stdout
    Path("resolved.toml").write_text(shown)
    assert read_recipe("resolved.toml") == read_recipe("mine.toml", ["run.seed=5"])
    assert training.calls == []
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("images.crop_scale=[1,0.5]", "crop_scale=[1.0, 0.5] must have the smaller number first; try [0.5, 1.0]"),
        ("images.crop_ratio=[2,1]", "crop_ratio=[2.0, 1.0] must have the smaller number first"),
        ("data.manifest=gone.parquet", "gone.parquet: the manifest does not exist (the working folder is"),
        ("data.tests.other=gone.csv", "gone.csv: the manifest does not exist"),
        ("loss.jump=-1", "jump=-1.0 must be a finite number, 0 or more"),
        ("evaluation.metrics=[R@1]", "'[R@1]' should be a list, in brackets"),
        ("model.backbone=resnet5", "'resnet5' is not a network of timm"),
        ("model.pooling=token", "pooling='token' is not possible with resnet"),
        ("engine.strategy=fsdp model.pooling=gem", "engine.strategy='fsdp' cannot shard pooling.p"),
        ("batch.chunk=1", "batch.chunk=1 would give BatchNorm the statistics of a chunk"),
    ],
)
def test_a_dry_run_refuses_what_training_would(override, message):
    assert message in refused("train", "mine.toml", *shlex.split(override), "--dry-run")


def test_quiet_shows_warnings_only():
    shown = done("train", "mine.toml", "--quiet")
    assert (shown.stdout, shown.stderr) == ("", "a warning\n")


def test_the_folder_of_a_run_is_named_after_its_recipe(training, monkeypatch):
    done("train", "mine.toml", "--resume")
    ((_, folder, resume),) = training.calls
    assert (folder, resume) == (Path("runs/mine"), True)
    shipped = Path(loop.__file__).parents[3] / "recipes"
    for name in ("cub/roadmap", str(shipped / "cub/roadmap.toml"), "recipes/cub/roadmap.toml"):
        assert default_folder(name) == Path("runs/cub-roadmap")
    assert default_folder("cub112/fast-ap") == Path("runs/cub112-fast-ap")  # which has no file


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_a_stopped_run_says_how_to_go_on_and_ends_with_the_shells_code(training, number, code):
    checkpoint.save(Path("my runs/checkpoints"), 7, {}, keep=2)
    training.stop_signal = number
    ended = invoke("train", "mine.toml", "run.seed=1", "--out", "my runs")
    assert ended.exit_code == code
    command = "suprank train mine.toml run.seed=1 --out 'my runs' --resume"
    assert f"stopped at step 7; resume with: {command}\n" in ended.stderr
    assert ended.stdout == ""


def test_a_run_stopped_at_once_or_in_several_processes_says_so_too(training, monkeypatch):
    training.stop_signal = signal.SIGTERM
    monkeypatch.setenv("WORLD_SIZE", "2")
    ended = invoke("train", "mine.toml", "--quiet")
    assert "stopped before the first checkpoint; resume with: the same command and --resume\n" in ended.stderr


def test_a_loss_that_is_not_finite_is_told_without_a_traceback(training):
    training.error = NonFiniteLossError("step 3, epoch 0: the loss is nan")
    ended = invoke("train", "mine.toml")
    assert ended.exit_code == 1
    assert ended.stderr.endswith("suprank: step 3, epoch 0: the loss is nan\n")
    assert "Traceback" not in ended.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent.toml",), "absent.toml is neither a file nor a recipe"),
        (("mine.toml", "loss.wieght=1"), "did you mean loss.weight?"),
        (("mine.toml", "loss.weight"), "has no ="),
        ((), "Missing argument"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_line(training, arguments, message):
    assert message in refused("train", *arguments)
    assert training.calls == []


@pytest.mark.parametrize(
    ("error", "message"), [(ValueError("engine.devices=9"), "engine.devices=9"), (MemoryError(), "Give a smaller batch.chunk")]
)
def test_what_training_refuses_is_told_in_a_line(training, error, message):
    training.error = error
    assert message in refused("train", "mine.toml")


def test_faults_of_ours_keep_their_traceback(training):
    training.error = RuntimeError("a bug")
    assert isinstance(invoke("train", "mine.toml").exception, RuntimeError)


@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ({}, True),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "8", "LOCAL_RANK": "0"}, False),
        ({"SLURM_PROCID": "0"}, True),
        ({"SLURM_PROCID": "3"}, False),
        ({"LOCAL_RANK": "1", "NODE_RANK": "0", "SLURM_PROCID": "0"}, False),  # begun by Lightning, in a job of one task
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, False),
    ],
)
def test_only_the_first_process_prints(monkeypatch, training, variables, first):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_first_process() == first
    for arguments in ((), ("--dry-run",)):
        assert bool(done("train", "mine.toml", *arguments).stdout) == first


def test_help_tells_how_to_run_on_many_machines():
    shown = " ".join(done("train", "--help").stdout.split())
    for output in ("torchrun --nnodes 4", "srun suprank train hgldv2/happier", "--resume", "KEY=VALUE"):
        assert output in shown


# The display


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def display(terminal, **settings):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None, **settings)
    clock = Clock()
    return TrainingDisplay(console=console, clock=clock), console.file, clock


def test_a_pipe_gets_a_line_every_half_minute():
    shown, file, clock = display(terminal=False)
    with shown:
        shown.on_train_start(0, 10, "about")
        for step, now in ((1, 10), (2, 29.9), (3, 30), (4, 31), (5, 60)):
            clock.now = now
            shown.on_step_end(values(step))
        clock.now = 95
        shown.on_evaluation_progress("test", 3, 9)
        shown.on_evaluation_progress("test", 4, 9)
    first, second, third, fourth = file.getvalue().splitlines()
    assert first == "about"
    assert second == f"epoch 0.50  step 3/10  {step_line(values())}"
    assert third.startswith("epoch 0.50  step 5/10")
    assert fourth == "evaluating test  3/9"


def test_a_terminal_gets_a_bar_for_training_one_for_each_evaluation_and_lines_above_them():
    shown, file, _ = display(terminal=True)
    with shown:
        shown.on_train_start(3, 10, "about [bold]")
        shown.on_step_end(values(4, epoch=1.5))
        shown._live.refresh()
        assert "epoch 2" in file.getvalue()
        assert "4/10" in file.getvalue()
        assert "loss 0.25" in file.getvalue()
        shown.on_step_end(values(5, epoch=2.0))
        shown._live.refresh()
        assert "epoch 3" not in file.getvalue(), "the last step of the second epoch"
        for name in ("fine", "coarse"):
            shown.on_evaluation_progress(name, 5, 9)
            shown._live.refresh()
            assert f"evaluating {name}" in file.getvalue()
        before = len(file.getvalue())
        shown.on_evaluation_end(2, {"fine": report()})
        shown._live.refresh()
        assert "on_evaluation_progress" not in file.getvalue()[before:]
        shown.on_message("a warning")
    assert "about [bold]" in file.getvalue()
    assert "epoch 2: R@1 75.00" in file.getvalue()
    assert "a warning" in file.getvalue()
    assert shown._live is None


def test_the_line_of_a_step_has_the_loss_its_parts_rates_speed_and_time_left():
    assert step_line(values()) == "loss 0.25  surrogate 0.3333  lr 1e-05  1,234 images/s  1:02:03 left"
    different = values(rates={"backbone": 1e-5, "proxies": 0.01}, seconds_left=float("inf"))
    assert step_line(different) == "loss 0.25  surrogate 0.3333  lr backbone 1e-05, proxies 0.01  1,234 images/s"


def test_a_line_that_is_too_wide_loses_its_last_values_and_then_its_last_rates():
    many = {"loss": 0.25, "surrogate": 1 / 3, "L*_DG": 2.5, "gradient norm": 12.5, "gradient norm of proxies": 0.125}
    step = values(rates={"backbone": 1e-5, "head": 2e-5, "proxies": 0.01}, values=many)
    assert step_line(step).startswith(
        "loss 0.25  surrogate 0.3333  L*_DG 2.5  gradient norm 12.5  gradient norm of proxies 0.125"
    )
    ends = "  1,234 images/s  1:02:03 left"
    assert step_line(step, 90) == f"loss 0.25  lr backbone 1e-05, head 2e-05, proxies 0.01{ends}"
    assert step_line(step, 80) == f"loss 0.25  lr backbone 1e-05, head 2e-05{ends}"
    assert step_line(step, 10) == f"loss 0.25  lr backbone 1e-05{ends}"


def test_the_display_has_two_lines_in_80_columns():
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    shown = TrainingDisplay(console=console)

    def lines():
        return console.render_lines(shown._bars_and_details())

    with shown:
        shown.on_prepare_progress("decoding training images", 12_345, 1_580_470)
        assert len(lines()) == 1
        shown.on_train_start(0, 1_234_567, "about")
        many = {"loss": 0.25, **{f"part {number} of the loss": 1 / 3 for number in range(9)}}
        shown.on_step_end(values(1_234_500, values=many, rates={"backbone": 1e-5, "head": 2e-5, "proxies": 0.01}))
        assert len(lines()) == 2
        assert "1:02:03 left" in "".join(segment.text for segment in lines()[1])
        shown.on_evaluation_progress("a test set with a long name", 1_000_000, 1_580_470)
        assert len(lines()) == 2


def test_the_line_of_an_evaluation_has_the_main_metrics_at_the_finest_level_or_what_there_is():
    assert metrics_line(report()) == "R@1 75.00  AP 50.00  H-AP --"
    assert metrics_line(report(**{"P@10": 0.25, "ASI": 0.125})) == "P@10 25.00  ASI 12.50"


def test_the_base_class_of_callbacks_does_nothing(capsys):
    callbacks = CallbackList([Callback(), Callback()])
    callbacks.on_train_start(0, 1, "about")
    callbacks.on_step_end(values())
    callbacks.on_evaluation_progress("test", 0, 1)
    callbacks.on_evaluation_end(1, {"test": report()})
    callbacks.on_message("something")
    assert capsys.readouterr() == ("", "")


def test_what_comes_before_training_has_a_bar_of_its_own_which_training_takes_the_place_of():
    shown, _, _ = display(terminal=True)
    with shown:
        for what in ("drawing emoji", "decoding test images"):
            shown.on_prepare_progress(what, 3, 9)
            assert [(task.description, task.completed, task.total) for task in shown._bars.tasks] == [(what, 3, 9)]
        shown.on_train_start(0, 5, "happier on 9 images")
        assert [task.description for task in shown._bars.tasks] == ["training"]
