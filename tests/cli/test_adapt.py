"""suprank adapt: from a folder or files of embeddings to a head, with wrong arguments too."""

import csv
import multiprocessing
import os
import signal

import numpy as np
import pytest

from suprank.evaluation import evaluate
from suprank.files.atomic import write_atomically
from suprank.models import Head
from tests.adaptation.collections import clustered
from tests.cli.collection import done, invoke, refused

QUICK = ("steps=12", "every=6", "batch=64", "lr=0.02", "--device", "cpu")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """train.npy and test.npy with tables of their labels; class names of the two differ."""
    folder = tmp_path_factory.mktemp("files")
    for name, seed, prefix in (("train", 0, "a"), ("test", 1, "b")):
        embeddings, labels = clustered(seed=seed)
        np.save(folder / f"{name}.npy", embeddings)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(
                [["label_species", "label_genus"], *([f"{prefix}{x}", f"{prefix}{x // 3}"] for x in labels)]
            )
    return folder


def adapt(files, *arguments):
    return "adapt", files / "train.npy", "--labels", files / "train.csv", *QUICK, *arguments


def test_files_with_a_test_set_of_their_own_print_what_evaluate_prints(files, tmp_path):
    test = ("--test", files / "test.npy", "--test-labels", files / "test.csv")
    printed = done(*adapt(files, *test, "--level", "species", "--out", tmp_path / "head")).stdout
    assert "tested on 30 classes (240), none of which was trained on or chose the step." in " ".join(printed.split())
    embeddings, labels = clustered(seed=1)
    head = Head.load(tmp_path / "head")
    before, after = (
        100 * evaluate(one, labels, metrics=["mAP@R"], progress=False)["mAP@R"]
        for one in (embeddings, head.transform(embeddings))
    )
    (row,) = [line for line in printed.splitlines() if line.startswith("mAP@R")]
    assert row.split()[1] == f"{before:.2f}"
    assert f" {after:.2f} " in row
    assert f" {after - before:+.2f} " in row
    assert head.training_record["source"]["embeddings"] == str(files / "train.npy")
    assert sorted(one.name for one in (tmp_path / "head").iterdir() if one.name != ".lock") == ["head.json", "head.safetensors"]


def test_without_a_test_set_classes_are_held_out_and_seeds_are_spread(files, tmp_path):
    arguments = ("--level", "species", "--test-classes", 0.4, "seeds=2", "--loss", "sup-ap", "loss.tau=0.02")
    printed = done(*adapt(files, *arguments, "--out", tmp_path / "head")).stdout
    assert (
        "trained on 14 classes (112 images); the best step was chosen by 4 others (32); tested on 12 classes (96)"
        in " ".join(printed.split())
    )
    assert "all seeds" in printed
    assert "±" in printed
    assert Head.load(tmp_path / "head").training_record["config"]["loss"]["tau"] == 0.02


def test_with_several_levels_no_metric_has_two_rows(files, tmp_path):
    printed = done(*adapt(files, "steps=1", "--out", tmp_path / "head")).stdout
    names = [line.split()[0] for line in printed.splitlines() if " [" in line]
    assert {"R@1/species", "R@1/genus", "H-AP"} < set(names)
    assert not {"R@1", "mAP@R", "AP"} & set(names)


def test_a_test_set_of_trained_classes_is_called_that(files, tmp_path):
    test = ("--test", files / "train.npy", "--test-labels", files / "train.csv", "--level", "species")
    printed = done(*adapt(files, *test, "steps=1", "--out", tmp_path / "head")).stdout
    assert "so that this is no test on unseen classes" in " ".join(printed.split())


def test_a_signal_stops_it_and_the_same_command_continues(files, tmp_path, monkeypatch):
    from suprank.cli import terminal

    def interrupted(self, what, done, total):
        if done == 5:
            signal.raise_signal(signal.SIGINT)

    command = adapt(files, "--level", "species", "--out", tmp_path / "head", "-q")
    with monkeypatch.context() as patch:
        patch.setattr(terminal.ProgressBars, "__call__", interrupted)
        stopped = invoke(*command)
    assert stopped.exit_code == 128 + signal.SIGINT
    assert "stopped after 5 of 12 steps; give the same command again to continue." in stopped.output
    assert done(*command).stdout == ""
    done(*adapt(files, "--level", "species", "--out", tmp_path / "other"))
    assert (tmp_path / "head/head.safetensors").read_bytes() == (tmp_path / "other/head.safetensors").read_bytes()


@pytest.mark.parametrize("moment", ["head.safetensors", "head.json", "the table"])
def test_killed_while_the_head_is_saved_or_the_table_printed_the_same_command_prints_it(files, tmp_path, monkeypatch, moment):
    def killed(*written):
        if written[1:]:
            write_atomically(*written)
        if not written[1:] or written[0].name == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    command, other = (adapt(files, "--level", "species", "--out", tmp_path / out) for out in ("head", "other"))
    with monkeypatch.context() as patch:
        patch.setattr("suprank.cli.adapt._print" if moment == "the table" else "suprank.models.head.write_atomically", killed)
        process = multiprocessing.get_context("fork").Process(target=invoke, args=command)
        process.start()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    assert done(*command).stdout == done(*other).stdout.replace("/other", "/head")
    assert {file.name for file in (tmp_path / "head").iterdir()} == {".lock", "head.json", "head.safetensors"}
    assert "already has a head" in refused(*command)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing option '--out'"),
        (("--out", "."), "not the folder of a head"),
        (("--out", "h", "batch=all"), "batch: 'all' should be a valid integer, or 'all' should be 'whole' (batch=all)"),
        (("--out", "h", "validation=1.5"), "validation: 1.5 should be less than 1 (validation=1.5)"),
        (("--out", "h", "--test-classes", 2), "test_classes: 2.0 should be less than 1"),
        (("--out", "h", "step=1"), "did you mean steps?"),
        (("--out", "h", "--loss", "roadmapp"), "did you mean roadmap?"),
        (("--out", "h", "loss.tua=1"), "did you mean loss.tau?"),
        (("--out", "h", "batch: {'size': 1} should be a valid integer"), "batch: {'size': 1} should be a valid integer"),
        (("--out", "h", "--level", "order"), "has no column 'order'"),
        (("--out", "h", "--test", "t.npy"), "t.npy"),
        (("--out", "h", "dim=100"), "dim=100 is more than the 12 numbers of an embedding"),
        (("--out", "h", "batch=whole", "images_per_class=2"), "batch='whole' has all images of every class"),
        (("--out", "h", "batch=whole", "loss.mixup=true"), "SimilarityMixup"),
    ],
)
def test_wrong_arguments_are_refused(files, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").touch()
    assert message in refused(*adapt(files, *arguments))


def test_embeddings_without_labels_and_missing_files_are_refused(files, tmp_path):
    assert "name a file of labels" in refused("adapt", files / "train.npy", "--out", tmp_path / "h")
    assert "there is no" in refused("adapt", tmp_path / "nothing", "--out", tmp_path / "h")
    assert "has no embeddings" in refused("adapt", files, "--out", tmp_path / "h")
