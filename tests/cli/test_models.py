"""suprank models: embedders created, projected, with a head, exported; refusals."""

import json

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from suprank.data import ImageDataset, Manifest, eval_transform
from suprank.models import Embedder
from tests.cli.collection import done, photographs, refused
from tests.models.tiny import embedder, images

OF_PCA = ("--pca", "m.parquet", "--workers", 0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def manifest(folder):
    photographs(folder / "photos")
    done("data", "import", "folder", "photos", "--holdout-classes", 0.4, "--out", "m.parquet")
    return Manifest.read("m.parquet")


def test_an_embedder_is_made_as_asked_and_saved(folder):
    settings = ("--pooling", "gem", "--normalization", "layer", "--dim", 16, "--freeze-batchnorm", "--image-size", 96)
    output = done("models", "create", "test_resnet", "--untrained", *settings, "--out", "made/model").stdout
    assert output == "made/model: test_resnet, 0.4 M parameters, embeddings of width 16\n"
    saved = json.loads((folder / "made/model/embedder.json").read_text())
    asked = {"pooling": "gem", "normalization": "layer", "dim": 16, "freeze_batchnorm": True}
    assert asked.items() <= (saved.get("config") or saved).items()
    model = Embedder.load("made/model").eval()
    assert model.input.size == (96, 96)
    assert model(images(2)).norm(dim=1).tolist() == pytest.approx([1, 1])


def test_the_authors_colors_are_an_option():
    done("models", "create", "test_vit", "--untrained", "--imagenet-colors", "--out", "model")
    output = Embedder.load("model").input
    assert (output.mean, output.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_weights_can_come_from_a_file():
    model = embedder()
    torch.save(model.backbone.net.state_dict(), "w.pth")
    done("models", "create", "test_resnet", "--weights", "w.pth", "--out", "model")
    assert torch.equal(Embedder.load("model").eval()(images()), model(images()))


def test_a_projection_starts_from_the_principal_components_of_the_train_images(manifest):
    embedder(normalization="l2").save("model")
    options = ("--image-size", 32, "--resize", 0, "--workers", 0, "--batch-size", 6, "--device", "cpu")
    result = done("models", "create", "model", "--pca", "m.parquet", "--dim", 5, "--whiten", "--out", "pca", *options)
    assert result.stdout == "pca: model, 0.4 M parameters, embeddings of width 5\n"
    assert "a PCA of 20 images: 96 features → 5, whitened" in result.stderr
    assert "20/20" in result.stderr
    model = Embedder.load("pca").eval()
    transform = eval_transform(32, resize=None, mean=model.input.mean, std=model.input.std)
    train = ImageDataset(manifest.split("train"), transform)
    with torch.inference_mode():
        batch = torch.stack([train[row].image for row in range(len(train))])
        features, embeddings = model.features(batch).numpy(), model(batch).numpy()
    projected = PCA(5, whiten=True, svd_solver="full").fit_transform(features)
    expected = projected / np.linalg.norm(projected, axis=1, keepdims=True)
    signs = np.sign((expected * embeddings).sum(0))  # a direction and its opposite are one component
    np.testing.assert_allclose(embeddings, signs * expected, atol=2e-3)


@pytest.mark.parametrize(("name", "writer"), [("m.onnx", "export_onnx"), ("m.pt2", "export_program")])
def test_the_suffix_chooses_the_format_of_an_export(monkeypatch, name, writer):
    written = []
    monkeypatch.setattr(f"suprank.models.{writer}", lambda model, out: written.append((model.dim, out.name)))
    embedder(dim=8).save("model")
    assert done("models", "export", "model", "--out", name).stdout == f"{name}: gives the embeddings of model\n"
    assert written == [(8, name)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "resnet5O"), "backbone='resnet5O' is not a network of timm"),
        (("create", "resnet5O"), "the nearest are resnet50"),
        (("create", "test_resnet", "--untrained", "--weights", "w.pth"), "--untrained and --weights contradict each other"),
        (("create", "test_resnet", "--weights", "gone.pth"), "there is no weights file gone.pth"),
        (("create", "test_vit", "--weights", "w.pth"), "w.pth does not fit test_vit: "),
        (("create", "test_vit", "--weights", "w.pth"), "entries are missing ("),
        (("create", "test_resnet", "--untrained", "--pooling", "token"), "choose from timm, avg, max"),
        (("create", "test_resnet", "--untrained", "--pooling", "mean"), "--pooling"),
        (("create", "test_resnet", "--untrained", "--out", "w.pth"), "w.pth is a file; name a folder."),
        (("create", "model"), "model is a saved embedder already; give --pca or --head"),
        (
            ("create", "model", *OF_PCA, "--dim", "5", "--pooling", "gem"),
            "model is a saved embedder, with weights and settings of its own",
        ),
        (
            ("create", "model", *OF_PCA, "--dim", "5", "--untrained"),
            "model is a saved embedder, with weights and settings of its own",
        ),
        (("create", "model", "--head", "head", *OF_PCA, "--dim", "5"), "--head and --pca contradict each other"),
        (("create", "model", "--dim", "5", "--whiten"), "are for a PCA; give --pca too"),
        (("create", "model", *OF_PCA), "--pca needs --dim"),
        (("create", "model", *OF_PCA, "--dim", "500"), "dim=500 is more than the 96 features of test_resnet"),
        (("create", "model", *OF_PCA, "--dim", "50"), "dim=50 is more than the 19 directions in which 20 features"),
        (
            ("create", "model", *OF_PCA, "--dim", "5", "--split", "query"),
            "there is no split 'query' here; choose from train, test.",
        ),
        (("export", "--out", "m.zip"), "m.zip must end in .onnx or .pt2, or for a head in .npz."),
        (("export", "photos", "--out", "m.onnx"), "photos is not a folder of a saved embedder"),
    ],
)
def test_what_cannot_be_done_is_said_plainly_and_nothing_is_written(request, folder, arguments, message):
    if "--pca" in arguments:
        request.getfixturevalue("manifest")
    model = embedder()
    model.save("model")
    torch.save(model.backbone.net.state_dict(), "w.pth")
    given = ("model",) if arguments[0] == "export" and "photos" not in arguments else ()
    given = (*given, *(() if "--out" in arguments else ("--out", "made")))
    assert message in refused("models", arguments[0], *given, *arguments[1:])
    assert not (folder / "made").exists()
