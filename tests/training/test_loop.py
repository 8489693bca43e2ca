"""A run from recipe to result, undisturbed; test_faults.py disturbs it."""

import json
import math
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import suprank
from suprank.data import Manifest
from suprank.data.transforms import eval_transform as transform_of_test_images
from suprank.evaluation import Report, evaluate
from suprank.models import Embedder
from suprank.training import loop
from suprank.training.batches import TrainBatches
from suprank.training.callbacks import StepValues
from suprank.training.loop import train
from suprank.training.recipe import read_recipe
from suprank.training.validation import Validator
from tests.training.runs import DESCRIPTION, Recorder, everything, fake_metrics, lines, pictures, recipe, same, weights


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def plain(manifest, tmp_path_factory):
    """A run of the usual recipe: its result, what was told, and its folder."""
    recorder, folder = Recorder(), tmp_path_factory.mktemp("runs") / "plain"
    return train(recipe(manifest), folder, callbacks=recorder), recorder, folder


def test_a_run_leaves_its_recipe_metrics_reports_models_and_result(plain, manifest):
    result, _, folder = plain
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    models = {f"{name}/{file}" for name in ("best", "model") for file in ("model.safetensors", "embedder.json")}
    # checkpoints: before the evaluation at the end, and after it, at the same step; and before that of the second epoch
    states = {"checkpoints/step-00000006.pt", "checkpoints/step-00000009.pt"}
    reports = {"reports/test-epoch-0002.json", "reports/test-epoch-0003.json", "reports/test-epoch-0003.queries.npz"}
    others = {"recipe.toml", "environment.json", "images.npy", "metrics.jsonl", "result.json", ".lock"}
    assert there == models | states | reports | others
    assert result.folder == folder
    assert result.stop_signal is None
    assert read_recipe(folder / "recipe.toml") == recipe(manifest)
    written = json.loads((folder / "result.json").read_text())
    assert written["metrics"] == {"test": result.reports["test"].means}
    assert written["best"] == result.best
    report = result.reports["test"]
    assert written["labels"] == {"test": report.settings["labels"]}
    assert sorted(report.settings["labels"]) == ["coarse", "fine"]
    assert report.query_ids[0].endswith(".png"), "queries are known by their paths"
    assert (written["epoch"], written["step"]) == (3, 9)
    assert Report.load(folder / "reports/test-epoch-0003.json").means == result.reports["test"].means
    assert result.reports["test"].per_query is not None, "for the statistics of comparisons"


def test_the_saved_model_has_the_metrics_of_the_last_report(plain, manifest):
    result, _, folder = plain
    embedder = Embedder.load(folder / "model").eval()
    tests = Manifest.read(manifest).split("test")
    prepared = transform_of_test_images(32, resize=32, mean=embedder.input.mean, std=embedder.input.std)
    pixels = [prepared(Image.open(tests.root / path).convert("RGB")) for path in tests.table["path"].to_pylist()]
    with torch.inference_mode():
        found = embedder(torch.stack(pixels))
    values = evaluate(found, tests.labels, metrics=("R@1", "AP", "H-AP"), levels=tests.levels).means
    assert values == pytest.approx(result.reports["test"].means, abs=1e-6)


def test_metrics_jsonl_has_every_step_and_every_evaluation(plain):
    result, recorder, folder = plain
    steps = [line for line in lines(folder) if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 10))
    assert [line["epoch"] for line in steps] == pytest.approx([step / 3 for step in range(1, 10)], abs=1e-6)
    assert [line["loss"] for line in steps] == [at.values["loss"] for at in recorder.events_of("on_step_end")]
    assert set(steps[0]) == {
        *("step", "epoch", "loss", "SupAP", "PairCalibration", "queries_without_positives", "gradient norm"),
        *("learning rate/backbone", "learning rate/head"),
    }
    evaluations = [line for line in lines(folder) if "test/AP" in line]
    assert [(line["step"], line["epoch"]) for line in evaluations] == [(6, 2.0), (9, 3.0)]
    assert {name: evaluations[-1][f"test/{name}"] for name in ("R@1", "AP", "H-AP")} == result.reports["test"].means


