"""`adapt`: better on classes it has not seen, honest about which these are, and the same whenever it is interrupted."""

import signal

import numpy as np
import pytest
import torch

from suprank.adaptation import AdaptationStopped, AdaptConfig, adapt, head_folder
from suprank.evaluation import RetrievalData, evaluate
from suprank.models import Head
from tests.adaptation.collections import clustered

QUICK = {"steps": 12, "every": 4, "batch": 64, "lr": 0.02}


@pytest.fixture(scope="module")
def result():
    return adapt(*clustered(), AdaptConfig(**QUICK, seeds=2), device="cpu")


def test_directions_that_say_nothing_are_suppressed_on_classes_that_were_not_trained_on(result):
    assert result.after["mAP@R"] > result.before["mAP@R"] + 0.05
    low, high = result.difference_interval("mAP@R")
    assert 0 < low < result.after["mAP@R"] - result.before["mAP@R"] < high
    informative = result.head.linear.weight[:, :4].norm()
    assert informative > result.head.linear.weight[:, 4:].norm() / 2  # at the start all columns are of length 1: 2 / 2.8


def test_training_validation_and_test_share_no_class_and_the_counts_add_up(result):
    assert result.classes == {"training": 18, "validation": 4, "test": 8, "seen": 0}
    assert result.rows == {"training": 144, "validation": 32, "test": 64, "left_out": 0}


def test_the_report_is_that_of_the_saved_head_and_evaluate_to_the_last_digit(tmp_path):
    embeddings, labels = clustered()
    others, their_labels = clustered(classes=10, seed=1)
    test = RetrievalData.from_arrays(others, their_labels + 100)
    result = adapt(embeddings, labels, AdaptConfig(**QUICK), test=test, folder=tmp_path / "head", device="cpu")
    head = Head.load(tmp_path / "head")
    assert dict(result.after) == dict(evaluate(head.transform(others), their_labels, progress=False, device="cpu"))
    assert dict(result.before) == dict(evaluate(others, their_labels, progress=False, device="cpu"))
    assert head.training_record["test"]["after"]["mAP@R"] == result.after["mAP@R"]
    assert head.training_record["config"]["loss"]["name"] == "roadmap"


def test_the_kept_head_is_that_of_the_seed_and_step_with_the_best_validation(result):
    assert [one.seed for one in result.seeds] == [0, 1]
    assert all(one.best == max(one.history, key=lambda validation: validation.value) for one in result.seeds)
    assert result.best_seed.best.value == max(validation.value for one in result.seeds for validation in one.history)
    assert [validation.step for validation in result.best_seed.history] == [0, 4, 8, 12]
    mean, deviation = result.seed_spread("AP")
    first, second = (one.report["AP"] for one in result.seeds)
    assert mean == pytest.approx((first + second) / 2)
    assert deviation == pytest.approx(abs(first - second) / 2**0.5)


@pytest.mark.parametrize("seed", range(2))
def test_it_never_starts_worse_than_the_embeddings_on_the_validation_classes(seed):
    """As wide as the embeddings, one of the two starts is a rotation, and a rotation changes no cosine."""
    embeddings, labels = clustered(seed=seed)
    embeddings[:, -1] += 10 * seed  # with a mean far from 0, whether centering helps differs
    result = adapt(embeddings, labels, AdaptConfig(steps=1, batch=64, lr=1e-9, seed=seed), device="cpu")
    assert result.best_seed.history[0].value >= result.raw - 1e-6
    assert result.best_seed.best.value >= result.best_seed.history[0].value


def test_where_nothing_can_be_learned_the_start_is_kept_and_said_to_be_no_better():
    """One-hot directions of equal length: any head that learns the training classes turns the others into noise."""
    labels = np.repeat(np.arange(30), 6)
    embeddings = np.eye(30, dtype=np.float32)[labels]
    result = adapt(embeddings, labels, AdaptConfig(**QUICK), device="cpu")
    assert result.raw == 1.0
    assert result.best_seed.best.step == 0
    assert not result.improved


def test_the_same_call_gives_the_same_head_and_leaves_the_global_random_state_alone():
    embeddings, labels = clustered()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = adapt(embeddings, labels, AdaptConfig(**QUICK, hidden=8), device="cpu")
    assert torch.rand(1) == expected
    second = adapt(embeddings, labels, AdaptConfig(**QUICK, hidden=8), device="cpu")
    assert first.head.fingerprint() == second.head.fingerprint()
    assert first.best_seed.history == second.best_seed.history
    other = adapt(embeddings, labels, AdaptConfig(**QUICK, hidden=8, seed=1), device="cpu")
    assert other.head.fingerprint() != first.head.fingerprint()


class Interrupter:
    """Sends a signal to this process at some calls of `progress`."""

    def __init__(self, *calls):
        self.count, self.calls = 0, calls

    def __call__(self, what, done, total):
        self.count += 1
        if self.count in self.calls:
            signal.raise_signal(signal.SIGTERM)


def test_an_interrupted_run_continues_to_the_same_head_to_the_last_bit(tmp_path):
    embeddings, labels = clustered()
    config = AdaptConfig(**QUICK, seeds=2)
    expected = adapt(embeddings, labels, config, folder=tmp_path / "whole", device="cpu")
    for call in (3, 12):  # within the first seed, between two validations; and in the second
        with pytest.raises(AdaptationStopped, match="of 24 steps") as stopped:
            adapt(embeddings, labels, config, folder=tmp_path / "parts", device="cpu", progress=Interrupter(call))
        assert stopped.value.signal == signal.SIGTERM
    result = adapt(embeddings, labels, config, folder=tmp_path / "parts", device="cpu")
    assert [one.history for one in result.seeds] == [one.history for one in expected.seeds]
    for name in ("head.safetensors", "head.json"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "parts" / "checkpoints").exists()


