"""The recipes that come with suprank, in files and composed: each loads and says what it should; some take a step."""

import json
import math
import re
import tomllib
from itertools import cycle
from pathlib import Path

import pytest

from suprank.data.manifest import Manifest
from suprank.evaluation.metrics import default_metrics
from suprank.models import Embedder
from suprank.paper.contents import recipes_of_the_paper
from suprank.training.loss_specs import loss_specs, parse_loss
from suprank.training.presets import compose, compositions, expected_results, header, methods, presets
from suprank.training.recipe import read_recipe, to_toml
from suprank.training.recipe_files import all_recipes, recipe_text, recipes_folder
from tests.data.pictures import encoded, smooth

ROOT = Path(__file__).parents[2]
RECIPES = all_recipes()
PRESETS = presets(recipes_folder())
METHODS = methods(recipes_folder())
EXPECTED = {f"{preset}/{name}": text for preset in PRESETS for name, text in expected_results(recipes_folder(), preset).items()}

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
    "emoji48": ("emoji", "subgroup", "group"),
    "omniglot56": ("character", "alphabet"),
    "omniglot40": ("character", "alphabet"),
    "photos": ("class", "group"),
}
"""Of the manifests that `suprank data import` makes of the dataset, by the folder of its recipes."""


def test_every_recipe_in_a_file_has_a_result_of_the_paper():
    assert set(RECIPES) <= recipes_of_the_paper()
    assert set(PRESETS) == set(LEVELS)


def test_only_presets_that_were_trained_here_list_results_beside_the_papers():
    assert {name.partition("/")[0] for name in EXPECTED} == {"emoji", "glyphs"}
    assert set(EXPECTED) <= set(compositions(recipes_folder()))
    assert recipes_of_the_paper().isdisjoint(EXPECTED)


@pytest.mark.parametrize("name", sorted(set(RECIPES) & set(compositions(recipes_folder()))))
def test_a_file_differs_from_the_preset_with_the_method_and_says_why(name, tmp_path):
    (tmp_path / "composed.toml").write_text(compose(name, recipes_folder()), encoding="utf-8")
    assert read_recipe(tmp_path / "composed.toml") != read_recipe(name)
    preset, method = name.split("/")
    assert f"A file of its own because it differs from {preset} with {method}: " in header(recipe_text(name))


def test_every_loss_is_a_method_that_says_its_whole_table():
    named = {method: tomllib.loads(file.read_text(encoding="utf-8")) for method, file in METHODS.items()}
    assert {tables["loss"]["name"] for tables in named.values()} == set(loss_specs())
    for method, tables in named.items():
        assert set(tables) <= {"loss", "memory", "proxies"}, method  # what belongs to the data or the network is the preset's
        assert not tables.get("proxies") or method in ("cross-entropy", "siglip"), method  # whose parameters are no proxies
        assert ("proxies" in tables) == parse_loss(tables["loss"]).has_proxies, method


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_goes_with_every_method(preset, tmp_path):
    file = tmp_path / "resolved.toml"
    for method in METHODS:
        config = read_recipe(f"{preset}/{method}")
        assert config.loss.name == tomllib.loads(METHODS[method].read_text(encoding="utf-8"))["loss"]["name"]
        assert config.data.manifest in (preset, f"{preset}.parquet")
        assert config.proxies.changed_keys() <= (set(type(config.proxies).model_fields) if config.loss.has_proxies else set())
        file.write_text(to_toml(config), encoding="utf-8")
        assert read_recipe(file) == config


def test_headers_give_commands_and_hardware_and_date_or_results():
    for name in {*RECIPES, *EXPECTED}:
        text = header(recipe_text(name))
        opens_with_a_sentence_and_commands(text, name)
        for word in ("Hardware: ", "Date last run: ") if name in RECIPES else ("Expected, ",):
            assert f"\n{word}" in text, name
        assert "Expected, the paper's" not in text, "the paper's numbers are in paper.toml"


def test_the_manual_names_every_preset_and_every_method():
    manual = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    assert {*PRESETS, *METHODS} <= set(re.findall(r"`([a-z0-9-]+)`", manual))


