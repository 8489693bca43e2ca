"""Costs that are estimated before a run agree with the run: its steps exactly, its disk closely, its hours by arithmetic."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import step_times
from suprank.data import Manifest
from suprank.models import Embedder
from suprank.models.config import EmbedderConfig
from suprank.paper import costs
from suprank.paper.costs import FinishedRun, StepTime, StepTimes, estimate, finished_runs
from suprank.paper.datasets import DATASETS, START, DatasetSize
from suprank.training.config import TrainConfig
from suprank.training.loop import train
from suprank.training.recipe import read_recipe
from tests.training.runs import CLASSES, TEST, TRAIN, pictures, recipe

TIMES = StepTimes(
    (
        StepTime("resnet50", "avg", 224, 128, "bf16", 0.05, 0.0002),
        StepTime("resnet50", "avg", 224, 256, "bf16", 0.09, 0.0002),
        StepTime("resnet50", "gem", 224, 256, "bf16", 0.10, 0.0003),
        StepTime("resnet50", "gem", 256, 256, "bf16", 0.12, 0.0004),
        StepTime("resnet101", "gem", 224, 256, "bf16", 0.15, 0.0005),
    ),
    "a stopwatch",
)
TINY_SIZE = DatasetSize("tiny", CLASSES * TRAIN, {"fine": CLASSES, "coarse": 2}, CLASSES * TEST)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    return pictures(tmp_path_factory.mktemp("pictures"))


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


# Steps


def test_steps_on_sop_are_those_of_the_paper():
    """66 pairs of the 12 categories, 5 batches each, 100 epochs."""
    assert estimate(read_recipe("sop/roadmap"), DATASETS["sop"].size, None, times=TIMES).steps == 66 * 5 * 100


def test_steps_follow_from_the_size_of_a_dataset():
    def epoch(name: str, *overrides: str) -> int:
        config = read_recipe(name, overrides)
        return estimate(config, DATASETS[name.partition("/")[0]].size, None, times=TIMES).steps / config.run.epochs

    # 1,477 groups of CUB's real class sizes make 24 batches of 64 groups.
    assert epoch("cub/roadmap") == 24
    # At most 8 images, or 2 groups, of each landmark.
    assert epoch("hgldv2/happier") == -(-46_593 * 2 // 64)
    assert epoch("inat-base/roadmap") == pytest.approx(325_846 / 256, rel=0.03)
    assert epoch("cub/roadmap", "batch.batches=7") == 7
    assert epoch("cub/roadmap", "batch.accumulate=5") == 5


CASES: dict[str, dict[str, Any]] = {
    "roadmap": {},
    "with proxies and a memory": {"loss": {"name": "roadmap"}, "memory": {"size": "all", "per_item": True}},
    "proxies at every level, SGD": {
        "loss": {"name": "sum-nsm"},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "proxies": {"name": "sgd", "lr": 0.01, "momentum": 0.0},
    },
    "hierarchical sampler, GeM, accumulated": {
        "model": {"backbone": "test_vit", "pretrained": False, "pooling": "gem", "dim": 8},
        "images": {"size": 64, "test_resize": 64},
        "batch": {"size": 8, "images_per_class": 2, "sampler": "hierarchical", "batches_per_combination": 7, "accumulate": 3},
        "memory": {"size": 20},
    },
}


@pytest.mark.parametrize("tables", CASES.values(), ids=CASES)
def test_steps_and_disk_are_those_of_a_run(tables, manifest, tmp_path):
    config = recipe(manifest, **tables)
    expected = estimate(config, None, manifest)
    train(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["step"] == expected.steps
    assert expected.disk_bytes == pytest.approx(size_of(tmp_path / "run"), rel=0.05)
    # Without the manifest, from the counts of the same images.
    from_size = estimate(config, TINY_SIZE, None)
    assert from_size.disk_bytes == expected.disk_bytes
    assert from_size.steps == pytest.approx(expected.steps, rel=0.34)  # a group more or less, of three batches


def test_the_disk_of_a_paper_run_is_plausible():
    """ResNet-50 and a projection have 24.6 M parameters: 98 MB in a model, and three times that with Adam's moments."""
    cost = estimate(read_recipe("sop/smooth-ap"), DATASETS["sop"].size, None, times=TIMES)
    assert cost.disk_bytes == pytest.approx(2 * 98.4e6 + 2 * 3 * 98.4e6, rel=0.01)
    # Proxies of 11,318 classes, 512 wide, with their moments; a memory of 59,551 embeddings, two labels and an id.
    more = estimate(read_recipe("sop/roadmap-memory"), DATASETS["sop"].size, None, times=TIMES)
    proxies, memory = 3 * 4 * 11_318 * 512, 59_551 * (4 * 512 + 8 * 3)
    assert more.disk_bytes - cost.disk_bytes == pytest.approx(2 * (proxies + memory), rel=0.001)


