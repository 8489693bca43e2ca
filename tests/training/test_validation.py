"""A network in training is evaluated as `suprank embed` and `suprank evaluate` do it, on any number of processes."""

import functools
import json
import logging
import pickle

import numpy as np
import pytest
import torch

import suprank
from suprank import open_data
from suprank.data import Manifest, Normalize
from suprank.evaluation import Report, evaluate
from suprank.evaluation.units import TRAINING, same_classes
from suprank.training.config import TrainConfig
from suprank.training.loop import train
from suprank.training.validation import Validator
from tests.cli.collection import done, photographs
from tests.models.tiny import embedder
from tests.training.runs import start_process

SIDE = 32


def recipe(manifest="m.parquet", images=None, **parts):
    """A recipe of 32 × 32 images, tested as they are, seven at a time."""
    return TrainConfig.model_validate(
        {
            "data": {"manifest": str(manifest), "workers": 0, **parts.pop("data", {})},
            "images": {"size": SIDE, "test_resize": 0, "interpolation": "bicubic", **(images or {})},
            "loss": {"name": "smooth-ap"},
            "evaluation": {"batch_size": 7, **parts.pop("evaluation", {})},
            **parts,
        }
    )


@functools.cache
def network():
    return embedder(dim=8)


@torch.inference_mode()
def forward(images):
    assert images.dtype == torch.uint8
    model = network()
    prepared = Normalize(model.input.mean, model.input.std)(images)
    return model(prepared.contiguous(memory_format=torch.channels_last))


