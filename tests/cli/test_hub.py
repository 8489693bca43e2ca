"""suprank models push, and models on the Hub as arguments of commands."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard, constants, snapshot_download
from PIL import Image

import suprank
from suprank.evaluation import Report
from suprank.models import Embedder
from suprank.training import train
from suprank.training.recipe import read_recipe
from suprank.workflows.publish import write_repository
from tests import fake_hub
from tests.cli.collection import done, invoke, refused
from tests.explorer import runs
from tests.models.test_hub import on_the_hub
from tests.models.tiny import embedder
from tests.training.runs import pictures, recipe

pytestmark = pytest.mark.filterwarnings(fake_hub.OF_THE_CLIENT)

IMAGES = {"image_size": 32, "resize": 36}
RECIPE = """
[data]
manifest = "{manifest}"
root = "{root}"
workers = 0
[images]
size = 32
test_resize = 36
[loss]
name = "happier"
[model]
backbone = "test_resnet"
dim = 8
[evaluation]
ks = [1, 2]
[logging]
wandb = "secret-project"
mlflow = "https://me:secret-password@mlflow.lab.org"
"""


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """A manifest, a run with a model, and what `suprank embed` makes of both."""
    folder = tmp_path_factory.mktemp("collection")
    manifest = runs.collection(folder / "data", classes=3, splits=("train", "test", "test", "test"))
    manifest.save(folder / "birds.parquet")
    run = folder / "private place" / "run"
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text(RECIPE.format(manifest=folder / "birds.parquet", root=folder / "data"))
    embedder(dim=8, **IMAGES).save(run / "model")
    return folder


@pytest.fixture(scope="module")
def server():
    with fake_hub.serving() as running:
        yield running


@pytest.fixture(autouse=True)
def online(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server.repositories.clear()
    server.faults.clear()
    server.asked.clear()
    fake_hub.point_to(server, tmp_path / "cache", monkeypatch)
    return server


def metadata(card):
    return yaml.safe_load(re.match(r"---\n(.*?)\n---", card, re.DOTALL)[1])


def printed_rows(output):
    """The rows of the table that `suprank evaluate` prints: metric → the numbers in it."""
    lines = [line.replace("│", "|").strip(" |").split("|") for line in output.splitlines() if line.startswith("│")]
    return {name.strip(): re.findall(r"\d+\.\d\d", " ".join(cells)) for name, *cells in lines}


# The card


def test_the_card_has_the_digits_that_evaluate_prints(collection, online):
    run = collection / "private place" / "run"
    options = ("--license", "mit", "--device", "cpu")
    result = done("models", "push", run, "org/birds", *options)
    card = online.repositories["org/birds"].files["README.md"].decode()
    printed = printed_rows(done("evaluate", run, "--intervals", "--device", "cpu").stdout)
    assert set(printed) == {"R@1", "mAP@R", "AP", "H-AP", "NDCG", "ASI"}
    on_card = {
        cells[0].strip().replace("\\", ""): re.findall(r"\d+\.\d\d", " ".join(cells[1:]))
        for line in card.splitlines()
        if len(cells := line.strip("|").split("|")) == 4 and re.search(r"\d\.\d\d \[", line)
    }
    assert on_card == printed
    plain = printed_rows(done("evaluate", run, "--device", "cpu").stdout)
    assert plain["H-AP"] == printed["H-AP"][:1]
    (index,) = metadata(card)["model-index"]
    values = {one["name"]: one["value"] for one in index["results"][0]["metrics"]}
    assert f"{values['H-AP (all levels)']:.2f}" == plain["H-AP"][0]
    assert [f"{values[f'R@1 ({level})']:.2f}" for level in ("class", "group")] == plain["R@1"]
    assert result.stdout == (
        f"{online.url}/org/birds: pushed as commit {online.repositories['org/birds'].branches['main'][:12]}\n"
    )


def test_the_card_the_page_and_the_terminal_say_in_the_same_words_what_the_intervals_are_about(collection):
    run = collection / "private place" / "run"
    expected = suprank.evaluate(run, per_query=True, device="cpu").sentence()
    assert expected.startswith(
        "Measured on 9 classes (unit: class). Metrics with coarser levels are about these 3 classes of group"
    )
    assert expected.endswith(
        "One trained model: another training of the same recipe may differ; compare several seeds of each."
    )
    printed = done("evaluate", run, "--intervals", "--device", "cpu", "--out", "r.json").stdout
    assert expected in " ".join(printed.split())
    assert Report.load("r.json").settings["intervals"]["measured"] == expected
    card = write_repository("card", run, "org/birds", license="mit", device="cpu")
    assert expected in card.text.replace("\\", "")
    done("report", run, "--out", "page.html", "--device", "cpu")
    assert expected in html.unescape(re.sub(r"<[^>]+>", "", Path("page.html").read_text()))


def test_the_card_is_read_by_the_hubs_own_client_and_says_where_it_comes_from(collection):
    run = collection / "private place" / "run"
    (run / "environment.json").write_text(
        json.dumps(
            {"sessions": [{"host": "secret-host", "versions": {"suprank": "0.1", "lightning": None}, "gpus": ["H200", "H200"]}]}
        )
    )
    write_repository("card", run, "org/birds", license="mit", datasets=["org/photos"], device="cpu")
    card = ModelCard.load("card/README.md")
    assert (card.data.license, card.data.datasets, card.data.base_model) == (
        "mit",
        ["org/photos"],
        "timm/test_resnet.r160_in1k",
    )
    assert {result.dataset_type for result in card.data.eval_results} == {"org/photos"}
    assert "| birds, train | 9 | 9 | 3 |" in card.text
    assert "| birds, test | 27 | 9 | 3 |" in card.text
    assert "2 × H200" in card.text
    assert 'name = "happier"' in card.text
    assert r"\[low, high\]: 95% intervals. Measured on 9 classes" in card.text
    for secret in ("private place", "secret-host", "secret-project", "secret-password", str(collection)):
        assert secret not in str(card)
    report = Report.load("card/report.json")
    assert report.per_query is None
    assert report == suprank.evaluate(run, intervals=True, device="cpu")


def test_the_example_of_the_card_runs(collection, monkeypatch, tmp_path):
    done("models", "push", collection / "private place" / "run", "org/birds", "--device", "cpu")
    card = ModelCard.load("org/birds")
    Image.new("RGB", (50, 40), "red").save("photo.jpg")
    (example,) = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    names = {}
    exec(example, names)
    assert names["embedding"].shape == (1, 8)


def test_a_dry_run_writes_what_would_be_pushed_and_asks_nobody(collection, online, tmp_path):
    run = collection / "private place" / "run"
    output = done("models", "push", run, "org/birds", "--gallery", "--dry-run", "dry", "--device", "cpu")
    assert online.asked == []
    names = ["README.md", "embedder.json", "gallery.png", "model.safetensors", "report.json"]
    assert sorted(file.name for file in (tmp_path / "dry").iterdir()) == sorted(names)
    assert (tmp_path / "dry" / "README.md").read_text() in output.stdout
    assert "names no license" in output.stderr
    assert "the card shows 36 test images, which are published with it" in output.stderr
    assert "](gallery.png)" in output.stdout
    with Image.open("dry/gallery.png") as picture:
        assert picture.width > 900
    assert Embedder.load("dry").dim == 8
    done("models", "push", run / "model", "org/birds", "--dry-run", "dry")  # once more, into the same folder


def test_a_saved_model_has_the_metrics_of_its_own_embeddings_and_of_no_others(collection, online):
    model, manifest = collection / "private place" / "run" / "model", collection / "birds.parquet"
    done("embed", model, manifest, "--root", collection / "data", "--out", "own", "--workers", 0, "--device", "cpu")
    done("models", "push", model, "org/birds", "--report", "own", "--device", "cpu")
    card = online.repositories["org/birds"].files["README.md"].decode()
    expected = suprank.evaluate("own", device="cpu")
    assert f"| {100 * expected['H-AP']:.2f} [" in card
    assert "## Training" not in card
    done("evaluate", "own", "--out", "own.json", "--device", "cpu", "--quiet")
    done("models", "push", model, "org/birds", "--report", "own.json")
    card = online.repositories["org/birds"].files["README.md"].decode()
    assert f"| {100 * expected['H-AP']:.2f} |" in card
    embedder(dim=8, seed=1, **IMAGES).save("other")
    assert "own and the model to push cannot be compared: model " in refused(
        "models", "push", "other", "org/b", "--report", "own"
    )
    assert "own.json and the model to push cannot be compared: model " in refused(
        "models", "push", "other", "org/b", "--report", "own.json"
    )
    done("embed", model, manifest, "--root", collection / "data", "--out", "large", "--size", 48, "--device", "cpu", "--quiet")
    assert "image size 48 against 32" in refused("models", "push", model, "org/b", "--report", "large")
    embedder("test_vit", dim=8, **IMAGES).save("vit")
    message = refused("models", "push", "vit", "org/b", "--report", "own.json")
    assert "backbone test_resnet against test_vit" in message
    done("models", "push", model, "org/plain")
    assert "## Metrics" not in online.repositories["org/plain"].files["README.md"].decode()


# Models on the Hub as arguments


def test_a_model_is_downloaded_and_named_as_it_is(collection, online):
    model, manifest = collection / "private place" / "run" / "model", collection / "birds.parquet"
    done("models", "push", model, "org/birds", "--quiet")
    snapshot_download("org/birds", local_dir="pulled")  # as `hf download` does
    options = (manifest, "--root", collection / "data", "--workers", 0, "--device", "cpu")
    done("embed", "pulled", *options, "--out", "a")
    done("embed", "hf-hub:org/birds", *options, "--out", "b")
    done("embed", model, *options, "--out", "c")
    a, b, c = (np.load(f"{name}/test/embeddings.npy") for name in "abc")
    assert (a == c).all()
    assert (b == c).all()
    changed = invoke("embed", "hf-hub:org/birds", *options, "--size", 48, "--resize", 48, "--out", "d")
    assert "options override what hf-hub:org/birds was saved with" in changed.stderr


def test_a_timm_model_of_the_hub_is_a_model_and_a_backbone(collection, online, monkeypatch):
    _, commit = on_the_hub(online)
    options = (collection / "birds.parquet", "--root", collection / "data", "--workers", 0, "--device", "cpu", "--size", 32)
    done("embed", "hf-hub:timm/some", *options, "--out", "a")
    done("models", "create", "hf-hub:timm/some", "--out", "made")
    assert json.loads(Path("a/test/run.json").read_text())["backbone"] == f"hf-hub:timm/some@{commit}"
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    done("embed", "made", *options, "--out", "b")
    assert (np.load("a/test/embeddings.npy") == np.load("b/test/embeddings.npy")).all()


def test_a_recipe_may_name_a_backbone_of_the_hub_whose_commit_the_run_keeps(online, tmp_path):
    _, commit = on_the_hub(online)
    model = {"backbone": "hf-hub:timm/some", "pretrained": True, "dim": 8}
    config = recipe(pictures(tmp_path / "data"), run={"epochs": 1}, model=model)
    train(config, tmp_path / "run")
    assert read_recipe(tmp_path / "run" / "recipe.toml").model.backbone == f"hf-hub:timm/some@{commit}"
    on_the_hub(online, "test_vit")
    online.asked.clear()
    (tmp_path / "run" / "result.json").unlink()  # as if it had been stopped before the end
    train(config, tmp_path / "run", resume=True)
    assert online.asked == [], "a resumed run has its commit, whose files are in the cache"
    other = config.model_copy(update={"model": config.model.model_copy(update={"backbone": "hf-hub:timm/some@main"})})
    with pytest.raises(ValueError, match=r"model.backbone was 'hf-hub:timm/some@\w+' and is 'hf-hub:timm/some@\w+'"):
        train(other, tmp_path / "run", resume=True)
    assert Embedder.load(tmp_path / "run" / "model").config.backbone == f"hf-hub:timm/some@{commit}"


# What is refused


def test_what_cannot_be_pushed_or_downloaded_says_why(collection, online, tmp_path):
    model = collection / "private place" / "run" / "model"
    assert "'a/b/c' is not the name of a repository" in refused("models", "push", model, "a/b/c")
    assert "there is no model org/nothing" in refused("embed", "hf-hub:org/nothing", collection / "birds.parquet", "--out", "x")
    assert "hf-hub:org/name" in refused("embed", "org/nothing", collection / "birds.parquet", "--out", "x")
    assert "test='t' chooses a test set of a run" in refused("models", "push", model, "org/b", "--test", "t")
    run = collection / "private place" / "run"
    assert "is a run, not a report" in refused("models", "push", model, "org/b", "--report", run)
    assert not (tmp_path / "x").exists() or not any((tmp_path / "x").iterdir())
