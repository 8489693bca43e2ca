"""Runs that are stopped, killed, starved and poisoned: nothing is lost, and who goes on ends as if nothing had happened."""

import errno
import json
import os
import random
import resource
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from suprank.data import Manifest
from suprank.training import checkpoint, learner, loop
from suprank.training.batches import TrainBatches
from suprank.training.loop import NonFiniteLossError, train
from suprank.training.validation import Validator
from tests.training.runs import (
    DESCRIPTION,
    Recorder,
    at_step,
    everything,
    fake_metrics,
    lines,
    pictures,
    recipe,
    same,
    signalled,
    started,
    stderr,
    steps_done,
    two_ranks,
    weights,
)
from tests.waiting import wait_until

AT_EVERY_STEP = {"minutes": 1e-6}
"""Of checkpoints."""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def plain(manifest, tmp_path_factory):
    """The folder of a run of the usual recipe that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    train(recipe(manifest), folder)
    return folder


def assert_as_if_nothing_had_happened(folder, undisturbed):
    """Weights, optimizers, memory and position are the same bits; every step and evaluation is written down once."""
    assert same(everything(folder), everything(undisturbed))
    assert same(weights(folder), weights(undisturbed))
    assert same(weights(folder, "best"), weights(undisturbed, "best"))
    assert lines(folder) == lines(undisturbed)
    reports = {file.name: file.read_bytes() for file in (folder / "reports").iterdir()}
    assert reports == {file.name: file.read_bytes() for file in (undisturbed / "reports").iterdir()}


# Signals


def in_evaluation(number):
    """A signal while the test images are embedded, or ranked."""
    count = iter(range(10))
    return lambda *_: signalled() if next(count) == number else None


WHEN = {
    "after the first step": {"on_step_end": at_step(1, signalled)},
    "after the last step of an epoch": {"on_step_end": at_step(3, signalled)},
    "before an evaluation": {"on_step_end": at_step(6, signalled)},
    "in an evaluation": {"on_evaluation_progress": in_evaluation(0)},
    "after an evaluation": {"on_evaluation_end": lambda epoch, reports: signalled()},
    "in the last epoch": {"on_step_end": at_step(8, signalled)},
    "after the last step": {"on_step_end": at_step(9, signalled)},
}
STEP = [1, 3, 6, 6, 6, 8, 9]


@pytest.mark.parametrize(("when", "step"), list(zip(WHEN, STEP, strict=True)))
def test_a_signal_stops_with_a_checkpoint_from_which_the_run_ends_as_if_nothing_had_happened(
    manifest, plain, tmp_path, when, step
):
    stopped = train(recipe(manifest), tmp_path / "run", callbacks=Recorder(**WHEN[when]))
    assert stopped.stop_signal == signal.SIGTERM
    assert checkpoint.newest_step(tmp_path / "run/checkpoints") == step
    assert not (tmp_path / "run/result.json").exists()
    recorder = Recorder()
    result = train(recipe(manifest), tmp_path / "run", resume=True, callbacks=recorder)
    assert result.stop_signal is None
    assert recorder.events[:2] == [
        ("on_message", f"resuming from {tmp_path}/run/checkpoints/step-{step:08}.pt, step {step}."),
        ("on_train_start", step, 9, DESCRIPTION),
    ]
    assert [at.step for at in recorder.events_of("on_step_end")] == list(range(step + 1, 10))
    assert_as_if_nothing_had_happened(tmp_path / "run", plain)


def test_a_signal_after_the_last_evaluation_finds_the_run_finished(manifest, plain, tmp_path):
    recorder = Recorder(on_evaluation_end=lambda epoch, reports: signalled() if epoch == 3 else None)
    result = train(recipe(manifest), tmp_path / "run", callbacks=recorder)
    assert result.stop_signal is None
    assert set(result.reports) == {"test"}
    assert_as_if_nothing_had_happened(tmp_path / "run", plain)


SGD = {"name": "sgd", "lr": 0.05}
VIT = {"model": {"backbone": "test_vit", "pretrained": False, "dim": 8}}
CARRIES = {
    "momentum and a memory": {"optimizer": SGD, "memory": {"size": 40}},
    "a place for each image, and proxies": {
        "loss": {"name": "happier"},
        "memory": {"size": "all", "per_item": True, "start_epoch": 1},
        "proxies": {**SGD, "schedule": "steps", "milestones": (1, 2)},
    },
    "mixup, clipped": {"loss": {"name": "sup-recall", "mixup": True}, "run": {"epochs": 3, "clip_grad_norm": 0.5}},
    "a frozen backbone, accumulated": {
        "loss": {"name": "happier"},
        "batch": {"accumulate": 2},
        "run": {"epochs": 3, "frozen_epochs": 1},
        "optimizer": {"name": "adamw", "lr": 2e-3, "weight_decay": 0.1, "warmup_epochs": 1.5},
    },
    "dropout": VIT,
    "dropout in chunks": {**VIT, "batch": {"chunk": 5}},
}


def with_dropout(config, made=learner.build_embedder):
    embedder = made(config)
    found = [module for module in embedder.modules() if isinstance(module, nn.Dropout)]
    assert found
    for module in found:
        module.p = 0.3
    return embedder


@pytest.mark.parametrize("name", CARRIES)
def test_whatever_a_run_carries_goes_on_with_it(manifest, tmp_path, monkeypatch, name):
    if "dropout" in name:
        monkeypatch.setattr(learner, "build_embedder", with_dropout)
    config = recipe(manifest, **CARRIES[name])
    recorder = Recorder()
    train(config, tmp_path / "undisturbed", callbacks=recorder)
    steps = len(recorder.events_of("on_step_end"))
    stops = [{"on_step_end": at_step(step, signalled)} for step in (1, steps // 3 + 2)]
    for acts in (*stops, {"on_evaluation_progress": in_evaluation(0)}):
        assert train(config, tmp_path / "run", resume=True, callbacks=Recorder(**acts)).stop_signal == signal.SIGTERM
    train(config, tmp_path / "run", resume=True)
    assert_as_if_nothing_had_happened(tmp_path / "run", tmp_path / "undisturbed")


def test_a_run_stopped_in_the_evaluation_at_its_start_begins_anew(manifest, plain, tmp_path):
    config = recipe(manifest, evaluation={"at_start": True})
    assert (
        train(config, tmp_path / "run", callbacks=Recorder(on_evaluation_progress=in_evaluation(0))).stop_signal
        == signal.SIGTERM
    )
    assert checkpoint.newest_step(tmp_path / "run/checkpoints") is None
    recorder = Recorder()
    train(config, tmp_path / "run", resume=True, callbacks=recorder)
    assert [epoch for epoch, _ in recorder.events_of("on_evaluation_end")] == [0, 2, 3]
    assert same(weights(tmp_path / "run"), weights(plain))


def test_a_second_interrupt_ends_at_once_and_the_folder_is_free_again(manifest, plain, tmp_path):
    def twice():
        signalled(signal.SIGINT)
        signalled(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(recipe(manifest, checkpoint=AT_EVERY_STEP), tmp_path / "run", callbacks=Recorder(on_step_end=at_step(5, twice)))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert checkpoint.newest_step(tmp_path / "run/checkpoints") == 4
    train(recipe(manifest, checkpoint=AT_EVERY_STEP), tmp_path / "run", resume=True)
    assert_as_if_nothing_had_happened(tmp_path / "run", plain)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_process_and_its_workers_ends_them_all_without_a_word(forked, manifest, plain, tmp_path, number):
    folder, config = tmp_path / "run", recipe(manifest, data={"workers": 2})
    process = started(forked, folder, config, hold_at=2)
    wait_until(lambda: len(steps_done(folder)) > 1)
    assert len(group_of(process.pid)) >= 3
    os.killpg(process.pid, number)
    folder.with_suffix(".go").touch()
    process.join()
    assert process.exitcode == 128 + number
    wait_until(lambda: not group_of(process.pid))
    assert stderr(folder) == ""
    assert checkpoint.newest_step(folder / "checkpoints") == steps_done(folder)[-1] == 2
    if number == signal.SIGTERM:
        train(config, folder, resume=True)
        assert_as_if_nothing_had_happened(folder, plain)


def group_of(leader):
    """The processes of a group."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):
            if os.getpgid(int(process.name)) == leader:
                found.append(int(process.name))
    return found


