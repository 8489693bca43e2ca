"""MetricsLogger: every value once, whatever interrupts the run, and no disk or tracker that stops it."""

import json
import logging
import math
import subprocess
import sys

import pytest

from suprank.system import torchvision_operators
from suprank.training.config import LoggingConfig
from suprank.training.loggers import MetricsLogger
from tests.disks import disk_of

torchvision_operators.declare()  # before Lightning imports torchvision

from lightning.pytorch import loggers  # noqa: E402

QUIET = LoggingConfig(tensorboard=False)


def logger(folder, config=QUIET, step=0, settings=None):
    return MetricsLogger(folder, config, step=step, name="run", settings=settings)


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def steps(folder):
    return [line["step"] for line in lines(folder)]


def test_a_line_holds_step_epoch_time_and_values_and_is_there_at_once(tmp_path):
    made = logger(tmp_path)
    made.log_step(1, 0.5, {"loss": 0.25, "surrogate": math.nan})
    made.log_evaluation(2, 1.0, {"test/AP": 0.75, "test/R@1": math.inf})
    first, second = lines(tmp_path)
    assert first.pop("time") <= second.pop("time")
    assert first == {"step": 1, "epoch": 0.5, "loss": 0.25, "surrogate": None}
    assert second == {"step": 2, "epoch": 1.0, "test/AP": 0.75, "test/R@1": None}
    made.close()


def test_a_resumed_run_has_every_step_once(tmp_path):
    for begin, end in ((0, 5), (3, 8), (8, 9)):
        made = logger(tmp_path, step=begin)
        for step in range(begin + 1, end + 1):
            made.log_step(step, step / 4, {"loss": step + begin / 10})
        made.close()
    assert steps(tmp_path) == list(range(1, 10))
    assert [line["loss"] for line in lines(tmp_path)] == [1.0, 2.0, 3.0, 4.3, 5.3, 6.3, 7.3, 8.3, 9.8]


@pytest.mark.parametrize("torn", [b'{"step": 3, "lo', b'{"step": 3, "epoch": 1}', b"\0\0\0", b'"step"\n', b"\n"])
def test_a_torn_line_is_dropped(tmp_path, torn):
    made = logger(tmp_path)
    made.log_step(1, 0.5, {"loss": 1.0})
    made.close()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    made = logger(tmp_path, step=9)
    made.log_step(10, 2.0, {"loss": 0.5})
    made.close()
    assert steps(tmp_path) == [1, 10]


def test_an_evaluation_at_the_step_of_the_checkpoint_is_not_repeated_and_one_with_other_metrics_is_kept(tmp_path):
    made = logger(tmp_path)
    made.log_step(4, 1.0, {"loss": 1.0})
    made.log_evaluation(4, 1.0, {"test/AP": 0.5})
    made.close()
    made = logger(tmp_path, step=4)
    made.log_evaluation(4, 1.0, {"test/AP": 0.5})
    made.log_evaluation(4, 1.0, {"test/AP": 0.5, "test/H-AP": 0.25})
    made.log_step(5, 1.5, {"loss": 1.0})
    made.log_step(5, 1.5, {"loss": 1.0})
    made.close()
    assert steps(tmp_path) == [4, 4, 4, 5, 5]


def test_a_value_named_as_an_entry_of_every_line_is_refused(tmp_path):
    made = logger(tmp_path)
    with pytest.raises(ValueError, match="a value cannot be called 'epoch'"):
        made.log_step(1, 0.5, {"epoch": 1.0})
    made.close()


def test_a_full_disk_is_told_once_leaves_no_half_line_and_writing_goes_on_when_there_is_room(tmp_path, caplog):
    made = logger(tmp_path)
    made.log_step(1, 0.5, {"loss": 1.0})
    with disk_of((tmp_path / "metrics.jsonl").stat().st_size + 10):
        made.log_step(2, 0.5, {"loss": 1.0})
        made.log_step(3, 0.5, {"loss": 1.0})
    made.log_step(4, 1.0, {"loss": 1.0})
    made.close()
    assert steps(tmp_path) == [1, 4]
    (output,) = caplog.messages
    assert "metrics.jsonl could not be written ([Errno 27] File too large); training goes on" in output


def test_a_value_that_is_no_number_is_a_fault_of_the_caller_and_not_of_the_disk(tmp_path):
    made = logger(tmp_path)
    with pytest.raises(TypeError, match="not JSON serializable"):
        made.log_step(1, 0.5, {"loss": object()})
    made.close()


def test_a_folder_that_is_not_there_is_an_error_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        logger(tmp_path / "missing")


# TensorBoard


