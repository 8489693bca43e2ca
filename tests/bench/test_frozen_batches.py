"""benchmarks/frozen_batches.py: rates are chosen on held-out classes, runs are not repeated, tables show gains and noise."""

import importlib
import json
import re
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
def reduced(script, embedded):
    return script["Reduced"].from_folder(embedded, "character", components=8, per_class=None)


@pytest.fixture
def collection(script, reduced):
    return script["Collection"](reduced, dim=4)


@pytest.mark.parametrize("text", ["8x3", "wholex2", "8x3+memory"])
def test_a_setting_is_tuned_on_held_out_classes_tested_with_every_seed_and_not_trained_again(
    script, collection, tmp_path, text
):
    out, methods = tmp_path / "runs.jsonl", script["ALL"] if text == "8x3" else script["BOTH"]
    script["train_all"](script["Study"](out), collection, {text: methods}, seeds=2)
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
    script["train_all"](script["Study"](out), None, {text: methods}, seeds=2)  # without a collection nothing can be trained
    assert out.read_bytes() == before


def test_processes_share_the_runs_also_if_some_fail_and_find_the_numbers_of_one_process(
    script, embedded, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    module = importlib.import_module("frozen_batches")  # a process imports by name what it runs
    collection = module.Collection(module.Reduced.from_folder(embedded, "character", components=8, per_class=None), dim=4)
    settings = {"8x3": script["BOTH"], "wholex2": script["BOTH"], "8x3+memory": ("Sup-AP",)}
    module.train_all(module.Study(tmp_path / "one.jsonl"), collection, settings, seeds=2)
    shared = tmp_path / "shared.jsonl"
    module.train_in_processes(module.Study(shared), collection, settings, seeds=2, jobs=2, limit=-1)
    assert not shared.exists()
    first = (tmp_path / "one.jsonl").read_text().splitlines()[:3]
    shared.write_text("".join(line + "\n" for line in first))
    monkeypatch.setitem(module.COSTLY, "8x2", module.RATES[:1])
    with pytest.raises(SystemExit, match="runs that failed: 1"):
        module.train_in_processes(module.Study(shared), collection, {"8x2": ("none",), **settings}, seeds=2, jobs=2)
    rows = [[json.loads(line) for line in path.read_text().splitlines()] for path in (tmp_path / "one.jsonl", shared)]
    assert len(rows[0]) == (2 * 5 + 4) + (2 * 5 + 3) + (5 + 2)
    by_run = [sorted(({**row, "cpu_s": 0} for row in some), key=str) for some in rows]
    assert by_run[0] == by_run[1]
    assert shared.read_text().splitlines()[:3] == first, "not trained again"


def test_the_tests_of_a_setting_wait_for_its_rates_and_other_settings_do_not_wait(script, tmp_path):
    study, settings = script["Study"](tmp_path / "runs.jsonl"), {"8x3": ("Sup-AP",), "8x2": ("Sup-AP",)}
    tuning = list(script["missing_runs"](study, settings, seeds=2))
    assert [(run.part, run.steps) for run in tuning] == [("tune", 3)] * 5 + [("tune", 2)] * 5
    for run in tuning[1:]:
        study.append({**asdict(run), "mAP@R": run.lr})
    missing = list(script["missing_runs"](study, settings, seeds=2))
    assert [(run.part, run.steps, run.lr) for run in missing] == [("tune", 3, 0.001), ("test", 2, 0.1), ("test", 2, 0.1)]


def test_a_line_that_a_kill_cut_off_is_dropped_and_its_run_is_trained_again(script, tmp_path):
    path, settings = tmp_path / "runs.jsonl", {"8x3": ("Sup-AP",)}
    first, second, *_ = script["missing_runs"](script["Study"](path), settings, seeds=1)
    lines = [json.dumps({**asdict(run), "mAP@R": 1.0}) for run in (first, second)]
    path.write_text(lines[0] + "\n" + lines[1][:-20])
    study = script["Study"](path)
    assert next(script["missing_runs"](study, settings, seeds=1)) == second
    study.append({**asdict(second), "mAP@R": 1.0})
    assert path.read_text().splitlines() == lines


def test_a_saved_reduced_collection_is_the_same_up_to_a_step(script, reduced, tmp_path):
    reduced.save(tmp_path / "reduced.npz")
    loaded = script["Reduced"].load(tmp_path / "reduced.npz")
    for one, other in (
        (loaded.embeddings, reduced.embeddings),
        (loaded.test.queries.embeddings[:], reduced.test.queries.embeddings[:]),
    ):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, rtol=0, atol=0.51 / script["STORED_STEPS"])
    np.testing.assert_array_equal(loaded.labels, reduced.labels)
    np.testing.assert_array_equal(loaded.test.queries.labels, reduced.test.queries.labels)