# Kills


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_happened(forked, manifest, plain, tmp_path, seed):
    draw, folder = random.Random(seed), tmp_path / "run"
    config = recipe(manifest, checkpoint=AT_EVERY_STEP, data={"workers": seed})
    killed = 0
    for attempt in range(100):
        before = len(steps_done(folder))
        process = started(forked, folder, config, pause=0.1)
        if attempt < 5:
            if attempt % 2:  # or else at any moment, of the start too
                wait_until(lambda before=before, process=process: len(steps_done(folder)) > before or not process.is_alive())
            process.join(draw.uniform(0, 0.25))
            process.kill()
        process.join(60)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        killed += 1
    assert killed >= 3
    assert_as_if_nothing_had_happened(folder, plain)


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_checkpoint_leaves_the_one_before(forked, manifest, plain, tmp_path):
    folder, config = tmp_path / "run", recipe(manifest, checkpoint=AT_EVERY_STEP)
    process = started(forked, folder, config, slow_at=5)

    def half_written():
        return [file for file in (folder / "checkpoints").glob(".step-00000005.pt.*.tmp") if file.stat().st_size > 10_000]

    wait_until(half_written)
    process.kill()
    process.join()
    assert half_written()
    assert checkpoint.newest_step(folder / "checkpoints") == 4
    recorder = Recorder()
    train(config, folder, resume=True, callbacks=recorder)
    assert recorder.events_of("on_step_end")[0].step == 5
    assert not half_written()
    assert_as_if_nothing_had_happened(folder, plain)


