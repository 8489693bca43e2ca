"""The recipes that come with suprank: each loads, says what it should, and takes a step on miniature data."""

import json
import math
import re

import pytest

from suprank.data.manifest import Manifest
from suprank.models import Embedder
from suprank.training.recipe import all_recipes, header, read_recipe, recipes_folder, to_toml
from tests.data.pictures import encoded, smooth

RECIPES = all_recipes()

LEVELS = {
    "sop": ("product", "category"),
    "cub": ("species", "family", "order"),
    "inat-base": ("species", "supercategory"),
    "inat-full": ("species", "genus", "family", "order", "class", "phylum", "kingdom"),
    "dyml-vehicle": ("fine", "middle", "coarse"),
    "dyml-animal": ("fine", "middle", "coarse"),
    "dyml-product": ("fine", "middle", "coarse"),
    "hgldv2": ("landmark", "supercategory", "kind"),
    "emoji": ("emoji", "subgroup", "group"),
    "glyphs": ("character", "group", "script"),
    "cub112": ("species", "genus", "family", "order"),
    "emoji64": ("emoji", "subgroup", "group"),
}
"""Of the manifests that `suprank data import` makes of the dataset, by the folder of its recipes."""

PAPERS = {  # what the paper's tables have, and so what must be there
    "sop": "roadmap roadmap-memory rod-recall happier happier-f rod-ndcg smooth-ap nsm recall-4096",
    "cub": "roadmap happier rod-recall smooth-ap nsm",
    "inat-base": "roadmap rod-recall happier happier-f rod-ndcg",
    "inat-full": "happier rod-ndcg",
    "dyml-vehicle": "happier",
    "dyml-animal": "happier",
    "dyml-product": "happier",
    "hgldv2": "roadmap happier",
    "emoji": "happier smooth-ap",
    "glyphs": "happier smooth-ap",
    "cub112": "roadmap happier smooth-ap nsm",
    "emoji64": "roadmap happier smooth-ap nsm",
}


def test_every_dataset_has_the_losses_that_the_paper_compares():
    wanted = {f"{folder}/{name}" for folder, names in PAPERS.items() for name in names.split()}
    assert wanted <= set(RECIPES)
    assert {name.partition("/")[0] for name in RECIPES} == set(LEVELS)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_being_written_out(name, tmp_path):
    config = read_recipe(name)
    (tmp_path / "resolved.toml").write_text(to_toml(config), encoding="utf-8")
    assert read_recipe(tmp_path / "resolved.toml") == config


@pytest.mark.parametrize("name", RECIPES)
def test_the_header_gives_commands_hardware_expectation_and_date(name):
    said = header(RECIPES[name])
    assert re.match(r"[^\n]{20,110}\.\n\n", said), "the first line is one sentence, which `suprank recipes` lists"
    assert f"\n  suprank train {name}" in said
    manifest = read_recipe(name).data.manifest
    assert f"--out {manifest}" in said.replace("glyphs.parquet", "glyphs").replace("emoji.parquet", "emoji")
    for word in ("Hardware: ", "Expected", "Date last run: "):
        assert f"\n{word}" in said
    tables = re.findall(r"tab:\w+", said)
    assert tables or "the paper has no" in said.lower(), "numbers are cited, or said to be missing"