def test_callbacks_are_called_in_order(plain):
    _, recorder, _ = plain
    assert recorder.events[0] == ("on_train_start", 0, 9, DESCRIPTION)
    kinds = [kind for kind, *_ in recorder.events if kind != "on_evaluation_progress"]
    assert kinds == ["on_train_start", *["on_step_end"] * 6, "on_evaluation_end", *["on_step_end"] * 3, "on_evaluation_end"]
    assert [epoch for epoch, _ in recorder.events_of("on_evaluation_end")] == [2, 3]
    counts = recorder.events_of("on_evaluation_progress")
    assert {(name, total) for name, _, total in counts} == {("test", 48)}  # 24 images to embed, then 24 queries
    half = [done for _, done, _ in counts[: len(counts) // 2]]
    assert half == sorted(half)
    assert half[-1] == 48
    last = recorder.events_of("on_step_end")[-1]
    assert isinstance(last, StepValues)
    assert (last.step, last.epoch, last.seconds_left) == (9, 3.0, 0.0)
    assert last.images_per_second > 0
    assert set(last.rates) == {"backbone", "head"}


def test_the_loss_falls_where_there_is_something_to_learn(manifest, tmp_path):
    recorder = Recorder()
    result = train(
        recipe(manifest, run={"epochs": 12}, evaluation={"every": 0, "at_start": True}), tmp_path / "run", callbacks=recorder
    )
    losses = [at.values["loss"] for at in recorder.events_of("on_step_end")]
    assert np.mean(losses[-6:]) < 0.5 * np.mean(losses[:6])
    (_, before), (_, after) = recorder.events_of("on_evaluation_end")
    assert after["test"]["H-AP"] > before["test"]["H-AP"]
    assert result.best["epoch"] == 12


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_recipe_gives_the_same_bits_with_any_number_of_workers(plain, manifest, tmp_path, workers):
    _, _, folder = plain
    train(recipe(manifest, data={"workers": workers}), tmp_path / "run")
    assert same(everything(tmp_path / "run"), everything(folder))
    assert lines(tmp_path / "run") == lines(folder)


# Evaluations


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ((0.2, 0.5, 0.4), 2),
        ((0.5, 0.5, 0.4), 1),
        ((0.2, 0.3, 0.4), 3),
        ((0.2, math.nan, 0.1), 1),
        ((math.nan, 0.3, 0.2), 2),
    ],
)
def test_the_best_model_is_that_of_the_highest_metric_and_the_first_of_equals(manifest, tmp_path, monkeypatch, values, best):
    monkeypatch.setattr(Validator, "__call__", fake_metrics(values))
    saved = {}
    monkeypatch.setattr(loop.Learner, "save_model", lambda self, folder: saved.setdefault(folder.name, []).append(self.rates))
    recorder = Recorder()
    batch = {"size": 8, "batches": 1}
    result = train(
        recipe(manifest, evaluation={"every": 1, "metrics": None}, batch=batch), tmp_path / "run", callbacks=recorder
    )
    assert result.best["epoch"] == best
    assert (result.best["metric"], result.best["value"]) == ("H-AP", values[best - 1])
    assert saved["best"][-1] == recorder.events_of("on_step_end")[best - 1].rates  # the learning rate tells the moment
    assert len(saved["model"]) == 1


def test_best_holds_the_weights_of_its_evaluation(manifest, tmp_path, monkeypatch):
    for epochs in (1, 2):
        monkeypatch.setattr(Validator, "__call__", fake_metrics((0.9, 0.5)))
        config = recipe(manifest, evaluation={"every": 1}, optimizer={"schedule": "constant"}, run={"epochs": epochs})
        train(config, tmp_path / f"{epochs}")
    assert same(weights(tmp_path / "2", "best"), weights(tmp_path / "1", "model"))
    assert not same(weights(tmp_path / "2", "best"), weights(tmp_path / "2", "model"))


def test_evaluations_come_at_the_start_every_n_epochs_and_at_the_end(manifest, tmp_path, monkeypatch):
    found = {}
    for name, asked in {"all": {"every": 2, "at_start": True}, "last": {"every": 0}, "each": {"every": 1}}.items():
        monkeypatch.setattr(Validator, "__call__", fake_metrics([0.5] * 9))
        recorder = Recorder()
        config = recipe(manifest, evaluation={"metrics": None, **asked}, run={"epochs": 5}, batch={"size": 8, "batches": 1})
        train(config, tmp_path / name, callbacks=recorder)
        found[name] = [epoch for epoch, _ in recorder.events_of("on_evaluation_end")]
    assert found == {"all": [0, 2, 4, 5], "last": [5], "each": [1, 2, 3, 4, 5]}
    assert [kind for kind, *_ in recorder.events][:2] == ["on_train_start", "on_step_end"]
    at_start = [line["step"] for line in lines(tmp_path / "all") if "test/H-AP" in line]
    assert at_start == [0, 2, 4, 5]


