"""Two ways to one number agree: what training reports, and what `embed`, `evaluate` and `report` find with the saved model."""

import json
import os
import shutil
import sys
import time
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from suprank import open_data
from suprank.data import Manifest
from suprank.embedding import ImageLoaderSettings
from suprank.evaluation import Report, evaluate
from suprank.evaluation.provenance import Provenance
from suprank.models import Embedder
from suprank.training.config import EvaluationConfig
from suprank.training.embedders import build_embedder
from suprank.training.loop import train
from suprank.training.presets import presets
from suprank.training.recipe import read_recipe
from suprank.training.recipe_files import recipes_folder
from suprank.training.seeds import derive_seed
from suprank.training.validation import Validator
from suprank.workflows.embeddings import embed
from suprank.workflows.run_embeddings import image_embedder, load_run_model
from tests.cli.collection import done, refused
from tests.models import tiny
from tests.training import runs

READINGS = {
    "as it is": ({"size": 24, "test_resize": 0}, {}, {}),
    "resized": ({"size": 24, "test_resize": 31}, {}, {}),
    "squashed": ({"size": 24, "test_resize": 28, "squash": True}, {}, {}),
    "bicubic": ({"size": 32, "test_resize": 33, "interpolation": "bicubic"}, {}, {}),
    "fast JPEG": ({"size": 24, "test_resize": 26}, {"fast_jpeg": True, "decoder": "turbo"}, {}),
    "bf16": ({"size": 24, "test_resize": 0}, {}, {"precision": "bf16"}),
}
"""[images], [data] and [engine] of recipes that differ in how test images become embeddings."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photographs of other shapes than the crop, in JPEG and large enough to be decoded at a fraction."""
    folder = tmp_path_factory.mktemp("photos")
    manifest = Manifest.read(runs.pictures(folder, tests=4))
    draw = np.random.default_rng(0)
    paths = []
    for path in manifest.paths.to_pylist():
        wide = Image.open(folder / path).resize((int(draw.integers(90, 160)), int(draw.integers(60, 90))))
        paths.append(path.replace(".png", ".jpg"))
        wide.save(folder / paths[-1], quality=95)
    manifest = manifest.with_columns(path=paths)
    manifest.save(folder / "photos.parquet")
    return folder / "photos.parquet"


def trained(photos, folder, reading="resized", **tables):
    images, data, engine = READINGS[reading]
    given = {"data": {"manifest": str(photos), "workers": 0, **data}, "engine": {"accelerator": "cpu", **engine}}
    evaluation = {"every": 0, "batch_size": 64, "decay": 2.0}
    config = runs.recipe(photos, **{**given, "images": images, "run": {"epochs": 1}, "evaluation": evaluation, **tables})
    return train(config, folder).reports["test"]


@pytest.mark.parametrize("reading", READINGS)
def test_embed_and_evaluate_repeat_the_digits_of_train(tmp_path, photos, reading):
    run = tmp_path / "run"
    expected = trained(photos, run, reading)
    model = (run / "model", photos, "--out", tmp_path / "e", "--workers", 0, "--device", "cpu")
    output = done("embed", *model, "--batch-size", 64, "--quiet")
    assert "warning" not in output.stderr, "nothing was overridden"
    done("evaluate", tmp_path / "e", "--decay", 2, "--metric", "R@1", "--out", tmp_path / "one.json")
    chosen = [argument for name in expected for argument in ("--metric", name)]
    done("evaluate", tmp_path / "e", "--decay", 2, *chosen, "--out", tmp_path / "r.json", "--quiet")
    assert dict(Report.load(tmp_path / "r.json")) == dict(expected)
    done("evaluate", run, *chosen, "--out", tmp_path / "run.json", "--quiet", "--device", "cpu")
    assert dict(Report.load(tmp_path / "run.json")) == dict(expected), "levels and decay are the recipe's"
    assert evaluate(open_data(run, device="cpu"), metrics=["H-AP"])["H-AP"] == expected["H-AP"]


