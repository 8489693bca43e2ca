"""Several trainings at the same time: the processes are real, and what they do is a stand-in, unless said otherwise."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from suprank.cli.experiments import ParallelTrainingDisplay
from suprank.experiments import parallel
from suprank.experiments.parallel import Message, TrainingError, train_in_parallel
from suprank.training.callbacks import Callback
from suprank.training.config import TrainConfig
from suprank.training.run_folder import RunFolder, RunFolderError
from suprank.training.signals import stop_on_signals
from tests.cli import stand_in_training

CONFIG = TrainConfig.model_validate({"data": {"manifest": "m.parquet"}, "loss": {"name": "roadmap"}})


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    monkeypatch.setattr(parallel, "_train", stand_in_training.process)


class RecordingDisplay(ParallelTrainingDisplay):
    """Keeps the progress of each training by name, and calls `act` after each."""

    def __init__(self, act=lambda progress: None):
        super().__init__()
        self.progress, self.act, self.ended = {}, act, 0

    def run_progress(self, name, *progress):
        super().run_progress(name, *progress)
        self.progress.setdefault(name, []).append(progress)
        self.act(self.progress)

    def end(self):
        super().end()
        self.ended += 1


def runs(folder, *names):
    return {name: (CONFIG, folder / name) for name in names}


def test_each_run_has_a_bar_with_its_steps_and_loss_and_what_it_says_stands_above(tmp_path, capsys):
    display = RecordingDisplay()
    assert train_in_parallel(runs(tmp_path, "steps-a", "steps-b"), 2, display) is None
    for name in ("steps-a", "steps-b"):
        assert display.progress[name] == [(0, 3, None), (1, 3, 1.0), (2, 3, 0.5), (3, 3, 1 / 3)]
    shown = capsys.readouterr().err
    assert "loss 0.333" in shown
    assert "steps-a: a [bold] warning\n" in shown
    assert shown.count("3/3") == 2


def test_no_more_are_trained_at_the_same_time_than_there_are_processes(tmp_path):
    train_in_parallel(runs(tmp_path, "steps-a", "steps-b"), 1)
    assert float((tmp_path / "steps-a/ended").read_text()) < float((tmp_path / "steps-b/begun").read_text())


def test_finished_runs_are_left_alone_and_said_to_be(tmp_path, capsys, monkeypatch):
    with RunFolder.open(tmp_path / "done", CONFIG, resume=False) as run:
        run.write_result({"epoch": 1})
    monkeypatch.setattr(parallel, "SPAWN", None)
    assert train_in_parallel(runs(tmp_path, "done"), 2, ParallelTrainingDisplay()) is None
    assert capsys.readouterr().err.startswith(f"done: {tmp_path / 'done'} is finished already.")
    other = CONFIG.model_copy(update={"run": CONFIG.run.model_copy(update={"seed": 5})})
    with pytest.raises(RunFolderError, match="run.seed was 0 and is 5"):
        train_in_parallel({"done": (other, tmp_path / "done")}, 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_makes_all_save_and_end(tmp_path, capsys, number):
    names = ("until_stopped-a", "until_stopped-b")

    def act(progress):
        if [[one[0] for one in progress.get(name, ())] for name in names] == [[0, 1], [0, 1]]:
            os.kill(os.getpid(), number)

    display = RecordingDisplay(act)
    assert train_in_parallel(runs(tmp_path, *names, "steps"), 2, display) == number
    assert display.ended == 1
    assert all((tmp_path / name / "saved").is_file() for name in names)
    assert not (tmp_path / "steps").exists(), "what waits is not begun"
    assert "until_stopped-b: saving" in capsys.readouterr().err, "it may have something to say about what it saves"
    assert multiprocessing.active_children() == []


def test_ctrl_c_before_anything_is_learned_ends_without_tracebacks(tmp_path, capfd, monkeypatch):
    start = parallel._Training.__init__

    def interrupted(training, *arguments):
        start(training, *arguments)
        time.sleep(0.1)  # it imports
        for one in (training.process.pid, os.getpid()):
            os.kill(one, signal.SIGINT)

    monkeypatch.setattr(parallel._Training, "__init__", interrupted)
    assert train_in_parallel(runs(tmp_path, "steps"), 1) == signal.SIGINT
    assert "Traceback" not in capfd.readouterr().err
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("killed", "killed was killed by SIGKILL (perhaps memory ran out); give the same command again to resume it."),
        ("stopped_from_outside", "stopped_from_outside was stopped by SIGTERM; give the same command again to resume it."),
        ("interrupted_twice", "interrupted_twice was stopped by SIGINT; give the same command again to resume it."),
        ("not_finite", "not_finite: step 7: the loss is nan."),
    ],
)
def test_the_failure_of_one_is_reported_in_a_sentence(tmp_path, name, message, capfd):
    with pytest.raises(TrainingError) as failure:
        train_in_parallel(runs(tmp_path, name), 1)
    assert str(failure.value) == message
    assert "Traceback" not in capfd.readouterr().err


def test_one_that_fails_ends_the_others_which_save(tmp_path):
    """It fails when the other has something to save."""
    display = RecordingDisplay(
        lambda progress: progress.get("until_stopped", [()])[-1][:1] == (1,) and (tmp_path / "go").touch()
    )
    with pytest.raises(TrainingError, match="killed_on_go was killed by SIGKILL"):
        train_in_parallel(runs(tmp_path, "killed_on_go", "until_stopped"), 2, display)
    assert display.ended == 1
    assert (tmp_path / "until_stopped/saved").is_file()
    assert multiprocessing.active_children() == []


def test_an_error_is_raised_as_what_it_is_with_the_traceback_of_its_process(tmp_path, capfd):
    with pytest.raises(ValueError, match="batch.size=256 is too much") as error:
        train_in_parallel(runs(tmp_path, "refused"), 1)
    assert error.value.__notes__ == ["(training refused)"]
    assert "in refused\n" in str(error.value.__cause__)
    with pytest.raises(ModuleNotFoundError) as missing:
        train_in_parallel(runs(tmp_path, "without_lightning"), 1)
    assert missing.value.name == "lightning", "by which `main` knows the extra"
    with pytest.raises(RuntimeError, match="OddError: this and that"):
        train_in_parallel(runs(tmp_path, "odd"), 1)
    assert "Traceback" not in capfd.readouterr().err


def test_a_process_nobody_listens_to_any_more_asks_itself_to_save_and_end():
    receiver, connection = multiprocessing.Pipe(duplex=False)
    sender = parallel._Sender(connection)
    with stop_on_signals() as stop:
        sender.on_train_start(0, 5, "about")
        assert receiver.recv() == Message(0, 5)
        assert stop.signal == 0
        receiver.close()
        sender.on_message("a warning")
        assert stop.signal == signal.SIGTERM


def test_a_loss_that_is_not_finite_is_a_training_error(monkeypatch):
    from suprank.training import loop

    def trains(config, folder, *, resume, callbacks):
        assert (config, folder, resume) == (CONFIG, Path("here"), True)
        raise loop.NonFiniteLossError("step 7")

    monkeypatch.setattr(loop, "train", trains)
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    with pytest.raises(TrainingError, match="step 7"):
        parallel._run_training(CONFIG.model_dump_json(), Path("here"), Callback())