# Several processes


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs torch.distributed with gloo")
@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"data": {"manifest": "nowhere.parquet"}}, "nowhere.parquet: the manifest does not exist"),
        ({"run": {"epochs": 7}}, "holds a run of another recipe"),
    ],
    ids=["manifest", "folder"],
)
def test_what_the_first_process_cannot_do_it_tells_and_the_others_end_without_a_word(
    forked, manifest, tmp_path, tables, message
):
    folder = tmp_path / "run"
    if "run" in tables:
        train(recipe(manifest, run={"epochs": 1}), folder)
    config = recipe(manifest, **tables)
    first, second = (started(forked, folder, config, variables=variables) for variables in two_ranks())
    try:
        for process in (first, second):
            process.join(60)
            assert process.exitcode == 1
    finally:
        for process in (first, second):
            process.kill()
    assert message in stderr(folder)
    assert stderr(folder).count("Traceback") == 1, stderr(folder)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs torch.distributed with gloo")
def test_processes_that_are_stopped_at_different_times_stop_together_and_one_alone_goes_on(forked, manifest, tmp_path):
    config = recipe(manifest, model={"freeze_batchnorm": True}, optimizer={"name": "sgd", "lr": 0.02}, evaluation={"every": 1})
    train(config, tmp_path / "alone")
    folder = tmp_path / "run"
    first, second = (started(forked, folder, config, variables=variables, hold_at=4) for variables in two_ranks())
    try:
        wait_until(lambda: len(steps_done(folder)) == 4)
        second.terminate()  # in step 5, for which it waits for the first
        first.terminate()
        folder.with_suffix(".go").touch()
        for process in (first, second):
            process.join()
            assert process.exitcode == 128 + signal.SIGTERM, stderr(folder)
    finally:
        for process in (first, second):
            process.kill()
    step = steps_done(folder)[-1]
    assert 4 <= step < 9
    assert checkpoint.newest_step(folder / "checkpoints") == step
    recorder = Recorder()
    train(config, folder, resume=True, callbacks=recorder)
    assert [at.step for at in recorder.events_of("on_step_end")] == list(range(step + 1, 10))
    for one, other in zip(lines(folder), lines(tmp_path / "alone"), strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
    ended, expected = weights(folder), weights(tmp_path / "alone")
    for name, value in expected.items():
        torch.testing.assert_close(ended[name], value, rtol=1e-3, atol=1e-4)


# The disk


@pytest.fixture
def disk():
    """`disk(bytes)` lets files grow no larger, as a full disk would, and `disk()` makes room again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size=soft):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    yield limit
    limit()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of TensorBoard's own thread
def test_a_disk_that_is_full_for_a_while_is_told_and_costs_a_few_files(manifest, plain, tmp_path, disk, caplog):
    folder = tmp_path / "run"
    intact = {}

    def acts(at):
        if at.step == 4:
            disk(1000)
        if at.step == 7:
            intact.update(everything(folder))
            disk()

    recorder = Recorder(on_step_end=acts)
    config = recipe(manifest, checkpoint=AT_EVERY_STEP, logging={"tensorboard": True})
    result = train(config, folder, callbacks=recorder)
    missing = [f"the checkpoint of step {step}" for step in (4, 5, 6)] + ["the best model of step 6"]
    output = "could not be written (the disk is full: File too large); training goes on."
    assert recorder.events_of("on_message") == [f"{what} {output}" for what in missing]
    assert [record.message for record in caplog.records if "metrics.jsonl" in record.message] == [
        "metrics.jsonl could not be written ([Errno 27] File too large); training goes on, with entries missing there."
    ]
    assert intact["position"]["step"] == 2, "step 3 ended an epoch, which began just now"
    assert sorted(file.name for file in (folder / "checkpoints").iterdir()) == ["step-00000008.pt", "step-00000009.pt"]
    assert same(weights(folder), weights(plain))
    assert result.best["epoch"] == 3, "the better one of epoch 2, if it was, is not there"
    assert same(weights(folder, "best"), weights(folder))
    assert lines(folder) == [line for line in lines(plain) if line["step"] < 4 or line["step"] > 6]


def test_a_model_that_could_not_be_written_is_not_called_the_best(manifest, tmp_path, monkeypatch, disk):
    monkeypatch.setattr(Validator, "__call__", fake_metrics((0.5, 0.9, 0.6, 0.4)))
    acts = {"on_step_end": at_step(5, lambda: disk(1000)), "on_evaluation_end": lambda epoch, reports: disk()}
    recorder = Recorder(**acts)
    result = train(recipe(manifest, evaluation={"every": 1}, run={"epochs": 4}), tmp_path / "run", callbacks=recorder)
    assert [output.split(" could")[0] for output in recorder.events_of("on_message")] == [
        "the checkpoint of step 6",
        "the best model of step 6",
    ]
    assert (result.best["epoch"], result.best["value"]) == (3, 0.6)


def test_a_run_stopped_on_a_full_disk_goes_on_from_what_is_there(manifest, plain, tmp_path, monkeypatch):
    def full(*arguments, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def acts():
        monkeypatch.setattr(checkpoint, "save", full)
        signalled()

    config = recipe(manifest, checkpoint=AT_EVERY_STEP)
    recorder = Recorder(on_step_end=at_step(5, acts))
    assert train(config, tmp_path / "run", callbacks=recorder).stop_signal == signal.SIGTERM
    assert recorder.events[-1] == (
        "on_message",
        "the checkpoint of step 5 could not be written (No space left on device); stopping without it.",
    )
    monkeypatch.undo()
    again = Recorder()
    train(config, tmp_path / "run", resume=True, callbacks=again)
    assert again.events_of("on_step_end")[0].step == 5
    assert_as_if_nothing_had_happened(tmp_path / "run", plain)


def test_a_model_that_could_not_be_written_is_an_error_and_written_by_a_resumed_run(manifest, plain, tmp_path, disk):
    recorder = Recorder(on_evaluation_end=lambda epoch, reports: disk(1000) if epoch == 3 else None)
    error = r"training is done, but could not be written to \S+/run/model \(.*File too large\)"
    with pytest.raises(OSError, match=error) as raised:
        train(recipe(manifest), tmp_path / "run", callbacks=recorder)
    disk()
    assert str(raised.value).endswith(f"resume goes on from {tmp_path}/run/checkpoints/step-00000009.pt.")
    assert not (tmp_path / "run/result.json").exists()
    again = Recorder()
    result = train(recipe(manifest), tmp_path / "run", resume=True, callbacks=again)
    assert again.events_of("on_step_end") == []
    assert result.reports["test"].means == recorder.events_of("on_evaluation_end")[-1][1]["test"].means
    assert_as_if_nothing_had_happened(tmp_path / "run", plain)


def test_a_folder_of_checkpoints_that_is_lost_on_the_way_costs_no_training(manifest, plain, tmp_path):
    folder = tmp_path / "run"

    def lost():
        shutil.rmtree(folder / "checkpoints")
        (folder / "checkpoints").write_text("in the way")

    recorder = Recorder(on_step_end=at_step(4, lost))
    train(recipe(manifest, checkpoint=AT_EVERY_STEP), folder, callbacks=recorder)
    assert len(recorder.events_of("on_message")) == 7  # steps 4 to 9, and the last one before and after its evaluation
    assert all("File exists" in output or "Not a directory" in output for output in recorder.events_of("on_message"))
    assert same(weights(folder), weights(plain))


# Damaged checkpoints


@pytest.fixture(scope="module")
def stopped_once(manifest, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped") / "run"
    train(recipe(manifest), folder, callbacks=Recorder(on_step_end=at_step(7, signalled)))
    files = sorted((folder / "checkpoints").iterdir())
    assert [file.name for file in files] == ["step-00000006.pt", "step-00000007.pt"]
    return folder


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """The folder of a run that was stopped after step 7, with checkpoints of steps 6 and 7."""
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))


def cut(file, share):
    os.truncate(file, int(file.stat().st_size * share))


@pytest.mark.parametrize("share", [0, 0.5, 0.999])
def test_a_truncated_checkpoint_is_told_and_the_one_before_is_taken(manifest, plain, stopped, share):
    cut(stopped / "checkpoints/step-00000007.pt", share)
    recorder = Recorder()
    train(recipe(manifest), stopped, resume=True, callbacks=recorder)
    damaged, going_on = recorder.events_of("on_message")
    assert damaged.startswith(f"{stopped}/checkpoints/step-00000007.pt is damaged (")
    assert damaged.endswith("); resuming from step-00000006.pt")
    assert going_on.startswith(f"resuming from {stopped}/checkpoints/step-00000006.pt")
    assert_as_if_nothing_had_happened(stopped, plain)


# Numbers that are none


def poisoned_weight(learning):
    with torch.no_grad():
        learning.embedder.projection.weight[0, 0] = torch.nan


def poisoned_loss(learning):
    forward = learning.loss.forward

    def poisoned(*arguments, **named):
        value = forward(*arguments, **named) * torch.nan
        learning.loss.log["loss"] = value.detach()
        return value

    learning.loss.forward = poisoned


def poisoned_gradient(learning):
    next(learning.embedder.backbone.parameters()).register_hook(lambda gradient: gradient * torch.inf)


POISONS = {
    "weight": (poisoned_weight, "the embeddings of 16 of 16 images are not finite"),
    "loss": (poisoned_loss, "the loss is nan"),
    "gradient": (poisoned_gradient, "the gradient norm is "),
}


@pytest.mark.parametrize("name", POISONS)
def test_what_is_not_finite_stops_the_run_names_the_step_and_writes_down_the_batch(
    manifest, plain, tmp_path, monkeypatch, name
):
    poison, reason = POISONS[name]
    folder, at = tmp_path / "run", 4
    step = learner.Learner.step

    def poisoned(self, batches, number, *arguments):
        if number == at:
            poison(self)
        return step(self, batches, number, *arguments)

    monkeypatch.setattr(learner.Learner, "step", poisoned)
    config = recipe(manifest, checkpoint=AT_EVERY_STEP)
    with pytest.raises(NonFiniteLossError) as raised:
        train(config, folder, callbacks=Recorder())
    message = str(raised.value)
    assert message.startswith(f"step {at}, epoch 1: {reason}")
    assert f"the last checkpoint is {folder}/checkpoints/step-00000004.pt." in message
    assert f"Its images are listed in {folder}/bad-batch-step-{at}.json." in message

    feed = TrainBatches.from_config(config, Manifest.read(manifest))
    ids = next(feed.batches(1, 1, 3)).ids.tolist()
    written = json.loads((folder / f"bad-batch-step-{at}.json").read_text())
    train_paths = Manifest.read(manifest).split("train").table["path"].to_pylist()
    assert written["images"] == [{"row": row, "path": train_paths[row]} for row in ids]
    assert (written["step"], written["epoch"]) == (at, 1)
    assert written["values"]["error"].startswith(reason)

    kept = everything(folder)
    assert kept["position"]["step"] == at
    assert all(value.isfinite().all() for value in kept["model"].values())
    monkeypatch.undo()
    train(config, folder, resume=True)
    assert_as_if_nothing_had_happened(folder, plain)


def test_all_batches_of_a_bad_step_are_written_down(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(learner.Learner, "_backward", refusing)
    config = recipe(manifest, batch={"accumulate": 2})
    with pytest.raises(NonFiniteLossError):
        train(config, tmp_path / "run")
    written = json.loads((tmp_path / "run/bad-batch-step-0.json").read_text())
    batches = TrainBatches.from_config(config, Manifest.read(manifest)).batches(0, 0, 1)
    assert [image["row"] for image in written["images"]] == [*next(batches).ids.tolist(), *next(batches).ids.tolist()]


def test_a_bad_batch_that_cannot_be_written_down_is_told_all_the_same(manifest, tmp_path, monkeypatch, disk):
    monkeypatch.setattr(learner.Learner, "_backward", refusing)
    with pytest.raises(
        NonFiniteLossError, match="there is no checkpoint yet. The list of its images could not be written"
    ) as raised:
        train(recipe(manifest), tmp_path / "run", callbacks=Recorder(on_train_start=lambda *_: disk(10)))
    assert "step 0, epoch 0: the loss is inf" in str(raised.value)
    assert loop.NonFiniteError is type(raised.value.__cause__)


def refusing(self, *arguments, **named):
    raise learner.NonFiniteError("the loss is inf")