def test_further_test_sets_have_reports_of_their_own(manifest, tmp_path):
    other = pictures(tmp_path / "other", classes=4, tests=2)
    result = train(recipe(manifest, data={"tests": {"other/set": str(other)}}, run={"epochs": 1}), tmp_path / "run")
    assert {name: report.n_queries for name, report in result.reports.items()} == {"test": 24, "other/set": 8}
    assert sorted(file.name for file in (tmp_path / "run/reports").glob("*.json")) == [
        "other%2Fset-epoch-0001.json",
        "test-epoch-0001.json",
    ]
    assert result.best["value"] == result.reports["test"]["H-AP"]
    assert "other/set/R@1" in lines(tmp_path / "run")[-1]
    again = train(recipe(manifest, data={"tests": {"other/set": str(other)}}, run={"epochs": 1}), tmp_path / "run", resume=True)
    assert {name: report.means for name, report in again.reports.items()} == {
        name: report.means for name, report in result.reports.items()
    }


@pytest.mark.parametrize("at_start", [False, True])
def test_without_test_images_it_trains_and_has_no_metrics(tmp_path, at_start):
    without = pictures(tmp_path / "pictures", classes=8, tests=0)
    config = recipe(without, run={"epochs": 1}, evaluation={"at_start": at_start})
    recorder = Recorder()
    result = train(config, tmp_path / "run", callbacks=recorder)
    assert (result.reports, result.best, result.stop_signal) == ({}, None, None)
    assert recorder.events_of("on_evaluation_end") == []
    assert recorder.events_of("on_message") == [f"{without} has no test images, so this run will have no metrics."]
    assert not (tmp_path / "run/best").exists()
    written = json.loads((tmp_path / "run/result.json").read_text())
    assert (written["metrics"], written["best"]) == ({}, None)
    Embedder.load(tmp_path / "run/model")
    assert train(config, tmp_path / "run", resume=True).reports == {}


# Steps


def test_the_last_step_of_an_epoch_takes_the_batches_that_are_left(manifest, tmp_path, monkeypatch):
    groups = []
    step = loop.Learner.step

    def noting(self, batches, number, epoch, consumed, length):
        groups.append((number, epoch, consumed, [batch.ids.tolist() for batch in batches]))
        return step(self, batches, number, epoch, consumed, length)

    monkeypatch.setattr(loop.Learner, "step", noting)
    recorder = Recorder()
    config = recipe(manifest, batch={"accumulate": 2}, run={"epochs": 2}, evaluation={"every": 0})
    train(config, tmp_path / "run", callbacks=recorder)
    assert [(number, epoch, consumed, len(ids)) for number, epoch, consumed, ids in groups] == [
        (0, 0, 0, 2),
        (1, 0, 2, 1),
        (2, 1, 0, 2),
        (3, 1, 2, 1),
    ]
    assert [at.epoch for at in recorder.events_of("on_step_end")] == pytest.approx([2 / 3, 1, 5 / 3, 2])
    assert recorder.events[0] == ("on_train_start", 0, 4, DESCRIPTION)
    expected = [batch.ids.tolist() for batch in TrainBatches.from_config(config, Manifest.read(manifest)).batches(0, 0, 2)]
    assert [ids for *_, group in groups for ids in group] == expected


def test_lines_of_steps_are_as_far_apart_as_asked(manifest, tmp_path):
    train(recipe(manifest, logging={"every": 4}), tmp_path / "run")
    assert [line["step"] for line in lines(tmp_path / "run") if "loss" in line] == [1, 4, 8]


# A folder that is there


def test_a_finished_run_is_not_resumed_but_told(plain, manifest, monkeypatch):
    result, _, folder = plain
    monkeypatch.setattr(loop, "Learner", None)  # nothing is built
    recorder = Recorder()
    again = train(recipe(manifest), folder, resume=True, callbacks=recorder)
    output = f"{folder} is finished already. Its metrics are those of its last evaluation."
    assert recorder.events == [("on_message", output)]
    assert again.stop_signal is None
    assert again.best == result.best
    assert {name: report.means for name, report in again.reports.items()} == {"test": result.reports["test"].means}


def test_other_images_are_not_resumed(manifest, tmp_path):
    stopping = Recorder(on_step_end=lambda at: os.kill(os.getpid(), signal.SIGTERM))
    mine = pictures(tmp_path / "pictures")
    train(recipe(mine), tmp_path / "run", callbacks=stopping)
    table = Manifest.read(mine)
    columns = {name: table.table[name].to_pylist() for name in table.table.column_names}
    columns["path"] = columns["path"][::-1]
    Manifest.from_columns(columns, root=Path(table.root)).save(mine)
    with pytest.raises(ValueError, match="the training images or their labels are not those that the run began with"):
        train(recipe(mine), tmp_path / "run", resume=True)


