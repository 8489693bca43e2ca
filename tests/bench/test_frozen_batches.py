"""benchmarks/frozen_batches.py: rates are chosen on held-out classes, runs are not repeated, tables show gains and noise."""

import json
import runpy
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from suprank.data import Manifest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "frozen_batches.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """A folder of `suprank embed`: 16 classes of 5 images to train on, and 8 others to test with."""
    folder, rng = tmp_path_factory.mktemp("embedded"), np.random.default_rng(0)
    for part, classes in (("train", range(16)), ("test", range(16, 24))):
        labels = np.repeat(list(classes), 5)
        (folder / part).mkdir()
        np.save(folder / part / "embeddings.npy", (labels[:, None] % 7 + rng.normal(size=(len(labels), 12))).astype(np.float32))
        columns = {"path": [f"{part}{row}" for row in range(len(labels))], "split": [part] * len(labels)}
        names = {"label_character": [f"class {label}" for label in labels], "label_alphabet": ["a"] * len(labels)}
        Manifest.from_columns({**columns, **names}, root=".").save(folder / part / "items.parquet")
    return folder


@pytest.fixture
def collection(script, embedded):
    return script["Collection"](embedded, "character", components=8, dim=4, per_class=None)


@pytest.mark.parametrize("text", ["8x3", "wholex2", "8x3+memory"])
def test_a_setting_is_tuned_on_held_out_classes_tested_with_every_seed_and_not_trained_again(
    script, collection, tmp_path, text
):
    out, setting = tmp_path / "runs.jsonl", script["parse_setting"](text)
    methods = script["ALL"] if text == "8x3" else script["BOTH"]
    script["train_setting"](script["Study"](out), collection, setting, methods, seeds=2)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["method"], row["lr"]) for row in rows if row["part"] == "tune"] == [
        (method, lr) for method in methods for lr in script["RATES"]
    ]
    tests = [row for row in rows if row["part"] == "test"]
    random = ["L*_DG"] if text == "wholex2" else methods
    assert [(row["method"], row["seed"]) for row in tests] == [
        *((method, 0) for method in methods),
        *((method, 1) for method in random),
    ]
    for row in tests:
        trials = [one for one in rows if one["part"] == "tune" and one["method"] == row["method"]]
        assert row["lr"] == max(trials, key=lambda one: one["mAP@R"])["lr"]
        assert np.mean(row["classes"]) == pytest.approx(row["mAP@R"], abs=0.01)
    before = out.read_bytes()
    study = script["Study"](out)
    script["train_setting"](study, None, setting, methods, seeds=2)  # without a collection nothing can be trained
    assert out.read_bytes() == before


def test_the_results_have_every_setting_of_the_study(script):
    for name, path, seeds in (("MAIN", "RESULTS", 5), ("SMALL", "SMALL_RESULTS", 3)):
        results = script["Results"](script["read_rows"](script[path]))
        for text, methods in script[name].items():
            setting = script["parse_setting"](text)
            for method in methods:
                once = setting.batch == "whole" and method == "Sup-AP"  # nothing is random
                assert len(results.tests(setting, method)) == (1 if once else seeds), (text, method)


def test_no_class_is_both_trained_on_and_used_to_choose(collection):
    assert set(collection.labels[collection.held_out]).isdisjoint(collection.labels[~collection.held_out])
    assert collection.held_out.sum() == 20  # a quarter of the classes


def test_a_large_batch_in_chunks_has_the_loss_of_the_whole_batch(script, collection):
    rows = torch.arange(80).repeat(7)  # above 4 chunks of 128 queries
    head = script["principal_heads"](collection.embeddings, collection.head_config)["uncentered"]
    inputs = torch.from_numpy(collection.embeddings), torch.from_numpy(collection.labels)[:, None]
    for loss in script["LOSSES"].values():
        config = script["AdaptConfig"](loss=loss)
        trainer = script["Trainer"](head, *inputs, config, steps=1, shape=None, seed=0, memory=False)
        whole = trainer.loss(head(inputs[0][rows]), inputs[1][rows])
        torch.testing.assert_close(trainer._batch_loss(rows), whole)


def test_a_memory_holds_every_image_before_the_first_step_and_no_image_is_in_its_own_list(script, collection):
    head = script["principal_heads"](collection.embeddings, collection.head_config)["uncentered"]
    inputs = torch.from_numpy(collection.embeddings), torch.from_numpy(collection.labels)[:, None]
    config = script["AdaptConfig"](loss={"name": "sup-ap"})
    trainer = script["Trainer"](head, *inputs, config, steps=1, shape=None, seed=0, memory=True)
    assert len(trainer.with_memory.memory) == 80
    rows = torch.arange(80)  # the batch is the memory, so both parts of the loss are the whole loss
    torch.testing.assert_close(trainer._batch_loss(rows), trainer.loss(head(inputs[0]), inputs[1]))


@pytest.fixture
def results(script):
    """L*_DG gains 2 points in batches of 16, 1 in batches of 256 and none in batches of 1,024; L_DG gains none."""
    rng, settings = np.random.default_rng(0), [script["Setting"](batch, 76_800 // batch) for batch in (16, 256, 1024)]
    rows = [{"part": "start", "images": 10_240, "classes": 100, "mAP@R": 5.0}]
    rows += [{"part": "gap", "batch": one.batch, "gap": 640 / one.batch} for one in settings]
    for one, gain in zip(settings, (2.0, 1.0, 0.0), strict=True):
        for method, added in (("Sup-AP", 0.0), ("L_DG", 0.0), ("L*_DG", gain)):
            for seed in range(3):
                classes = np.linspace(0, 40, 100) + added + rng.normal(scale=0.5, size=100)
                metrics = {name: classes.mean() for name in script["METRICS"]}
                run = script["Run"]("test", **asdict(one), method=method, lr=0.01, seed=seed)
                rows.append({**asdict(run), **metrics, "classes": classes.tolist(), "gap": {"gap": 3.0}})
    return script["Results"](rows)


def test_tables_show_gains_with_intervals_and_only_those_beyond_noise_are_bold(script, results):
    found = script["tables"](results, results)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found["images"].splitlines()[2:]]
    assert [line[:3] for line in lines] == [["16", "0.16 %", "4,800"], ["256", "2.5 %", "300"], ["1,024", "10 %", "75"]]
    assert [line[5].startswith("**+") for line in lines] == [True, True, False]
    assert not any("**" in line[4] for line in lines)
    assert [line[6] for line in lines] == ["40.0", "2.5", "0.6"]
    replaced = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found["replacement"].splitlines()]
    assert replaced[0][1:] == ["Sup-AP, 16", "Sup-AP, 256", "Sup-AP, 1,024"]
    assert [line[0] for line in replaced[2:]] == ["L*_DG, 16", "L*_DG, 256"]
    assert all(cell.startswith(("**+2.", "**+1.9")) for cell in replaced[2][1:])
    assert "over 3 batch sizes" in found["prediction"]
    assert "1.00 for L*_DG" in found["prediction"]
    header, _, first = found["steps"].splitlines()
    assert header == "| batch | steps | images seen | Sup-AP | + L_DG | + L*_DG |", "there is no memory"
    assert first.startswith("| 256 | 300 | 76,800 |")
    page = script["rewrite"]("a\n<!-- begin rates -->\nold\n<!-- end rates -->\nb", found)
    assert page == f"a\n<!-- begin rates -->\n{found['rates']}<!-- end rates -->\nb"


def test_the_figure_is_drawn(script, results, tmp_path):
    script["draw"](results, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.parametrize("text", ["64", "allx3", "16x3+memories"])
def test_a_setting_that_is_not_a_batch_and_steps_is_refused(script, text):
    with pytest.raises(ValueError, match="is not BATCHxSTEPS"):
        script["parse_setting"](text)