def test_parts_are_extended_by_some_recipe_and_are_no_recipes_themselves():
    folder = recipes_folder()
    files = set(folder.rglob("*.toml"))
    parts = files - set(RECIPES.values())
    assert parts == {file for file in files if file.stem == "base" or file.stem.startswith("_")}
    extended = set()
    for file in files:
        extends = re.search(r"^extends = (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        named = re.findall(r'"([^"]+)"', extends[1]) if extends else []
        extended |= {(folder / f"{one}.toml").resolve() for one in named}  # by their names, so that a copy reads the same
    assert {part.resolve() for part in parts} <= extended


def test_no_line_of_a_recipe_is_wider_than_the_code():
    wide = [
        (file.name, line)
        for file in recipes_folder().rglob("*.toml")
        for line in file.read_text("utf-8").splitlines()
        if len(line) > 128
    ]
    assert wide == []


def value(config, entry):
    for name in entry.split("."):
        config = getattr(config, name)
    return config


SETTINGS = {  # section 3 of the facts on the authors' code, and sec:experiments of the paper
    "sop/roadmap": {
        "loss.name": "roadmap",
        "loss.decomposability": "proxies",
        "loss.weight": 0.1,
        "loss.tau": 0.01,
        "loss.rho": 100.0,
        "loss.delta": 0.05,
        "loss.value_at_delta": None,
        "loss.temperature": 0.05,
        "loss.include_self": False,
        "images.size": 224,
        "images.resize": 256,
        "images.test_resize": 256,
        "images.squash": True,
        "images.crop_scale": (0.16, 1.0),
        "images.crop_ratio": (0.75, 1.33),
        "images.flip": 0.5,
        "model.backbone": "resnet50",
        "model.pooling": "avg",
        "model.normalisation": "layer",
        "model.dim": 512,
        "model.freeze_batchnorm": True,
        "batch.size": 256,
        "batch.images_per_class": 4,
        "batch.sampler": "hierarchical",
        "batch.level": "category",
        "batch.coarse_per_batch": 2,
        "batch.batches_per_combination": 5,
        "optimizer.name": "adam",
        "optimizer.lr": 5e-5,
        "optimizer.head_lr": 1e-4,
        "optimizer.weight_decay": 1e-4,
        "optimizer.schedule": "cosine",
        "optimizer.floor": 0.0,
        "proxies.name": "adam",
        "proxies.lr": 10.0,
        "proxies.weight_decay": 0.0,
        "proxies.floor": 0.1,
        "run.epochs": 100,
        "run.frozen_epochs": 5,
        "memory.size": 0,
        "evaluation.every": 20,
    },
    "sop/roadmap-memory": {
        "model.pooling": "gem",
        "memory.size": "all",
        "memory.per_item": True,
        "memory.start_epoch": 5,
        "memory.weight": 0.5,
        "optimizer.lr": 5e-5,
    },
    "sop/roadmap-deit": {
        "model.backbone": "deit_small",
        "model.dim": None,
        "model.normalisation": "none",
        "optimizer.name": "adamw",
        "optimizer.lr": 1e-5,
        "optimizer.weight_decay": 5e-4,
        "proxies.name": "adamw",
        "proxies.lr": 1e-5,
        "memory.size": "all",
    },
    "sop/rod-recall": {
        "loss.weight": 0.5,
        "loss.decomposability": "pairs",
        "loss.ks": (1, 2, 4, 8, 16),
        "loss.rank_tau": 1.0,
        "loss.positive_floor": 0.9,
        "loss.negative_ceiling": 0.6,
        "loss.average": "all",
    },
    "sop/happier": {"loss.weight": 0.1, "loss.decay": 1.0, "loss.temperature": 0.05, "proxies.lr": 10.0},
    "sop/happier-f": {"loss.name": "happier", "loss.weight": 0.5, "loss.decay": 5.0, "evaluation.decay": 1.0},
    "sop/rod-ndcg": {"loss.name": "rod-ndcg", "loss.weight": 0.1},
    "sop/smooth-ap": {"loss.name": "smooth-ap", "loss.tau": 0.01},
    "sop/nsm": {"loss.name": "nsm", "loss.temperature": 0.05, "proxies.lr": 10.0},
    "sop/recall-4096": {
        "loss.name": "smooth-recall",
        "loss.mixup": True,
        "loss.ks": (1, 2, 4, 8, 16),
        "batch.size": 4096,
        "batch.chunk": 256,
        "batch.sampler": "m-per-class",
        "model.pooling": "gem",
        "model.freeze_batchnorm": True,
        "optimizer.lr": 2e-4,
        "optimizer.weight_decay": 4e-4,
        "optimizer.milestones": (25.0, 50.0),
        "optimizer.factor": 0.3,
        "run.epochs": 55,
    },
    "cub/roadmap": {
        "optimizer.lr": 1e-6,
        "optimizer.head_lr": 2e-6,
        "optimizer.weight_decay": 4e-4,
        "proxies.lr": 2e-6,
        "proxies.weight_decay": 4e-4,
        "images.size": 256,
        "images.test_resize": 288,
        "model.pooling": "gem",
        "memory.size": "all",
        "memory.per_item": True,
        "batch.sampler": "m-per-class",
        "run.frozen_epochs": 0,
    },
    "cub/roadmap-vit": {
        "model.backbone": "vit_base",
        "model.dim": 512,
        "model.normalisation": "none",
        "model.mean": (0.485, 0.456, 0.406),
        "images.size": 224,
        "optimizer.name": "adamw",
        "optimizer.lr": 1e-6,
        "optimizer.head_lr": 2e-6,
        "optimizer.weight_decay": 5e-4,
        "optimizer.floor": 1e-6,
    },
    "cub/nsm": {"proxies.lr": 400.0, "proxies.floor": 0.1},
    "inat-base/roadmap": {
        "optimizer.lr": 1e-5,
        "optimizer.head_lr": 2e-5,
        "optimizer.weight_decay": 4e-4,
        "optimizer.floor": 1e-6,
        "proxies.lr": 10.0,
        "images.resize": None,
        "images.squash": False,
        "loss.jump": 0.5,
        "loss.value_at_delta": None,
        "run.frozen_epochs": 5,
    },
    "inat-base/roadmap-vit": {
        "memory.size": 60_000,
        "optimizer.weight_decay": 5e-4,
        "optimizer.floor": 1e-6,
        "proxies.lr": 1e-5,
    },
    "inat-base/rod-recall": {"loss.weight": 0.5, "loss.decomposability": "proxies"},
    "inat-base/happier-f": {"loss.weight": 0.5, "loss.decay": 3.0},
    "inat-full/happier": {"data.manifest": "inat-full.parquet", "loss.decay": 1.0, "optimizer.lr": 1e-5, "proxies.lr": 10.0},
    "dyml-vehicle/happier": {
        "model.backbone": "resnet34",
        "model.pretrained": False,
        "model.freeze_batchnorm": False,
        "optimizer.name": "sgd",
        "optimizer.lr": 0.1,
        "optimizer.momentum": 0.9,
        "optimizer.weight_decay": 1e-4,
        "optimizer.floor": 1e-6,
        "proxies.name": "sgd",
        "proxies.lr": 0.1,
        "proxies.weight_decay": 1e-4,
        "loss.weight": 0.1,
        "run.epochs": 100,
        "run.frozen_epochs": 0,
    },
    "dyml-animal/happier": {"loss.weight": 0.5, "optimizer.lr": 0.1, "model.pretrained": False},
    "dyml-product/happier": {
        "model.pretrained": True,
        "model.freeze_batchnorm": True,
        "optimizer.lr": 0.01,
        "optimizer.head_lr": 0.02,
        "optimizer.floor": 1e-5,
        "proxies.lr": 0.02,
        "loss.weight": 0.1,
        "run.epochs": 20,
        "run.frozen_epochs": 5,
    },
    "hgldv2/happier": {
        "optimizer.lr": 1e-5,
        "optimizer.weight_decay": 1e-4,
        "batch.max_images_per_class": 8,
        "images.size": 224,
        "images.test_resize": 224,
        "images.squash": True,
        "run.epochs": 40,
    },
    "cub112/roadmap": {
        "model.backbone": "tf_efficientnet_lite0",
        "model.mean": None,
        "model.dim": 512,
        "model.freeze_batchnorm": True,
        "images.size": 112,
        "images.test_resize": 0,
        "optimizer.name": "adamw",
        "optimizer.lr": 1e-4,
        "optimizer.head_lr": 2e-4,
        "proxies.lr": 1e-2,
        "run.epochs": 30,
        "engine.precision": "bf16",
        "data.hold": True,
    },
    "emoji64/happier": {
        "images.size": 64,
        "images.crop_scale": (0.4, 1.0),
        "images.flip": 0.0,
        "optimizer.lr": 2e-4,
        "optimizer.head_lr": 4e-4,
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_those_of_the_paper_and_the_authors(name):
    config = read_recipe(name)
    assert {entry: value(config, entry) for entry in SETTINGS[name]} == SETTINGS[name]


def test_an_epoch_on_sop_has_330_batches():
    batch = read_recipe("sop/roadmap").batch
    assert math.comb(12, batch.coarse_per_batch) * batch.batches_per_combination == 330


@pytest.mark.parametrize("name", ["sop/roadmap", "cub/roadmap", "inat-base/roadmap", "hgldv2/roadmap", "cub112/roadmap"])
def test_pairs_can_take_the_place_of_proxies_as_the_comment_says(name):
    assert "# loss.decomposability=pairs proxies=\n" in RECIPES[name].read_text(encoding="utf-8")
    assert not read_recipe(name, ["loss.decomposability=pairs", "proxies="]).loss.has_proxies


# A step of each, on the way that a user takes

CLASSES, IMAGES = 12, 2
"""Of the train images; the test images are of as many other classes."""

MINIATURE = (
    "data.workers=0",
    "images.size=32",
    "batch.size=8",
    "batch.images_per_class=2",
    "batch.batches=1",
    "run.epochs=1",
    "run.frozen_epochs=0",
    "memory.start_epoch=0",
    "engine.accelerator=cpu",
    "evaluation.every=0",
    "evaluation.at_start=false",
    "evaluation.metrics=['R@1', 'AP']",
    "evaluation.batch_size=32",
    "logging.every=1",
    "logging.tensorboard=false",
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    for number in range(2 * CLASSES * IMAGES):
        (root / f"{number}.png").write_bytes(encoded(smooth(40, 36, seed=number)))
    return root


def manifest_of(root, levels, test):
    """Twelve classes for training and twelve for `test` (splits in turn), under six, three, one classes of further levels."""
    rows = range(2 * CLASSES * IMAGES)
    fine = [row // IMAGES for row in rows]
    splits = ["train" if one < CLASSES else test[row % len(test)] for row, one in zip(rows, fine, strict=True)]
    columns = {"path": [f"{row}.png" for row in rows], "split": splits}
    for depth, level in enumerate(levels):
        columns[f"label_{level}"] = [f"{level} {one % CLASSES // 2**depth if depth else one}" for one in fine]
    return Manifest.of(columns, root=root)


@pytest.fixture(scope="module")
def prepared(pictures, tmp_path_factory):
    """Makes what the recipes of a dataset ask for, once, and says the overrides that name it."""
    folder = tmp_path_factory.mktemp("prepared")
    made = {}

    def overrides(dataset):
        if dataset not in made:
            file = folder / f"{dataset}.csv"
            manifest = manifest_of(pictures, LEVELS[dataset], ("query", "gallery") if dataset == "hgldv2" else ("test",))
            made[dataset] = [f"data.manifest={file}"]
            if dataset in ("dyml-vehicle", "dyml-animal"):  # one level each, apart
                for level in LEVELS[dataset]:
                    one = folder / f"{dataset}-{level}.csv"
                    manifest_of(pictures, (level,), ("query", "gallery")).split("query", "gallery").save(one)
                    made[dataset].append(f"data.tests.{level}={one}")
                manifest = manifest.split("train")
            manifest.save(file)
        return made[dataset]

    return overrides


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A saved embedder, as `suprank models pca` makes one."""
    folder = tmp_path_factory.mktemp("start") / "embedder"
    Embedder.create("test_resnet", pretrained=False, pooling="gem", normalisation="l2", dim=16).save(folder)
    return folder


def in_miniature(config, start):
    """Overrides that keep what the recipe does and make it small."""
    vit = config.model.backbone.startswith(("vit", "deit"))
    if config.model.start is not None:
        yield f"model.start={start}"
    else:
        yield f"model.backbone={'test_vit' if vit else 'test_resnet'}"
        yield "model.pretrained=false"
        yield from ["model.dim=16"] * (config.model.dim is not None)
    yield from ["images.resize=40"] * (config.images.resize is not None)
    yield from ["images.test_resize=36"] * (config.images.test_resize > 0)
    yield from ["batch.chunk=4"] * (config.batch.chunk is not None)
    yield from ["memory.size=20"] * (config.memory.size not in (0, "all"))


@pytest.mark.parametrize("name", RECIPES)
def test_a_step_of_every_recipe_on_miniature_data(name, prepared, start, tmp_path):
    from suprank.training.loop import train

    small = in_miniature(read_recipe(name), start)
    config = read_recipe(name, [*MINIATURE, *prepared(name.partition("/")[0]), *small])
    result = train(config, tmp_path / "run")
    assert result.stopped is None
    reports = result.reports
    assert set(reports) >= set(config.data.tests) if config.data.tests else len(reports) == 1
    for report in reports.values():
        assert 0 < report["AP"] <= 1
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 1
    assert math.isfinite(losses[0])
    assert Embedder.load(tmp_path / "run" / "model").config.backbone in ("test_resnet", "test_vit")