def test_images_that_were_replaced_under_the_same_names_are_not_resumed_and_copies_are(manifest, tmp_path, monkeypatch):
    stopping = Recorder(on_step_end=lambda at: os.kill(os.getpid(), signal.SIGTERM))
    mine = pictures(tmp_path / "pictures")
    train(recipe(mine), tmp_path / "run", callbacks=stopping)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    images = Manifest.read(mine).split("train")
    files = [images.root / path for path in images.paths.to_pylist()]
    for file in files:
        os.utime(file, (1, 1))
    train(recipe(mine), tmp_path / "copy", resume=True, callbacks=stopping)  # the same bytes
    files[3].write_bytes(files[-1].read_bytes())
    os.utime(files[3], (1, 1))
    with pytest.raises(ValueError, match=r"1 training images have other bytes than when the run began, the first .*; restore"):
        train(recipe(mine), tmp_path / "run", resume=True)
    (tmp_path / "run" / "images.npy").unlink()  # as of an older suprank
    recorder = Recorder()
    train(recipe(mine), tmp_path / "run", resume=True, callbacks=recorder)
    assert any("is not checked" in str(event) for event in recorder.events_of("on_message"))


def test_a_resumed_run_may_ask_for_another_best_metric(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(Validator, "__call__", fake_metrics((0.5, 0.6)))
    stopping = Recorder(on_evaluation_end=lambda epoch, reports: os.kill(os.getpid(), signal.SIGTERM))
    stopped = train(recipe(manifest), tmp_path / "run", callbacks=stopping)
    assert (stopped.best["metric"], stopped.best["epoch"]) == ("H-AP", 2)
    result = train(recipe(manifest, evaluation={"best": "R@1"}), tmp_path / "run", resume=True)
    assert (result.best["metric"], result.best["epoch"], result.best["value"]) == ("R@1", 3, 0.01)


def test_a_changed_test_set_is_said_and_its_metric_not_compared_with_the_best_before(tmp_path, monkeypatch):
    mine = pictures(tmp_path / "pictures")
    monkeypatch.setattr(Validator, "__call__", fake_metrics((0.9,)))
    stopping = Recorder(on_evaluation_end=lambda epoch, reports: os.kill(os.getpid(), signal.SIGTERM))
    assert train(recipe(mine), tmp_path / "run", callbacks=stopping).best["value"] == 0.9
    same_set = Recorder(on_step_end=lambda at: os.kill(os.getpid(), signal.SIGTERM))
    assert train(recipe(mine), tmp_path / "run", resume=True, callbacks=same_set).best["value"] == 0.9
    assert not any("test images" in text for text in same_set.events_of("on_message"))

    whole = Manifest.read(mine)
    is_first_test_image = np.arange(len(whole)) == np.flatnonzero(np.asarray(whole.table["split"]) == "test")[0]
    whole.take(~is_first_test_image).save(mine)
    monkeypatch.setattr(Validator, "__call__", fake_metrics((0.3,)))
    recorder = Recorder()
    result = train(recipe(mine), tmp_path / "run", resume=True, callbacks=recorder)
    assert any("the test images, their labels, evaluation.decay or " in text for text in recorder.events_of("on_message"))
    assert (result.best["value"], result.best["epoch"]) == (0.3, 3), "0.9 was on other images"


def test_test_images_that_are_listed_twice_or_trained_on_are_said_by_train_and_evaluate(manifest, tmp_path, caplog):
    known = Manifest.read(manifest)
    tests, trained = known.split("test"), known.split("train")
    table = {name: known.table[name].to_pylist() for name in ("path", "split", "label_fine", "label_coarse")}
    for items, rows in ((tests, range(len(tests))), (trained, range(3))):  # every test image again, and three of training
        for name in table:
            own = items.table[name].to_pylist()
            table[name] += ["test" if name == "split" else own[row] for row in rows]
    Manifest.from_columns(table, root=known.root).save(tmp_path / "m.parquet")
    recorder = Recorder()
    with pytest.warns(UserWarning, match="most images are there twice"):
        train(recipe(tmp_path / "m.parquet", run={"epochs": 1}), tmp_path / "run", callbacks=recorder)
    twice, seen = (text for text in recorder.events_of("on_message") if text.startswith("warning: "))
    assert f"{len(tests):,} of {len(tests) + 3:,} images to evaluate on are listed twice" in twice
    assert "3 of" in seen
    assert "are trained on, so that metrics say little about new images" in seen
    with pytest.warns(UserWarning, match="most images are there twice"):
        suprank.evaluate(tmp_path / "run", device="cpu")
    assert {f"warning: {record.getMessage()}" for record in caplog.records} >= {twice, seen}