def test_an_upload_is_embedded_as_the_rows_of_the_report(tmp_path, photos):
    run = tmp_path / "run"
    trained(photos, run, "bf16")
    source = open_data(run, device="cpu")
    picture = Image.open(photos.parent / source.queries.manifest.paths[3].as_py())
    found = image_embedder(partial(load_run_model, run), "cpu")(picture)
    np.testing.assert_allclose(found, source.queries.embeddings[3], atol=1e-6)


@pytest.mark.parametrize("preset", sorted(presets(recipes_folder())))
def test_the_saved_model_of_every_preset_says_how_it_reads(tmp_path, photos, preset):
    config = read_recipe(
        f"{preset}/nsm", [f"data.manifest={photos}", "data.workers=0", "data.cache_images=false", "data.tests="]
    )
    config = config.model_copy(update={"evaluation": EvaluationConfig()})  # its metrics may name levels of the preset
    judge = Validator.from_config(config, small(photos))
    tiny.embedder(**config.evaluation_input, mean=config.model.mean, std=config.model.std).save(tmp_path)
    reading = ImageLoaderSettings.for_model(Embedder.load(tmp_path))
    assert repr(reading.transform) == repr(judge._loading.transform)
    assert (reading.min_short_side, reading.settings) == (judge._loading.min_short_side, judge._loading.settings)
    assert Embedder.load(tmp_path).config.precision == config.engine.precision


def small(photos):
    manifest = Manifest.read(photos)
    return manifest.take(np.flatnonzero(np.asarray(manifest.table["split"]) == "test"))


def test_an_embedder_to_start_from_is_saved_with_the_reading_of_the_recipe(tmp_path, photos):
    tiny.embedder(dim=8, image_size=160).save(tmp_path / "start")
    model = {"backbone": "resnet50", "pretrained": True, "dim": None, "start": str(tmp_path / "start")}
    expected = trained(photos, tmp_path / "run", model=model)
    saved = Embedder.load(tmp_path / "run" / "model")
    assert (saved.input.size, saved.input.resize) == ((24, 24), 31)
    assert evaluate(open_data(tmp_path / "run", device="cpu"), metrics=["AP"])["AP"] == expected["AP"]


def test_options_that_read_otherwise_are_named(tmp_path, photos):
    run = tmp_path / "run"
    trained(photos, run, "squashed")
    given = (run / "model", photos, "--workers", 0, "--device", "cpu", "--quiet")
    output = done("embed", *given, "--out", tmp_path / "a", "--no-squash", "--resize", 40, "--precision", "bf16").stderr
    assert "options override what" in output
    assert "resize 40 against 28; squash no against yes; precision bf16 against fp32" in output
    output = done("embed", *given, "--out", tmp_path / "b", "--scale", 0.5, "--decoder", "turbo").stderr
    assert "JPEG decoder turbo against pil; scales 0.5 against 1" in output


@pytest.mark.filterwarnings("always:the model was saved with the decoder turbo")
def test_without_the_decoder_that_a_model_was_saved_with_pil_gives_the_same_numbers(tmp_path, photos, monkeypatch):
    run = tmp_path / "run"
    expected = trained(photos, run, "fast JPEG")
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    given = (run / "model", photos, "--workers", 0, "--device", "cpu", "--quiet")
    output = done("embed", *given, "--out", tmp_path / "e").stderr
    assert output.count("warning") == output.count("which is not installed here") == 1
    assert Provenance.read(tmp_path / "e", "test").decoder == "pil"
    done("evaluate", run, "--metric", "AP", "--out", tmp_path / "run.json", "--quiet", "--device", "cpu")
    assert Report.load(tmp_path / "run.json")["AP"] == expected["AP"]
    with pytest.raises(ModuleNotFoundError, match="needs simplejpeg"):
        embed(run / "model", photos, tmp_path / "f", decoder="turbo", workers=0, device="cpu")