def test_after_a_kill_it_continues_from_the_last_checkpoint(tmp_path, monkeypatch):
    embeddings, labels = clustered()
    monkeypatch.setattr(head_folder, "SECONDS", 0.0)  # a checkpoint after every step

    def killed(what, done, total):
        if done == 6:
            raise ZeroDivisionError  # as sudden as a kill: nothing is saved on the way out

    with pytest.raises(ZeroDivisionError):
        adapt(embeddings, labels, AdaptConfig(**QUICK), folder=tmp_path / "head", device="cpu", progress=killed)
    steps = []
    resumed = adapt(embeddings, labels, AdaptConfig(**QUICK), folder=tmp_path / "head", device="cpu",
                    progress=lambda what, done, total: steps.append(done))  # fmt: skip
    assert steps[0] == 6
    assert resumed.head.fingerprint() == adapt(embeddings, labels, AdaptConfig(**QUICK), device="cpu").head.fingerprint()


def test_a_checkpoint_of_other_settings_or_embeddings_is_refused(tmp_path):
    embeddings, labels = clustered()
    with pytest.raises(AdaptationStopped):
        adapt(embeddings, labels, AdaptConfig(**QUICK), folder=tmp_path / "h", device="cpu", progress=Interrupter(3))
    with pytest.raises(ValueError, match=r"another training: steps was 12 and is 13"):
        adapt(embeddings, labels, AdaptConfig(**{**QUICK, "steps": 13}), folder=tmp_path / "h", device="cpu")
    with pytest.raises(ValueError, match=r"another training: embeddings and labels was"):
        adapt(embeddings + 1, labels, AdaptConfig(**QUICK), folder=tmp_path / "h", device="cpu")


def test_a_folder_with_a_head_or_with_other_files_is_left_alone(tmp_path):
    embeddings, labels = clustered()
    adapt(embeddings, labels, AdaptConfig(steps=1), folder=tmp_path / "h", device="cpu")
    with pytest.raises(FileExistsError, match="already has a head"):
        adapt(embeddings, labels, AdaptConfig(steps=1), folder=tmp_path / "h", device="cpu")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    with pytest.raises(ValueError, match=r"not the folder of a head: it has mine\.txt"):
        adapt(embeddings, labels, AdaptConfig(steps=1), folder=tmp_path / "notes", device="cpu")


def test_labels_of_several_levels_train_happier_and_choose_by_h_ap():
    embeddings, labels = clustered()
    table = np.stack([labels, labels // 3], axis=1)
    config = AdaptConfig(**QUICK, loss={"name": "happier"})
    result = adapt(embeddings, table, config, levels=("species", "genus"), device="cpu")
    assert result.metric == "H-AP"
    assert result.best_seed.best.value > result.raw
    assert {"AP/species", "AP/genus"} <= set(result.after)


def test_classes_of_the_test_set_that_were_trained_on_are_counted():
    embeddings, labels = clustered()
    some = labels[labels < 10]
    seen = RetrievalData.from_arrays(embeddings[labels < 10], np.where(some < 5, some, 1000))
    result = adapt(embeddings, labels, AdaptConfig(steps=1), test=seen, device="cpu")
    assert (result.classes["test"], result.classes["seen"]) == (6, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.arange(240)}, "each of the 240 classes has a single image"),
        ({"labels": np.full(240, -1)}, "no embedding has a label"),
        ({"labels": np.arange(240) % 4}, r"adapt needs 6 classes of two images or more .* and was given 4"),
        ({"labels": np.arange(239)}, "labels have 239 rows and embeddings 240"),
        ({"labels": np.arange(480).reshape(240, 1, 2)}, "images have several labels at a level"),
        ({"dim": 13}, "dim=13 is more than the 12 numbers of an embedding"),
        ({"images_per_class": 2}, "batch=64 has room for 32 classes of images_per_class=2, but 18 are trained on"),
        ({"batch": "whole", "images_per_class": 2}, "images_per_class is for batches"),
        ({"metric": "mAP@X"}, "must be an integer of at least 1 or R; write mAP@10"),
        ({"test": RetrievalData.from_arrays(np.ones((4, 5)), np.zeros((4, 1), int))}, "have width 5 and those to train on 12"),
        ({"test": RetrievalData.from_arrays(np.ones((4, 12)), np.zeros((4, 2), int))}, "have 2 levels and those to train on 1"),
    ],
)
def test_what_cannot_be_adapted_is_refused(change, message):
    embeddings, labels = clustered()
    config = {**QUICK, **{key: value for key, value in change.items() if key not in ("labels", "test")}}
    with pytest.raises(ValueError, match=message):
        adapt(embeddings, change.get("labels", labels), AdaptConfig(**config), test=change.get("test"), device="cpu")


def test_nan_is_refused_with_its_row():
    embeddings, labels = clustered()
    embeddings[7, 3] = np.nan
    with pytest.raises(ValueError, match=r"1 of 240 rows \(7\) hold NaN"):
        adapt(embeddings, labels, AdaptConfig(**QUICK), device="cpu")


def test_a_loss_that_becomes_nan_is_an_error():
    with pytest.raises(ValueError, match="the loss is nan by step"):
        adapt(*clustered(), AdaptConfig(**{**QUICK, "lr": 1e38}), device="cpu")
