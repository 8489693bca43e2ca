"""Trainings in processes of their own, beside each other: the processes are real, and what they do is a fake, unless said."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from suprank.experiments import parallel
from suprank.experiments.parallel import Told, TrainingError, trained
from suprank.training.callbacks import Callback
from suprank.training.config import TrainConfig
from suprank.training.run_folder import RunFolder, RunFolderError
from suprank.training.signals import stop_on_signals
from tests.cli import standing_in

CONFIG = TrainConfig.model_validate({"data": {"manifest": "m.parquet"}, "loss": {"name": "roadmap"}})


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    monkeypatch.setattr(side_by_side, "_train", standing_in.process)


@pytest.fixture
def heard(monkeypatch):
    """What was told, by the name of the training; and `act`, which is called after each."""

    class Heard(dict):
        act = staticmethod(lambda training: None)

    heard, ended = Heard(), parallel._Training.ended

    def noted(training):
        result = ended(training)
        task = next(task for task in training.bars.tasks if task.id == training.bar)
        heard.setdefault(training.name, []).append((task.completed, task.total, task.fields["loss"]))
        heard.act(training)
        return result

    monkeypatch.setattr(parallel._Training, "ended", noted)
    return heard


def runs(folder, *names):
    return {name: (CONFIG, folder / name) for name in names}


def test_each_run_has_a_bar_with_its_steps_and_loss_and_what_it_says_stands_above(tmp_path, capsys, heard):
    assert trained(runs(tmp_path, "steps-a", "steps-b"), at_once=2) is None
    for name in ("steps-a", "steps-b"):
        assert heard[name][0] == (0, 3, "")
        assert heard[name][2:5] == [(1, 3, "loss 1.000"), (2, 3, "loss 0.500"), (3, 3, "loss 0.333")]
    shown = capsys.readouterr().err
    assert "steps-a: a [bold] warning\n" in shown
    assert shown.count("3/3") == 2


def test_no_more_are_trained_at_once_than_asked_for(tmp_path):
    trained(runs(tmp_path, "steps-a", "steps-b"), at_once=1)
    assert float((tmp_path / "steps-a/ended").read_text()) < float((tmp_path / "steps-b/begun").read_text())


def test_finished_runs_are_left_alone_and_said_to_be(tmp_path, capsys, monkeypatch):
    with RunFolder.open(tmp_path / "done", CONFIG, resume=False) as run:
        run.finish({"epoch": 1})
    monkeypatch.setattr(side_by_side, "SPAWN", None)
    assert trained(runs(tmp_path, "done"), at_once=2) is None
    assert capsys.readouterr().err.startswith(f"done: {tmp_path / 'done'} is finished already.")
    other = CONFIG.model_copy(update={"run": CONFIG.run.model_copy(update={"seed": 5})})
    with pytest.raises(RunFolderError, match="run.seed was 0 and is 5"):
        trained({"done": (other, tmp_path / "done")}, at_once=2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_makes_all_save_and_end(tmp_path, heard, capsys, number):
    names = ("until_stopped-a", "until_stopped-b")

    def act(training):
        if [[told[0] for told in heard.get(name, ())] for name in names] == [[0, 1], [0, 1]]:
            os.kill(os.getpid(), number)

    heard.act = act
    assert trained(runs(tmp_path, *names, "steps"), at_once=2) == number
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
    assert trained(runs(tmp_path, "steps"), at_once=1) == signal.SIGINT
    assert "Traceback" not in capfd.readouterr().err
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("killed", "killed was killed by SIGKILL (as happens where memory runs out); the same command goes on with it."),
        ("stopped_from_outside", "stopped_from_outside was stopped by SIGTERM; the same command goes on with it."),
        ("interrupted_twice", "interrupted_twice was stopped by SIGINT; the same command goes on with it."),
        ("not_finite", "not_finite: step 7: the loss is nan."),
    ],
)
def test_a_bad_end_of_one_is_told_plainly(tmp_path, name, message, capfd):
    with pytest.raises(TrainingError) as told:
        trained(runs(tmp_path, name), at_once=1)
    assert str(told.value) == message
    assert "Traceback" not in capfd.readouterr().err


def test_one_that_fails_ends_the_others_which_save(tmp_path, heard):
    """It fails when the other has something to save."""
    heard.act = lambda training: heard.get("until_stopped", [()])[-1][:1] == (1,) and (tmp_path / "go").touch()
    with pytest.raises(TrainingError, match="killed_on_go was killed by SIGKILL"):
        trained(runs(tmp_path, "killed_on_go", "until_stopped"), at_once=2)
    assert (tmp_path / "until_stopped/saved").is_file()
    assert multiprocessing.active_children() == []


def test_an_error_is_raised_as_what_it_is_with_the_traceback_of_its_process(tmp_path, capfd):
    with pytest.raises(ValueError, match="batch.size=256 is too much") as told:
        trained(runs(tmp_path, "refused"), at_once=1)
    assert told.value.__notes__ == ["(training refused)"]
    assert "in refused\n" in str(told.value.__cause__)
    with pytest.raises(ModuleNotFoundError) as missing:
        trained(runs(tmp_path, "without_lightning"), at_once=1)
    assert missing.value.name == "lightning", "by which `main` knows the extra"
    with pytest.raises(RuntimeError, match="OddError: this and that"):
        trained(runs(tmp_path, "odd"), at_once=1)
    assert "Traceback" not in capfd.readouterr().err


def test_a_process_nobody_listens_to_any_more_asks_itself_to_save_and_end():
    hearing, telling = multiprocessing.Pipe(duplex=False)
    teller = parallel._Teller(telling)
    with stop_on_signals() as stop:
        teller.begin(0, 5, "about")
        assert hearing.recv() == Told(0, 5)
        assert stop.signal == 0
        hearing.close()
        teller.say("a warning")
        assert stop.signal == signal.SIGTERM


def test_a_loss_that_is_not_finite_is_a_bad_end_and_not_a_fault(monkeypatch):
    from suprank.training import loop

    def trains(config, folder, *, resume, watch):
        assert (config, folder, resume) == (CONFIG, Path("here"), True)
        raise loop.NonFiniteLossError("step 7")

    monkeypatch.setattr(loop, "train", trains)
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    with pytest.raises(TrainingError, match="step 7"):
        parallel._stopped(CONFIG.model_dump_json(), Path("here"), Callback())