def test_a_projection_is_saved_with_the_reading_it_was_computed_from(tmp_path, photos):
    given = ("--pca", photos, "--workers", 0, "--device", "cpu", "--quiet", "--dim", 4, "--out", tmp_path / "pca")
    tiny.embedder(image_size=24, resize=0).save(tmp_path / "model")
    images = ("--image-size", 28, "--resize", 40, "--squash", "--decoder", "turbo")
    done("models", "create", tmp_path / "model", *given, *images)
    found = Embedder.load(tmp_path / "pca").input
    assert (found.size, found.resize, found.squash, found.decoder) == ((28, 28), 40, True, "turbo")


def test_a_size_can_be_given_for_a_network_that_is_not_square():
    model = tiny.embedder(image_size=(320, 160), resize=200)
    with pytest.raises(ValueError, match="crops are square, so give a size"):
        ImageLoaderSettings.for_model(model)
    assert ImageLoaderSettings.for_model(model, size=80).settings.resize == 100


def test_embeddings_stay_until_those_of_another_model_are_whole(tmp_path, photos):
    run = tmp_path / "run"
    trained(photos, run)
    before = open_data(run, device="cpu").queries.embeddings[:]
    config = Embedder.load(run / "model").config
    tiny.embedder(seed=1, **config.model_dump(exclude={"backbone"})).save(run / "model")
    later = time.time() + 10
    os.utime(run / "model" / "model.safetensors", (later, later))
    (photos.parent / "gone").mkdir()
    for image in photos.parent.glob("0-*.jpg"):
        image.rename(photos.parent / "gone" / image.name)
    try:
        with pytest.raises(FileNotFoundError):
            open_data(run, device="cpu")
        assert (np.load(run / "embeddings" / "test" / "embeddings.npy") == before).all()
    finally:
        for image in (photos.parent / "gone").iterdir():
            image.rename(photos.parent / image.name)
    assert not np.allclose(open_data(run, device="cpu").queries.embeddings[:], before)
    assert [one.name for one in run.iterdir() if one.name.startswith(".emb")] == []


def test_the_backbone_before_training_follows_the_images_of_the_run(tmp_path, photos):
    run, manifest = tmp_path / "run", tmp_path / "m.parquet"
    whole = Manifest.read(photos)
    whole.save(manifest)
    trained(manifest, run)
    open_data(run, device="cpu")
    assert len(open_data(run, device="cpu", frozen=True).queries) == 32
    whole.take(np.arange(len(whole)) != np.flatnonzero(np.asarray(whole.table["split"]) == "test")[0]).save(manifest)
    shutil.rmtree(run / "embeddings")
    assert len(open_data(run, device="cpu").queries) == 31
    assert len(open_data(run, device="cpu", frozen=True).queries) == 31


def test_the_backbone_before_training_is_read_as_the_run_reads(tmp_path, photos):
    run = tmp_path / "run"
    expected = trained(photos, run, "as it is", evaluation={"every": 0, "decay": 2.0, "metrics": ("R@1", "H-AP")})
    config = read_recipe(run / "recipe.toml")
    shown = done("evaluate", run, "--against-frozen", "--device", "cpu", "--metric", "R@1", "--metric", "H-AP")
    assert "run against run before training, 32 queries" in shown.stdout
    assert "%       run  before training  difference" in shown.stdout
    assert "both: test_resnet" in shown.stdout
    assert "24 pixels, not resized, bilinear, fp32" in " ".join(shown.stdout.split())
    assert "warning" not in shown.stderr, "only training differs"
    shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("embeddings", "frozen"))
    shown = done("evaluate", run, "--against", tmp_path / "copy", "--device", "cpu", "--metric", "H-AP")
    assert "copy: embedding test" in shown.stderr
    assert "run and copy are equally good on every single query." in shown.stdout

    torch.manual_seed(derive_seed(config.run.seed, 0))
    start = build_embedder(config)  # what the run began with: its projection is drawn after the backbone
    bare = tiny.embedder(**config.evaluation_input)
    bare.load_state_dict({name: value for name, value in start.state_dict().items() if not name.startswith("projection")})
    frozen = open_data(run, device="cpu", frozen=True)
    transform = ImageLoaderSettings.for_model(bare)
    found = transform.batches(small(photos), np.arange(4), pinned=False)
    batch = next(iter(found))
    with_torch = transform.before(bare.eval())(batch.images).detach().numpy()
    np.testing.assert_allclose(frozen.queries.embeddings[:4], with_torch, atol=1e-5)
    assert frozen.defaults.decay == 2
    assert evaluate(open_data(run, device="cpu"), metrics=["H-AP"])["H-AP"] == expected["H-AP"]


