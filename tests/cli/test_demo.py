import re

import pytest
import torch
from typer.testing import CliRunner

from suprank.cli.app import app
from suprank.cli.experiment import IMAGES_PER_CLASS, batches, train_and_test


def demo(*arguments):
    return CliRunner().invoke(app, ["demo", *arguments])


def row(output, name):
    """The numbers before and after in the row of that name."""
    (line,) = [line for line in output.splitlines() if f" {name}, " in line]
    before, after = re.findall(r"[\d.]+(?=%| )", line.split(",", 1)[1])
    return float(before), float(after)


def test_a_short_demo_lowers_the_loss_and_raises_every_metric_on_unseen_classes():
    run = demo("--steps", "25", "--batch-size", "64")
    assert run.exit_code == 0, run.output
    before, after = row(run.output, "loss")
    assert after < before
    for metric in ("H-AP", "AP", "R@1"):
        before, after = row(run.output, metric)
        assert after > before + 5


def test_a_seed_gives_the_same_numbers_again_and_another_gives_others():
    first, again, other = (demo("--steps", "3", "--batch-size", "32", "--seed", seed).stdout for seed in "110")
    assert first == again
    assert row(first, "H-AP") != row(other, "H-AP")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--batch-size", "130"], "130 must be a multiple of 4 from 8 to 480"),
        (["--batch-size", "4"], "try 8"),
        (["--batch-size", "4000"], "try 480"),
        (["--steps", "0"], "0 must be 1 or more"),
        (["--seed", "-1"], "-1 must be 0 or more"),
        (["--seed", str(2**63)], "below 2⁶³"),
        (["--steps", "many"], "valid integer"),
    ],
)
def test_a_wrong_argument_is_refused_with_the_rule_and_the_way_out(arguments, complaint):
    refused = demo(*arguments)
    assert refused.exit_code == 2
    message = " ".join(refused.output.replace("│", " ").split())
    assert arguments[0] in message
    assert complaint in message
    assert "Traceback" not in message


def test_training_and_test_images_share_families_and_groups_but_no_class():
    train, test = train_and_test(seed=0)
    for column, shared in ((0, False), (1, True), (2, True)):
        assert set(train.labels[:, column].tolist()).isdisjoint(test.labels[:, column].tolist()) is not shared
    assert train.labels[:, 0].unique().tolist() == list(range(train.classes)), "proxies need 0, 1, 2, ..."


def test_a_batch_holds_different_images_of_whole_classes():
    train, _ = train_and_test(seed=0)
    batch = next(batches(train, 32, seed=0))
    classes, counts = batch.labels[:, 0].unique(return_counts=True)
    assert len(classes) == 32 // IMAGES_PER_CLASS
    assert counts.tolist() == [IMAGES_PER_CLASS] * len(classes)
    assert len(torch.unique(batch.pixels, dim=0)) == 32