@pytest.mark.parametrize("name", ["resnet34", "deit_small"])
def test_the_size_of_a_network_is_that_of_the_real_one(name):
    settings = EmbedderConfig(backbone=name, pooling="gem", dim=16, image_size=(224, 224))
    embedder = Embedder(settings)
    size = costs._network_size(settings)
    assert size.parameters == sum(parameter.numel() for parameter in embedder.parameters())
    assert size.state_bytes == sum(value.nbytes for value in embedder.state_dict().values())
    assert size.dim == embedder.dim


@pytest.mark.parametrize("preset", DATASETS)
@pytest.mark.parametrize("method", ["smooth-ap", "roadmap", "happier", "sum-nsm", "csl", "proxy-nca", "arcface"])
def test_every_preset_has_an_estimate(preset, method):
    config = read_recipe(f"{preset}/{method}")
    cost = estimate(config, DATASETS[preset].size, None)
    assert cost.steps > 1000
    assert cost.gpu_hours is not None
    assert 0.3e9 < cost.disk_bytes < 6e9
    assert "data loading is not included" in cost.source


# Hours


def test_hours_are_steps_and_evaluated_images_times_their_measured_times():
    cost = estimate(read_recipe("sop/smooth-ap"), DATASETS["sop"].size, None, times=TIMES)
    evaluations = 5  # every 20 of 100 epochs
    seconds = 33_000 * 0.09 + evaluations * 60_502 * 0.0002
    assert cost.gpu_hours == pytest.approx(seconds / 3600)
    assert cost.source == "measured: a stopwatch; data loading is not included"


def test_evaluations_are_counted_as_training_does(manifest, tmp_path):
    for tables in ({"every": 2, "at_start": True}, {"every": 3}, {"every": 0}, {"every": 1}):
        config = recipe(manifest, evaluation={**tables, "metrics": ("R@1",)}, run={"epochs": 4}, batch={"batches": 1})
        folder = tmp_path / "-".join(map(str, tables.values()))
        train(config, folder)
        assert costs._evaluations(config) == len(list((folder / "reports").glob("*.json"))), tables


def test_the_nearest_measurement_is_scaled_with_the_batch_and_the_pixels():
    def hours(*overrides: str) -> tuple[float, str]:
        settings = ["run.epochs=10", "run.frozen_epochs=0", "evaluation.every=0", *overrides]
        cost = estimate(read_recipe("sop/smooth-ap", settings), DATASETS["sop"].size._replace(test_images=0), None, times=TIMES)
        assert cost.gpu_hours is not None
        return cost.gpu_hours * 3600 / 3300, cost.source

    assert hours("batch.size=64")[0] == pytest.approx(0.05 / 2)
    assert "scaled from batches of 128 at 224 pixels" in hours("batch.size=64")[1]
    assert hours("batch.size=384")[0] == pytest.approx(0.09 * 1.5)
    assert hours("model.pooling=gem")[0] == pytest.approx(0.10)
    seconds, source = hours("images.size=320", "images.test_resize=320")
    assert seconds == pytest.approx(0.12 * (320 / 256) ** 2)
    assert "scaled from batches of 256 at 256 pixels" in source
    seconds, source = hours("batch.chunk=128")
    assert seconds == pytest.approx(2 * 0.05 * 4 / 3)
    assert "embedded twice" in source
    assert hours("batch.accumulate=2")[0] == pytest.approx(2 * 0.09 / 2)  # half as many steps, each of two batches


def test_chunks_cost_what_they_cost_on_an_h200():
    """The published benchmark has 0.296 s for a batch of 1,024 in one pass, and 0.390 s in chunks of 256."""
    file = Path(__file__).parents[2] / "benchmarks" / "results" / "h200" / "training.json"
    large = {(row["batch"], row["chunk"]): row["step"] for row in json.loads(file.read_text())["large batches"]}
    assert large[1024, 256] / large[1024, None] == pytest.approx(1 + costs._FORWARD_SHARE, rel=0.02)


def test_a_network_that_was_not_measured_has_no_hours(manifest):
    cost = estimate(recipe(manifest), None, manifest, times=TIMES)
    assert cost.gpu_hours is None
    assert cost.source == "not measured: test_resnet in fp32"
    assert cost.steps == 9