@pytest.mark.slow
def test_a_comparison_of_images_read_otherwise_is_warned_of(tmp_path, photos):
    """The report once said −6.7 R@1 for training that had gained 6.7: the other side had been read at twice the size."""
    run = tmp_path / "run"
    trained(photos, run, "as it is")
    tiny.embedder().save(tmp_path / "frozen")
    given = (tmp_path / "frozen", photos, "--out", tmp_path / "e")
    done("embed", *given, "--workers", 0, "--device", "cpu", "--size", 48, "--quiet")
    page = tmp_path / "report.html"
    output = done(
        "report", run, "--against", tmp_path / "e", "--out", page, "--queries", 1, "--device", "cpu", "--quiet"
    ).stderr
    differences = "image size 24 against 48; resize none against 50"
    assert differences in output
    text = page.read_text()
    assert "The two sides are not directly comparable" in text
    assert differences in text
    for value in ("24 pixels", "48 pixels", "none", "short side to 50"):
        assert f'<td class="differs">{value}</td>' in text

    done("report", run, "--against-frozen", "--out", page, "--queries", 1, "--device", "cpu", "--quiet")
    text = page.read_text()
    assert "The two sides are not directly comparable" not in text
    assert "run before training is the backbone before training, so it has no recipe of its own." in text
    assert "<td>not trained</td>" in text

    done("evaluate", tmp_path / "e", "--per-query", "--out", tmp_path / "e.json", "--quiet")
    output = done("evaluate", run, "--against", tmp_path / "e.json", "--device", "cpu", "--quiet").stderr
    assert differences in output
    assert "run has decay 2.0 and e.json 1.0, so that hierarchical metrics do not compare; give the same --decay" in output
    output = done("evaluate", run, "--against", tmp_path / "e", "--device", "cpu", "--quiet").stderr
    assert differences in output
    assert "decay" not in output, "both have that of the run"


def test_what_needs_a_run_is_refused_without_one(tmp_path, photos):
    for verb, first in (("evaluate", (tmp_path,)), ("report", (tmp_path,))):
        assert "both name what to compare with" in refused(verb, *first, "--against-frozen", "--against", "other")
    assert "has no embeddings; name a folder of `suprank train`" in refused("evaluate", tmp_path, "--against-frozen")


def test_a_folder_without_a_record_has_no_provenance(tmp_path):
    (tmp_path / "test").mkdir()
    assert Provenance.read(tmp_path, "test") is None
    (tmp_path / "test" / "run.json").write_text(json.dumps({"transform": "Compose(...)"}))
    assert Provenance.read(tmp_path, "test") is None
    assert Provenance.from_dict({"backbone": "resnet50"}) is None
    whole = Provenance("resnet50", 1, size=24, resize=0, decoder="turbo", scales=(1.0, 0.5))
    assert Provenance.from_dict(json.loads(json.dumps(whole.asdict()))) == whole
    assert "decoder turbo, fp32, scales 1, 0.5" in whole.images