@pytest.mark.parametrize(
    ("name", "path", "seeds"), [("MAIN", "RESULTS", 5), ("SMALL", "SMALL_RESULTS", 3), ("LARGE", "LARGE_RESULTS", 5)]
)
def test_the_results_have_every_run_of_the_study_once_and_no_other(script, name, path, seeds):
    rows = script["read_rows"](script[path])
    runs = [script["_run"](row) for row in rows if row["part"] in ("tune", "test")]
    assert len(runs) == len(set(runs))
    assert sum(row["part"] == "start" for row in rows) == (0 if name == "LARGE" else 1)
    gaps = [row["batch"] for row in rows if row["part"] == "gap"]
    assert len(gaps) == len(set(gaps))
    expected = 0
    for text, methods in script[name].items():
        setting, rates = script["parse_setting"](text), script["COSTLY"].get(text, script["RATES"])
        for method in methods:
            own = [run for run in runs if (script["_setting"](asdict(run)), run.method) == (setting, method)]
            once = setting.batch == "whole" and method == "Sup-AP"  # nothing is random
            tests = 1 if once else 3 if setting.batch == "whole" else seeds
            assert sorted(run.seed for run in own if run.part == "test") == list(range(tests)), (text, method)
            assert sorted(run.lr for run in own if run.part == "tune") == list(rates), (text, method)
            expected += tests + len(rates)
    assert len(runs) == expected


GIVEN = {
    *("0.001", "0.003", "0.01", "0.03", "0.1"),  # learning rates and λ
    *("5.5", "22.8", "8.4", "1.5"),  # percent of the paper and of our own networks
    "2.4",  # percent: the gain of L*_DG in batches of 32, over Sup-AP
    *("7.14", "2.11", "2.13"),  # mAP@R before training, versions of torch
}


def test_numbers_in_the_text_of_the_page_are_those_of_its_tables(script):
    page, generated = script["PAGE"].read_text(encoding="utf-8"), r"<!-- begin ([^>]+) -->.*?<!-- end \1 -->"
    tables = "\n".join(found[0] for found in re.finditer(generated, page, flags=re.DOTALL)).replace("**", "")
    text = re.sub(r"```.*?```|<!--.*?-->", "", re.sub(generated, "", page, flags=re.DOTALL), flags=re.DOTALL)
    number = r"−?\d+\.\d+"
    with_interval = re.findall(rf"{number}\s\[{number},\s{number}\]", text)
    assert len(with_interval) > 5
    for found in with_interval:
        assert " ".join(found.split()) in tables
    values = [abs(float(found)) for found in re.findall(r"\d+\.\d+", tables)]
    for found in re.findall(r"\d+\.\d+", text):
        half = 0.5 * 10.0 ** -len(found.partition(".")[2])
        assert found in GIVEN or any(abs(value - float(found)) <= half + 1e-9 for value in values), found


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
            rows.append({**asdict(run), "part": "tune", "seed": 100, "mAP@R": 30.0 + added})
    return script["Results"](rows)


@pytest.fixture
def large(script, results):
    """Runs on a GPU: a memory that gains nothing, 256x300 again, a larger batch, and the whole collection."""

    def runs(source, method, **changes):
        wanted = {**asdict(script["parse_setting"](source)), "method": method}
        return [{**row, **changes} for row in results.rows if wanted.items() <= row.items()]

    changes = [("16x4800", {"memory": True}), ("256x300", {}), ("1024x75", {"steps": 300})]
    rows = [row for source, some in changes for method in script["BOTH"] for row in runs(source, method, **some)]
    whole = [row for method in script["BOTH"] for row in runs("1024x75", method, batch="whole", steps=300)]
    return script["Results"](rows + [row for row in whole if row["method"] != "Sup-AP" or row["seed"] in (0, 100)])


@pytest.fixture
def found(script, results, large):
    return script["tables"](results, results, large)


def _cells(table):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if not line.startswith("|---")]


def test_tables_show_gains_with_intervals_and_only_those_beyond_noise_are_bold(script, found):
    _, *lines = _cells(found["images"])
    assert [line[:3] for line in lines] == [["16", "0.16 %", "4,800"], ["256", "2.5 %", "300"], ["1,024", "10 %", "75"]]
    assert [line[5].startswith("**+") for line in lines] == [True, True, False]
    assert not any("**" in line[4] for line in lines)
    assert [line[6] for line in lines] == ["40.0", "2.5", "0.6"]
    assert "over 3 batch sizes" in found["prediction"]
    assert "1.00 for L*_DG" in found["prediction"]
    assert "Sup-AP has 30.00, 30.00 and 30.00; L*_DG adds 2.00, 1.00 and 0.00." in found["prediction"]
    page = script["rewrite"]("a\n<!-- begin rates -->\nold\n<!-- end rates -->\nb", found)
    assert page == f"a\n<!-- begin rates -->\n{found['rates']}<!-- end rates -->\nb"


def test_the_figure_is_drawn(script, results, large, tmp_path):
    script["draw"](script["with_large"](results, large), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.parametrize("text", ["64", "allx3", "16x3+memories"])
def test_a_setting_that_is_not_a_batch_and_steps_is_refused(script, text):
    with pytest.raises(ValueError, match="is not BATCHxSTEPS"):
        script["parse_setting"](text)