def reports(validator, **further):
    return validator(forward, device="cpu", progress=further.get("progress", lambda name, done, total: None))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos of 9 classes in 3 groups, 4 of each; the fifth of `test_set` is missing there when a test takes it away."""
    return photographs(tmp_path_factory.mktemp("evaluated") / "photos")


def open_manifest(photos, split="test", **columns):
    """All photos; `split` is one for all, or a function of the row."""
    paths = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.png"))
    splits = [split if isinstance(split, str) else split(row) for row in range(len(paths))]
    blank = [one == "distractor" for one in splits]
    given = {
        "path": paths,
        "split": splits,
        "label_class": ["" if hidden else path.split("/")[1] for path, hidden in zip(paths, blank, strict=True)],
        "label_group": ["" if hidden else path.split("/")[0] for path, hidden in zip(paths, blank, strict=True)],
    }
    return Manifest.from_columns(given | columns, root=photos)


LAYOUTS = {
    "test against itself": lambda row: "train" if row < 8 else "test",
    "query against gallery": lambda row: "train" if row < 8 else "query" if row % 4 == 0 else "gallery",
    "test among distractors": lambda row: "train" if row < 8 else "distractor" if row % 4 == 0 else "test",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_report_is_that_of_embed_and_evaluate(tmp_path, photos, layout):
    manifest = open_manifest(photos, LAYOUTS[layout])
    manifest.save(tmp_path / "m.parquet")
    network().save(tmp_path / "model")
    given = (tmp_path / "model", tmp_path / "m.parquet", "--out", tmp_path / "e")
    done("embed", *given, "--size", SIDE, "--resize", 0, "--batch-size", 7, "--workers", 0, "--device", "cpu", "-q")
    done("evaluate", tmp_path / "e", "--device", "cpu", "--out", tmp_path / "r.json", "--decay", 2, "-q")
    expected = Report.load(tmp_path / "r.json")
    validator = Validator.from_config(recipe(evaluation={"decay": 2.0}), manifest)
    assert validator.names == ("test",)
    assert validator.best_metric == ("test", "H-AP")
    found = reports(validator)["test"]
    assert found.means == pytest.approx(dict(expected), abs=1e-12, nan_ok=True)
    assert (found.n_queries, found.n_items, found.levels) == (expected.n_queries, expected.n_items, expected.levels)
    known = {"embeddings": expected.settings["embeddings"]}
    assert {**found.settings, **known} == {**expected.settings, TRAINING: {"classes_seen": 0}}


def test_further_test_sets_are_evaluated_at_the_levels_they_have(tmp_path, photos):
    both = open_manifest(photos)
    groups = Manifest.from_columns(both.table.drop_columns(["label_class"]), root=photos)
    groups.save(tmp_path / "groups.parquet")
    data = {"tests": {"coarse": str(tmp_path / "groups.parquet")}, "levels": ["class", "group"]}
    validator = Validator.from_config(recipe(data=data), both)
    found = reports(validator)
    assert list(found) == list(validator.names) == ["test", "coarse"]
    assert found["test"].levels == ("class", "group")
    assert found["coarse"].levels == ("group",)
    assert found["coarse"]["AP"] == pytest.approx(found["test"]["AP/group"])
    alone = Validator.from_config(recipe(data=data), both.with_columns(split=["train"] * len(both)))
    assert alone.names == ("coarse",)
    assert alone.best_metric == ("coarse", "AP")
    fine = Validator.from_config(recipe(data={"levels": ["class"]}), both)
    assert reports(fine)["test"]["AP"] == pytest.approx(found["test"]["AP"])


def test_without_test_images_there_is_nothing_to_judge(photos):
    validator = Validator.from_config(recipe(), open_manifest(photos, "train"))
    assert validator.names == ()
    assert reports(validator) == {}
    with pytest.raises(ValueError, match="no test images, so no network is the best"):
        _ = validator.best_metric


def test_metrics_and_the_best_of_them_are_the_recipes(photos):
    manifest = open_manifest(photos)
    validator = Validator.from_config(
        recipe(evaluation={"metrics": ["precision_at_1", "AP/group"], "best": "ap/group"}), manifest
    )
    assert validator.best_metric == ("test", "AP/group")
    assert list(reports(validator)["test"]) == ["P@1", "AP/group"]
    assert Validator.from_config(recipe(evaluation={"metrics": ["R@1"]}), manifest).best_metric == ("test", "R@1")


def test_wap_has_the_weights_of_the_recipe_at_the_levels_that_a_test_set_has(tmp_path, photos):
    both = open_manifest(photos)
    groups = Manifest.from_columns(both.table.drop_columns(["label_class"]), root=photos)
    groups.save(tmp_path / "groups.parquet")
    data = {"tests": {"coarse": str(tmp_path / "groups.parquet")}}
    weighted = Validator.from_config(recipe(data=data, evaluation={"level_weights": {"class": 3, "group": 1}}), both)
    found = reports(weighted)
    test = found["test"]
    assert test["wAP"] == pytest.approx((3 * test["AP"] + test["AP/group"]) / 4)
    assert test.settings["weights"] == {"class": 3.0, "group": 1.0}
    assert found["coarse"]["wAP"] == pytest.approx(found["coarse"]["AP"])
    equal = Validator.from_config(recipe(data=data), both)
    assert reports(equal)["test"]["wAP"] == pytest.approx((test["AP"] + test["AP/group"]) / 2)
    assert weighted.fingerprint != equal.fingerprint
    only_fine = Validator.from_config(recipe(evaluation={"level_weights": {"class": 2}}), both)
    assert reports(only_fine)["test"]["wAP"] == pytest.approx(test["AP"])


def trained_run(folder, photos, **evaluation):
    """A run of one step in folder/run, and its last report."""
    open_manifest(photos, LAYOUTS["test against itself"]).save(folder / "m.parquet")
    tables = {"run": {"epochs": 1}, "batch": {"size": 4, "images_per_class": 2, "batches": 1}}
    model = {"backbone": "test_resnet", "pretrained": False, "dim": 8}
    config = recipe(
        folder / "m.parquet", model=model, engine={"accelerator": "cpu"}, evaluation={"every": 0, **evaluation}, **tables
    )
    return folder / "run", train(config, folder / "run").reports["test"]


def test_a_run_and_its_evaluation_afterwards_speak_of_the_same_classes_and_training(tmp_path, photos):
    run, trained = trained_run(tmp_path, photos)
    trained = Report.load(run / "reports" / "test-epoch-0001.json")
    done("evaluate", run, "--device", "cpu", "--per-query", "--out", tmp_path / "r.json", "-q")
    evaluated, page = Report.load(tmp_path / "r.json"), evaluate(open_data(run, device="cpu"), per_query=True)
    for found in (evaluated, page):
        assert list(found.classes) == list(trained.classes) == ["class", "group"]
        assert all(same_classes(found.classes[level], trained.classes[level]) for level in trained.classes)
        assert str(found.units()) == str(trained.units()) == "class: 7 classes, effectively 7"
        assert found.settings[TRAINING] == trained.settings[TRAINING] == {"classes_seen": 0}
        assert found.sentence() == trained.sentence()
    assert "classes that the model has not seen" in trained.sentence()
    assert found.compare(trained, ["AP"])["AP"].queries == trained.n_queries


@pytest.mark.parametrize(
    ("train_rows", "seen"), [(lambda row: row < 8, 0), (lambda row: row % 4 == 0, 9), (lambda row: row < 6, 1)]
)
def test_how_many_of_the_test_classes_are_trained_on_is_recorded(photos, train_rows, seen):
    manifest = open_manifest(photos, lambda row: "train" if train_rows(row) else "test")
    found = reports(Validator.from_config(recipe(), manifest))["test"]
    assert found.settings[TRAINING] == {"classes_seen": seen}


def test_a_run_is_evaluated_with_its_own_cut_offs_and_weights_unless_options_name_others(tmp_path, photos):
    run, expected = trained_run(tmp_path, photos, ks=[2, 3], level_weights={"class": 3, "group": 1}, decay=2.0)

    def evaluated(*options):
        done("evaluate", run, *options, "--device", "cpu", "--out", tmp_path / "r.json", "--quiet")
        return tmp_path / "r.json"

    found = Report.load(evaluated())
    assert list(found) == list(expected), "the same metrics in the same order"
    settings = ("ks", "decay", "weights")
    assert [found.settings[name] for name in settings] == [expected.settings[name] for name in settings]
    assert dict(found) == pytest.approx(dict(expected), abs=1e-12)
    assert dict(found) == dict(suprank.evaluate(run, device="cpu"))
    source = open_data(run, device="cpu")
    assert dict(evaluate(source)) == dict(found), "what `suprank report` shows"
    assert evaluate(source.at_levels(["group"]), metrics=["wAP"])["wAP"] == pytest.approx(expected["AP/group"])
    given = Report.load(evaluated("--k", 1, "--decay", 1, "--weight", "group=1"))
    assert {name for name in given if name.startswith("R@") and "/" not in name} == {"R@1"}
    assert given["wAP"] == pytest.approx(expected["AP/group"])
    assert given["H-AP"] != expected["H-AP"]
    gap = json.loads(evaluated("--gap", 8, "--metric", "wAP", "--metric", "H-AP").read_text())["gaps"]
    assert {key: one["overall"] for key, one in gap.items()} == pytest.approx({key: expected[key] for key in gap})
    gap = json.loads(evaluated("--gap", 8, "--metric", "wAP", "--weight", "group=1").read_text())["gaps"]
    assert gap["wAP"]["overall"] == pytest.approx(expected["AP/group"])


@pytest.mark.parametrize(
    ("evaluation", "complaint"),
    [
        ({"level_weights": {"genus": 1, "class": 1}}, "level_weights names 'genus', but the levels evaluated are class, group"),
        ({"level_weights": {"genus": 1}}, r"no weight above 0 for the levels of m.parquet \(class, group\); add one"),
        (
            {"metrics": ["AP/genus"]},
            "evaluation.metrics, for m.parquet: AP/genus names no level .* class, group",
        ),
        ({"best": "R@7"}, "evaluation.best='R@7' is not measured on m.parquet"),
    ],
)
def test_metrics_that_are_not_there_are_refused_before_training(photos, evaluation, complaint):
    with pytest.raises(ValueError, match=complaint):
        Validator.from_config(recipe(evaluation=evaluation), open_manifest(photos))


def test_test_sets_that_cannot_be_evaluated_are_refused_before_training(tmp_path, photos):
    manifest = open_manifest(photos)
    manifest.save(tmp_path / "m.parquet")
    with pytest.raises(ValueError, match="data.tests has a 'test', the name of the test set of m.parquet; rename it"):
        Validator.from_config(recipe(data={"tests": {"test": str(tmp_path / "m.parquet")}}), manifest)
    open_manifest(photos, "train").save(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"train.parquet has train, but no test images to evaluate on"):
        Validator.from_config(recipe(data={"tests": {"other": str(tmp_path / "train.parquet")}}), manifest)
    with pytest.raises(ValueError, match="m.parquet has query, but no gallery images to evaluate on"):
        Validator.from_config(recipe(), open_manifest(photos, "query"))
    with pytest.raises(ValueError, match=r"has the levels class, group, but none of data.levels=\['genus'\]"):
        Validator.from_config(recipe(data={"levels": ["genus"]}), manifest)
    wrong = manifest.with_columns(label_group=[f"g{row % 3}" for row in range(len(manifest))])
    with pytest.raises(ValueError, match="m.parquet: row 0: class 0 stands under group 0, and under 1 in row 1"):
        Validator.from_config(recipe(), wrong)
    bare = Manifest.from_columns(manifest.table.select(["path", "split"]), root=photos, levels=())
    with pytest.raises(ValueError, match="m.parquet: the images have no labels"):
        Validator.from_config(recipe(), bare)


def test_the_transform_is_the_recipes(photos):
    manifest = open_manifest(photos)
    validator = Validator.from_config(recipe(images={"test_resize": 40, "squash": True, "interpolation": "nearest"}), manifest)
    shown = repr(validator._loading.transform)
    assert "Resize(size=[40, 40], interpolation=InterpolationMode.NEAREST" in shown
    assert "CenterCrop(size=(32, 32))" in shown
    assert "Resize" not in repr(Validator.from_config(recipe(), manifest)._loading.transform)
    assert validator._loading.min_short_side is None
    assert validator._loading.decoder == "pil"
    data = {"fast_jpeg": True, "decoder": "turbo"}
    fast = Validator.from_config(recipe(images={"test_resize": 40}, data=data), manifest)
    assert (fast._loading.min_short_side, fast._loading.decoder) == (40, "turbo")


def test_progress_counts_images_and_then_queries(photos):
    output = []
    reports(
        Validator.from_config(recipe(), open_manifest(photos, LAYOUTS["query against gallery"])),
        progress=lambda *counted: output.append(counted),
    )
    assert [one[0] for one in output] == ["test"] * len(output)
    counts = [one[1] for one in output]
    assert counts[:2] == [7, 7 + 7], "seven queries in a batch, and then the gallery"
    assert counts == sorted(counts)
    assert counts[-1] == output[-1][2] == 7 + 21 + 7


# Broken images


def damaged(photos, tmp_path, rows):
    """A copy of the photos of which these rows are truncated."""
    manifest = open_manifest(photos)
    for row, path in enumerate(manifest.paths.to_pylist()):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        data = (photos / path).read_bytes()
        (tmp_path / path).write_bytes(data[:50] if row in rows else data)
    return Manifest(manifest.table, tmp_path, manifest.levels)


@pytest.mark.parametrize("cache_images", [False, True])
def test_broken_images_are_left_out_or_raise(tmp_path, photos, cache_images, caplog):
    rows = [*range(7, 14), 35]  # a whole batch of them, and the last image
    manifest = damaged(photos, tmp_path, rows)
    with caplog.at_level(logging.WARNING):
        found = reports(Validator.from_config(recipe(data={"on_broken": "skip", "cache_images": cache_images}), manifest))[
            "test"
        ]
    assert len(caplog.records) == 8
    expected = reports(Validator.from_config(recipe(), open_manifest(photos).take(np.delete(np.arange(36), rows))))["test"]
    assert found.means == pytest.approx(dict(expected), abs=1e-6, nan_ok=True)
    assert found.n_queries == 28
    with pytest.raises(ValueError, match="cannot be decoded"):
        reports(Validator.from_config(recipe(data={"cache_images": cache_images}), manifest))
    with pytest.raises(ValueError, match="m.parquet: all 36 test images are broken"):
        reports(Validator.from_config(recipe(data={"on_broken": "skip"}), damaged(photos, tmp_path, range(36))))


def test_cached_images_are_decoded_once(tmp_path, photos):
    manifest = damaged(photos, tmp_path, [])
    validator = Validator.from_config(recipe(data={"cache_images": True}), manifest)
    for path in tmp_path.rglob("*.png"):
        path.unlink()
    expected = reports(Validator.from_config(recipe(), open_manifest(photos)))["test"]
    for _ in range(2):
        assert reports(validator)["test"] == expected


def test_a_network_that_gives_nan_is_told_with_the_image(photos):
    def wrong(images):
        found = forward(images).clone()
        found[0] = torch.nan
        return found

    with pytest.raises(ValueError, match=r"of 6 of 36 test images are NaN or infinite, group0/class00/0.png for one"):
        Validator.from_config(recipe(), open_manifest(photos))(wrong, device="cpu", progress=lambda *_: None)


def test_judging_leaves_random_numbers_alone(photos):
    before = torch.get_rng_state()
    reports(Validator.from_config(recipe(), open_manifest(photos)))
    assert (torch.get_rng_state() == before).all()


# Several processes


def evaluated_by(rank, world, photos, broken):
    """What a process finds: the reports, and how often it called the network."""
    calls = 0

    def counted(images):
        nonlocal calls
        calls += 1
        return forward(images)

    found = {}
    for name, manifest in {
        "itself": open_manifest(photos).take(np.arange(29)),
        "gallery": open_manifest(photos, LAYOUTS["query against gallery"]),
        "broken": Manifest(open_manifest(photos).table, broken, ("class", "group")),
    }.items():
        # One image at a time, so that products have the same shape whoever computes them.
        config = recipe(data={"on_broken": "skip"}, evaluation={"batch_size": 1})
        validator = Validator.from_config(config, manifest, rank=rank, world_size=world)
        found |= {
            f"{name}/{test}": report for test, report in validator(counted, device="cpu", progress=lambda *_: None).items()
        }
    return found, calls


def evaluate_and_save(rank, folder, photos):
    """What one of two processes does."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(evaluated_by(rank, 2, photos, folder / "broken")))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="needs torch.distributed with gloo"
)
def test_two_processes_find_what_one_finds_and_call_the_network_equally_often(forked, tmp_path, photos):
    damaged(photos, tmp_path / "broken", [4, 5, 35])
    processes = [start_process(forked, evaluate_and_save, rank, tmp_path, photos) for rank in range(2)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    expected, _ = evaluated_by(0, 1, photos, tmp_path / "broken")
    (one, calls), (other, others) = (pickle.loads((tmp_path / f"{rank}.pickle").read_bytes()) for rank in range(2))
    assert one == other == expected
    assert len(expected) == 3
    assert calls == others == 15 + 4 + 11 + 18