def test_finished_runs_of_the_same_network_and_batch_tell_the_hours(manifest, tmp_path):
    config = recipe(manifest)
    train(config, tmp_path / "tables" / "run")
    train(recipe(manifest, batch={"size": 8, "images_per_class": 2}), tmp_path / "tables" / "other")
    (tmp_path / "tables" / "unfinished").mkdir()
    found = finished_runs(tmp_path)
    assert [run.step for run in found] == [18, 9]  # other, run

    longer = recipe(manifest, run={"epochs": 300}, loss={"name": "smooth-ap"}, evaluation={"every": 0, "metrics": ("R@1",)})
    cost = estimate(longer, None, manifest, found, times=TIMES)
    step = found[1].seconds / 9
    assert cost.gpu_hours == pytest.approx((900 * step + CLASSES * TEST * step / 3 / 16) / 3600)
    assert cost.source == "from 1 finished run of the same network, image size and batch"

    twice = [run._replace(seconds=90.0) for run in found if run.step == 9] * 2
    assert estimate(longer, None, manifest, twice, times=TIMES).source.startswith("from 2 finished runs")


def test_finished_runs_of_another_batch_are_no_measure(manifest):
    other = FinishedRun(read_recipe("sop/smooth-ap", ["batch.size=128"]), 100, 1e6)
    config = read_recipe("sop/roadmap")
    assert estimate(config, DATASETS["sop"].size, None, [other], TIMES) == estimate(
        config, DATASETS["sop"].size, None, (), TIMES
    )


def test_a_run_whose_recipe_cannot_be_read_is_left_out(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("[data]\nfuture = 1\n")
    (tmp_path / "run" / "result.json").write_text('{"epoch": 1, "step": 1, "seconds": 1, "metrics": {}}')
    assert finished_runs(tmp_path) == []


# Manifests


def test_a_manifest_that_is_imported_again_is_counted_again(manifest, tmp_path):
    half = Manifest.read(manifest)
    file = tmp_path / "images.parquet"
    half.save(file)
    before = estimate(recipe(file), None, file)
    half.split("train").take(torch.arange(0, CLASSES * TRAIN, 3).numpy()).save(file)
    after = estimate(recipe(file), None, file)
    assert (before.steps, after.steps) == (9, 3)
    assert after.disk_bytes < before.disk_bytes  # without test images there is no best model


def test_queries_and_gallery_of_every_test_set_are_embedded(manifest, tmp_path):
    table = Manifest.read(manifest).split("test").table
    splits = ["query" if row % 3 == 0 else "gallery" if row % 3 == 1 else "distractor" for row in range(len(table))]
    columns = {"path": table["path"], "split": splits, "label_fine": table["label_fine"].cast("string")}
    Manifest.from_columns(columns, root=manifest.parent).save(tmp_path / "own.parquet")
    config = recipe(manifest, data={"tests": {"own": str(tmp_path / "own.parquet")}})
    assert costs._count_manifest(config, str(manifest)).test_images == 2 * CLASSES * TEST


def test_an_estimate_needs_images():
    with pytest.raises(ValueError, match="needs a manifest"):
        estimate(read_recipe("sop/roadmap"), None, None)


def test_the_batch_must_fit_the_manifest_as_in_training(manifest):
    with pytest.raises(ValueError, match="needs 128 classes"):
        estimate(recipe(manifest, batch={"size": 256, "images_per_class": 2}), None, manifest)


# The measured times


def test_the_shipped_times_have_every_network_of_the_papers_recipes():
    content = json.loads(costs.STEP_TIMES.read_text())
    assert {"hardware", "date", "command", "versions"} <= content.keys()
    assert "Data loading is not included" in content["measured"]
    times = StepTimes.load()
    assert content["hardware"] in times.source
    for name in ("sop/roadmap-deit", "cub/roadmap-vit", "dyml-product/happier", "hgldv2/happier", "cub/roadmap"):
        config = read_recipe(name)
        assert times.nearest(costs._network_config(config), config.images.size, 256, config.engine.precision) is not None
    assert step_times.START == START


def test_the_benchmark_writes_times_that_the_estimate_reads(monkeypatch, tmp_path):
    monkeypatch.setattr(step_times, "RECIPES", ("glyphs/roadmap",))
    monkeypatch.setattr("sys.argv", ["step_times.py", "--quick", "--out", str(tmp_path / "times.json")])
    monkeypatch.setattr(step_times, "time", SimpleNamespace(perf_counter=time.process_time))  # on a busy machine too
    step_times.main()
    (row,) = StepTimes.load(tmp_path / "times.json").rows
    config = read_recipe("glyphs/roadmap")
    assert (row.backbone, row.batch_size, row.image_size) == (config.model.backbone, 8, 64)
    assert 0 < row.embedding_seconds < row.step_seconds


def test_a_saved_start_model_is_the_network(tmp_path):
    Embedder.create("test_resnet", pooling="gem", dim=4, image_size=32).save(tmp_path / "start")
    config = read_recipe("hgldv2/happier")
    assert costs._network_config(config) == START
    started: TrainConfig = read_recipe("hgldv2/happier", [f"model.start={tmp_path / 'start'}"])
    assert (costs._network_config(started).backbone, costs._network_config(started).dim) == ("test_resnet", 4)