def test_the_text_of_a_recipe_is_the_same_recipe_in_any_folder(tmp_path):
    for name in {*RECIPES, *compositions(recipes_folder())[::5]}:
        (tmp_path / "mine.toml").write_text(recipe_text(name), encoding="utf-8")
        assert read_recipe(tmp_path / "mine.toml") == read_recipe(name)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_composed_recipe_opens_as_a_file_does(preset):
    for method in METHODS:
        name = f"{preset}/{method}"
        if name not in RECIPES:
            output = header(recipe_text(name))
            opens_with_a_sentence_and_commands(output, name)
            assert f"\n  suprank recipes {preset}/base\n" in output
            assert output.endswith(f"\n  suprank recipes methods/{method}")


def opens_with_a_sentence_and_commands(text, name):
    assert re.match(r"[^\n]{20,110}\.\n\n", text), "the first line is one sentence, which `suprank recipes` lists"
    assert re.search(rf"\n  suprank train {name}( |\n)", text)
    manifest = read_recipe(name).data.manifest
    assert f"--out {manifest}" in text.replace("glyphs.parquet", "glyphs").replace("emoji.parquet", "emoji")
    assert "METHOD" not in text


def test_parts_are_extended_by_some_recipe_and_are_no_recipes_themselves():
    folder = recipes_folder()
    files = set(folder.rglob("*.toml"))
    parts = files - set(RECIPES.values())
    assert parts == {file for file in files if file.stem == "base" or file.stem.startswith("_")} | set(METHODS.values())
    parts -= {file for file in parts if file.stem == "_expected"}
    texts = [file.read_text(encoding="utf-8") for file in files] + [recipe_text(name) for name in compositions(folder)]
    extended = set()
    for text in texts:
        extends = re.search(r"^extends = (.*)$", text, re.MULTILINE)
        named = re.findall(r'"([^"]+)"', extends[1]) if extends else []
        extended |= {(folder / f"{one}.toml").resolve() for one in named}  # by their names, so that a copy reads the same
    assert {part.resolve() for part in parts} <= extended


def test_no_line_of_a_recipe_is_wider_than_the_code():
    texts = {str(file): file.read_text("utf-8") for file in recipes_folder().rglob("*.toml")}
    texts |= {name: recipe_text(name) for name in compositions(recipes_folder())}
    assert [(name, line) for name, text in texts.items() for line in text.splitlines() if len(line) > 128] == []