def scalars(folder):
    """What TensorBoard shows: by tag, the steps and values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_shows_every_step_of_a_resumed_run_once(tmp_path):
    for begin, end in ((0, 4), (2, 5)):
        made = logger(tmp_path, LoggingConfig(), step=begin)
        for step in range(begin + 1, end + 1):
            made.log_step(step, step / 4, {"loss": step + begin / 4})
        made.log_evaluation(end, 1.0, {"test/AP": 0.5})
        made.close()
    shown = scalars(tmp_path)
    assert shown["train/loss"] == [(1, 1.0), (2, 2.0), (3, 3.5), (4, 4.5), (5, 5.5)]
    assert shown["test/AP"] == [(5, 0.5)]
    assert [step for step, _ in shown["epoch"]] == [1, 2, 3, 4, 5, 5]


def test_tensorboard_that_fails_is_told_once_and_stops_nothing(tmp_path, monkeypatch, caplog):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    made = logger(tmp_path, LoggingConfig())
    with monkeypatch.context() as patch:
        patch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", fail)
        made.log_step(1, 0.5, {"loss": 1.0})
        made.log_step(2, 0.5, {"loss": 1.0})
    made.close()
    assert steps(tmp_path) == [1, 2]
    (output,) = caplog.messages
    assert output.startswith("TensorBoard could not be written ([Errno 28] No space left on device)")


def test_without_tensorboard_the_rest_is_written_and_the_extra_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with caplog.at_level(logging.WARNING):
        made = logger(tmp_path, LoggingConfig())
    made.log_step(1, 0.5, {"loss": 1.0})
    made.close()
    assert steps(tmp_path) == [1]
    (output,) = caplog.messages
    assert 'pip install "suprank[train]"' in output
    assert not (tmp_path / "tensorboard").exists()


# Trackers, which are not installed here: fakes of Lightning's loggers for them


class FakeLogger:
    """Remembers what it is given; MLflow makes up a name for the run unless it is given one."""

    made: list["FakeLogger"]

    def __init__(self, **arguments):
        self.arguments, self.metrics, self.settings, self.ends = arguments, [], [], []
        self.run_id = arguments.get("run_id") or f"made up {len(self.made)}"
        self.made.append(self)

    def log_metrics(self, metrics, step):
        if metrics.get("train/loss") == -1:
            raise ConnectionError("no route to host")
        self.metrics.append((step, metrics))

    def log_hyperparams(self, params):
        self.settings.append(params)

    def finalize(self, status):
        self.ends.append(status)


@pytest.fixture
def made(monkeypatch):
    """The loggers that were made, in turn."""
    FakeLogger.made = []
    for kind in ("WandbLogger", "MLFlowLogger"):
        monkeypatch.setattr(loggers, kind, FakeLogger)
    return FakeLogger.made


def test_weights_and_biases_gets_values_and_settings_and_a_resumed_run_is_the_same_one(tmp_path, made):
    config = LoggingConfig(tensorboard=False, wandb="retrieval")
    for step in (0, 1):
        kept = logger(tmp_path, config, step, settings={"loss": {"name": "roadmap"}})
        kept.log_step(step + 1, 0.5, {"loss": 0.25})
        kept.close()
    first, second = made
    assert first.arguments == second.arguments
    assert first.arguments["project"] == "retrieval"
    assert first.arguments["save_dir"] == str(tmp_path)
    assert first.arguments["name"] == "run"
    assert len(first.arguments["version"]) == 16
    assert first.settings == [{"loss": {"name": "roadmap"}}]
    assert first.metrics == [(1, {"train/loss": 0.25, "epoch": 0.5})]
    assert second.metrics == [(2, {"train/loss": 0.25, "epoch": 0.5})]
    assert second.ends == ["success"]


def test_mlflow_gets_settings_once_and_names_it_allows(tmp_path, made):
    config = LoggingConfig(tensorboard=False, mlflow="http://tracker")
    for step in (0, 1):
        kept = logger(tmp_path, config, step, settings={"seed": 1})
        kept.log_evaluation(step + 1, 1.0, {"test/mAP@R": 0.5, "test/AP/ordre (é)": 0.25})
        kept.close()
    first, second = made
    assert first.arguments == {
        "experiment_name": "suprank",
        "run_name": "run",
        "tracking_uri": "http://tracker",
        "run_id": None,
    }
    assert second.arguments["run_id"] == first.run_id
    assert (first.settings, second.settings) == ([{"seed": 1}], [])
    assert second.metrics == [(2, {"test/mAP_at_R": 0.5, "test/AP/ordre ___": 0.25, "epoch": 1.0})]


def test_a_tracker_that_cannot_be_reached_later_is_told_once_and_stops_nothing(tmp_path, made, caplog):
    kept = logger(tmp_path, LoggingConfig(tensorboard=False, wandb="p", mlflow="m"))
    for step, loss in ((1, -1.0), (2, -1.0), (3, 1.0)):
        kept.log_step(step, 0.5, {"loss": loss})
    kept.close()
    assert steps(tmp_path) == [1, 2, 3]
    assert [step for step, _ in made[0].metrics] == [3]
    assert [output.partition(" could")[0] for output in caplog.messages] == ["Weights & Biases", "MLflow"]
    assert "no route to host" in caplog.text


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_is_an_error_that_names_its_package(tmp_path, monkeypatch, package):
    def missing(**_):
        raise ModuleNotFoundError("Requirement not met")  # as Lightning says it

    monkeypatch.setattr(loggers, {"wandb": "WandbLogger", "mlflow": "MLFlowLogger"}[package], missing)
    with pytest.raises(ImportError, match=f"logging.{package} needs .* pip install {package}, or leave it out") as refusal:
        logger(tmp_path, LoggingConfig(tensorboard=False, **{package: "here"}))
    assert not isinstance(refusal.value, ModuleNotFoundError), "which the command line would take for a part of its own"


def test_importing_records_is_cheap_and_trackers_nobody_asked_for_are_not_imported():
    code = """
import sys, suprank.training.loggers
print([name for name in ("torch", "lightning", "tensorboard") if name in sys.modules])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