SETTINGS = {  # section 3 of the facts on the authors' code, and sec:experiments of the paper
    "sop/roadmap": {
        "loss": {
            "name": "roadmap",
            "decomposability": "proxies",
            "weight": 0.1,
            "tau": 0.01,
            "rho": 100.0,
            "delta": 0.05,
            "value_at_delta": None,
            "temperature": 0.05,
            "include_self": False,
        },
        "images": {
            "size": 224,
            "resize": 256,
            "test_resize": 256,
            "squash": True,
            "crop_scale": (0.16, 1.0),
            "crop_ratio": (0.75, 1.33),
            "flip": 0.5,
        },
        "model": {"backbone": "resnet50", "pooling": "avg", "normalization": "layer", "dim": 512, "freeze_batchnorm": True},
        "batch": {
            "size": 256,
            "images_per_class": 4,
            "sampler": "hierarchical",
            "level": "category",
            "coarse_per_batch": 2,
            "batches_per_combination": 5,
        },
        "optimizer": {"name": "adam", "lr": 5e-5, "head_lr": 1e-4, "weight_decay": 1e-4, "schedule": "cosine", "min_lr": 0.0},
        "proxies": {"name": "adam", "lr": 10.0, "weight_decay": 0.0, "min_lr": 0.1},
        "run": {"epochs": 100, "frozen_epochs": 5},
        "memory": {"size": 0},
        "evaluation": {"every": 20},
    },
    "sop/roadmap-memory": {
        "model": {"pooling": "gem"},
        "memory": {"size": "all", "per_item": True, "start_epoch": 5, "weight": 0.5},
        "optimizer": {"lr": 5e-5},
    },
    "sop/roadmap-deit": {
        "model": {"backbone": "deit_small", "dim": None, "normalization": "none"},
        "optimizer": {"name": "adamw", "lr": 1e-5, "weight_decay": 5e-4},
        "proxies": {"name": "adamw", "lr": 1e-5},
        "memory": {"size": "all"},
        "run": {"frozen_epochs": 0},
    },
    "sop/roadmap-vit": {
        "model": {"backbone": "vit_base", "dim": 512, "normalization": "none"},
        "optimizer": {"name": "adamw", "lr": 1e-5, "head_lr": 2e-5},
        "proxies": {"lr": 2e-5},
        "memory": {"size": "all"},
    },
    "sop/irt-r": {
        "loss": {"margin": 0.5, "entropy_weight": 0.35},
        "model": {"backbone": "deit_small", "dim": None},
        "batch": {"size": 64},
        "optimizer": {"name": "adamw", "lr": 3e-5, "head_lr": None, "weight_decay": 5e-4},
        "memory": {"size": "all", "weight": 0.5, "start_epoch": 0},
    },
    "sop/cross-entropy": {
        "loss": {"label_smoothing": 0.1},
        "model": {"dim": None},
        "batch": {"size": 128},
        "optimizer": {"name": "sgd", "lr": 0.003, "momentum": 0.99},
        "proxies": {"lr": 0.003, "momentum": 0.99},
        "run": {"epochs": 100},
    },
    "sop/rod-recall": {"loss": {"weight": 0.5, "decomposability": "proxies"}, "proxies": {"lr": 10.0}},
    "sop/rod-recall-pairs": {
        "loss": {
            "weight": 0.5,
            "decomposability": "pairs",
            "ks": (1, 2, 4, 8, 16),
            "rank_tau": 1.0,
            "positive_floor": 0.9,
            "negative_ceiling": 0.6,
            "average": "all",
        }
    },
    "sop/happier": {"loss": {"weight": 0.1, "decay": 1.0, "temperature": 0.05}, "proxies": {"lr": 10.0}},
    "sop/happier-f": {"loss": {"name": "happier", "weight": 0.5, "decay": 5.0}, "evaluation": {"decay": 1.0}},
    "sop/rod-ndcg": {"loss": {"name": "rod-ndcg", "weight": 0.1}},
    "sop/smooth-ap": {"loss": {"name": "smooth-ap", "tau": 0.01}},
    "sop/nsm": {"loss": {"name": "nsm", "temperature": 0.05}, "proxies": {"lr": 10.0}},
    "sop/fast-ap": {"loss": {"bins": 10}},
    "sop/softbin-ap": {"loss": {"bins": 20}},
    "sop/blackbox-ap": {"loss": {"interpolation": 4.0, "margin": 0.02}},
    "sop/triplet-sh": {"loss": {"margin": 0.05}, "batch": {"size": 256}},
    "sop/contrastive-xbm": {
        "loss": {"margin": 0.5},
        "batch": {"size": 128},
        "memory": {"size": "all", "start_epoch": 5, "weight": 0.5},
        "model": {"pooling": "avg"},
    },
    "sop/proxy-nca": {"loss": {"scale": 3.0}, "proxies": {"name": "adam", "lr": 1e-4, "weight_decay": 1e-4, "min_lr": 0.0}},
    "sop/csl": {"loss": {"scale": 32.0, "margins": None}, "proxies": {"lr": 10.0, "weight_decay": 0.0, "min_lr": 0.0}},
    "sop/sum-nsm": {"loss": {"temperature": 0.05}, "proxies": {"lr": 10.0}},
    "sop/arcface": {"loss": {"margin": 0.3, "scale": 30.0}, "proxies": {"lr": 10.0}},
    "sop/recall-4096": {
        "loss": {"name": "smooth-recall", "mixup": True, "ks": (1, 2, 4, 8, 16)},
        "batch": {"size": 4096, "chunk": 256, "sampler": "m-per-class"},
        "model": {"pooling": "gem", "freeze_batchnorm": True},
        "optimizer": {"lr": 2e-4, "weight_decay": 4e-4, "milestones": (25.0, 50.0), "gamma": 0.3},
        "run": {"epochs": 55},
    },
    "cub/roadmap": {
        "optimizer": {"lr": 1e-5, "head_lr": 2e-5, "weight_decay": 4e-4},
        "proxies": {"lr": 10.0, "min_lr": 0.1},
        "images": {"size": 256, "test_resize": 288},
        "model": {"pooling": "gem"},
        "memory": {"size": "all", "per_item": True},
        "batch": {"sampler": "m-per-class"},
        "run": {"frozen_epochs": 0},
    },
    "cub/roadmap-vit": {
        "model": {"backbone": "vit_base", "dim": 512, "normalization": "none", "mean": (0.485, 0.456, 0.406)},
        "images": {"size": 224},
        "optimizer": {"name": "adamw", "lr": 1e-6, "head_lr": 2e-6, "weight_decay": 5e-4, "min_lr": 1e-6},
        "proxies": {"lr": 10.0},
    },
    "cub/roadmap-deit": {
        "model": {"backbone": "deit_small", "dim": None, "normalization": "none"},
        "images": {"size": 224, "test_resize": 256},
        "optimizer": {"name": "adamw", "lr": 5e-6, "weight_decay": 5e-4, "min_lr": 0.0},
        "proxies": {"lr": 10.0},
        "memory": {"size": "all"},
    },
    "cub/irt-r": {
        "batch": {"size": 64},
        "optimizer": {"lr": 3e-5, "schedule": "constant"},
        "model": {"backbone": "deit_small"},
    },
    "cub/cross-entropy": {"optimizer": {"lr": 0.02, "momentum": 0.0}, "proxies": {"lr": 0.02}, "run": {"epochs": 30}},
    "cub/nsm": {"proxies": {"lr": 400.0, "min_lr": 0.1}},
    "inat-base/roadmap": {
        "optimizer": {"lr": 1e-5, "head_lr": 2e-5, "weight_decay": 4e-4, "min_lr": 1e-6},
        "proxies": {"lr": 10.0},
        "images": {"resize": None, "squash": False},
        "loss": {"jump": 0.5, "value_at_delta": None},
        "run": {"frozen_epochs": 5},
    },
    "inat-base/roadmap-vit": {
        "memory": {"size": 60_000},
        "optimizer": {"weight_decay": 5e-4, "min_lr": 1e-6},
        "proxies": {"lr": 2e-5},
    },
    "inat-base/roadmap-memory": {
        "model": {"backbone": "resnet50", "pooling": "gem", "normalization": "layer", "dim": 512},
        "memory": {"size": 60_000, "start_epoch": 5},
        "proxies": {"lr": 10.0},
        "optimizer": {"lr": 1e-5},
    },
    "inat-base/roadmap-deit": {
        "model": {"backbone": "deit_small", "dim": None},
        "memory": {"size": 60_000},
        "optimizer": {"name": "adamw", "lr": 1e-5, "weight_decay": 5e-4, "min_lr": 0.0},
        "proxies": {"lr": 1e-5, "min_lr": 0.0},
        "run": {"frozen_epochs": 0},
    },
    "inat-base/rod-recall": {"loss": {"weight": 0.5, "decomposability": "proxies"}},
    "inat-base/happier-f": {"loss": {"weight": 0.5, "decay": 3.0}},
    "inat-base/proxy-nca": {"proxies": {"lr": 2e-5, "weight_decay": 4e-4, "min_lr": 1e-6}},
    "inat-base/csl": {"proxies": {"lr": 2e-5, "weight_decay": 4e-4, "min_lr": 1e-6}},
    "inat-base/sup-wap": {"loss": {"name": "sup-hap", "level_weights": "equal", "decay": 1.0}},
    "inat-base/nsm": {"proxies": {"lr": 2e-5, "weight_decay": 4e-4, "min_lr": 1e-6}},
    "inat-full/nsm": {"data": {"manifest": "inat-full.parquet"}, "proxies": {"lr": 2e-5}, "run": {"frozen_epochs": 5}},
    "inat-full/happier": {
        "data": {"manifest": "inat-full.parquet"},
        "loss": {"decay": 1.0},
        "optimizer": {"lr": 1e-5},
        "proxies": {"lr": 10.0},
    },
    "dyml-vehicle/happier": {
        "model": {"backbone": "resnet34", "pretrained": False, "freeze_batchnorm": False},
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "min_lr": 1e-6},
        "proxies": {"name": "sgd", "lr": 0.1, "weight_decay": 1e-4},
        "loss": {"weight": 0.1},
        "run": {"epochs": 100, "frozen_epochs": 0},
    },
    "dyml-vehicle/csl": {"proxies": {"name": "sgd", "lr": 0.1, "momentum": 0.9}},
    "dyml-animal/happier": {"loss": {"weight": 0.5}, "optimizer": {"lr": 0.1}, "model": {"pretrained": False}},
    "dyml-product/happier": {
        "model": {"pretrained": True, "freeze_batchnorm": True},
        "optimizer": {"lr": 0.01, "head_lr": 0.02, "min_lr": 1e-5},
        "proxies": {"lr": 0.02},
        "loss": {"weight": 0.1},
        "run": {"epochs": 20, "frozen_epochs": 5},
    },
    "hgldv2/happier": {
        "optimizer": {"lr": 1e-5, "weight_decay": 1e-4},
        "batch": {"max_images_per_class": 8},
        "images": {"size": 224, "test_resize": 224, "squash": True},
        "proxies": {"name": "adam", "lr": 1e-4, "weight_decay": 1e-4, "min_lr": 0.0},
        "run": {"epochs": 40},
    },
    "hgldv2/csl": {"proxies": {"lr": 10.0, "weight_decay": 0.0, "min_lr": 0.0}},
    "cub112/roadmap": {
        "model": {"backbone": "tf_efficientnet_lite0", "mean": None, "dim": 512, "freeze_batchnorm": True},
        "images": {"size": 112, "test_resize": 0},
        "optimizer": {"name": "adamw", "lr": 1e-4, "head_lr": 2e-4},
        "proxies": {"lr": 1e-2},
        "run": {"epochs": 30},
        "engine": {"precision": "bf16"},
        "data": {"cache_images": True},
    },
    "emoji64/happier": {
        "images": {"size": 64, "crop_scale": (0.4, 1.0), "flip": 0.0},
        "optimizer": {"lr": 2e-4, "head_lr": 4e-4},
    },
    "omniglot56/happier": {
        "images": {"size": 56, "test_resize": 56, "crop_scale": (0.4, 1.0), "flip": 0.0},
        "optimizer": {"lr": 2e-4, "head_lr": 4e-4},
        "run": {"epochs": 10},
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_those_of_the_paper_and_the_authors(name):
    config = read_recipe(name)
    found = {table: {key: getattr(getattr(config, table), key) for key in keys} for table, keys in SETTINGS[name].items()}
    assert found == SETTINGS[name]


@pytest.mark.parametrize(
    ("preset", "columns"),
    [
        ("sop", "R@1 R@10 R@100 mAP@R H-AP ASI NDCG"),
        ("cub", "R@1 R@2 R@4 R@8"),
        ("cub112", "R@1 R@2 R@4 R@8"),
        ("inat-base", "R@1 R@4 R@16 R@32 mAP@R H-AP ASI NDCG wAP"),
        ("inat-full", "R@1 H-AP ASI NDCG AP/kingdom"),
        ("dyml-vehicle", "R@1 AP ASI"),
        ("dyml-product", "R@1/overall AP/overall ASI/overall"),
        ("hgldv2", "mAP@100 H-AP ASI NDCG"),
    ],
)
def test_the_columns_of_the_papers_tables_are_measured_by_default(preset, columns):
    evaluation = read_recipe(f"{preset}/nsm").evaluation
    assert evaluation.metrics is None
    assert set(columns.split()) <= set(map(str, default_metrics(evaluation.ks, LEVELS[preset])))


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_is_evaluated_at_the_cut_offs_of_its_preset(name):
    assert read_recipe(name).evaluation.ks == read_recipe(f"{name.partition('/')[0]}/nsm").evaluation.ks


def test_an_epoch_on_sop_has_330_batches():
    batch = read_recipe("sop/roadmap").batch
    assert math.comb(12, batch.coarse_per_batch) * batch.batches_per_combination == 330


def test_pairs_can_take_the_place_of_proxies_as_the_comment_says():
    assert "# loss.decomposability=pairs proxies=\n" in METHODS["roadmap"].read_text(encoding="utf-8")
    for preset in PRESETS:
        assert not read_recipe(f"{preset}/roadmap", ["loss.decomposability=pairs", "proxies="]).loss.has_proxies


def test_omniglots_small_drawings_are_enlarged_to_fill_the_square(tmp_path):
    from PIL import Image

    from suprank.data.transforms import eval_transform, train_transform

    images = read_recipe("omniglot56/smooth-ap").images
    white = Image.new("RGB", (35, 35), "white")
    crop = train_transform(images.size, resize=images.resize, scale=images.crop_scale, flip=images.flip, mean=None)
    whole = eval_transform(images.size, resize=images.test_resize, squash=images.squash, mean=None)
    for found in (crop(white), whole(white)):
        assert found.shape == (3, 56, 56)
        assert found.min() == 255  # no black border


# A step, on the way that a user takes: of every method once, on the presets in turn, and of what else has a file

STEPPED = [f"{preset}/{method}" for preset, method in zip(cycle(PRESETS), METHODS, strict=False)]
STEPPED += sorted(set(RECIPES) - set(compositions(recipes_folder())))

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
    "evaluation.ks=",
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


def open_manifest(root, levels, test):
    """Twelve classes for training and twelve for `test` (splits in turn), under six, three, one classes of further levels."""
    rows = range(2 * CLASSES * IMAGES)
    fine = [row // IMAGES for row in rows]
    splits = ["train" if one < CLASSES else test[row % len(test)] for row, one in zip(rows, fine, strict=True)]
    columns = {"path": [f"{row}.png" for row in rows], "split": splits}
    for depth, level in enumerate(levels):
        columns[f"label_{level}"] = [f"{level} {one % CLASSES // 2**depth if depth else one}" for one in fine]
    return Manifest.from_columns(columns, root=root)


@pytest.fixture(scope="module")
def prepared(pictures, tmp_path_factory):
    """Makes what the recipes of a dataset ask for, once, and says the overrides that name it."""
    folder = tmp_path_factory.mktemp("prepared")
    made = {}

    def overrides(dataset):
        if dataset not in made:
            file = folder / f"{dataset}.csv"
            manifest = open_manifest(pictures, LEVELS[dataset], ("query", "gallery") if dataset == "hgldv2" else ("test",))
            made[dataset] = [f"data.manifest={file}"]
            if dataset in ("dyml-vehicle", "dyml-animal"):  # one level each, apart
                for level in LEVELS[dataset]:
                    one = folder / f"{dataset}-{level}.csv"
                    open_manifest(pictures, (level,), ("query", "gallery")).split("query", "gallery").save(one)
                    made[dataset].append(f"data.tests.{level}={one}")
                manifest = manifest.split("train")
            manifest.save(file)
        return made[dataset]

    return overrides


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A saved embedder, as `suprank models create --pca` makes one."""
    folder = tmp_path_factory.mktemp("start") / "embedder"
    Embedder.create("test_resnet", pretrained=False, pooling="gem", normalization="l2", dim=16).save(folder)
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


def test_every_method_and_every_preset_takes_a_step():
    assert {name.split("/")[0] for name in STEPPED} == set(PRESETS)
    assert {name.split("/")[1] for name in STEPPED} >= set(METHODS)


@pytest.mark.parametrize("name", STEPPED)
def test_a_step_on_miniature_data(name, prepared, start, tmp_path):
    from suprank.training.loop import train

    small = in_miniature(read_recipe(name), start)
    config = read_recipe(name, [*MINIATURE, *prepared(name.partition("/")[0]), *small])
    result = train(config, tmp_path / "run")
    assert result.stop_signal is None
    reports = result.reports
    assert set(reports) >= set(config.data.tests) if config.data.tests else len(reports) == 1
    for report in reports.values():
        assert 0 < report["AP"] <= 1
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 1
    assert math.isfinite(losses[0])
    assert Embedder.load(tmp_path / "run" / "model").config.backbone in ("test_resnet", "test_vit")
